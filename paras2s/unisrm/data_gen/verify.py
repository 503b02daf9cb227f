"""People's verification of labels (UniSRM, appendix G.2): a pair is kept if most raters prefer the clip that its label names.

The file of ratings is CSV with the columns item, rater and choice (A, B or invalid, as the item has its candidates, on whatever
side they were shown); and, if known, seconds (the time for the item) and left (A or B, which candidate was on the
left). The file of gold items has the columns item and choice, the right one; they are among the ratings and need not be
items of the data.

A rater who fails the gold items, takes next to no time, or always chooses the left clip is excluded, and a pair then lacks a
rating: it is named, and needs another rater. A pair that has more raters than required is decided by the first ones of
the file, so that only as many ratings count as required, and one added later can replace another.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import median
from typing import Any, Literal, TypeVar

from pydantic import BaseModel, ConfigDict, Field

from paras2s.configs.schema.unisrm_data import VerificationConfig
from paras2s.errors import DataError, checking
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
    """Pairs examined, kept by split, removed by split and reason, excluded raters with reasons, and pairs of full agreement."""

    verified: int
    items: Mapping[str, int]
    dropped: Mapping[tuple[str, str], int]
    excluded: Mapping[str, str]
    unanimous: int


def read_ratings(path: Path) -> list[Rating]:
    """Read the ratings. Raises DataError: a missing column, a wrong value, or an item rated twice; names file:line."""
    parsed: list[Rating] = []
    seen: set[tuple[str, str]] = set()
    for line, row in read_csv(path):
        require_columns(f"{path}:1", [str(name) for name in row], ("item", "rater", "choice"))
        rating = _parsed(path, line, row, Rating)
        if (rating.item, rating.rater) in seen:
            raise DataError(f"{path}:{line}: {rating.rater} has rated {rating.item} already")
        seen.add((rating.item, rating.rater))
        parsed.append(rating)
    if not parsed:
        raise DataError(f"{path}: holds no rating")
    return parsed


def read_gold(path: Path) -> dict[str, Choice]:
    """Read the gold items' right choices. Raises DataError: as above."""
    choices: dict[str, Choice] = {}
    for line, row in read_csv(path):
        require_columns(f"{path}:1", [str(name) for name in row], ("item", "choice"))
        gold = _parsed(path, line, row, Gold)
        if gold.item in choices:
            raise DataError(f"{path}:{line}: {gold.item} occurs twice")
        choices[gold.item] = gold.choice
    return choices


def _parsed(path: Path, line: int, row: Mapping[str, Any], kind: type[Row]) -> Row:
    # An empty cell is a value that is not known.
    values = {name: value.strip() if isinstance(value, str) else value for name, value in row.items()}
    with checking(f"{path}:{line}"):
        return kind.model_validate({name: value for name, value in values.items() if value != ""})


def excluded_raters(ratings: Sequence[Rating], gold: Mapping[str, Choice], config: VerificationConfig) -> dict[str, str]:
    """Return the excluded raters, each with the reason. Raises DataError: a rater has rated none of the gold items."""
    by_rater: dict[str, list[Rating]] = defaultdict(list)
    for rating in ratings:
        by_rater[rating.rater].append(rating)
    excluded = {}
    for rater, own in by_rater.items():
        tested = [rating for rating in own if rating.item in gold]
        if gold and not tested:
            raise DataError(f"rater {rater}: has rated no gold item; have one of {', '.join(list(gold)[:MAX_NAMED])} rated")
        right = sum(rating.choice == gold[rating.item] for rating in tested)
        times = [rating.seconds for rating in own if rating.seconds is not None]
        sided = [rating.choice == rating.left for rating in own if rating.left is not None and rating.choice != "invalid"]
        if tested and right < config.min_gold_share * len(tested):
            excluded[rater] = f"{right} of {len(tested)} gold items right"
        elif times and median(times) < config.min_median_s:
            excluded[rater] = f"a median of {median(times):.1f} s an item"
        elif len(sided) >= config.min_left_items and sum(sided) > config.max_left_share * len(sided):
            excluded[rater] = f"{sum(sided)} of {len(sided)} choices are the left clip"
    return excluded


def decide(item: Item, choices: Sequence[Choice], config: VerificationConfig) -> str | None:
    """Return why a pair with these raters' choices is removed; None if it is kept (appendix G.2)."""
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
    """Verify a data folder: rejected items are moved from items.jsonl to rejected.jsonl, with the reason.

    Only the config's tasks and splits are looked at. What an earlier verification rejected is looked at again.

    Raises:
        DataError: a rating of no item, or pairs without enough ratings of raters who count; names them.
    """
    items = _read_all(folder)
    excluded = excluded_raters(ratings, gold, config)
    choices: dict[str, list[Choice]] = defaultdict(list)
    known = {item.id for item in items} | set(gold)
    for rating in ratings:
        if rating.item not in known:
            raise DataError(
                f"rating of {rating.item} by {rating.rater}: {folder / ITEMS} has no such item, and it is no gold item"
            )
        if rating.rater not in excluded and rating.item not in gold:
            choices[rating.item].append(rating.choice)
    to_verify = [item for item in items if item.task in config.tasks and item.split in config.splits and item.id not in gold]
    _require_raters(to_verify, choices, excluded, config)
    counted = {item.id: choices[item.id][: config.raters] for item in to_verify}
    reasons = {item.id: decide(item, counted[item.id], config) for item in to_verify}
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
        len(to_verify),
        Counter(item.split for item in kept if item.id in reasons),
        Counter((item.split, item.factors[REJECTED_BY]) for item in lost),
        excluded,
        sum(len(set(choices_of_item)) == 1 for choices_of_item in counted.values()),
    )


def _read_all(folder: Path) -> list[Item]:
    """Read the items, and those that an earlier verification removed."""
    items = read_items(folder)
    present = {item.id for item in items}
    rejected = read_items(folder, file=REJECTED) if (folder / REJECTED).is_file() else []
    return [*items, *(item for item in rejected if item.id not in present)]


def _require_raters(
    items: Sequence[Item], choices: Mapping[str, Sequence[Choice]], excluded: Mapping[str, str], config: VerificationConfig
) -> None:
    """Require enough ratings of each pair; the DataError names the pair and the excluded raters."""
    count = {item.id: len(choices.get(item.id, ())) for item in items}
    lacking = [f"{name} ({n_ratings} of {config.raters})" for name, n_ratings in count.items() if n_ratings < config.raters]
    if not lacking:
        return
    named = ", ".join(lacking[:MAX_NAMED])
    more = f" and {len(lacking) - MAX_NAMED} more" if len(lacking) > MAX_NAMED else ""
    why = f"; excluded: {', '.join(f'{name} ({reason})' for name, reason in excluded.items())}" if excluded else ""
    raise DataError(f"raters are missing for {len(lacking)} pairs: {named}{more}{why}; have them rated, and add the rows")
