"""An annotator's clicks and what they come to. Pure functions: no file, no clock.

Everything an annotator does is a click that is appended and never changed; an undo is one, too. The state is what remains when
all clicks are replayed in the order in which they were stored. No clock decides anything: times are carried along.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Literal, get_args

from paras2s.studies.forms import Form
from paras2s.types import Label
from paras2s.utils.seeds import seed_of

Action = Literal["choose", "submit", "skip", "comment", "play", "undo"]
ACTIONS: tuple[Action, ...] = get_args(Action)
UNDOABLE = ("choose", "submit", "skip")
MAX_COMMENT_CHARACTERS = 2_000
# A tab that lay open over night says nothing about an item.
LONGEST_VIEW_MS = 3_600_000.0
OTHER_SIDE: dict[str, str] = {"1": "2", "2": "1"}


@dataclass(frozen=True)
class Click:
    """One thing an annotator did on item number `item` of the study.

    `id` is the page's own name for it: sent twice, it counts once. `name` is the question of a choice or the clip that was
    played ("question", "1", "2"); `value` is a choice's value, a comment's text or why an item is skipped. Both name the
    answers as the study has them, whatever side they stood on. `view` names one showing of the item, and `shown_ms` is how long
    it had been shown, by the page's monotonic clock; None if that clock made no sense.
    """

    id: str
    item: int
    action: Action
    name: str = ""
    value: str = ""
    view: str = ""
    shown_ms: float | None = None


@dataclass
class ItemState:
    """The state of one item. `skipped` is the reason why it has no answers, and `closed` says whether it is done."""

    choices: dict[str, str] = field(default_factory=dict)
    plays: dict[str, int] = field(default_factory=dict)
    comment: str = ""
    closed: bool = False
    skipped: str | None = None
    shown_ms: dict[str, float] = field(default_factory=dict)

    @property
    def time_s(self) -> float | None:
        """The time for which the item was shown, all its showings together; None if no clock told."""
        return sum(self.shown_ms.values()) / 1000 if self.shown_ms else None


@dataclass(frozen=True)
class Progress:
    """All items of one annotator by their number in the study, and whether there is a click to undo."""

    items: dict[int, ItemState]
    can_undo: bool

    def item(self, number: int) -> ItemState:
        """Return the state of an item; a fresh state if nothing was done on it."""
        return self.items.get(number, ItemState())


@dataclass(frozen=True)
class Place:
    """One place in an annotator's order: the item's number in the study, and whether its two answers change sides."""

    item: int
    flipped: bool


def order_of(seed: int, items: int, two_sided: bool) -> tuple[Place, ...]:
    """Return an annotator's random order and, of pairs, the sides, half of them flipped. Hashes: stable over releases."""
    flips = sorted(range(items), key=lambda item: (seed_of(seed, "side", item), item))
    flipped = set(flips[: items // 2]) if two_sided else set()
    return tuple(
        Place(item, item in flipped) for item in sorted(range(items), key=lambda item: (seed_of(seed, "order", item), item))
    )


def other_side(name: str, flipped: bool) -> str:
    """Return a label or a clip's name from the other side, with answers exchanged; text that names no answer stays."""
    return OTHER_SIDE.get(name, name) if flipped else name


def as_shown(state: ItemState, flipped: bool) -> ItemState:
    """Return the state of an item as its annotator sees it, with the answers on their sides."""
    return replace(
        state,
        choices={name: other_side(value, flipped) for name, value in state.choices.items()},
        plays={other_side(name, flipped): count for name, count in state.plays.items()},
    )


def replay(clicks: Sequence[Click]) -> Progress:
    """Return the state after all clicks."""
    undone: set[int] = set()
    standing: list[int] = []
    for at, click in enumerate(clicks):
        if click.action in UNDOABLE:
            standing.append(at)
        elif click.action == "undo" and standing:
            undone.add(standing.pop())
    items: dict[int, ItemState] = {}
    for at, click in enumerate(clicks):
        state = items.setdefault(click.item, ItemState())
        _count_time(state, click)
        if at not in undone:
            _apply(state, click)
    return Progress(items, bool(standing))


def _apply(state: ItemState, click: Click) -> None:
    if click.action == "choose":
        state.choices[click.name] = click.value
    elif click.action == "play":
        state.plays[click.name] = state.plays.get(click.name, 0) + 1
    elif click.action == "comment":
        state.comment = click.value
    elif click.action in ("submit", "skip"):
        state.closed = True
        state.skipped = click.value if click.action == "skip" else None


def _count_time(state: ItemState, click: Click) -> None:
    # A view's time is the largest it reports: a clock that goes back takes nothing away, a leap is cut.
    if click.shown_ms is not None and click.view:
        state.shown_ms[click.view] = max(state.shown_ms.get(click.view, 0.0), min(click.shown_ms, LONGEST_VIEW_MS))


def clock_ms(value: object) -> float | None:
    """Return a page's time as a number; None if invalid, negative or not finite: no click is refused for its clock."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value) or value < 0:
        return None
    return float(value)


def missing(form: Form, state: ItemState) -> list[str]:
    """Return everything that is left to do before an item can be submitted, in words."""
    clips = [str(number) for number in range(1, form.answers + 1)]
    if form.takes:
        clips = [value for value in state.choices.values() if value in clips]
    unplayed = any(not state.plays.get(clip) for clip in clips)
    # Without a number, since annotators may see the two in the other order.
    what = "the take that you accept" if form.takes else "both answers" if form.answers > 1 else "the recording"
    left = [f"listen to {what}"] if unplayed else []
    return left + [question.title for question in form.questions if question.name not in state.choices]


def refusal(form: Form, items: int, progress: Progress, click: Click) -> str | None:
    """Return why a click cannot be taken, in words for the annotator; None if it can."""
    if not 0 <= click.item < items:
        return "there is no such item in this study"
    state = progress.item(click.item)
    if click.action == "undo":
        return None if progress.can_undo else "there is nothing to undo"
    if click.action in UNDOABLE and state.closed:
        return "this item is done already, perhaps in another tab; undo takes that back"
    if click.action == "choose":
        return _choice_refusal(form, state, click)
    if click.action == "submit" and (left := missing(form, state)):
        return f"still to do: {', '.join(left)}"
    if click.action == "skip" and not click.value.strip():
        return "say why this item cannot be judged"
    if click.action == "play" and click.name not in ("question", *(str(n) for n in range(1, form.answers + 1))):
        return "there is no such clip"
    if len(click.value) > MAX_COMMENT_CHARACTERS:
        return f"a comment may have {MAX_COMMENT_CHARACTERS} characters"
    return None


def _choice_refusal(form: Form, state: ItemState, click: Click) -> str | None:
    question = form.question(click.name)
    if question is None or click.value not in question.values:
        return "the form has no such answer"
    others = [other.title for other in form.questions if other.name != question.name and other.name not in state.choices]
    if question.comes_last and others:
        return f"{question.title} comes last; first {', '.join(others)}"
    return None


def label_of_scores(first: float, second: float, acceptable_from: float) -> Label:
    """Return the typed label of two scores, by TRACE's rule (3.2): acceptability first, then the better one."""
    good = (first >= acceptable_from, second >= acceptable_from)
    if good[0] != good[1]:
        return "1" if good[0] else "2"
    if not good[0]:
        return "both_bad"
    return "both_good" if first == second else "1" if first > second else "2"
