"""UniSRM: one reasoning reward model for four speech tasks (the UniSRM paper): format, rewards, and training with TRL."""
