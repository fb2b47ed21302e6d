"""The twin: a few megabytes with the names, kinds and configuration of the real checkpoint."""
