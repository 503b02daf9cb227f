"""The comparisons of probes: pairs of answers, changed in one known way (AudioJudge, section 6 and appendix G).

A probe is a list of trials. A trial names the comparisons it takes, so that a comparison of several probes is made once, and
says what their labels come to. What differs from the paper:

1. Noise is counted by what the judge said of the clean pair: people's choice, the other answer, or a tie; without people's
   labels by the clean label itself. The instruction stays clean. A seventh level cannot be heard, as a control.
2. Loudness and voice are probes of ours; the changed clip comes first as often as second, so that a bias of place cancels.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from pydantic import BaseModel, ConfigDict, Field, model_validator

from paras2s.audio.clip import Clip, read_clip
from paras2s.bench.bias.metrics import AGAINST_ORDER, VERDICT, mos_bin, noise_class, place_of
from paras2s.errors import AudioError, DataError, checking
from paras2s.reward.judges.base import Pair, Utterance
from paras2s.reward.judges.votes import swapped
from paras2s.types import PairLabel
from paras2s.utils.io import read_csv, read_rows

SNRS_DB = (1.0, 5.0, 10.0, 20.0, 30.0, 40.0)
# Inaudible noise: what changes here is the judge's own randomness, and every other level is read against it.
CONTROL_DB = 80.0
GAIN_DB = 6.0
MIN_TOKEN_GAP = 5
OWN_VOICE = "own"
GIVEN, TURNED = "as given", "turned"
MAX_CLIP_S = 600.0
PEOPLE = "people"
Labels = Sequence[PairLabel | None]
# In which groups a trial is counted, and as what; None: it cannot be told, for a label is missing.
Counted = list[tuple[tuple[str, ...], str | None]]


class PairRow(BaseModel):
    """One row of a manifest. Paths are relative to the manifest."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    id: str = Field(min_length=1)
    first: str = Field(min_length=1)
    second: str = Field(min_length=1)
    instruction: str | None = None
    instruction_text: str | None = None
    style: str | None = None
    first_text: str | None = None
    second_text: str | None = None
    human: PairLabel | None = None
    aspect: str | None = None
    cluster: str | None = None
    first_mos: float | None = Field(None, allow_inf_nan=False)
    second_mos: float | None = Field(None, allow_inf_nan=False)

    @model_validator(mode="after")
    def _check(self) -> PairRow:
        if (self.first_mos is None) != (self.second_mos is None):
            raise ValueError("first_mos and second_mos: give both or neither")
        return self


@dataclass(frozen=True)
class ProbePair:
    """A pair to probe with. `words` are what the answers say, None if not written down.

    `human` is people's label; `tied_by` names who rated the two alike (people, or the rubric of a run), None if not rated.
    `cluster` is what is drawn together in a bootstrap; `mos` are people's mean opinions of the two.
    """

    id: str
    first: Path
    second: Path
    instruction: Path | None = None
    text: str | None = None
    style: str | None = None
    words: tuple[str | None, str | None] = (None, None)
    human: PairLabel | None = None
    tied_by: str | None = None
    aspect: str | None = None
    cluster: str = ""
    mos: tuple[float, float] | None = None

    def clips(self, turned: bool = False) -> dict[str, Path | None]:
        """Return the files by role, or in the other order."""
        first, second = (self.second, self.first) if turned else (self.first, self.second)
        return {"question": self.instruction, "answer 1": first, "answer 2": second}


def load_probe_pairs(path: Path) -> list[ProbePair]:
    """Return the pairs of a manifest, CSV or JSONL, in its order. Raises DataError: names file:line and key."""
    rows: dict[str, ProbePair] = {}
    for number, values in _rows(path):
        with checking(f"{path}:{number}"):
            row = PairRow.model_validate(values)
        if row.id in rows:
            raise DataError(f"{path}:{number}: id: {row.id!r} occurs more than once")
        rows[row.id] = _pair_of(row, path.parent)
    if not rows:
        raise DataError(f"{path}: holds no pairs")
    return list(rows.values())


def _rows(path: Path) -> Iterator[tuple[int, Any]]:
    if path.suffix.lower() == ".csv":
        for number, row in read_csv(path):
            yield number, {key: value for key, value in row.items() if value not in ("", None)}
        return
    if path.suffix.lower() not in (".jsonl", ".ndjson"):
        raise DataError(f"{path}: expected .csv or .jsonl")
    yield from read_rows(path)


def _pair_of(row: PairRow, folder: Path) -> ProbePair:
    return ProbePair(
        id=row.id,
        first=folder / row.first,
        second=folder / row.second,
        instruction=None if row.instruction is None else folder / row.instruction,
        text=row.instruction_text,
        style=row.style,
        words=(row.first_text, row.second_text),
        human=row.human,
        tied_by=PEOPLE if row.human == "tie" else None,
        aspect=row.aspect,
        cluster=row.cluster or row.id,
        mos=None if row.first_mos is None or row.second_mos is None else (row.first_mos, row.second_mos),
    )


def pick_pairs(pairs: Sequence[ProbePair], count: int | None, seed: int) -> list[ProbePair]:
    """Return a seeded sample without repetition, in the order of `pairs`; all pairs if there are no more than `n`."""
    if count is None or count >= len(pairs):
        return list(pairs)
    chosen = np.random.default_rng([seed, len(pairs)]).choice(len(pairs), count, replace=False)
    return [pairs[index] for index in sorted(chosen.tolist())]


# What is done to a clip.


def add_noise(clip: Clip, snr_db: float, rng: np.random.Generator) -> Clip:
    """Return the clip in white Gaussian noise of exactly this ratio of powers over its full length.

    A sum that peaks over 1 is turned down as a whole: nothing clips, and the ratio stays.

    Raises:
        AudioError: the clip is silent, so that no ratio can be had.
    """
    power = float(np.mean(np.square(clip.samples, dtype=np.float64)))
    if power == 0:
        raise AudioError("the clip is silent: noise has no ratio to it")
    noise = rng.standard_normal(len(clip.samples))
    noise *= np.sqrt(power / 10 ** (snr_db / 10) / np.mean(noise**2))
    mixed = clip.samples + noise
    return Clip((mixed / max(1.0, float(np.abs(mixed).max()))).astype(np.float32), clip.sample_rate_hz)


def amplify(clip: Clip, gain_db: float) -> Clip:
    """Return the clip at another level; samples go over 1 if the gain takes them there."""
    return Clip((clip.samples * 10 ** (gain_db / 20)).astype(np.float32), clip.sample_rate_hz)


def louder_and_quieter(clip: Clip, gain_db: float) -> tuple[Clip, Clip]:
    """Return the clip and a version a relative `gain_db` away, the louder first; the original is turned down, never clipped."""
    if gain_db > 0 and not clips_at(clip, gain_db):
        return amplify(clip, gain_db), clip
    return clip, amplify(clip, -abs(gain_db))


def clips_at(clip: Clip, gain_db: float) -> bool:
    """Return whether this gain takes a sample over 1."""
    return float(np.abs(clip.samples).max(initial=0.0)) * 10 ** (gain_db / 20) > 1


# Comparisons, and trials made of them.


@dataclass(frozen=True)
class ProbedPair:
    """One comparison: what it is about, how that is changed, and the clips, made when they are needed.

    `clips` are the files before any change, by what they are in the comparison. `make` may raise AudioError: then the
    comparison is unscored.
    """

    about: str
    change: str
    make: Callable[[], Pair] = field(compare=False, repr=False)
    clips: Mapping[str, Path | None] = field(compare=False, repr=False, default_factory=dict)


@dataclass(frozen=True)
class Trial:
    """One observation of a probe: its comparisons, and the outcome of their labels."""

    cluster: str
    comparisons: tuple[ProbedPair, ...]
    read: Callable[[Labels], Counted]


def _read(path: Path) -> Clip:
    return read_clip(path, max_duration_s=MAX_CLIP_S)


def _utterance(pair: ProbePair) -> Utterance:
    return Utterance(None if pair.instruction is None else _read(pair.instruction), pair.text, pair.style)


def _words(first: str | None, second: str | None) -> tuple[str, str] | None:
    return None if first is None or second is None else (first, second)


def _given(pair: ProbePair, change: Callable[[Clip, int], Clip] = lambda clip, side: clip) -> Pair:
    clips = [change(_read(path), side) for side, path in enumerate((pair.first, pair.second))]
    return Pair(_utterance(pair), clips[0], clips[1], _words(*pair.words))


def _exchanged(pair: ProbePair) -> Pair:
    given = _given(pair)
    return Pair(given.instruction, given.second, given.first, _words(*pair.words[::-1]))


def as_given(pair: ProbePair) -> ProbedPair:
    """Return the pair as it is."""
    return ProbedPair(f"pair {pair.id}", GIVEN, lambda: _given(pair), pair.clips())


def turned_round(pair: ProbePair) -> ProbedPair:
    """Return the pair in the other order."""
    return ProbedPair(f"pair {pair.id}", TURNED, lambda: _exchanged(pair), pair.clips(turned=True))


def position(pairs: Sequence[ProbePair]) -> list[Trial]:
    """Return trials of every pair in both orders."""

    def trial(pair: ProbePair) -> Trial:
        groups = [("all",), *([(f"aspect {pair.aspect}",)] if pair.aspect else [])]
        return Trial(
            pair.cluster,
            (as_given(pair), turned_round(pair)),
            lambda labels: [(group, place_of(labels[0], labels[1])) for group in groups],
        )

    return [trial(pair) for pair in pairs]


@dataclass(frozen=True)
class OneClip:
    """A clip among those of the pairs, with the first pair that holds it; equal files are one. `number` counts them."""

    id: str
    number: int
    path: Path
    pair: ProbePair
    words: str | None

    def clips(self) -> dict[str, Path | None]:
        """Return the files by role when the clip meets itself."""
        return {"question": self.pair.instruction, "answer 1": self.path, "answer 2": self.path}

    def pair_with(self, make: Callable[[Clip], tuple[Clip, Clip]], turn: bool = False) -> Pair:
        """Two versions of it as answers to the pair's instruction, or in the other order."""
        two = make(_read(self.path))
        return Pair(_utterance(self.pair), two[turn], two[not turn], _words(self.words, self.words))


def distinct_clips(pairs: Sequence[ProbePair]) -> list[OneClip]:
    """Return every clip once; an unreadable clip is named by its path, and fails when a judge is asked about it."""
    clips: dict[str, OneClip] = {}
    for pair in pairs:
        for path, words in zip((pair.first, pair.second), pair.words, strict=True):
            name = digest_of(path)
            if name not in clips:
                clips[name] = OneClip(name, len(clips), path, pair, words)
    return list(clips.values())


def digest_of(path: Path) -> str:
    """Return a short name of a file's content, or its path if it cannot be read."""
    try:
        return hashlib.sha256(path.read_bytes()).hexdigest()[:16]
    except OSError:
        return str(path)


def identical(clips: Sequence[OneClip]) -> list[Trial]:
    """Return trials of every clip against itself."""
    meaning: dict[PairLabel, str] = {"1": "first", "2": "second", "tie": "tie"}

    def comparison(clip: OneClip) -> ProbedPair:
        make = lambda: clip.pair_with(lambda sound: (sound, sound))  # noqa: E731
        return ProbedPair(f"clip {clip.id}", "against itself", make, clip.clips())

    return [
        Trial(clip.pair.cluster, (comparison(clip),), lambda labels: [(("all",), _named(labels[0], meaning))]) for clip in clips
    ]


def _named(label: PairLabel | None, meaning: Mapping[PairLabel, str]) -> str | None:
    return None if label is None else meaning[label]


def count_tokens(text: str) -> int:
    """Return the number of words between blanks."""
    return len(text.split())


def verbosity(pairs: Sequence[ProbePair], tokens: Mapping[str, tuple[int, int]]) -> list[Trial]:
    """Return trials of tied pairs whose words differ by 5 or more, in both orders: a fondness for one place must not count."""
    ties = [pair for pair in pairs if pair.tied_by and abs(tokens[pair.id][0] - tokens[pair.id][1]) >= MIN_TOKEN_GAP]

    def trial(pair: ProbePair, exchanged: bool) -> Trial:
        longer: PairLabel = "1" if (tokens[pair.id][0] > tokens[pair.id][1]) != exchanged else "2"
        meaning: dict[PairLabel, str] = {longer: "longer", swapped(longer): "shorter", "tie": "tie"}  # type: ignore[dict-item]
        comparison = turned_round(pair) if exchanged else as_given(pair)
        return Trial(pair.cluster, (comparison,), lambda labels: [(("all",), _named(labels[0], meaning))])

    return [trial(pair, exchanged) for pair in ties for exchanged in (False, True)]


def level_name(snr_db: float) -> str:
    """Return the name of a group of noisy pairs."""
    return f"{snr_db:g} dB"


def noise(pairs: Sequence[ProbePair], seed: int) -> list[Trial]:
    """Return trials of every pair with noise on both answers at each level and the control's, against the clean pair."""

    def noisy(pair: ProbePair, snr_db: float) -> Pair:
        def change(clip: Clip, side: int) -> Clip:
            key = hashlib.sha256(f"{seed}/{pair.id}/{snr_db:g}/{side}".encode()).digest()
            return add_noise(clip, snr_db, np.random.default_rng(list(key)))

        return _given(pair, change)

    def trial(pair: ProbePair, snr_db: float) -> Trial:
        level = level_name(snr_db)

        def read(labels: Labels) -> Counted:
            clean, after = labels
            changed = None if clean is None or after is None else "unchanged" if clean == after else "changed"
            of_class = [] if clean is None else [((level, noise_class(clean, pair.human)), changed)]
            return [((level,), changed), *of_class]

        comparison = ProbedPair(f"pair {pair.id}", f"noise at {level}", lambda: noisy(pair, snr_db), pair.clips())
        return Trial(pair.cluster, (as_given(pair), comparison), read)

    return [trial(pair, snr_db) for snr_db in (*SNRS_DB, CONTROL_DB) for pair in pairs]


def gain_name(gain_db: float) -> str:
    """Return the name of a group of pairs of two levels."""
    return f"{gain_db:+g} dB"


def loudness(clips: Sequence[OneClip], gain_db: float = GAIN_DB) -> list[Trial]:
    """Return trials of every clip against itself, at a higher and at a lower level; the louder first in one of the two."""

    def trial(clip: OneClip, gain: float) -> Trial:
        louder_second = (clip.number + (gain < 0)) % 2 == 1
        meaning: dict[PairLabel, str] = {"1": "louder", "2": "quieter", "tie": "tie"}

        def read(labels: Labels) -> Counted:
            label = labels[0]
            outcome = None if label is None else _named(swapped(label) if louder_second else label, meaning)  # type: ignore[arg-type]
            return [(("all",), outcome), ((gain_name(gain),), outcome)]

        make = lambda: clip.pair_with(lambda sound: louder_and_quieter(sound, gain), louder_second)  # noqa: E731
        compared = ProbedPair(f"clip {clip.id}", f"against itself at {gain_name(gain)}", make, clip.clips())
        return Trial(clip.pair.cluster, (compared,), read)

    return [trial(clip, gain) for gain in (gain_db, -gain_db) for clip in clips]


def turned_down(clips: Sequence[OneClip]) -> int:
    """Count the clips whose original is turned down, since more gain would clip; unreadable clips are left out."""
    count = 0
    for clip in clips:
        try:
            count += clips_at(_read(clip.path), GAIN_DB)
        except AudioError:
            continue
    return count


Revoice = Callable[[Clip, str], Clip]


def speaker(clips: Sequence[OneClip], revoice: Revoice, voices: Sequence[str]) -> list[Trial]:
    """Return trials of every clip in its own voice against the same words in another voice; both are resynthesised.

    `revoice` gives a clip in a voice, once the clip's own: what taking apart and putting together does to the
    sound is then on both sides. The own voice comes first for every other clip, and the other way round for the next voice.
    """

    def trial(clip: OneClip, voice_index: int, voice: str) -> Trial:
        own_second = (clip.number + voice_index) % 2 == 1
        meaning: dict[PairLabel, str] = {"1": "original", "2": "other", "tie": "tie"}

        def read(labels: Labels) -> Counted:
            label = labels[0]
            outcome = None if label is None else _named(swapped(label) if own_second else label, meaning)  # type: ignore[arg-type]
            return [((voice,), outcome)]

        make = lambda: clip.pair_with(lambda sound: (revoice(sound, OWN_VOICE), revoice(sound, voice)), own_second)  # noqa: E731
        compared = ProbedPair(f"clip {clip.id}", f"against the voice {voice}", make, clip.clips())
        return Trial(clip.pair.cluster, (compared,), read)

    return [trial(clip, voice_index, voice) for voice_index, voice in enumerate(voices) for clip in clips]


def mos_gap(pairs: Sequence[ProbePair]) -> list[Trial]:
    """Return trials of pairs with people's mean opinions, in both orders, by the distance between these opinions."""

    def trial(pair: ProbePair, mos: tuple[float, float]) -> Trial:
        better: PairLabel | None = None if mos[0] == mos[1] else "1" if mos[0] > mos[1] else "2"
        bins = [("all",), (mos_bin(abs(mos[0] - mos[1])),)]

        def read(labels: Labels) -> Counted:
            verdict = None if labels[0] is None else "right" if labels[0] == better else "wrong"
            outcomes: Counted = [((*group, AGAINST_ORDER), place_of(labels[0], labels[1])) for group in bins]
            return outcomes + ([((*group, VERDICT), verdict) for group in bins] if better else [])

        return Trial(pair.cluster, (as_given(pair), turned_round(pair)), read)

    return [trial(pair, pair.mos) for pair in pairs if pair.mos is not None]
