"""Builds the blueprints of many clips: each extractor runs once over all, and a clip that fails is Absent."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from paras2s.audio.clip import Clip, broken_samples
from paras2s.configs.schema.endpoints import ExtractorConfig
from paras2s.errors import AssetError, AudioError, ConfigError, one_line
from paras2s.reward.blueprint.accent import AccentExtractor
from paras2s.reward.blueprint.emotion import EmotionExtractor
from paras2s.reward.blueprint.loudness import LoudnessExtractor
from paras2s.reward.blueprint.pitch import PitchExtractor, VoicingExtractor
from paras2s.reward.blueprint.quality import QualityExtractor
from paras2s.reward.blueprint.schema import RESPONSE, Extractor, Fields
from paras2s.reward.blueprint.tone import ToneExtractor
from paras2s.reward.blueprint.transformers_words import TransformersWordsExtractor
from paras2s.reward.blueprint.truncation import TruncationExtractor
from paras2s.reward.blueprint.words import WordsExtractor
from paras2s.reward.tone_classifier import ToneClassifier
from paras2s.types import Absent, Blueprint, Measured
from paras2s.utils.cache import JsonCache, key_of
from paras2s.utils.plugins import find_part

# Other packages offer extractors under this entry point: a name, and a callable of their options.
ENTRY_POINT = "paras2s.extractors"

EXTRACTORS: dict[str, Callable[..., Extractor]] = {
    "words": WordsExtractor,
    "transformers_words": TransformersWordsExtractor,
    "emotion": EmotionExtractor,
    "accent": AccentExtractor,
    "quality": QualityExtractor,
    "pitch": PitchExtractor,
    "loudness": LoudnessExtractor,
    "voicing": VoicingExtractor,
    "ending": TruncationExtractor,
}
# Only this extractor's state is fitted by a run and not shipped.
TONE = "tone"


def make_extractors(extractors: Sequence[str | ExtractorConfig], tone: ToneClassifier | None = None) -> list[Extractor]:
    """Return extractors by name, or name and options, in order. Raises ConfigError: unknown, no tones, or one group twice."""
    configs = [ExtractorConfig(name=extractor) if isinstance(extractor, str) else extractor for extractor in extractors]

    def make_tone() -> Extractor:
        if tone is None:
            raise ConfigError("extractor 'tone' needs a fitted tone classifier; fit one first or leave 'tone' out")
        return ToneExtractor(tone)

    shipped = EXTRACTORS | {TONE: make_tone}
    made: list[Extractor] = []
    for config in configs:
        extractor = find_part("extractor", ENTRY_POINT, config.name, shipped)
        try:
            made.append(extractor(**config.options))
        except TypeError as error:
            raise ConfigError(
                f"extractor {config.name!r}: options {config.options} do not fit it ({one_line(error)})"
            ) from error
    _refuse_twins(made)
    return made


def _refuse_twins(extractors: Sequence[Extractor]) -> None:
    owner: dict[str, str] = {}
    for extractor in extractors:
        # Two emotion models in one group would read as one distribution.
        for key in {key if key.startswith("agent_audio") else key.partition(".")[0] for key in extractor.keys}:
            if owner.setdefault(key, extractor.name) != extractor.name:
                raise ConfigError(f"extractors {owner[key]!r} and {extractor.name!r} both give {key}; leave one out")


def build_blueprints(clips: Sequence[Clip], extractors: Sequence[Extractor], cache: JsonCache | None = None) -> list[Blueprint]:
    """Build one blueprint for each clip, in order; an AudioError becomes Absent for that extractor's keys on that clip only.

    With a `cache`, an extractor of the same version does not measure the same samples again.
    """
    known = _known(clips, extractors, cache) if cache else {}
    fields: list[Fields] = [{} for _ in clips]
    for extractor in extractors:
        todo = [index for index in range(len(clips)) if (extractor.name, index) not in known]
        rate_hz = extractor.rate_hz
        at_rate = [clips[index] if rate_hz is None else clips[index].at(rate_hz) for index in todo]
        fresh = dict(zip(todo, _measure(extractor, at_rate) if todo else [], strict=True))
        if cache:
            cache.put_many(
                {_key(clips[index], extractor): fields_to_json(values) for index, values in fresh.items() if _lasting(values)}
            )
        for index, row in enumerate(fields):
            row.update(fresh[index] if index in fresh else known[extractor.name, index])
    versions = {extractor.name: extractor.version for extractor in extractors}
    return [Blueprint(row, dict(versions)) for row in fields]


def to_measure(clips: Sequence[Clip], extractors: Sequence[Extractor], cache: JsonCache | None) -> list[bool]:
    """Return for each clip whether an extractor has yet to measure it."""
    known = _known(clips, extractors, cache) if cache else {}
    return [any((extractor.name, index) not in known for extractor in extractors) for index in range(len(clips))]


def _measure(extractor: Extractor, clips: Sequence[Clip]) -> list[Fields]:
    """Measure all clips that can be sound; on an error halve the batch, until each clip that causes it is alone."""
    broken = [broken_samples(clip.samples) for clip in clips]
    if any(broken):
        # A policy may answer with samples that no file may hold, and a model gives a number for everything.
        fine = iter(_measure(extractor, [clip for clip, why in zip(clips, broken, strict=True) if not why]))
        return [{key: Absent(f"the clip: {why}") for key in extractor.keys} if why else next(fine) for why in broken]
    try:
        return extractor.measure(clips)
    except AssetError as error:
        return [{key: Absent(f"{MISSING}: {error}") for key in extractor.keys} for _ in clips]
    except ModuleNotFoundError as error:
        why = f"{MISSING}: '{extractor.name}' needs the package {error.name}; run: pip install 'paras2s[offline]'"
        return [{key: Absent(why) for key in extractor.keys} for _ in clips]
    except AudioError as error:
        if len(clips) == 1:
            return [{key: Absent(str(error)) for key in extractor.keys}]
        middle = len(clips) // 2
        return _measure(extractor, clips[:middle]) + _measure(extractor, clips[middle:])


MISSING = "not installed"


def require_installed(blueprints: Sequence[Blueprint], left_out: Sequence[str] = ()) -> None:
    """Refuse to pay for evidence without an extractor's group, unless in `left_out`. Raises ConfigError: which, and why."""
    missing = {
        key.partition(".")[0]: field.reason
        for blueprint in blueprints
        # Without a transcript there is no call to pay for: the judge says so of the pair.
        if not isinstance(blueprint.fields.get(RESPONSE), Absent)
        for key, field in blueprint.fields.items()
        if isinstance(field, Absent) and field.reason.startswith(MISSING) and key.partition(".")[0] not in left_out
    }
    if missing:
        reasons = "; ".join(f"{group}: {reason}" for group, reason in missing.items())
        raise ConfigError(f"{reasons}. Or judge without: -s 'judge.left_out=[{', '.join(missing)}]'")


def _lasting(fields: Fields) -> bool:
    """Return whether a later run would measure the same: fields that a missing package left out may exist next time."""
    return not any(isinstance(field, Absent) and field.reason.startswith(MISSING) for field in fields.values())


def _key(clip: Clip, extractor: Extractor) -> str:
    parts = ["blueprint", clip.samples_digest, clip.sample_rate_hz, extractor.name, extractor.version]
    # Two files with one mean may differ in their channels, which only some extractors read.
    return key_of(parts if extractor.rate_hz is not None or clip.channels is None else [*parts, clip.channels_digest])


def _known(clips: Sequence[Clip], extractors: Sequence[Extractor], cache: JsonCache) -> dict[tuple[str, int], Fields]:
    keys = {(item.name, index): _key(clip, item) for item in extractors for index, clip in enumerate(clips)}
    values = cache.get_many(keys.values())
    return {index: fields_from_json(values[key]) for index, key in keys.items() if key in values}


def fields_to_json(fields: Fields) -> dict[str, Any]:
    """Return the fields as plain JSON: [value, unit, confidence], or the reason of an absent one."""
    return {
        key: [field.value, field.unit, field.confidence] if isinstance(field, Measured) else field.reason
        for key, field in fields.items()
    }


def fields_from_json(stored: Mapping[str, Any]) -> Fields:
    """Return the inverse of `fields_to_json`."""
    return {key: Absent(value) if isinstance(value, str) else Measured(*value) for key, value in stored.items()}
