"""`paras2s bench speakbench` and `s2sarena`: a judge over people's labelled pairs, or its recorded verdicts."""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from paras2s.bench.results import require_new
from paras2s.bench.speakbench.data import SuitePair, read_pair_audio
from paras2s.bench.speakbench.verdicts import as_verdict_row, load_verdicts, save_verdicts
from paras2s.clients.chat import Bill
from paras2s.errors import BudgetError
from paras2s.reward.judges.llm_judge import LLMJudge, Pair, Progress
from paras2s.types import PairVerdict, Unscored

# Pairs in memory at once; a chunk's calls all run together.
CHUNK_PAIRS = 64


def estimate_suite(judge: LLMJudge, pairs: Sequence[SuitePair], root: Path, on_progress: Progress) -> tuple[Bill, int]:
    """The most that judging can cost, and how many pairs cannot be judged, without a call; clips are measured and cached."""
    bill, unscored = Bill(), 0
    for start in range(0, len(pairs), CHUNK_PAIRS):
        read = [read_pair_audio(pair, root) for pair in pairs[start : start + CHUNK_PAIRS]]
        requests = judge.pair_requests([one for one in read if isinstance(one, Pair)])
        bill += judge.client.estimate(requests)
        unscored += len(read) - sum(isinstance(one, list) for one in requests)
        on_progress(min(start + CHUNK_PAIRS, len(pairs)), len(pairs))
    return bill, unscored


def judge_suite(
    judge: LLMJudge, pairs: Sequence[SuitePair], root: Path, path: Path, on_progress: Progress
) -> tuple[float, BudgetError | None]:
    """Judge all pairs and write their verdicts; seconds taken, and the error if the budget ended before the pairs did.

    The file is written after every chunk. Replies are cached as they come, so a killed or stopped run repeats no call.

    Raises:
        StorageError: the file holds verdicts of another judge, or of another prompt.
    """
    _require_new(path, judge)
    rows: list[dict[str, Any]] = []
    stopped: BudgetError | None = None
    started = time.perf_counter()
    for start in range(0, len(pairs), CHUNK_PAIRS):
        chunk = pairs[start : start + CHUNK_PAIRS]
        read = [read_pair_audio(pair, root) for pair in chunk]
        done = start
        judged = iter(
            judge.pairs(
                [one for one in read if isinstance(one, Pair)],
                lambda now, total, done=done: on_progress(min(done + now, len(pairs)), len(pairs)),  # type: ignore[misc]
            )
        )
        verdicts: list[PairVerdict | Unscored | BudgetError] = [next(judged) if isinstance(one, Pair) else one for one in read]
        for pair, one in zip(chunk, verdicts, strict=True):
            if isinstance(one, BudgetError):
                stopped = stopped or one
            else:
                rows.append(as_verdict_row(pair.index, one))
        save_verdicts(path, rows)
        on_progress(min(start + CHUNK_PAIRS, len(pairs)), len(pairs))
        if stopped:
            break
    return time.perf_counter() - started, stopped


def _require_new(path: Path, judge: LLMJudge) -> None:
    rows = load_verdicts(path).values() if path.is_file() else ()
    there = [f"{row.judge}/{row.version}/{row.prompt_hash}" for row in rows if row.labels]
    require_new(path, there, [f"{judge.name}/{judge.version}/{judge.pair_prompt.hash}"])
