"""Memory and speed of a recipe, as figures of its model and the hardware."""
