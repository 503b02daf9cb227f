"""The judges that `paras2s probe` can call: any judge of the registry, one order of a pair at a time.

A judge that runs on this machine costs nothing and hears what it hears in training.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from paras2s.bench.bias.metrics import PROBES
from paras2s.clients.chat import LLMClient, Request
from paras2s.configs.schema.judges import REWARD_MODEL, find_judge
from paras2s.data_gen.tts.signal_voice import signal_voice
from paras2s.errors import BudgetError, ConfigError
from paras2s.reward.judges.audio_judge.judge import AudioJudge
from paras2s.reward.judges.base import Exchange, Judge, Pair, Progress, Scored, sides_of
from paras2s.reward.judges.registry import open_judges
from paras2s.types import Unscored, Verdict


@dataclass(frozen=True)
class ProbeOptions:
    """The options of `probe`: `source` is a manifest or a run. Raises ConfigError: `only` names no probe."""

    source: Path
    judges: tuple[str, ...]
    run: Path | None
    tone: Path | None
    only: tuple[str, ...]
    pairs: int | None
    seed: int
    overrides: Mapping[str, Any]

    def __post_init__(self) -> None:
        if unknown := sorted(set(self.only) - set(PROBES)):
            raise ConfigError(f"--only {unknown[0]}: no such probe; there are {', '.join(PROBES)}")
        if self.overrides and not any(find_judge(name).has_config for name in self.judges):
            raise ConfigError("--set: rubric and reward_model have no config; leave --set out")

    @property
    def run_dir(self) -> Path | None:
        """The run that local judges come from."""
        return self.run or (self.source if self.source.is_dir() else None)


@dataclass(frozen=True)
class Probed:
    """A judge under probe. `key` is the name it was given; `requests` and `client` are None for a local judge."""

    key: str
    judge: Judge
    version: str
    task: str = ""
    requests: Callable[[Sequence[Pair]], Sequence[list[Request] | Unscored]] | None = None
    client: LLMClient | None = None


def open_probed(name: str, options: ProbeOptions, calls: bool = True) -> list[Probed]:
    """Open the judges of a name, one for each task of an audio judge. Raises ConfigError: no such judge, or it lacks a run."""
    from paras2s.data_gen.clip_encoder import RunClipEncoder

    run = options.run_dir
    if name == REWARD_MODEL and run is None:
        raise ConfigError("--run: the reward model needs a run's folder that holds one")
    named = find_judge(run if name == REWARD_MODEL and run is not None else name)
    tone = options.tone or (run / "data" / "tone_agent.json" if run else None)
    judges = open_judges(
        named,
        options.overrides if named.has_config else None,
        both_orders=False if named.has_config else None,
        tone=tone,
        voice=signal_voice(),
        encoder=RunClipEncoder,
        calls=calls,
    )
    return [_probed(name, judge) for judge in judges]


def _probed(name: str, judge: Judge) -> Probed:
    if isinstance(judge, AudioJudge):
        return _probed_task(name, judge)
    if judge.client is None:
        scored = CachedScores(judge.name, judge.score_batch) if judge.scores_alone else judge
        return Probed(name, scored, judge.fingerprint)
    return Probed(name, judge, judge.fingerprint, "", judge.requests, judge.client)


def _probed_task(name: str, judge: AudioJudge) -> Probed:
    task = judge.task
    if task.kind == "match":
        raise ConfigError(f"tasks: {task.name} matches clips and prefers none; probe the judge without this task")
    if task.clips == 2:
        return Probed(name, judge, judge.fingerprint, task.name, judge.requests, judge.client)

    def score(exchanges: Sequence[Exchange]) -> list[Scored]:
        return judge.score_batch([_with_task_inputs(exchange) for exchange in exchanges])

    def requests(pairs: Sequence[Pair]) -> list[list[Request] | Unscored]:
        return judge.requests([_with_task_inputs(side) for pair in pairs for side in sides_of(pair)])

    return Probed(name, CachedScores(judge.name, score), judge.fingerprint, task.name, requests, judge.client)


def _with_task_inputs(exchange: Exchange) -> Exchange:
    """Add the inputs that prompts about single clips name: the instruction's words, its style, and its scene."""
    text, style = exchange.question.text or "", exchange.question.style or ""
    return replace(exchange, task_inputs={"text": text, "style": style, "context": text})


class CachedScores(Judge):
    """Scores each answer once, in however many pairs it occurs, and compares pairs by these scores."""

    scores_alone = True

    def __init__(self, name: str, score: Callable[[Sequence[Exchange]], Sequence[Scored]]) -> None:
        self.name, self.version = name, ""
        self._score = score
        self._known: dict[tuple[Any, ...], Scored] = {}

    def score_batch(self, exchanges: Sequence[Exchange], on_progress: Progress | None = None) -> list[Scored]:
        """Score exchanges, in order; those that are not in the cache are scored together."""
        keys = [self._key(exchange) for exchange in exchanges]
        new = {key: exchange for key, exchange in zip(keys, exchanges, strict=True) if key not in self._known}
        fresh = dict(zip(new, self._score(list(new.values())) if new else [], strict=True))
        # A budget may be raised, so an answer beyond it is not cached.
        self._known.update({key: scored for key, scored in fresh.items() if not isinstance(scored, BudgetError)})
        return [fresh[key] if key in fresh else self._known[key] for key in keys]

    @property
    def priced(self) -> bool:
        """Whether the cost of every verdict is known."""
        return all(scored.cost_usd is not None for scored in self._known.values() if isinstance(scored, Verdict))

    def _key(self, exchange: Exchange) -> tuple[Any, ...]:
        question = exchange.question
        clip = None if question.clip is None else question.clip.digest
        return (clip, question.text, question.style, exchange.answer.digest, exchange.words)
