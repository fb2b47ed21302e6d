"""One machine with a Docker Engine, and what can be known about it."""
