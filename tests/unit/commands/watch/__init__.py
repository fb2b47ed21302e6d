"""What `status --watch` sees and shows."""
