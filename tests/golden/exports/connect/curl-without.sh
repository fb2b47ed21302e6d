curl -s http://127.0.0.1:8001/v1/chat/completions -H 'Content-Type: application/json' -d '{"model": "gpt-oss", "messages": [{"role": "user", "content": "Hello"}]}'
