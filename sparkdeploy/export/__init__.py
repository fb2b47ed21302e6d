"""A deployment as a unit of systemd or a file of Compose."""
