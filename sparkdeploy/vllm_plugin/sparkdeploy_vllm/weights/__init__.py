"""FP8 and INT4 weights: what the checkpoint asks for, conversion, layers."""
