"""Programs that travel into images; each stands alone on the standard library."""
