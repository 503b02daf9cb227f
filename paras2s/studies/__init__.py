"""Listening studies on disk: the forms that people fill in, the items they judge, and every click of theirs."""
