"""A trained UniSRM as a judge: it reasons over clips dimension by dimension, in this process or behind an endpoint.

A pair of answers to a spoken question is T4 with the question as its history, and a single answer is T2; other tasks take
their inputs beside the clips. A reply that breaks a rule of the format gives no verdict.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from statistics import fmean

from paras2s.audio.clip import Clip
from paras2s.clients.chat import Request, Tokens
from paras2s.configs.schema.unisrm import UniSRMJudgeConfig
from paras2s.errors import BudgetError, ConfigError
from paras2s.reward.judges.base import Exchange, Judge, Pair, Preferred, Progress, Scored, as_clip
from paras2s.reward.judges.votes import POINTS, label_of, spread_of
from paras2s.types import PairLabel, Preference, Unscored, Verdict
from paras2s.unisrm.reward.messages import HISTORY
from paras2s.unisrm.reward.readers import Inputs, Outcome, Read, open_reader
from paras2s.unisrm.reward.reply import Malformed
from paras2s.unisrm.reward.tasks import ASPECT_DESCRIPTIONS, TASKS, PairRecord, QualityRecord, Task, TaskId
from paras2s.utils.cache import key_of


@dataclass(frozen=True)
class TaskInputs:
    """The task that a pair is judged by, and what it takes beside the two candidates."""

    task: TaskId = "T4"
    texts: Mapping[str, str] = field(default_factory=dict)
    clips: Mapping[str, Clip] = field(default_factory=dict)


class UniSRMJudge(Judge):
    """Judges with a trained UniSRM. `version` is a hash of its weights, or of its endpoint, and of settings and prompts."""

    scores_alone = False
    reads_history = True

    def __init__(self, config: UniSRMJudgeConfig, inputs: TaskInputs = TaskInputs(), calls: bool = True) -> None:
        """Load the model, or open its endpoint. Raises JudgeError: there is none. ConfigError: no pairs, or a wrong setting."""
        if not TASKS[inputs.task].pairwise:
            raise ConfigError(f"{inputs.task}: scores single clips, and compares none")
        self.config, self.inputs = config, inputs
        self.reader = open_reader(config, calls)
        self.client = self.reader.client
        self.name, self.version = self.reader.name, self.reader.version
        self.prompt_hash = key_of(self.reader.systems[inputs.task])[:16]

    def read(self, task_id: TaskId, items: Sequence[Inputs], on_progress: Progress | None = None) -> list[Outcome]:
        """Reply to items of one task, given as texts and clips; an item that cannot be put to the model is Unscored."""
        return self.reader.read(task_id, items, on_progress)

    def requests(self, items: Sequence[Pair | Exchange]) -> list[list[Request] | Unscored]:
        """Return the calls of each pair or answer; none of a model in this process."""
        requests: list[list[Request] | Unscored] = []
        for item in items:
            calls = self.reader.requests(self.task_of(item), self._inputs(item))
            refused = [call for call in calls if isinstance(call, Unscored)]
            requests.append(refused[0] if refused else [call for call in calls if isinstance(call, Request)])
        return requests

    def task_of(self, item: Pair | Exchange) -> TaskId:
        """Return the task of a pair, or of a single answer."""
        return self.inputs.task if isinstance(item, Pair) else "T2"

    def _inputs(self, item: Pair | Exchange) -> list[Inputs]:
        if isinstance(item, Exchange):
            return [({}, {"speech": item.answer})]
        return self._orders(item)[: 2 if self.config.both_orders else 1]

    # Two clips.

    def compare_batch(self, pairs: Sequence[Pair], on_progress: Progress | None = None) -> list[Preferred]:
        """Compare pairs, in order, in both orders where the config says so."""
        orders = 2 if self.config.both_orders else 1
        items = [item for pair in pairs for item in self._inputs(pair)]
        replies = self.read(self.inputs.task, items, on_progress)
        groups = [replies[start : start + orders] for start in range(0, len(replies), orders)]
        return [self._preference(group) for group in groups]

    def _orders(self, pair: Pair) -> list[Inputs]:
        inputs, clips = self.inputs, dict(self.inputs.clips)
        if inputs.task == "T4" and not clips and pair.instruction.clip is not None:
            # It hears turns: one in writing alone is left out.
            turns = [said.clip for _, said in pair.instruction.history if said.clip is not None]
            clips = {f"history_{number}": clip for number, clip in enumerate([*turns, pair.instruction.clip], 1)}
        both = ((pair.first, pair.second), (pair.second, pair.first))
        return [(inputs.texts, {**clips, "speech_a": first, "speech_b": second}) for first, second in both]

    def _preference(self, outcomes: Sequence[Outcome]) -> Preferred:
        if out_of_budget := [outcome for outcome in outcomes if isinstance(outcome, BudgetError)]:
            return out_of_budget[0]
        replies: list[Read] = []
        records: list[PairRecord] = []
        for outcome in outcomes:
            if not isinstance(outcome, Read):
                return outcome
            if not isinstance(outcome.record, PairRecord):
                return self._malformed(outcome)
            replies.append(outcome)
            records.append(outcome.record)
        labels: list[PairLabel] = ["1" if record.better == "A" else "2" for record in records]
        tokens = sum((reply.tokens for reply in replies), Tokens())
        # In the second order the pair's first clip is B.
        votes = tuple(POINTS[label] if index == 0 else 1 - POINTS[label] for index, label in enumerate(labels))
        return Preference(
            judge=self.name,
            version=self.version,
            prompt_hash=self.prompt_hash,
            task=self.inputs.task,
            label=label_of(fmean(votes)),
            points=fmean(votes),
            order_labels=tuple(labels),
            votes=votes,
            spread=spread_of(votes),
            consistent=votes[0] == votes[1] if len(votes) == 2 else None,
            reason="\n---\n".join(pair_reason(self.inputs.task, record) for record in records),
            reply="\n---\n".join(reply.reply for reply in replies),
            text_in_tokens=tokens.text_in,
            audio_in_tokens=tokens.audio_in,
            text_out_tokens=tokens.text_out,
            cost_usd=_total_usd(replies),
            latency_s=sum(reply.latency_s for reply in replies),
            cost_estimated=tokens.audio_estimated,
        )

    # One clip.

    def score_batch(self, exchanges: Sequence[Exchange], on_progress: Progress | None = None) -> list[Scored]:
        """Score answers by T2: the overall quality of the clip, whatever was said before it."""
        replies = self.read("T2", [item for exchange in exchanges for item in self._inputs(exchange)], on_progress)
        return [self._verdict(reply) for reply in replies]

    def _verdict(self, outcome: Outcome) -> Scored:
        if not isinstance(outcome, Read):
            return outcome
        if not isinstance(outcome.record, QualityRecord):
            return self._malformed(outcome)
        score, reason = outcome.record.scores[-1], quality_reason(outcome.record)
        prompt = key_of(self.reader.systems["T2"])[:16]
        return Verdict(
            self.name, self.version, prompt, score, reason, outcome.reply, outcome.cost_usd, outcome.latency_s,
            cost_estimated=outcome.tokens.audio_estimated,
        )  # fmt: skip

    def _malformed(self, outcome: Read) -> Unscored:
        assert isinstance(outcome.record, Malformed)
        return Unscored(self.name, f"{outcome.record.reason}: {outcome.record.detail}", outcome.reply)


def _total_usd(replies: Sequence[Read]) -> float | None:
    known = [reply.cost_usd for reply in replies if reply.cost_usd is not None]
    return sum(known) if len(known) == len(replies) else None


def pair_reason(task_id: TaskId, record: PairRecord) -> str:
    """Return a line for each dimension, with both scores and why, and the summary."""
    if record.sides is None:
        return f"Speech {record.better} is better"
    first, second = record.sides
    task = TASKS[task_id]
    lines = [
        f"{dimension.title}: {first.scores[n]:g} and {second.scores[n]:g} of {task.high} "
        f"({first.explanations[n]}; {second.explanations[n]})"
        for n, dimension in enumerate(task.dimensions)
    ]
    return "\n".join([*lines, record.summary])


def quality_reason(record: QualityRecord) -> str:
    """Return the scores of T2's aspects in one line, its descriptions, and the paragraph about all of them."""
    scores = ", ".join(f"{key} {score:g}" for key, score in zip(TASKS["T2"].keys, record.scores, strict=True))
    described = [f"{name}: {text}" for name, text in zip(ASPECT_DESCRIPTIONS, record.descriptions, strict=False)]
    return "\n".join(line for line in (scores, *described, record.description) if line)


def read_task_inputs(task_id: str, given: Mapping[str, str]) -> TaskInputs:
    """Read the inputs of a pairwise task from KEY=VALUE pairs, a clip from its file. Raises ConfigError. AudioError."""
    pairwise: dict[str, Task] = {task.id: task for task in TASKS.values() if task.pairwise}
    if task_id not in pairwise:
        raise ConfigError(f"--task {task_id}: of two clips a UniSRM judges {', '.join(pairwise)}")
    task = pairwise[task_id]
    clips = {name for name in given if name in task.clips or ("history" in task.clips and HISTORY.fullmatch(name))}
    options = (*task.texts, *("history_1, history_2 ..." if name == "history" else name for name in task.clips))
    missing = [name for name in task.texts if name not in given]
    if (unknown := sorted(set(given) - set(task.texts) - clips)) or missing:
        wrong = f"got {unknown[0]}" if unknown else f"{missing[0]} is missing"
        raise ConfigError(f"--input: {task_id} takes {', '.join(options)}; {wrong}")
    texts = {name: given[name] for name in task.texts}
    return TaskInputs(task.id, texts, {name: as_clip(given[name]) for name in sorted(clips)})
