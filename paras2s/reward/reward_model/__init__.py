"""Reward models distilled from a judge."""

# Rises when a reward model reads or learns something else: one of another version is no outcome of the same stage.
VERSION = "2"
