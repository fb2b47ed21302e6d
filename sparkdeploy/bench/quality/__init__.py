"""Whether two deployments say the same: log-probabilities of the same texts, side by side."""
