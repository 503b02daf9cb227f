"""The decoder with a text and an audio branch (Kimi-Audio), and its sampler."""
