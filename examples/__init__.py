"""Workflows as a user would write them, each with something real on the other side."""
