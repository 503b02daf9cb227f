"""paras2s: teach a speech-to-speech model to hear how something is said, and to answer fittingly."""

__version__ = "0.6.0"
