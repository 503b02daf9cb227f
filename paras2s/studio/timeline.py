"""The timeline of a run's workers, `/timeline`: who worked and who waited in a few steps of GRPO."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from markupsafe import Markup
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Route

from paras2s.rollout.timeline import FILE
from paras2s.studio.curves import read_log
from paras2s.studio.run_state import RunFiles
from paras2s.studio.web import Studio, integer_of

# Roles from the loop down; what a later version may add comes last.
ROLES = ("loop", "learner", "rollout", "speak", "reward")
# Steps that are shown at once, unless the address says otherwise.
STEPS_SHOWN = 3
WIDTH, LANE, BAR, LEFT, RIGHT, TOP, BOTTOM = 1100, 26, 18, 96, 12, 8, 30
COLOURS = 6
WAIT = "wait"


@dataclass(frozen=True)
class Piece:
    """A span of a lane, in seconds from the first one shown."""

    work: str
    start_s: float
    end_s: float


@dataclass(frozen=True)
class Lane:
    """One worker: its short name, its full one, and its pieces. `busy_s` leaves out what it waited and counts no time twice."""

    name: str
    worker: str
    pieces: tuple[Piece, ...]

    @property
    def role(self) -> str:
        """Its role: the first word of its name."""
        return self.name.split(" ")[0]

    @property
    def busy_s(self) -> float:
        """Seconds in which it worked."""
        busy, until = 0.0, -math.inf
        for piece in sorted(self.pieces, key=lambda piece: piece.start_s):
            if not piece.work.startswith(WAIT):
                busy += max(0.0, piece.end_s - max(piece.start_s, until))
                until = max(until, piece.end_s)
        return busy

    def seconds_by_work(self) -> dict[str, float]:
        """Return seconds of each kind of work, the longest first."""
        seconds: dict[str, float] = {}
        for piece in self.pieces:
            seconds[piece.work] = seconds.get(piece.work, 0.0) + piece.end_s - piece.start_s
        return dict(sorted(seconds.items(), key=lambda item: -item[1]))


def lanes_of(rows: Sequence[dict[str, Any]]) -> list[Lane]:
    """Return the workers of these steps and their work. Spans that cannot be read are left out."""
    spans = [span for row in rows for span in _spans(row)]
    first = min((start for _, _, start, _ in spans), default=0.0)
    pieces: dict[str, list[Piece]] = {}
    for worker, work, start, end in spans:
        pieces.setdefault(worker, []).append(Piece(work, start - first, end - first))
    counts: dict[str, int] = {}
    lanes = []
    for worker in sorted(pieces, key=lambda name: (_place(name), name)):
        role = worker.split(" ")[0]
        counts[role] = counts.get(role, 0) + 1
        lanes.append(Lane(f"{role} {counts[role]}" if role != ROLES[0] else role, worker, tuple(pieces[worker])))
    return lanes


def _place(worker: str) -> int:
    role = worker.split(" ")[0]
    return ROLES.index(role) if role in ROLES else len(ROLES)


def _spans(row: dict[str, Any]) -> list[tuple[str, str, float, float]]:
    readable, spans = [], row.get("spans")
    for span in spans if isinstance(spans, list) else []:
        try:
            worker, work, start, end = str(span["worker"]), str(span["work"]), float(span["start_s"]), float(span["end_s"])
        except (TypeError, KeyError, ValueError):
            continue
        if end >= start:
            readable.append((worker, work, start, end))
    return readable


def styles_of(lanes: Sequence[Lane]) -> dict[tuple[str, str], str]:
    """Return the style of each (role, work): a colour of the role's own, or that of waiting."""
    styles: dict[tuple[str, str], str] = {}
    for lane in lanes:
        for work in lane.seconds_by_work():
            if (lane.role, work) not in styles:
                number = sum(role == lane.role and style != "waits" for (role, _), style in styles.items())
                styles[lane.role, work] = "waits" if work.startswith(WAIT) else f"work-{number % COLOURS}"
    return styles


def draw_lanes(lanes: Sequence[Lane]) -> Markup:
    """Draw a line for each worker, a bar for each piece of work; the same figures are in the page's table."""
    length_s = max((piece.end_s for lane in lanes for piece in lane.pieces), default=0.0) or 1.0
    styles = styles_of(lanes)
    height = TOP + LANE * len(lanes) + BOTTOM

    def x_of(time_s: float) -> float:
        return LEFT + time_s / length_s * (WIDTH - LEFT - RIGHT)

    parts = [Markup('<svg class="timeline" viewBox="0 0 {} {}" role="img" aria-label="{}">').format(
        WIDTH, height, "What each worker did, over time")]  # fmt: skip
    for tick in (time_s for time_s in round_ticks(0.0, length_s) if 0 <= time_s <= length_s):
        x = x_of(tick)
        parts.append(Markup('<path class="grid" d="M{:.1f} {}V{}"/>').format(x, TOP, height - BOTTOM))
        parts.append(Markup('<text class="x" x="{:.1f}" y="{}">{:g} s</text>').format(x, height - BOTTOM + 16, tick))
    bar = Markup('<rect class="{}" x="{:.2f}" y="{}" width="{:.2f}" height="{}"><title>{}</title></rect>')
    for number, lane in enumerate(lanes):
        y = TOP + LANE * number
        parts.append(Markup('<text class="y" x="{}" y="{:.1f}">{}</text>').format(LEFT - 8, y + LANE / 2, lane.name))
        for piece in lane.pieces:
            left, width = x_of(piece.start_s), max(0.8, x_of(piece.end_s) - x_of(piece.start_s))
            says = f"{lane.name}: {piece.work}, {piece.end_s - piece.start_s:.2f} s from {piece.start_s:.2f} s"
            parts.append(bar.format(styles[lane.role, piece.work], left, y + (LANE - BAR) / 2, width, BAR, says))
    return Markup("").join([*parts, Markup("</svg>")])


def routes(studio: Studio) -> list[BaseRoute]:
    """`/timeline?run=ADDRESS`, of the last steps, or with `&step=N` of those up to step N."""

    def show(request: Request) -> Response:
        address = request.query_params.get("run", "")
        files = RunFiles(studio.folders, address)
        rows = read_log(files.path(FILE)).rows
        steps = sorted({row["step"] for row in rows})
        last = min(integer_of(request, "step", steps[-1]), steps[-1]) if steps else 0
        shown = [step for step in steps if step <= last][-max(1, integer_of(request, "steps", STEPS_SHOWN)) :]
        lanes = lanes_of([row for row in rows if row["step"] in shown])
        length_s = max((piece.end_s for lane in lanes for piece in lane.pieces), default=0.0)
        return studio.run_page(
            request,
            "timeline.html.j2",
            address,
            files.problems,
            lanes=lanes,
            styles=styles_of(lanes),
            drawing=draw_lanes(lanes) if lanes else None,
            length_s=length_s,
            shown=shown,
            before=max((step for step in steps if shown and step < shown[0]), default=None),
            after=min((step for step in steps if shown and step > shown[-1]), default=None),
            # A copy holds the last steps alone.
            can_turn=studio.export is None,
        )

    return [Route("/timeline", show)]


def round_ticks(low: float, high: float) -> list[float]:
    """Return round numbers, a 1, 2 or 5 times a power of ten apart, that reach from at most `low` to at least `high`."""
    if math.isclose(low, high, rel_tol=1e-9):
        return [low]
    rough = (high - low) / 4
    power = 10.0 ** math.floor(math.log10(rough))
    gap = next(factor * power for factor in (1, 2, 5, 10) if factor * power >= rough)
    return [index * gap for index in range(math.floor(low / gap), math.ceil(high / gap) + 1)]
