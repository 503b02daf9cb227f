"""A run on paper: what it computes, moves and holds, how long a step takes, and what it costs. Imports no torch."""
