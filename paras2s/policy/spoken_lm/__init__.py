"""A pretrained text model that hears how a question is said, and says its answer with Piper and a vocoder."""
