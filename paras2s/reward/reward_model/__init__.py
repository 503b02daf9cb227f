"""Reward models distilled from a judge."""
