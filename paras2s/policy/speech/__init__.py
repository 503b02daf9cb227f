"""Speech in and out of the released models: tokenizer, features, detokenizer."""
