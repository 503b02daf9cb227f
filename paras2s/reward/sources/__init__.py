"""Reward sources: each scores groups of answers from 1 to 5, and `composite` combines them into one reward."""
