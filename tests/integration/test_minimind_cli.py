"""MiniMind-O through warm-up, GRPO and export by command line, on a tiny random folder in the released layout.

It hears by a fake of SenseVoice-Small, whose package is not installed. Not covered: distillation and bench, since most of its
random answers end before their first frame of sound is whole; what it would learn.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch
from test_released_policy import ALIGN, LORA, config_of, weights_in
from tiny.minimind import write_minimind
from tiny.world import invoke

from paras2s.policy.minimind_o import RELEASED
from paras2s.policy.registry import load_policy
from paras2s.utils.io import read_jsonl


def test_it_goes_from_warm_up_to_export(tiny_run: Path, tmp_path: Path) -> None:
    weights = write_minimind(tmp_path / "released")
    (weights / "SenseVoiceSmall").mkdir()
    policy = {"weights": str(weights), "kind": "tiny.minimind:EncodingMiniMind", "device": "cpu", "max_answer_steps": 24}
    warmup = {"steps": 2, "batch_size": 2, "demonstration_contrasts": 1, "lora": LORA, "lr": 0.01}
    config = config_of(tmp_path, tiny_run / "run/data", weights, policy=policy, warmup=warmup, align=ALIGN | {"steps": 1})
    for verb in ("warmup", "align"):
        invoke(verb, config)
    [row] = read_jsonl(tmp_path / "run/metrics.jsonl")
    assert max(row["parity_text_max"], row["parity_audio_max"]) < 1e-3
    assert np.isfinite(row["loss"])
    released = torch.load(weights / RELEASED, weights_only=True)
    sft, aligned = (weights_in(tmp_path / "run" / name) for name in ("sft", "aligned"))
    for before, after in ((released, sft), (sft, aligned)):
        moved = {name for name, value in after.items() if not torch.equal(value, before[name])}
        assert moved
        assert all(".layers." in name for name in moved)
    invoke("export", tmp_path / "run/aligned", tmp_path / "exported")
    exported = weights_in(tmp_path / "exported")
    assert exported.keys() == aligned.keys()
    assert all(torch.equal(exported[name], aligned[name]) for name in aligned)
    assert load_policy(tmp_path / "exported", None, "cpu").sampling.max_steps == 24
