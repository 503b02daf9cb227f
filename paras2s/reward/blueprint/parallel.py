"""Blueprints of many answers, with as many recognisers as there are cores: what every judge reads."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence

from paras2s.audio.clip import Clip
from paras2s.reward.blueprint.extract import build_blueprints, make_extractors
from paras2s.reward.tone_classifier import ToneClassifier
from paras2s.types import Blueprint
from paras2s.utils.process_pool import map_chunks

# What the rubric reads; quality models cost a hundred times more and tell it nothing.
JUDGE_EXTRACTORS = ("words", "voicing", "ending", "tone")


def _measure_chunk(tone: ToneClassifier, alone: bool, clips: Sequence[Clip]) -> list[Blueprint]:
    extractors = make_extractors(JUDGE_EXTRACTORS, tone)
    if alone:
        return [build_blueprints([clip], extractors)[0] for clip in clips]
    return build_blueprints(clips, extractors)


def measure_answers(
    clips: Sequence[Clip],
    tone: ToneClassifier,
    on_progress: Callable[[int, int], None] | None = None,
    alone: bool = False,
) -> list[Blueprint]:
    """One blueprint a clip, in order; clips that are equal to the sample are measured once.

    Several clips share a recogniser's window, four times as fast, and what is heard in one depends a little on its
    neighbours. `alone` gives each a window of its own, where a change of one clip must be the only thing that changed.
    """
    place: dict[str, int] = {}
    of_clip = [place.setdefault(clip.digest, len(place)) for clip in clips]
    first = {number: clip for number, clip in zip(reversed(of_clip), reversed(clips), strict=True)}
    distinct = [first[number] for number in range(len(place))]
    measured = map_chunks(functools.partial(_measure_chunk, tone, alone), distinct, 40, on_progress)
    return [measured[number] for number in of_clip]
