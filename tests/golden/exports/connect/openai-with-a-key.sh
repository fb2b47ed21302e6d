export OPENAI_BASE_URL=http://127.0.0.1:8000/v1
export OPENAI_API_KEY="$(cat /home/ada/.local/state/sparkdeploy/keys/main)"
# model: qwen
