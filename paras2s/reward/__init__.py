"""What an answer is worth: tone, blueprint, judges, and how their scores are combined."""
