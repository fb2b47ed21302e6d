"""The LM head of integers: of the target and of drafts, with its kernels and tiles."""
