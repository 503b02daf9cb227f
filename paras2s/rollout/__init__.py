"""Who samples: the native engine, and the Ray actors around engine, rewards and learner."""
