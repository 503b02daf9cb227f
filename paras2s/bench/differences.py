"""Differences of two recordings as measured, and a sentence of what a listener notices: no judge, no call."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from typing import Any

from rich.console import Console

from paras2s.audio.asr import normalise_words
from paras2s.audio.clip import Clip
from paras2s.bench.display import ClipNames
from paras2s.errors import AssetError, AudioError
from paras2s.reward.blueprint.extract import MISSING, build_blueprints, make_extractors
from paras2s.reward.blueprint.loudness import INTEGRATED
from paras2s.reward.blueprint.pitch import MEAN, STD
from paras2s.reward.blueprint.schema import EMOTION, RESPONSE, is_silent
from paras2s.reward.blueprint.words import ARTICULATION_RATE, SPEECH_RATE
from paras2s.reward.tone_classifier import ToneClassifier
from paras2s.types import Absent, Blueprint, Measured
from paras2s.utils.tables import Table, number_text

QUALITY = "agent_audio_quality.p808_overall"


@dataclass(frozen=True)
class Quantity:
    """A quantity: its `value` of a blueprint, the noticeable `gap` of two values, and `words` for a clip with more or less."""

    name: str
    unit: str
    keys: tuple[str, ...]
    value: Callable[..., float]
    gap: Callable[[float, float], float]
    gap_unit: str
    noticeable_from: float
    words: tuple[str, str]


def _semitones(first: float, second: float) -> float:
    return 12 * math.log2(first / second)


def _less(first: float, second: float) -> float:
    return first - second


def _percent(first: float, second: float) -> float:
    return 100 * (first / second - 1)


def _pitch_range(mean_hz: float, std_hz: float) -> float:
    """Return two standard deviations around the mean in semitones."""
    return _semitones(mean_hz + std_hz, max(mean_hz - std_hz, 1.0))


def _pauses(speech_rate: float, articulation_rate: float) -> float:
    return 100 * max(0.0, 1 - speech_rate / articulation_rate)


def _same(value: float) -> float:
    return value


# About twice what is just noticeable in a quiet room: what a listener notices without being told to.
QUANTITIES = (
    Quantity("pitch", "Hz", (MEAN,), _same, _semitones, "semitones", 1.0, ("higher", "lower")),
    Quantity("pitch range", "semitones", (MEAN, STD), _pitch_range, _less, "semitones", 1.0, ("livelier", "flatter")),
    Quantity("loudness", "LUFS", (INTEGRATED,), _same, _less, "LU", 1.5, ("louder", "quieter")),
    Quantity("rate", "syllables/s", (SPEECH_RATE,), _same, _percent, "%", 10.0, ("faster", "slower")),
    Quantity("pauses", "% of the time", (SPEECH_RATE, ARTICULATION_RATE), _pauses, _less, "points", 10.0,
             ("with more pauses", "with fewer pauses")),
    Quantity("quality", "MOS 1-5", (QUALITY,), _same, _less, "MOS", 0.3, ("cleaner", "noisier")),
)  # fmt: skip


@dataclass(frozen=True)
class Difference:
    """A row: both values (None: `why`), their difference as text, and how the first one is noticed ("": it is not)."""

    name: str
    unit: str
    first: float | str | None
    second: float | str | None
    difference: str
    noticed: str
    why: str = ""


@dataclass(frozen=True)
class RecordingComparison:
    """Two recordings as measured: their differences, and a sentence of what a listener notices."""

    rows: tuple[Difference, ...]
    sentence: str
    names: ClipNames

    def as_json(self) -> dict[str, Any]:
        """Return the differences and the sentence as plain JSON."""
        return {"differences": [asdict(row) for row in self.rows], "sentence": self.sentence}

    def show(self, console: Console) -> None:
        """Show the table, the reasons for what could not be measured, and the sentence."""
        rows = [
            (f"{row.name} ({row.unit})" if row.unit else row.name, _text(row.first), _text(row.second), row.difference,
             "yes" if row.noticed else "" if row.why else "no")
            for row in self.rows
        ]  # fmt: skip
        notes = {row.why: None for row in self.rows if row.why}
        Table(("measured", *self.names, "difference", "noticeable"), rows, notes=[*notes]).show(console)
        console.print(self.sentence)


def compare_clips(first: Clip, second: Clip, names: ClipNames, tone: ToneClassifier | None = None) -> RecordingComparison:
    """Measure and compare two recordings. Without a fitted tone classifier the tones are those of the independent judge."""
    extractors = make_extractors(["words", "quality", "pitch", "loudness", *(["tone"] if tone else [])], tone)
    blueprints = build_blueprints([first, second], extractors)
    words = _compare_words(*blueprints)
    tones = _compare_tones((first, second), blueprints if tone else None)
    rows = (words, *(_compare(quantity, *blueprints) for quantity in QUANTITIES), tones)
    silent = [name for name, clip in zip(names, (first, second), strict=True) if is_silent(clip)]
    if silent:
        sentence = f"{' and '.join(silent)} {'is' if len(silent) == 1 else 'are'} silent: there is nothing to compare."
    elif first.digest == second.digest:
        sentence = "Both files hold the same sound."
    else:
        sentence = _sentence(rows, names)
    return RecordingComparison(rows, sentence, names)


def _compare(quantity: Quantity, first: Blueprint, second: Blueprint) -> Difference:
    left, right = _value(quantity, first), _value(quantity, second)
    if isinstance(left, str) or isinstance(right, str):
        sides = [None if isinstance(value, str) else value for value in (left, right)]
        why = left if isinstance(left, str) else right
        return Difference(quantity.name, quantity.unit, sides[0], sides[1], "", "", f"{quantity.name}: {why}")
    gap = quantity.gap(left, right)
    noticed = "" if abs(gap) < quantity.noticeable_from else quantity.words[0 if gap > 0 else 1]
    text = number_text(gap, 0 if abs(gap) >= 10 else 1, unit=f" {quantity.gap_unit}", signed=True)
    return Difference(quantity.name, quantity.unit, left, right, text, noticed)


def _value(quantity: Quantity, blueprint: Blueprint) -> float | str:
    """Return the quantity of a recording, or why it could not be measured."""
    fields = [blueprint.fields[key] for key in quantity.keys]
    absent = [field.reason for field in fields if isinstance(field, Absent)]
    return absent[0] if absent else quantity.value(*(field.value for field in fields if isinstance(field, Measured)))


def _compare_words(first: Blueprint, second: Blueprint) -> Difference:
    left, right = first.value(RESPONSE), second.value(RESPONSE)
    if left is None or right is None:
        why = (first if left is None else second).why_absent(RESPONSE)
        return Difference("words", "", left, right, "", "", f"words: {why}")
    same = normalise_words(left) == normalise_words(right)
    return Difference("words", "", left, right, "the same" if same else "other words", "" if same else "says other words")


def _compare_tones(clips: tuple[Clip, Clip], blueprints: list[Blueprint] | None) -> Difference:
    tones: list[str | None] = []
    why = ""
    for number, clip in enumerate(clips):
        try:
            tones.append(_tone(clip) if blueprints is None else _likeliest(blueprints[number].fields))
        except (AudioError, AssetError) as error:
            tones.append(None)
            why = why or f"tone: {error}"
        except ModuleNotFoundError as error:
            tones.append(None)
            why = why or f"tone: {MISSING}: it needs the package {error.name}; run: pip install 'paras2s[offline]'"
    if why:
        return Difference("tone", "", tones[0], tones[1], "", "", why)
    same = tones[0] == tones[1]
    return Difference(
        "tone", "", tones[0], tones[1], "the same" if same else "another tone", "" if same else f"in a {tones[0]} tone"
    )


def _tone(clip: Clip) -> str:
    """Return the tone of a clip by the independent judge's features, which come with the package."""
    from paras2s.reward.judges.independent.tone import ToneDiscriminant, tone_features

    return ToneDiscriminant.load().predict(tone_features(clip)[None])[0]


def _likeliest(fields: Mapping[str, Measured | Absent]) -> str:
    scores: dict[str, float] = {}
    for key, field in fields.items():
        if not key.startswith(f"{EMOTION}."):
            continue
        if isinstance(field, Absent):
            raise AudioError(field.reason)
        scores[key] = float(field.value)
    likeliest = max(scores, key=lambda key: scores[key])
    return likeliest.removeprefix(f"{EMOTION}.")


def _sentence(rows: tuple[Difference, ...], names: ClipNames) -> str:
    """Return what a listener notices on the first recording beside the second."""
    words, *measured, tone = rows
    noticed = [row.noticed for row in measured if row.noticed]
    adjectives = [word for word in noticed if not word.startswith("with ")]
    pauses = [word for word in noticed if word.startswith("with ")]
    manner = " ".join([*([f"is {_listed(adjectives)}"] if adjectives else ["speaks"] if pauses else []), *pauses])
    parts = [manner] if manner else []
    if tone.noticed:
        parts.append(f"sounds {tone.first} where {names[1]} sounds {tone.second}")
    spoken = "" if words.why else " They say different words." if words.noticed else " They say the same words."
    if not parts:
        return f"No difference in the voice that a listener would notice.{spoken}"
    return f"Beside {names[1]}, {names[0]} {' and '.join(parts)}.{spoken} Which one answers better, numbers do not tell."


def _listed(words: list[str]) -> str:
    return words[0] if len(words) == 1 else f"{', '.join(words[:-1])} and {words[-1]}"


def _text(value: float | str | None) -> str | None:
    return value if isinstance(value, str) or value is None else f"{value:.1f}"
