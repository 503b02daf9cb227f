"""Judges: each scores or compares spoken answers and gives a Verdict, a Preference, or Unscored with its reason."""
