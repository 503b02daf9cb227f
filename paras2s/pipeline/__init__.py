"""The stages, each a verb that runs alone: they read what the one before wrote, and wire the parts together."""
