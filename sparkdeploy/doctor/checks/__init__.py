"""The checks themselves: pure functions from facts to findings."""
