"""Keeps: SQL, the database, values as text, credentials out."""
