"""The workers of one role: their places, how lost workers are replaced, and calls that outlive their worker.

Sampling and scoring change nothing in a worker, so a call whose worker is lost, with its process or its machine, is made
again on another one with the same result. A new worker starts in the lost one's place as soon as there is room for it.

Every worker has a placement group of its own. While there is no room for a lost bundle of a group, Ray 2.60 tries to place
it a hundred thousand times a second and lets no other group in; only giving the whole group back ends that.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import ray
from ray.exceptions import NodeDiedError, ObjectLostError, OutOfMemoryError, RayActorError, RayError, RayTaskError
from ray.util.placement_group import placement_group, placement_group_table, remove_placement_group
from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

from paras2s.configs.schema.align import RoleConfig
from paras2s.errors import ConfigError, PolicyError

# After this long a cluster is reported that does not hold the run, or that has lost all workers of a role.
PLACEMENT_TIMEOUT_S = 120.0
# A call that ends one worker after the other, or a worker that never starts, ends the run.
TRIES = 5
# Ray's errors for a worker that is gone, or for a result that only its machine had.
LOST = (RayActorError, ObjectLostError, NodeDiedError, OutOfMemoryError)
RESUME = "the same command, of `align` with --resume, goes on from what is written"


def describe_loss(error: Exception) -> str:
    """Return one line of Ray's error: why an actor could not start, or which actor was lost and why."""
    if isinstance(error, ObjectLostError):
        return "the results that a lost machine held cannot be recovered"
    lines = [line.strip() for line in str(error).splitlines() if line.strip()] or [type(error).__name__]
    if isinstance(error, RayActorError) and error.actor_init_failed:
        return lines[-1]
    actor = [line.removeprefix("class_name: ") for line in lines if line.startswith("class_name: ")]
    return ": ".join([*actor[:1], lines[0].rstrip(".")])


@contextmanager
def errors_of_workers() -> Iterator[None]:
    """Inside, an error in an actor is raised as itself. Raises PolicyError: a worker is gone for good."""
    try:
        yield
    except RayError as error:
        cause = error.cause if isinstance(error, RayTaskError) else error
        if not isinstance(cause, RayError) and isinstance(cause, Exception):
            raise cause from error
        if isinstance(cause, RayActorError) and cause.actor_init_failed:
            raise PolicyError(f"a worker could not start: {describe_loss(cause)}") from error
        # A call to the learner, or a call that should have read weights which are lost with it.
        raise PolicyError(f"the run cannot go on: {describe_loss(cause)}; {RESUME}") from error


def reserve(role: RoleConfig, count: int, strategy: str) -> Any:
    """Return a placement group with a bundle for each worker; its `wait` tells when it is placed."""
    return placement_group([role.bundle for _ in range(count)], strategy=strategy)


def actor_options(role: RoleConfig, group: Any, bundle: int) -> dict[str, Any]:
    """Return the options of an actor in a bundle of a placement group."""
    strategy = PlacementGroupSchedulingStrategy(group, placement_group_bundle_index=bundle)
    return {"num_cpus": role.cpus, "num_gpus": role.gpus, "resources": role.resources, "scheduling_strategy": strategy}


def wait_placed(groups: Sequence[Any], key: str, role: RoleConfig) -> None:
    """Wait until all placement groups of the role at `key` are placed. Raises ConfigError: the cluster does not hold them."""
    until = time.monotonic() + PLACEMENT_TIMEOUT_S
    # Ray waits whole seconds.
    if all(group.wait(math.ceil(max(0.0, until - time.monotonic()))) for group in groups):
        return
    count = sum(group.bundle_count for group in groups)
    free = {name: amount for name, amount in ray.available_resources().items() if name in ("CPU", "GPU")}  # type: ignore[no-untyped-call]
    raise ConfigError(
        f"{key}: {count} x {role.bundle} do not fit; the cluster has {free or 'nothing'} left. "
        "Lower its count, or change what each worker reserves"
    )


@dataclass(frozen=True, eq=False)
class Worker:
    """An actor, its placement group, and the reference that is ready once it has started."""

    actor: Any
    group: Any
    started: Any

    @property
    def unschedulable(self) -> bool:
        """Whether its machine was lost before it could start there, which Ray does not report."""
        return bool(placement_group_table(self.group).get("state") == "RESCHEDULING")

    def end(self) -> None:
        """Give its place back; the actor ends with it."""
        remove_placement_group(self.group)


class WorkerGroup:
    """The workers of one role: some at first, up to `max_count` as machines join, and new ones for those lost."""

    def __init__(
        self, name: str, role: RoleConfig, max_count: int, make: Callable[[dict[str, Any]], Any], key: str | None = None
    ) -> None:
        self.name, self.role, self.max_count, self._make = name, role, max_count, make
        # The role's in the config.
        self.key = key or f"align.workers.{name}"
        self.workers: list[Worker] = []
        self.starting: list[Worker] = []
        self._turn = self._failed = 0

    def place(self, count: int) -> None:
        """Request the first workers and wait for their places. Raises ConfigError: the cluster does not hold them."""
        self._request(count)
        wait_placed([worker.group for worker in self.starting], self.key, self.role)

    def open(self) -> None:
        """Wait until the first workers have started; a worker that is killed while it starts is replaced."""
        count = len(self.starting)
        while len(self.workers) < count:
            ray.wait([worker.started for worker in self.starting], timeout=1.0)
            self.replace_lost_workers()

    def _request(self, count: int) -> None:
        """Request workers that start when there is room for them, now or on a machine that joins."""
        for _ in range(count):
            group = reserve(self.role, 1, "SPREAD")
            actor = self._make(actor_options(self.role, group, 0))
            self.starting.append(Worker(actor, group, actor.__ray_ready__.remote()))

    def replace_lost_workers(self) -> None:
        """Admit workers that have started, and request those that are missing."""
        for worker in list(self.starting):
            if ray.wait([worker.started], timeout=0)[0]:
                self.starting.remove(worker)
                self._admit(worker)
            elif worker.unschedulable:
                self.starting.remove(worker)
                worker.end()
        self._request(self.max_count - len(self.workers) - len(self.starting))

    def _admit(self, worker: Worker) -> None:
        try:
            ray.get(worker.started)
        except RayActorError as error:
            worker.end()
            self._failed += 1
            if error.actor_init_failed or self._failed == TRIES:
                raise
        else:
            self.workers.append(worker)
            self._failed = 0

    def drop(self, worker: Worker) -> None:
        """Remove a lost worker and request another."""
        if worker in self.workers:
            self.workers.remove(worker)
            worker.end()
            self.replace_lost_workers()

    def next(self) -> Worker:
        """Return the worker whose turn it is, or the first that starts. Raises PolicyError: none starts in time."""
        until = time.monotonic() + PLACEMENT_TIMEOUT_S
        while not self.workers:
            ray.wait([worker.started for worker in self.starting], timeout=1.0)
            self.replace_lost_workers()
            if time.monotonic() > until and not any(worker.group.wait(0) for worker in self.starting):
                raise PolicyError(
                    f"no {self.name} worker is left, and no machine has had room ({self.role.bundle}) for "
                    f"{PLACEMENT_TIMEOUT_S:.0f} s; {RESUME}"
                )
        self._turn += 1
        return self.workers[self._turn % len(self.workers)]

    def close(self) -> None:
        """Give all places back."""
        for worker in (*self.workers, *self.starting):
            worker.end()


class Call:
    """A call to one worker of a group, which can be made again on another, together with the calls that read its results.

    `refs` are its results'; `reads` are the calls whose results it reads. Its first worker is `to`, else the worker whose turn
    it is.
    """

    refs: list[Any]

    def __init__(
        self, group: WorkerGroup, make: Callable[[Any], Any], reads: Sequence[Call] = (), to: Worker | None = None
    ) -> None:
        self._group, self._make, self._tries, self.reads = group, make, 0, tuple(reads)
        self._readers: list[Call] = []
        for read in self.reads:
            read._readers.append(self)
        self.send(to)

    def send(self, to: Worker | None = None) -> None:
        """Make the call, and then the calls that read its results."""
        self.worker = to or self._group.next()
        made = self._make(self.worker.actor)
        self.refs = made if isinstance(made, list) else [made]
        self._tries += 1
        for reader in self._readers:
            reader.send()

    def retry(self, error: Exception) -> None:
        """Make the call again on another worker, since this one is lost. Raises PolicyError: it was lost too often."""
        self._group.drop(self.worker)
        self.send_again(error)

    def send_again(self, error: Exception) -> None:
        """Make the call again. Raises PolicyError: it was lost too often."""
        check_tries(self._group, self._tries, error)
        self.send()

    def is_lost(self) -> bool:
        """Wait for all results; return whether a result cannot be read any more."""
        try:
            ray.get(self.refs)
        except LOST:
            return True
        return False


def check_tries(group: WorkerGroup, tries: int, error: Exception) -> None:
    """Check before a lost worker's work is given to another. Raises PolicyError: it was lost too often."""
    if tries >= TRIES:
        lost = f"{tries} {group.name} workers were lost over the same prompts ({describe_loss(error)})"
        raise PolicyError(f"{lost}; {RESUME}") from error


def results(calls: Sequence[Call], number: int = 0) -> list[Any]:
    """Return the `number`-th result of each call; calls whose results were lost are made again."""
    done: dict[Call, Any] = {}
    while missing := [call for call in calls if call not in done]:
        for call in missing:
            try:
                done[call] = ray.get(call.refs[number])
            except RayTaskError as error:
                # Also raised for the classes below where the input of the task is lost: its worker is well.
                if not call.reads or not isinstance(error.cause, ObjectLostError):
                    raise
                _retry_reads(call, error.cause)
            except LOST as error:
                call.retry(error)
    return [done[call] for call in calls]


def _retry_reads(call: Call, error: Exception) -> None:
    """Make the calls again whose lost results a call should have read."""
    several = [read for read in call.reads if read.is_lost()] if len(call.reads) > 1 else call.reads
    for read in several:
        read.retry(error)
    if not several:
        # What was lost has been made again meanwhile.
        call.send_again(error)
