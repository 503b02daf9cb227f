"""`paras2s bench systems`: systems' spoken answers against a reference system's, by an audio judge, as verdicts to rank."""

from __future__ import annotations

import csv
import io
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.console import Console

from paras2s.audio.asr import transcribe
from paras2s.audio.clip import read_clip
from paras2s.bench.paras2s.run import BenchOptions, open_system
from paras2s.bench.ranking.data import COLUMNS
from paras2s.bench.systems import SUFFIXES, FolderSystem, Response, SpokenQuestion
from paras2s.clients.chat import Bill
from paras2s.errors import AudioError, BudgetError, ConfigError, StorageError
from paras2s.reward.judges.audio_judge.judge import AudioJudge, at_rate
from paras2s.reward.judges.base import MAX_CLIP_S, Pair, Utterance
from paras2s.types import Preference, Unscored, to_json
from paras2s.utils.io import read_jsonl, write_jsonl, write_text
from paras2s.utils.progress import progress_bar

# Meetings whose recordings are encoded, and in memory, at once.
CHUNK_PAIRS = 32
UNSCORED = "unscored"


@dataclass(frozen=True)
class RankingOptions:
    """Spoken instructions by file name, systems by how each is reached, and which of them all others meet.

    `may_answer` False: nobody is asked for an answer, and only systems that have given theirs, a folder each, are taken.
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
class Meeting:
    """One system and the reference on one instruction: the instruction and both answers, or why one is missing."""

    instruction_id: str
    system: str
    pair: Pair | None
    missing: str = ""


@dataclass(frozen=True)
class Done:
    """How many verdicts there are, and how many of them are none."""

    judged: int
    unscored: int


def meetings(asked: RankingOptions, console: Console, quiet: bool) -> list[Meeting]:
    """Every system's meeting with the reference on every instruction.

    Raises:
        ConfigError: no instructions, nobody to meet the reference, or a reference that is not among the systems.
    """
    if asked.reference not in asked.systems:
        raise ConfigError(f"--reference {asked.reference}: is not among the systems: {', '.join(asked.systems)}")
    if len(asked.systems) < 2:
        raise ConfigError(f"--system: give at least one that meets {asked.reference}")
    paths = sorted(path for path in asked.instructions.glob("*") if path.suffix.lower() in SUFFIXES)[: asked.limit]
    if not paths:
        raise ConfigError(f"--instructions {asked.instructions}: holds no clip; give a folder of ID.wav")
    if len({path.stem for path in paths}) < len(paths):
        raise ConfigError(f"--instructions {asked.instructions}: two clips have one name")
    spoken = {path.stem: _instruction(path) for path in paths}
    heard = [path for path in paths if isinstance(spoken[path.stem], Utterance)]
    answers = {name: _answers(asked, name, heard, console, quiet) for name in asked.systems}
    found = []
    for name in asked.systems:
        if name == asked.reference:
            continue
        for path in paths:
            instruction = spoken[path.stem]
            if isinstance(instruction, str):
                found.append(Meeting(path.stem, name, None, instruction))
                continue
            found.append(_meeting(path.stem, name, instruction, answers[name][path.stem], answers[asked.reference][path.stem]))
    return found


def _instruction(path: Path) -> Utterance | str:
    try:
        return Utterance(read_clip(path, max_duration_s=MAX_CLIP_S))
    except AudioError as error:
        return str(error)


def _meeting(instruction_id: str, system: str, instruction: Utterance, own: Response, other: Response) -> Meeting:
    if own.clip is None or other.clip is None:
        return Meeting(instruction_id, system, None, own.failed or other.failed or "no answer")
    words = (own.text, other.text) if own.text and other.text else None
    return Meeting(instruction_id, system, Pair(instruction, own.clip, other.clip, words))


def _answers(asked: RankingOptions, name: str, paths: Sequence[Path], console: Console, quiet: bool) -> dict[str, Response]:
    spec = asked.systems[name]
    respondent = open_system(spec, BenchOptions(Path(), "test", {}, 1, asked.out, asked.curation, asked.cache_dir))
    # A folder of finished answers need not be told what a recogniser hears.
    heard = [""] * len(paths)
    if not isinstance(respondent, FolderSystem):
        if not asked.may_answer:
            raise ConfigError(f"--estimate: {name} must answer first, which may cost; estimate from folders of answers")
        heard = [one.text for one in transcribe([read_clip(path, max_duration_s=MAX_CLIP_S) for path in paths])]
    questions = [SpokenQuestion(path.stem, path, words) for path, words in zip(paths, heard, strict=True)]
    with progress_bar(console, f"{name} answers", len(questions), quiet) as bar:
        return {path.stem: row[0] for path, row in zip(paths, respondent.respond(questions, 1, bar.at), strict=True)}


def estimate_systems(judges: Sequence[AudioJudge], met: Sequence[Meeting]) -> Bill:
    """What judging all meetings takes at most; no call is made."""
    bill = Bill()
    for start in range(0, len(met), CHUNK_PAIRS):
        pairs = [one.pair for one in met[start : start + CHUNK_PAIRS] if one.pair is not None]
        for judge in judges:
            bill += judge.client.estimate(judge.requests(pairs))
    return bill


def require_new(out: Path, judges: Sequence[AudioJudge]) -> None:
    """Refuse to replace another judge's verdicts.

    Raises:
        StorageError: the file is of another judge, or of other prompts.
    """
    path = out.with_suffix(".jsonl")
    if not path.is_file():
        return
    own = {(judge.name, judge.version, judge.prompt.hash) for judge in judges}
    said = [row.get("verdict", {}) for row in read_jsonl(path)]
    there = {(one["judge"], one["version"], one["prompt_hash"]) for one in said if one.get("type") == "Preference"}
    if others := sorted(there - own):
        raise StorageError(f"{out} holds verdicts of {'/'.join(others[0])}; give another --out, or delete it")


def judge_systems(
    judges: Sequence[AudioJudge], asked: RankingOptions, met: Sequence[Meeting], console: Console, quiet: bool
) -> tuple[Done, BudgetError | None]:
    """Judge all meetings in both orders, and write them to `asked.out` (CSV) and beside it, with reasons, as JSONL.

    Also gives the error if the budget ended first. Files are written after every chunk, and replies are kept, so a stopped run
    repeats no call.
    """
    rows: list[dict[str, Any]] = []
    details: list[dict[str, Any]] = []
    stopped: BudgetError | None = None
    rate_hz = judges[0].config.audio.sample_rate_hz
    with progress_bar(console, "verdicts", len(met) * len(judges), quiet) as bar:
        for start in range(0, len(met), CHUNK_PAIRS):
            chunk = met[start : start + CHUNK_PAIRS]
            pairs = [at_rate(one.pair, rate_hz) for one in chunk if one.pair is not None]
            for judge in judges:
                judged = iter(judge.compare_batch([pair for pair in pairs if isinstance(pair, Pair)]))
                for one in chunk:
                    found = Unscored(judge.name, one.missing) if one.pair is None else next(judged)
                    if isinstance(found, BudgetError):
                        stopped = stopped or found
                        continue
                    rows.append(_row(judge.task.name, one, asked.reference, found))
                    details.append({**rows[-1], "verdict": to_json(found)})
                bar.at(len(rows), len(met) * len(judges))
            _write(asked.out, rows, details)
            if stopped:
                break
    return Done(len(rows), sum(row["system_first"] == UNSCORED for row in rows)), stopped


def _row(aspect: str, one: Meeting, reference: str, found: Preference | Unscored) -> dict[str, Any]:
    said = found.said if isinstance(found, Preference) else (UNSCORED, UNSCORED)
    return dict(zip(COLUMNS, (aspect, one.instruction_id, one.system, reference, *said), strict=True))


def _write(out: Path, rows: Sequence[dict[str, Any]], details: Sequence[dict[str, Any]]) -> None:
    buffer = io.StringIO()
    writer = csv.DictWriter(buffer, COLUMNS, lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    write_text(out, buffer.getvalue())
    write_jsonl(out.with_suffix(".jsonl"), details)
