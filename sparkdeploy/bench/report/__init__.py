"""Records as one page: charts, the tables beneath them, and published figures beside both."""
