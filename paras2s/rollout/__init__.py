"""Sampling: the engines, and the Ray actors around engine, rewards and learner."""
