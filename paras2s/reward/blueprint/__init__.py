"""The audio blueprint (TRACE, Fig. 7): what an answer sounds like, as typed fields that a text judge can read."""
