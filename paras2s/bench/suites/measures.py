"""Measures of answers that several suites share: emotion2vec, UTMOS, word errors. Weights that are missing are a reason."""

from __future__ import annotations

import functools
import re
from pathlib import Path
from typing import Any

from paras2s.audio.asr import word_error_rate
from paras2s.audio.clip import Clip
from paras2s.errors import AssetError, JudgeError, one_line
from paras2s.utils.io import reading

UTMOS_REPOSITORY, UTMOS_RATE_HZ = "tarepan_SpeechMOS_v1.2.0", 16_000


def emotions(clip: Clip) -> dict[str, float]:
    """Return emotion2vec's share of each of nine emotions. Raises AssetError: not installed. AudioError: a silent clip."""
    from paras2s.reward.blueprint.emotion import EmotionExtractor
    from paras2s.types import Measured

    extractor = EmotionExtractor()
    fields = extractor.measure([clip.at(extractor.rate_hz)])[0]
    return {key.rpartition(".")[2]: float(field.value) for key, field in fields.items() if isinstance(field, Measured)}


def utmos(clip: Clip) -> dict[str, float]:
    """Return UTMOS, 1 to 5, by the weights in torch's hub folder. Raises AssetError: they are missing."""
    import torch

    samples = torch.from_numpy(clip.at(UTMOS_RATE_HZ).samples)[None]
    with torch.no_grad():
        return {"score": float(_utmos_model()(samples, UTMOS_RATE_HZ))}


@functools.lru_cache(maxsize=1)
def _utmos_model() -> Any:
    import torch

    hub: Any = torch.hub
    folder = Path(hub.get_dir()) / UTMOS_REPOSITORY
    if not folder.is_dir():
        raise AssetError(
            f"UTMOS: its weights are missing; torch.hub.load('tarepan/SpeechMOS:v1.2.0', ...) puts them in {folder}"
        )
    with reading(f"UTMOS: {folder}", "cannot be loaded", kind=AssetError):
        return hub.load(str(folder), "utmos22_strong", source="local", trust_repo=True)


def word_errors(reference: str, hypothesis: str, language: str = "en") -> float:
    """Return the word error rate, in Chinese of characters, at most 1. Raises JudgeError: the reference holds no words."""
    import jiwer

    try:
        if language == "en":
            return min(1.0, word_error_rate(reference, hypothesis))
        right, given = ("".join(re.findall(r"\w", text.lower())) for text in (reference, hypothesis))
        return min(1.0, float(jiwer.cer(right, given))) if given else 1.0
    except ValueError as error:
        raise JudgeError(f"word errors: {one_line(error)}") from error
