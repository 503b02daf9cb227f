"""Generated parts of documents: each stands between two comments, and is written again without touching the rest."""

from __future__ import annotations


def put_between(text: str, begin: str, end: str, body: str) -> str:
    """Return the text with `body` between the two comments.

    Raises:
        ValueError: the comments are not there.
    """
    before, found, rest = text.partition(begin)
    _, closed, after = rest.partition(end)
    if not found or not closed:
        raise ValueError(f"{begin} and {end} are not there, so that nothing can be written between them")
    return f"{before}{begin}\n\n{body.strip()}\n\n{end}{after}"
