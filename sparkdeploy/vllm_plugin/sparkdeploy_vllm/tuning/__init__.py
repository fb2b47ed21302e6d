"""Tiles: the file with tuned ones, and the search for them."""
