"""Items of listening studies from a run, and the results of studies with their export."""
