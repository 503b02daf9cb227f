"""Tiny models, worlds and servers that several test files share."""
