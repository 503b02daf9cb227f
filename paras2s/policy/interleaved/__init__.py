"""Policies with one stream of text and audio in turn: GLM-4-Voice, Step-Audio 2."""
