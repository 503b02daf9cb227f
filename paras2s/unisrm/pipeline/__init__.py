"""UniSRM's stages, from the command line: the data of its tasks, and both stages of its training."""
