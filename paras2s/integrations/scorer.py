"""Any judge or reward of ours behind one interface: groups of answers in, a score with its reason or a missing score out."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Protocol

from paras2s.clients.rewards import AnswerScore
from paras2s.configs.schema.judges import KINDS, find_judge
from paras2s.configs.schema.run import SOURCE_GROUP, SOURCE_KINDS, RewardConfig, RewardSourceConfig
from paras2s.errors import BudgetError, ConfigError, JudgeError
from paras2s.policy.embedded.codec2 import Codec2Pairs
from paras2s.reward.judges.audio_judge.ensemble import require_preferences
from paras2s.reward.judges.audio_judge.judge import AudioJudge
from paras2s.reward.judges.audio_judge.tasks import SCALES
from paras2s.reward.judges.base import Exchange, Judge, Scored
from paras2s.reward.judges.registry import open_judge, refuse_to_teach
from paras2s.reward.sources.base import GivenAnswer, Group, RewardSource
from paras2s.reward.sources.composite import CompositeReward, RewardSetup, refuses_history
from paras2s.reward.sources.judge import SILENCE
from paras2s.reward.sources.pairwise import PairwiseSource
from paras2s.types import HIGHEST, LOWEST, Reward, Unscored
from paras2s.utils.cache import key_of
from paras2s.utils.plugins import import_part, installed_parts, is_reference

# Sources of reward that are no judges, and need nothing of a run.
SOURCES = ("omni", "word_errors", "quality", "length")
Outcome = AnswerScore | BudgetError
ONE_QUESTION = "{} judges an answer to one question; send the group without history"


class Scorer(Protocol):
    """A judge or a reward that can be served.

    `label` names it with its version, `needs` what must be sent; a `relative` one scores an answer by the others of its group.
    `versioned`: the label changes with everything that may change a score, so that scores may be cached.
    """

    @property
    def label(self) -> str:
        """Name and version."""

    @property
    def low(self) -> float:
        """The lowest score."""

    @property
    def high(self) -> float:
        """The highest score."""

    @property
    def needs(self) -> tuple[str, ...]:
        """Parts of a question and an answer, by their names in the protocol."""

    @property
    def relative(self) -> bool:
        """Whether a score depends on the group."""

    @property
    def versioned(self) -> bool:
        """Whether scores may be cached."""

    def score(self, groups: Sequence[Group]) -> list[list[Outcome]]:
        """Return the outcome of every answer, with an empty id; a BudgetError where the budget ended before it."""


@dataclass(frozen=True)
class JudgeScorer:
    """A judge that scores each answer alone."""

    judge: Judge
    low: float = LOWEST
    high: float = HIGHEST
    relative: bool = False
    versioned: bool = True

    @property
    def label(self) -> str:
        """Name, version and prompt of the judge, and its fingerprint."""
        return f"{self.judge.label}/{key_of(self.judge.fingerprint)[:8]}"

    @property
    def needs(self) -> tuple[str, ...]:
        """The judge's own."""
        return self.judge.needs

    def score(self, groups: Sequence[Group]) -> list[list[Outcome]]:
        """Score all answers at once; an answer without what the judge needs has that as its reason."""
        outcomes: list[list[Outcome]] = []
        exchanges: dict[tuple[int, int], Exchange] = {}
        for row, group in enumerate(groups):
            spoken = replace(group.question.utterance(), text=group.question.transcript or None)
            missing = [self._missing(group, answer) for answer in group.answers]
            outcomes.append([unscored(why) for why in missing])
            exchanges |= {
                # With its sound at hand, an answer's words are those in the sound.
                (row, number): Exchange(spoken, answer.clip or SILENCE, None if answer.clip else answer.text or None)
                for number, answer in enumerate(group.answers)
                if not missing[number]
            }
        for (row, number), scored in zip(exchanges, self._judge(list(exchanges.values())), strict=True):
            outcomes[row][number] = self._outcome(scored)
        return outcomes

    def _judge(self, exchanges: Sequence[Exchange]) -> list[Scored]:
        """Score exchanges; where the judge refuses a batch, the batch is halved until what it refuses is alone."""
        try:
            return self.judge.score_batch(exchanges) if exchanges else []
        except JudgeError as error:
            if len(exchanges) == 1:
                return [Unscored(self.judge.name, str(error))]
            middle = len(exchanges) // 2
            return self._judge(exchanges[:middle]) + self._judge(exchanges[middle:])

    def _missing(self, group: Group, answer: GivenAnswer) -> str:
        question = group.question
        if question.history and not self.judge.reads_history:
            return ONE_QUESTION.format(self.judge.name)
        sent = {
            "question.text": question.transcript,
            "question.style": question.style,
            "question.audio": question.clip,
            "answer.text": answer.text,
            "answer.audio": answer.clip,
        }
        missing = [need for need in self.needs if not any(sent[name] for name in need.split(" or "))]
        return f"{self.judge.name} needs {', '.join(self.needs)}; send {' and '.join(missing)} as well" if missing else ""

    def _outcome(self, scored: Scored) -> Outcome:
        if isinstance(scored, BudgetError):
            return scored
        if isinstance(scored, Unscored):
            return unscored(scored.reason)
        return scored_as(scored.score, self.low, self.high, scored.reason, scored.cost_usd)


@dataclass(frozen=True)
class SourceScorer:
    """A reward source, which scores from 1 to 5 and gives no reason, or several that a run combines."""

    source: RewardSource | CompositeReward
    label: str
    needs: tuple[str, ...]
    relative: bool
    versioned: bool
    low: float = LOWEST
    high: float = HIGHEST

    def score(self, groups: Sequence[Group]) -> list[list[Outcome]]:
        """Score all answers at once; those behind turns that the source does not read have that as their reason."""
        refuses = refuses_history(self.source)
        given = [_with_steps(group) for group in groups if not (refuses and group.question.history)]
        refusal = unscored(ONE_QUESTION.format(self.label))
        try:
            scores: Iterator[Sequence[float | Reward | Unscored]] = iter(self.source.score(given) if given else ())
            return [
                [refusal for _ in group.answers]
                if refuses and group.question.history
                else [self._outcome(value) for value in next(scores)]
                for group in groups
            ]
        except BudgetError as error:
            return [[error for _ in group.answers] for group in groups]

    def _outcome(self, value: float | Reward | Unscored) -> Outcome:
        if isinstance(value, Unscored):
            return unscored(value.reason)
        return scored_as(value.value if isinstance(value, Reward) else value, self.low, self.high)


def _with_steps(group: Group) -> Group:
    """Return a group whose answers have their length in steps of the embedded codec."""
    codec = Codec2Pairs()
    steps = [0 if a.clip is None else codec.steps_of(len(a.clip.samples), a.clip.sample_rate_hz) for a in group.answers]
    return replace(group, answers=tuple(replace(a, steps=own) for a, own in zip(group.answers, steps, strict=True)))


def unscored(reason: str) -> AnswerScore:
    """Return a missing score; its id is set by who knows it."""
    return AnswerScore(id="", unscored=reason or "no reason is given")


def scored_as(score: float, low: float, high: float, reason: str = "", cost_usd: float | None = None) -> AnswerScore:
    """Return a score within its range; another number is no score."""
    if not (math.isfinite(score) and low <= score <= high):
        return unscored(f"the judge's score is {score}, and its range is {low:g} to {high:g}")
    return AnswerScore(id="", score=float(score), reason=reason, cost_usd=cost_usd)


def open_scorer(name: str, overrides: Mapping[str, Any] | None = None, tone: Path | None = None) -> Scorer:
    """Open a judge by name, YAML, folder or `module:Class`, or a source of reward by its kind or `module:Class`.

    `overrides` are dotted keys of a judge's config, or the options of a source.

    Raises:
        ConfigError: there is none of this name, it must not reward, or it needs what the protocol does not send.
    """
    if _is_source(name):
        return _open_source(name, dict(overrides or {}), tone)
    # Heavy, and no source needs them.
    from paras2s.data_gen.clip_encoder import RunClipEncoder
    from paras2s.data_gen.tts.signal_voice import signal_voice

    named = find_judge(name)
    refuse_to_teach(named.name, name)
    if named.kind == "dimensions":
        raise ConfigError(f"{name}: this is {KINDS['dimensions']}; it scores no answer")
    voice = signal_voice() if named.kind == "audio" else None
    judge = open_judge(named, overrides, tone=tone, voice=voice, encoder=RunClipEncoder)
    refuse_to_teach(judge.name, name)
    if isinstance(judge, AudioJudge) and judge.task.clips == 1:
        if judge.task.inputs:
            raise ConfigError(f"{name}: task {judge.task.name} needs {', '.join(judge.task.inputs)}, which is not sent")
        scale = SCALES[judge.task.kind]
        return JudgeScorer(judge, float(scale[0]), float(scale[-1]))
    if isinstance(judge, AudioJudge) or type(judge).score_batch is Judge.score_batch:
        if isinstance(judge, AudioJudge):
            require_preferences([judge])
        label = f"{judge.label}/{key_of(judge.fingerprint)[:8]}/pairwise"
        return SourceScorer(PairwiseSource(judge), label, judge.needs, relative=True, versioned=True)
    return JudgeScorer(judge)


def _is_source(name: str) -> bool:
    if is_reference(name):
        part = import_part(name, "serve")
        return not (isinstance(part, type) and issubclass(part, Judge))
    return name in SOURCES or name in installed_parts("reward source", SOURCE_GROUP, SOURCE_KINDS)


def _open_source(name: str, options: dict[str, Any], tone: Path | None) -> SourceScorer:
    config = RewardConfig(sources=(RewardSourceConfig(kind=name, options=options),))
    reward = CompositeReward(RewardSetup(config, Path(), tone or Path()))
    if reward.needs_codes:
        raise ConfigError(f"{name}: reads the policy's codes, which are not sent; serve the folder of a run")
    needs = ("answer.text", "answer.audio") if name == "word_errors" else ("answer.audio",) if reward.needs_sound else ()
    # A source of the user's own may compare the answers of a group.
    return SourceScorer(reward, f"{name}/{key_of(options)[:8]}", needs, name not in SOURCES, versioned=False)
