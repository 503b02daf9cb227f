"""The workers of one role: where they stand, who replaces a lost one, and calls that outlive the worker they were made to.

Sampling and judging change nothing in a worker, so a call whose worker is lost, with its process or its machine, is made
again on another one and gives the same. In the lost one's place a new worker starts as soon as there is room for it.

Every worker has a placement group of its own. While there is no room for a lost bundle of a group, Ray 2.60 tries to place
it a hundred thousand times a second and lets no other group in; only giving the whole group back ends that.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import ray
from ray.exceptions import NodeDiedError, ObjectLostError, OutOfMemoryError, RayActorError, RayTaskError
from ray.util.placement_group import placement_group, placement_group_table, remove_placement_group
from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

from paras2s.configs.schema.run import RoleConfig
from paras2s.errors import ConfigError, PolicyError

# A cluster that does not hold the run says so after this long; so does one that has lost all workers of a role.
PLACEMENT_TIMEOUT_S = 120.0
# A call that ends one worker after the other, or a worker that never starts, ends the run.
TRIES = 5
# What Ray says of a worker that is gone, or of an answer that only its machine had.
LOST = (RayActorError, ObjectLostError, NodeDiedError, OutOfMemoryError)
RESUME = "`paras2s align CONFIG --resume` goes on from the newest checkpoint"


def what_happened(error: Exception) -> str:
    """What tells, of Ray's many lines: why an actor could not start, or whose actor it was and the first line."""
    if isinstance(error, ObjectLostError):
        return "what only a lost machine held cannot be had again"
    lines = [line.strip() for line in str(error).splitlines() if line.strip()] or [type(error).__name__]
    if isinstance(error, RayActorError) and error.actor_init_failed:
        return lines[-1]
    of = [line.removeprefix("class_name: ") for line in lines if line.startswith("class_name: ")]
    return ": ".join([*of[:1], lines[0].rstrip(".")])


def reserved(wanted: RoleConfig, count: int, strategy: str) -> Any:
    """A placement group; it is there once its `wait` says so."""
    return placement_group([wanted.bundle for _ in range(count)], strategy=strategy)


def options_of(wanted: RoleConfig, group: Any, place: int) -> dict[str, Any]:
    """Of an actor in that place."""
    strategy = PlacementGroupSchedulingStrategy(group, placement_group_bundle_index=place)
    return {
        "num_cpus": wanted.cpus,
        "num_gpus": wanted.gpus,
        "resources": wanted.resources,
        "scheduling_strategy": strategy,
    }


def wait_placed(groups: Sequence[Any], role: str, wanted: RoleConfig) -> None:
    """Until all of a role has its place.

    Raises:
        ConfigError: the cluster does not hold it.
    """
    until = time.monotonic() + PLACEMENT_TIMEOUT_S
    # Ray waits whole seconds.
    if all(group.wait(math.ceil(max(0.0, until - time.monotonic()))) for group in groups):
        return
    count = sum(group.bundle_count for group in groups)
    free = {name: amount for name, amount in ray.available_resources().items() if name in ("CPU", "GPU")}  # type: ignore[no-untyped-call]
    raise ConfigError(
        f"align.{role}_workers: {count} x {wanted.bundle} do not fit; the cluster has {free or 'nothing'} left. "
        f"Ask for fewer, or change align.{role}"
    )


@dataclass(frozen=True, eq=False)
class Worker:
    """An actor, its place, and what is there once it has started."""

    actor: Any
    group: Any
    started: Any

    @property
    def adrift(self) -> bool:
        """Whether its machine was lost before it could start there: of this Ray never says anything."""
        return bool(placement_group_table(self.group).get("state") == "RESCHEDULING")

    def end(self) -> None:
        """Give the place back; the actor ends with it."""
        remove_placement_group(self.group)


class WorkerGroup:
    """The workers of one role: some at first, up to `most` as machines join, and new ones for those lost."""

    def __init__(self, role: str, wanted: RoleConfig, most: int, make: Callable[[dict[str, Any]], Any]) -> None:
        self.role, self.wanted, self.most, self._make = role, wanted, most, make
        self.workers: list[Worker] = []
        self.coming: list[Worker] = []
        self._turn = self._failed = 0

    def place(self, count: int) -> None:
        """The first ones.

        Raises:
            ConfigError: the cluster does not hold them.
        """
        self._ask(count)
        wait_placed([one.group for one in self.coming], self.role, self.wanted)

    def open(self) -> None:
        """Wait for them."""
        ray.get([one.started for one in self.coming])
        self.workers, self.coming = self.coming, []

    def _ask(self, count: int) -> None:
        """Workers who start when there is room for them, now or on a machine that joins."""
        for _ in range(count):
            group = reserved(self.wanted, 1, "SPREAD")
            actor = self._make(options_of(self.wanted, group, 0))
            self.coming.append(Worker(actor, group, actor.__ray_ready__.remote()))

    def tend(self) -> None:
        """Take in those who have started, and ask for those who are missing."""
        for one in list(self.coming):
            if ray.wait([one.started], timeout=0)[0]:
                self.coming.remove(one)
                self._take_in(one)
            elif one.adrift:
                self.coming.remove(one)
                one.end()
        self._ask(self.most - len(self.workers) - len(self.coming))

    def _take_in(self, one: Worker) -> None:
        try:
            ray.get(one.started)
        except RayActorError as error:
            one.end()
            self._failed += 1
            if error.actor_init_failed or self._failed == TRIES:
                raise
        else:
            self.workers.append(one)
            self._failed = 0

    def drop(self, worker: Worker) -> None:
        """It is lost."""
        if worker in self.workers:
            self.workers.remove(worker)
            worker.end()
            self.tend()

    def next(self) -> Worker:
        """Whose turn it is; where nobody is left, the first who comes.

        Raises:
            PolicyError: nobody comes.
        """
        until = time.monotonic() + PLACEMENT_TIMEOUT_S
        while not self.workers:
            ray.wait([one.started for one in self.coming], timeout=1.0)
            self.tend()
            if time.monotonic() > until and not any(one.group.wait(0) for one in self.coming):
                raise PolicyError(
                    f"no {self.role} worker is left, and no machine has had room ({self.wanted.bundle}) for "
                    f"{PLACEMENT_TIMEOUT_S:.0f} s; {RESUME}"
                )
        self._turn += 1
        return self.workers[self._turn % len(self.workers)]

    def close(self) -> None:
        """All places back."""
        for one in (*self.workers, *self.coming):
            one.end()


class Call:
    """A call to whichever worker of a crew has its turn, which can be made again; with it those that read what it gives."""

    def __init__(self, crew: WorkerGroup, ask: Callable[[Any], Any], of: Call | None = None) -> None:
        self._crew, self._ask, self._tries = crew, ask, 0
        self._readers: list[Call] = []
        if of is not None:
            of._readers.append(self)
        self.send()

    def send(self) -> None:
        """Once more."""
        self._worker = self._crew.next()
        self.ref = self._ask(self._worker.actor)
        self._tries += 1
        for reader in self._readers:
            reader.send()

    def again(self, error: Exception) -> None:
        """On another worker, since this one is lost.

        Raises:
            PolicyError: it was lost too often.
        """
        self._crew.drop(self._worker)
        if self._tries >= TRIES:
            said = f"{self._tries} {self._crew.role} workers were lost over the same questions ({what_happened(error)})"
            raise PolicyError(f"{said}; {RESUME}") from error
        self.send()


def results(calls: Sequence[Call]) -> list[Any]:
    """Of all of them; what was lost is made again."""
    found: dict[Call, Any] = {}
    while missing := [call for call in calls if call not in found]:
        for call in missing:
            try:
                found[call] = ray.get(call.ref)
            except RayTaskError:
                # Also of the classes below where what the task should have read is lost: the worker is well.
                raise
            except LOST as error:
                call.again(error)
    return [found[call] for call in calls]
