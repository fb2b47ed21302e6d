"""What is known of a family of models: its layers, its tensors, and what they are for."""
