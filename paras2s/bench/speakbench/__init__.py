"""Agreement of judges with people on SpeakBench and S2S-Arena (TRACE)."""
