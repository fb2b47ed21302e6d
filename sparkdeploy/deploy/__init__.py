"""Everything that happens to containers: started, replaced, watched, recovered, removed."""
