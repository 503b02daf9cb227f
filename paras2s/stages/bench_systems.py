"""`paras2s bench systems`: systems' spoken answers against a reference system's, by a listening judge, as verdicts to rank."""

from __future__ import annotations

import csv
import io
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.console import Console

from paras2s.acoustics.asr import transcribe
from paras2s.audio import Clip, read_clip
from paras2s.bench.recorded import COLUMNS
from paras2s.bench.respondents import SUFFIXES, FolderRespondent, Response, SpokenQuestion
from paras2s.errors import BudgetError, ConfigError
from paras2s.llm import Request
from paras2s.records import Preference, Unscored, to_json
from paras2s.reward.judges.audio import AudioJudge
from paras2s.reward.judges.llm_judge import Pair, Utterance
from paras2s.stages.bench_sets import BenchAsked, open_respondent
from paras2s.stages.progress import progress_bar
from paras2s.storage import write_jsonl, write_text

# Pairs whose sound is in memory at once.
CHUNK_PAIRS = 32


@dataclass(frozen=True)
class SystemsAsked:
    """Spoken instructions by file name, systems by how each is reached, and which of them all others meet."""

    instructions: Path
    systems: dict[str, str]
    reference: str
    out: Path
    curation: Path | None
    cache_dir: Path
    limit: int | None


@dataclass(frozen=True)
class Meeting:
    """One system and the reference on one instruction: both answers, or why one is missing."""

    instruction_id: str
    system: str
    instruction: Clip
    answer: Clip | None
    reference: Clip | None
    missing: str


def meetings(asked: SystemsAsked, console: Console, quiet: bool) -> list[Meeting]:
    """Every system's meeting with the reference on every instruction.

    Raises:
        ConfigError: no instructions, or a reference that is not among the systems.
    """
    if asked.reference not in asked.systems:
        raise ConfigError(f"--reference {asked.reference}: is not among the systems: {', '.join(asked.systems)}")
    paths = sorted(path for path in asked.instructions.glob("*") if path.suffix in SUFFIXES)[: asked.limit]
    if not paths:
        raise ConfigError(f"--instructions {asked.instructions}: holds no clip; give a folder of ID.wav")
    clips = {path.stem: read_clip(path) for path in paths}
    if len(clips) < len(paths):
        raise ConfigError(f"--instructions {asked.instructions}: two clips have one name")
    answers = {name: _answers(asked, name, paths, console, quiet) for name in asked.systems}
    found = []
    for name in asked.systems:
        if name == asked.reference:
            continue
        for path, own, other in zip(paths, answers[name], answers[asked.reference], strict=True):
            missing = own.failed or other.failed or ("" if own.clip and other.clip else "no answer")
            found.append(Meeting(path.stem, name, clips[path.stem], own.clip, other.clip, missing))
    return found


def _answers(asked: SystemsAsked, name: str, paths: Sequence[Path], console: Console, quiet: bool) -> list[Response]:
    respondent = open_respondent(
        asked.systems[name], BenchAsked(Path(), "test", {}, 1, asked.out, asked.curation, asked.cache_dir)
    )
    # A folder of finished answers need not be told what a recogniser hears.
    heard = [""] * len(paths)
    if not isinstance(respondent, FolderRespondent):
        heard = [one.text for one in transcribe([read_clip(path) for path in paths])]
    questions = [SpokenQuestion(path.stem, path, words) for path, words in zip(paths, heard, strict=True)]
    with progress_bar(console, f"{name} answers", len(questions), quiet) as bar:
        return [row[0] for row in respondent.respond(questions, 1, bar.at)]


def _pair(one: Meeting) -> Pair | None:
    if one.answer is None or one.reference is None:
        return None
    return Pair(Utterance(one.instruction), one.answer, one.reference)


def estimate_systems(judges: Sequence[AudioJudge], met: Sequence[Meeting]) -> dict[str, Any]:
    """Calls, tokens and USD at most of judging all meetings; none is made."""
    pairs = [pair for one in met if (pair := _pair(one)) is not None]
    requests: list[Request] = []
    for judge in judges:
        requests += [request for one in judge.requests(pairs) if isinstance(one, list) for request in one]
    tokens, usd = judges[0].client.estimate(requests)
    return {"calls": len(requests), "tokens": tokens, "at_most_usd": usd}


def judge_systems(
    judges: Sequence[AudioJudge], asked: SystemsAsked, met: Sequence[Meeting], console: Console, quiet: bool
) -> tuple[int, BudgetError | None]:
    """Judge all meetings in both orders, and write them to `asked.out` (CSV) and beside it, with reasons, as JSONL.

    How many verdicts are unscored, and the error if the budget ended first. Files are written after every chunk, and replies
    are kept, so a stopped run repeats no call.
    """
    rows: list[dict[str, Any]] = []
    details: list[dict[str, Any]] = []
    stopped: BudgetError | None = None
    with progress_bar(console, "verdicts", len(met) * len(judges), quiet) as bar:
        for start in range(0, len(met), CHUNK_PAIRS):
            chunk = met[start : start + CHUNK_PAIRS]
            for judge in judges:
                judged = iter(judge.compare([pair for one in chunk if (pair := _pair(one)) is not None]))
                for one in chunk:
                    found = Unscored(judge.name, one.missing) if _pair(one) is None else next(judged)
                    if isinstance(found, BudgetError):
                        stopped = stopped or found
                        continue
                    rows.append(_row(judge.task.name, one, asked.reference, found))
                    details.append({**rows[-1], "verdict": to_json(found)})
                bar.at(len(rows), len(met) * len(judges))
            _write(asked.out, rows, details)
            if stopped:
                break
    return sum(row["system_first"] == "" for row in rows), stopped


def _row(aspect: str, one: Meeting, reference: str, found: Preference | Unscored) -> dict[str, Any]:
    said = found.said if isinstance(found, Preference) else ("", "")
    return dict(zip(COLUMNS, (aspect, one.instruction_id, one.system, reference, *said), strict=True))


def _write(out: Path, rows: Sequence[dict[str, Any]], details: Sequence[dict[str, Any]]) -> None:
    buffer = io.StringIO()
    writer = csv.DictWriter(buffer, COLUMNS, lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    write_text(out, buffer.getvalue())
    write_jsonl(out.with_suffix(".jsonl"), details)
