"""An engine that is none: it meets the other nodes, serves, and hangs or dies when told to."""
