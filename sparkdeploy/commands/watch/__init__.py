"""`status --watch`: readers in threads, figures from what they saw, a screen of those figures."""
