"""What a command does, from the first look to what is printed."""
