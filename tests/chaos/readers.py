"""Every reader of a file that a user, another program or a stopped run may have left damaged, with an intact file for each.

A reader gives back something or raises an error of this project; nothing else may come out of it.
"""

from __future__ import annotations

import io
import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.numpy import save

from paras2s.audio.clip import Clip, encode_clip, read_clip, read_written_clip
from paras2s.bench.bias.perturbations import load_probe_pairs
from paras2s.bench.bias.recorded import load_recorded as load_recorded_probe
from paras2s.bench.detection.data import SUITES, read_table
from paras2s.bench.detection.data import load_pairs as load_detection
from paras2s.bench.detection.grid import load_grid
from paras2s.bench.human_correlation import load_ratings
from paras2s.bench.ranking.arena import load_arena
from paras2s.bench.ranking.data import load_recorded
from paras2s.bench.ranking.run import judge_of, read_names
from paras2s.bench.ranking.run import load_categories as load_instruction_categories
from paras2s.bench.results import load_rows
from paras2s.bench.speakbench.data import load_pairs
from paras2s.bench.speakbench.label_sets import load_labels
from paras2s.bench.styleset.data import load_contexts, load_following
from paras2s.bench.styleset.metrics import load_human
from paras2s.bench.voicebench.data import load_voicebench
from paras2s.bench.voicebench.metrics import load_voicebench_rows
from paras2s.clients.endpoint import load_prices
from paras2s.configs.find import which_config
from paras2s.configs.schema.judges import JudgingConfig, find_judge
from paras2s.configs.schema.run import load_config
from paras2s.data_gen.curation.categories import load_categories
from paras2s.data_gen.curation.human_check import read_old_decisions
from paras2s.data_gen.dataset import _read_table
from paras2s.pipeline.learned_answers import read_answers as read_learned
from paras2s.planning.cluster import load_cluster, load_rates
from paras2s.policy.csm import read_replies
from paras2s.policy.embedded.frontend import ClipFeatures
from paras2s.policy.kimi.detokenizer import _read_config, _read_tensors
from paras2s.policy.official import read_dump
from paras2s.policy.trained_checks import read_pairs
from paras2s.policy.weights import read_config, shard_files, stored_dtype, stored_shapes
from paras2s.reward.fusion import FusionRule, read_rules
from paras2s.reward.judges.audio_judge.few_shot import load_examples
from paras2s.reward.judges.independent.tone import ToneDiscriminant
from paras2s.reward.judges.rubric_rules import load_rubric
from paras2s.reward.reward_model.known_range import KnownRange
from paras2s.reward.reward_model.model import RewardModel
from paras2s.reward.tone_classifier import ToneClassifier
from paras2s.rollout import store
from paras2s.rollout.demonstrations import read_target
from paras2s.rollout.phase_times import read_phase_times
from paras2s.rollout.prompts import read_prompt
from paras2s.studies.study import read_items
from paras2s.studio.curves import read_log
from paras2s.studio.run_state import last_row
from paras2s.studio.run_state import read_config as read_shown_config
from paras2s.studio.verdict_files import kind_of
from paras2s.studio.verdict_files import read_rows as read_shown_rows
from paras2s.train.checkpoint import _read as read_checkpoint
from paras2s.types import Query
from paras2s.unisrm.data_gen import verify
from paras2s.unisrm.reward.items import read_items as read_unisrm_items
from paras2s.utils.io import read_csv, read_json, read_jsonl

RECORDED = Path(__file__).parents[1] / "recorded" / "run_0_21"


@dataclass(frozen=True)
class Reader:
    """A reader, the file that it reads, and the content of such a file."""

    read: Callable[[Path], object]
    name: str
    data: bytes

    @property
    def kind(self) -> str:
        return self.name.rpartition(".")[2]

    def run(self, folder: Path, data: bytes) -> object:
        """Read a file of these bytes to its end."""
        path = folder / self.name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)
        value = self.read(path)
        return list(value) if isinstance(value, Iterator) else value


def _npz(**arrays: Any) -> bytes:
    buffer = io.BytesIO()
    np.savez(buffer, **arrays)
    return buffer.getvalue()


def _torch(value: Any) -> bytes:
    buffer = io.BytesIO()
    torch.save(value, buffer)
    return buffer.getvalue()


def _rows(*rows: dict[str, Any]) -> bytes:
    return "".join(json.dumps(row) + "\n" for row in rows).encode()


def _recorded(name: str) -> bytes:
    return (RECORDED / name).read_bytes()


LABEL = {"content": "1", "voice_quality": "1", "paralinguistics": "1", "overall": "1"}
PAIR = {
    "index": 0, "instruction_path": "i.wav", "instruction_text": "q", "model_a": "x", "model_b": "y", "audio1_path": "a.wav",
    "audio2_path": "b.wav", "label": LABEL, "instruction_id": 1,
}  # fmt: skip
ITEM = {
    "id": "q1", "question": "a.wav", "category": "emotion",
    "answers": [{"system": "ours", "clip": "a.wav"}, {"system": "theirs", "clip": "b.wav"}],
}  # fmt: skip
TENSORS = save({"a": np.zeros((2, 3), np.float32), "b": np.arange(4, dtype=np.int64)})
GAMES = b"aspect,instruction_id,system,reference,system_first,system_second\nstyle,1,ours,base,1,2\n"
TONES = np.sin(np.arange(4000) / 9).astype(np.float32)
WAV = encode_clip(Clip(TONES, 16_000))

READERS: dict[str, Reader] = {
    "json": Reader(read_json, "a.json", b'{"a": [1, 2.5, null, "x"]}'),
    "jsonl": Reader(read_jsonl, "a.jsonl", b'{"a": 1}\n{"a": 2}\n'),
    "csv": Reader(read_csv, "a.csv", b"a,b\n1,2\n"),
    "run config": Reader(load_config, "a.yaml", _recorded("config.resolved.yaml")),
    "config kind": Reader(which_config, "a.yaml", b"kind: curation\n"),
    "shown config": Reader(lambda path: read_shown_config(path, path.stat().st_mtime_ns), "a.yaml", b"a: 1\n"),
    "judge": Reader(lambda path: find_judge(path).config(JudgingConfig), "a.yaml", b"kind: llm\nllm: {model: gpt-4o}\n"),
    "cluster": Reader(lambda path: load_cluster(str(path), load_rates()), "a.yaml", b"device: a100\nrollout: 1\n"),
    "rates": Reader(load_rates, "a.yaml", b"devices: {}\n"),
    "prices": Reader(load_prices, "a.yaml", b"as_of: 2026-01-01\nmodels: {m: {text_in: 1, text_out: 2}}\n"),
    "rubric": Reader(load_rubric, "a.yaml", b"kind: rubric\nkinds: {}\n"),
    "fusion": Reader(lambda path: read_rules(FusionRule, "fusion.yaml", path), "a.yaml", b"mine: {}\n"),
    "query categories": Reader(load_categories, "a.yaml", b"mine: {}\n"),
    "styles": Reader(load_following, "a.yaml", b"- {id: a, text: b}\n"),
    "contexts": Reader(load_contexts, "a.yaml", b"- {id: a, text: b}\n"),
    "grid": Reader(load_grid, "a.yaml", b"suites: {}\nsetups: {}\n"),
    "names": Reader(lambda path: read_names(path, ()), "a.yaml", b"Moshi: moshi\n"),
    "pairs": Reader(load_pairs, "a.json", json.dumps([PAIR]).encode()),
    "detection": Reader(lambda path: load_detection(path, next(iter(SUITES.values()))), "a.json", b"[]"),
    "tones": Reader(ToneClassifier.load, "a.json", _recorded("data/tone_agent.json")),
    "discriminant": Reader(ToneDiscriminant.load, "a.json", b'{"features": 1, "labels": []}'),
    "reward model": Reader(lambda path: RewardModel.load(path.parent), "reward_model.json", b'{"hidden_size": 8}'),
    "checkpoint config": Reader(lambda path: read_config(path, ("a",)), "config.json", b'{"a": 1}'),
    "index": Reader(lambda path: shard_files(path.parent), "model.safetensors.index.json", b'{"weight_map": {"a": "b"}}'),
    "vocoder config": Reader(_read_config, "a.json", b'{"a": 1}'),
    "old decisions": Reader(read_old_decisions, "a.jsonl", _rows({"item_id": "a", "annotator": "b", "accept": True})),
    "study": Reader(read_items, "a.jsonl", _rows(ITEM)),
    "voicebench": Reader(lambda path: load_voicebench(path, "alpacaeval"), "a.jsonl", _rows({"id": "a", "prompt": "b"})),
    "voicebench rows": Reader(load_voicebench_rows, "a.jsonl", _rows({"id": "a"})),
    "examples": Reader(load_examples, "a.jsonl", _rows({"clip": "a.wav", "label": 1})),
    "probe pairs": Reader(load_probe_pairs, "a.jsonl", _rows({"id": "a", "first": "a.wav", "second": "b.wav"})),
    "trained pairs": Reader(read_pairs, "a.jsonl", _rows({"question": "a.wav", "answer": "b.wav", "text": "c"})),
    "answers": Reader(load_rows, "a.jsonl", _recorded("bench/sft.jsonl")),
    "replies": Reader(read_replies, "a.jsonl", _rows({"question": "a", "reply": "b"})),
    "unisrm items": Reader(lambda path: read_unisrm_items(path.parent), "items.jsonl", _rows({"id": "a"})),
    "judge of verdicts": Reader(lambda path: judge_of(path.with_suffix(".csv")), "a.jsonl", _rows({"verdict": {"judge": "j"}})),
    "rollouts index": Reader(lambda path: store.read_index(path.parent), "index.jsonl", _recorded("rollouts/index.jsonl")),
    "log": Reader(read_log, "a.jsonl", _recorded("metrics.jsonl")),
    "last row": Reader(last_row, "a.jsonl", _recorded("metrics.jsonl")),
    "kind of verdicts": Reader(lambda path: kind_of(str(path)), "a.jsonl", _recorded("bench/sft.jsonl")),
    "shown verdicts": Reader(read_shown_rows, "a.jsonl", _recorded("bench/sft.jsonl")),
    "phase times": Reader(lambda path: read_phase_times(path.parent), "timeline.jsonl", _recorded("timeline.jsonl")),
    "ratings": Reader(load_ratings, "a.csv", b"id,system,category,rater,score\na,b,c,d,5\n"),
    "games": Reader(load_recorded, "a.csv", GAMES),
    "arena": Reader(load_arena, "a.csv", GAMES),
    "instruction categories": Reader(load_instruction_categories, "a.csv", b"instruction_id,category\n1,a\n"),
    "recorded probe": Reader(load_recorded_probe, "a.csv", b"judge,given\na,1\n"),
    "label set": Reader(load_labels, "a.csv", b"index,label\n1,1\n"),
    "human styles": Reader(load_human, "a.csv", b"id,rater,score\na,b,1\n"),
    "detection table": Reader(lambda path: read_table(path)[1], "a.csv", b"audio1_path,b\n1,2\n"),
    "unisrm ratings": Reader(verify.read_ratings, "a.csv", b"item,rater,choice\na,b,A\n"),
    "unisrm gold": Reader(verify.read_gold, "a.csv", b"item,choice\na,A\n"),
    "features": Reader(
        lambda path: ClipFeatures.from_bytes(path.read_bytes(), "a.npz"),
        "a.npz",
        _npz(codes=np.zeros((3, 2), np.int16), steps=np.zeros((3, 4)), utterance=np.zeros(5)),
    ),
    "prompt": Reader(
        read_prompt,
        "a.npz",
        _npz(
            continuous=np.zeros(3, bool),
            audio_ids=np.zeros(3),
            text_ids=np.zeros(3),
            words_dim=1,
            code_offsets=[1],
            hidden_ids=[1],
        ),
    ),
    "target": Reader(read_target, "a.npz", _npz(blocks=1, tokens0=np.zeros((2, 1)), sampled0=np.ones((2, 1)), slots0=["a"])),
    "learned": Reader(read_learned, "a.npz", _npz(described=json.dumps({"version": 1}), steps=[1], codes=np.zeros((1, 2)))),
    "step": Reader(store.read_answers, "step_000000.parquet", _recorded("rollouts/step_000000.parquet")),
    "tokens": Reader(
        lambda path: store.read_tokens(path, 0, 0), "step_000000.parquet", _recorded("rollouts/step_000000.parquet")
    ),
    "codes": Reader(store.read_codes, "step_000000.parquet", _recorded("rollouts/step_000000.parquet")),
    "queries": Reader(lambda path: _read_table(path, Query), "queries.parquet", _recorded("data/queries.parquet")),
    "shapes": Reader(lambda path: stored_shapes([path]), "a.safetensors", TENSORS),
    "dtype": Reader(lambda path: stored_dtype([path]), "a.safetensors", TENSORS),
    "checkpoint": Reader(read_checkpoint, "a.safetensors", TENSORS),
    "known range": Reader(
        lambda path: KnownRange.load(path.parent),
        "known_range.safetensors",
        save({"states": np.zeros((2, 2)), "limit": np.ones(1)}),
    ),
    "official dump": Reader(read_dump, "a.safetensors", TENSORS),
    "vocoder": Reader(lambda path: _read_tensors(path, "generator"), "a.pt", _torch({"generator": {"a": torch.zeros(2)}})),
    "clip": Reader(read_clip, "a.wav", WAV),
    "written clip": Reader(read_written_clip, "a.wav", WAV),
    "flac": Reader(read_clip, "a.flac", encode_clip(Clip(TONES, 16_000), "FLAC")),
    "mp3": Reader(read_clip, "a.mp3", encode_clip(Clip(TONES, 16_000), "MP3")),
    "ogg": Reader(read_clip, "a.ogg", encode_clip(Clip(TONES, 16_000), "OGG")),
}
