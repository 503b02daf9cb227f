"""Checkpoints of GLM-4-Voice and Step-Audio 2, tiny and random, in the released layouts: read, written, refused."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file
from tiny.interleaved import (
    GLM_CONFIG,
    GLM_IDS,
    STEP_CONFIG,
    TinyGlm,
    TinyStep,
    logits_of,
    shapes_of_glm,
    shapes_of_step,
    stored_tensors,
    tiny_glm,
    tiny_turns,
    write_glm,
    write_step,
)

from paras2s.errors import DataError, PolicyError
from paras2s.policy.interleaved.glm4_voice import Glm4VoicePolicy

WRITERS = {"glm": (TinyGlm, write_glm, shapes_of_glm), "step": (TinyStep, write_step, shapes_of_step)}


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16])
@pytest.mark.parametrize("kind", WRITERS)
def test_loaded_and_saved_the_released_tensors_are_the_same(kind: str, dtype: torch.dtype, tmp_path: Path) -> None:
    kind_of, write, shapes = WRITERS[kind]
    before = stored_tensors(write(tmp_path / "released", dtype=dtype))
    assert {name: tuple(value.shape) for name, value in before.items()} == shapes()
    policy = kind_of.load(tmp_path / "released")
    assert policy.model.lm_head.weight.dtype == dtype
    policy.save(tmp_path / "saved")
    after = stored_tensors(tmp_path / "saved")
    assert after.keys() == before.keys()
    for name, value in before.items():
        assert after[name].dtype == dtype
        assert torch.equal(after[name], value), name
    assert json.loads((tmp_path / "saved" / "config.json").read_text()) == json.loads(
        (tmp_path / "released" / "config.json").read_text()
    )
    for file in (path for path in (tmp_path / "released").iterdir() if path.suffix in (".py", ".model")):
        assert (tmp_path / "saved" / file.name).read_bytes() == file.read_bytes()
    again = kind_of.load(tmp_path / "saved", dtype=torch.float64)
    ids = torch.arange(20)[None]
    assert torch.equal(logits_of(again.model, ids), logits_of(policy.model.double(), ids))


def test_what_was_saved_finds_the_frozen_component_where_it_is(tmp_path: Path) -> None:
    policy = TinyGlm.load(write_glm(tmp_path / "released"))
    policy.save(tmp_path / "elsewhere" / "saved")
    again = TinyGlm.load(tmp_path / "elsewhere" / "saved")
    turns = tiny_turns()[0]
    assert again.encode_prompt(turns).text_ids.tolist() == policy.encode_prompt(turns).text_ids.tolist()
    again.save(tmp_path / "elsewhere" / "twice")
    assert TinyGlm.load(tmp_path / "elsewhere" / "twice").component() == tmp_path / "released" / "glm-4-voice-tokenizer"
    (tmp_path / "released").rename(tmp_path / "moved")
    with pytest.raises(PolicyError, match="no glm-4-voice-tokenizer in it or beside it"):
        TinyGlm.load(tmp_path / "elsewhere" / "saved").encode_prompt(turns)
    # Nor does a checkpoint go on pointing at what is not there.
    again.save(tmp_path / "elsewhere" / "twice")
    assert not (tmp_path / "elsewhere" / "twice" / "parts.json").exists()


@pytest.mark.parametrize("kind", WRITERS)
def test_tensors_that_do_not_fit_are_named_and_nothing_is_filled(kind: str, tmp_path: Path) -> None:
    kind_of, write, _ = WRITERS[kind]
    folder = write(tmp_path / "released")
    policy = kind_of.load(folder)
    before = {name: value.clone() for name, value in policy.tensors().items()}
    tensors = {name: value + 1 for name, value in stored_tensors(folder).items()}
    missing = "transformer.encoder.layers.1.mlp.dense_h_to_4h.weight" if kind == "glm" else "encoder.blocks.1.attn.out.bias"
    other = "transformer.encoder.layers.0.self_attention.query_key_value.bias" if kind == "glm" else "adapter.linear1.weight"
    del tensors[missing]
    tensors[other] = torch.ones(31)
    tensors["vision.weight"] = torch.ones(2)
    (tmp_path / "bad").mkdir()
    save_file(tensors, tmp_path / "bad" / "model.safetensors")
    with pytest.raises(PolicyError, match="3 tensors do not fit") as error:
        policy.reload(tmp_path / "bad")
    for said in (f"{missing} {list(WRITERS[kind][2]()[missing])} is missing", "vision.weight [2] is not expected",
                 f"{other} is [31], the config wants {list(WRITERS[kind][2]()[other])}"):  # fmt: skip
        assert said in str(error.value)
    assert all(torch.equal(value, before[name]) for name, value in policy.tensors().items())
    (tmp_path / "bad" / "model.safetensors").write_bytes(b"no safetensors")
    with pytest.raises(PolicyError, match="cannot be read"):
        policy.reload(tmp_path / "bad")


@pytest.mark.parametrize("name", ["<|audio_0|>", "<|end_of_audio|>", "<|audio_63|>"])
def test_a_glm_tokenizer_without_a_name_is_refused(name: str, tmp_path: Path) -> None:
    folder = write_glm(tmp_path / "glm")
    path = folder / "tokenizer_config.json"
    added = json.loads(path.read_text())["added_tokens_decoder"]
    kept = {number: token for number, token in added.items() if token["content"] != name}
    path.write_text(json.dumps({"added_tokens_decoder": kept}))
    with pytest.raises(PolicyError, match=f"no token {name}".replace("|", r"\|")):
        TinyGlm.load(folder)
    # Older tokenizers list them in a file of their own.
    (folder / "added_tokens.json").write_text(json.dumps({name: GLM_IDS[name]}))
    assert TinyGlm.load(folder).tokens[name] == GLM_IDS[name]


def test_codes_that_do_not_follow_one_another_are_refused(tmp_path: Path) -> None:
    folder = write_glm(tmp_path / "glm")
    (folder / "added_tokens.json").write_text(json.dumps({"<|audio_63|>": 335}))
    with pytest.raises(PolicyError, match="codes must follow one another"):
        TinyGlm.load(folder)


def test_a_step_tokenizer_without_a_name_is_refused(tmp_path: Path) -> None:
    folder = write_step(tmp_path / "step")
    described = json.loads((folder / "tokenizer.json").read_text())
    kept = [token for token in described["added_tokens"] if token["content"] != "<tts_pad>"]
    (folder / "tokenizer.json").write_text(json.dumps({**described, "added_tokens": kept}))
    with pytest.raises(PolicyError, match="no token <tts_pad>"):
        TinyStep.load(folder)
    (folder / "tokenizer.json").write_text(json.dumps({"added_tokens": []}))
    with pytest.raises(PolicyError, match="not a tokenizer"):
        TinyStep.load(folder)
    (folder / "tokenizer.json").unlink()
    with pytest.raises(DataError, match="no such file"):
        TinyStep.load(folder)


@pytest.mark.parametrize(
    ("key", "value", "said"),
    [
        ("hidden_size", None, "hidden_size missing"),
        ("original_rope", False, "original_rope is False"),
        ("post_layer_norm", False, "post_layer_norm is False"),
        ("multi_query_attention", False, "multi_query_attention is False"),
        ("kv_channels", 4, "kv_channels is 4"),
        ("multi_query_group_num", 3, "num_kv_heads must divide"),
        ("padded_vocab_size", 320, "ids outside the vocabulary of 320"),
        ("eos_token_id", 900, "ids outside the vocabulary"),
    ],
)
def test_a_glm_config_that_is_not_built_is_refused(key: str, value: object, said: str, tmp_path: Path) -> None:
    folder = write_glm(tmp_path / "glm")
    changed = {name: one for name, one in (GLM_CONFIG | {key: value}).items() if one is not None}
    (folder / "config.json").write_text(json.dumps(changed))
    with pytest.raises(PolicyError, match=said):
        TinyGlm.load(folder)


@pytest.mark.parametrize(
    ("part", "key", "value", "said"),
    [
        ("text_config", "rope_theta", None, "text_config.rope_theta missing"),
        ("text_config", "rope_scaling", {"type": "yarn"}, "rope_scaling is"),
        ("text_config", "tie_word_embeddings", True, "tie_word_embeddings is True"),
        ("audio_encoder_config", "llm_dim", 24, "llm_dim is 24"),
        ("audio_encoder_config", "n_mels", None, "n_mels"),
        ("audio_encoder_config", "n_audio_head", 3, "n_audio_head must divide"),
    ],
)
def test_a_step_config_that_is_not_built_is_refused(part: str, key: str, value: object, said: str, tmp_path: Path) -> None:
    folder = write_step(tmp_path / "step")
    changed = {name: one for name, one in (STEP_CONFIG[part] | {key: value}).items() if one is not None}
    (folder / "config.json").write_text(json.dumps(STEP_CONFIG | {part: changed}))
    with pytest.raises(PolicyError, match=said):
        TinyStep.load(folder)


def test_the_released_sizes_of_glm_are_read_from_its_config() -> None:
    released = {
        "padded_vocab_size": 168960, "hidden_size": 4096, "ffn_hidden_size": 13696, "num_layers": 40,
        "num_attention_heads": 32, "multi_query_group_num": 2, "kv_channels": 128, "layernorm_epsilon": 3.90625e-08,
        "eos_token_id": [151329, 151336, 151338], "pad_token_id": 151329, "original_rope": True, "rope_ratio": 1,
    }  # fmt: skip
    config = Glm4VoicePolicy.stream_config(released, {"<|user|>": 151336, "<|audio_0|>": 152353}, "config.json")
    assert (config.vocab_size, config.num_layers, config.num_kv_heads, config.rms_norm_eps) == (168960, 40, 2, 3.90625e-08)
    assert (config.rope_theta, config.rotary_share, config.rotary_in_pairs) == (10_000, 0.5, True)
    assert config.text_end_ids == (151336, 151329, 151338)
    assert config.audio_from_id == 152353
    assert config.num_codebooks == 0
    assert Glm4VoicePolicy.context(released) is None
    assert tiny_glm().config.rope_theta == 20_000
    assert tiny_glm().spec.context_steps == 600
