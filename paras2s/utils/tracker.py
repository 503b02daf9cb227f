"""Trackers beside a run's own log: curves, and answers to hear. Off by default, and never a reason to stop.

A run names them in `trackers`; WANDB_API_KEY or WANDB_MODE=offline asks for Weights & Biases as well. Their own variables hold
(WANDB_MODE, WANDB_PROJECT, TRACKIO_SPACE_ID ...). What a tracker cannot do is said once, and the process leaves it out from
then on.
"""

from __future__ import annotations

import atexit
import contextlib
import importlib.util
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from paras2s.errors import one_line
from paras2s.utils.tables import Table

# Without a network its own wait is a minute and a half.
START_TIMEOUT_S = 20
Say = Callable[[str], None]
# Samples in -1 to 1 and their rate in Hz.
Sound = tuple[np.ndarray, int]


@dataclass(frozen=True)
class TrackedAnswer:
    """A question, an answer to hear, and its scores by name; `unscored` says why there are none. None: no sound."""

    query_id: str
    question: Sound | None
    transcript: str
    answer: Sound | None
    text: str
    scores: Mapping[str, float] = field(default_factory=dict)
    unscored: str = ""


class Tracker(Protocol):
    """A tracker of a run, opened at its first step."""

    def log(self, step: int, values: Mapping[str, float]) -> None:
        """Log the values of a step."""

    def log_answers(self, step: int, answers: Sequence[TrackedAnswer]) -> None:
        """Log a step's answers."""

    def close(self) -> None:
        """Write all that is pending; nothing is logged afterwards."""


def _table(answers: Sequence[TrackedAnswer]) -> tuple[list[str], list[list[Any]]]:
    """Return columns and rows of answers, without their sound."""
    names = list(dict.fromkeys(name for answer in answers for name in answer.scores))
    rows = [
        [answer.query_id, answer.transcript, answer.text, *map(answer.scores.get, names), answer.unscored] for answer in answers
    ]
    return ["query", "transcript", "text", *names, "unscored"], rows


def _sounds(answers: Sequence[TrackedAnswer]) -> dict[str, tuple[Sound, str]]:
    """Return each sound with its words, by a name that is the same in every step."""
    named = {}
    for number, answer in enumerate(answers):
        for part, sound, words in (("question", answer.question, answer.transcript), ("answer", answer.answer, answer.text)):
            if sound is not None:
                named[f"answers/{number} {part}"] = sound, words
    return named


class _WeightsAndBiases:
    """A table of answers whose rows play."""

    def __init__(self, folder: Path, name: str, first_step: int) -> None:
        import wandb

        settings = wandb.Settings(init_timeout=START_TIMEOUT_S, silent=True)
        project = os.environ.get("WANDB_PROJECT", "paras2s")
        self._run = wandb.init(project=project, name=name, dir=str(folder), resume="allow", settings=settings)

    def log(self, step: int, values: Mapping[str, float]) -> None:
        self._run.log({"step": step, **values}, step=step)

    def log_answers(self, step: int, answers: Sequence[TrackedAnswer]) -> None:
        import wandb

        columns, rows = _table(answers)
        played = [
            [None if sound is None else wandb.Audio(sound[0], sample_rate=sound[1]) for sound in (row.question, row.answer)]
            for row in answers
        ]
        data = [[*row, *sounds] for row, sounds in zip(rows, played, strict=True)]
        self._run.log({"answers": wandb.Table(columns=[*columns, "question", "answer"], data=data)}, step=step)

    def close(self) -> None:
        self._run.finish()


class _Trackio:
    """A table of answers, and their sounds beside it: its tables show no sound."""

    def __init__(self, folder: Path, name: str, first_step: int) -> None:
        import trackio

        project = os.environ.get("TRACKIO_PROJECT", "paras2s")
        # A folder's name tells seeds apart. A run that begins again is a new run.
        resume = "allow" if first_step else "never"
        # It prints; our standard output may be JSON.
        self._trackio = trackio
        with contextlib.redirect_stdout(sys.stderr):
            self._run = trackio.init(project=project, name=folder.name, resume=resume, embed=False)
        # Before its own, which prints as well.
        atexit.register(self.close)

    def log(self, step: int, values: Mapping[str, float]) -> None:
        self._run.log(dict(values), step=step)

    def log_answers(self, step: int, answers: Sequence[TrackedAnswer]) -> None:
        columns, rows = _table(answers)
        # It turns floats up to full scale, integers not.
        sounds = {
            name: self._trackio.Audio((samples.clip(-1, 1) * 32767).astype(np.int16), sample_rate=rate_hz, caption=words)
            for name, ((samples, rate_hz), words) in _sounds(answers).items()
        }
        self._run.log({"answers": self._trackio.Table(columns=columns, data=rows), **sounds}, step=step)

    def close(self) -> None:
        atexit.unregister(self.close)
        # The package's own `finish`: a run that only finishes itself is finished, and printed, again at the exit.
        with contextlib.redirect_stdout(sys.stderr):
            self._trackio.finish()


class _TensorBoard:
    """Files in RUN/tensorboard: curves, the answers' sounds, and a table of their texts and scores."""

    def __init__(self, folder: Path, name: str, first_step: int) -> None:
        from torch.utils.tensorboard import SummaryWriter

        # Steps that are done again take the place of their old values.
        self._writer = SummaryWriter(str(folder / "tensorboard"), purge_step=first_step)

    def log(self, step: int, values: Mapping[str, float]) -> None:
        for name, value in values.items():
            self._writer.add_scalar(name, value, step)
        self._writer.flush()

    def log_answers(self, step: int, answers: Sequence[TrackedAnswer]) -> None:
        columns, rows = _table(answers)
        table = Table(columns, [["" if cell is None else str(cell) for cell in row] for row in rows])
        self._writer.add_text("answers", table.markdown(), step)
        for name, ((samples, rate_hz), _) in _sounds(answers).items():
            self._writer.add_audio(name, samples.clip(-1, 1), step, sample_rate=rate_hz)
        self._writer.flush()

    def close(self) -> None:
        self._writer.close()


@dataclass(frozen=True)
class _Kind:
    """A tracker's name for people, its package, which is also the extra that installs it, and how it is opened."""

    title: str
    package: str
    open: Callable[[Path, str, int], Tracker]


KINDS = {
    "wandb": _Kind("Weights & Biases", "wandb", _WeightsAndBiases),
    "trackio": _Kind("Trackio", "trackio", _Trackio),
    "tensorboard": _Kind("TensorBoard", "tensorboard", _TensorBoard),
}
# By kind: those of this process that failed, and the open one with its run's folder.
_failed: set[str] = set()
_opened: dict[str, tuple[Path, Tracker]] = {}


@dataclass(frozen=True)
class Trackers:
    """The trackers of a run, by `requested` and by the environment; each opens at the first step."""

    requested: tuple[str, ...]
    folder: Path
    name: str
    say: Say

    @property
    def kinds(self) -> list[str]:
        """The requested kinds that have not failed."""
        requested = {**dict.fromkeys(self.requested), **({"wandb": None} if _wandb_is_requested() else {})}
        return [kind for kind in requested if kind not in _failed and not (kind == "wandb" and _wandb_is_off())]

    def check(self) -> None:
        """Say before the first stage which requested one is not installed."""
        for kind in self.kinds:
            if importlib.util.find_spec(KINDS[kind].package) is None:
                self._end(kind, f"it is not installed: pip install 'paras2s[{kind}]'")

    def log(self, row: Mapping[str, Any]) -> None:
        """Log a step's numbers; None and what is no number are left to the run's own log."""
        step = int(row["step"])
        values = {name: value for name, value in row.items() if isinstance(value, int | float) and name != "step"}
        self._each(step, lambda tracker: tracker.log(step, values))

    def log_answers(self, step: int, answers: Callable[[], Sequence[TrackedAnswer]]) -> None:
        """Log answers of a step, which are made only if a tracker is requested."""
        self._each(step, lambda tracker: tracker.log_answers(step, answers()))

    def _each(self, step: int, work: Callable[[Tracker], None]) -> None:
        for kind in self.kinds:
            try:
                work(self._open(kind, step))
            # Whatever another maker's library, a network or a disk does, the run goes on.
            except Exception as error:
                self._end(kind, f"{type(error).__name__}: {one_line(error)[:200]}")
            except SystemExit:
                self._end(kind, "it ended the process")

    def _open(self, kind: str, step: int) -> Tracker:
        folder, tracker = _opened.get(kind, (None, None))
        if folder != self.folder or tracker is None:
            if tracker is not None:
                del _opened[kind]
                tracker.close()
            tracker = KINDS[kind].open(self.folder, self.name, step)
            _opened[kind] = self.folder, tracker
        return tracker

    def _end(self, kind: str, why: str) -> None:
        _failed.add(kind)
        self.say(f"  {KINDS[kind].title} is left out ({why}); the run's own log has every step")


def _wandb_is_off() -> bool:
    off = os.environ.get("WANDB_MODE", "") in ("disabled", "dryrun")
    return off or os.environ.get("WANDB_DISABLED", "").lower() in ("true", "1")


def _wandb_is_requested() -> bool:
    return bool(os.environ.get("WANDB_API_KEY")) or os.environ.get("WANDB_MODE") == "offline"
