"""Blueprints of many answers, with as many recognisers as there are cores: what every judge reads."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence

from paras2s.audio.clip import Clip
from paras2s.reward.blueprint.extract import build_blueprints, make_extractors
from paras2s.reward.tone_classifier import ToneClassifier
from paras2s.types import Blueprint
from paras2s.utils.latest import Latest
from paras2s.utils.process_pool import FEW_CLIPS, map_chunks

# What the rubric reads; quality models cost a hundred times more and tell it nothing.
JUDGE_EXTRACTORS = ("words", "voicing", "ending", "tone")


# Clips that a worker measures together.
CHUNK_CLIPS = 48
# The systems of a bench say the same sentences.
_latest: Latest[Blueprint] = Latest(4096)


def _measure_chunk(tone: ToneClassifier, clips: Sequence[Clip]) -> list[Blueprint]:
    return build_blueprints(clips, make_extractors(JUDGE_EXTRACTORS, tone))


def measure_answers(
    clips: Sequence[Clip], tone: ToneClassifier, on_progress: Callable[[int, int], None] | None = None
) -> list[Blueprint]:
    """Return a blueprint for each clip, in order; sample-equal clips are measured once, and not again while held."""
    keys = [f"{clip.digest}/{tone.version}" for clip in clips]
    # Clips of one length share a batch of the recogniser.
    by_length = dict(sorted(zip(keys, clips, strict=True), key=lambda item: len(item[1].samples)))
    work = functools.partial(_measure_chunk, tone)
    blueprints = _latest.of(by_length, lambda missing: map_chunks(work, missing, CHUNK_CLIPS, on_progress, FEW_CLIPS))
    return [blueprints[key] for key in keys]
