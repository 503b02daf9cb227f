"""A trained UniSRM as a judge: it reasons over clips dimension by dimension, in this process.

A pair of answers to a spoken question is T4 with the question as its history, and a single answer is T2; other tasks take
their inputs beside the clips. A reply that breaks a rule of the format gives no verdict.
"""

from __future__ import annotations

import hashlib
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import fmean

from paras2s.audio.clip import Clip
from paras2s.configs.schema.unisrm import UniSRMJudgeConfig
from paras2s.errors import ConfigError, JudgeError
from paras2s.reward.judges.base import Exchange, Judge, Pair, Preferred, Progress, Scored, as_clip
from paras2s.reward.judges.votes import POINTS, label_of, spread_of
from paras2s.reward.unisrm.messages import HISTORY
from paras2s.reward.unisrm.reply import Malformed, parse_reply
from paras2s.reward.unisrm.tasks import ASPECT_DESCRIPTIONS, TASKS, PairRecord, QualityRecord, Record, Task, TaskId
from paras2s.reward.unisrm.thinker import SETTINGS, Encoded, UniSRM
from paras2s.types import PairLabel, Preference, Unscored, Verdict
from paras2s.utils.cache import key_of

CHUNK_BYTES = 1 << 22


@dataclass(frozen=True)
class TaskInputs:
    """The task that a pair is judged by, and what it takes beside the two candidates."""

    task: TaskId = "T4"
    texts: Mapping[str, str] = field(default_factory=dict)
    clips: Mapping[str, Clip] = field(default_factory=dict)


@dataclass(frozen=True)
class Read:
    """A reply and what it was parsed to."""

    reply: str
    record: Record | Malformed


class UniSRMJudge(Judge):
    """Judges with a trained UniSRM. `version` is a hash of its weights and settings, and of the prompts."""

    scores_alone = False

    def __init__(self, config: UniSRMJudgeConfig, inputs: TaskInputs = TaskInputs()) -> None:
        """Loads the model.

        Raises:
            JudgeError: the folder holds none. ConfigError: the task compares no pairs.
        """
        if not TASKS[inputs.task].pairwise:
            raise ConfigError(f"{inputs.task}: scores single clips, and compares none")
        self.config, self.inputs = config, inputs
        self.model = UniSRM.load(config.checkpoint)
        self.name = "unisrm"
        prompts = key_of(sorted(self.model.systems.items()))[:8]
        self.version = f"{weights_digest(config.checkpoint)}-{prompts}-{config.max_reply_tokens}"
        self.prompt_hash = key_of(self.model.systems[inputs.task])[:16]

    # Any task.

    def read(self, task_id: TaskId, items: Sequence[tuple[Mapping[str, str], Mapping[str, Clip]]]) -> list[Read | Unscored]:
        """Replies to items of one task, given as texts and clips; one that cannot be encoded is Unscored."""
        encoded = [self._encoded(task_id, *item) for item in items]
        rows = [one for one in encoded if not isinstance(one, Unscored)]
        replies = iter(self.model.reply(rows, self.config.max_reply_tokens, self.config.batch_size) if rows else [])
        found: list[Read | Unscored] = []
        for one in encoded:
            if isinstance(one, Unscored):
                found.append(one)
            else:
                text = next(replies)
                found.append(Read(text, parse_reply(task_id, text, self.model.config.reasoning)))
        return found

    def _encoded(self, task_id: TaskId, texts: Mapping[str, str], clips: Mapping[str, Clip]) -> Encoded | Unscored:
        try:
            return self.model.encode(task_id, texts, clips)
        except JudgeError as error:
            return Unscored(self.name, str(error))

    # Two clips.

    def compare_batch(self, pairs: Sequence[Pair], on_progress: Progress | None = None) -> list[Preferred]:
        """Compares pairs, in order, in both orders where the config says so."""
        started = time.perf_counter()
        orders = 2 if self.config.both_orders else 1
        items = [item for pair in pairs for item in self._orders(pair)[:orders]]
        replies = self.read(self.inputs.task, items)
        latency_s = (time.perf_counter() - started) / max(len(pairs), 1)
        if on_progress:
            on_progress(len(pairs), len(pairs))
        groups = [replies[start : start + orders] for start in range(0, len(replies), orders)]
        return [self._preference(group, latency_s) for group in groups]

    def _orders(self, pair: Pair) -> list[tuple[Mapping[str, str], Mapping[str, Clip]]]:
        inputs, clips = self.inputs, dict(self.inputs.clips)
        if inputs.task == "T4" and not clips and pair.instruction.clip is not None:
            clips = {"history_1": pair.instruction.clip}
        both = ((pair.first, pair.second), (pair.second, pair.first))
        return [(inputs.texts, {**clips, "speech_a": first, "speech_b": second}) for first, second in both]

    def _preference(self, replies: Sequence[Read | Unscored], latency_s: float) -> Preferred:
        labels: list[PairLabel] = []
        for one in replies:
            if isinstance(one, Unscored):
                return one
            if not isinstance(one.record, PairRecord):
                return self._malformed(one)
            labels.append("1" if one.record.better == "A" else "2")
        texts = [one.reply for one in replies if isinstance(one, Read)]
        records = [one.record for one in replies if isinstance(one, Read) and isinstance(one.record, PairRecord)]
        # In the second order the pair's first clip is B.
        votes = tuple(POINTS[label] if place == 0 else 1 - POINTS[label] for place, label in enumerate(labels))
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
            reply="\n---\n".join(texts),
            latency_s=latency_s,
        )

    # One clip.

    def score_batch(self, exchanges: Sequence[Exchange], on_progress: Progress | None = None) -> list[Scored]:
        """Scores answers by T2: the overall quality of the clip, whatever was said before it."""
        started = time.perf_counter()
        replies = self.read("T2", [({}, {"speech": exchange.answer}) for exchange in exchanges])
        latency_s = (time.perf_counter() - started) / max(len(exchanges), 1)
        if on_progress:
            on_progress(len(exchanges), len(exchanges))
        return [self._verdict(one, latency_s) for one in replies]

    def _verdict(self, one: Read | Unscored, latency_s: float) -> Scored:
        if isinstance(one, Unscored):
            return one
        if not isinstance(one.record, QualityRecord):
            return self._malformed(one)
        score, reason = one.record.scores[-1], quality_reason(one.record)
        prompt = key_of(self.model.systems["T2"])[:16]
        return Verdict(self.name, self.version, prompt, score, reason, one.reply, 0.0, latency_s)

    def _malformed(self, one: Read) -> Unscored:
        assert isinstance(one.record, Malformed)
        return Unscored(self.name, f"{one.record.reason}: {one.record.detail}", one.reply)


def pair_reason(task_id: TaskId, record: PairRecord) -> str:
    """Returns a line for each dimension, with both scores and why, and the summary."""
    if record.sides is None:
        return f"Speech {record.better} is better"
    first, second = record.sides
    task = TASKS[task_id]
    lines = [
        f"{one.title}: {first.scores[n]:g} and {second.scores[n]:g} of {task.high} "
        f"({first.explanations[n]}; {second.explanations[n]})"
        for n, one in enumerate(task.dimensions)
    ]
    return "\n".join([*lines, record.summary])


def quality_reason(record: QualityRecord) -> str:
    """Returns the scores of T2's aspects in one line, its descriptions, and the paragraph about all of them."""
    scores = ", ".join(f"{key} {score:g}" for key, score in zip(TASKS["T2"].keys, record.scores, strict=True))
    described = [f"{name}: {text}" for name, text in zip(ASPECT_DESCRIPTIONS, record.descriptions, strict=False)]
    return "\n".join(line for line in (scores, *described, record.description) if line)


def read_task_inputs(task_id: str, given: Mapping[str, str]) -> TaskInputs:
    """Reads the inputs of a pairwise task from KEY=VALUE pairs: a text as it is, a clip from its file.

    Raises:
        ConfigError: no such task, an input that it does not take, or a text that it lacks. AudioError: a clip cannot be read.
    """
    pairwise: dict[str, Task] = {task.id: task for task in TASKS.values() if task.pairwise}
    if task_id not in pairwise:
        raise ConfigError(f"--task {task_id}: of two clips a UniSRM judges {', '.join(pairwise)}")
    task = pairwise[task_id]
    clips = {name for name in given if name in task.clips or ("history" in task.clips and HISTORY.fullmatch(name))}
    wanted = (*task.texts, *("history_1, history_2 ..." if name == "history" else name for name in task.clips))
    missing = [name for name in task.texts if name not in given]
    if (unknown := sorted(set(given) - set(task.texts) - clips)) or missing:
        wrong = f"got {unknown[0]}" if unknown else f"{missing[0]} is missing"
        raise ConfigError(f"--input: {task_id} takes {', '.join(wanted)}; {wrong}")
    texts = {name: given[name] for name in task.texts}
    return TaskInputs(task.id, texts, {name: as_clip(given[name]) for name in sorted(clips)})


def weights_digest(folder: Path) -> str:
    """Returns a hash of a checkpoint's weights, settings and tokenizer; the base of adapters counts by its name alone.

    Raises:
        JudgeError: the folder holds none.
    """
    files = sorted([*folder.glob("*.safetensors"), *folder.glob("*.json")])
    if not (folder / SETTINGS).is_file():
        raise JudgeError(f"{folder}: holds no UniSRM model ({SETTINGS} is not there)")
    digest = hashlib.sha256()
    for path in files:
        with path.open("rb") as file:
            while block := file.read(CHUNK_BYTES):
                digest.update(block)
    return digest.hexdigest()[:12]
