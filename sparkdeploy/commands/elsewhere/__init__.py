"""`--on NODE`: the same command, run by the same program on another machine."""
