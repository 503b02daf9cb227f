"""Agreement of two sets of labels of the same pairs: people with people, or bare labels of a judge (TRACE, Tables 1 and 2).

Sets may differ in their kinds of tie. One with a bare `tie` agrees in two ways (winners alone) and in three (any tie is one
label); two with typed ties in four as well, where Cohen's kappa is given too.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, cast

from pydantic import BaseModel, ConfigDict
from rich.console import Console

from paras2s.bench.speakbench.data import load_pairs
from paras2s.bench.speakbench.metrics import Ways, accuracy, cohen_kappa
from paras2s.errors import DataError, checking
from paras2s.statistics.intervals import Share
from paras2s.types import Label
from paras2s.utils.io import read_csv
from paras2s.utils.tables import Table, number_text, span

SetLabel = Label | Literal["tie"]


class LabelRow(BaseModel):
    """One pair's overall label in a CSV; an empty one is None."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    index: int
    label: SetLabel | None = None


def load_labels(path: Path) -> dict[int, SetLabel | None]:
    """Return overall labels by index: of TRACE's JSON, or of a CSV with index and label. Raises DataError: names file:line."""
    if path.suffix.lower() == ".json":
        return {pair.index: pair.label.overall for pair in load_pairs(path)}
    labels: dict[int, SetLabel | None] = {}
    for number, values in read_csv(path):
        with checking(f"{path}:{number}"):
            row = LabelRow.model_validate({name: value for name, value in values.items() if value not in ("", None)})
        if row.index in labels:
            raise DataError(f"{path}:{number}: index: {row.index} occurs more than once")
        labels[row.index] = row.label
    if not labels:
        raise DataError(f"{path}: holds no labels")
    return labels


@dataclass(frozen=True)
class Agreement:
    """Shares of pairs on which two sets agree, with 95 % intervals by instruction.

    `four_way` and `kappa` are None if one of the sets has bare ties. Of `n_pairs` in the first set, `unlabelled` have no
    label in the second; `others` counts labels of the second on pairs that are not in the first.
    """

    two_way: Share
    three_way: Share
    four_way: Share | None
    kappa: Share | None
    n_pairs: int
    unlabelled: int
    others: int


def agreement(path: Path, other: Path) -> Agreement:
    """Return the agreement of TRACE's JSON labels in `path` with a second set. Raises DataError: no pair is in both."""
    pairs, second = load_pairs(path), load_labels(other)
    labels = {pair.index: pair.label.overall for pair in pairs}
    return agreement_of(labels, second, {pair.index: pair.instruction_id for pair in pairs}, str(other))


def agreement_of(
    first: Mapping[int, SetLabel], second: Mapping[int, SetLabel | None], instructions: Mapping[int, int | str], name: str
) -> Agreement:
    """Return the agreement of two sets by index. Raises DataError: no pair is in both."""
    if not any(second.get(index) for index in first):
        raise DataError(f"{name}: labels none of these pairs")
    # A bare tie counts as one in two and three ways, where the kind of a tie is not asked for.
    labels = cast(list[Label], list(first.values()))
    other = cast(list[Label | None], [second.get(index) for index in first])
    clusters = [instructions[index] for index in first]
    typed = "tie" not in {*first.values(), *second.values()}
    shares: dict[Ways, Share] = {ways: accuracy(labels, other, clusters, ways) for ways in ((2, 3, 4) if typed else (2, 3))}
    return Agreement(
        shares[2],
        shares[3],
        shares.get(4),
        cohen_kappa(labels, other, clusters) if typed else None,
        len(labels),
        other.count(None),
        len(second.keys() - first.keys()),
    )


def show_agreement(console: Console, other: Path, agreement: Agreement) -> None:
    """Print one row for each way of counting, and what could not be counted."""
    ways = (
        ("2-way: both name a winner", agreement.two_way),
        ("3-way: 1, 2, any tie", agreement.three_way),
        ("4-way: 1, 2, both_good, both_bad", agreement.four_way),
    )
    rows = [(name, *_cells(share)) for name, share in ways]
    Table(("overall labels", "agree", "95 %", "n of pairs"), rows, f"with {other}").show(console)
    if agreement.kappa is None:
        console.print("No 4-way agreement and no kappa: one set does not say which kind a tie is.")
    else:
        value, interval, _ = _cells(agreement.kappa, 1.0, 3)
        console.print(f"Cohen's kappa, 4-way: {value} ({interval})")
    console.print(
        f"{agreement.unlabelled} of {agreement.n_pairs} pairs have no label there; "
        f"{agreement.others} labels there are of other pairs"
    )


def _cells(share: Share | None, scale: float = 100.0, digits: int = 1) -> tuple[str, str, str]:
    """Value, interval, and n of n asked."""
    if share is None or share.value is None or share.low is None or share.high is None:
        return "none", "", "" if share is None else f"{share.n} of {share.n_asked}"
    unit = " %" if scale == 100.0 else ""
    ends = span(share.low, share.high, digits, scale=scale)
    return number_text(share.value, digits, scale=scale, unit=unit), ends, f"{share.n} of {share.n_asked}"
