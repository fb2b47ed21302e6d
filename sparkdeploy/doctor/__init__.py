"""Preflight checks: what may go wrong on this machine, and the command that fixes it."""
