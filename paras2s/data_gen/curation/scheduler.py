"""Which lists are still to be written, and who gets which script: decisions only, made from counts."""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from paras2s.configs.schema.run import CurationConfig
from paras2s.data_gen.curation.categories import QueryCategory, Split
from paras2s.types import Role, Script

SPLIT_OF_ROLE: dict[Role, Split] = {
    "demonstration": "train",
    "preference": "train",
    "rl": "train",
    "validation": "validation",
    "test": "test",
}
# Of the sentences written, how many are taken to survive before any was seen; later their own share counts.
FIRST_YIELD, LEAST_YIELD = 0.5, 0.05
YIELD_WEIGHT = 50
# What comes through all text filters and speech, as a rule.
USUAL_YIELD = 0.45


@dataclass(frozen=True)
class Cell:
    """What one list is about."""

    category: str
    split: Split
    topic: str
    styles: tuple[str, str]


@dataclass(frozen=True)
class ListRequest:
    """Part number `part` of a cell's lists."""

    cell: Cell
    part: int


class Dealer:
    """Counts what is there, and decides from it alone."""

    def __init__(self, config: CurationConfig, categories: Mapping[str, QueryCategory]) -> None:
        self.config = config
        self.kept: Counter[tuple[str, Role]] = Counter()
        self._written: Counter[tuple[str, Split]] = Counter()
        self._survived: Counter[tuple[str, Split]] = Counter()
        # Scripts that passed and are not needed now; they are dealt before new ones are paid for.
        self._bank: dict[tuple[str, str], list[Script]] = defaultdict(list)
        self._queues = {pool: self._cells(pool, categories[pool[0]], number) for number, pool in enumerate(self.pools())}

    def pools(self) -> list[tuple[str, Split]]:
        """Category and split of all that is wanted."""
        splits = dict.fromkeys(SPLIT_OF_ROLE[role] for role, count in self.config.contrasts.items() if count)
        return [(name, split) for name in self.config.categories for split in splits]

    def _cells(self, pool: tuple[str, Split], category: QueryCategory, number: int) -> list[ListRequest]:
        """Every list of a pool: all first parts in a drawn order, then all second ones."""
        name, split = pool
        cells = [Cell(name, split, topic, pair) for topic in category.topics.get(split, ()) for pair in category.styles]
        order = np.random.default_rng([self.config.seed, 21, number]).permutation(len(cells))
        return [ListRequest(cells[i], part) for part in range(1, self.config.max_lists + 1) for i in order]

    def need(self, category: str, split: Split) -> int:
        """Contrasts that the roles of a split still lack."""
        wanted = {role: count for role, count in self.config.contrasts.items() if SPLIT_OF_ROLE[role] == split}
        return sum(max(0, count - self.kept[category, role]) for role, count in wanted.items())

    def next_lists(self, sentences: int | None = None) -> list[ListRequest]:
        """The lists of the next round: as many as should fill what is lacking, within `texts_at_once`; [] when all is done.

        `sentences`: how many may still be written, where that is limited.
        """
        size = self.config.list_size
        lacking = {pool: self.need(*pool) - len(self._bank[pool]) for pool in self._queues}
        wanted = {pool: math.ceil(need / (size * self.share(pool))) for pool, need in lacking.items() if need > 0}
        room, asked = max(1, self.config.texts_at_once // size), []
        room = room if sentences is None else min(room, math.ceil(sentences / size))
        while room and any(count and self._queues[pool] for pool, count in wanted.items()):
            for pool, count in wanted.items():
                if room and count and self._queues[pool]:
                    asked.append(self._queues[pool].pop(0))
                    wanted[pool] -= 1
                    room -= 1
        return asked

    def share(self, pool: tuple[str, Split]) -> float:
        """Of the sentences written for a pool, the share that survived, drawn toward a half while few were written."""
        survived = self._survived[pool] + len(self._bank[pool])
        share = (survived + FIRST_YIELD * YIELD_WEIGHT) / (self._written[pool] + YIELD_WEIGHT)
        return max(share, LEAST_YIELD)

    def deal(self, scripts: Sequence[Script]) -> list[tuple[Script, Role]]:
        """Roles for scripts that passed the text tests, and for those that wait from earlier rounds; the rest waits on.

        Lists are taken in turn, so that no role is filled from one topic alone.
        """
        taken: Counter[tuple[str, Role]] = Counter()
        dealt: list[tuple[Script, Role]] = []
        waiting = [script for bank in self._bank.values() for script in bank]
        self._bank.clear()
        for script in (*waiting, *sorted(scripts, key=_turn)):
            lacking = [
                role
                for role, count in self.config.contrasts.items()
                if SPLIT_OF_ROLE[role] == script.split
                and self.kept[script.category, role] + taken[script.category, role] < count
            ]
            if lacking:
                taken[script.category, lacking[0]] += 1
                dealt.append((script, lacking[0]))
            else:
                self._bank[script.category, script.split].append(script)
        return dealt

    def leftover(self) -> list[Script]:
        """Scripts that passed and that no role wanted."""
        return [script for bank in self._bank.values() for script in bank]

    def count(self, written: Sequence[Script], kept: Sequence[tuple[Script, Role]]) -> None:
        """Note a round's outcome: what was written, and the contrasts that came through everything."""
        for script in written:
            self._written[script.category, script.split] += 1  # type: ignore[index]
        for script, role in kept:
            self._survived[script.category, script.split] += 1  # type: ignore[index]
            self.kept[script.category, role] += 1

    def out_of_reach(self) -> dict[str, tuple[int, int]]:
        """Pools that all their lists would hardly fill, by "category/split": sentences there can be, contrasts wanted."""
        found = {}
        for (name, split), queue in self._queues.items():
            most, wanted = len(queue) * self.config.list_size, self.need(name, split)
            if most * USUAL_YIELD < wanted:
                found[f"{name}/{split}"] = (most, wanted)
        return found

    def missing(self) -> dict[str, int]:
        """What the roles lack, by "category/role", where they lack anything."""
        return {
            f"{name}/{role}": count - self.kept[name, role]
            for name in self.config.categories
            for role, count in self.config.contrasts.items()
            if count > self.kept[name, role]
        }


def _turn(script: Script) -> tuple[int, str]:
    """A script's place within its list comes first, then the list."""
    line = script.id.rpartition("-")[2]
    return int(line), script.id
