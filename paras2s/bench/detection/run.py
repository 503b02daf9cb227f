"""`paras2s bench detect`: a judge over the pairs of a suite of one characteristic, or over their single clips."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Protocol

from paras2s.bench.detection.baselines import Baseline
from paras2s.bench.detection.data import DetectPair, DetectRow, DetectSuite, load_rows, read_pair_audio, row_of, row_of_scores
from paras2s.clients.chat import Bill
from paras2s.errors import BudgetError, StorageError
from paras2s.reward.judges.audio_judge.judge import AudioJudge
from paras2s.reward.judges.base import Exchange, Pair, Progress, sides_of
from paras2s.types import Preference, Unscored, Verdict
from paras2s.utils.io import write_jsonl

# Pairs in memory at once; a chunk's calls all run together.
CHUNK_PAIRS = 64


class Comparing(Protocol):
    """A judge of pairs: an audio judge, or a specialised one."""

    @property
    def name(self) -> str:
        """Of the judge and what is behind it."""

    def compare_batch(
        self, pairs: Sequence[Pair], on_progress: Progress | None = None
    ) -> Sequence[Preference | Unscored | BudgetError]:
        """A preference each, in order."""


class Rating(Protocol):
    """A judge of single clips."""

    @property
    def name(self) -> str:
        """Of the judge and what is behind it."""

    def score_batch(
        self, exchanges: Sequence[Exchange], on_progress: Progress | None = None
    ) -> Sequence[Verdict | Unscored | BudgetError]:
        """A score each, in order."""


Found = DetectRow | BudgetError
Ask = Callable[[Sequence[tuple[DetectPair, Pair]], Progress], list[Found]]


def by_pair(judge: Comparing) -> Ask:
    """Ask about both clips of a pair at once."""

    def ask(pairs: Sequence[tuple[DetectPair, Pair]], tell: Progress) -> list[Found]:
        said = judge.compare_batch([clips for _, clips in pairs], tell)
        return [one if isinstance(one, BudgetError) else row_of(pair, one) for (pair, _), one in zip(pairs, said, strict=True)]

    return ask


def by_clip(judge: Rating) -> Ask:
    """Ask about each clip alone, and let the higher score win (AudioJudge, appendix E)."""

    def ask(pairs: Sequence[tuple[DetectPair, Pair]], tell: Progress) -> list[Found]:
        said = judge.score_batch([one for _, clips in pairs for one in sides_of(clips)], tell)
        return [_scored(pair, *two) for (pair, _), two in zip(pairs, zip(said[::2], said[1::2], strict=True), strict=True)]

    return ask


def _scored(pair: DetectPair, first: Verdict | Unscored | BudgetError, second: Verdict | Unscored | BudgetError) -> Found:
    if isinstance(first, BudgetError):
        return first
    return second if isinstance(second, BudgetError) else row_of_scores(pair, first, second)


def judge_pairs(
    name: str, ask: Ask, pairs: Sequence[DetectPair], root: Path, path: Path, on_progress: Progress
) -> tuple[float, BudgetError | None]:
    """Verdicts of the judge of that name on all pairs; seconds taken, and the error if the budget ended before they did.

    The file is written after every chunk. What an LLM replied is kept as it comes: to start again repeats no call.

    Raises:
        BudgetError: the budget ended before the first verdict; a file that is there stays as it is.
    """
    rows: list[DetectRow] = []
    stopped: BudgetError | None = None
    started = time.perf_counter()
    for start in range(0, len(pairs), CHUNK_PAIRS):
        chunk = pairs[start : start + CHUNK_PAIRS]

        def tell(now: int, total: int, start: int = start, size: int = len(chunk)) -> None:
            on_progress(start + now * size // max(total, 1), len(pairs))

        read = [(pair, read_pair_audio(pair, root)) for pair in chunk]
        said = iter(ask([(pair, one) for pair, one in read if isinstance(one, Pair)], tell))
        for pair, one in read:
            # Whose verdict is missing is the judge's name; why, the reason says.
            found = row_of(pair, replace(one, judge=name)) if isinstance(one, Unscored) else next(said)
            if isinstance(found, BudgetError):
                stopped = stopped or found
            else:
                rows.append(found)
        if stopped and not any(row.label for row in rows):
            raise stopped
        write_jsonl(path, (row.model_dump() for row in rows))
        on_progress(start + len(chunk), len(pairs))
        if stopped:
            break
    return time.perf_counter() - started, stopped


def estimate_pairs(judge: AudioJudge, pairs: Sequence[DetectPair], root: Path, on_progress: Progress) -> tuple[Bill, int]:
    """What it takes at most, and how many pairs cannot be judged, without a call."""
    bill, unscored = Bill(), 0
    for start in range(0, len(pairs), CHUNK_PAIRS):
        read = [read_pair_audio(pair, root) for pair in pairs[start : start + CHUNK_PAIRS]]
        whole = [one for one in read if isinstance(one, Pair)]
        items: list[Pair | Exchange] = list(whole)
        if judge.task.clips == 1:
            items = [exchange for one in whole for exchange in sides_of(one)]
        asked = judge.requests(items)
        bill += judge.client.estimate(asked)
        unscored += len(read) - len(whole) + _refused(asked, judge.task.clips)
        on_progress(min(start + CHUNK_PAIRS, len(pairs)), len(pairs))
    return bill, unscored


def _refused(asked: Sequence[Any], clips: int) -> int:
    """Pairs of which nothing, or of one clip nothing, can be asked."""
    size = 2 if clips == 1 else 1
    return sum(any(isinstance(one, Unscored) for one in asked[at : at + size]) for at in range(0, len(asked), size))


def require_new(path: Path, suite: DetectSuite, judge: AudioJudge | Baseline, pairs: Sequence[DetectPair]) -> None:
    """Refuse to replace another judge's verdicts, or verdicts on pairs that are not asked now.

    Raises:
        StorageError: the file is of another judge or prompt, or of other pairs.
    """
    if not path.is_file():
        return
    own = f"{judge.name}/{judge.version}/{judge.prompt.hash if isinstance(judge, AudioJudge) else ''}"
    there = [row for row in load_rows(path, suite).values() if row.label]
    if others := sorted({f"{row.judge}/{row.version}/{row.prompt_hash}" for row in there} - {own}):
        raise StorageError(f"{path} holds verdicts of {', '.join(others)}; give another --out, or delete it")
    asked = {pair.id for pair in pairs}
    if lost := [row.id for row in there if row.id not in asked]:
        raise StorageError(
            f"{path} holds verdicts on {len(there)} pairs, {len(lost)} of which are not asked now (the first: {lost[0]}); "
            f"give another --out, or delete it"
        )
