"""Judging a suite's answers: by the makers' prompts at any endpoint, or by a judge with questions of its own."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import fmean
from typing import Any

from paras2s.bench.ranking.answers import SystemAnswer
from paras2s.bench.suites.base import Item, Parts, Question, Suite, row_values
from paras2s.bench.suites.download import Download
from paras2s.clients.chat import Bill, LLMClient, Reply, Request
from paras2s.configs.schema.audio_judge import AudioJudgeConfig
from paras2s.configs.schema.endpoints import LLMConfig
from paras2s.configs.schema.judges import JudgingConfig, NamedJudge, find_judge
from paras2s.errors import AssetError, AudioError, BudgetError, JudgeError
from paras2s.reward.judges.base import Exchange, Judge, Pair, Progress, Utterance
from paras2s.reward.judges.llm_judge import total_usd
from paras2s.reward.judges.parsing import is_readable, require_complete
from paras2s.reward.judges.registry import open_judge
from paras2s.types import Preference, Unscored, Verdict
from paras2s.utils.cache import JsonCache, key_of

VERSION = "1"
RULES = "rules"
Outcome = dict[str, Any] | BudgetError


@dataclass(frozen=True)
class Job:
    """One measure of one item, with the answers to its turns."""

    item: Item
    metric: str
    answers: Sequence[SystemAnswer]


@dataclass(frozen=True)
class SuiteJudge:
    """The judge of a suite's answers, by questions of its `own` or the models of `configs` by measure, opened when asked."""

    suite: Suite
    cache_dir: Path
    calls: bool
    configs: Mapping[str, LLMConfig]
    own: Judge | None = None
    _clients: dict[str, LLMClient] = field(default_factory=dict)

    def name(self, metric: str) -> str:
        """Return the name of the judge of a measure."""
        return self.own.name if self.own else self.configs[metric].model

    def version(self, metric: str) -> str:
        """Return the version of the judge of a measure: all settings that may change a verdict, besides the prompts."""
        if self.own:
            return self.own.version
        llm = self.configs[metric]
        settings = [llm.base_url, llm.temperature, llm.top_p, llm.max_output_tokens, llm.seed, llm.reasoning_effort]
        return f"{VERSION}-{key_of([*settings, llm.extra_body])[:8]}"

    def label(self, metric: str) -> str:
        """Return the judge of a measure and its version, as in the rows; of a computed measure the rules."""
        return f"{self.name(metric)}/{self.version(metric)}" if metric in self.suite.by_judge else RULES

    @property
    def labels(self) -> set[str]:
        """The labels of all measures."""
        return {self.label(metric) for metric in (*self.suite.by_judge, *self.suite.measured)}

    def client(self, metric: str) -> LLMClient:
        """Return the client of a measure's judge. Raises ConfigError: its key or a price is missing."""
        config = self.configs[metric]
        key = config.model_dump_json()
        if key not in self._clients:
            self._clients[key] = LLMClient(config, JsonCache(self.cache_dir / "judging.sqlite"), calls=self.calls)
        return self._clients[key]

    def scoring(self, job: Job, data: Download) -> Question | Parts | Unscored:
        """Return a job's scores, its question, or the reason why there is neither."""
        if missing := self._missing(job):
            return Unscored("", missing)
        try:
            return self.suite.scoring(job.item, job.metric, job.answers, data)
        except (JudgeError, AudioError, AssetError) as error:
            return Unscored("", str(error))

    def _missing(self, job: Job) -> str:
        lacking = [answer.response for answer in job.answers if answer.response.missing]
        text_will_do = self.suite.from_text and all(response.text for response in lacking)
        return "" if text_will_do or not lacking else lacking[0].missing or ""

    # The suite's questions.

    def ask(self, jobs: Sequence[tuple[Job, Question]], both_orders: bool, at: Progress) -> list[Outcome]:
        """Return the values of a row for each question; replies that can be read are cached."""
        calls = [
            Call(index, order, sample, job.metric, ordered)
            for index, (job, question) in enumerate(jobs)
            for order, ordered in enumerate(_orders(question, both_orders))
            for sample in range(ordered.samples)
        ]
        replies: dict[Call, Reply | JudgeError | BudgetError] = {}
        # Calls that are read alike are made together: a reader says which replies are kept.
        for metric, read in dict.fromkeys((call.metric, call.question.read) for call in calls):
            group = [call for call in calls if call.metric == metric and call.question.read is read]

            def progress(now: int, _: int, done: int = len(replies)) -> None:
                at(done + now, len(calls))

            def usable(reply: Reply, read: Callable[[str], Parts] = read) -> bool:
                return is_readable(reply, read)

            outcomes = self.client(metric).complete_all([call.request for call in group], progress, usable)
            replies |= dict(zip(group, outcomes, strict=True))
        return [
            _folded([(call, reply) for call, reply in replies.items() if call.index == index]) for index in range(len(jobs))
        ]

    def estimate(self, jobs: Sequence[tuple[Job, Question]], both_orders: bool) -> Bill:
        """Return the most that the questions cost."""
        bill = Bill()
        for job, question in jobs:
            calls = [
                Request(order.messages, sample=n) for order in _orders(question, both_orders) for n in range(order.samples)
            ]
            bill += self.client(job.metric).estimate(calls)
        return bill

    # Own questions.

    def score(self, jobs: Sequence[Job], data: Download) -> list[Outcome | Unscored]:
        """Return the values of a row for each job, by a judge with questions of its own."""
        assert self.own is not None
        inputs = [self._input(job, data) for job in jobs]
        pairs = [judged for judged in inputs if isinstance(judged, Pair)]
        exchanges = [judged for judged in inputs if isinstance(judged, Exchange)]
        compared = iter(self.own.compare_batch(pairs) if pairs else ())
        scored = iter(self.own.score_batch(exchanges) if exchanges else ())
        outcomes: list[Outcome | Unscored] = []
        for job, judged in zip(jobs, inputs, strict=True):
            verdict = judged if isinstance(judged, Unscored) else next(compared if isinstance(judged, Pair) else scored)
            outcomes.append(self._own_values(job, verdict))
        return outcomes

    def estimate_own(self, jobs: Sequence[Job], data: Download) -> Bill:
        """Return the most that a judge with questions of its own costs; one of this machine costs nothing."""
        bill = Bill()
        if self.own is not None and self.own.client is not None:
            inputs = [self._input(job, data) for job in jobs]
            for kind in (Pair, Exchange):
                bill += self.own.client.estimate(self.own.requests([given for given in inputs if isinstance(given, kind)]))
        return bill

    def _input(self, job: Job, data: Download) -> Pair | Exchange | Unscored:
        if missing := self._missing(job):
            return Unscored("", missing)
        turn, answer = job.item.turns[-1], job.answers[-1]
        try:
            history = self._history(job, data) if self.own is not None and self.own.reads_history else ()
            question = Utterance(None if turn.clip is None else data.clip(turn.clip), turn.words or None, history=history)
            rival = self.suite.rival(job.item, data)
            sound = data.sound_of(answer)
        except (JudgeError, AudioError) as error:
            return Unscored("", str(error))
        return Exchange(question, sound, answer.response.text or None) if rival is None else Pair(question, sound, rival)

    def _history(self, job: Job, data: Download) -> tuple[tuple[str, Utterance], ...]:
        """Return the turns before the last one and their answers."""
        earlier = zip(job.item.turns[:-1], job.answers[:-1], strict=True)
        return tuple(
            said
            for turn, answer in earlier
            for said in (
                ("user", Utterance(None if turn.clip is None else data.clip(turn.clip), turn.words or None)),
                ("assistant", Utterance(answer.response.clip, answer.response.text or None)),
            )
        )

    def _own_values(self, job: Job, verdict: Verdict | Preference | Unscored | BudgetError) -> Outcome | Unscored:
        if isinstance(verdict, Unscored | BudgetError):
            return verdict
        value = verdict.points if isinstance(verdict, Preference) else verdict.score
        parts = dict.fromkeys(self.suite.part_names(job.item), value)
        consistent = verdict.consistent if isinstance(verdict, Preference) else None
        return row_values(parts) | {
            "reason": verdict.reason, "reply": verdict.reply, "cost_usd": verdict.cost_usd, "latency_s": verdict.latency_s,
            "prompt_hash": verdict.prompt_hash, "consistent": consistent,
        }  # fmt: skip


@dataclass(frozen=True, eq=False)
class Call:
    """One call: the place of its question, the order of a pair, and the number of the sample."""

    index: int
    order: int
    sample: int
    metric: str
    question: Question

    @property
    def request(self) -> Request:
        """The request."""
        return Request(self.question.messages, sample=self.sample)


def _orders(question: Question, both: bool) -> list[Question]:
    return [question, question.exchanged] if both and question.exchanged else [question]


def _folded(calls: Sequence[tuple[Call, Reply | JudgeError | BudgetError]]) -> Outcome:
    """Return the values of a row from the replies to one question: means over samples, then over orders."""
    if stopped := next((reply for _, reply in calls if isinstance(reply, BudgetError)), None):
        return stopped
    replies, question = [reply for _, reply in calls if isinstance(reply, Reply)], calls[0][0].question
    values: dict[str, Any] = {
        "reply": "\n---\n".join(reply.text for reply in replies), "prompt_hash": question.prompt_hash,
        "cost_usd": total_usd(replies), "latency_s": sum(reply.latency_s for reply in replies), "position": question.position,
    }  # fmt: skip
    by_order: dict[int, list[Parts]] = {call.order: [] for call, _ in calls}
    why = ""
    for call, reply in calls:
        try:
            if not isinstance(reply, Reply):
                raise reply
            by_order[call.order].append(call.question.read(require_complete(reply)))
        except JudgeError as error:
            why = why or str(error)
    # Fewer than half of the samples would be a biased selection.
    if any(not read or 2 * len(read) < question.samples for read in by_order.values()):
        return values | {"unscored": why}
    means = [{name: fmean(parts[name] for parts in read) for name in read[0]} for read in by_order.values()]
    consistent = None if len(means) < 2 else means[0] == means[1]
    return values | row_values({name: fmean(mean[name] for mean in means) for name in means[0]}) | {"consistent": consistent}


def open_suite_judge(
    suite: Suite, judge: str | None, cache_dir: Path, overrides: Mapping[str, Any], own_prompts: bool, calls: bool
) -> SuiteJudge:
    """Open the makers' judges, another model under their prompts, or a judge with its own questions. Raises ConfigError."""
    if judge is None:
        configs = {metric: suite.other_judges.get(metric, suite.judge) for metric in suite.by_judge}
        made = {
            metric: NamedJudge(suite.name, "llm", None, {"llm": llm.model_dump(exclude_unset=True)}).config(
                JudgingConfig, overrides
            )
            for metric, llm in configs.items()
        }
        return SuiteJudge(suite, cache_dir, calls, {metric: config.llm for metric, config in made.items()})
    named = find_judge(judge)
    if named.kind not in ("llm", "audio") or own_prompts:
        cached = {"cache_dir": str(cache_dir)} if named.has_config and not named.is_own else {}
        return SuiteJudge(suite, cache_dir, calls, {}, open_judge(named, cached | dict(overrides), calls=calls))
    kind: type[JudgingConfig] | type[AudioJudgeConfig] = JudgingConfig if named.kind == "llm" else AudioJudgeConfig
    return SuiteJudge(suite, cache_dir, calls, dict.fromkeys(suite.by_judge, named.config(kind, overrides).llm))
