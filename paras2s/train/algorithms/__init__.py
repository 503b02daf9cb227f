"""One file for each RL algorithm (see `train/algorithm.py`); the file's name is the value of `align.objective.loss_type`."""
