"""The parts of the GRPO loop: its job, answers sampled ahead, dynamic sampling, clock, checkpoints, evaluation."""
