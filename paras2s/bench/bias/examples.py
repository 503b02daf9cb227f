"""The clips of a few trials of each probe, as the judge heard them, for the page to play."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from paras2s.audio.clip import Clip
from paras2s.bench.bias.perturbations import TURNED, ProbedPair, Trial
from paras2s.bench.players import Player, player_of
from paras2s.errors import AudioError
from paras2s.types import PairLabel, Unscored

# A judge and a probe; a page of seven probes stays within some megabytes.
MAX_EXAMPLES = 3
LONGEST_PLAYED_S = 60.0
# The outcomes of a judge that a probe cannot lead astray.
NEUTRAL = ("stable", "tie", "unchanged", "right")
# The verdict of a comparison, and both scores of a judge of single answers.
Verdict = tuple[PairLabel | Unscored, tuple[float, float] | None]


@dataclass(frozen=True)
class ComparisonExample:
    """One comparison: what was changed, the clips in the order in which they were heard, and the verdict in words."""

    change: str
    clips: tuple[Player, ...]
    verdict: str


@dataclass(frozen=True)
class TrialExample:
    """One trial: what it is about, in which group and as what it is counted, what was asked, and its comparisons."""

    about: str
    group: tuple[str, ...]
    outcome: str
    instruction: str
    comparisons: tuple[ComparisonExample, ...]


def pick_examples(trials: Sequence[Trial], verdicts: Mapping[ProbedPair, Verdict], alone: bool) -> tuple[TrialExample, ...]:
    """Return a few trials of different clusters, first those that an unbiased judge would have decided otherwise."""
    counted = [(trial, group, label) for trial in trials for group, label in [_count(trial, verdicts)] if label is not None]
    # Sorting keeps the order of equals.
    chosen: dict[str, tuple[Trial, tuple[str, ...], str]] = {}
    for candidate in sorted(counted, key=lambda candidate: candidate[2] in NEUTRAL):
        if len(chosen) < MAX_EXAMPLES:
            chosen.setdefault(candidate[0].cluster, candidate)
    return tuple(_hear(*candidate, verdicts, alone) for candidate in chosen.values())


def _count(trial: Trial, verdicts: Mapping[ProbedPair, Verdict]) -> tuple[tuple[str, ...], str | None]:
    labels = [verdicts[comparison][0] for comparison in trial.comparisons]
    return trial.read([None if isinstance(label, Unscored) else label for label in labels])[0]


def _hear(
    trial: Trial, group: tuple[str, ...], outcome: str, verdicts: Mapping[ProbedPair, Verdict], alone: bool
) -> TrialExample:
    compared = [comparison for comparison in trial.comparisons if not (alone and comparison.change == TURNED)]
    instruction = ""
    comparisons = []
    for comparison in compared:
        try:
            pair = comparison.make()
        except AudioError as error:
            clips: tuple[Player, ...] = (Player(None, str(error)),)
        else:
            instruction = instruction or pair.instruction.text or ""
            clips = tuple(_play((pair.first, pair.second)))
        comparisons.append(ComparisonExample(comparison.change, clips, _in_words(*verdicts[comparison])))
    return TrialExample(trial.comparisons[0].about, group, outcome, instruction, tuple(comparisons))


def _play(clips: Sequence[Clip]) -> Iterator[Player]:
    for clip in clips:
        if clip.duration_s > LONGEST_PLAYED_S:
            yield Player(None, f"not held by this page: {clip.duration_s:.0f} s")
        else:
            yield player_of(clip)


def _in_words(label: PairLabel | Unscored, scores: tuple[float, float] | None) -> str:
    if isinstance(label, Unscored):
        return f"unscored: {label.reason}"
    words = {"1": "the first", "2": "the second", "tie": "a tie"}[label]
    return words if scores is None else f"{words}: {scores[0]:.3g} and {scores[1]:.3g}"
