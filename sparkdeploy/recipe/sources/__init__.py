"""Recipe sources: git repositories and folders of recipes, each pinned to one state."""
