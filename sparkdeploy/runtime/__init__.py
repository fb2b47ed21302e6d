"""What happens to containers: put in place, watched, asked, replaced, taken down."""
