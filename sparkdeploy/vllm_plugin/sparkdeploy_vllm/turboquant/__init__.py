"""Attention over a TurboQuant cache."""
