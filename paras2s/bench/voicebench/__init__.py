"""General ability: VoiceBench's questions."""
