"""Blueprints of many files, as a stream: in this process, in worker processes, or spread over Ray."""

from __future__ import annotations

import functools
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from paras2s.audio.clip import Clip
from paras2s.configs.schema.endpoints import ExtractorConfig
from paras2s.errors import AudioError
from paras2s.reward.blueprint.extract import build_blueprints, make_extractors
from paras2s.reward.judges.base import as_clip
from paras2s.reward.tone_classifier import ToneClassifier
from paras2s.types import Blueprint
from paras2s.utils.cache import JsonCache
from paras2s.utils.process_pool import cores, in_chunks, stream_chunks

CHUNK_FILES = 8
# Workers take seconds to load their models: this process measures this number of files before they would have begun.
FEW_FILES = 32

Measured = Blueprint | str


def measure_chunk(
    extractors: Sequence[ExtractorConfig], tone: ToneClassifier | None, cache: Path | None, paths: Sequence[Path]
) -> list[Measured]:
    """Return the blueprints of files; for a file that cannot be read, the reason."""
    read: list[Clip | str] = []
    for path in paths:
        try:
            read.append(as_clip(path))
        except AudioError as error:
            read.append(str(error))
    clips = [clip for clip in read if isinstance(clip, Clip)]
    blueprints = iter(build_blueprints(clips, make_extractors(extractors, tone), JsonCache(cache) if cache else None))
    return [next(blueprints) if isinstance(clip, Clip) else clip for clip in read]


def measure_files(
    paths: Sequence[Path],
    extractors: Sequence[ExtractorConfig],
    tone: ToneClassifier | None,
    cache: Path | None,
    workers: int | None = None,
    ray_address: str | None = None,
    on_ray: bool = False,
) -> Iterator[tuple[Path, Measured]]:
    """Yield each file with its blueprint, in order and as they come, so that memory does not grow with their number.

    `workers`: processes of one thread each; None: as many as cores, or none and this process alone for a few files.
    """
    # Wrong names and options end the command here, and not in every worker.
    make_extractors(extractors, tone)
    work = functools.partial(measure_chunk, extractors, tone, cache)
    if on_ray:
        measured = _on_ray(work, paths, ray_address)
    elif workers is None and len(paths) <= FEW_FILES:
        measured = ((chunk, work(chunk)) for chunk in in_chunks(paths, CHUNK_FILES))
    else:
        measured = stream_chunks(work, paths, CHUNK_FILES, workers or cores())
    for chunk, rows in measured:
        yield from zip(chunk, rows, strict=True)


def _on_ray(
    work: Callable[[list[Path]], list[Measured]], paths: Sequence[Path], address: str | None
) -> Iterator[tuple[list[Path], list[Measured]]]:
    """Yield chunks as a cluster has measured them; two for each place are pending, and no more."""
    import ray

    from paras2s.rollout.local_ray import start_ray

    start_ray(address)
    remote: Any = ray.remote(num_cpus=2)(lambda chunk: work(chunk))
    resources: Any = ray.cluster_resources()  # type: ignore[no-untyped-call]
    places = max(1, int(resources.get("CPU", 2)) // 2)
    pending: deque[tuple[list[Path], Any]] = deque()
    for chunk in in_chunks(paths, CHUNK_FILES):
        pending.append((chunk, remote.remote(chunk)))
        if len(pending) > 2 * places:
            first, task = pending.popleft()
            yield first, ray.get(task)
    while pending:
        first, task = pending.popleft()
        yield first, ray.get(task)
