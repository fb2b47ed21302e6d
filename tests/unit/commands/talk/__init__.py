"""`ask` and `chat`."""
