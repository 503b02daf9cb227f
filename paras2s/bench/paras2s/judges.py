"""Answers of a table under one judge for all its systems: any judge that scores, or the rubric with a run's reward model."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from paras2s.audio.asr import countable_words, word_error_rate
from paras2s.audio.clip import Clip, read_clip
from paras2s.bench.made_from import sent
from paras2s.bench.results import FITTING_SCORE
from paras2s.bench.systems import Progress, Response, SpokenQuestion
from paras2s.clients.chat import Bill
from paras2s.configs.schema.audio_judge import AudioJudgeConfig
from paras2s.configs.schema.judges import UNISRM, NamedJudge, find_judge
from paras2s.errors import BudgetError, ConfigError
from paras2s.reward.blueprint.parallel import measure_answers
from paras2s.reward.judges.base import Exchange, Judge, Scored, Utterance
from paras2s.reward.judges.registry import open_judge
from paras2s.reward.judges.rubric import TONE_PREFIX, RubricJudge
from paras2s.types import Blueprint, Measured, PastTurn, Query, Unscored, Verdict

if TYPE_CHECKING:
    from paras2s.data_gen.dataset import Dataset
    from paras2s.reward.reward_model.model import EncodedQuestion, RewardModel
    from paras2s.reward.tone_classifier import ToneClassifier

# Answers that are judged together where a judge makes calls: replies so far are kept when the budget ends.
CHUNK_ANSWERS = 64
Answer = tuple[SpokenQuestion, Response]


def behind_history(judge: Judge, history: Sequence[PastTurn], question: Utterance) -> Utterance:
    """Return a question with the turns before it, for a judge that reads them."""
    if not judge.reads_history or not history:
        return question
    turns = [
        (turn.speaker, Utterance(read_clip(Path(turn.clip)) if turn.clip else None, turn.text or None)) for turn in history
    ]
    return replace(question, history=tuple(turns))


@dataclass(frozen=True)
class JudgedAnswer:
    """A judge's verdict on one answer of a table, its prompts, the tone classifier's scores and the reward model's."""

    verdict: Verdict | Unscored
    prompts: tuple[str, ...] = ()
    tone_scores: dict[str, float] = field(default_factory=dict)
    model_score: float | None = None

    @property
    def score(self) -> float | None:
        """The score, or None."""
        return self.verdict.score if isinstance(self.verdict, Verdict) else None

    def row_fields(self, text_stream: str, judge: str) -> dict[str, Any]:
        """Return the fields of an `AnswerRow` that a judge fills, for an answer with this text stream."""
        verdict, transcript = self.verdict, self.verdict.transcript
        comparable = transcript is not None and bool(countable_words(text_stream))
        fields = {
            "transcript": transcript,
            "tone": None,
            "tone_scores": self.tone_scores,
            "score": self.score,
            "unscored": None,
            "reason": "",
            "family": None,
            "fitting": self.score is not None and self.score >= FITTING_SCORE,
            "word_error_rate": word_error_rate(text_stream, transcript or "") if comparable else None,
            "judge": judge,
            "model_score": self.model_score,
            "reply": verdict.reply,
            "cost_usd": None,
            "prompts": self.prompts,
            "parts": {},
        }
        if isinstance(verdict, Unscored):
            return fields | {"unscored": verdict.reason}
        taken = ("tone", "reason", "family", "cost_usd")
        return fields | {name: getattr(verdict, name) for name in taken} | {"parts": dict(verdict.parts)}


class AnswerJudge:
    """Judges the answers of a table; `name` is the judge's with its version and prompt."""

    def __init__(self, judge: Judge) -> None:
        self._judge = judge
        self.name = judge.label

    def judge_all(self, answers: Sequence[Answer], on_progress: Progress) -> list[JudgedAnswer]:
        """Judge answers, in order; a missing answer has its reason. Raises BudgetError: replies so far stay in the cache."""
        # Judges on this machine share out a table over the cores, and report their own progress.
        size = CHUNK_ANSWERS if self._judge.client is not None else max(1, len(answers))
        judged: list[JudgedAnswer] = []
        for start in range(0, len(answers), size):
            chunk = answers[start : start + size]
            spoken = [(question, answer.clip) for question, answer in chunk if not answer.missing and answer.clip is not None]
            verdicts = iter(self._judge_clips(spoken, on_progress if self._judge.client is None else None))
            judged += [_unscored(self.name, answer.missing) if answer.missing else next(verdicts) for _, answer in chunk]
            on_progress(len(judged), len(answers))
        return judged

    def estimate(self, answers: Sequence[Answer]) -> Bill:
        """Return the most that judging answers costs."""
        client, spoken = self._judge.client, [(question, answer.clip) for question, answer in answers]
        if client is None:
            return Bill()
        return client.estimate(self._judge.requests(self._exchanges([(q, clip) for q, clip in spoken if clip is not None])))

    def _exchanges(self, spoken: Sequence[tuple[SpokenQuestion, Clip]]) -> list[Exchange]:
        judge, exchanges = self._judge, []
        for question, clip in spoken:
            exchange = judge.exchange_of(question.text, question.style, question.clip, clip)
            exchanges.append(replace(exchange, question=behind_history(judge, question.history, exchange.question)))
        return exchanges

    def _judge_clips(self, spoken: Sequence[tuple[SpokenQuestion, Clip]], on_progress: Progress | None) -> list[JudgedAnswer]:
        judge, exchanges = self._judge, self._exchanges(spoken)
        judged = []
        verdicts = judge.score_batch(exchanges, on_progress)
        for verdict, requests in zip(verdicts, judge.requests(exchanges), strict=True):
            if isinstance(verdict, BudgetError):
                raise verdict
            judged.append(JudgedAnswer(_without_rules(verdict) if judge.client is None else verdict, sent(requests)))
        return judged


def open_answer_judge(
    name: str, overrides: dict[str, Any], tone: ToneClassifier | Path | None, cache_dir: Path, calls: bool = True
) -> AnswerJudge:
    """Open a judge of single answers by name. Raises ConfigError: no such judge, or it needs a voice, pairs or a run."""
    return AnswerJudge(open_named_judge(find_judge(name), overrides, tone, cache_dir, calls))


def open_named_judge(
    named: NamedJudge, overrides: dict[str, Any], tone: ToneClassifier | Path | None, cache_dir: Path, calls: bool
) -> Judge:
    """Open the same judge; without `calls` its cost alone can be estimated. Raises ConfigError: as `open_answer_judge`."""
    if named.kind not in ("llm", "contrast", "rubric", "independent") and not named.is_own:
        raise ConfigError(
            f"--judge: {named.name} gives no transcript of an answer; choose an LLM or contrast judge, rubric or independent"
        )
    # Judges without a config have no cache either.
    cache = {"cache_dir": str(cache_dir)} if named.kind in ("llm", "contrast") else {}
    return open_judge(named, cache | overrides, tone=tone, calls=calls)


def open_audited_judge(
    named: NamedJudge, overrides: dict[str, Any], tone: ToneClassifier | Path | None, cache_dir: Path, calls: bool
) -> Judge:
    """Open a judge for an audit: of answers, or of pairs, each in one order at a time. Raises ConfigError: as `open_judge`."""
    if named.kind not in ("audio", UNISRM):
        return open_named_judge(named, overrides, tone, cache_dir, calls)
    from paras2s.data_gen.tts.signal_voice import signal_voice
    from paras2s.reward.judges.audio_judge.tasks import find_task

    settings = {"cache_dir": str(cache_dir)} | overrides
    if named.kind == "audio":
        tasks = named.config(AudioJudgeConfig, settings).tasks
        if wrong := [task for task in tasks if find_task(task).kind not in ("winner", "winner_or_tie")]:
            raise ConfigError(
                f"{named.name}: its task {wrong[0]} does not say which of two answers is better; give -s 'tasks=[...]'"
            )
    return open_judge(named, settings, both_orders=False, voice=signal_voice(), calls=calls)


def _unscored(judge: str, reason: str) -> JudgedAnswer:
    return JudgedAnswer(Unscored(judge, reason))


def _without_rules(verdict: Verdict | Unscored) -> Verdict | Unscored:
    """Return the verdict of a judge on this machine: the row has its family, tone and score as the reply, and no cost."""
    return replace(verdict, reply="", cost_usd=None) if isinstance(verdict, Verdict) else verdict


class RunJudge(AnswerJudge):
    """The rubric, with the tone scores of every answer and the score of a run's reward model, if the run has one."""

    def __init__(self, dataset: Dataset, queries: Sequence[Query], model: RewardModel | None) -> None:
        super().__init__(RubricJudge())
        self._dataset, self._queries, self._model = dataset, queries, model

    def judge_all(self, answers: Sequence[Answer], on_progress: Progress) -> list[JudgedAnswer]:
        """Judge answers, in order; answers of no length as well, which the rubric does not score."""
        spoken = [(question, answer.clip) for question, answer in answers if answer.clip is not None]
        measured = measure_answers([clip for _, clip in spoken], self._dataset.agent_tone, on_progress)
        exchanges = [
            replace(self._exchange(question, clip), blueprint=blueprint)
            for (question, clip), blueprint in zip(spoken, measured, strict=True)
        ]
        known = zip(self._judge.score_batch(exchanges), measured, self._model_scores(spoken), strict=True)
        return [
            _unscored(self.name, answer.missing or "") if answer.clip is None else self._judged(*next(known))
            for _, answer in answers
        ]

    def _exchange(self, question: SpokenQuestion, clip: Clip) -> Exchange:
        return self._judge.exchange_of(question.text, question.style, None, clip)

    def _judged(self, verdict: Scored, blueprint: Blueprint, model_score: float | None) -> JudgedAnswer:
        assert not isinstance(verdict, BudgetError)
        tones = {
            key.removeprefix(TONE_PREFIX): float(measured.value)
            for key, measured in blueprint.fields.items()
            if key.startswith(TONE_PREFIX) and isinstance(measured, Measured)
        }
        return JudgedAnswer(_without_rules(verdict), (), tones, model_score)

    @cached_property
    def _encoded(self) -> dict[str, EncodedQuestion]:
        from paras2s.data_gen.policy_inputs import encode_questions

        encoded = encode_questions(self._dataset, self._queries)
        return dict(zip([query.id for query in self._queries], encoded, strict=True))

    def _model_scores(self, spoken: Sequence[tuple[SpokenQuestion, Clip]]) -> Sequence[float | None]:
        from paras2s.data_gen.policy_inputs import code_clips

        if self._model is None:
            return [None] * len(spoken)
        encoded = [self._encoded[question.id] for question, _ in spoken]
        return self._model.score(encoded, code_clips([clip for _, clip in spoken]))
