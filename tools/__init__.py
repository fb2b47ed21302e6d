"""What maintainers run in a checkout."""
