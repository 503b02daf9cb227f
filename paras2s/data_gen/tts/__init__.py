"""Text to speech: one interface and its engines."""
