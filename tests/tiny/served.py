"""A reward server on a free port of this machine, over real HTTP, while a `with` block lasts; and a small judge for it."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Iterator, Sequence
from typing import Any

import uvicorn

from paras2s.errors import BudgetError, JudgeError
from paras2s.integrations.scorer import JudgeScorer, Scorer
from paras2s.integrations.server import JudgeThread, make_app
from paras2s.reward.judges.base import Exchange, Judge, Progress, Scored
from paras2s.types import Unscored, Verdict
from paras2s.utils.cache import JsonCache


class Words(Judge):
    """Scores the number of an answer's words; needs no sound. `batches` has the size of every batch, `scores` its scores."""

    name, version, scores_alone, needs_question_audio, needs = "words", "1", True, False, ("answer.text",)

    batches: list[int]
    scores: list[list[float]]

    def __init__(self, best: float = 5.0) -> None:
        self.best, self.batches, self.scores = best, [], []

    def score_batch(self, exchanges: Sequence[Exchange], on_progress: Progress | None = None) -> list[Scored]:
        self.batches.append(len(exchanges))
        if any(exchange.words == "refuse" for exchange in exchanges):
            raise JudgeError("a word that this judge refuses")
        verdicts = [self._verdict(exchange.words or "") for exchange in exchanges]
        self.scores.append([verdict.score for verdict in verdicts if isinstance(verdict, Verdict)])
        return verdicts

    def _verdict(self, words: str) -> Scored:
        if words == "broke":
            return BudgetError("the budget of 1.00 USD is spent")
        if words == "mumble":
            return Unscored(self.name, "no word can be made out")
        score = 9.0 if words == "too much" else min(self.best, float(len(words.split())))
        return Verdict(self.name, self.version, "", score, f"{len(words.split())} words", "", 0.25, 0.0)


@contextlib.contextmanager
def serving(scorer: Scorer | Judge, cache: JsonCache | None = None, batch_size: int = 64, **options: Any) -> Iterator[str]:
    """Serve a scorer or a judge; yields the address."""
    scorer = JudgeScorer(scorer) if isinstance(scorer, Judge) else scorer
    app = make_app(JudgeThread(scorer, cache, batch_size), **options)
    server = uvicorn.Server(uvicorn.Config(app, port=0, log_level="error", lifespan="off", timeout_graceful_shutdown=1))
    thread = threading.Thread(target=server.run, daemon=True)
    thread.start()
    until = time.monotonic() + 60
    while not server.started:
        assert time.monotonic() < until, "the server does not start"
        time.sleep(0.005)
    try:
        yield f"http://127.0.0.1:{server.servers[0].sockets[0].getsockname()[1]}"
    finally:
        server.should_exit = True
        thread.join(60)
