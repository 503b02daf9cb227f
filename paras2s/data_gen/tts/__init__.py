"""Text to speech: one interface, and the engines behind it."""
