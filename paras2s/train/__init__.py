"""Learning: losses, batches, learner, SFT, checkpoints, devices."""
