"""A recipe in miniature, and its text held against itself."""
