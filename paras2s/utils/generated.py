"""Generated parts of documents, between two comments each; writing one again does not touch the rest."""

from __future__ import annotations


def put_between(text: str, begin: str, end: str, body: str) -> str:
    """Return the text with `body` between the two comments. Raises ValueError: the comments are missing."""
    before, marker, rest = text.partition(begin)
    _, closed, after = rest.partition(end)
    if not marker or not closed:
        raise ValueError(f"{begin} and {end} are missing; add both comments to the document")
    return f"{before}{begin}\n\n{body.strip()}\n\n{end}{after}"
