"""Rows of scores, and the figures made of them: StyleSet's Tables 1 and 2, means by style element, a sweep of temperatures.

A score of an item is a judge's mean over its votes, or the mean over people. Spreads in Table 1 are sample standard deviations
(n - 1) of these scores over items. Unscored items are counted beside a mean, and never part of it.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from itertools import combinations
from pathlib import Path
from statistics import correlation, fmean, stdev
from typing import Any

from pydantic import BaseModel, ConfigDict, Field, field_validator, model_validator

from paras2s.bench.made_from import MadeFrom
from paras2s.bench.styleset.data import ELEMENTS, FollowingItem
from paras2s.bench.verdict_file import read_rows
from paras2s.errors import DataError, checking
from paras2s.reward.judges.audio_judge.tasks import SCALES, find_task
from paras2s.types import Unscored, Verdict
from paras2s.utils.io import read_csv, write_jsonl

FEWEST_COMMON = 3  # Two always lie on a line.
FLAT = 1e-9
PEOPLE = "people"
CHANGES = "changes within"
# Heads of tables, by the judge's task.
TITLES = {
    "style_following": "Style instructions (1 to 5)",
    "role_play_style": "Role-play, style (1 to 5)",
    "role_play_realism": "Role-play, realism (0 or 1)",
}
SD_TEXT = "sample standard deviation (n - 1) of the items' scores"
Key = tuple[str, str]  # (system, item)


class _Row(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)

    item: str = Field(min_length=1)
    system: str = Field(min_length=1)
    task: str

    @field_validator("task")
    @classmethod
    def _known(cls, task: str) -> str:
        if task not in TITLES:
            raise ValueError(f"{task!r} is none of {', '.join(TITLES)}")
        return task

    def _check_score(self, score: float) -> None:
        low, *_, high = SCALES[find_task(self.task).kind]
        if not low <= score <= high:
            raise ValueError(f"score: {score} of {self.task} is not between {low} and {high}")


class StyleRow(_Row):
    """A judge's score of one output, or `unscored`; `spread`: the votes' standard deviation; `temperature` None: its own."""

    judge: str = Field(min_length=1)
    version: str = ""
    temperature: float | None = None
    score: float | None = None
    votes: tuple[float, ...] = ()
    spread: float | None = None
    unscored: str | None = None
    reason: str = ""
    reply: str = ""
    cost_usd: float | None = None
    made_from: MadeFrom | None = None

    @model_validator(mode="after")
    def _check(self) -> StyleRow:
        if (self.score is None) == (self.unscored is None):
            raise ValueError("give either a score or the reason in 'unscored', and not both")
        if self.score is not None:
            self._check_score(self.score)
        return self

    @property
    def label(self) -> str:
        """The judge's name, with its temperature where several are compared."""
        return label_of(self.judge, self.temperature)

    @property
    def key(self) -> tuple[str, str, str, str]:
        """The judge, task, system and item that the row is a verdict of."""
        return self.label, self.task, self.system, self.item


class HumanRow(_Row):
    """One person's score of one output."""

    model_config = ConfigDict(str_strip_whitespace=True)

    rater: str = Field(min_length=1)
    score: float

    @model_validator(mode="after")
    def _check(self) -> HumanRow:
        self._check_score(self.score)
        return self


def label_of(judge: str, temperature: float | None) -> str:
    """Return a judge's name in tables."""
    return judge if temperature is None else f"{judge} T={temperature:g}"


def row_of(
    item: str, system: str, task: str, judge: str, temperature: float | None, verdict: Verdict | Unscored,
    made_from: MadeFrom | None = None,
) -> StyleRow:  # fmt: skip
    """Return a verdict as a row."""
    if isinstance(verdict, Unscored):
        return StyleRow(
            item=item,
            system=system,
            task=task,
            judge=judge,
            temperature=temperature,
            unscored=verdict.reason,
            reply=verdict.reply,
            made_from=made_from,
        )
    return StyleRow(
        item=item, system=system, task=task, judge=judge, version=verdict.version, temperature=temperature, score=verdict.score,
        votes=verdict.votes, spread=verdict.spread, reason=verdict.reason, reply=verdict.reply, cost_usd=verdict.cost_usd,
        made_from=made_from,
    )  # fmt: skip


def save_rows(path: Path, rows: Iterable[StyleRow]) -> None:
    """Replace the file. Raises StorageError: the disk refused."""
    write_jsonl(path, (row.model_dump(mode="json") for row in rows))


def load_rows(paths: Sequence[Path]) -> list[StyleRow]:
    """Return recorded verdicts of files. Raises DataError: a wrong row, or an output judged twice; names file:line."""
    rows: list[StyleRow] = []
    seen: set[tuple[str, ...]] = set()
    for path in paths:
        own: dict[tuple[str, ...], StyleRow] = {}
        for where, row in read_rows(path, StyleRow):
            # A run that was cut off may leave an unscored row before a later one on the output.
            if row.key in own and own[row.key].unscored is not None:
                seen.discard(row.key)
            _once(seen, row.key, where)
            own[row.key] = row
        rows += own.values()
    return rows


def load_human(path: Path) -> list[HumanRow]:
    """Return people's scores of a CSV with item, system, task, rater and score. Raises DataError: names file:line."""
    rows: list[HumanRow] = []
    seen: set[tuple[str, ...]] = set()
    for number, values in read_csv(path):
        where = f"{path}:{number}"
        with checking(where):
            row = HumanRow.model_validate(values)
        _once(seen, (row.rater, row.task, row.system, row.item), where)
        rows.append(row)
    if not rows:
        raise DataError(f"{path}: holds no scores; expected the columns item, system, task, rater, score")
    return rows


def _once(seen: set[tuple[str, ...]], names: tuple[str, ...], where: str) -> None:
    if names in seen:
        raise DataError(f"{where}: {', '.join(names)} occurs more than once")
    seen.add(names)


@dataclass(frozen=True)
class ScoreSummary:
    """Mean and standard deviation over the `n_scored` of `n_asked` items; None of nothing, and no deviation of one."""

    mean: float | None
    sd: float | None
    n_scored: int
    n_asked: int


def cell_of(scores: Sequence[float | None]) -> ScoreSummary:
    """Return the cell of items' scores, None if an item has none."""
    known = [score for score in scores if score is not None]
    return ScoreSummary(fmean(known) if known else None, stdev(known) if len(known) > 1 else None, len(known), len(scores))


@dataclass(frozen=True)
class PairR:
    """Pearson's r of two raters over the `n` outputs that both scored; None with the reason in `why_none`."""

    first: str
    second: str
    n: int
    r: float | None
    why_none: str | None


@dataclass(frozen=True)
class MeanR:
    """The mean of the `n_known` of `n_pairs` correlations that are defined; None if none is."""

    r: float | None
    n_known: int
    n_pairs: int


def pearson(first: tuple[str, Mapping[Key, float]], second: tuple[str, Mapping[Key, float]]) -> PairR:
    """Return Pearson's r of two raters, each a name and its scores."""
    (rater, mine), (other, theirs) = first, second
    common = [key for key in mine if key in theirs]
    sides = [[scores[key] for key in common] for scores in (mine, theirs)]
    if len(common) < FEWEST_COMMON:
        return PairR(rater, other, len(common), None, f"{len(common)} outputs in common, at least {FEWEST_COMMON} are needed")
    for name, values in zip((rater, other), sides, strict=True):
        if max(values) - min(values) < FLAT:
            return PairR(rater, other, len(common), None, f"all scores of {name} are the same")
    return PairR(rater, other, len(common), correlation(*sides), None)


def mean_r(pairs: Sequence[PairR]) -> MeanR:
    """Return the average of Table 2."""
    known = [pair.r for pair in pairs if pair.r is not None]
    return MeanR(fmean(known) if known else None, len(known), len(pairs))


def table_1(rows: Sequence[StyleRow], ratings: Sequence[HumanRow]) -> dict[str, dict[str, dict[str, ScoreSummary]]]:
    """Table 1 by task, system and judge; people together are the last judge."""
    return {
        task: {system: {judge: cell_of(scores) for judge, scores in judges.items()} for system, judges in systems.items()}
        for task, systems in table_1_scores(rows, ratings).items()
    }


def table_1_scores(
    rows: Sequence[StyleRow], ratings: Sequence[HumanRow]
) -> dict[str, dict[str, dict[str, list[float | None]]]]:
    """Return the items' scores behind each cell of Table 1, None if an item has none."""
    given: dict[tuple[str, str], dict[str, dict[str, float | None]]] = defaultdict(lambda: defaultdict(dict))
    for row in rows:
        given[row.task, row.system][row.label][row.item] = row.score
    for (task, system, item), score in _mean_ratings(ratings).items():
        given[task, system][PEOPLE][item] = score
    table: dict[str, dict[str, dict[str, list[float | None]]]] = {}
    for task in TITLES:
        for (of_task, system), judges in given.items():
            if of_task == task:
                items = list(dict.fromkeys(item for scores in judges.values() for item in scores))
                # People count over all items of the system, a judge over those it has a row of.
                table.setdefault(task, {})[system] = {
                    name: [scores.get(item) for item in (items if name == PEOPLE else scores)]
                    for name, scores in judges.items()
                }
    return table


def _mean_ratings(ratings: Sequence[HumanRow]) -> dict[tuple[str, str, str], float]:
    given: dict[tuple[str, str, str], list[float]] = defaultdict(list)
    for rating in ratings:
        given[rating.task, rating.system, rating.item].append(rating.score)
    return {key: fmean(scores) for key, scores in given.items()}


def table_2(rows: Sequence[StyleRow], ratings: Sequence[HumanRow], left_out: Sequence[str]) -> dict[str, dict[str, Any]]:
    """Return Table 2 by task: r of every two raters over (system, item), and the averages; without systems in `left_out`."""
    judges: dict[str, dict[str, dict[Key, float]]] = defaultdict(lambda: defaultdict(dict))
    people: dict[str, dict[str, dict[Key, float]]] = defaultdict(lambda: defaultdict(dict))
    for row in rows:
        if row.score is not None and row.system not in left_out:
            judges[row.task][row.label][row.system, row.item] = row.score
    for rating in ratings:
        if rating.system not in left_out:
            people[rating.task][rating.rater][rating.system, rating.item] = rating.score
    of_label = {row.label: row.judge for row in rows}
    tables = {}
    for task in TITLES:
        if task in judges or task in people:
            humans = [pearson(*two) for two in combinations(people[task].items(), 2)]
            mixed = {
                name: [pearson((name, scores), rater) for rater in people[task].items()]
                for name, scores in judges[task].items()
            }
            machines = [pearson(*two) for two in combinations(judges[task].items(), 2)]
            # One judge at two temperatures is no two judges.
            two_judges = [pair for pair in machines if of_label[pair.first] != of_label[pair.second]]
            tables[task] = {
                "human_human": asdict(mean_r(humans)),
                "judge_judge": asdict(mean_r(two_judges)),
                "judge_human": {name: asdict(mean_r(pairs)) for name, pairs in mixed.items()},
                "pairs": [asdict(pair) for pair in (*humans, *(pair for pairs in mixed.values() for pair in pairs), *machines)],
            }
    return tables


def element_means(
    rows: Sequence[StyleRow], ratings: Sequence[HumanRow], items: Sequence[FollowingItem]
) -> dict[str, dict[str, dict[str, ScoreSummary]]]:
    """Return means by system, judge and style element, over sentences whose style asks for it or changes within."""
    scores: dict[tuple[str, str], dict[str, float | None]] = defaultdict(dict)
    for row in rows:
        if row.task == "style_following":
            scores[row.system, row.label][row.item] = row.score
    for (task, system, item), score in _mean_ratings(ratings).items():
        if task == "style_following":
            scores[system, PEOPLE][item] = score
    means: dict[str, dict[str, dict[str, ScoreSummary]]] = {}
    for (system, judge), given in scores.items():
        cells = {}
        for element in (*ELEMENTS, CHANGES):
            having = [item.id for item in items if (item.changes_within if element == CHANGES else element in item.elements)]
            cells[element] = cell_of([given[name] for name in having if name in given])
        means.setdefault(system, {})[judge] = cells
    return means


def sweep(rows: Sequence[StyleRow], ratings: Sequence[HumanRow], left_out: Sequence[str]) -> dict[str, dict[str, Any]]:
    """Return figures by judge and temperature, the same outputs judged at each: r with people and mean, SD of every system."""
    by_judge: dict[str, dict[str, Any]] = {}
    for judge, temperature in dict.fromkeys((row.judge, row.temperature) for row in rows):
        if temperature is not None:
            mine = [row for row in rows if (row.judge, row.temperature) == (judge, temperature)]
            label = label_of(judge, temperature)
            agreement = table_2(mine, ratings, left_out)
            by_judge.setdefault(judge, {})[f"{temperature:g}"] = {
                task: {
                    "r_with_people": agreement[task]["judge_human"].get(label),
                    "systems": {name: asdict(cells[label]) for name, cells in systems.items() if label in cells},
                }
                for task, systems in table_1(mine, []).items()
            }
    return by_judge
