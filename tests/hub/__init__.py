"""A hub of our own for tests."""
