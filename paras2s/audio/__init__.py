"""What can be measured on a waveform: pitch, words, loudness, quality. Knows neither policies nor rewards."""
