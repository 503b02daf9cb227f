"""Biases of judges: what moves a verdict that should not."""
