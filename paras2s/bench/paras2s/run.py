"""The runner that all of ParaS2S's benchmarks share, and `paras2s bench paras2s`, which benches any system with it."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from rich.console import Console

from paras2s.audio.clip import write_clip
from paras2s.bench.human_correlation import HumanAgreement, human_agreement, load_ratings
from paras2s.bench.human_correlation import markdown_tables as human_tables
from paras2s.bench.paras2s.judges import AnswerJudge, JudgedAnswer
from paras2s.bench.paras2s.metrics import automatic_scores, markdown, table_2
from paras2s.bench.paras2s.second_judge import take_evenly
from paras2s.bench.results import AnswerRow, load_rows, save_rows
from paras2s.bench.systems import Response, System, answered_folder, open_system, question_of_query
from paras2s.bench.voicebench.metrics import load_voicebench_rows, voicebench_summary
from paras2s.clients.chat import Bill
from paras2s.data_gen.dataset import Manifest, data_folder, load_manifest
from paras2s.errors import ConfigError
from paras2s.types import Query
from paras2s.utils.cache import key_of
from paras2s.utils.io import read_json, write_json, write_text
from paras2s.utils.progress import progress_bar

# Missing answers that are printed.
LISTED = 10


@dataclass(frozen=True)
class Runner:
    """Asks systems, judges their answers, builds rows and saves them.

    `data` is the folder of the queries' clips. Rows are written to `rows`/NAME.jsonl and name clips relative to `root`; answers
    are written to `root`/`samples`/NAME, so that people can listen.
    """

    queries: Sequence[Query]
    data: Path
    answers: int
    judge: AnswerJudge
    root: Path
    rows: Path
    samples: Path
    console: Console
    quiet: bool

    def bench(self, name: str, system: System) -> list[AnswerRow]:
        """Return rows of one system, one for each answer, saved."""
        questions = [question_of_query(query, self.data) for query in self.queries]
        with progress_bar(self.console, f"{name} answers", len(questions), self.quiet) as bar:
            responses = system.answer(questions, self.answers, bar.at)
        places = [(query, n) for query in self.queries for n in range(self.answers)]
        answers = [(question, response) for question, row in zip(questions, responses, strict=True) for response in row]
        missing = [
            f"{name}, {query.id}: {response.missing}"
            for (query, _), (_, response) in zip(places, answers, strict=True)
            if response.missing and response.clip is None
        ]
        for line in missing[:LISTED]:
            self.console.print(line)
        if len(missing) > LISTED:
            self.console.print(f"{name}: {len(missing) - LISTED} more answers are missing; all are in {self.rows_path(name)}")
        for (query, n), (_, response) in zip(places, answers, strict=True):
            if response.clip is not None:
                write_clip(self.root / self._sample(name, query, n), response.clip)
        with progress_bar(self.console, f"judging {name}", len(answers), self.quiet) as bar:
            judged = self.judge.judge_all(answers, bar.at)
        rows = [
            self._row(name, query, n, response, answer)
            for (query, n), (_, response), answer in zip(places, answers, judged, strict=True)
        ]
        save_rows(self.rows_path(name), rows)
        return rows

    def rows_path(self, name: str) -> Path:
        """Return the file of a system's rows."""
        return self.rows / f"{name}.jsonl"

    def _sample(self, name: str, query: Query, n: int) -> Path:
        return self.samples / name / f"{query.id}-{n}.wav"

    def _row(self, name: str, query: Query, n: int, response: Response, judged: JudgedAnswer) -> AnswerRow:
        return AnswerRow(
            system=name,
            query_id=query.id,
            contrast_id=query.contrast_id,
            category=query.category or "",
            style=query.style or "",
            question_text=query.text or "",
            question_clip=os.path.relpath(self.data / query.clip, self.root),
            answer_index=n,
            text_stream=response.text,
            answer_clip=str(self._sample(name, query, n)),
            duration_s=response.clip.duration_s if response.clip else 0.0,
            **judged.row_fields(response.text, self.judge.name),
        )


@dataclass(frozen=True)
class BenchOptions:
    """The options of `bench paras2s`: a dataset and one role of it, systems by name and spec, and where rows go.

    `human` is a file of people's ratings, `limit` the most queries to take; `voicebench` gives files of VoiceBench rows by
    system, shown beside.
    """

    data: Path
    role: str
    systems: dict[str, str]
    answers: int
    out: Path
    curation: Path | None
    cache_dir: Path
    human: Path | None = None
    limit: int | None = None
    voicebench: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class BenchReport:
    """The table of all systems (ParaS2S, Table 2), their agreement with people, and the unscored answers of this bench."""

    table: dict[str, Any]
    agreement: HumanAgreement | None
    unscored: int = 0

    def to_json(self) -> dict[str, Any]:
        """Return the report as plain JSON."""
        if self.agreement is None:
            return {"systems": self.table}
        return {"systems": self.table, "human": {name: asdict(group) for name, group in self.agreement.groups.items()}}

    def sentence(self, name: str) -> str:
        """Return what came out for a system: its mean score, and of how many answers."""
        average = self.table[name]["average"]
        if not average["n_scored"]:
            return f"{name}: no answer of {average['n_asked']} has a score."
        count = f"{average['n_scored']} answers"
        if average["n_scored"] != average["n_asked"]:
            count += f", of {average['n_asked']} that were due"
        if average["mean"] is None:
            empty = [category for category, score in self.table[name]["sets"].items() if not score["n_scored"]]
            return f"{name} has no average: {count}, have a score, and none of {' and '.join(empty)}."
        return f"{name} scores {average['mean']:.2f} of 5 over {count}."

    def to_markdown(self) -> list[str]:
        """Return the tables for a page or a terminal."""
        return [markdown(self.table), *([human_tables(self.agreement)] if self.agreement else [])]


def run_paras2s(options: BenchOptions, judge: AnswerJudge, console: Console, quiet: bool) -> BenchReport:
    """Bench all systems and write rows, samples, table2.json, table2.md and, with ratings, human.md.

    Raises:
        ConfigError: a system that cannot be opened, or a folder with other questions' rows. BudgetError: the budget ended.
    """
    ratings = load_ratings(options.human) if options.human else None
    voicebench = {name: voicebench_summary(load_voicebench_rows(Path(path))) for name, path in options.voicebench.items()}
    if unknown := sorted(set(voicebench) - set(options.systems)):
        raise ConfigError(f"--voicebench {unknown[0]}: no --system is called that")
    systems = bench_systems(options, judge, console, quiet)
    table = table_2(systems)
    for name, summary in voicebench.items():
        table[name]["voicebench"] = summary.overall.to_json()
    unscored = sum(row.score is None for name in options.systems for row in systems[name])
    report = BenchReport(table, human_agreement(ratings, automatic_scores(systems)) if ratings else None, unscored)
    write_json(options.out / "table2.json", table)
    for name, text in zip(("table2.md", "human.md"), report.to_markdown(), strict=False):
        write_text(options.out / name, text)
    return report


def bench_systems(options: BenchOptions, judge: AnswerJudge, console: Console, quiet: bool) -> dict[str, list[AnswerRow]]:
    """Return the rows of all systems, written as each is done; systems benched into this folder earlier come first."""
    manifest = load_manifest(data_folder(options.data))
    queries = take_evenly([query for query in manifest.queries if query.role == options.role], options.limit)
    claim_table(options, manifest, queries, judge)
    earlier = {path.stem: load_rows(path) for path in sorted(options.out.glob("*.jsonl"))}
    samples = Path("samples")
    runner = Runner(queries, manifest.folder, options.answers, judge, options.out, options.out, samples, console, quiet)
    rows = {
        name: runner.bench(name, open_system(spec, options.curation, options.cache_dir))
        for name, spec in options.systems.items()
    }
    return {**{name: system_rows for name, system_rows in earlier.items() if name not in rows}, **rows}


def estimate_paras2s(options: BenchOptions, judge: AnswerJudge) -> Bill:
    """Return the most that judging folders of answers costs. Raises ConfigError: another system, which is still to answer."""
    manifest = load_manifest(data_folder(options.data))
    queries = take_evenly([query for query in manifest.queries if query.role == options.role], options.limit)
    questions, bill = [question_of_query(query, manifest.folder) for query in queries], Bill()
    for spec in options.systems.values():
        rows = answered_folder(spec).answer(questions, options.answers, lambda done, total: None)
        bill += judge.estimate([(question, answer) for question, row in zip(questions, rows, strict=True) for answer in row])
    return bill


def claim_table(options: BenchOptions, manifest: Manifest, queries: Sequence[Query], judge: AnswerJudge) -> None:
    """Refuse a folder whose rows are of other questions or of another judge. Raises ConfigError: names what differs."""
    if not queries:
        raise ConfigError(f"{manifest.folder}: no queries of role {options.role}")
    names = key_of([options.role, [query.id for query in queries]])
    own: Mapping[str, Any] = {"questions": names, "answers": options.answers, "judge": judge.name}
    path = options.out / "asked.json"
    # A command that failed before its first row leaves the file alone.
    existing = read_json(path) if path.is_file() and any(options.out.glob("*.jsonl")) else own
    if different := [name for name in own if existing.get(name) != own[name]]:
        value = "" if different[0] == "questions" else f" ({existing.get(different[0])})"
        raise ConfigError(f"{options.out}: holds rows with other {different[0]}{value}; give another --out, or delete it")
    write_json(path, own)
