"""A run on paper: its computation, transfers and memory, the time of a step, and the cost. Imports no torch."""
