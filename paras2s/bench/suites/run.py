"""`paras2s bench suite`: any system on any outside suite, with verdicts that resume, are re-read, and are judged again.

The folder of a run holds `suite.json` (its settings), `answers/`, `verdicts.jsonl`, and the tables.
"""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from fnmatch import fnmatch
from pathlib import Path
from typing import Any

from pydantic import TypeAdapter
from rich.console import Console

from paras2s.bench.made_from import MadeFrom, clip_names, sent
from paras2s.bench.ranking.answers import CHUNK_QUESTIONS, AnswerSource, SystemAnswer
from paras2s.bench.results import require_new
from paras2s.bench.suites import SUITE_GROUP, SUITES
from paras2s.bench.suites.answers import SuiteAnswers
from paras2s.bench.suites.base import Item, Question, Suite, SuiteRow, row_values
from paras2s.bench.suites.download import Download, read_any
from paras2s.bench.suites.judging import RULES, Job, Outcome, SuiteJudge, open_suite_judge
from paras2s.bench.suites.report import build_report, markdown
from paras2s.bench.verdict_file import VerdictFile, read_rows
from paras2s.clients.chat import Audio, Bill, Request
from paras2s.errors import BudgetError, ConfigError, DataError, one_line
from paras2s.reward.judges.base import Progress
from paras2s.types import Unscored
from paras2s.utils.io import read_json, write_json, write_text
from paras2s.utils.plugins import find_part
from paras2s.utils.progress import progress_bar

VERDICTS, SETTINGS = "verdicts.jsonl", "suite.json"
OWN_KEYS = ("suite", "metric")
OWN_ROW = TypeAdapter(SuiteRow)


def find_suite(name: str) -> Suite:
    """Return a suite by name, or `module:Class`. Raises ConfigError: no suite has this name, or it is no suite."""
    suite = find_part("suite", SUITE_GROUP, name, SUITES)()
    if not isinstance(suite, Suite):
        raise ConfigError(f"suite {name!r}: is no subclass of paras2s.bench.suites.base.Suite")
    return suite


@dataclass(frozen=True)
class SuiteOptions:
    """The options of `bench suite`: a suite by name, the folder of its download, systems, and who judges.

    `verdicts` are recorded ones, which are read and not made. `subset` is a pattern of subsets, such as "en/*".
    """

    suite: str
    out: Path
    cache_dir: Path
    data: Path | None = None
    systems: Mapping[str, str] = field(default_factory=dict)
    judge: str | None = None
    own_prompts: bool = False
    both_orders: bool = False
    limit: int | None = None
    subset: str | None = None
    curation: Path | None = None
    verdicts: Sequence[Path] = ()
    overrides: Mapping[str, Any] = field(default_factory=dict)

    def kept(self) -> dict[str, Any]:
        """Return what a later judge needs to judge the same answers."""
        return {
            "suite": self.suite, "data": str(self.data), "systems": dict(self.systems), "limit": self.limit,
            "subset": self.subset, "curation": None if self.curation is None else str(self.curation),
        }  # fmt: skip


@dataclass(frozen=True)
class SuiteResult:
    """All rows, the report, the error that stopped the judging, and how many measures of this run have no score."""

    rows: list[SuiteRow]
    report: dict[str, Any]
    stopped: BudgetError | None = None
    unscored: int = 0


def rescored(options: SuiteOptions, run: Path) -> SuiteOptions:
    """Return an earlier run's options under another judge, whose verdicts go to its own file. Raises ConfigError: no run."""
    kept = read_json(run / SETTINGS)
    if not isinstance(kept, dict) or kept.get("suite") != options.suite:
        raise ConfigError(f"--rescore {run}: is no run of {options.suite}")
    return replace(
        options, out=run, data=options.data or Path(kept["data"]), systems=dict(kept["systems"]), limit=kept["limit"],
        subset=kept["subset"], curation=options.curation or (Path(kept["curation"]) if kept["curation"] else None),
    )  # fmt: skip


def read_verdicts(suite: Suite, path: Path, problems: list[str]) -> list[SuiteRow]:
    """Return the rows of a file of verdicts, ours or the makers'; any other row is a problem. Raises DataError: unreadable."""
    rows: dict[tuple[str, ...], SuiteRow] = {}
    for where, values in read_any(path, problems):
        try:
            row = OWN_ROW.validate_python(values) if all(key in values for key in OWN_KEYS) else suite.recorded(values, path)
        except (LookupError, TypeError, ValueError, DataError) as error:
            problems.append(f"{where}: no verdict of {suite.title} ({one_line(error)})")
            continue
        if row is None or row.suite != suite.name:
            problems.append(f"{where}: no verdict of {suite.title}" + (f", but of {row.suite}" if row else ""))
        elif row.key in rows and rows[row.key].unscored is None:
            problems.append(f"{where}: {row.system}, {row.item} is judged twice; the first verdict counts")
        else:
            rows[row.key] = row
    return list(rows.values())


def run_suite(options: SuiteOptions, console: Console, quiet: bool) -> SuiteResult:
    """Let the systems answer, judge what is not judged yet, and write verdicts and tables; or read recorded verdicts.

    Raises:
        ConfigError: options that contradict each other, no such suite, system or judge. DataError: a file is missing.
    """
    suite, problems = find_suite(options.suite), list[str]()
    rows = _named([row for path in options.verdicts for row in read_verdicts(suite, path, problems)])
    stopped, unscored = None, 0
    if options.systems:
        run = _Run.open(options, suite, calls=True)
        stopped, unscored = run.judge(console, quiet)
        rows, problems = [*rows, *run.file.rows.values()], [*problems, *run.data.problems]
    elif not options.verdicts:
        raise ConfigError("--system: give NAME=SYSTEM or --answers FOLDER at least once, or recorded --verdicts")
    report = build_report(suite, rows, problems, None if stopped is None else str(stopped))
    write_json(options.out / "table.json", report)
    write_text(options.out / "table.md", markdown(suite, report))
    return SuiteResult(rows, report, stopped, unscored)


def estimate_suite(options: SuiteOptions, console: Console) -> dict[str, Any]:
    """Return the most that judging costs and the seconds of sound that the judge is sent; nothing is called.

    An answer that is missing counts at its greatest length. `answer_usd` is what the missing answers cost at most.

    Raises:
        ConfigError, DataError: see `run_suite`.
    """
    if not options.systems:
        raise ConfigError("--estimate: give the systems that are to answer, or folders of answers")
    return _Run.open(options, find_suite(options.suite), calls=False).estimate(console)


@dataclass(frozen=True)
class _Run:
    """A run's suite, items, judge and file of verdicts."""

    options: SuiteOptions
    suite: Suite
    data: Download
    items: Sequence[Item]
    judging: SuiteJudge
    file: VerdictFile[tuple[str, ...], SuiteRow]

    @classmethod
    def open(cls, options: SuiteOptions, suite: Suite, calls: bool) -> _Run:
        if options.data is None:
            raise ConfigError(f"--data: give the folder with {suite.title}; the makers have it in {suite.source}")
        if not options.data.is_dir():
            raise ConfigError(f"--data {options.data}: is no folder; the makers have {suite.title} in {suite.source}")
        data = Download(options.data, suite.source, estimates=not calls)
        every = _distinct(suite.items(data), data.problems)
        items = [item for item in every if options.subset is None or fnmatch(item.subset, options.subset)][: options.limit]
        if not items:
            subsets = ", ".join(dict.fromkeys(item.subset for item in every)) or "none"
            raise DataError(
                f"{options.data}: holds no item to judge; subsets: {subsets}" + "".join(f"; {p}" for p in data.problems[:1])
            )
        judge = open_suite_judge(suite, options.judge, options.cache_dir, options.overrides, options.own_prompts, calls)
        if calls and judge.own is None:
            # A missing key is noticed before a system answers for hours.
            for metric in dict.fromkeys(name for item in items for name in suite.metrics(item) if name in suite.by_judge):
                judge.client(metric)
        return cls(options, suite, data, items, judge, _file(options.out / VERDICTS, suite))

    def answers(self, name: str, console: Console) -> SuiteAnswers:
        options = self.options
        source = AnswerSource(name, options.systems[name], options.out / "answers" / name, options.curation, options.cache_dir)
        return SuiteAnswers(self.suite, source, console, self.data.estimates)

    def metrics(self, item: Item) -> list[str]:
        """Return the measures that this judge gives: one with its own questions gives the headline in place of all."""
        names = self.suite.metrics(item)
        if self.judging.own is None:
            return list(names)
        by_judge = [name for name in names if name in self.suite.by_judge]
        return by_judge[:1] + [name for name in names if name in self.suite.measured]

    def judge(self, console: Console, quiet: bool) -> tuple[BudgetError | None, int]:
        """Judge every system's answers; return the error if a budget ended, and how many measures have no score."""
        stopped: BudgetError | None = None
        write_json(self.options.out / SETTINGS, self.options.kept())
        for name in self.options.systems:
            answers = self.answers(name, console)
            answers.require_any(self.items)

            def judge_chunk(chunk: Sequence[Item], at: Progress, answers: SuiteAnswers = answers, name: str = name) -> Any:
                return self.rows_of(name, chunk, answers.of(chunk, self.items.index(chunk[0])), at)

            with progress_bar(console, name, len(self.items), quiet) as bar:
                try:
                    stopped = stopped or self.file.judge(list(self.items), CHUNK_QUESTIONS, judge_chunk, bar.at)
                except BudgetError as error:
                    stopped = error
        self.file.rewrite()
        labels = self.judging.labels
        reached = {(name, item.id) for name in self.options.systems for item in self.items}
        now = [row for row in self.file.rows.values() if row.label in labels and (row.system, row.item) in reached]
        return stopped, sum(row.unscored is not None for row in now)

    def rows_of(
        self, system: str, chunk: Sequence[Item], answers: Mapping[str, Sequence[SystemAnswer]], at: Progress
    ) -> list[SuiteRow | BudgetError]:
        """Return a row for every measure of the chunk that has no verdict on this very answer."""
        jobs, digests = [], {item.id: _digest(answers[item.id]) for item in chunk}
        for item in chunk:
            for metric in self.metrics(item):
                key = (self.judging.label(metric), system, item.id, metric)
                if key in self.file.rows and self.file.rows[key].answer != digests[item.id]:
                    # A verdict on another answer, which nothing may stand for.
                    del self.file.rows[key]
                if not self.file.is_judged(key):
                    jobs.append(Job(item, metric, answers[item.id]))
        outcomes = self._outcomes(jobs, at)
        return [
            scoring if isinstance(scoring, BudgetError) else self._row(system, job, scoring, question, digests[job.item.id])
            for job, (scoring, question) in zip(jobs, outcomes, strict=True)
        ]

    def _outcomes(self, jobs: Sequence[Job], at: Progress) -> list[tuple[Outcome | Unscored, Question | None]]:
        own = [job for job in jobs if self.judging.own is not None and job.metric in self.suite.by_judge]
        by_own = dict(zip(map(id, own), self.judging.score(own, self.data), strict=True)) if own else {}
        scorings = [None if id(job) in by_own else self.judging.scoring(job, self.data) for job in jobs]
        questions = [(job, scoring) for job, scoring in zip(jobs, scorings, strict=True) if isinstance(scoring, Question)]
        replies = iter(self.judging.ask(questions, self.options.both_orders, at))
        outcomes: list[tuple[Outcome | Unscored, Question | None]] = []
        for job, scoring in zip(jobs, scorings, strict=True):
            if isinstance(scoring, Question):
                outcomes.append((next(replies), scoring))
            elif scoring is None or isinstance(scoring, Unscored):
                outcomes.append((by_own[id(job)] if scoring is None else scoring, None))
            else:
                outcomes.append((row_values(scoring), None))
        return outcomes

    def _row(
        self, system: str, job: Job, outcome: dict[str, Any] | Unscored, question: Question | None, digest: str
    ) -> SuiteRow:
        item, judging, rules = job.item, self.judging, job.metric not in self.suite.by_judge
        values = {"unscored": outcome.reason, "reply": outcome.reply} if isinstance(outcome, Unscored) else outcome
        clips = {"question": item.turns[-1].clip}
        names = ["answer 1"] if len(job.answers) == 1 else [f"answer, turn {n + 1}" for n in range(len(job.answers))]
        clips |= dict(zip(names, (answer.path for answer in job.answers), strict=True))
        if isinstance(rival := item.values.get("baseline"), Path):
            clips["answer 2"] = rival
        prompts = None if question is None else sent([Request(question.messages)])
        made = MadeFrom(clips=clip_names(clips, self.file.path.parent), words=item.turns[-1].words, prompts=prompts)
        return SuiteRow(
            suite=self.suite.name, system=system, item=item.id, subset=item.subset, metric=job.metric,
            judge=RULES if rules else judging.name(job.metric), version="" if rules else judging.version(job.metric),
            cluster=item.cluster, size=len(self.suite.part_names(item)), baseline=self.suite.baseline(item, job.metric),
            answer=digest, made_from=made.to_json(), **values,
        )  # fmt: skip

    def estimate(self, console: Console) -> dict[str, Any]:
        """Return the bill of all that is not judged yet."""
        bill, sound_s, unscored, jobs = Bill(), 0.0, Counter[str](), 0
        known: dict[str, Any] = {}
        for name in self.options.systems:
            answers = self.answers(name, console)
            for start in range(0, len(self.items), CHUNK_QUESTIONS):
                chunk = self.items[start : start + CHUNK_QUESTIONS]
                given = answers.of(chunk, start)
                todo = [Job(item, metric, given[item.id]) for item in chunk for metric in self.metrics(item)]
                labels = {job.metric: self.judging.label(job.metric) for job in todo}
                todo = [job for job in todo if not self.file.is_judged((labels[job.metric], name, job.item.id, job.metric))]
                made = [(job, self.judging.scoring(job, self.data)) for job in todo if job.metric in self.judging.configs]
                questions = [(job, scoring) for job, scoring in made if isinstance(scoring, Question)]
                bill += self.judging.estimate(questions, self.options.both_orders)
                bill += self.judging.estimate_own([job for job in todo if job.metric in self.suite.by_judge], self.data)
                sounds = [part for _, scoring in questions for message in scoring.messages for part in message.parts]
                sound_s += sum(part.duration_s for part in sounds if isinstance(part, Audio))
                unscored.update(scoring.reason for _, scoring in made if isinstance(scoring, Unscored))
                jobs += len(todo)
            if not answers.source.finished:
                clips = {item.turn_name(n): turn.clip for item in self.items for n, turn in enumerate(item.turns) if turn.clip}
                known[name] = answers.source.at_most(clips)[1]
        tokens = bill.tokens
        return {
            "judge": ", ".join(sorted(self.judging.labels - {RULES})) or RULES, "items": len(self.items), "measures": jobs,
            "calls": bill.calls,
            "text_in_tokens": tokens.text_in, "audio_in_tokens": tokens.audio_in, "text_out_tokens_at_most": tokens.text_out,
            "sound_s": round(sound_s, 1), "at_most_usd": bill.at_most_usd, "systems": known,
            "cannot_be_judged": dict(unscored.most_common(20)), "problems": self.data.problems,
        }  # fmt: skip


def _named(rows: Sequence[SuiteRow]) -> list[SuiteRow]:
    """Return rows in which a verdict that names no system, as people's scores do, has the system of its item's others."""
    systems = {row.item: row.system for row in rows if row.system}
    return [row if row.system else replace(row, system=systems.get(row.item, "")) for row in rows]


def _distinct(items: Iterable[Item], problems: list[str]) -> list[Item]:
    """Return items without those whose id occurred before or cannot name a file, each a problem."""
    kept: dict[str, Item] = {}
    for item in items:
        if item.id in kept:
            problems.append(f"{item.id}: this id occurs twice; the first counts")
        elif ".." in item.id.split("/") or item.id.startswith("/"):
            problems.append(f"{item.id!r}: this id cannot name a file")
        else:
            kept[item.id] = item
    return list(kept.values())


def _file(path: Path, suite: Suite) -> VerdictFile[tuple[str, ...], SuiteRow]:
    """Return the file of verdicts; a line that a kill cut off is skipped, and the later of two rows of one answer counts."""
    rows = {row.key: row for _, row in read_rows(path, SuiteRow, "; give another --out")} if path.is_file() else {}
    require_new(path, {row.suite for row in rows.values()}, [suite.name])
    return VerdictFile(path, rows, lambda row: row.key, lambda row: row.unscored is None, as_json)


def as_json(row: SuiteRow) -> dict[str, Any]:
    """Return a row without the keys that have their default."""
    defaults = {name: column.default for name, column in SuiteRow.__dataclass_fields__.items()}
    return {name: value for name, value in vars(row).items() if value != defaults[name] and value not in ({}, "")}


def _digest(answers: Sequence[SystemAnswer]) -> str:
    """Return the digest of what is judged; of a missing answer, that of its reason."""
    said = [(a.response.clip.digest if a.response.clip else "", a.response.text, a.response.missing or "") for a in answers]
    return hashlib.sha256(repr(said).encode()).hexdigest()[:16]
