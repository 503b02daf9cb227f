"""Talk to two checkpoints in the studio: questions, answers side by side, and votes that are kept as preferences."""
