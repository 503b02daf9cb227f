"""Rewards of spoken answers: blueprints, judges, the reward model, and the sources that combine them."""
