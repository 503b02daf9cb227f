"""The curves of a run: which metrics are in which plot, and the rows of metrics.jsonl as they come."""

from __future__ import annotations

import json
import math
import zlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

REWARD_PREFIX, PHASE_PREFIX = "reward/", "seconds_"
SOURCES, PARITY = "Reward by source", "Sampler against learner"
# Nats a token by which sampler and learner differ in every run, since floating-point sums have an order.
ROUNDING = 1e-3


@dataclass(frozen=True)
class Plot:
    """A plot: its title, unit, and the metrics in it with their names. `stacked` plots add up to what a step took."""

    title: str
    unit: str
    lines: tuple[tuple[str, str], ...]
    stacked: bool = False


PLOTS = (
    Plot("Reward", "score", (("reward_mean", "training"), ("validation_reward", "validation"))),
    Plot("Preferences", "share", (("preference_accuracy", "told rightly"),)),
    Plot("Implicit rewards", "nats", (("chosen_reward", "chosen"), ("rejected_reward", "rejected"))),
    Plot("Spread of rewards", "score", (("reward_std", "standard deviation"),)),
    Plot("KL to the warm-up", "nats", (("kl", "of the objective"), ("kl_text", "text"), ("kl_audio", "audio"))),
    Plot("Entropy", "nats a token", (("entropy_text", "text"), ("entropy_audio", "audio"))),
    Plot("Length of answers", "steps", (("length_steps", "mean"),)),
    Plot("Same text", "share of answers", (("same_text_share", "most frequent text"),)),
    Plot("Gradient norm", "", (("grad_norm", "before clipping"),)),
    Plot("Clipped", "share", (("clipped_share", "of the ratios"),)),
    Plot(PARITY, "nats a token", (("parity_text_mean", "text"), ("parity_audio_mean", "audio"))),
    Plot("Unscored, cut off and flat", "count",
         (("unscored", "unscored answers"), ("truncated", "cut off"), ("zero_spread_groups", "groups without spread"))),
    Plot("Staleness", "updates", (("staleness", "mean"),)),
    Plot("Time of a step", "s", (("seconds", "in all"),)),
)  # fmt: skip


def plots_for(keys: Iterable[str]) -> list[Plot]:
    """Return the plots with at least one line among these metrics, plus those of the reward's sources and of the phases."""
    present = list(dict.fromkeys(keys))
    plots = [Plot(plot.title, plot.unit, tuple(line for line in plot.lines if line[0] in present)) for plot in PLOTS]
    sources = tuple((key, key.removeprefix(REWARD_PREFIX)) for key in present if key.startswith(REWARD_PREFIX))
    phases = tuple((key, key.removeprefix(PHASE_PREFIX).replace("_", " ")) for key in present if key.startswith(PHASE_PREFIX))
    plots.insert(1, Plot(SOURCES, "score", sources))
    plots.append(Plot("Phases of a step", "s", phases, stacked=True))
    return [plot for plot in plots if plot.lines]


def quiet_plots(plots: Iterable[Plot], rows: Sequence[dict[str, Any]]) -> set[str]:
    """Return the titles of plots without signal: lines that never move, differ by rounding alone, or repeat the reward."""
    quiet = set()
    for plot in plots:
        lines = [[value for row in rows if isinstance(value := row.get(key), int | float)] for key, _ in plot.lines]
        floor = ROUNDING if plot.title == PARITY else 0.0
        still = all(max(values, default=0.0) - min(values, default=0.0) <= floor for values in lines)
        repeats = plot.title == SOURCES and lines == [
            [row["reward_mean"] for row in rows if row.get("reward_mean") is not None]
        ]
        if (still and len(rows) > 1) or repeats:
            quiet.add(plot.title)
    return quiet


@dataclass(frozen=True)
class LogPart:
    """The rows of a log after a byte, where the next part begins, and whether this part starts the log again."""

    rows: list[dict[str, Any]]
    offset: int
    file: str
    anew: bool


def _finite(text: str) -> float | int | None:
    """Return a number of a log; None for a number that no curve can show (1e999 is JSON, and infinite)."""
    number = float(text)
    if not math.isfinite(number):
        return None
    return int(number) if number.is_integer() and text.lstrip("-").isdigit() else number


def _bytes_before(log: BinaryIO, offset: int) -> str:
    """Return a checksum of the last bytes before an offset, which the rows' seconds tell from those of any other log."""
    log.seek(max(0, offset - 1000))
    return f"{offset}-{zlib.crc32(log.read(min(1000, offset)))}"


def read_log(path: Path | None, offset: int = 0, file: str = "") -> LogPart:
    """Return the complete rows after `offset`, of a log that may be growing.

    A resumed run replaces its log, and the rows before `offset` are others: then all rows are given again. `file` names the
    bytes before it, as the inode of a removed log may be the new one's. A line that is no JSON object is left out, so that
    one broken line does not hide the others.
    """
    if path is None:
        return LogPart([], 0, "", anew=offset > 0)
    with path.open("rb") as log:
        anew = offset == 0 or file != _bytes_before(log, offset)
        start = 0 if anew else offset
        log.seek(start)
        data = log.read()
        end = data.rfind(b"\n") + 1
        file = _bytes_before(log, start + end)
    rows = []
    for line in data[:end].splitlines():
        try:
            row = json.loads(line, parse_constant=lambda _: None, parse_float=_finite, parse_int=_finite)
        except (ValueError, OverflowError, RecursionError):
            continue
        if isinstance(row, dict) and isinstance(row.get("step"), int):
            rows.append(row)
    return LogPart(rows, start + end, file, anew)
