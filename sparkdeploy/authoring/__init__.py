"""Recipes made here: written for a model, imported, and followed at their source."""
