"""`paras2s bench systems`: an audio judge compares systems' spoken answers with a reference system's; and `paras2s rank`."""

from __future__ import annotations

import csv
import io
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml
from rich.console import Console

from paras2s.audio.asr import transcribe
from paras2s.audio.clip import read_clip
from paras2s.bench.judges import MAX_CLIP_S
from paras2s.bench.ranking.data import COLUMNS, load_people, load_recorded
from paras2s.bench.ranking.metrics import Ranking, rank_systems
from paras2s.bench.ranking.report import markdown, ranking_json, scatter_svg
from paras2s.bench.results import require_new
from paras2s.bench.systems import SUFFIXES, FolderSystem, Response, SpokenQuestion, open_system
from paras2s.clients.chat import Bill
from paras2s.errors import AudioError, BudgetError, ConfigError, one_line
from paras2s.reward.judges.audio_judge.judge import AudioJudge, at_rate
from paras2s.reward.judges.llm_judge import Pair, Utterance
from paras2s.reward.judges.votes import DEFAULT_ENSEMBLE, ENSEMBLE, find_ensemble
from paras2s.types import Preference, Unscored, to_json
from paras2s.utils.io import read_jsonl, write_json, write_jsonl, write_text
from paras2s.utils.progress import progress_bar

# Comparisons whose recordings are encoded, and in memory, at once.
CHUNK_PAIRS = 32
UNSCORED = "unscored"


@dataclass(frozen=True)
class RankingOptions:
    """Spoken instructions by file name, systems by spec, and the reference system that every other one is compared with.

    `may_answer` False: no system answers now; only folders of finished answers are allowed.
    """

    instructions: Path
    systems: dict[str, str]
    reference: str
    out: Path
    curation: Path | None
    cache_dir: Path
    limit: int | None
    may_answer: bool = True


@dataclass(frozen=True)
class Comparison:
    """One system against the reference on one instruction: the instruction and both answers, or why one is missing."""

    instruction_id: str
    system: str
    pair: Pair | None
    missing: str = ""


@dataclass(frozen=True)
class Done:
    """Number of comparisons judged, and of those without a verdict."""

    judged: int
    unscored: int


def comparisons(options: RankingOptions, console: Console, quiet: bool) -> list[Comparison]:
    """Compares every system with the reference on every instruction; systems answer first.

    Raises:
        ConfigError: no instructions, no system beside the reference, or a reference that is not among the systems.
    """
    if options.reference not in options.systems:
        raise ConfigError(f"--reference {options.reference}: is not among the systems: {', '.join(options.systems)}")
    if len(options.systems) < 2:
        raise ConfigError(f"--system: give at least one that meets {options.reference}")
    paths = sorted(path for path in options.instructions.glob("*") if path.suffix.lower() in SUFFIXES)[: options.limit]
    if not paths:
        raise ConfigError(f"--instructions {options.instructions}: holds no clip; give a folder of ID.wav")
    if len({path.stem for path in paths}) < len(paths):
        raise ConfigError(f"--instructions {options.instructions}: two clips have one name")
    spoken = {path.stem: _instruction(path) for path in paths}
    readable = [path for path in paths if isinstance(spoken[path.stem], Utterance)]
    answers = {name: _answers(options, name, readable, console, quiet) for name in options.systems}
    compared = []
    for name in options.systems:
        if name == options.reference:
            continue
        for path in paths:
            instruction = spoken[path.stem]
            if isinstance(instruction, str):
                compared.append(Comparison(path.stem, name, None, instruction))
                continue
            own, reference = answers[name][path.stem], answers[options.reference][path.stem]
            compared.append(_comparison(path.stem, name, instruction, own, reference))
    return compared


def _instruction(path: Path) -> Utterance | str:
    try:
        return Utterance(read_clip(path, max_duration_s=MAX_CLIP_S))
    except AudioError as error:
        return str(error)


def _comparison(instruction_id: str, system: str, instruction: Utterance, own: Response, reference: Response) -> Comparison:
    if own.clip is None or reference.clip is None or own.missing or reference.missing:
        return Comparison(instruction_id, system, None, own.missing or reference.missing or "")
    words = (own.text, reference.text) if own.text and reference.text else None
    return Comparison(instruction_id, system, Pair(instruction, own.clip, reference.clip, words))


def _answers(options: RankingOptions, name: str, paths: Sequence[Path], console: Console, quiet: bool) -> dict[str, Response]:
    system = open_system(options.systems[name], options.curation, options.cache_dir)
    # A folder of finished answers reads no transcript.
    transcripts = [""] * len(paths)
    if not isinstance(system, FolderSystem):
        if not options.may_answer:
            raise ConfigError(f"--estimate: {name} must answer first, which may cost; estimate from folders of answers")
        transcripts = [one.text for one in transcribe([read_clip(path, max_duration_s=MAX_CLIP_S) for path in paths])]
    questions = [SpokenQuestion(path.stem, path, words) for path, words in zip(paths, transcripts, strict=True)]
    with progress_bar(console, f"{name} answers", len(questions), quiet) as bar:
        return {path.stem: row[0] for path, row in zip(paths, system.answer(questions, 1, bar.at), strict=True)}


def estimate_systems(judges: Sequence[AudioJudge], compared: Sequence[Comparison]) -> Bill:
    """The most that judging all comparisons can cost; no call is made."""
    bill = Bill()
    for start in range(0, len(compared), CHUNK_PAIRS):
        pairs = [one.pair for one in compared[start : start + CHUNK_PAIRS] if one.pair is not None]
        for judge in judges:
            bill += judge.client.estimate(judge.requests(pairs))
    return bill


def judge_systems(
    judges: Sequence[AudioJudge], options: RankingOptions, compared: Sequence[Comparison], console: Console, quiet: bool
) -> tuple[Done, BudgetError | None]:
    """Judge all comparisons in both orders; verdicts go to `options.out` (CSV) and, with reasons, beside it (JSONL).

    Also returns the error if the budget ended first. Files are written after every chunk, and replies are cached, so a stopped
    run repeats no call.

    Raises:
        StorageError: the file holds verdicts of another judge.
    """
    _require_new(options.out, judges)
    rows: list[dict[str, Any]] = []
    details: list[dict[str, Any]] = []
    stopped: BudgetError | None = None
    rate_hz = judges[0].config.audio.sample_rate_hz
    with progress_bar(console, "verdicts", len(compared) * len(judges), quiet) as bar:
        for start in range(0, len(compared), CHUNK_PAIRS):
            chunk = compared[start : start + CHUNK_PAIRS]
            pairs = [at_rate(one.pair, rate_hz) for one in chunk if one.pair is not None]
            for judge in judges:
                judged = iter(judge.compare([pair for pair in pairs if isinstance(pair, Pair)]))
                for one in chunk:
                    verdict = Unscored(judge.name, one.missing) if one.pair is None else next(judged)
                    if isinstance(verdict, BudgetError):
                        stopped = stopped or verdict
                        continue
                    rows.append(_row(judge.task.name, one, options.reference, verdict))
                    details.append({**rows[-1], "verdict": to_json(verdict)})
                bar.at(len(rows), len(compared) * len(judges))
            _write(options.out, rows, details)
            if stopped:
                break
    return Done(len(rows), sum(row["system_first"] == UNSCORED for row in rows)), stopped


def _row(aspect: str, one: Comparison, reference: str, verdict: Preference | Unscored) -> dict[str, Any]:
    labels = verdict.order_labels if isinstance(verdict, Preference) else (UNSCORED, UNSCORED)
    return dict(zip(COLUMNS, (aspect, one.instruction_id, one.system, reference, *labels), strict=True))


def _write(out: Path, rows: Sequence[dict[str, Any]], details: Sequence[dict[str, Any]]) -> None:
    buffer = io.StringIO()
    writer = csv.DictWriter(buffer, COLUMNS, lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    write_text(out, buffer.getvalue())
    write_jsonl(out.with_suffix(".jsonl"), details)


def _require_new(out: Path, judges: Sequence[AudioJudge]) -> None:
    path = out.with_suffix(".jsonl")
    verdicts = [row.get("verdict", {}) for row in read_jsonl(path)] if path.is_file() else []
    there = [f"{one['judge']}/{one['version']}/{one['prompt_hash']}" for one in verdicts if one.get("type") == "Preference"]
    require_new(out, there, [f"{judge.name}/{judge.version}/{judge.prompt.hash}" for judge in judges])


@dataclass(frozen=True)
class RankOptions:
    """The options of `rank`: recorded verdicts, people's scores and their systems' names, aspects and how they are combined."""

    verdicts: Path
    human: Path | None = None
    names: Path | None = None
    aliases: Sequence[str] = ()
    rule: str | None = None
    rules: Path | None = None
    aspects: Sequence[str] = ()
    out: Path | None = None


def run_rank(options: RankOptions) -> tuple[Ranking, dict[str, Any]]:
    """Ranks systems by recorded verdicts; returns the ranking and its report, which is written to `options.out` as well.

    Raises:
        ConfigError: options that contradict each other. DataError: a file that is not as expected.
    """
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
    about = {
        "verdicts": str(options.verdicts),
        "human": str(options.human) if options.human else None,
        "rule": f"{rule_name}: {ensemble.says}" if ENSEMBLE in ranking.aspects else None,
    }
    report = ranking_json(ranking, about)
    if options.out is not None:
        write_json(options.out / "ranking.json", report)
        write_text(options.out / "ranking.md", markdown(ranking, about))
        if ranking.people is not None:
            write_text(options.out / "ranking.svg", scatter_svg(ranking, ranking.people))
    return ranking, report


def read_names(file: Path | None, aliases: Sequence[str]) -> dict[str, str]:
    """The verdicts' names of people's systems, by people's names: from a YAML mapping, and OLD=NEW pairs beside it.

    Raises:
        ConfigError: not such a file or pair, or a name that stands twice.
    """
    renamed: dict[str, str] = {}
    if file is not None:
        try:
            values = yaml.safe_load(file.read_text(encoding="utf-8"))
        except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
            raise ConfigError(f"--names {file}: cannot be read ({one_line(error)})") from error
        if not isinstance(values, dict) or not all(isinstance(one, str) and one for pair in values.items() for one in pair):
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
