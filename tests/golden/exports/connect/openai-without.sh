export OPENAI_BASE_URL=http://127.0.0.1:8001/v1
export OPENAI_API_KEY=none
# model: gpt-oss
