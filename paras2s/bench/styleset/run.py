"""`paras2s bench styleset`: systems' dialogues, judged by audio judges (StyleSet: Chiang et al., 2025).

A system is a checkpoint, an audio chat endpoint, or a folder of finished clips (other people's systems, recordings of people).
Left out of the paper: its items, which are its authors' and IEMOCAP's.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console

from paras2s.audio.clip import Clip
from paras2s.bench.bias.run import NOT_REACHED
from paras2s.bench.made_from import MadeFrom, clip_names, sent
from paras2s.bench.results import require_new
from paras2s.bench.styleset.data import TASKS, VERDICT_TASKS, FollowingItem, RoleContext, Task, load_contexts, load_following
from paras2s.bench.styleset.dialogue import LONGEST_S
from paras2s.bench.styleset.metrics import StyleRow, label_of, load_human, load_rows, row_of, save_rows
from paras2s.bench.styleset.outputs import (
    Item,
    Made,
    OutputSettings,
    describe_outputs,
    finished_clips,
    judged_clip,
    load_made,
    make_outputs,
    output_key,
)
from paras2s.bench.styleset.page import write_page
from paras2s.bench.styleset.report import build_report, markdown
from paras2s.bench.styleset.systems import LONGEST_ANSWER_S, MAX_TOKENS
from paras2s.bench.systems import fingerprint, is_finished
from paras2s.bench.verdict_file import VerdictFile
from paras2s.clients.audio_chat import LONG_ANSWER_S, RATE_HZ, chat_usd
from paras2s.clients.chat import Bill
from paras2s.clients.endpoint import load_prices
from paras2s.configs.schema.endpoints import load_audio_chat
from paras2s.data_gen.tts.remote import SLOW_CHARACTERS_PER_S
from paras2s.data_gen.tts.signal_voice import signal_voice
from paras2s.errors import BudgetError, ConfigError
from paras2s.reward.judges.audio_judge.judge import AudioJudge
from paras2s.reward.judges.base import MAX_CLIP_S, Exchange, Progress, Utterance
from paras2s.reward.judges.registry import open_audio_judges
from paras2s.types import Unscored, Verdict
from paras2s.utils.io import write_json, write_text
from paras2s.utils.progress import progress_bar

# Outputs judged at once.
CHUNK_OUTPUTS = 8


@dataclass(frozen=True)
class StyleSetOptions:
    """The options of `bench styleset`: systems and judges, or recorded verdicts in their place, and items of each task.

    `made_given` names the options that say how outputs are made and were given, which recorded verdicts have no use for.
    """

    systems: dict[str, str]
    out: Path
    cache_dir: Path
    judges: Sequence[str] = ()
    task: str | None = None
    items: Path | None = None
    contexts: Path | None = None
    limit: int | None = None
    turns: int = 20
    seed: int = 42
    longest_answer_s: float = LONGEST_ANSWER_S
    verdicts: Sequence[Path] = ()
    human: Path | None = None
    recorded: Sequence[str] = ()
    temperatures: str | None = None
    overrides: dict[str, Any] = field(default_factory=dict)
    made_given: Sequence[str] = ()

    def check(self, estimate: bool) -> None:
        """Refuse options that contradict each other. Raises ConfigError: names them."""
        if self.task is not None and self.task not in TASKS:
            raise ConfigError(f"--task {self.task}: there are {' and '.join(TASKS)}")
        if self.verdicts:
            if self.judges or self.temperatures or estimate or self.overrides or self.systems:
                raise ConfigError(
                    "--verdicts are judged already: leave --system, --judge, --set, --temperatures, --estimate out"
                )
            if self.made_given:
                name = self.made_given[0].replace("_", "-")
                raise ConfigError(f"--verdicts are of outputs made already: leave --{name} out")
        elif not self.systems:
            raise ConfigError("--system: give NAME=SYSTEM at least once, or --verdicts")

    def settings(self) -> OutputSettings:
        """Return the items that are chosen, and how their outputs are made."""
        chosen: Any = {
            "following": load_following(self.items)[: self.limit],
            "role_play": load_contexts(self.contexts)[: self.limit],
        }
        if self.task is not None:
            chosen = {self.task: chosen[self.task]}
        return OutputSettings(self.systems, chosen, self.out, self.cache_dir, self.turns, self.seed, self.longest_answer_s)

    def open_judges(self, tasks: Sequence[Task], calls: bool = True) -> list[OpenJudge]:
        """Return the judges for these tasks, at every temperature."""
        overrides = {"cache_dir": str(self.cache_dir)} | self.overrides
        return open_judges(self.judges or ["styleset"], tasks, _temperatures(self.temperatures), overrides, calls)


@dataclass(frozen=True)
class StyleSetResult:
    """The report, the error that stopped the judging, and how many verdicts that were to be given now are missing."""

    report: dict[str, Any]
    stopped: BudgetError | None = None
    unscored: int = 0


def run_styleset(options: StyleSetOptions, console: Console, quiet: bool) -> StyleSetResult:
    """Make outputs and judge them, or read recorded verdicts; write the report. Raises ConfigError. BudgetError."""
    options.check(estimate=False)
    settings = options.settings()
    ratings = load_human(options.human) if options.human else []
    rows = load_rows(options.verdicts) if options.verdicts else []
    tasks = {name for task in settings.items for name in VERDICT_TASKS[task]}
    rows, ratings = [row for row in rows if row.task in tasks], [rating for rating in ratings if rating.task in tasks]
    _check_recorded(options, rows)
    outputs: dict[str, Any] = {}
    made: dict[str, dict[Task, list[Made]]] = {}
    stopped = None
    if not options.verdicts:
        judges = options.open_judges(list(settings.items))
        for spec in options.systems.values():
            # A slip in the last one is not to be found after the hours of the first.
            fingerprint(spec)
        made = {name: make_outputs(settings, name, console, quiet) for name in options.systems}
        outputs = {name: describe_outputs(tasks) for name, tasks in made.items()}
        rows, stopped = judge_outputs(judges, made, options.out / "verdicts.jsonl", console, quiet)
    reason = str(stopped) if stopped else None
    report = build_report(rows, ratings, load_following(options.items), options.recorded, outputs, reason)
    write_json(options.out / "styleset.json", report)
    write_text(options.out / "styleset.md", markdown(report))
    write_page(options.out / "styleset.html", rows, ratings, made, reason)
    unscored = 0 if options.verdicts else sum(row.unscored is not None for row in rows)
    return StyleSetResult(report, stopped, unscored)


def _check_recorded(options: StyleSetOptions, rows: Sequence[StyleRow]) -> None:
    names = {row.system for row in rows} | set(options.systems)
    if unknown := sorted(set(options.recorded) - names):
        raise ConfigError(f"--recorded {unknown[0]}: no system is called that; there are {', '.join(sorted(names))}")


def _temperatures(text: str | None) -> list[float]:
    if text is None:
        return []
    try:
        values = [float(value) for value in text.split(",")]
    except ValueError as error:
        raise ConfigError(f"--temperatures {text}: expected numbers with commas between, such as 0.5,1.0,1.5") from error
    if not all(0 <= value <= 2 for value in values) or len(set(values)) < len(values):
        raise ConfigError(f"--temperatures {text}: expected different numbers from 0 to 2")
    return values


@dataclass(frozen=True)
class OpenJudge:
    """One judge for one task; `temperature` is None for the judge's own."""

    name: str
    temperature: float | None
    judge: AudioJudge

    @property
    def label(self) -> str:
        """The judge's name in tables."""
        return label_of(self.name, self.temperature)

    def row(self, system: str, made: Made, verdict: Verdict | Unscored, made_from: MadeFrom | None = None) -> StyleRow:
        """Return the row of a verdict on a system's output."""
        return row_of(made.item.id, system, self.judge.task.name, self.name, self.temperature, verdict, made_from)


def open_judges(
    specs: Sequence[str], tasks: Sequence[Task], temperatures: Sequence[float], overrides: dict[str, Any], calls: bool = True
) -> list[OpenJudge]:
    """Return every judge for every task and temperature. Raises ConfigError: a wrong config, or two judges that look alike."""
    names = [name for task in tasks for name in VERDICT_TASKS[task]]
    opened: list[tuple[str, float | None, list[AudioJudge]]] = []
    own: list[float | None] = [None]
    for spec in specs:
        for temperature in temperatures or own:
            changed = {} if temperature is None else {"llm.temperature": temperature}
            judges = open_audio_judges(spec, overrides | changed, tasks=names, voice=signal_voice(), calls=calls)
            opened.append((spec, temperature, judges))
    # Two configs of one model are told apart by their names.
    models = {(judges[0].name, spec) for spec, _, judges in opened}
    shared = {name for name, _ in models if sum(name == other for other, _ in models) > 1}
    made = [
        OpenJudge(f"{judge.name} ({Path(spec).stem})" if judge.name in shared else judge.name, temperature, judge)
        for spec, temperature, judges in opened
        for judge in judges
    ]
    labels = [(entry.name, entry.temperature, entry.judge.task.name) for entry in made]
    if len(set(labels)) < len(labels):
        raise ConfigError("--judge: two of one model and one file name, or a temperature twice; they could not be told apart")
    return made


def judge_outputs(
    judges: Sequence[OpenJudge], systems: Mapping[str, Mapping[Task, Sequence[Made]]], path: Path, console: Console, quiet: bool
) -> tuple[list[StyleRow], BudgetError | None]:
    """Return a row for every output, judge and task, and the error if a budget ended before they did.

    The file keeps its verdicts of other judges or on other outputs, and those that this run does not reach or cannot give
    again. After the end of a budget no judge is called: outputs that were not reached have a row that says so.

    Raises:
        StorageError: the file holds verdicts of one of these judges with other settings.
    """
    existing = {row.key: row for row in load_rows([path])} if path.is_file() else {}
    own = [(opened.label, opened.judge.task.name, opened.judge.version) for opened in judges]
    labels = {key[:2] for key in own}
    recorded = [(row.label, row.task, row.version) for row in existing.values() if row.unscored is None]
    require_new(path, ("/".join(key) for key in recorded if key[:2] in labels), map("/".join, own))
    file = VerdictFile(path, dict(existing), lambda row: row.key, _has_verdict, lambda row: row.model_dump(mode="json"))
    rows: list[StyleRow] = []
    stopped: BudgetError | None = None
    for opened in judges:
        for name, outputs in systems.items():
            made = [
                output for kind, ones in outputs.items() if opened.judge.task.name in VERDICT_TASKS[kind] for output in ones
            ]
            with progress_bar(console, f"{name}: {opened.judge.task.name}, {opened.label}", len(made), quiet) as bar:
                if stopped is None:
                    judge_chunk = functools.partial(_judge_chunk, opened, name, path.parent)
                    stopped = file.judge([output for output in made if output.path], CHUNK_OUTPUTS, judge_chunk, bar.at)
            missing = [_without_verdict(opened, name, output) for output in made]
            rows += [file.rows.get(row.key, row) if output.path else row for output, row in zip(made, missing, strict=True)]
    # In the order of the recorded verdicts, then of the outputs.
    save_rows(path, (existing | {row.key: row for row in rows}).values())
    return rows, stopped


def _has_verdict(row: StyleRow) -> bool:
    return row.unscored is None


def _judge_chunk(
    opened: OpenJudge, system: str, folder: Path, chunk: Sequence[Made], at: Progress
) -> list[StyleRow | BudgetError]:
    """Return a row for each output, with its clip's path from `folder`."""
    paths = [made.path for made in chunk if made.path]
    exchanges = [_exchange(made.item, path) for made, path in zip(chunk, paths, strict=True)]
    verdicts = opened.judge.score_batch(exchanges)
    prompts = [sent(request) for request in opened.judge.requests(exchanges)]
    return [
        verdict
        if isinstance(verdict, BudgetError)
        else opened.row(system, made, verdict, MadeFrom(clips=clip_names({"answer": path}, folder), prompts=texts))
        for made, path, verdict, texts in zip(chunk, paths, verdicts, prompts, strict=True)
    ]


def _without_verdict(opened: OpenJudge, system: str, made: Made) -> StyleRow:
    """Return the row of an output that has no clip, or that the budget did not reach."""
    reason = NOT_REACHED if made.path else made.output.unscored or "nothing to judge"
    return opened.row(system, made, Unscored(opened.name, reason))


def _exchange(item: Item, path: Path) -> Exchange:
    return Exchange(Utterance(), judged_clip(item, path), task_inputs=item.judge_inputs())


def estimate_styleset(options: StyleSetOptions) -> dict[str, Any]:
    """Count what is still to be made and the most that replies and judging can cost, without a call.

    A missing clip counts at its longest. `replies` are calls of endpoints; a checkpoint makes its own without any.

    Raises:
        ConfigError: options that contradict each other.
    """
    options.check(estimate=True)
    _check_recorded(options, [])
    settings = options.settings()
    judges = options.open_judges(list(settings.items), calls=False)
    longest = {
        task: Clip(np.zeros(round(RATE_HZ * length_s), dtype=np.float32), RATE_HZ)
        for task, length_s in (("role_play", LONGEST_S), ("following", settings.longest_answer_s))
    }
    systems: dict[str, Any] = {}
    replies = Replies()
    clips: dict[Task, list[Exchange]] = {task: [] for task in settings.items}
    for name, spec in settings.systems.items():
        key = output_key(settings, name)
        systems[name] = {}
        for task, items in settings.items.items():
            made: Sequence[Made | None]
            if is_finished(spec):
                made = finished_clips(Path(spec), name, items)
            else:
                made = [load_made(settings, name, item, key) for item in items]
                new_items = [item for item, output in zip(items, made, strict=True) if output is None]
                replies += replies_at_most(spec, new_items, settings.turns)
            existing = [output for output in made if output is not None]
            new = len(items) - len(existing)
            systems[name][task] = {
                "items": len(items),
                "kept": len(existing),
                "replies_at_most": new * (settings.turns if task == "role_play" else 2),
            }
            for item, output in zip(items, made, strict=True):
                if output is None:
                    clips[task].append(Exchange(Utterance(), longest[task], task_inputs=item.judge_inputs()))
                elif output.path:
                    clips[task].append(_exchange(item, output.path))
    priced: list[dict[str, Any]] = []
    total = Bill()
    for opened in judges:
        judge, verdict_task = opened.judge, opened.judge.task.name
        exchanges = [exchange for task, of_task in clips.items() if verdict_task in VERDICT_TASKS[task] for exchange in of_task]
        bill = judge.client.estimate(judge.requests(exchanges))
        total += bill
        priced.append({"judge": opened.label, "task": verdict_task, **asdict(bill)})
    usd = None if None in (replies.at_most_usd, total.at_most_usd) else (replies.at_most_usd or 0) + (total.at_most_usd or 0)
    return {
        "systems": systems,
        "replies": asdict(replies),
        "judges": priced,
        "judging": asdict(total),
        "calls": replies.calls + total.calls,
        "at_most_usd": usd,
    }


# The calls that endpoints' replies take, and the most that they can cost, without a call.


@dataclass(frozen=True)
class Replies:
    """Spoken replies of endpoints; `at_most_usd` is None if a price is unknown."""

    calls: int = 0
    at_most_usd: float | None = 0.0

    def __add__(self, other: Replies) -> Replies:
        """Return the sum."""
        known = None not in (self.at_most_usd, other.at_most_usd)
        return Replies(self.calls + other.calls, (self.at_most_usd or 0) + (other.at_most_usd or 0) if known else None)


def replies_at_most(spec: str, items: Sequence[FollowingItem | RoleContext], turns: int) -> Replies:
    """Return a system's replies to items without an output, those paid for before a stop too; none of a checkpoint."""
    if not Path(spec).is_file() or not items:
        return Replies()
    config = load_audio_chat(Path(spec))
    price = load_prices(config.prices).models.get(config.model)
    per_s = price.audio_out_tokens_per_s if price else None
    longest_s = MAX_TOKENS / per_s if per_s else LONG_ANSWER_S
    inputs_s = [input_s for item in items for input_s in _inputs_s(item, turns, min(longest_s, MAX_CLIP_S))]
    each = [None if price is None else chat_usd(price, input_s, longest_s) for input_s in inputs_s]
    known = [usd for usd in each if usd is not None]
    return Replies(len(each), sum(known) if len(known) == len(each) else None)


def _inputs_s(item: FollowingItem | RoleContext, turns: int, longest_s: float) -> list[float]:
    """Return the seconds of sound in each turn's request: an instance's prompt, and all turns of the other so far."""
    if isinstance(item, RoleContext):
        prompts_s = [_spoken_s(text) for text in item.prompts()]
        return [prompts_s[number % 2] + number // 2 * longest_s for number in range(turns)]
    first_s, second_s = map(_spoken_s, item.requests())
    return [first_s, first_s + second_s]


def _spoken_s(text: str) -> float:
    return len(text) / SLOW_CHARACTERS_PER_S
