"""Moshi's checkpoints: the same as transformers' own, and refused by name where they do not fit."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from tiny.moshi import tiny_moshi, tiny_moshi_turns, tiny_released, tiny_tokenizer

from paras2s.errors import PolicyError
from paras2s.policy.moshi import MoshiPolicy, MoshiText
from paras2s.policy.types import SampleRequest, Sampling
from paras2s.policy.weights import write_tensors

WARM = Sampling(text_temperature=0.7, audio_temperature=1.4, max_steps=7)


def test_6_a_checkpoint_is_transformers_own(tmp_path: Path) -> None:
    """Both ways: theirs is loaded as a release is, and ours holds the same tensors under the same names."""
    from safetensors.torch import load_file

    released = tiny_released(2)
    released.save_pretrained(tmp_path / "theirs")
    (tmp_path / "theirs" / "tokenizer.json").write_text(tiny_tokenizer(12).to_str())
    policy = MoshiPolicy.load(tmp_path / "theirs")
    assert policy.text_ids == MoshiText(3, 0, None)
    policy.save(tmp_path / "ours")
    theirs, ours = (load_file(tmp_path / name / "model.safetensors") for name in ("theirs", "ours"))
    assert theirs.keys() == ours.keys()
    assert all(torch.equal(theirs[name].float(), ours[name].float()) for name in theirs)
    configs = [json.loads((tmp_path / name / "config.json").read_text()) for name in ("theirs", "ours")]
    for config in configs:
        for part in ("audio_encoder_config", "depth_decoder_config"):
            config[part].pop("dtype", None)
    assert configs[0] == configs[1]


def test_6_a_checkpoint_in_half_precision_keeps_its_rotary_angles(tmp_path: Path) -> None:
    tiny_moshi().save(tmp_path)
    policy = MoshiPolicy.load(tmp_path, dtype=torch.bfloat16)
    assert {parameter.dtype for parameter in policy.model.parameters()} == {torch.bfloat16}
    assert {parameter.dtype for parameter in policy.mimi.parameters()} == {torch.float32}
    rotary = policy.model.decoder.model.layers[0].self_attn.rotary_emb.inv_freq
    assert torch.equal(rotary, tiny_moshi().model.decoder.model.layers[0].self_attn.rotary_emb.inv_freq)
    (found,) = policy.generate(SampleRequest([policy.encode_prompt(tiny_moshi_turns()[0])], [[1, 2]], WARM))
    assert np.isfinite(found.blocks[0].behaviour_logp).all()


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("moshi")
    tiny_moshi().save(folder)
    return folder


def copy_of(saved: Path, folder: Path) -> Path:
    for path in saved.iterdir():
        (folder / path.name).write_bytes(path.read_bytes())
    return folder


def test_6_tensors_that_do_not_fit_are_refused_by_name(saved: Path, tmp_path: Path) -> None:
    from safetensors.torch import load_file

    folder = copy_of(saved, tmp_path)
    state = load_file(folder / "model.safetensors")
    state["decoder.lm_head.weight"] = state["decoder.lm_head.weight"][:-1]
    state["extra.weight"] = state.pop("depth_decoder.lm_heads.weight")
    del state["audio_encoder.downsample.conv.weight"]
    write_tensors(folder, state)
    with pytest.raises(PolicyError) as refused:
        MoshiPolicy.load(folder)
    for part in ("4 tensors", "lm_head.weight is [11, 24], the config wants [12, 24]", "lm_heads.weight [3, 8, 16] is missing",
                 "extra.weight [3, 8, 16] is not expected", "downsample.conv.weight"):  # fmt: skip
        assert part in str(refused.value)


@pytest.mark.parametrize(
    ("name", "text", "match"),
    [
        ("policy.json", json.dumps({"architecture": "DualStreamLM"}), "not a Moshi"),
        ("policy.json", json.dumps({"architecture": "Moshi", "text": {"padding": 3}}), "does not fit"),
        ("config.json", json.dumps({"model_type": "moshi"}), "vocab_size"),
        ("tokenizer.json", None, r"no tokenizer\.json"),
        ("model.safetensors", "cut off", "cannot be read"),
        ("model.safetensors", None, "holds neither"),
    ],
)
def test_6_files_that_do_not_fit_are_refused(saved: Path, tmp_path: Path, name: str, text: str | None, match: str) -> None:
    folder = copy_of(saved, tmp_path)
    if text is None:
        (folder / name).unlink()
    else:
        (folder / name).write_text(text)
    with pytest.raises(PolicyError, match=match):
        MoshiPolicy.load(folder)


def test_6_a_tokenizer_of_another_model_is_refused() -> None:
    with pytest.raises(PolicyError, match="12 pieces, the model 3"):
        MoshiPolicy(tiny_released(3, text=3, codes=2, codebooks=2), tiny_tokenizer(12))
