"""Repositories of recipes of others: fetched, searched, and updated with consent."""
