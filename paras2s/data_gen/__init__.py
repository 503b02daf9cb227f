"""Where queries come from: scripts, speech, filters, splits, demonstrations."""
