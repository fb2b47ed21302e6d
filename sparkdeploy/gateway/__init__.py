"""Several models behind one address: the stack file, what of it fits together, and the server."""
