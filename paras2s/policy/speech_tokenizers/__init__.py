"""Speech and text tokenizers that several policies share."""
