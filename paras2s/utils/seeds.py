"""Seeds derived from values, so that the same inputs give the same draws in every run."""

from __future__ import annotations

import hashlib


def seed_of(*parts: object) -> int:
    """Return a seed of 32 bits from the values' text form."""
    return int.from_bytes(hashlib.sha256(repr(parts).encode()).digest()[:4], "big")
