"""The small dual-stream policy of the demo, trained from nothing on a CPU."""
