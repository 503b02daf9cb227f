"""Blueprints of many clips: every extractor once over all of them, a clip that fails is Absent and holds nobody up."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from paras2s.audio import Clip
from paras2s.errors import AudioError, ConfigError
from paras2s.records import Absent, Blueprint
from paras2s.reward.blueprint.ending import EndingExtractor
from paras2s.reward.blueprint.loudness import LoudnessExtractor
from paras2s.reward.blueprint.pitch import PitchExtractor, VoicingExtractor
from paras2s.reward.blueprint.quality import QualityExtractor
from paras2s.reward.blueprint.schema import Extractor, Fields
from paras2s.reward.blueprint.tone import ToneExtractor
from paras2s.reward.blueprint.words import WordsExtractor
from paras2s.reward.tone import ToneClassifier


def _tone(classifier: ToneClassifier | None) -> Extractor:
    if classifier is None:
        raise ConfigError("extractor 'tone' needs a fitted tone classifier; fit one first or leave 'tone' out")
    return ToneExtractor(classifier)


# Each factory is given the run's tone classifier, the only extractor state that is fitted and not shipped.
EXTRACTORS: dict[str, Callable[[ToneClassifier | None], Extractor]] = {
    "words": lambda _: WordsExtractor(),
    "pitch": lambda _: PitchExtractor(),
    "voicing": lambda _: VoicingExtractor(),
    "loudness": lambda _: LoudnessExtractor(),
    "quality": lambda _: QualityExtractor(),
    "ending": lambda _: EndingExtractor(),
    "tone": _tone,
}


def make_extractors(names: Sequence[str], tone: ToneClassifier | None = None) -> list[Extractor]:
    """Extractors by name, in that order.

    Raises:
        ConfigError: an unknown name, or "tone" without a classifier.
    """
    unknown = sorted(set(names) - set(EXTRACTORS))
    if unknown:
        raise ConfigError(f"unknown extractor {', '.join(unknown)}; there are {', '.join(EXTRACTORS)}")
    return [EXTRACTORS[name](tone) for name in names]


def build_blueprints(clips: Sequence[Clip], extractors: Sequence[Extractor]) -> list[Blueprint]:
    """One blueprint a clip, in order; an AudioError becomes Absent for that extractor's keys on that clip only."""
    at_rate = {rate_hz: [clip.at(rate_hz) for clip in clips] for rate_hz in {item.rate_hz for item in extractors}}
    fields: list[Fields] = [{} for _ in clips]
    for extractor in extractors:
        for found, row in zip(fields, _measure(extractor, at_rate[extractor.rate_hz]), strict=True):
            found.update(row)
    versions = {extractor.name: extractor.version for extractor in extractors}
    return [Blueprint(found, dict(versions)) for found in fields]


def _measure(extractor: Extractor, clips: Sequence[Clip]) -> list[Fields]:
    """Measure all clips; on an error halve the batch, until the clips that cause it stand alone."""
    try:
        return extractor.measure(clips)
    except AudioError as error:
        if len(clips) == 1:
            return [{key: Absent(str(error)) for key in extractor.keys}]
        middle = len(clips) // 2
        return _measure(extractor, clips[:middle]) + _measure(extractor, clips[middle:])
