"""Judges of single answers, one for all systems of a table: an LLM, the rubric alone or with a run's reward model, and the
independent judge, which taught nothing.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from paras2s.audio.asr import normalise_words, word_error_rate
from paras2s.audio.clip import Clip
from paras2s.bench.made_from import sent
from paras2s.bench.results import FITTING_SCORE
from paras2s.bench.systems import Progress, Response, SpokenQuestion
from paras2s.configs.schema.judges import find_judge
from paras2s.errors import BudgetError, ConfigError
from paras2s.reward.blueprint.extract import build_blueprints, make_extractors
from paras2s.reward.blueprint.parallel import JUDGE_EXTRACTORS, measure_answers
from paras2s.reward.blueprint.schema import RESPONSE, Extractor
from paras2s.reward.judges.independent.judge import IndependentJudge, MeasuredAnswer
from paras2s.reward.judges.llm_judge import LLMJudge
from paras2s.reward.judges.registry import open_judge
from paras2s.reward.judges.rubric import TONE_PREFIX, Question, RubricJudge
from paras2s.types import Blueprint, Measured, Query, Unscored, Verdict

if TYPE_CHECKING:
    from paras2s.data_gen.dataset import Dataset
    from paras2s.reward.reward_model.model import EncodedQuestion, RewardModel

# Answers that are measured and judged together.
CHUNK_ANSWERS = 64
Answer = tuple[SpokenQuestion, Response]


@dataclass(frozen=True)
class Judgement:
    """The judgement of one answer: a score, or why there is none, and what was measured on the way.

    `family`, `tone` and `parts` are the rubric's, `model_score` is the reward model's.
    """

    score: float | None
    unscored: str | None
    reason: str = ""
    transcript: str | None = None
    family: str | None = None
    tone: str | None = None
    tone_scores: dict[str, float] = field(default_factory=dict)
    model_score: float | None = None
    reply: str = ""
    cost_usd: float | None = None
    prompts: tuple[str, ...] = ()
    parts: dict[str, float] = field(default_factory=dict)

    def row_fields(self, text_stream: str, judge: str) -> dict[str, Any]:
        """The fields of an `AnswerRow` that a judge fills, for an answer with this text stream."""
        comparable = self.transcript is not None and bool(normalise_words(text_stream))
        return {
            "transcript": self.transcript,
            "tone": self.tone,
            "tone_scores": self.tone_scores,
            "score": self.score,
            "unscored": self.unscored,
            "reason": self.reason,
            "family": self.family,
            "fitting": self.score is not None and self.score >= FITTING_SCORE,
            "word_error_rate": word_error_rate(text_stream, self.transcript or "") if comparable else None,
            "judge": judge,
            "model_score": self.model_score,
            "reply": self.reply,
            "cost_usd": self.cost_usd,
            "prompts": self.prompts,
            "parts": self.parts,
        }


class AnswerJudge(Protocol):
    """A judge of single answers; `name` tells it apart from every other one, with its version and prompt."""

    @property
    def name(self) -> str:
        """Name, version and prompt hash."""

    def judge_all(self, answers: Sequence[Answer], on_progress: Progress) -> list[Judgement]:
        """A judgement each, in order; an answer that is missing has its reason.

        Raises:
            BudgetError: the budget ended; replies so far stay in the cache.
        """


class ClipJudge(Protocol):
    """Judges answers that are there."""

    def judge_clips(self, spoken: Sequence[tuple[SpokenQuestion, Clip]]) -> list[Judgement]:
        """A judgement each, in order."""


def open_answer_judge(name: str, overrides: dict[str, Any], tone: Path | None, cache_dir: Path) -> AnswerJudge:
    """A judge by name: `rubric`, `independent`, a shipped config of an LLM judge, or a YAML.

    Raises:
        ConfigError: no such judge, the rubric without a tone classifier, or overrides of a judge that has no config.
    """
    # The rubric has no config, so no cache either.
    named = find_judge(name)
    cache = {"cache_dir": str(cache_dir)} if named.kind == "llm" else {}
    judge = open_judge(named, cache | overrides, tone=tone)
    if isinstance(judge, LLMJudge):
        return LLMAnswerJudge(judge)
    if isinstance(judge, RubricJudge):
        return RubricAnswerJudge(judge, make_extractors(JUDGE_EXTRACTORS, judge.tone))
    if isinstance(judge, IndependentJudge):
        return IndependentAnswerJudge(judge)
    raise ConfigError(f"--judge: {judge.name} gives no transcript of an answer; choose an LLM judge, rubric or independent")


def _judge_in_chunks(judge: ClipJudge, answers: Sequence[Answer], at: Progress) -> list[Judgement]:
    judgements: list[Judgement] = []
    for start in range(0, len(answers), CHUNK_ANSWERS):
        chunk = answers[start : start + CHUNK_ANSWERS]
        spoken = [(question, one.clip) for question, one in chunk if not one.missing and one.clip is not None]
        judged = iter(judge.judge_clips(spoken))
        judgements += [Judgement(None, one.missing) if one.missing else next(judged) for _, one in chunk]
        at(len(judgements), len(answers))
    return judgements


class LLMAnswerJudge:
    """An LLM, or an audio LLM, that scores answers from 1 to 5."""

    def __init__(self, judge: LLMJudge) -> None:
        self._judge = judge
        self.name = f"{judge.name}/{judge.version}/{judge.answer_prompt.hash}"

    def judge_all(self, answers: Sequence[Answer], on_progress: Progress) -> list[Judgement]:
        """A judgement each, in order."""
        return _judge_in_chunks(self, answers, on_progress)

    def judge_clips(self, spoken: Sequence[tuple[SpokenQuestion, Clip]]) -> list[Judgement]:
        """Judgements of answers that are there."""
        judge, clips = self._judge, [clip for _, clip in spoken]
        transcripts = [None] * len(clips) if not judge.extractors else _transcripts(clips, judge)
        exchanges = [judge.exchange_of(q.text, q.style, q.clip, clip) for q, clip in spoken]
        judgements = []
        verdicts, requests = judge.score_batch(exchanges), judge.requests(exchanges)
        for verdict, transcript, made in zip(verdicts, transcripts, requests, strict=True):
            if isinstance(verdict, BudgetError):
                raise verdict
            prompted = Judgement(None, "", transcript=transcript, reply=verdict.reply, prompts=sent(made))
            if isinstance(verdict, Verdict):
                one = replace(prompted, score=verdict.score, unscored=None, reason=verdict.reason, cost_usd=verdict.cost_usd)
            else:
                one = replace(prompted, unscored=verdict.reason)
            judgements.append(one)
        return judgements


def _transcripts(clips: Sequence[Clip], judge: LLMJudge) -> list[str | None]:
    return [one.value(RESPONSE) for one in build_blueprints(clips, judge.extractors, judge.cache)]


class RubricAnswerJudge:
    """The rubric over its own blueprints: offline, and deterministic."""

    def __init__(self, rubric: RubricJudge, extractors: Sequence[Extractor]) -> None:
        self._rubric, self._extractors = rubric, extractors
        self.name = _rubric_name(self._rubric)

    def judge_all(self, answers: Sequence[Answer], on_progress: Progress) -> list[Judgement]:
        """A judgement each, in order."""
        return _judge_in_chunks(self, answers, on_progress)

    def judge_clips(self, spoken: Sequence[tuple[SpokenQuestion, Clip]]) -> list[Judgement]:
        """Judgements of answers that are there."""
        blueprints = build_blueprints([clip for _, clip in spoken], self._extractors)
        return [_by_rubric(self._rubric, q, one) for (q, _), one in zip(spoken, blueprints, strict=True)]


class IndependentAnswerJudge:
    """The judge that taught nothing: offline, and deterministic."""

    def __init__(self, judge: IndependentJudge) -> None:
        self._judge = judge
        self.name = f"{judge.name}/{judge.version}/{judge.prompt_hash}"

    def judge_all(self, answers: Sequence[Answer], on_progress: Progress) -> list[Judgement]:
        """A judgement each, in order; equal clips are measured once."""
        spoken = [(question, one.clip) for question, one in answers if not one.missing and one.clip is not None]
        judged = iter(self.judge_clips(spoken, on_progress))
        return [Judgement(None, one.missing) if one.missing else next(judged) for _, one in answers]

    def judge_clips(
        self, spoken: Sequence[tuple[SpokenQuestion, Clip]], on_progress: Progress | None = None
    ) -> list[Judgement]:
        """Judgements of answers that are there."""
        measured = self._judge.measure([clip for _, clip in spoken], on_progress)
        return [self._judgement(question, one) for (question, _), one in zip(spoken, measured, strict=True)]

    def _judgement(self, question: SpokenQuestion, measured: MeasuredAnswer | str) -> Judgement:
        found = self._judge.find(question.text or "", question.style or "", measured)
        transcript = None if isinstance(measured, str) else measured.transcript
        if isinstance(found, Unscored):
            return Judgement(None, found.reason, transcript=transcript)
        return Judgement(found.score, None, found.reason, transcript, found.family, found.tone, parts=dict(found.parts))


def _rubric_name(rubric: RubricJudge) -> str:
    return f"{rubric.name}/{rubric.version}/{rubric.prompt_hash}"


def _by_rubric(rubric: RubricJudge, question: SpokenQuestion, blueprint: Blueprint) -> Judgement:
    verdict = rubric.find(Question(question.text or "", question.style or ""), blueprint)
    transcript = blueprint.value(RESPONSE)
    if isinstance(verdict, Unscored):
        return Judgement(None, verdict.reason, transcript=transcript)
    return Judgement(verdict.score, None, verdict.reason, transcript, verdict.family, verdict.tone, parts=dict(verdict.parts))


@dataclass(frozen=True)
class RunJudge:
    """The rubric, with the tone scores of every answer and the score that a run's reward model gives it, where it has one."""

    dataset: Dataset
    queries: Sequence[Query]
    model: RewardModel | None
    rubric: RubricJudge = field(default_factory=RubricJudge)

    @property
    def name(self) -> str:
        """The rubric's."""
        return _rubric_name(self.rubric)

    @cached_property
    def _encoded(self) -> dict[str, EncodedQuestion]:
        from paras2s.data_gen.policy_inputs import encode_questions

        return dict(zip([q.id for q in self.queries], encode_questions(self.dataset, self.queries), strict=True))

    def judge_all(self, answers: Sequence[Answer], on_progress: Progress) -> list[Judgement]:
        """A judgement each, in order; of an answer of no length as well, which the rubric does not score."""
        spoken = [(question, one.clip) for question, one in answers if one.clip is not None]
        measured = iter(measure_answers([clip for _, clip in spoken], self.dataset.agent_tone, on_progress))
        scores = iter(self._model_scores(spoken))
        return [
            Judgement(None, one.missing) if one.clip is None else self._judgement(question, next(measured), next(scores))
            for question, one in answers
        ]

    def _model_scores(self, spoken: Sequence[tuple[SpokenQuestion, Clip]]) -> Sequence[float | None]:
        from paras2s.data_gen.policy_inputs import code_clips

        if self.model is None:
            return [None] * len(spoken)
        return self.model.score(
            [self._encoded[question.id] for question, _ in spoken], code_clips([clip for _, clip in spoken])
        )

    def _judgement(self, question: SpokenQuestion, blueprint: Blueprint, model_score: float | None) -> Judgement:
        tones = {
            key.removeprefix(TONE_PREFIX): float(measured.value)
            for key, measured in blueprint.fields.items()
            if key.startswith(TONE_PREFIX) and isinstance(measured, Measured)
        }
        judgement = _by_rubric(self.rubric, question, blueprint)
        return replace(judgement, tone_scores=tones, model_score=model_score)
