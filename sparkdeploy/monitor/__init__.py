"""What deployments do: status, logs, and the screen of `status --watch`."""
