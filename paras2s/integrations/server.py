"""A scorer behind the protocol of `clients/rewards.py`: requests are judged together, one batch at a time, and scores cached.

Pages of other sites that are open in this machine's browser can reach the loopback address too. So a request must name this
host (against DNS rebinding), must be JSON and must come from no page; beyond the loopback address it needs a token as well.
A path is read only below the folders that the server was given.
"""

from __future__ import annotations

import asyncio
import base64
import binascii
import logging
import queue
import secrets
import threading
import time
from collections import defaultdict
from collections.abc import Sequence
from concurrent.futures import Future
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from pydantic import ValidationError
from starlette.applications import Starlette
from starlette.datastructures import Headers
from starlette.middleware import Middleware
from starlette.middleware.trustedhost import TrustedHostMiddleware
from starlette.requests import Request
from starlette.responses import JSONResponse, PlainTextResponse, Response
from starlette.routing import Route
from starlette.types import ASGIApp, Receive, Scope, Send

from paras2s.audio.clip import Clip, read_clip
from paras2s.clients.body import LARGEST_BODY_BYTES
from paras2s.clients.rewards import (
    PROTOCOL,
    SPENT_STATUS,
    AnswerScore,
    ScoreReply,
    ScoreRequest,
    SentGroup,
    Sound,
    protocol_schema,
)
from paras2s.errors import AudioError, BudgetError, ParaS2SError, StorageError, first_problem, one_line
from paras2s.integrations.scorer import Scorer, unscored
from paras2s.reward.sources.base import GivenAnswer, Group, RewardQuestion, SaidBefore, read_sound
from paras2s.utils.cache import JsonCache, key_of
from paras2s.utils.io import path_inside
from paras2s.utils.loopback import LOOPBACK

log = logging.getLogger(__name__)
HOSTS = [LOOPBACK, "localhost"]
# Answers that wait; a client is told to come back later, rather than kept until it gives up.
MOST_WAITING = 4096
RETRY_AFTER_S = 5


class RefusedError(ParaS2SError):
    """A request that is answered with an HTTP status."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status = status


class Metrics:
    """Counts since the start, in Prometheus' text format."""

    def __init__(self) -> None:
        self.counts: dict[str, float] = defaultdict(float)

    def add(self, name: str, value: float = 1.0) -> None:
        """Count; `name` may end with labels."""
        self.counts[name] += value

    def text(self, waiting: int) -> str:
        """Return all counts, and the answers that wait now."""
        lines = [f"paras2s_{name} {value:g}" for name, value in sorted(self.counts.items())]
        return "\n".join([*lines, f"paras2s_answers_waiting {waiting}", ""])


@dataclass(frozen=True)
class _Job:
    """A request's groups, and where its scores are awaited."""

    groups: Sequence[Group]
    done: Future[list[AnswerScore]]

    @property
    def size(self) -> int:
        return sum(len(group.answers) for group in self.groups)


class JudgeThread:
    """One thread that judges whatever requests wait, together: judges are not made for several threads.

    A daemon: Ctrl-C does not wait for a judge that thinks.
    """

    def __init__(self, scorer: Scorer, cache: JsonCache | None, batch_size: int) -> None:
        self.scorer, self.cache, self.batch_size = scorer, cache, batch_size
        self.metrics, self.waiting = Metrics(), 0
        self._jobs: queue.Queue[_Job] = queue.Queue()
        self._lock = threading.Lock()
        threading.Thread(target=self._run, daemon=True, name="judge").start()

    def submit(self, groups: Sequence[Group]) -> Future[list[AnswerScore]]:
        """Queue a request.

        Raises:
            RefusedError: too many answers wait.
        """
        job = _Job(groups, Future())
        with self._lock:
            if self.waiting and self.waiting + job.size > MOST_WAITING:
                raise RefusedError(503, f"{self.waiting} answers wait; come back later")
            self.waiting += job.size
        self._jobs.put(job)
        return job.done

    def _run(self) -> None:
        while True:
            taken = [self._jobs.get()]
            while sum(job.size for job in taken) < self.batch_size and not self._jobs.empty():
                taken.append(self._jobs.get())
            # A job that is running cannot be cancelled; else the others of its batch would fail with it.
            jobs = [job for job in taken if job.done.set_running_or_notify_cancel()]
            if jobs:
                self._answer(jobs)
            with self._lock:
                self.waiting -= sum(job.size for job in taken)

    def _answer(self, jobs: Sequence[_Job]) -> None:
        """Answer every request; a batch at which a judge fails unexpectedly is halved until the request at fault is alone.

        Whatever a judge of the user's own raises, `sys.exit` included, is the answer to that request; the server goes on.
        """
        try:
            self._judge(jobs)
        except BaseException as error:
            # A full disk is no request's fault, and each half would pay for its verdicts again.
            if len(jobs) > 1 and not isinstance(error, StorageError):
                middle = len(jobs) // 2
                self._answer(jobs[:middle])
                self._answer(jobs[middle:])
                return
            # An exit or a cancellation would end the server's event loop.
            failure = error if isinstance(error, Exception) else RuntimeError(f"{type(error).__name__}: {error}")
            log.warning("%s: %s", type(error).__name__, one_line(failure))
            for job in jobs:
                job.done.set_exception(failure)

    def _judge(self, jobs: Sequence[_Job]) -> None:
        started = time.perf_counter()
        outcomes = iter(self._outcomes([group for job in jobs for group in job.groups]))
        self.metrics.add("batches_total")
        self.metrics.add("judge_seconds_total", time.perf_counter() - started)
        # All before the first is answered: a request is answered once, and too few outcomes fail here.
        rows = [[next(outcomes) for _ in range(job.size)] for job in jobs]
        for job, own in zip(jobs, rows, strict=True):
            spent = [outcome for outcome in own if isinstance(outcome, BudgetError)]
            if spent:
                job.done.set_exception(spent[0])
            else:
                job.done.set_result([outcome for outcome in own if not isinstance(outcome, BudgetError)])

    def _outcomes(self, groups: Sequence[Group]) -> list[AnswerScore | BudgetError]:
        """Return the outcome of every answer, group by group: cached, or judged now."""
        keys = [[self._key(group, number) for number in range(len(group.answers))] for group in groups]
        cache = self.cache if self.scorer.versioned else None
        known = cache.get_many([key for row in keys for key in row]) if cache else {}
        by_key: dict[str, AnswerScore | BudgetError] = {
            key: AnswerScore(id="", score=stored["score"], reason=stored["reason"], cost_usd=0.0)
            for key, stored in known.items()
        }
        self.metrics.add('answers_total{from="cache"}', sum(key in by_key for row in keys for key in row))
        missing: list[Group] = []
        missing_keys: list[list[str]] = []
        for group, row in zip(groups, keys, strict=True):
            left = [number for number, key in enumerate(row) if key not in by_key]
            # An answer that is scored by the others of its group is scored with all of them.
            left = list(range(len(row))) if left and self.scorer.relative else left
            if left:
                missing.append(replace(group, answers=tuple(group.answers[number] for number in left)))
                missing_keys.append([row[number] for number in left])
        fresh: dict[str, Any] = {}
        for row, outcomes in zip(missing_keys, self.scorer.score(missing) if missing else [], strict=True):
            for key, outcome in zip(row, outcomes, strict=True):
                by_key[key] = outcome
                if isinstance(outcome, AnswerScore):
                    self._count(outcome)
                    if outcome.score is not None:
                        fresh[key] = {"score": outcome.score, "reason": outcome.reason}
        if cache and fresh:
            cache.put_many(fresh)
        return [by_key[key] for row in keys for key in row]

    def _count(self, outcome: AnswerScore) -> None:
        self.metrics.add(f'answers_total{{from="{"judge" if outcome.score is not None else "unscored"}"}}')
        self.metrics.add("cost_usd_total", outcome.cost_usd or 0.0)

    def _key(self, group: Group, number: int) -> str:
        """Return a hash of everything that an answer's score may depend on."""
        question = group.question
        sound = question.sound()
        sent: list[Any] = [question.transcript, question.style, None if sound is None else sound.digest]
        # Behind the rest, so that scores of questions without a history are found again.
        sent += [
            [turn.speaker, turn.text, None if (clip := read_sound(turn.clip)) is None else clip.digest]
            for turn in question.history
        ]
        own = [[answer.text, None if answer.clip is None else answer.clip.digest] for answer in group.answers]
        return key_of([self.scorer.label, sent, own[number], [own, number] if self.scorer.relative else []])


class Reader:
    """Reads requests: clips are decoded, and paths looked up below the folders that may be read."""

    def __init__(self, folders: Sequence[Path]) -> None:
        self.folders = [folder.resolve() for folder in folders]

    def read(self, data: bytes) -> tuple[list[Group], list[list[str | None]], list[str]]:
        """Return the groups, for each of their answers why it cannot be judged (None: it can), and all ids.

        Raises:
            RefusedError: not of the protocol.
        """
        try:
            request = ScoreRequest.model_validate_json(data)
        except ValidationError as error:
            raise RefusedError(422, first_problem(error, "request")) from error
        groups: list[Group] = []
        problems: list[list[str | None]] = []
        for sent in request.groups:
            group, wrong = self._group(sent)
            groups.append(group)
            problems.append(wrong)
        return groups, problems, [answer.id for sent in request.groups for answer in sent.answers]

    def _group(self, sent: SentGroup) -> tuple[Group, list[str | None]]:
        question_clip, problem = self._clip(sent.question.audio, "question")
        answers: list[GivenAnswer] = []
        problems: list[str | None] = []
        for answer in sent.answers:
            clip, wrong = self._clip(answer.audio, "answer")
            answers.append(GivenAnswer(0, answer.text or "", clip))
            problems.append(problem or wrong)
        history: list[SaidBefore] = []
        for number, turn in enumerate(sent.history or ()):
            clip, wrong = self._clip(turn.audio, f"history.{number}")
            history.append(SaidBefore(turn.speaker, turn.text or "", clip))
            problems = [problem or wrong for problem in problems]
        question = RewardQuestion(sent.id, None, sent.question.text or "", sent.question.style, question_clip, tuple(history))
        return Group(question, tuple(answers)), problems

    def _clip(self, sound: Sound | None, what: str) -> tuple[Clip | None, str | None]:
        """Return a clip, or why there is none."""
        if sound is None:
            return None, None
        try:
            return read_clip(self._source(sound)), None
        except (AudioError, binascii.Error) as error:
            return None, f"{what}.audio: {one_line(error)}"

    def _source(self, sound: Sound) -> bytes | Path:
        if sound.wav is not None:
            return base64.b64decode(sound.wav, validate=True)
        inside = [path for folder in self.folders if (path := path_inside(folder, sound.path or "")) is not None]
        if not inside:
            raise AudioError("the path is below no folder that this server reads (--audio FOLDER); send wav")
        return inside[0]


class AccessCheck:
    """Refuses what a browser's page may send, and requests without the token where there is one."""

    def __init__(self, app: ASGIApp, token: str | None) -> None:
        self.app, self.token = app, token

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request."""
        headers = Headers(scope=scope)
        given = headers.get("authorization", "").removeprefix("Bearer ")
        if "origin" in headers:
            await _error(403, "pages of a browser are not served")(scope, receive, send)
        elif self.token is not None and not secrets.compare_digest(given.encode(), self.token.encode()):
            await _error(401, "the token is missing or wrong: Authorization: Bearer TOKEN")(scope, receive, send)
        else:
            await self.app(scope, receive, send)


def _error(status: int, message: str) -> Response:
    headers = {"Retry-After": str(RETRY_AFTER_S)} if status == 503 else None
    return JSONResponse({"error": {"message": message}}, status, headers)


def make_app(
    judging: JudgeThread, folders: Sequence[Path] = (), token: str | None = None, hosts: Sequence[str] = HOSTS
) -> Starlette:
    """Return the application: `POST /score`, and `GET /health`, `/metrics` and `/schema`.

    Args:
        judging: the thread that judges.
        folders: folders whose files a request may name by their path.
        token: what a request must bear; None: nothing.
        hosts: names that a request may call this server by; "*": any.
    """
    scorer, reader = judging.scorer, Reader(folders)

    async def score(request: Request) -> Response:
        started = time.perf_counter()
        try:
            response = await _score(request, judging, reader)
        except RefusedError as error:
            response = _error(error.status, one_line(error))
        except BudgetError as error:
            response = _error(SPENT_STATUS, one_line(error))
        except Exception as error:
            response = _error(500, f"{type(error).__name__}: {one_line(error)}")
        judging.metrics.add(f'requests_total{{status="{response.status_code}"}}')
        judging.metrics.add("request_seconds_total", time.perf_counter() - started)
        return response

    async def health(request: Request) -> Response:
        about = {"protocol": PROTOCOL, "judge": scorer.label, "low": scorer.low, "high": scorer.high}
        return JSONResponse({"status": "ok", **about, "needs": list(scorer.needs), "waiting": judging.waiting})

    async def metrics(request: Request) -> Response:
        return PlainTextResponse(judging.metrics.text(judging.waiting))

    async def schema(request: Request) -> Response:
        return JSONResponse(protocol_schema())

    return Starlette(
        routes=[
            Route("/score", score, methods=["POST"]),
            *(Route(f"/{page.__name__}", page) for page in (health, metrics, schema)),
        ],
        middleware=[
            Middleware(TrustedHostMiddleware, allowed_hosts=list(hosts), www_redirect=False),
            Middleware(AccessCheck, token=token),
        ],
    )


async def _score(request: Request, judging: JudgeThread, reader: Reader) -> Response:
    """Score one request.

    Raises:
        RefusedError: not of the protocol. BudgetError: the judge's budget is spent.
    """
    if request.headers.get("content-type", "").partition(";")[0].strip() != "application/json":
        raise RefusedError(415, "send Content-Type: application/json")
    body = bytearray()
    async for part in request.stream():
        body += part
        if len(body) > LARGEST_BODY_BYTES:
            raise RefusedError(413, f"a body of more than {LARGEST_BODY_BYTES >> 20} MiB; send fewer answers at once")
    groups, problems, ids = await asyncio.to_thread(reader.read, bytes(body))
    kept = [_without(group, wrong) for group, wrong in zip(groups, problems, strict=True)]
    judged = await asyncio.wrap_future(judging.submit([group for group in kept if group.answers]))
    outcomes = iter(judged)
    flat = [next(outcomes) if wrong is None else unscored(wrong) for row in problems for wrong in row]
    scores = [outcome.model_copy(update={"id": id_}) for id_, outcome in zip(ids, flat, strict=True)]
    scorer = judging.scorer
    reply = ScoreReply(judge=scorer.label, low=scorer.low, high=scorer.high, scores=scores)
    return Response(reply.model_dump_json(exclude_none=True), media_type="application/json")


def _without(group: Group, problems: Sequence[str | None]) -> Group:
    """Return a group without the answers that cannot be read."""
    return replace(group, answers=tuple(a for a, wrong in zip(group.answers, problems, strict=True) if wrong is None))
