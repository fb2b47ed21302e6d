"""What a user writes, checked and resolved."""
