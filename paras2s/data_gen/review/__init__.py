"""The page at which people check clips, and their decisions."""
