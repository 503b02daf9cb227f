"""Blueprints of many answers, with as many recognisers as there are cores: what every judge reads."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence

from paras2s.audio import Clip
from paras2s.parallel import map_chunks
from paras2s.records import Blueprint
from paras2s.reward.blueprint.build import build_blueprints, make_extractors
from paras2s.reward.tone import ToneClassifier

# What the rubric reads; quality models cost a hundred times more and tell it nothing.
JUDGE_EXTRACTORS = ("words", "ending", "tone")


def _measure_chunk(tone: ToneClassifier, clips: Sequence[Clip]) -> list[Blueprint]:
    return build_blueprints(clips, make_extractors(JUDGE_EXTRACTORS, tone))


def measure_answers(
    clips: Sequence[Clip], tone: ToneClassifier, on_progress: Callable[[int, int], None] | None = None
) -> list[Blueprint]:
    """One blueprint a clip, in order."""
    return map_chunks(functools.partial(_measure_chunk, tone), clips, 40, on_progress)
