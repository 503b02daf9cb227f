"""The small dual-stream policy of the demo, trained from random weights on a CPU."""
