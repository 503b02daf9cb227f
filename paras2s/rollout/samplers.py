"""The samplers of a preference set: this process, or rollout workers on any number of devices. Both write the same files."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Protocol

from paras2s.configs.schema.run import RunConfig
from paras2s.policy.base import Policy
from paras2s.policy.types import ClipStore
from paras2s.rollout.answer_files import AnswerShard, sample_into
from paras2s.rollout.engine import NativeEngine
from paras2s.rollout.local_ray import start_ray

# Shards under way for each worker, so that none waits for the next.
AHEAD = 2


class Sampler(Protocol):
    """Samples shards and writes them."""

    def sample(self, clips: ClipStore, shards: Sequence[AnswerShard]) -> Iterator[AnswerShard]:
        """Yield each shard once it is written, in order."""


class LocalSampler:
    """Sampler in this process; the policy is loaded for the first shard."""

    def __init__(self, load: Callable[[], Policy]) -> None:
        self._load = load

    def sample(self, clips: ClipStore, shards: Sequence[AnswerShard]) -> Iterator[AnswerShard]:
        """Yield each shard once it is written, in order."""
        engine = NativeEngine(self._load()) if shards else None
        for shard in shards:
            assert engine is not None
            sample_into(engine, clips, shard)
            yield shard


class WorkerSampler:
    """Sampler on the rollout workers of `distill.rollout`, which are started for the first shard.

    A lost worker's shard is sampled again by another, with the same seeds. The run folder must be on storage that all machines
    share.
    """

    def __init__(self, config: RunConfig, checkpoint: Path) -> None:
        self._config, self._checkpoint = config, checkpoint

    def sample(self, clips: ClipStore, shards: Sequence[AnswerShard]) -> Iterator[AnswerShard]:
        """Yield each written shard, in order. Raises ConfigError: no room for the workers. PolicyError: a worker is gone."""
        from paras2s.rollout.worker_group import Call, errors_of_workers, results

        if not shards:
            return
        with errors_of_workers(), self._workers() as group:
            pending: deque[tuple[AnswerShard, Call]] = deque()
            for shard in shards:
                group.replace_lost_workers()
                pending.append((shard, Call(group, _sampling(clips, shard))))
                if len(pending) >= AHEAD * max(1, len(group.workers)):
                    first, call = pending.popleft()
                    results([call])
                    yield first
            for shard, call in pending:
                results([call])
                yield shard

    @contextmanager
    def _workers(self) -> Iterator[Any]:
        from paras2s.rollout import workers
        from paras2s.rollout.worker_group import WorkerGroup

        role = self._config.distill.rollout
        assert role is not None
        # Adapters that were trained in the warm-up are folded into the checkpoint; those of `align` do not exist yet. Nor do
        # its speak workers, so these speak themselves.
        align = self._config.align
        align = align.model_copy(update={"lora": None, "workers": align.workers.model_copy(update={"speak": None})})
        threads = role.threads or workers.threads_for(role.count)

        def make(options: dict[str, Any]) -> Any:
            actor = workers.RolloutWorker.options(**options)  # type: ignore[attr-defined]
            return actor.remote(self._checkpoint, self._config.policy, align, threads)

        start_ray(align.workers.ray_address, math.ceil(role.cpus * role.count))
        group = WorkerGroup("rollout", role, max(role.count, role.max_count or 0), make, "distill.rollout")
        try:
            group.place(role.count)
            group.open()
            yield group
        finally:
            group.close()


def _sampling(clips: ClipStore, shard: AnswerShard) -> Callable[[Any], Any]:
    return lambda actor: actor.sample_into.remote(clips, shard)
