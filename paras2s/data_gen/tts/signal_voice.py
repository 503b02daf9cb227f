"""The voice of the spoken signals between the clips that an audio judge hears joined."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable, Sequence

from paras2s.audio.clip import Clip


def signal_voice() -> Callable[[Sequence[str]], list[Clip]] | None:
    """Return Piper's plain voice, or None if Piper is not installed."""
    if importlib.util.find_spec("piper") is None:
        return None

    def speak(texts: Sequence[str]) -> list[Clip]:
        from paras2s.audio.synthesis import speak_plain

        return speak_plain(texts)

    return speak
