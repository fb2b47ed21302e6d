"""Images in stages: rendered, fingerprinted, built through the Docker Engine."""
