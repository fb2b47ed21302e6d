"""The recipe room: what a user writes, checked and resolved."""
