"""Checkpoints: safetensors files, where they come from, overlays over them, and the twin."""
