"""Clips, and measurements on a waveform: pitch, words, prosody. Knows neither policies nor rewards."""
