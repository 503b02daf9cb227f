"""The human check (ParaS2S, section 3.1, step 5, and section 4.1): annotators listen, and accept or reject.

A query has one clip: are the words and the style right? A spoken answer has several takes, of which one is picked: an annotator
may pick another one, or none. Decisions go to a JSONL file at once, so the check can be left and taken up again at any
point, and several people can check the same items into the same file, one after the other or side by side.
"""

from __future__ import annotations

import json
import re
import statistics
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from paras2s.errors import ConfigError, DataError, StorageError, first_problem
from paras2s.utils.io import append_jsonl, read_jsonl

ANNOTATOR = re.compile(r"[\w.-]{1,40}")
# Fewer decisions than this say too little about the pace.
PACE_MIN_DECISIONS = 3


@dataclass(frozen=True)
class CheckItem:
    """An item to check. Made by the pipeline; read by the page."""

    id: str
    kind: Literal["query", "answer"]
    text: str  # the intended words
    style: str  # the intended style
    clips: tuple[Path, ...]  # a query has one; an answer has its takes
    picked: int  # the take that is used now (0 for a query)
    details: dict[str, str]  # shown small: category, transcript, word error rate, ...


@dataclass(frozen=True)
class Decision:
    """An annotator's decision on an item; as an outcome of `judge_items`, that of all annotators together."""

    item_id: str
    annotator: str
    accept: bool
    choice: int | None = None  # another take than the picked one, counted from 0
    note: str = ""


class _Row(BaseModel):
    """A line of the file: a decision, or an undo of the annotator's latest one on this item."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)

    item_id: str = Field(min_length=1)
    annotator: str = Field(min_length=1)
    accept: bool | None = None
    choice: int | None = Field(default=None, ge=0)
    note: str = ""
    undo: bool = False

    @model_validator(mode="after")
    def _check(self) -> _Row:
        if (self.accept is None) != self.undo:
            raise ValueError("give either 'accept' or 'undo', and not both")
        return self


def load_decisions(path: Path) -> list[Decision]:
    """Loads the valid decisions in the order they were made: an annotator's last one on each item, unless undone.

    No file means no decisions.

    Raises:
        DataError: a line is not a decision; names the file and the line.
    """
    if not path.exists():
        return []
    made: dict[tuple[str, str], list[tuple[int, Decision]]] = {}
    for number, values in enumerate(read_jsonl(path), 1):
        try:
            row = _Row.model_validate(values)
        except ValidationError as error:
            raise DataError(f"{path}:{number}: {first_problem(error)}; mend or remove the line") from error
        earlier = made.setdefault((row.item_id, row.annotator), [])
        if row.accept is not None:
            earlier.append((number, Decision(row.item_id, row.annotator, row.accept, row.choice, row.note)))
        elif earlier:
            earlier.pop()
        else:
            raise DataError(
                f"{path}:{number}: {row.annotator} takes back a decision on {row.item_id!r} that no line above holds; "
                "mend or remove the line"
            )
    binding = sorted((decisions[-1] for decisions in made.values() if decisions), key=lambda one: one[0])
    return [decision for _, decision in binding]


def judge_items(decisions: Sequence[Decision], annotators_needed: int = 1) -> dict[str, Decision | str]:
    """Returns the outcome of every item with a decision.

    All annotators of an item vote, also those beyond `annotators_needed`. An outcome names all of them and joins their notes.

    Args:
        decisions: in the order they were made; of an annotator's decisions on an item, the last binds.
        annotators_needed: with fewer, the item's outcome is a line that begins with "waiting".

    Returns:
        By item: a `Decision` (accepted if more than half accept, with the take most of those name; of takes named equally
        often, that of the earliest voter) or the line "waiting: 1 of 3 annotators".

    Raises:
        ConfigError: `annotators_needed` is below 1.
    """
    if annotators_needed < 1:
        raise ConfigError(f"annotators_needed: {annotators_needed} is no number of people; give 1 or more")
    votes: dict[str, dict[str, Decision]] = {}
    for decision in decisions:
        of_item = votes.setdefault(decision.item_id, {})
        # Inserted anew, so that the order is that of the valid votes.
        of_item.pop(decision.annotator, None)
        of_item[decision.annotator] = decision
    return {item_id: _outcome(list(of_item.values()), annotators_needed) for item_id, of_item in votes.items()}


def _outcome(votes: Sequence[Decision], annotators_needed: int) -> Decision | str:
    if len(votes) < annotators_needed:
        return f"waiting: {len(votes)} of {annotators_needed} annotators"
    choices = [vote.choice for vote in votes if vote.accept]
    accept = 2 * len(choices) > len(votes)
    return Decision(
        votes[0].item_id,
        ", ".join(vote.annotator for vote in votes),
        accept,
        # Of equal counts, `most_common` returns the first one.
        Counter(choices).most_common(1)[0][0] if accept else None,
        "; ".join(vote.note for vote in votes if vote.note),
    )


class CheckSession:
    """The check of a list of items by one annotator: what is pending, and where decisions go. No HTTP; not thread-safe."""

    def __init__(self, items: Sequence[CheckItem], path: Path, annotator: str) -> None:
        """Continues the check where this annotator left it.

        Raises:
            ConfigError: the name is empty, too long or has other characters than letters, digits, dot, dash, underscore.
            DataError: the items or the file's rows are wrong, or the file is about other takes.
            StorageError: the disk refused.
        """
        if not ANNOTATOR.fullmatch(annotator):
            raise ConfigError(
                f"annotator: {annotator!r} is no name for a file; use 1 to 40 letters, digits, dots, dashes, underscores"
            )
        self.items = tuple(items)
        self.path = path
        self.annotator = annotator
        self._by_id = {item.id: item for item in self.items}
        if len(self._by_id) < len(self.items):
            twice = Counter(item.id for item in self.items).most_common(1)[0][0]
            raise DataError(f"human check: two items are called {twice!r}; an item's decisions need a name of its own")
        for item in self.items:
            if not item.id or not 0 <= item.picked < len(item.clips):
                raise DataError(f"human check: item {item.id!r} has {len(item.clips)} takes, and take {item.picked} is picked")
        _end_last_row(path)
        self._mine: dict[str, Decision] = {}
        for decision in load_decisions(path):
            known = self._by_id.get(decision.item_id)
            if known is not None and decision.choice is not None and decision.choice >= len(known.clips):
                raise DataError(
                    f"{path}: {decision.annotator} chose take {decision.choice} of {known.id!r}, which has {len(known.clips)}; "
                    "the file belongs to other clips: move it away"
                )
            if known is not None and decision.annotator == annotator:
                self._mine[known.id] = decision
        # This session's decisions in order, each with the decision it replaced.
        self._done: list[tuple[CheckItem, Decision | None]] = []

    def pending(self) -> list[CheckItem]:
        """Returns the items without a decision of this annotator, in order."""
        return [item for item in self.items if item.id not in self._mine]

    def progress(self) -> tuple[int, int]:
        """Returns the number of items decided by this annotator, in any session, and of all items."""
        return len(self._mine), len(self.items)

    def decided(self) -> list[Decision]:
        """Returns this annotator's decisions, in the order of the items."""
        return [self._mine[item.id] for item in self.items if item.id in self._mine]

    def can_undo(self) -> bool:
        """Whether this session has a decision to undo."""
        return bool(self._done)

    def decide(self, decision: Decision) -> None:
        """Records a decision; it replaces this annotator's earlier one on the item.

        A choice of the take that is picked anyway is stored as None, and a rejected item has no choice.

        Raises:
            DataError: no such item or take, or the decision is another annotator's. StorageError: the disk refused.
        """
        item = self._by_id.get(decision.item_id)
        if item is None:
            raise DataError(f"human check: there is no item {decision.item_id!r}")
        if decision.annotator != self.annotator:
            raise DataError(f"human check: this is {self.annotator}'s session; {decision.annotator!r} needs one of their own")
        choice = decision.choice
        if choice is not None and not 0 <= choice < len(item.clips):
            raise DataError(f"human check: item {item.id!r} has {len(item.clips)} takes, so there is no take {choice}")
        if choice == item.picked or not decision.accept:
            choice = None
        # Half a character (a field's length limit can split one) could be written but not be read again.
        note = decision.note.encode("utf-8", "replace").decode("utf-8")
        decision = replace(decision, choice=choice, note=note)
        append_jsonl(self.path, asdict(decision))
        self._done.append((item, self._mine.get(item.id)))
        self._mine[item.id] = decision

    def undo(self) -> CheckItem | None:
        """Undoes this session's last decision and restores the one before; returns its item, None without a decision.

        It adds a row: nothing is ever removed from the file, which others may be writing to.

        Raises:
            StorageError: the disk refused.
        """
        if not self._done:
            return None
        item, before = self._done[-1]
        append_jsonl(self.path, {"item_id": item.id, "annotator": self.annotator, "undo": True})
        self._done.pop()
        if before is None:
            del self._mine[item.id]
        else:
            self._mine[item.id] = before
        return item


def _end_last_row(path: Path) -> None:
    """Adds the line break that a complete last row lacks after manual editing; the next append would cut that row off."""
    if not path.is_file():
        return
    try:
        last = path.read_bytes().rpartition(b"\n")[2]
        if last:
            try:
                json.loads(last)
            except ValueError:
                return
            with path.open("ab") as file:
                file.write(b"\n")
    except OSError as error:
        raise StorageError(f"cannot read or write {path}: {error.strerror or error}") from error


def time_left(paces_s: Sequence[float], remaining: int) -> str:
    """Returns in words how long `remaining` items take at this session's pace; empty while the pace is not known.

    The pace is the median, so that a break does not count.
    """
    if remaining == 0 or len(paces_s) < PACE_MIN_DECISIONS:
        return ""
    minutes = round(statistics.median(paces_s) * remaining / 60)
    if minutes < 1:
        return "less than a minute left"
    hours, minutes = divmod(minutes, 60)
    return f"about {hours} h {minutes} min left" if hours else f"about {minutes} min left"
