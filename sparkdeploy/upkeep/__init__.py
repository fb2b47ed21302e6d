"""What keeps a machine in order: setup, clean, diagnose, images, checkpoints, cluster."""
