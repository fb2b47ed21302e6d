"""A draft layer of INT4 and FP8."""
