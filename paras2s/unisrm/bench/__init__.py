"""UniSRM-Bench: any judge on the four tasks of UniSRM, with its controls beside every figure."""
