"""`bench`: measure what is served, say what made it, and hold it against other runs and sides."""
