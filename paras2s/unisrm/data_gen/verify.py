"""People's verification of labels (UniSRM, appendix G.2): a pair stays where most raters prefer the clip that its label names.

The file of ratings is CSV with the columns item, rater and choice (A, B or invalid, as the item has its candidates, on whatever
side they were shown); and, where they are known, seconds (the time for the item) and left (A or B, which candidate was on the
left). The file of gold items has the columns item and choice, the right one; they stand among the ratings and need not be
items of the data.

A rater who fails the gold items, takes next to no time, or always chooses the left clip is excluded, and a pair then lacks a
rating: it is to be rated by somebody else, and named. A pair that has more raters than wanted is decided by the first ones of
the file, so that a rating which is added later to replace another one counts, and no more.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import median
from typing import Any, Literal, TypeVar

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from paras2s.configs.schema.unisrm_data import VerificationConfig
from paras2s.errors import DataError, first_problem
from paras2s.unisrm.data_gen.layouts.entries import require_columns
from paras2s.unisrm.reward.items import ITEMS, read_items, write_items
from paras2s.unisrm.reward.tasks import Item, PairRecord
from paras2s.utils.io import read_csv

# What verification took out, with the reason; another run looks at these again.
REJECTED = "rejected.jsonl"
# Factors of an item: why it was taken out, and the choices that it stays by.
REJECTED_BY, VERIFIED_BY = "rejected", "verified"
INVALID = "most raters call it invalid"
# Pairs named in an error about missing ratings.
MAX_NAMED = 5
Choice = Literal["A", "B", "invalid"]
Row = TypeVar("Row", bound=BaseModel)


class Rating(BaseModel):
    """One rater's choice between the candidates of an item."""

    model_config = ConfigDict(extra="forbid", frozen=True)
    item: str = Field(min_length=1)
    rater: str = Field(min_length=1)
    choice: Choice
    seconds: float | None = Field(None, ge=0, allow_inf_nan=False)
    left: Literal["A", "B"] | None = None


class Gold(BaseModel):
    """A gold item's right choice."""

    model_config = ConfigDict(extra="forbid", frozen=True)
    item: str = Field(min_length=1)
    choice: Choice


@dataclass(frozen=True)
class VerificationReport:
    """Pairs looked at, those that stay by split and those that do not by split and reason, the excluded raters with the reason,
    and the number of pairs on which all counted raters agree.
    """

    verified: int
    items: Mapping[str, int]
    dropped: Mapping[tuple[str, str], int]
    excluded: Mapping[str, str]
    unanimous: int


def read_ratings(path: Path) -> list[Rating]:
    """Reads the ratings.

    Raises:
        DataError: a column is missing, a value is not as documented, or a rater rated an item twice; names file:line.
    """
    found: list[Rating] = []
    seen: set[tuple[str, str]] = set()
    for line, row in read_csv(path):
        require_columns(f"{path}:1", [str(name) for name in row], ("item", "rater", "choice"))
        rating = _parsed(path, line, row, Rating)
        if (rating.item, rating.rater) in seen:
            raise DataError(f"{path}:{line}: {rating.rater} has rated {rating.item} already")
        seen.add((rating.item, rating.rater))
        found.append(rating)
    if not found:
        raise DataError(f"{path}: holds no rating")
    return found


def read_gold(path: Path) -> dict[str, Choice]:
    """Reads the gold items' right choices.

    Raises:
        DataError: as above.
    """
    gold: dict[str, Choice] = {}
    for line, row in read_csv(path):
        require_columns(f"{path}:1", [str(name) for name in row], ("item", "choice"))
        one = _parsed(path, line, row, Gold)
        if one.item in gold:
            raise DataError(f"{path}:{line}: {one.item} stands twice")
        gold[one.item] = one.choice
    return gold


def _parsed(path: Path, line: int, row: Mapping[str, Any], kind: type[Row]) -> Row:
    # An empty cell is a value that is not known.
    values = {name: value.strip() if isinstance(value, str) else value for name, value in row.items()}
    try:
        return kind.model_validate({name: value for name, value in values.items() if value != ""})
    except ValidationError as error:
        raise DataError(f"{path}:{line}: {first_problem(error)}") from error


def excluded_raters(ratings: Sequence[Rating], gold: Mapping[str, Choice], config: VerificationConfig) -> dict[str, str]:
    """Returns the raters whose ratings do not count, each with the reason.

    Raises:
        DataError: there are gold items, and a rater has rated none.
    """
    by_rater: dict[str, list[Rating]] = defaultdict(list)
    for one in ratings:
        by_rater[one.rater].append(one)
    excluded = {}
    for rater, own in by_rater.items():
        tested = [one for one in own if one.item in gold]
        if gold and not tested:
            raise DataError(f"rater {rater}: has rated no gold item; have one of {', '.join(list(gold)[:MAX_NAMED])} rated")
        right = sum(one.choice == gold[one.item] for one in tested)
        times = [one.seconds for one in own if one.seconds is not None]
        sided = [one.choice == one.left for one in own if one.left is not None and one.choice != "invalid"]
        if tested and right < config.min_gold_share * len(tested):
            excluded[rater] = f"{right} of {len(tested)} gold items right"
        elif times and median(times) < config.min_median_s:
            excluded[rater] = f"a median of {median(times):.1f} s an item"
        elif len(sided) >= config.min_left_items and sum(sided) > config.max_left_share * len(sided):
            excluded[rater] = f"{sum(sided)} of {len(sided)} choices are the left clip"
    return excluded


def decide(item: Item, choices: Sequence[Choice], config: VerificationConfig) -> str | None:
    """Returns why a pair with these raters' choices does not stay; None where it does (appendix G.2)."""
    assert isinstance(item.record, PairRecord)
    count = Counter(choices)
    if len(choices) - count["invalid"] < config.min_valid:
        return INVALID
    preferred = [side for side in ("A", "B") if count[side] >= config.min_agree]
    if not preferred:
        return "no majority"
    return None if preferred == [item.record.better] else "the majority is against the label"


def verify(
    folder: Path, ratings: Sequence[Rating], gold: Mapping[str, Choice], config: VerificationConfig, dry_run: bool = False
) -> VerificationReport:
    """Verifies a data folder: what does not stay goes from items.jsonl to rejected.jsonl, with the reason.

    Only the config's tasks and splits are looked at. What an earlier verification rejected is looked at again.

    Raises:
        DataError: a rating of no item, or pairs without enough ratings of raters who count; names them.
    """
    items = _read_all(folder)
    excluded = excluded_raters(ratings, gold, config)
    choices: dict[str, list[Choice]] = defaultdict(list)
    known = {item.id for item in items} | set(gold)
    for one in ratings:
        if one.item not in known:
            raise DataError(f"rating of {one.item} by {one.rater}: {folder / ITEMS} has no such item, and it is no gold item")
        if one.rater not in excluded and one.item not in gold:
            choices[one.item].append(one.choice)
    wanted = [item for item in items if item.task in config.tasks and item.split in config.splits and item.id not in gold]
    _require_raters(wanted, choices, excluded, config)
    counted = {item.id: choices[item.id][: config.raters] for item in wanted}
    reasons = {item.id: decide(item, counted[item.id], config) for item in wanted}
    kept, lost = [], []
    for item in items:
        plain = {key: value for key, value in item.factors.items() if key not in (REJECTED_BY, VERIFIED_BY)}
        reason = reasons.get(item.id)
        if reason is not None:
            lost.append(replace(item, factors=plain | {REJECTED_BY: reason}))
        elif item.id in reasons:
            kept.append(replace(item, factors=plain | {VERIFIED_BY: ", ".join(counted[item.id])}))
        else:
            kept.append(item)
    if not dry_run:
        # Rejected first: a kill between the two leaves an item in both, and none in neither.
        write_items(folder, lost, REJECTED)
        write_items(folder, kept)
    return VerificationReport(
        len(wanted),
        Counter(item.split for item in kept if item.id in reasons),
        Counter((item.split, item.factors[REJECTED_BY]) for item in lost),
        excluded,
        sum(len(set(found)) == 1 for found in counted.values()),
    )


def _read_all(folder: Path) -> list[Item]:
    """The items, and those that an earlier verification took out."""
    items = read_items(folder)
    there = {item.id for item in items}
    rejected = read_items(folder, file=REJECTED) if (folder / REJECTED).is_file() else []
    return [*items, *(item for item in rejected if item.id not in there)]


def _require_raters(
    items: Sequence[Item], choices: Mapping[str, Sequence[Choice]], excluded: Mapping[str, str], config: VerificationConfig
) -> None:
    """Raises DataError: a pair has too few ratings; names the pair, and who is excluded."""
    count = {item.id: len(choices.get(item.id, ())) for item in items}
    lacking = [f"{name} ({found} of {config.raters})" for name, found in count.items() if found < config.raters]
    if not lacking:
        return
    named = ", ".join(lacking[:MAX_NAMED])
    more = f" and {len(lacking) - MAX_NAMED} more" if len(lacking) > MAX_NAMED else ""
    why = f"; excluded: {', '.join(f'{name} ({reason})' for name, reason in excluded.items())}" if excluded else ""
    raise DataError(f"raters are missing for {len(lacking)} pairs: {named}{more}{why}; have them rated, and add the rows")
