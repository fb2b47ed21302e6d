"""Recipes in the formats of eugr's scripts (v1) and of sparkrun (v2 to v4), read as ours."""
