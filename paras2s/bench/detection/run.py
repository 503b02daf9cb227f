"""`paras2s bench detect`: a judge on the pairs of a suite of one characteristic, or on their single clips."""

from __future__ import annotations

import re
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from rich.console import Console

from paras2s.bench.detection.baselines import open_baseline
from paras2s.bench.detection.data import (
    QUALITY,
    SUITES,
    DetectPair,
    DetectRow,
    DetectSuite,
    Loaded,
    load_pairs,
    load_rows,
    read_pair_audio,
    row_of,
    row_of_scores,
    rows_so_far,
)
from paras2s.bench.detection.report import detection_report
from paras2s.bench.display import PairsEstimate
from paras2s.bench.made_from import MadeFrom, clip_names, sent
from paras2s.bench.results import require_new
from paras2s.bench.verdict_file import VerdictFile
from paras2s.clients.chat import Bill
from paras2s.data_gen.tts.signal_voice import signal_voice
from paras2s.errors import BudgetError, ConfigError, StorageError
from paras2s.reward.judges.audio_judge.judge import AudioJudge
from paras2s.reward.judges.base import Exchange, Judge, Pair, Progress, sides_of
from paras2s.reward.judges.registry import open_audio_judges
from paras2s.types import Unscored, Verdict
from paras2s.utils.progress import progress_bar

# Pairs in memory at once; a chunk's calls all run together.
CHUNK_PAIRS = 64


@dataclass(frozen=True)
class DetectionOptions:
    """The options of `bench detect`; the first of `verdicts`, or else the judge, is the reference of the others' tests."""

    suite: str
    manifest: Path
    audio: Path | None = None
    judge: str | None = None
    baseline: str | None = None
    verdicts: Sequence[Path] = ()
    pointwise: bool = False
    limit: int | None = None
    seed: int | None = None
    out: Path | None = None
    overrides: dict[str, Any] = field(default_factory=dict)
    retry_unscored: bool = False

    @property
    def judges_now(self) -> bool:
        """Whether a judge runs at all: recorded verdicts alone need none."""
        return self.judge is not None or self.baseline is not None or not self.verdicts

    def check(self, estimate: bool) -> None:
        """Refuse options that contradict each other. Raises ConfigError: names them."""
        if self.judge is not None and self.baseline is not None:
            raise ConfigError("--judge and --baseline: give one of them; the verdicts of the other can be given by --verdicts")
        if not self.judges_now and (self.pointwise or estimate or self.out is not None or self.overrides):
            raise ConfigError(
                "--verdicts alone makes no call: leave --pointwise, --estimate, --out and --set out, or give --judge"
            )
        if len(set(self.verdicts)) < len(self.verdicts):
            raise ConfigError("--verdicts: a file occurs twice")

    def audio_root(self) -> Path:
        """Return the folder of the clips. Raises ConfigError: there is none."""
        if self.audio is None or not self.audio.is_dir():
            raise ConfigError("--audio: give the folder that holds the clips, or recorded --verdicts")
        return self.audio


@dataclass(frozen=True)
class DetectionResult:
    """The report, a line on judging ("" if nothing was judged), the error of a budget that ended, and the unscored pairs."""

    report: dict[str, Any]
    note: str
    stopped: BudgetError | None
    unscored: int = 0


def run_detection(options: DetectionOptions, console: Console, quiet: bool) -> DetectionResult:
    """Judge a suite's pairs or read recorded verdicts, and report on all. Raises ConfigError: contradictory options."""
    options.check(estimate=False)
    suite, loaded = _load(options)
    recorded = {str(path): load_rows(path, suite) for path in options.verdicts}
    note, stopped, unscored = "", None, 0
    if options.judges_now:
        path, note, stopped = _judge_suite(options, suite, loaded.pairs, console, quiet)
        recorded[str(path)] = rows = load_rows(path, suite)
        unscored = sum(pair.id not in rows or not rows[pair.id].label for pair in loaded.pairs)
    return DetectionResult(detection_report(suite, loaded, recorded), note, stopped, unscored)


def estimate_detection(options: DetectionOptions, console: Console, quiet: bool) -> PairsEstimate:
    """Return the cost of judging a suite, without a call. Raises ConfigError: contradictory options, or a baseline."""
    options.check(estimate=True)
    suite, loaded = _load(options)
    judge = _open(options, suite, calls=False)
    if not isinstance(judge, AudioJudge):
        raise ConfigError("--estimate: a baseline makes no call; leave it out")
    with progress_bar(console, "pairs read", len(loaded.pairs), quiet=quiet) as bar:
        bill, unscored = estimate_pairs(judge, loaded.pairs, options.audio_root(), bar.at)
    return PairsEstimate(judge.config.llm.model, bill, unscored, len(loaded.pairs))


def _load(options: DetectionOptions) -> tuple[DetectSuite, Loaded]:
    suite = SUITES[options.suite]
    loaded = load_pairs(options.manifest, suite, options.seed)
    return suite, replace(loaded, pairs=loaded.pairs[: options.limit])


def _open(options: DetectionOptions, suite: DetectSuite, calls: bool = True) -> Judge:
    if options.baseline is not None:
        baseline = open_baseline(options.baseline, suite, options.overrides)
        if options.pointwise and not baseline.scores_alone:
            raise ConfigError(f"--pointwise: --baseline {options.baseline} gives single clips no score from 1 to 5")
        return baseline
    if options.pointwise and suite.task != QUALITY:
        raise ConfigError(f"--pointwise: {suite.name} asks for no score of a clip; it is for somos, tmhintq, thaimos")
    task = "mos" if options.pointwise else suite.task
    name = options.judge or "detection"
    return open_audio_judges(name, options.overrides, tasks=[task], voice=signal_voice(), calls=calls)[0]


def _judge_suite(
    options: DetectionOptions, suite: DetectSuite, pairs: Sequence[DetectPair], console: Console, quiet: bool
) -> tuple[Path, str, BudgetError | None]:
    """Return the path of the verdicts, a line on what it took, and the error that stopped it before its end, if any."""
    judge = _open(options, suite)
    root = options.audio_root()
    own_name = re.sub(r"[^\w.+-]+", "-", f"{judge.name}-{judge.version}{'-pointwise' if options.pointwise else ''}")
    path = options.out or Path("runs/detect") / suite.name / f"{own_name}.jsonl"
    require_same_pairs(path, suite, judge, pairs)
    existing = rows_so_far(path, suite)
    if options.retry_unscored:
        pairs = [pair for pair in pairs if pair.id not in existing or not existing[pair.id].label]
    with progress_bar(console, "pairs judged", len(pairs), quiet=quiet) as bar:
        took_s, stopped = judge_pairs(judge, pairs, root, path, bar.at, existing, options.pointwise)
    called = ""
    if isinstance(judge, AudioJudge):
        called = f"{judge.client.spending()}; "
    return path, f"{took_s:.0f} s; {called}verdicts in {path}", stopped


RowOrStop = DetectRow | BudgetError


def _judge_chunk(
    judge: Judge, pairs: Sequence[tuple[DetectPair, Pair]], on_progress: Progress, pointwise: bool
) -> list[RowOrStop]:
    """Judge both clips of a pair at once; `pointwise` each alone, where the higher score wins (AudioJudge, appendix E)."""
    rows: list[RowOrStop]
    if pointwise:
        sides = [side for _, clips in pairs for side in sides_of(clips)]
        scores, made = judge.score_batch(sides, on_progress), list(map(sent, judge.requests(sides)))
        rows = [_scored(pair, *two) for (pair, _), two in zip(pairs, zip(scores[::2], scores[1::2], strict=True), strict=True)]
        prompts = [first + second for first, second in zip(made[::2], made[1::2], strict=True)]
    else:
        both = [clips for _, clips in pairs]
        verdicts, prompts = judge.compare_batch(both, on_progress), list(map(sent, judge.requests(both)))
        rows = [
            verdict if isinstance(verdict, BudgetError) else row_of(pair, verdict)
            for (pair, _), verdict in zip(pairs, verdicts, strict=True)
        ]
    return [
        row if isinstance(row, BudgetError) else row.model_copy(update={"made_from": MadeFrom(prompts=texts)})
        for row, texts in zip(rows, prompts, strict=True)
    ]


def _with_clips(row: DetectRow, pair: DetectPair, root: Path, folder: Path) -> DetectRow:
    """Return the row with the paths of its clips from the folder of its file."""
    clips = clip_names({"answer 1": root / pair.audio1_path, "answer 2": root / pair.audio2_path}, folder)
    return row.model_copy(update={"made_from": (row.made_from or MadeFrom(prompts=())).model_copy(update={"clips": clips})})


def _scored(pair: DetectPair, first: Verdict | Unscored | BudgetError, second: Verdict | Unscored | BudgetError) -> RowOrStop:
    if isinstance(first, BudgetError):
        return first
    return second if isinstance(second, BudgetError) else row_of_scores(pair, first, second)


def judge_pairs(
    judge: Judge, pairs: Sequence[DetectPair], root: Path, path: Path, on_progress: Progress,
    existing: Mapping[str, DetectRow] | None = None, pointwise: bool = False,
) -> tuple[float, BudgetError | None]:  # fmt: skip
    """Judge all pairs and write their rows; return seconds taken, and the error if the budget ended first.

    The verdicts `there` stay in the file: those on other pairs, and those that this run does not reach or cannot give again.

    Raises:
        BudgetError: the budget ended before the first verdict; an existing file stays as it is.
    """
    file = VerdictFile(path, dict(existing or {}), lambda row: row.id, lambda row: row.label is not None, DetectRow.model_dump)
    judged_now = False

    def judge_rows(chunk: Sequence[DetectPair], at: Progress) -> list[RowOrStop]:
        nonlocal judged_now
        read = [read_pair_audio(pair, root) for pair in chunk]
        readable = [(pair, clips) for pair, clips in zip(chunk, read, strict=True) if isinstance(clips, Pair)]
        judged = iter(_judge_chunk(judge, readable, at, pointwise))
        # The row of a pair that cannot be read has the judge's name and the reason.
        rows = [
            row_of(pair, replace(clips, judge=judge.name)) if isinstance(clips, Unscored) else next(judged)
            for pair, clips in zip(chunk, read, strict=True)
        ]
        stopped = next((row for row in rows if isinstance(row, BudgetError)), None)
        judged_now = judged_now or any(isinstance(row, DetectRow) and row.label is not None for row in rows)
        if stopped and not judged_now:
            raise stopped
        return [
            row if isinstance(row, BudgetError) else _with_clips(row, pair, root, path.parent)
            for pair, row in zip(chunk, rows, strict=True)
        ]

    started = time.perf_counter()
    stopped = file.judge(pairs, CHUNK_PAIRS, judge_rows, on_progress)
    if pairs:
        file.rewrite()
    return time.perf_counter() - started, stopped


def estimate_pairs(judge: AudioJudge, pairs: Sequence[DetectPair], root: Path, on_progress: Progress) -> tuple[Bill, int]:
    """Return the most that judging can cost, and how many pairs cannot be judged, without a call."""
    bill, unscored = Bill(), 0
    for start in range(0, len(pairs), CHUNK_PAIRS):
        read = [read_pair_audio(pair, root) for pair in pairs[start : start + CHUNK_PAIRS]]
        readable = [item for item in read if isinstance(item, Pair)]
        items: list[Pair | Exchange] = list(readable)
        if judge.task.clips == 1:
            items = [exchange for pair in readable for exchange in sides_of(pair)]
        requests = judge.requests(items)
        bill += judge.client.estimate(requests)
        unscored += len(read) - len(readable) + _refused(requests, judge.task.clips)
        on_progress(min(start + CHUNK_PAIRS, len(pairs)), len(pairs))
    return bill, unscored


def _refused(requests: Sequence[Any], clips: int) -> int:
    """Return the number of pairs for which a request cannot be made, of one of their clips at least."""
    size = 2 if clips == 1 else 1
    return sum(any(isinstance(call, Unscored) for call in requests[at : at + size]) for at in range(0, len(requests), size))


def require_same_pairs(path: Path, suite: DetectSuite, judge: Judge, pairs: Sequence[DetectPair]) -> None:
    """Refuse to replace other verdicts. Raises StorageError: the file is of another judge or prompt, or of other pairs."""
    rows = [row for row in rows_so_far(path, suite).values() if row.label]
    prompt_hash = judge.prompt.hash if isinstance(judge, AudioJudge) else ""
    existing = [f"{row.judge}/{row.version}/{row.prompt_hash}" for row in rows]
    require_new(path, existing, [f"{judge.name}/{judge.version}/{prompt_hash}"])
    ids = {pair.id for pair in pairs}
    if lost := [row.id for row in rows if row.id not in ids]:
        raise StorageError(
            f"{path} holds verdicts on {len(rows)} pairs; {len(lost)} of them are not asked now (the first: {lost[0]}); "
            f"give another --out, or delete it"
        )
