"""The plan package: from a recipe and what was observed to the steps that would be done."""
