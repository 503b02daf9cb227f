"""Blueprints of many files, in this process or spread over Ray."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

from paras2s.audio.clip import Clip
from paras2s.configs.schema.endpoints import ExtractorConfig
from paras2s.errors import AudioError
from paras2s.reward.blueprint.extract import build_blueprints, make_extractors
from paras2s.reward.judges.base import as_clip
from paras2s.reward.tone_classifier import ToneClassifier
from paras2s.types import Blueprint
from paras2s.utils.cache import JsonCache

CHUNK_FILES = 8


def measure_chunk(
    paths: Sequence[Path], extractors: Sequence[ExtractorConfig], tone: ToneClassifier | None, cache: Path | None
) -> list[Blueprint | str]:
    """Returns the blueprints of files; for a file that cannot be read, the reason."""
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
    on_progress: Callable[[int, int], None],
    ray_address: str | None = None,
    on_ray: bool = False,
) -> list[Blueprint | str]:
    """Returns the blueprints of many files, chunk by chunk, or spread over the cores of a Ray cluster."""
    chunks = [paths[start : start + CHUNK_FILES] for start in range(0, len(paths), CHUNK_FILES)]
    measured: list[Blueprint | str] = []
    if on_ray:
        import ray

        from paras2s.rollout.workers import start_ray

        start_ray(ray_address)
        remote = ray.remote(num_cpus=2)(measure_chunk)
        tasks = [remote.remote(chunk, extractors, tone, cache) for chunk in chunks]
        for task in tasks:
            rows: list[Blueprint | str] = ray.get(task)
            measured += rows
            on_progress(len(measured), len(paths))
    else:
        for chunk in chunks:
            measured += measure_chunk(chunk, extractors, tone, cache)
            on_progress(len(measured), len(paths))
    return measured
