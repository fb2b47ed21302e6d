"""What the CPU engine lacks for rehearsals."""
