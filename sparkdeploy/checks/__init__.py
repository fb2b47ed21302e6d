"""What may go wrong on a machine or between machines, and the command that fixes it."""
