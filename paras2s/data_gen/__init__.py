"""Queries and demonstrations: scripts, speech, filters, splits."""
