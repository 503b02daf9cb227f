"""How a policy learns: losses, batches, learner, SFT, checkpoints, devices."""
