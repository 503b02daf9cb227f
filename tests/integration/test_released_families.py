"""Released families through all stages by command line, on tiny random folders of true layout: warm-up, distillation, GRPO,
bench, export.

The Qwen-Omnis have no encoder of recorded speech, so no warm-up. The decoders of GLM-4-Voice's and Step-Audio 2's codes beep,
and Step-Audio 2's warm-up reads codes of a fake of the S3 tokenizer, whose package is not installed. Kimi-Audio and Moshi:
test_released_policy.py. Not covered: what they would learn.
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
from test_released_policy import ALIGN, LORA, config_of, weights_in
from tiny.csm import write_csm
from tiny.endpoint import Say, ScriptedEndpoint
from tiny.interleaved import FakeS3, write_glm, write_step
from tiny.qwen3_omni import write_qwen3_omni
from tiny.qwen_omni import write_qwen_omni
from tiny.world import invoke

from paras2s.bench.systems import PolicySystem, question_of_query
from paras2s.data_gen.dataset import Dataset, TableWriter, load_dataset
from paras2s.policy.interleaved.cosyvoice import S3Tokenizer
from paras2s.policy.interleaved.glm4_voice import Glm4VoicePolicy
from paras2s.policy.interleaved.step_audio2 import StepAudio2Policy
from paras2s.policy.registry import load_policy
from paras2s.types import Query
from paras2s.utils.io import read_json, read_jsonl


@dataclass(frozen=True)
class Family:
    """How a family's folder is written for a dataset, steps of a second of sound, what names of modules with adapters hold, and
    the decoder of its codes where none is released. The bench takes half of a test's time, and knows no families: CSM's runs.
    """

    write: Callable[[Path, Dataset], object]
    steps: int
    adapted: tuple[str, ...] = ("_proj",)
    decoder: str | None = None
    warmed_up: bool = True
    benched: bool = False


def write_family_of_csm(folder: Path, dataset: Dataset) -> None:
    """The demonstrated words to demonstrated questions, and one reply to all others."""
    questions = {query.id: query.transcript for query in dataset.queries}
    replies = dict.fromkeys(questions.values(), "Yes, I see.")
    replies |= {questions[one.query_id]: one.text for one in dataset.demonstrations}
    write_csm(folder, replies=replies, context=400)


def write_family_of_glm(folder: Path, dataset: Dataset) -> None:
    """The words of the demonstrations are tokens: in bytes they would be longer than their speech."""
    texts = [one.text for one in dataset.demonstrations]
    write_glm(folder, dtype=torch.float32, codes=Glm4VoicePolicy.codes, texts=texts)


def write_family_of_step(folder: Path, dataset: Dataset) -> None:
    write_step(folder, dtype=torch.float32, codes=StepAudio2Policy.codes)
    (folder / StepAudio2Policy.component_folder).mkdir()


FAMILIES = {
    "qwen_omni": Family(lambda folder, _: write_qwen_omni(folder), 60, warmed_up=False),
    "qwen3_omni": Family(lambda folder, _: write_qwen3_omni(folder), 16, warmed_up=False),
    "csm": Family(write_family_of_csm, 16, benched=True),
    "glm4_voice": Family(write_family_of_glm, 24, (".self_attention.", ".mlp."), "tiny.interleaved:beeps_of_glm"),
    "step_audio2": Family(write_family_of_step, 40, decoder="tiny.interleaved:beeps_of_step"),
}
WARMUP = {"steps": 2, "batch_size": 2, "demonstration_contrasts": 1, "lora": LORA, "lr": 0.01}


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
def test_a_family_goes_through_all_stages(name: str, tiny_run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    family, run, weights = FAMILIES[name], tmp_path / "run", tmp_path / "released"
    family.write(weights, load_dataset(tiny_run / "run/data"))
    policy = {"weights": str(weights), "device": "cpu", "max_answer_steps": family.steps, "decoder": family.decoder}
    with ScriptedEndpoint(teacher) as server:
        config = config_of(
            tmp_path, tiny_run / "run/data", weights, policy=policy,
            warmup=WARMUP if family.warmed_up else {"steps": 0}, distill=taught_by(server, tmp_path),
            bench={"answers_per_query": 1}, align=ALIGN | {"steps": 1},
        )  # fmt: skip
        share_roles(tiny_run / "run/data", run / "data")
        with monkeypatch.context() as patch:
            # Its package wants torchaudio, and its file is no small one.
            patch.setattr(S3Tokenizer, "needs", lambda _: None)
            patch.setattr(S3Tokenizer, "load", lambda *_: FakeS3())
            invoke("warmup", config)
        invoke("distill", config)
    invoke("align", config)
    assert read_json(run / "reward/agreement.json")["preference_unscored"] == 0
    [row] = read_jsonl(run / "metrics.jsonl")
    parities = {key: value for key, value in row.items() if key.startswith("parity_") and key.endswith("_max")}
    assert parities.keys() == ({"parity_audio_max"} if name == "csm" else {"parity_text_max", "parity_audio_max"})
    assert max(parities.values()) < 1e-3
    assert np.isfinite(row["loss"])
    before, after = weights_in(run / "sft"), weights_in(run / "aligned")
    check_moved(before, after, family)
    if family.warmed_up:
        check_moved(weights_in(weights), before, family)
    if family.benched:
        assert {"sft", "aligned"} <= json.loads(invoke("bench", "contrasts", config, "--json").stdout).keys()
    done = json.loads(invoke("export", run / "aligned", tmp_path / "exported", "--json").stdout)
    assert done["folder"] == str(tmp_path / "exported")
    exported = weights_in(tmp_path / "exported")
    assert exported.keys() == before.keys()
    assert all(torch.equal(exported[key], after[key]) for key in after)
    loaded = load_policy(tmp_path / "exported", None, "cpu")
    assert loaded.sampling.max_steps == family.steps
    if not family.benched:
        question = question_of_query(load_dataset(run / "data").of_role("test")[0], run / "data")
        [[response]] = PolicySystem(loaded).answer([question], 1, lambda done, total: None)
        assert response.clip is not None


def check_moved(before: dict[str, torch.Tensor], after: dict[str, torch.Tensor], family: Family) -> None:
    """Adapters were folded into their targets, and into nothing else."""
    moved = {key for key in after if not torch.equal(after[key], before[key])}
    assert moved
    assert all(any(part in key for part in family.adapted) for key in moved)
