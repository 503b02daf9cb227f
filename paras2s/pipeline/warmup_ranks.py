"""The warm-up over several ranks: Ray actors that share the weights and the gradients (FSDP2), as GRPO's learners do.

Each rank encodes a part of the demonstrations on its own device. They are kept in Ray's object store, which spills to disk:
with continuous features a prompt takes megabytes. The run folder must be on storage that all machines share.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import ray
from ray.util.placement_group import remove_placement_group

from paras2s.configs.schema.run import RunConfig
from paras2s.data_gen.dataset import load_dataset
from paras2s.pipeline.demonstrations import first_policy, learned_demonstrations, make_examples, style_words_of
from paras2s.rollout.local_ray import start_ray
from paras2s.rollout.worker_group import actor_options, errors_of_workers, reserve, wait_placed
from paras2s.rollout.workers import meeting_point, open_devices, threads_for
from paras2s.run import Run
from paras2s.train.sft import Example, Warmup
from paras2s.utils.device import use_threads
from paras2s.utils.progress import open_console


class StoredExamples(Sequence[Example]):
    """Demonstrations in the object store of Ray, each read when it is needed."""

    def __init__(self, refs: Sequence[Any]) -> None:
        self._refs = refs

    def __len__(self) -> int:
        return len(self._refs)

    def __getitem__(self, row: Any) -> Any:
        return ray.get(self._refs[row])


@ray.remote
class WarmupRank:
    """One rank of a warm-up. Never restarted: its state is in its checkpoints."""

    def __init__(self, config: RunConfig, threads: int) -> None:
        use_threads(threads)
        self._run = Run(config, open_console(to_stderr=True), quiet=True)

    def rendezvous(self) -> tuple[str, int]:
        """Return an address at which the other ranks can meet this rank."""
        return meeting_point()

    def open(self, rank: int, meet_at: tuple[str, int]) -> None:
        """Load the policy and meet the other ranks; all ranks are called at once."""
        config = self._run.config
        assert config.warmup.learner is not None
        self._dataset = load_dataset(self._run.data_dir)
        self._policy = first_policy(self._run, self._dataset)
        ranks = config.warmup.learner.count
        self._devices = open_devices(rank, ranks, meet_at, config.policy, config.warmup.mixed_precision)

    def encode(self, rank: int, ranks: int) -> list[Any]:
        """Encode every `ranks`-th demonstration; return where they are stored."""
        config = self._run.config.warmup
        own = learned_demonstrations(self._dataset, config)[rank::ranks]
        return [ray.put(example) for example in make_examples(self._policy, self._dataset, own, style_words_of(self._run))]

    def begin(self, examples: Sequence[Any]) -> int:
        """Spread the policy over the ranks; return the size of a checkpoint in bytes."""
        config = self._run.config

        def reopen() -> Any:
            return first_policy(self._run, self._dataset, "cpu")

        stored = StoredExamples(examples)
        self._warmup = Warmup(self._policy, stored, config.warmup, config.seed, self._devices, reopen)
        return self._warmup.checkpoint_bytes

    def restore(self, folder: Path) -> int:
        """Continue from a checkpoint; return the step to do next."""
        return self._warmup.restore(folder)

    def step(self, number: int) -> dict[str, float]:
        """Make one update; return the losses in nats a token."""
        return self._warmup.step(number)

    def save(self, folder: Path, next_step: int) -> None:
        """Write this rank's part of a checkpoint."""
        self._warmup.save(folder, next_step)

    def export(self, folder: Path) -> None:
        """Write the SFT policy; rank 0 does."""
        self._warmup.export(folder)


class RankedWarmup:
    """The ranks of a warm-up, all called at once."""

    def __init__(self, ranks: Sequence[Any], checkpoint_bytes: int) -> None:
        self._ranks, self.checkpoint_bytes = ranks, checkpoint_bytes

    def _call(self, method: str, *arguments: Any) -> Any:
        """Rank 0's result."""
        return ray.get([getattr(rank, method).remote(*arguments) for rank in self._ranks])[0]

    def restore(self, folder: Path) -> int:
        """Continue from a checkpoint of any number of ranks above one; return the step to do next."""
        return int(self._call("restore", folder))

    def step(self, number: int) -> dict[str, float]:
        """Make one update; return the losses in nats a token."""
        losses: dict[str, float] = self._call("step", number)
        return losses

    def save(self, folder: Path, next_step: int) -> None:
        """Write a checkpoint."""
        self._call("save", folder, next_step)

    def export(self, folder: Path) -> None:
        """Write the SFT policy."""
        self._call("export", folder)


@contextmanager
def open_ranks(run: Run, demonstrations: int) -> Iterator[RankedWarmup]:
    """Return the ranks of `warmup.learner` with their demonstrations. Raises ConfigError: no room. PolicyError: one is gone."""
    role = run.config.warmup.learner
    assert role is not None
    start_ray(run.config.align.workers.ray_address, math.ceil(role.cpus * role.count))
    places = reserve(role, role.count, "PACK")
    try:
        with errors_of_workers():
            wait_placed([places], "warmup.learner", role)
            threads = role.threads or threads_for(role.count)
            ranks = [
                WarmupRank.options(**actor_options(role, places, rank)).remote(_absolute(run.config), threads)  # type: ignore[attr-defined]
                for rank in range(role.count)
            ]
            address = ray.get(ranks[0].rendezvous.remote())
            ray.get([actor.open.remote(rank, address) for rank, actor in enumerate(ranks)])
            parts = ray.get([actor.encode.remote(rank, role.count) for rank, actor in enumerate(ranks)])
            # Taken from the ranks in turn they are in order again.
            examples = [example for turn in itertools.zip_longest(*parts) for example in turn if example is not None]
            assert len(examples) == demonstrations
            size = ray.get([actor.begin.remote(examples) for actor in ranks])[0]
            yield RankedWarmup(ranks, size)
    finally:
        remove_placement_group(places)


def _absolute(config: RunConfig) -> RunConfig:
    """Return the config with paths that hold in a worker's own working directory."""
    weights = config.policy.weights
    policy = config.policy.model_copy(update={"weights": None if weights is None else weights.resolve()})
    return config.model_copy(
        update={"run_dir": config.run_dir.resolve(), "cache_dir": config.cache_dir.resolve(), "policy": policy}
    )
