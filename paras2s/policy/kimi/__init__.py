"""Kimi-Audio 7B: policy, flow-matching detokenizer, vocoder."""
