"""`paras2s bench unisrm`: judges on UniSRM-Bench, each under every condition, and the tables of all of them."""

from __future__ import annotations

import functools
import re
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from itertools import chain
from pathlib import Path
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict
from rich.console import Console

from paras2s.audio.clip import Clip
from paras2s.bench.detection.baselines import MeasuringOptions
from paras2s.bench.results import require_new
from paras2s.bench.verdict_file import VerdictFile
from paras2s.clients.chat import Bill, LLMClient, Reply, Request
from paras2s.configs.schema.base import load_section
from paras2s.configs.schema.endpoints import LLMConfig
from paras2s.configs.schema.judges import find_judge
from paras2s.data_gen.clip_encoder import RunClipEncoder
from paras2s.errors import AudioError, BudgetError, ConfigError, JudgeError
from paras2s.reward.judges.base import Progress
from paras2s.reward.judges.parsing import BOUNDED_TEXT, is_readable, read_as, require_complete
from paras2s.reward.judges.prompts import Prompt, read_prompt
from paras2s.types import Absent
from paras2s.unisrm.bench.data import CONDITIONS, BenchData, Sample, load_bench
from paras2s.unisrm.bench.judges import BenchJudge, objective_measures, open_bench_judge
from paras2s.unisrm.bench.metrics import Figure, mean_share
from paras2s.unisrm.bench.report import JudgeResult, bench_report, markdown
from paras2s.unisrm.bench.results import BenchRow, NoJudgement, load_rows, row_of
from paras2s.unisrm.reward.tasks import TASKS
from paras2s.utils.cache import JsonCache
from paras2s.utils.io import write_json, write_text
from paras2s.utils.progress import progress_bar

# Samples judged at once.
CHUNK = 32


@dataclass(frozen=True)
class UniSRMBenchOptions:
    """The options of `bench unisrm`; `llm` scores groundedness if given. Raises ConfigError: no judge, or one twice."""

    data: Path
    judges: Sequence[str]
    out: Path
    cache_dir: Path
    objective: bool = True
    llm: Path | None = None
    tone: Path | None = None
    limit: int | None = None
    split: str = "bench"
    retry_unscored: bool = False
    overrides: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if not self.judges and not self.objective:
            raise ConfigError("--judge: name at least one, or leave --no-objective out")
        if len(set(self.judges)) < len(self.judges):
            raise ConfigError("--judge: a judge occurs twice")
        if self.overrides and len(self.judges) != 1:
            raise ConfigError("--set: changes the config of one judge; give one --judge, or a YAML of its own to each")


@dataclass(frozen=True)
class UniSRMBenchResult:
    """The report, the number of samples without a verdict that a judge could have judged, and what ended it early."""

    report: dict[str, Any]
    unscored: int
    stopped: BudgetError | None


def estimate_bench(options: UniSRMBenchOptions) -> dict[str, Bill]:
    """Return the most that the verdicts which are missing cost, by judge.

    Raises ConfigError: a wrong judge, or groundedness, which is about replies. DataError. StorageError: another judge's file.
    """
    if options.llm is not None:
        raise ConfigError("--groundedness: its LLM rates replies, which an estimate does not have; leave one of the two out")
    data, bills = load_bench(options.data, options.split), dict[str, Bill]()
    for name in options.judges:
        judge = open_bench_judge(name, options.overrides, options.tone, RunClipEncoder, calls=False)
        missing = _Verdicts(judge, _samples_of(judge, data, options.limit), data, options).missing
        bills[judge.name] = Bill()
        for task_id in TASKS:
            own = [sample for sample in missing if sample.item.task == task_id]
            for start in range(0, len(own), CHUNK):
                read = [(sample, _read(sample)) for sample in own[start : start + CHUNK]]
                readable = [(sample, clips) for sample, clips in read if not isinstance(clips, NoJudgement)]
                if readable:
                    samples, clips = zip(*readable, strict=True)
                    bills[judge.name] += judge.estimate(task_id, samples, clips)
    return bills


def _samples_of(judge: BenchJudge, data: BenchData, limit: int | None) -> list[Sample]:
    return [
        sample for condition in CONDITIONS for sample in data.samples(condition, limit) if sample.item.task not in judge.unfit
    ]


def run_bench(options: UniSRMBenchOptions, console: Console, quiet: bool) -> UniSRMBenchResult:
    """Judge, and write verdicts, unisrm.json and unisrm.md. Raises ConfigError: a wrong judge. DataError. StorageError."""
    data = load_bench(options.data, options.split)
    client = None if options.llm is None else _client(options.llm, options.cache_dir)
    for name in options.judges:
        find_judge(name)
    # Opened one after the other: several models of many gigabytes do not fit beside each other.
    opened = (open_bench_judge(name, options.overrides, options.tone, RunClipEncoder) for name in options.judges)
    measures = objective_measures(MeasuringOptions(cache_dir=options.cache_dir)) if options.objective else []
    results, stopped, unscored = [], None, 0
    for judge in chain(opened, measures):
        samples = _samples_of(judge, data, options.limit)
        with progress_bar(console, judge.name, len(samples), quiet=quiet) as bar:
            rows, ended = judge_samples(judge, samples, data, options, bar.at)
        grounded, unpaid = _grounded(rows, data, client)
        stopped = stopped or ended or unpaid
        unscored += sum(row.unscored is not None for row in rows if row.condition == "own")
        results.append(JudgeResult(judge.name, judge.inputs, judge.unfit, rows, grounded))
        del judge
        if stopped:
            break
    report = bench_report(data, results, options.limit)
    write_json(options.out / "unisrm.json", report)
    write_text(options.out / "unisrm.md", markdown(report))
    return UniSRMBenchResult(report, unscored, stopped)


def verdicts_path(folder: Path, judge: str) -> Path:
    """Return the file of a judge's verdicts."""
    return folder / f"verdicts-{re.sub(r'[^0-9A-Za-z_.+-]+', '-', judge).strip('-')}.jsonl"


def _client(path: Path, cache_dir: Path) -> LLMClient:
    return LLMClient(load_section(path, None, LLMConfig), JsonCache(cache_dir / "judging.sqlite"))


def _grounded(
    rows: Sequence[BenchRow], data: BenchData, client: LLMClient | None
) -> tuple[Mapping[str, Figure], BudgetError | None]:
    """Return the groundedness by task, of the replies that reason, and the budget's end."""
    figures: dict[str, Figure] = {}
    if client is None:
        return figures, None
    own = [row for row in rows if row.condition == "own" and row.unscored is None and "<think>" in row.reply]
    texts = {item.id: item.text_id for item in data.items}
    for task in TASKS:
        if answered := [row for row in own if row.task == task]:
            try:
                figures[task] = groundedness(answered, texts, client)
            except BudgetError as error:
                return figures | {task: Absent(str(error))}, error
    return figures, None


def judge_samples(
    judge: BenchJudge, samples: Sequence[Sample], data: BenchData, options: UniSRMBenchOptions,
    on_progress: Progress,
) -> tuple[list[BenchRow], BudgetError | None]:  # fmt: skip
    """Judge samples without a verdict; return their rows, and the budget's end. Raises StorageError: another judge's file."""
    verdicts = _Verdicts(judge, samples, data, options)
    keys, missing = verdicts.keys, verdicts.missing
    file = VerdictFile(verdicts.path, verdicts.known, lambda row: row.key, lambda row: row.unscored is None, asdict)
    judge_chunk = functools.partial(_judge_chunk, judge, verdicts.version)
    stopped: BudgetError | None = None
    for task_id in TASKS:
        if stopped is None:
            # Of one task alone, so that a batch has one prompt.
            own = [sample for sample in missing if sample.item.task == task_id]
            stopped = file.judge(
                own, CHUNK, judge_chunk, lambda *_: on_progress(sum(key in file.rows for key in keys), len(samples))
            )
    if missing:
        file.rewrite()
    return [file.rows[key] for key in keys if key in file.rows], stopped


class _Verdicts:
    """A judge's file of verdicts, and which of its samples have none. Raises StorageError: it holds another judge's."""

    def __init__(self, judge: BenchJudge, samples: Sequence[Sample], data: BenchData, options: UniSRMBenchOptions) -> None:
        self.path = verdicts_path(options.out, judge.name)
        self.version = f"{judge.version}/{data.digest}"
        existing = load_rows(self.path) if self.path.is_file() else []
        require_new(self.path, (f"{row.judge}/{row.version}" for row in existing), [f"{judge.name}/{self.version}"])
        self.known = {row.key: row for row in existing}
        done = {key for key, row in self.known.items() if row.unscored is None or not options.retry_unscored}
        self.keys = [(sample.item.id, sample.condition) for sample in samples]
        self.missing = [sample for sample, key in zip(samples, self.keys, strict=True) if key not in done]


def _read(sample: Sample) -> dict[str, Clip] | NoJudgement:
    try:
        return sample.read()
    except AudioError as error:
        return NoJudgement(str(error))


def _judge_chunk(judge: BenchJudge, version: str, samples: Sequence[Sample], at: Progress) -> list[BenchRow | BudgetError]:
    readable: list[Sample] = []
    clips: list[dict[str, Clip]] = []
    rows: list[BenchRow | BudgetError] = []
    for sample in samples:
        read = _read(sample)
        if isinstance(read, NoJudgement):
            rows.append(row_of(sample, judge.name, version, read))
        else:
            clips.append(read)
            readable.append(sample)
    outcomes = judge.judge(readable[0].item.task, readable, clips) if readable else []
    for sample, outcome in zip(readable, outcomes, strict=True):
        rows.append(outcome if isinstance(outcome, BudgetError) else row_of(sample, judge.name, version, outcome))
    return rows


USER = "The task: {{task}}\n\nThe dimensions that are judged: {{dimensions}}\n\nThe reply:\n{{reply}}"
SCHEMA = {
    "type": "object",
    "properties": {"reasoning": BOUNDED_TEXT, "score": {"type": "integer", "enum": [0, 1, 2]}},
    "required": ["reasoning", "score"],
    "additionalProperties": False,
}


class Grounded(BaseModel):
    """The reply of the LLM."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)
    reasoning: str
    score: Literal[0, 1, 2]


def groundedness(rows: Sequence[BenchRow], texts: Mapping[str, str], client: LLMClient) -> Figure:
    """Return the mean of 0 to 2 over readable replies; `texts` maps an item to its text, a cluster. Raises BudgetError."""
    prompt = Prompt(read_prompt("groundedness", None, "paras2s.unisrm.bench"), USER)
    requests = [Request(prompt.messages(_values(row), {}), SCHEMA) for row in rows]
    replies = client.complete_all(requests, usable=lambda reply: is_readable(reply, _grade))
    return mean_share([_score(reply) for reply in replies], [texts[row.item] for row in rows])


def _values(row: BenchRow) -> dict[str, str]:
    task = TASKS[row.task]
    titles = ", ".join(dimension.title for dimension in task.dimensions)
    return {"task": task.title, "dimensions": titles, "reply": row.reply}


def _grade(text: str) -> int:
    return read_as(text, Grounded).score


def _score(reply: Reply | JudgeError | BudgetError) -> float | None:
    if isinstance(reply, BudgetError):
        raise reply
    if isinstance(reply, JudgeError):
        return None
    try:
        return float(_grade(require_complete(reply)))
    except JudgeError:
        return None
