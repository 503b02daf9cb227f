"""`paras2s bench systems`: an audio judge compares systems' spoken answers with a reference system's; and `paras2s rank`."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from rich.console import Console

from paras2s.audio.clip import read_clip
from paras2s.bench.ranking.answers import AnswerSource, SystemAnswer
from paras2s.bench.ranking.data import COLUMNS, Problem, Recorded, load_people, load_recorded
from paras2s.bench.ranking.metrics import AspectRanking, Ranking, rank_systems
from paras2s.bench.ranking.report import markdown, ranking_json, scatter_svg
from paras2s.bench.results import require_new
from paras2s.bench.systems import SUFFIXES
from paras2s.bench.verdict_file import VerdictFile, judge_readable
from paras2s.clients.chat import Bill
from paras2s.errors import AudioError, BudgetError, ConfigError, DataError, StorageError
from paras2s.reward.judges.audio_judge.ensemble_rules import DEFAULT_ENSEMBLE, ENSEMBLE, EnsembleRule, find_ensemble
from paras2s.reward.judges.audio_judge.judge import AudioJudge, at_rate
from paras2s.reward.judges.base import MAX_CLIP_S, Pair, Progress, Utterance
from paras2s.types import Preference, Unscored, to_json
from paras2s.utils.io import read_csv, read_jsonl, read_yaml, without_mac_files, write_json, write_text
from paras2s.utils.progress import progress_bar
from paras2s.utils.tables import spreadsheet_cell

# Comparisons whose recordings are encoded, and in memory, at once.
CHUNK_PAIRS = 32
UNSCORED = "unscored"


@dataclass(frozen=True)
class RankingOptions:
    """Spoken instructions, systems by spec, and the reference; `retry_unscored`: only comparisons without a verdict."""

    instructions: Path
    systems: dict[str, str]
    reference: str
    out: Path
    curation: Path | None
    cache_dir: Path
    limit: int | None
    retry_unscored: bool = False

    def source(self, name: str) -> AnswerSource:
        """Return the source of a system's answers; answers made here are beside the verdicts."""
        folder = self.out.with_name(f"{self.out.stem}-answers") / name
        return AnswerSource(name, self.systems[name], folder, self.curation, self.cache_dir)

    def instruction_paths(self) -> list[Path]:
        """Return the instructions' files, up to the limit. Raises ConfigError: no instructions or systems, or a name twice."""
        if self.reference not in self.systems:
            raise ConfigError(f"--reference {self.reference}: is not among the systems: {', '.join(self.systems)}")
        if len(self.systems) < 2:
            raise ConfigError(f"--system: give at least one system that meets {self.reference}")
        clips = (path for path in self.instructions.glob("*") if path.suffix.lower() in SUFFIXES)
        paths = without_mac_files(clips)[: self.limit]
        if not paths:
            raise ConfigError(f"--instructions {self.instructions}: holds no clip; give a folder of ID.wav")
        if len({path.stem for path in paths}) < len(paths):
            raise ConfigError(f"--instructions {self.instructions}: two clips have one name")
        return paths


@dataclass(frozen=True)
class AnsweredPair:
    """One system against the reference on one instruction: both answers and their `files`, or why one is missing."""

    instruction_id: str
    system: str
    pair: Pair | None
    missing: str = ""
    files: tuple[Path | None, Path | None] = (None, None)


@dataclass(frozen=True)
class Done:
    """Number of comparisons judged, and of those without a verdict."""

    judged: int
    unscored: int


def comparisons(options: RankingOptions, console: Console, quiet: bool) -> list[AnsweredPair]:
    """Compare every system with the reference on every instruction; systems answer first. Raises ConfigError. BudgetError."""
    spoken = _instructions(options)
    readable = _readable(spoken)
    answers = {name: options.source(name).answer(readable, console, quiet) for name in options.systems}
    return _compared(options, spoken, answers)


def _instructions(options: RankingOptions) -> dict[Path, Utterance | str]:
    return {path: _instruction(path) for path in options.instruction_paths()}


def _readable(spoken: Mapping[Path, Utterance | str]) -> dict[str, Path]:
    return {path.stem: path for path, utterance in spoken.items() if isinstance(utterance, Utterance)}


def _compared(
    options: RankingOptions, spoken: Mapping[Path, Utterance | str], answers: Mapping[str, Mapping[str, SystemAnswer]]
) -> list[AnsweredPair]:
    compared = []
    for name in options.systems:
        if name == options.reference:
            continue
        for path, instruction in spoken.items():
            if isinstance(instruction, str):
                compared.append(AnsweredPair(path.stem, name, None, instruction))
                continue
            own, reference = answers[name][path.stem], answers[options.reference][path.stem]
            compared.append(_comparison(path.stem, name, instruction, own, reference))
    return compared


def _instruction(path: Path) -> Utterance | str:
    try:
        return Utterance(read_clip(path, max_duration_s=MAX_CLIP_S))
    except AudioError as error:
        return str(error)


def _comparison(
    instruction_id: str, system: str, instruction: Utterance, own: SystemAnswer, reference: SystemAnswer
) -> AnsweredPair:
    first, second, files = own.response, reference.response, (own.path, reference.path)
    if first.clip is None or second.clip is None or first.missing or second.missing:
        return AnsweredPair(instruction_id, system, None, first.missing or second.missing or "", files)
    words = (first.text, second.text) if first.text and second.text else None
    return AnsweredPair(instruction_id, system, Pair(instruction, first.clip, second.clip, words), files=files)


def estimate_systems(judges: Sequence[AudioJudge], options: RankingOptions) -> tuple[Bill, dict[str, dict[str, Any]]]:
    """Return the most that judging can cost, and what is known of the systems, without a call; unmade answers are longest."""
    spoken = _instructions(options)
    known = {name: options.source(name).at_most(_readable(spoken)) for name in options.systems}
    compared = _compared(options, spoken, {name: answers for name, (answers, _) in known.items()})
    bill = Bill()
    for start in range(0, len(compared), CHUNK_PAIRS):
        pairs = [comparison.pair for comparison in compared[start : start + CHUNK_PAIRS] if comparison.pair is not None]
        for judge in judges:
            bill += judge.client.estimate(judge.requests(pairs))
    return bill, {name: says for name, (_, says) in known.items()}


Key = tuple[str, str, str]


def judge_systems(
    judges: Sequence[AudioJudge], options: RankingOptions, compared: Sequence[AnsweredPair], console: Console, quiet: bool
) -> tuple[Done, BudgetError | None]:
    """Judge all comparisons in both orders; verdicts go to `options.out` (CSV) and, with reasons, beside it (JSONL).

    Also returns the error if the budget ended first. The JSONL is written as verdicts come, the CSV at the end. Verdicts that
    they hold already stay there: those on other comparisons, and those that this run does not reach or cannot give again.

    Raises:
        StorageError: the file holds verdicts of another judge, or against another reference.
    """
    file = VerdictFile(options.out.with_suffix(".jsonl"), _load(options.out), _key_of, _has_verdict, dict)
    _require_new(options, file.rows.values(), judges)
    rate_hz = judges[0].config.audio.sample_rate_hz

    def judge_chunk(chunk: Sequence[AnsweredPair], at: Progress) -> list[dict[str, Any] | BudgetError]:
        outcomes: list[dict[str, Any] | BudgetError] = []
        for judge in judges:
            todo = [item for item in chunk if not (options.retry_unscored and file.is_judged(_key(judge, item)))]
            pairs: list[Any] = [
                at_rate(item.pair, rate_hz) if item.pair else Unscored(judge.name, item.missing) for item in todo
            ]
            outcomes += [
                verdict if isinstance(verdict, BudgetError) else _row(judge.task.name, comparison, options.reference, verdict)
                for comparison, verdict in zip(todo, judge_readable(pairs, judge.compare_batch), strict=True)
            ]
        return outcomes

    total = len(compared) * len(judges)
    with progress_bar(console, "verdicts", total, quiet) as bar:
        stopped = file.judge(compared, CHUNK_PAIRS, judge_chunk, lambda now, _: bar.at(now * len(judges), total))
    # First, as it is what a later run goes on from.
    file.rewrite()
    _write_csv(options.out, file.rows.values())
    reached = [key for judge in judges for comparison in compared if (key := _key(judge, comparison)) in file.rows]
    return Done(len(reached), sum(not file.is_judged(key) for key in reached)), stopped


def _key(judge: AudioJudge, comparison: AnsweredPair) -> Key:
    return judge.task.name, comparison.instruction_id, comparison.system


def _key_of(row: Mapping[str, Any]) -> Key:
    return row["aspect"], row["instruction_id"], row["system"]


def _has_verdict(row: Mapping[str, Any]) -> bool:
    return bool(row["system_first"] != UNSCORED)


def _row(aspect: str, comparison: AnsweredPair, reference: str, verdict: Preference | Unscored) -> dict[str, Any]:
    labels = verdict.order_labels if isinstance(verdict, Preference) else (UNSCORED, UNSCORED)
    row = dict(zip(COLUMNS, (aspect, comparison.instruction_id, comparison.system, reference, *labels), strict=True))
    answers = [None if file is None else str(file) for file in comparison.files]
    return {**row, "system_answer": answers[0], "reference_answer": answers[1], "verdict": to_json(verdict)}


def _write_csv(out: Path, rows: Iterable[dict[str, Any]]) -> None:
    buffer = io.StringIO()
    writer = csv.DictWriter(buffer, COLUMNS, extrasaction="ignore", lineterminator="\n")
    writer.writeheader()
    writer.writerows({name: spreadsheet_cell(cell) for name, cell in row.items()} for row in rows)
    write_text(out, buffer.getvalue())


def _load(out: Path) -> dict[Key, dict[str, Any]]:
    """Return the rows of an earlier run by aspect, instruction and system."""
    path = out.with_suffix(".jsonl")
    rows = list(read_jsonl(path)) if path.is_file() else []
    for number, row in enumerate(rows, 1):
        if not isinstance(row, dict) or not isinstance(row.get("verdict"), dict) or not all(name in row for name in COLUMNS):
            raise DataError(f"{path}:{number}: is no row of verdicts; give another --out")
    return {_key_of(row): row for row in rows}


def _require_new(options: RankingOptions, rows: Iterable[dict[str, Any]], judges: Sequence[AudioJudge]) -> None:
    rows = list(rows)
    if others := sorted({row["reference"] for row in rows} - {options.reference}):
        raise StorageError(f"{options.out} holds verdicts against {', '.join(others)}; give another --out, or delete it")
    verdicts = [row["verdict"] for row in rows]
    existing = [f"{row['judge']}/{row['version']}/{row['prompt_hash']}" for row in verdicts if row.get("type") == "Preference"]
    require_new(options.out, existing, [f"{judge.name}/{judge.version}/{judge.prompt.hash}" for judge in judges])


@dataclass(frozen=True)
class RankOptions:
    """The options of `rank`: recorded verdicts, people's scores, names, aspects, their combination, a CSV of `categories`."""

    verdicts: Path
    human: Path | None = None
    names: Path | None = None
    aliases: Sequence[str] = ()
    rule: str | None = None
    rules: Path | None = None
    aspects: Sequence[str] = ()
    out: Path | None = None
    categories: Path | None = None


def run_rank(options: RankOptions) -> tuple[Ranking, dict[str, Any]]:
    """Rank systems by recorded verdicts; return and write the ranking and its report. Raises ConfigError. DataError."""
    if options.human is None and (options.names or options.aliases):
        raise ConfigError("--names and --alias rename people's systems: give --human as well")
    if options.rules and not options.rule:
        raise ConfigError(f"--rules {options.rules}: say which of its rules makes the ensemble: give --rule as well")
    if options.rule and options.aspects and ENSEMBLE not in options.aspects:
        raise ConfigError(f"--rule {options.rule}: makes the ensemble, which is not ranked: add --aspect {ENSEMBLE}")
    rule_name = options.rule or DEFAULT_ENSEMBLE
    ensemble = find_ensemble(rule_name, options.rules)
    people = load_people(options.human, read_names(options.names, options.aliases)) if options.human else None
    recorded = load_recorded(options.verdicts)
    # A rule asks for an ensemble; without one, an ensemble for which aspects are missing is a problem among others.
    aspects = options.aspects or ([*recorded.aspects, ENSEMBLE] if options.rule else [])
    ranking = rank_systems(recorded, ensemble, aspects, people)
    if options.categories:
        by_category, problems = rank_categories(ranking, recorded, ensemble, load_categories(options.categories))
        ranking = replace(ranking, categories=by_category, problems=(*ranking.problems, *problems))
    about = {
        "verdicts": str(options.verdicts),
        "judge": judge_of(options.verdicts),
        "human": str(options.human) if options.human else None,
        "rule": f"{rule_name}: {ensemble.says}" if ENSEMBLE in ranking.aspects else None,
    }
    report = ranking_json(ranking, about)
    if options.out is not None:
        write_json(options.out / "ranking.json", report)
        write_text(options.out / "ranking.md", markdown(ranking, about))
        if ranking.people is not None:
            source = f"judge: {about['judge']}" if about["judge"] else f"verdicts: {options.verdicts.name}"
            write_text(options.out / "ranking.svg", scatter_svg(ranking, ranking.people, source))
    return ranking, report


def judge_of(verdicts: Path) -> str | None:
    """Return the judges of a file of verdicts, as `bench systems` has written them beside it, or None."""
    path = verdicts.with_suffix(".jsonl")
    if path == verdicts or not path.is_file():
        return None
    verdicts_of = [row.get("verdict") for row in read_jsonl(path) if isinstance(row, dict)]
    judges = [verdict.get("judge") for verdict in verdicts_of if isinstance(verdict, dict)]
    return ", ".join(dict.fromkeys(name for name in judges if isinstance(name, str))) or None


def read_names(file: Path | None, aliases: Sequence[str]) -> dict[str, str]:
    """Return the verdicts' names of people's systems, by a YAML mapping and OLD=NEW pairs. Raises ConfigError: no such pair."""
    renamed: dict[str, str] = {}
    if file is not None:
        values = read_yaml(file, "cannot be read as --names")
        if not isinstance(values, dict) or not all(isinstance(name, str) and name for pair in values.items() for name in pair):
            raise ConfigError(f"--names {file}: expected lines such as 'Moshi: moshi', people's name and that of the verdicts")
        renamed |= values
    for item in aliases:
        # The new name may hold an equals sign, the old one not.
        old, equals, new = item.partition("=")
        if not equals or not old or not new:
            raise ConfigError(f"--alias {item}: expected OLD=NEW, people's name and that of the verdicts")
        if old in renamed:
            raise ConfigError(f"--alias {item}: {old!r} is renamed already, to {renamed[old]!r}")
        renamed[old] = new
    return renamed


# Win rates by category of instruction (AudioJudge, A.2.2: SpeakBench has four categories, Table 4).

CATEGORY_COLUMNS = ("instruction_id", "category")


def load_categories(path: Path) -> dict[str, str]:
    """Return the category of each instruction, from a CSV with `CATEGORY_COLUMNS`. Raises DataError: names file:line."""
    categories: dict[str, str] = {}
    for number, cells in read_csv(path):
        row = {(name or "").strip(): str(cell or "").strip() for name, cell in cells.items()}
        if missing := [name for name in CATEGORY_COLUMNS if not row.get(name)]:
            raise DataError(f"{path}:{number}: {missing[0]}: no such column or value; expected {', '.join(CATEGORY_COLUMNS)}")
        instruction, category = (row[name] for name in CATEGORY_COLUMNS)
        if categories.setdefault(instruction, category) != category:
            raise DataError(f"{path}:{number}: category: {instruction} is {categories[instruction]!r} above, {category!r} here")
    if not categories:
        raise DataError(f"{path}: holds no row; expected the columns {', '.join(CATEGORY_COLUMNS)}")
    return categories


def rank_categories(
    ranking: Ranking, recorded: Recorded, rule: EnsembleRule, categories: Mapping[str, str]
) -> tuple[dict[str, dict[str, AspectRanking]], list[Problem]]:
    """Return a ranking's aspects by category, without people's scores, and what is left out. Raises DataError: no category."""
    names = sorted({categories[instruction] for instruction in recorded.instructions if instruction in categories})
    if not names:
        first = f"{next(iter(categories))!r} there, {recorded.instructions[0]!r} among the verdicts"
        raise DataError(f"--categories: names none of the instructions of the verdicts ({first})")
    problems = [Problem("no category", f"instruction {key}") for key in recorded.instructions if key not in categories]
    known = set(recorded.instructions)
    problems += [Problem("category without verdicts", f"instruction {key}") for key in categories if key not in known]
    aspects_of = {}
    for name in names:
        own = _on_instructions(
            recorded, [instruction for instruction in recorded.instructions if categories.get(instruction) == name]
        )
        played = {game.aspect for game in own.games}
        aspects = [aspect for aspect in ranking.aspects if aspect in played or aspect not in recorded.aspects]
        aspects_of[name] = rank_systems(own, rule, aspects).aspects if played else {}
    return aspects_of, problems


def _on_instructions(recorded: Recorded, instructions: Sequence[str]) -> Recorded:
    chosen = set(instructions)
    games = tuple(game for game in recorded.games if game.instruction in chosen)
    return replace(recorded, instructions=tuple(instructions), games=games, problems=())
