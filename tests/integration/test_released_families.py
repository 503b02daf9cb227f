"""Both Qwen-Omnis through all stages by command line, on tiny random folders of true layout: distillation, GRPO, bench, export.

They have no warm-up on recorded speech. Kimi-Audio and Moshi: test_released_policy.py. Not covered: what they would learn.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import yaml
from test_released_policy import ALIGN, config_of, weights_in
from tiny.endpoint import Say, ScriptedEndpoint
from tiny.qwen3_omni import write_qwen3_omni
from tiny.qwen_omni import write_qwen_omni
from tiny.world import invoke

from paras2s.data_gen.dataset import TableWriter, load_dataset
from paras2s.policy.registry import load_policy
from paras2s.types import Query
from paras2s.utils.io import read_json, read_jsonl


@dataclass(frozen=True)
class Family:
    """How a family's folder is written, and steps of a second of sound."""

    write: Callable[[Path], Path]
    steps: int


FAMILIES = {
    "qwen_omni": Family(write_qwen_omni, 60),
    "qwen3_omni": Family(write_qwen3_omni, 16),
}


def teacher(sent: dict[str, Any], number: int) -> Say:
    """An LLM's score by the answer's length alone, as random answers have no words."""
    answer = [part for part in sent["messages"][-1]["content"] if part["type"] == "input_audio"][-1]
    return Say(json.dumps({"reasoning": "r", "score": 1 + len(answer["input_audio"]["data"]) % 5}))


def taught_by(server: ScriptedEndpoint, folder: Path) -> dict[str, Any]:
    """Settings of distillation with an audio judge at `server`."""
    llm = {"base_url": server.base_url, "model": "gpt-audio", "backoff_s": 0.001, "max_attempts": 2, "timeout_s": 20.0}
    judge = {"name": "audio", "extractors": [], "judge": {"reads": "audio"}, "llm": llm}
    (folder / "judge.yaml").write_text(yaml.safe_dump(judge))
    sizes = {"steps": 2, "batch_size": 4, "answers_per_query": 2, "hidden_size": 16, "layers": 1, "degenerate_answers": 1}
    return {**sizes, "teacher": str(folder / "judge.yaml")}


def share_roles(source: Path, data: Path) -> None:
    """The tiny data with RL prompts (no labels) and validation among its preference set, and one contrast to be benched."""
    queries = load_dataset(source).queries
    contrasts = {role: list(dict.fromkeys(q.contrast_id for q in queries if q.role == role)) for role in ("preference", "test")}
    validated, prompted, *_ = contrasts["preference"]

    def placed(query: Query) -> Query:
        if query.contrast_id == prompted:
            return replace(query, role="rl", text=None, style=None)
        return replace(query, role="validation") if query.contrast_id == validated else query

    dropped = contrasts["test"][1:]
    with TableWriter(data / "queries.parquet", Query) as table:
        table.write([placed(query) for query in queries if query.contrast_id not in dropped])


@pytest.mark.parametrize("name", FAMILIES)
def test_a_family_goes_through_all_stages(name: str, tiny_run: Path, tmp_path: Path) -> None:
    family, run = FAMILIES[name], tmp_path / "run"
    weights = family.write(tmp_path / "released")
    with ScriptedEndpoint(teacher) as server:
        config = config_of(
            tmp_path, tiny_run / "run/data", weights,
            policy={"weights": str(weights), "device": "cpu", "max_answer_steps": family.steps},
            warmup={"steps": 0}, distill=taught_by(server, tmp_path),
            bench={"answers_per_query": 1}, align=ALIGN | {"steps": 1},
        )  # fmt: skip
        share_roles(tiny_run / "run/data", run / "data")
        invoke("warmup", config)
        invoke("distill", config)
    invoke("align", config)
    assert read_json(run / "reward/agreement.json")["preference_unscored"] == 0
    [row] = read_jsonl(run / "metrics.jsonl")
    assert row["parity_text_max"] < 1e-3
    assert row["parity_audio_max"] < 1e-3
    assert np.isfinite(row["loss"])
    before, after = weights_in(run / "sft"), weights_in(run / "aligned")
    moved = {key for key in after if not torch.equal(after[key], before[key])}
    assert moved
    # Adapters were folded into projections, and into nothing else.
    assert all("_proj" in key for key in moved)
    assert {"sft", "aligned"} <= json.loads(invoke("bench", "contrasts", config, "--json").stdout).keys()
    done = json.loads(invoke("export", run / "aligned", tmp_path / "exported", "--json").stdout)
    assert done["folder"] == str(tmp_path / "exported")
    exported = weights_in(tmp_path / "exported")
    assert exported.keys() == before.keys()
    assert all(torch.equal(exported[key], after[key]) for key in after)
    assert load_policy(tmp_path / "exported", None, "cpu").sampling.max_steps == family.steps
