"""`recipe source` and `recipe search`: recipes of others, taken at one commit."""
