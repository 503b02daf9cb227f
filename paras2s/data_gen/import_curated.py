"""Import of a curated dataset as the data of a run: its clips are copied, and their features computed for the policy."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import get_args

from paras2s.audio.clip import read_clip
from paras2s.data_gen.dataset import Dataset, inside, load_manifest, save_dataset
from paras2s.data_gen.scripted.build import Progress, style_audibility
from paras2s.data_gen.scripted.tones import load_tones
from paras2s.errors import DataError
from paras2s.policy.embedded.codec2 import Codec2Pairs
from paras2s.policy.embedded.frontend import ClipFeatures, extract_features
from paras2s.types import Role
from paras2s.utils.process_pool import map_chunks

CHUNK_CLIPS = 64


@dataclass(frozen=True)
class _ImportedClip:
    wav: bytes
    features: ClipFeatures


def _import_clips(paths: Sequence[Path]) -> list[_ImportedClip]:
    codec = Codec2Pairs()
    return [_ImportedClip(path.read_bytes(), extract_features(read_clip(path), codec)) for path in paths]


def import_curated(curated: Path, folder: Path, cache: Path, progress: Progress) -> Dataset:
    """Import a curated dataset; tone classifiers are the shipped scripts'. Raises DataError: a missing role. AudioError."""
    manifest = load_manifest(curated)
    roles = Counter(query.role for query in manifest.queries)
    if missing := [role for role in get_args(Role) if not roles[role]]:
        raise DataError(f"{curated}: no queries of role {missing[0]}; a run needs {', '.join(get_args(Role))}")
    if not manifest.demonstrations:
        raise DataError(f"{curated}: no demonstrations to learn from; see its answers.jsonl")
    clip_names = [
        *(clip for query in manifest.queries for clip in query.clips),
        *(answer.clip for answer in manifest.demonstrations),
    ]
    names = list(dict.fromkeys(clip_names))
    paths = [inside(curated, name) for name in names]
    imported = map_chunks(_import_clips, paths, CHUNK_CLIPS, lambda done, total: progress("words", done, total))
    clips = dict(zip((str(Path(name).with_suffix("")) for name in names), imported, strict=True))
    user_tone, agent_tone = load_tones()
    styles: dict[str, tuple[str, ...]] = defaultdict(tuple)
    rows = []
    accepted = {candidate.id: candidate for candidate in manifest.candidates if candidate.rejected_by is None}
    for query in manifest.queries:
        if query.style is not None and query.id in accepted:
            styles[query.contrast_id] = tuple(dict.fromkeys((*styles[query.contrast_id], query.style)))
            rows.append((accepted[query.id], clips[str(Path(query.clip).with_suffix(""))].features.utterance))
    return save_dataset(
        folder,
        queries=manifest.queries,
        demonstrations=manifest.demonstrations,
        candidates=manifest.candidates,
        clips=clips,
        user_tone=user_tone,
        agent_tone=agent_tone,
        audibility=style_audibility(rows, styles),
    )
