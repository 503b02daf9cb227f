"""Who speaks: the policy interface, the model behind it, its codec, warm-up, the objective and the learner."""
