"""Pairs on which judges and people differ, as a page with clips, prompt, replies and labels (TRACE, Fig. 6)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from paras2s.audio.clip import Clip
from paras2s.bench.players import Player, player_of
from paras2s.bench.speakbench.data import SuitePair, read_pair_audio
from paras2s.bench.speakbench.report import fused_labels
from paras2s.bench.speakbench.verdicts import VerdictRow
from paras2s.clients.chat import prompts_of
from paras2s.reward.fusion import FusionRule
from paras2s.reward.judges.base import Pair
from paras2s.reward.judges.llm_judge import LLMJudge
from paras2s.types import DIMENSIONS, Dimension, Label, Unscored
from paras2s.utils.html import page_template
from paras2s.utils.io import write_json, write_text

# With their sound; a page of this many stays within some megabytes.
MAX_SHOWN = 20
LONGEST_PLAYED_S = 60.0
NO_AUDIO = "no --audio was given"


@dataclass(frozen=True)
class JudgeCase:
    """One judge's labels of a pair and its full reply, or why it has none."""

    name: str
    labels: dict[Dimension, Label] | None
    overall: Label | None
    unscored: str | None
    reply: str


@dataclass(frozen=True)
class Case:
    """One pair with people's labels and every judge's."""

    index: int
    instruction: str
    models: tuple[str, str]
    people: dict[str, Label]
    judges: tuple[JudgeCase, ...]


def differing(people: Sequence[Label], judges: Sequence[Sequence[Label | None]]) -> list[int]:
    """Return the indices at which a judge's label differs from people's; first those where another judge agrees with it."""
    wrong = [index for index, label in enumerate(people) if any(labels[index] not in (None, label) for labels in judges)]
    # Sorting keeps the order of equals.
    return sorted(wrong, key=lambda index: all(labels[index] != people[index] for labels in judges))


def find_cases(
    pairs: Sequence[SuitePair], verdicts: Mapping[str, Mapping[int, VerdictRow]], rule: FusionRule
) -> list[tuple[SuitePair, Case]]:
    """Return the pairs on which a judge and people differ, in the order of `differing`."""
    fused = {name: fused_labels(pairs, rows, rule) for name, rows in verdicts.items()}
    return [
        (pairs[index], _case(pairs[index], verdicts, {name: labels[index] for name, labels in fused.items()}))
        for index in differing([pair.label.overall for pair in pairs], list(fused.values()))
    ]


def _case(pair: SuitePair, verdicts: Mapping[str, Mapping[int, VerdictRow]], overall: Mapping[str, Label | None]) -> Case:
    judges = []
    for name, rows in verdicts.items():
        row = rows.get(pair.index) or VerdictRow(index=pair.index, unscored="no verdict recorded")
        judges.append(JudgeCase(name, row.labels, overall[name], row.unscored, row.reply or row.reason))
    people: dict[str, Label] = {str(name): label for name, label in pair.label.dimensions().items()}
    people["overall"] = pair.label.overall
    return Case(pair.index, pair.instruction_text, (pair.model_a, pair.model_b), people, tuple(judges))


def write_cases(
    folder: Path, suite: str, pairs: Sequence[SuitePair], verdicts: Mapping[str, Mapping[int, VerdictRow]],
    named_rule: tuple[str, FusionRule], audio: Path | None, judge: LLMJudge | None,
) -> int:  # fmt: skip
    """Write cases.html and cases.json; return the number of pairs on which a judge and people differ.

    The prompts are those of the judge that judged now; recorded verdicts do not say what theirs were.

    Raises:
        DataError: a clip's path leaves the folder of the clips. StorageError: the disk refused.
    """
    rule_name, rule = named_rule
    cases = find_cases(pairs, verdicts, rule)
    write_json(folder / "cases.json", [asdict(case) for _, case in cases])
    shown = []
    for pair, case in cases[:MAX_SHOWN]:
        clips = None if audio is None else read_pair_audio(pair, audio)
        prompt = _prompt(judge, clips) if judge is not None and isinstance(clips, Pair) else ""
        shown.append({**asdict(case), "players": _players(clips), "prompt": prompt})
    page = page_template(Path(__file__).with_name("cases.html.j2")).render(
        suite=suite,
        rule=rule_name,
        n_pairs=len(pairs),
        n_differing=len(cases),
        dimensions=DIMENSIONS,
        cases=shown,
        no_prompt="Recorded verdicts do not hold the prompt." if judge is None else "The prompt needs clips that can be read.",
    )
    write_text(folder / "cases.html", page)
    return len(cases)


def _players(clips: Pair | Unscored | None) -> list[tuple[str, Player]]:
    if not isinstance(clips, Pair):
        return [("clips", Player(None, NO_AUDIO if clips is None else clips.reason))]
    named = {"instruction": clips.instruction.clip, "answer 1": clips.first, "answer 2": clips.second}
    return [(name, _player(clip)) for name, clip in named.items() if clip is not None]


def _player(clip: Clip) -> Player:
    if clip.duration_s > LONGEST_PLAYED_S:
        return Player(None, f"not held by this page: {clip.duration_s:.0f} s")
    return player_of(clip)


def _prompt(judge: LLMJudge, clips: Pair) -> str:
    """Return the messages of the pair as it was given, without a call; a clip is shown by its length."""
    requests = judge.pair_requests([clips])[0]
    if isinstance(requests, Unscored):
        return requests.reason
    return prompts_of(requests)[0]
