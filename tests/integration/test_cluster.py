"""A run on several machines, which are lost and join while it goes on: Ray's own multi-node cluster, on this machine.

What a machine holds is decided by its cores: the learner wants 3 and a machine of 4, a rollout worker 2, a reward worker 1.

Not covered: the loss of the head, storage that machines share (here it is one disk). Networks that lose packets or are cut,
slow machines and other clocks: `chaos/cluster.py`.
"""

from __future__ import annotations

import os
import shutil
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import ray
from ray.cluster_utils import Cluster
from tiny.job import assert_same_policy, logged, tiny_job

from paras2s.align.job import GRPOJob
from paras2s.configs.schema.align import RoleConfig
from paras2s.errors import PolicyError
from paras2s.grpo import train_grpo
from paras2s.policy.types import Sampling
from paras2s.rollout.orchestrator import Orchestrator, PendingBatch, PromptBatch, StepAnswers
from paras2s.rollout.worker_group import Worker, WorkerGroup
from paras2s.train.advantages import Values

# Ray takes 127.0.0.1 for the machine's outer address.
LOOPBACK = "127.0.0.2"
HIDES_GPUS = "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO"
CORES = {"learner": 4, "rollout": 2, "reward": 1}
PATIENCE_S = 60.0
# A machine is found dead within a second, and not within a quarter of a minute.
WATCHFUL = {"health_check_initial_delay_ms": 500, "health_check_period_ms": 300, "health_check_failure_threshold": 3}


class Machines:
    """The cluster's machines by what they are for."""

    def __init__(self) -> None:
        head = {"num_cpus": 0, "node_ip_address": LOOPBACK, "include_dashboard": False, "_system_config": WATCHFUL}
        self.cluster = Cluster(initialize_head=True, head_node_args=head)
        self._nodes: dict[str, list[Any]] = {role: [] for role in CORES}

    def have(self, **wanted: int) -> None:
        """So many of each, and no more of the others."""
        for role, nodes in self._nodes.items():
            while len(nodes) < wanted.get(role, 0):
                self.join(role)
            while len(nodes) > wanted.get(role, 0):
                self.lose(nodes[-1].node_id)

    def join(self, role: str) -> str:
        """One more; its id."""
        node = self.cluster.add_node(num_cpus=CORES[role], node_ip_address=LOOPBACK)
        self._nodes[role].append(node)
        return str(node.node_id)

    def lose(self, node_id: str) -> None:
        """Its processes are killed."""
        for nodes in self._nodes.values():
            for node in [node for node in nodes if node.node_id == node_id]:
                nodes.remove(node)
                self.cluster.remove_node(node, allow_graceful=False)

    def of(self, role: str) -> set[str]:
        """Ids of those for a role."""
        return {node.node_id for node in self._nodes[role]}


@pytest.fixture(scope="module")
def machines() -> Iterator[Machines]:
    # Ray notes the newest cluster of a folder, and whoever starts Ray there would join it.
    folder = tempfile.mkdtemp(prefix="paras2s-")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("RAY_TMPDIR", folder)
        # As on a cluster that others started.
        patch.delenv(HIDES_GPUS, raising=False)
        made = Machines()
        yield made
        ray.shutdown()
        made.cluster.shutdown()
    shutil.rmtree(folder, ignore_errors=True)


def spread_job(folder: Path, machines: Machines, reward: int = 2, max_rollout: int | None = None) -> GRPOJob:
    """Two rollout workers, and so many reward workers."""
    workers = {
        "learner": {"cpus": 3, "threads": 1},
        "rollout": {"count": 2, "max_count": max_rollout, "cpus": 2, "threads": 1},
        "reward": {"count": reward, "cpus": 1, "threads": 1},
        "ray_address": machines.cluster.address,
    }
    return tiny_job(folder, workers)


@pytest.fixture(scope="module")
def expected(machines: Machines, tmp_path_factory: pytest.TempPathFactory) -> GRPOJob:
    """A run in which nothing happens."""
    machines.have(learner=1, rollout=2, reward=1)
    job = spread_job(tmp_path_factory.mktemp("undisturbed"), machines)
    train_grpo(job, resume=False)
    return job


def test_a_worker_without_a_gpu_sees_none_on_a_cluster_that_runs_already(expected: GRPOJob) -> None:
    variable = ray.remote(num_cpus=0)(lambda: os.environ.get(HIDES_GPUS))
    assert ray.get(variable.remote(), timeout=PATIENCE_S) == "1"


def node_of(actor: Any) -> str:
    return str(ray.get(actor.__ray_call__.remote(lambda _: ray.get_runtime_context().get_node_id()), timeout=300))


def wait_for(what: Callable[[], Any]) -> None:
    """Until it is true."""
    until = time.monotonic() + PATIENCE_S
    while not what():
        assert time.monotonic() < until, "this never came"
        time.sleep(0.05)


def hold(worker: Worker, mark: Path) -> None:
    """Its next call does not end; `mark` is there once it has started."""
    path = str(mark)

    def block(actor: Any) -> None:
        def never(*_: object, **__: object) -> None:
            Path(path).touch()
            threading.Event().wait()

        if hasattr(actor, "engine"):
            # Whichever of the two the worker samples with.
            actor.engine.generate = actor.engine.generate_in_parts = never
        else:
            actor._rewards = type("Held", (), {"score": never, "needs_sound": False, "needs_codes": False})()

    ray.get(worker.actor.__ray_call__.remote(block), timeout=300)


def at_step(monkeypatch: pytest.MonkeyPatch, step: int, before: Callable[[Orchestrator], Any], after: Any = None) -> None:
    """Do something before this step's questions are batch, or once they are under way."""
    start = Orchestrator.start

    def watched(orchestrator: Orchestrator, batch: PromptBatch, sampling: Sampling) -> PendingBatch:
        if batch.step != step:
            return start(orchestrator, batch, sampling)
        before(orchestrator)
        pending = start(orchestrator, batch, sampling)
        if after is not None:
            after(orchestrator)
        return pending

    monkeypatch.setattr(Orchestrator, "start", watched)


def wait_admitted(orchestrator: Orchestrator, machines: Machines, node_id: str) -> None:
    """Wait until a rollout worker runs on this machine, and is used from the next questions on."""
    wait_for(lambda: ray.wait([one.started for one in orchestrator.rollout.starting], timeout=1.0)[0])
    orchestrator.rollout.replace_lost_workers()
    assert node_id in {node_of(one.actor) for one in orchestrator.rollout.workers}


def test_judges_whose_machine_is_lost_are_replaced_by_the_others(
    machines: Machines, expected: GRPOJob, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    mark = tmp_path / "judging"
    lost: list[Worker] = []

    def before(orchestrator: Orchestrator) -> None:
        lost.extend(one for one in orchestrator.reward.workers if node_of(one.actor) in machines.of("reward"))
        hold(lost[0], mark)

    def after(_: Orchestrator) -> None:
        wait_for(mark.exists)
        machines.lose(*machines.of("reward"))

    machines.have(learner=1, rollout=2, reward=1)
    at_step(monkeypatch, 1, before, after)
    found = spread_job(tmp_path, machines)
    train_grpo(found, resume=False)
    assert len(lost) == 1
    assert_same_policy(found, expected)
    assert logged(found) == logged(expected)


def test_questions_whose_machine_is_lost_are_requested_again_and_a_machine_that_joins_takes_its_place(
    machines: Machines, expected: GRPOJob, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Between the two there is one worker for both shares."""
    mark = tmp_path / "sampling"
    lost: list[str] = []
    joined: list[str] = []

    def before(orchestrator: Orchestrator) -> None:
        lost.append(node_of(orchestrator.rollout.workers[1].actor))
        hold(orchestrator.rollout.workers[1], mark)

    def after(_: Orchestrator) -> None:
        wait_for(mark.exists)
        machines.lose(lost[0])

    def join(orchestrator: Orchestrator) -> None:
        assert len(orchestrator.rollout.workers) == 1
        joined.append(machines.join("rollout"))
        wait_admitted(orchestrator, machines, joined[0])

    machines.have(learner=1, rollout=2)
    at_step(monkeypatch, 1, before, after)
    at_step(monkeypatch, 2, join)
    found = spread_job(tmp_path, machines, reward=1)
    train_grpo(found, resume=False)
    assert joined
    assert_same_policy(found, expected)
    assert logged(found) == logged(expected)


def test_a_machine_that_joins_is_used(
    machines: Machines, expected: GRPOJob, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By one worker more than there were, so batches are of other shapes, and sums round otherwise."""
    counts: list[int] = []

    def join(orchestrator: Orchestrator) -> None:
        counts.append(len(orchestrator.rollout.workers))
        wait_admitted(orchestrator, machines, machines.join("rollout"))
        counts.append(len(orchestrator.rollout.workers))

    machines.have(learner=1, rollout=2)
    at_step(monkeypatch, 2, join)
    found = spread_job(tmp_path, machines, reward=1, max_rollout=3)
    train_grpo(found, resume=False)
    assert counts == [2, 3]
    assert_same_policy(found, expected, atol=1e-4)


def test_a_worker_whose_machine_is_lost_before_it_starts_is_requested_again(
    machines: Machines, monkeypatch: pytest.MonkeyPatch
) -> None:
    @ray.remote
    class Nobody:
        pass

    places: list[Any] = []

    def make(options: dict[str, Any]) -> Any:
        places.append(options["scheduling_strategy"].placement_group)
        if len(places) == 1:
            assert places[0].wait(int(PATIENCE_S))
            machines.lose(*machines.of("rollout"))
        return Nobody.options(**options).remote()  # type: ignore[attr-defined]

    machines.have(rollout=1)
    # Of the run before.
    wait_for(lambda: ray.available_resources().get("CPU") == CORES["rollout"])
    group = WorkerGroup("rollout", RoleConfig(cpus=2), 1, make)
    wait_for(lambda: group.replace_lost_workers() or len(places) == 2)
    with monkeypatch.context() as patch:
        patch.setattr("paras2s.rollout.worker_group.PLACEMENT_TIMEOUT_S", 1.0)
        with pytest.raises(PolicyError, match=r"^no rollout worker is left, and no machine has had room .* --resume"):
            group.next()
    machines.join("rollout")
    assert group.next().group is places[1]
    group.close()


def test_without_the_learner_the_run_ends_and_can_be_resumed(machines: Machines, expected: GRPOJob, tmp_path: Path) -> None:
    """Its machine is lost once with weights that nobody has fetched, and once with a step to be learned."""
    update = Orchestrator.update

    def lose_learner(*_: object) -> None:
        machines.lose(*machines.of("learner"))

    def lost_before_learning(orchestrator: Orchestrator, answers: StepAnswers, *more: Any) -> tuple[dict[str, Any], Values]:
        if answers.prompts.step == 2:
            lose_learner()
        return update(orchestrator, answers, *more)

    machines.have(learner=1, rollout=3)
    found = spread_job(tmp_path, machines, reward=1)
    with pytest.MonkeyPatch.context() as patch:
        at_step(patch, 2, lose_learner)
        with pytest.raises(
            PolicyError, match=r"^the run cannot go on: .*; the same command, of `align` with --resume, goes on"
        ):
            train_grpo(found, resume=False)
    machines.have(learner=1, rollout=3)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Orchestrator, "update", lost_before_learning)
        with pytest.raises(
            PolicyError, match=r"^the run cannot go on: LearnerActor.*; the same command, of `align` with --resume, goes on"
        ):
            train_grpo(found, resume=True)
    assert [row["step"] for row in logged(found)] == [0, 1]
    machines.have(learner=1, rollout=3)
    train_grpo(found, resume=True)
    assert_same_policy(found, expected)
    assert logged(found) == logged(expected)
