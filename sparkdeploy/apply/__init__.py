"""The apply room: observe, then do what a plan says."""
