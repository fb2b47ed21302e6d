"""Questions to a deployment, and the answers as they come."""
