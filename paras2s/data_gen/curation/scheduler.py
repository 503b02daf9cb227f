"""Scheduler of the lists to be written; it assigns scripts to roles, from counts alone."""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from paras2s.configs.schema.curation import CurationConfig
from paras2s.data_gen.curation.categories import QueryCategory, Split
from paras2s.types import Role, Script

SPLIT_OF_ROLE: dict[Role, Split] = {
    "demonstration": "train",
    "preference": "train",
    "rl": "train",
    "validation": "validation",
    "test": "test",
}
# The assumed share of sentences that survive, before any was tested; later the measured share counts.
FIRST_YIELD, LEAST_YIELD = 0.5, 0.05
YIELD_WEIGHT = 50
# The usual share that passes all text and speech filters.
USUAL_YIELD = 0.45


@dataclass(frozen=True)
class ListSubject:
    """The subject of a list."""

    category: str
    split: Split
    topic: str
    styles: tuple[str, str]


@dataclass(frozen=True)
class ListRequest:
    """A list to be written: number `part` of a cell."""

    cell: ListSubject
    part: int


class ScriptScheduler:
    """Scheduler of lists and roles: the next lists to write, and the role of each script."""

    def __init__(self, config: CurationConfig, categories: Mapping[str, QueryCategory]) -> None:
        self.config = config
        self.accepted: Counter[tuple[str, Role]] = Counter()
        self._written: Counter[tuple[str, Split]] = Counter()
        self._survived: Counter[tuple[str, Split]] = Counter()
        # Scripts that passed and are not needed yet; they are assigned before new ones are paid for.
        self._spare: dict[tuple[str, str], list[Script]] = defaultdict(list)
        self._queues = {pool: self._cells(pool, categories[pool[0]], number) for number, pool in enumerate(self.pools())}

    def pools(self) -> list[tuple[str, Split]]:
        """Return category and split of all requested contrasts."""
        splits = dict.fromkeys(SPLIT_OF_ROLE[role] for role, count in self.config.contrasts.items() if count)
        return [(name, split) for name in self.config.categories for split in splits]

    def _cells(self, pool: tuple[str, Split], category: QueryCategory, number: int) -> list[ListRequest]:
        """Return every list of a pool: all first parts in a random order, then all second ones."""
        name, split = pool
        cells = [ListSubject(name, split, topic, pair) for topic in category.topics.get(split, ()) for pair in category.styles]
        order = np.random.default_rng([self.config.seed, 21, number]).permutation(len(cells))
        return [ListRequest(cells[i], part) for part in range(1, self.config.max_lists + 1) for i in order]

    def need(self, category: str, split: Split) -> int:
        """Return how many contrasts the roles of a split still lack."""
        requested = {role: count for role, count in self.config.contrasts.items() if SPLIT_OF_ROLE[role] == split}
        return sum(max(0, count - self.accepted[category, role]) for role, count in requested.items())

    def next_lists(self, sentences: int | None = None) -> list[ListRequest]:
        """Return the next round's lists for the lacking contrasts, [] when done; `sentences`: how many may still be written."""
        size = self.config.list_size
        lacking = {pool: self.need(*pool) - len(self._spare[pool]) for pool in self._queues}
        requested = {pool: math.ceil(need / (size * self.share(pool))) for pool, need in lacking.items() if need > 0}
        room, requests = max(1, self.config.texts_at_once // size), []
        room = room if sentences is None else min(room, math.ceil(sentences / size))
        while room and any(count and self._queues[pool] for pool, count in requested.items()):
            for pool, count in requested.items():
                if room and count and self._queues[pool]:
                    requests.append(self._queues[pool].pop(0))
                    requested[pool] -= 1
                    room -= 1
        return requests

    def share(self, pool: tuple[str, Split]) -> float:
        """Return the share of a pool's sentences that survived, shrunk toward a half while few were written."""
        survived = self._survived[pool] + len(self._spare[pool])
        share = (survived + FIRST_YIELD * YIELD_WEIGHT) / (self._written[pool] + YIELD_WEIGHT)
        return max(share, LEAST_YIELD)

    def assign(self, scripts: Sequence[Script]) -> list[tuple[Script, Role]]:
        """Assign roles to tested and spare scripts, in turn by list, so that no role has one topic; the rest becomes spare."""
        taken: Counter[tuple[str, Role]] = Counter()
        assigned: list[tuple[Script, Role]] = []
        spare = [script for scripts in self._spare.values() for script in scripts]
        self._spare.clear()
        for script in (*spare, *sorted(scripts, key=_line_and_list)):
            lacking = [
                role
                for role, count in self.config.contrasts.items()
                if SPLIT_OF_ROLE[role] == script.split
                and self.accepted[script.category, role] + taken[script.category, role] < count
            ]
            if lacking:
                taken[script.category, lacking[0]] += 1
                assigned.append((script, lacking[0]))
            else:
                self._spare[script.category, script.split].append(script)
        return assigned

    def leftover(self) -> list[Script]:
        """Return scripts that passed and that no role needed."""
        return [script for scripts in self._spare.values() for script in scripts]

    def count(self, written: Sequence[Script], accepted: Sequence[tuple[Script, Role]]) -> None:
        """Count the sentences of a round and the contrasts that passed every filter."""
        for script in written:
            self._written[script.category, script.split] += 1  # type: ignore[index]
        for script, role in accepted:
            self._survived[script.category, script.split] += 1  # type: ignore[index]
            self.accepted[script.category, role] += 1

    def out_of_reach(self) -> dict[str, tuple[int, int]]:
        """Return pools that are too small for their requests, by "category/split": possible sentences, requested contrasts."""
        pools = {}
        for (name, split), queue in self._queues.items():
            most, requested = len(queue) * self.config.list_size, self.need(name, split)
            if most * USUAL_YIELD < requested:
                pools[f"{name}/{split}"] = (most, requested)
        return pools

    def missing(self) -> dict[str, int]:
        """Return how many contrasts roles lack, by "category/role"."""
        return {
            f"{name}/{role}": count - self.accepted[name, role]
            for name in self.config.categories
            for role, count in self.config.contrasts.items()
            if count > self.accepted[name, role]
        }


def _line_and_list(script: Script) -> tuple[int, str]:
    line = script.id.rpartition("-")[2]
    return int(line), script.id
