"""Who scores: each judge reads a question and an answer's blueprint, and gives a Verdict or Unscored."""
