"""Styles of questions in words, for a policy that is told in which style a question was said. Imports no torch."""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache

from paras2s.configs.schema.base import preset_path, read_values
from paras2s.errors import ConfigError


@lru_cache(maxsize=1)
def shipped_styles() -> dict[str, dict[str, str]]:
    """Return the words of each style, by category: those of the shipped judge `contrast`."""
    return dict(read_values(preset_path("contrast", "judges"))["styles"])


def words_of(style: str, own: Mapping[str, str]) -> str:
    """Return a style in words, by `policy.style_words` (`own`) or as shipped. Raises ConfigError: it has none."""
    known = {name: words for named in shipped_styles().values() for name, words in named.items()} | dict(own)
    if style not in known:
        raise ConfigError(f"style {style!r} has no words to tell a policy; add them: policy.style_words: {{{style}: ...}}")
    return known[style]
