"""The running vLLM: its client, its health, its log and its metrics."""
