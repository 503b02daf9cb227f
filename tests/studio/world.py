"""A run folder made by hand, for the studio: true formats, invented numbers, and words that would be harmful as HTML."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from paras2s.audio.clip import Clip, write_clip
from paras2s.bench.paras2s.metrics import summary
from paras2s.bench.results import AnswerRow, save_rows
from paras2s.configs.schema.base import dump_config
from paras2s.configs.schema.run import RunConfig
from paras2s.policy.embedded.codec2 import Codec2Pairs
from paras2s.rollout.store import FOLDER, write_step
from paras2s.rollout.timeline import FILE as TIMELINE
from paras2s.train.advantages import advantages_of
from paras2s.types import Block, Query, Reward, Rollout, Unscored
from paras2s.utils.io import write_json, write_jsonl, write_text

HOSTILE = "<img src=x onerror=\"document.title='owned'\"><script>document.title='owned'</script> & co"
QUERIES, GROUP = ("q0", "q1", "q2"), 3


def tone(seconds: float = 0.5, hz: float = 220.0) -> Clip:
    time_s = np.arange(int(seconds * 8000)) / 8000
    return Clip((0.3 * np.sin(2 * np.pi * hz * time_s)).astype(np.float32), 8000)


def rollout(query_id: str, step: int, seed: int = 0) -> Rollout:
    """Three answers of six steps in the embedded policy's form: a text slot and eight of audio."""
    rng = np.random.default_rng([seed, step, QUERIES.index(query_id)])
    steps, slots = 6, ("text", *(f"audio{number}" for number in range(8)))
    sizes = np.array(Codec2Pairs.cardinality)
    codes = rng.integers(0, sizes, (GROUP, steps, 8))
    tokens = np.concatenate([rng.integers(0, 4, (GROUP, steps, 1)), codes], axis=2)
    logp = -rng.exponential(1.0, tokens.shape)
    texts = tuple(f"answer {number} of step {step} to {query_id}" for number in range(GROUP - 1))
    return Rollout(
        query_id=query_id, policy_version=step, blocks=(Block(slots, tokens, np.ones(tokens.shape, bool), logp),),
        finish_reason=("eos",) * (GROUP - 1) + ("length",), seeds=tuple(range(GROUP)), texts=(*texts, HOSTILE),
        codes=tuple(codes), waves=(np.zeros(0, np.float32),) * GROUP, sample_rate_hz=8000, code_format=Codec2Pairs.version,
    )  # fmt: skip


def rewards_of(step: int) -> list[list[Reward | Unscored]]:
    """q0 has no spread, q1 rises by 0.1 a step, q2 has an unscored answer."""
    flat: list[Reward | Unscored] = [Reward(3.0, {"length": 3.0})] * GROUP
    rising: list[Reward | Unscored] = [
        Reward(2 + 0.1 * step + number, {"length": 2.0, "rubric": 4.0}) for number in range(GROUP)
    ]
    return [flat, rising, [Reward(1.0, {"length": 1.0}), Unscored("llm", HOSTILE), Reward(5.0, {"length": 5.0})]]


def make_run(folder: Path, steps: int = 4, score: float = 4.0, **settings: Any) -> Path:
    """A finished run with rollouts; `settings` are laid over the config's values."""
    config = RunConfig.model_validate({"name": "quick", "run_dir": str(folder), "align": {"steps": steps}, **settings})
    write_text(folder / "config.resolved.yaml", dump_config(config))
    write_json(folder / "origin.json", {"version": "0.9.0", "commit": "a" * 40})
    write_jsonl(folder / "metrics.jsonl", [metrics_row(step) for step in range(steps)])
    write_jsonl(folder / TIMELINE, [timeline_row(step) for step in range(steps)])
    write_json(folder / "timings.json", {"data": 60.0, "align": 120.0})
    for step in range(steps):
        rewards = rewards_of(step)
        advantages = advantages_of(rewards, "none").groups
        write_step(folder / FOLDER, step, [rollout(query, step) for query in QUERIES], rewards, advantages)
    write_json(folder / "sft/vocabulary.json", ["a", "b", "##c", HOSTILE])
    write_data(folder / "data")
    write_bench(folder, score)
    for name in ("sft/policy.json", "reward/reward_model.json", "aligned/trainer.json"):
        write_json(folder / name, {})
    write_json(folder / "reward/agreement.json", {"cost_usd": 1.25})
    return folder


def timeline_row(step: int) -> dict[str, Any]:
    """A step of 10 s: 6 of two samplers, 1 of the judge, 2 of the learner, and what the loop waits."""
    names = {"loop": "loop 1 on h", "learner": "learner 2 on h", "reward": f"reward 5 on {HOSTILE}"}
    spans = [("loop", "wait for answers", 0, 7), ("loop", "wait for the update", 7, 9), ("loop", "keep rollouts", 9, 9.5),
             ("rollout 3 on h", "sample", 0, 6), ("rollout 4 on h", "load weights", 0, 1), ("rollout 4 on h", "sample", 1, 6),
             ("reward", "score", 6, 7), ("learner", "update", 7, 9)]  # fmt: skip
    begin = 1e9 + 10 * step
    return {
        "step": step,
        "spans": [
            {"worker": names.get(who, who), "work": work, "start_s": begin + start, "end_s": begin + end}
            for who, work, start, end in spans
        ],
    }


def metrics_row(step: int) -> dict[str, Any]:
    row = {
        "step": step, "reward_mean": 3 + 0.1 * step, "reward_std": 1.0, "kl": 0.01 * step, "kl_text": 0.01, "kl_audio": 0.0,
        "grad_norm": 1.0, "length_steps": 30.0, "unscored": 1, "seconds": 3.0, "seconds_answers": 2.0, "seconds_update": 0.8,
        "reward/length": 3.0, "entropy_text": 2.0, "entropy_audio": 1.0, "same_text_share": 0.1,
    }  # fmt: skip
    return row | ({"validation_reward": 3.0} if step % 2 == 0 else {})


def write_data(folder: Path) -> None:
    rows = [
        Query(query, "", None, None, "rl", "", f"queries/{query}.wav", 0.5, f"question {query}", None, None)
        for query in QUERIES
    ]
    rows.append(Query("hostile", "c", "age", None, "test", "", "queries/hostile.wav", 0.5, HOSTILE, HOSTILE, "child"))
    folder.mkdir(parents=True, exist_ok=True)
    pq.write_table(pa.Table.from_pylist([asdict(row) for row in rows]), folder / "queries.parquet")
    for row in rows:
        write_clip(folder / row.clip, tone())


def write_bench(folder: Path, score: float) -> None:
    rows = [
        AnswerRow(
            system="aligned", query_id=f"t{number}", contrast_id=f"c{number}", category="age", style="child",
            question_text=HOSTILE, question_clip="data/queries/q0.wav", answer_index=0, text_stream="text", transcript=HOSTILE,
            tone=None, tone_scores={}, score=score + 0.5 * (number % 2), unscored=None, reason="", family=None,
            fitting=score >= 4, answer_clip="samples/t.wav", duration_s=1.0, word_error_rate=0.0, judge="rubric/2/abc",
            model_score=None,
        )
        for number in range(4)
    ]  # fmt: skip
    write_clip(folder / "samples/t.wav", tone(hz=330))
    save_rows(folder / "bench/aligned.jsonl", rows)
    write_json(folder / "bench/summary.json", json.loads(json.dumps(summary({"aligned": rows}))))
