"""The interleaved family: GLM-4-Voice and Step-Audio 2, tiny and random, through the released layouts.

Our decoder is compared with transformers' GLM and Qwen2 and, from the stored tensors, with ChatGLM's and the ears' arithmetic
written out; prompts with ids that the released tokenizer gave (a public log). Not covered: released weights, tokenizers and
decoders, none of which can be had here, the S3 tokenizer's own network, half precision beyond that it is stored, and GPUs.
"""

from __future__ import annotations

import functools
import itertools
import json
import sys
import types
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file
from tiny.interleaved import (
    GLM_CONFIG,
    GLM_IDS,
    STEP_CONFIG,
    STEP_IDS,
    TinyGlm,
    TinyStep,
    shapes_of_glm,
    shapes_of_step,
    sliding,
    tiny_glm,
    tiny_step,
    tiny_turns,
    write_glm,
    write_step,
)
from torch import Tensor
from torch.nn import functional as fn

from paras2s.audio.clip import Clip
from paras2s.errors import AudioError, DataError, PolicyError
from paras2s.policy.dual_stream.config import DualStreamConfig
from paras2s.policy.dual_stream.logprobs import teacher_forced
from paras2s.policy.dual_stream.model import DualStreamLM
from paras2s.policy.dual_stream.sampler import sample
from paras2s.policy.interleaved.base import OWN_OUTER, InterleavedPolicy, layered, load_joined
from paras2s.policy.interleaved.cosyvoice import S3Tokenizer
from paras2s.policy.interleaved.glm4_voice import SPEECH_INSTRUCTION, TEXT_INSTRUCTION, Glm4VoicePolicy
from paras2s.policy.interleaved.step_audio2 import QWEN_LAYER, StepAudio2Policy
from paras2s.policy.interleaved.step_encoder import StepEncoderConfig
from paras2s.policy.types import Prompt, Sampling, Turn
from paras2s.policy.weights import shard_files
from paras2s.types import AUDIO, TEXT, Block

MAKERS: dict[str, Callable[[], InterleavedPolicy]] = {"glm": tiny_glm, "step": tiny_step}
WARM = Sampling(text_temperature=0.7, max_steps=9)
# Ids that a plain decoder has no use for.
UNUSED = ("blank_id", "msg_end_id", "media_begin_id", "media_end_id", "user_id", "assistant_id", "audio_and_text_id", "pad_id")


@pytest.fixture(scope="module", params=MAKERS)
def case(request: pytest.FixtureRequest) -> tuple[InterleavedPolicy, list[Prompt]]:
    """A policy that no test changes, and three prompts, the second of two clips."""
    policy = MAKERS[request.param]()
    return policy, [policy.encode_prompt(turns) for turns in tiny_turns()]


@functools.cache
def tiny_glm_once() -> TinyGlm:
    return tiny_glm()


@functools.cache
def tiny_step_once() -> TinyStep:
    return tiny_step()


def fresh(case: tuple[InterleavedPolicy, list[Prompt]]) -> InterleavedPolicy:
    """The same policy again, to be changed."""
    return MAKERS["glm" if isinstance(case[0], TinyGlm) else "step"]()


def seeds(prompts: int, group: int) -> list[list[int]]:
    return [[1000 * row + number for number in range(group)] for row in range(prompts)]


def scored(policy: InterleavedPolicy, prompts: list[Prompt], blocks: list[Block], sampling: Sampling = WARM) -> Tensor:
    (logp,) = policy.logprobs(prompts, [[block] for block in blocks], sampling)
    return logp


def drawn(policy: InterleavedPolicy, prompts: list[Prompt], group: int, sampling: Sampling = WARM) -> list[Block]:
    return [one.blocks[0] for one in policy.generate(prompts, group, sampling, seeds(len(prompts), group))]


def logits_of(model: DualStreamLM, ids: Tensor) -> Tensor:
    """Ours [B, L, V] at every position of ids [B, L]."""
    x = model.embed(torch.zeros(*ids.shape, 0, dtype=torch.long), ids, None, None)
    state, _ = model.hidden(x, torch.arange(ids.shape[1]).expand(ids.shape))
    return model.text_logits(state)


# -- the decoder against other people's -------------------------------------------------------------------------------


def hf_model(kind: str, dtype: torch.dtype) -> Any:
    from transformers import GlmConfig, GlmForCausalLM, Qwen2Config, Qwen2ForCausalLM

    sizes = dict(vocab_size=30, hidden_size=32, intermediate_size=48, num_hidden_layers=3, num_attention_heads=4,
                 num_key_value_heads=2, max_position_embeddings=64, tie_word_embeddings=False, pad_token_id=0,
                 eos_token_id=[1, 2])  # fmt: skip
    torch.manual_seed(5)
    if kind == "glm":
        turned = {"rope_type": "default", "rope_theta": 3e4, "partial_rotary_factor": 0.5}
        model: Any = GlmForCausalLM(GlmConfig(**sizes, head_dim=8, rms_norm_eps=3.9e-8, rope_parameters=turned))
    else:
        turned = {"rope_type": "default", "rope_theta": 1e6}
        model = Qwen2ForCausalLM(Qwen2Config(**sizes, rms_norm_eps=1e-6, rope_parameters=turned))
    for parameter in model.parameters():
        parameter.data += 0.3 * torch.randn_like(parameter)
    return model.to(dtype).eval()


def in_double(model: Any) -> Any:
    """transformers norms and rotates in float32, which hides what is smaller; this undoes it."""
    for module in model.modules():
        if type(module).__name__.endswith("RMSNorm"):
            module.forward = lambda x, m=module: fn.rms_norm(x, x.shape[-1:], m.weight, m.variance_epsilon)
    config = model.config
    share = config.rope_parameters.get("partial_rotary_factor", 1.0)
    turned = int(share * config.hidden_size // config.num_attention_heads)
    inverse = config.rope_parameters["rope_theta"] ** (-torch.arange(0, turned, 2).double() / turned)

    def angles(x: Tensor, position_ids: Tensor) -> tuple[Tensor, Tensor]:
        both = (position_ids[..., None].double() * inverse).repeat(1, 1, 2)
        return both.cos(), both.sin()

    model.model.rotary_emb.forward = angles
    return model


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=["float32", "float64"])
@pytest.mark.parametrize("kind", ["glm", "qwen2"])
def test_our_decoder_is_transformers_decoder(kind: str, dtype: torch.dtype, tmp_path: Path) -> None:
    theirs = hf_model(kind, dtype)
    theirs.save_pretrained(tmp_path)
    config = theirs.config
    turned = config.rope_parameters
    unused = dict.fromkeys(UNUSED, 0)
    sizes = DualStreamConfig(
        hidden_size=32, intermediate_size=48, num_layers=3, tap_layer=2, num_heads=4, num_kv_heads=2, text_vocab=30,
        rms_norm_eps=config.rms_norm_eps, rope_theta=turned["rope_theta"], rotary_in_pairs=kind == "glm",
        rotary_share=turned.get("partial_rotary_factor", 1.0), codebook_sizes=(), audio_delay_steps=0, text_eos_id=1,
        mask_invalid_ids=False, **unused,
    )  # fmt: skip
    ours = DualStreamLM(sizes).to(dtype)
    layer = dict(QWEN_LAYER)
    if kind == "glm":
        layer["mlp.gate_up_proj.weight"] = layer.pop("mlp.gate_proj.weight") + layer.pop("mlp.up_proj.weight")
    load_joined(ours.state_dict(), layered(OWN_OUTER, layer, "model.layers.{}.", 3), shard_files(tmp_path), "hf")
    ids = torch.randint(30, (2, 17), generator=torch.Generator().manual_seed(0))
    if dtype == torch.float64:
        theirs = in_double(theirs)
    with torch.no_grad():
        found, wanted = logits_of(ours, ids), theirs(ids).logits
    assert wanted.std() > 0.5
    torch.testing.assert_close(found, wanted, atol=1e-5 if dtype == torch.float32 else 1e-9, rtol=1e-5)


def chatglm(tensors: dict[str, Tensor], ids: list[int]) -> Tensor:
    """ChatGLM's arithmetic on its stored tensors, [L, V]: one head and one pair of numbers at a time."""

    def norm(x: Tensor, name: str) -> Tensor:
        return tensors[name] * x / (x.square().mean(-1, keepdim=True) + 1e-5).sqrt()

    def turn(head: Tensor) -> Tensor:
        """Of 8 numbers the first two pairs of neighbours are turned; the base is 10000 times `rope_ratio`."""
        place, pairs = torch.arange(len(head)).double(), []
        for number, frequency in enumerate((1.0, 20_000**-0.5)):
            cos, sin = (place * frequency).cos(), (place * frequency).sin()
            one, other = head[:, 2 * number], head[:, 2 * number + 1]
            pairs += [one * cos - other * sin, other * cos + one * sin]
        return torch.cat([torch.stack(pairs, 1), head[:, 4:]], 1)

    x = tensors["transformer.embedding.word_embeddings.weight"][ids]
    for layer in range(2):
        at = f"transformer.encoder.layers.{layer}."
        y = norm(x, at + "input_layernorm.weight")
        mixed = (
            y @ tensors[at + "self_attention.query_key_value.weight"].T + tensors[at + "self_attention.query_key_value.bias"]
        )
        heads = []
        for head in range(2):
            q, k, v = turn(mixed[:, 8 * head : 8 * head + 8]), turn(mixed[:, 16:24]), mixed[:, 24:]
            scores = (q @ k.T / 8**0.5).masked_fill(torch.ones(len(ids), len(ids)).triu(1).bool(), -torch.inf)
            heads.append(scores.softmax(-1) @ v)
        x = x + torch.cat(heads, 1) @ tensors[at + "self_attention.dense.weight"].T
        gate, up = (norm(x, at + "post_attention_layernorm.weight") @ tensors[at + "mlp.dense_h_to_4h.weight"].T).chunk(2, -1)
        x = x + (gate * gate.sigmoid() * up) @ tensors[at + "mlp.dense_4h_to_h.weight"].T
    return norm(x, "transformer.encoder.final_layernorm.weight") @ tensors["transformer.output_layer.weight"].T


def stored(folder: Path) -> dict[str, Tensor]:
    return {name: value for file in shard_files(folder) for name, value in load_file(file).items()}


def test_glm_is_chatglms_arithmetic_on_its_stored_tensors(tmp_path: Path) -> None:
    policy = TinyGlm.load(write_glm(tmp_path / "glm"))
    ids = np.random.default_rng(0).integers(332, size=21).tolist()
    with torch.no_grad():
        found = logits_of(policy.model, torch.tensor([ids]))[0]
    torch.testing.assert_close(found, chatglm(stored(tmp_path / "glm"), ids), atol=1e-10, rtol=0)


# -- files ------------------------------------------------------------------------------------------------------------

WRITERS = {"glm": (TinyGlm, write_glm, shapes_of_glm), "step": (TinyStep, write_step, shapes_of_step)}


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16])
@pytest.mark.parametrize("kind", WRITERS)
def test_loaded_and_saved_the_released_tensors_are_the_same(kind: str, dtype: torch.dtype, tmp_path: Path) -> None:
    kind_of, write, shapes = WRITERS[kind]
    before = stored(write(tmp_path / "released", dtype=dtype))
    assert {name: tuple(value.shape) for name, value in before.items()} == shapes()
    policy = kind_of.load(tmp_path / "released")
    assert policy.model.lm_head.weight.dtype == dtype
    policy.save(tmp_path / "saved")
    after = stored(tmp_path / "saved")
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


def test_what_was_saved_finds_the_frozen_ears_where_they_are(tmp_path: Path) -> None:
    policy = TinyGlm.load(write_glm(tmp_path / "released"))
    policy.save(tmp_path / "elsewhere" / "saved")
    again = TinyGlm.load(tmp_path / "elsewhere" / "saved")
    turns = tiny_turns()[0]
    assert again.encode_prompt(turns).text_ids.tolist() == policy.encode_prompt(turns).text_ids.tolist()
    again.save(tmp_path / "elsewhere" / "twice")
    assert TinyGlm.load(tmp_path / "elsewhere" / "twice").part() == tmp_path / "released" / "glm-4-voice-tokenizer"
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
    tensors = {name: value + 1 for name, value in stored(folder).items()}
    missing = "transformer.encoder.layers.1.mlp.dense_h_to_4h.weight" if kind == "glm" else "encoder.blocks.1.attn.out.bias"
    other = "transformer.encoder.layers.0.self_attention.query_key_value.bias" if kind == "glm" else "adapter.linear1.weight"
    del tensors[missing]
    tensors[other] = torch.ones(31)
    tensors["vision.weight"] = torch.ones(2)
    (tmp_path / "bad").mkdir()
    save_file(tensors, tmp_path / "bad" / "model.safetensors")
    with pytest.raises(PolicyError, match="3 tensors do not fit") as error:
        policy.reload(tmp_path / "bad")
    for said in (f"{missing} {list(WRITERS[kind][2]()[missing])} is missing", "vision.weight [2] is not wanted",
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


# -- the same weights under transformers' names -----------------------------------------------------------------------


def test_exported_it_is_transformers_model(case: tuple[InterleavedPolicy, list[Prompt]], tmp_path: Path) -> None:
    from transformers import AutoModelForCausalLM, GlmForCausalLM, Qwen2ForCausalLM

    policy = fresh(case)
    policy.export_hf(tmp_path)
    theirs = AutoModelForCausalLM.from_pretrained(tmp_path, dtype=torch.float64).eval()
    assert isinstance(theirs, GlmForCausalLM if isinstance(policy, TinyGlm) else Qwen2ForCausalLM)
    assert {name: tuple(value.shape) for name, value in policy.hf_tensors()} == {
        name: tuple(value.shape) for name, value in theirs.state_dict().items()
    }
    assert theirs.config.eos_token_id == list(policy.config.text_end_ids)
    assert theirs.config.max_position_embeddings == policy.spec.context_steps
    ids = torch.randint(256, (2, 15), generator=torch.Generator().manual_seed(1))
    with torch.no_grad():
        found, wanted = logits_of(policy.model, ids), in_double(theirs)(ids).logits
    torch.testing.assert_close(found, wanted, atol=1e-9, rtol=0)


def test_adapters_are_folded_into_what_is_handed_on(case: tuple[InterleavedPolicy, list[Prompt]]) -> None:
    policy = fresh(case)
    plain = {name: value.clone() for name, value in policy.hf_tensors()}
    policy.add_lora(2, 4)
    assert all(torch.equal(value, plain[name]) for name, value in policy.hf_tensors())
    for name, parameter in policy.model.named_parameters():
        if "lora_" in name:
            parameter.data += 0.3 * torch.randn_like(parameter)
    handed = dict(policy.hf_tensors())
    assert not any(value.requires_grad for value in handed.values())
    changed = {name for name, value in handed.items() if not torch.equal(value, plain[name])}
    assert changed == {name for name in plain if "_proj.weight" in name}
    with pytest.raises(PolicyError, match="merge_lora"):
        policy.save(Path("nowhere"))
    policy.merge_lora()
    for name, value in policy.hf_tensors():
        torch.testing.assert_close(handed[name], value, atol=1e-12, rtol=0)


# -- prompts ----------------------------------------------------------------------------------------------------------


class Spoken:
    """Words and codes by heart."""

    def __init__(self, known: dict[str, list[int]]) -> None:
        self.known = known

    def encode(self, text: Any) -> Any:
        return self.known[text] if isinstance(text, str) else np.array(self.known[f"{len(text.samples)}"])

    def decode(self, ids: Any) -> str:
        return str(list(ids))


def silence(samples: int) -> Clip:
    return Clip(np.zeros(samples, dtype=np.float32), 16_000)


# What the released tokenizer made of the makers' prompt, and of a second question behind an answer (printed by a public fork of
# their demo). It has a prefix that the prompt's text does not show.
TOLD = [
    198, 1474, 686, 3410, 498, 448, 264, 8805, 7600, 13, 3155, 432, 3019, 553, 3019, 13, 5512, 11, 1744, 911, 279, 7600, 323,
    5889, 304, 264, 94171, 4141, 11561, 11, 448, 220, 99366, 1467, 3950, 8109, 553, 220, 99916, 7699, 11206, 13, 220,
]  # fmt: skip
ASKED = [
    159290, 161774, 154713, 167499, 165821, 167442, 154315, 166394, 157067, 154510, 159964, 154031, 166615, 153946, 155765,
    161126, 160014, 164425, 160014,
]  # fmt: skip
ANSWERED_WORDS = [109377, 3837, 124675, 6313, 101665, 109213, 99215, 99444, 99212, 11314]
ANSWERED = [
    166648, 164526, 163431, 155030, 159141, 167785, 163012, 167510, 165067, 158729, 159316, 167061, 156487, 167785, 152945,
    162242, 157345, 155220, 156583, 159316, 166768, 166768, 167840, 155444, 160466, 155342, 157515, 159530, 153961, 167551,
    165123, 155721, 152703, 154548, 165926, 163830, 155220, 152459, 155773, 161696, 156246, 167188, 161373, 157635, 164078,
    160166, 160014, 160014, 160014, 160526,
]  # fmt: skip
AGAIN = [
    163168, 161774, 164482, 158553, 153642, 163492, 166693, 166286, 156507, 158217, 158278, 153219, 160872, 163251, 167323,
    164639, 168492, 160789, 160703, 163482, 155017, 167393, 160166,
]  # fmt: skip
TRANSCRIBE = [4027, 287, 7964, 1453, 198]


def released_glm() -> Glm4VoicePolicy:
    """Released ids around a network of almost nothing."""
    released = {
        "padded_vocab_size": 168960, "hidden_size": 4, "ffn_hidden_size": 4, "num_layers": 1, "num_attention_heads": 1,
        "multi_query_group_num": 1, "kv_channels": 4, "layernorm_epsilon": 1e-5, "eos_token_id": [151329, 151336, 151338],
        "pad_token_id": 151329,
    }  # fmt: skip
    tokens = {
        "[gMASK]": 151331, "<sop>": 151333, "<|system|>": 151335, "<|user|>": 151336, "<|assistant|>": 151337,
        "<|begin_of_audio|>": 151343, "<|end_of_audio|>": 151344, "<|audio_0|>": 152353, "<|audio_16383|>": 168736,
    }  # fmt: skip
    model = DualStreamLM(Glm4VoicePolicy.stream_config(released, tokens, "released"))
    words = Spoken(
        {"\n" + SPEECH_INSTRUCTION: TOLD, "\n": [198], "streaming_transcription\n": TRANSCRIBE, "早": ANSWERED_WORDS}
    )
    policy = Glm4VoicePolicy(model, released, tokens, words, Path("nowhere"))
    clips = {"100": ASKED, "200": ANSWERED, "300": AGAIN}
    policy.__dict__["tokenizer"] = Spoken({key: [one - 152353 for one in ids] for key, ids in clips.items()})
    return policy


def test_golden_prompts_of_glm() -> None:
    policy = released_glm()
    question = [151331, 151333, 151335, *TOLD, 151336, 198, 151343, *ASKED, 151344, 151337, *TRANSCRIBE]
    prompt = policy.encode_prompt([Turn("user", "(not read)", silence(100))])
    assert prompt.text_ids.tolist() == question
    assert prompt.audio_ids.shape == (len(question), 0)
    assert prompt.features is None
    turns = [
        Turn("user", clip=silence(100)),
        Turn("assistant", "早", silence(200)),
        Turn("user", clip=silence(300)),
    ]
    history = [*question, *ANSWERED_WORDS, *ANSWERED, 151336, 198, 151343, *AGAIN, 151344, 151337, *TRANSCRIBE]
    assert policy.encode_prompt(turns).text_ids.tolist() == history
    (target,) = policy.encode_target(silence(200), "早")
    assert target.tokens[0, :, 0].tolist() == [*ANSWERED_WORDS, *ANSWERED, 151336]
    assert target.sampled.all()
    assert target.labels is not None
    assert target.labels[0, :, 0].tolist() == [TEXT] * 10 + [AUDIO] * 50 + [TEXT]
    assert policy.decode_codes([target], 0)[:, 0].tolist() == [one - 152353 for one in ANSWERED]
    assert policy.decode_text([target], 0) == str([*ANSWERED_WORDS, 151336])


@pytest.mark.parametrize(
    ("words", "codes", "kinds"),
    [
        (30, 70, "w13 c26 w13 c26 w4 c18"),
        (13, 30, "w13 c26 c4"),
        (14, 27, "w13 c26 w1 c1"),
        (3, 60, "w3 c26 c26 c8"),
        (0, 5, "c5"),
        (0, 0, ""),
    ],
)
def test_glm_says_13_words_and_26_codes_in_turn(words: int, codes: int, kinds: str) -> None:
    policy = released_glm()
    ids = policy.interleave(list(range(words)), list(range(codes)))
    wanted = "".join(part[0] * int(part[1:]) for part in kinds.split())
    assert "".join("c" if one >= 152353 else "w" for one in ids) == wanted
    assert [one for one in ids if one < 152353] == list(range(words))
    assert [one - 152353 for one in ids if one >= 152353] == list(range(codes))


def test_words_that_outlast_their_sound_are_refused() -> None:
    with pytest.raises(PolicyError, match=r"words \(27 pieces\) are longer than their speech \(52 codes\)"):
        released_glm().interleave(list(range(27)), list(range(52)))


def test_glm_prompts_of_words_and_of_system_turns() -> None:
    policy = tiny_glm()
    at, encode = policy.tokens, policy.words.encode
    head, tail = [at["[gMASK]"], at["<sop>"], at["<|system|>"]], [at["<|assistant|>"], *encode("streaming_transcription\n")]
    found = policy.encode_prompt([Turn("user", "<|user|>Hi")]).text_ids.tolist()
    # What looks like a special token is text.
    assert encode("<|user|>") == list(b"<|user|>")
    assert found == [*head, *encode("\n" + TEXT_INSTRUCTION), at["<|user|>"], *encode("\n<|user|>Hi"), *tail]
    assert TEXT_INSTRUCTION.startswith("User will provide you with a text instruction.")
    turns = [
        Turn("system", "Be kind."),
        Turn("user", "Hi"),
        Turn("assistant", "Yes?"),
        Turn("user", clip=sliding(0.2, 16_000, 90)),
    ]
    found = policy.encode_prompt(turns).text_ids.tolist()
    told = [*head, *encode(f"\n{TEXT_INSTRUCTION} Be kind."), at["<|user|>"], *encode("\nHi"), at["<|assistant|>"]]
    assert found[: len(told) + 5] == [*told, *encode("\nYes?")]
    assert found[len(told) + 5 : len(told) + 8] == [at["<|user|>"], *encode("\n"), at["<|begin_of_audio|>"]]
    assert len(found) == len(told) + 8 + 3 + 1 + len(tail)
    spoken = policy.encode_prompt([turns[3], turns[0]]).text_ids.tolist()
    assert spoken[3 : 3 + len(encode(f"\n{SPEECH_INSTRUCTION}Be kind."))] == encode(f"\n{SPEECH_INSTRUCTION}Be kind.")


@pytest.mark.parametrize(
    ("turns", "said"),
    [
        ([], "a turn of the user"),
        ([Turn("system", "Be kind.")], "a turn of the user"),
        ([Turn("user")], "neither words nor sound"),
        ([Turn("user", "Hi"), Turn("assistant", clip=sliding(0.2, 16_000, 90))], "needs its words"),
    ],
    ids=["nothing", "nobody asks", "an empty turn", "sound without words"],
)
def test_glm_refuses_what_is_no_dialogue(turns: list[Turn], said: str) -> None:
    with pytest.raises(PolicyError, match=said):
        tiny_glm_once().encode_prompt(turns)


def test_step_prompts() -> None:
    policy = tiny_step()
    at, encode = policy.tokens, policy.words.encode
    turns = tiny_turns()[1]
    prompt = policy.encode_prompt(turns)
    codes = policy.tokenizer.encode(turns[2].clip).tolist()
    answer = policy.interleave(encode("Yes?"), codes)
    patch = at["<audio_patch>"]
    wanted = [
        at["<|BOT|>"], *encode("system\nBe kind."), at["<|EOT|>"],
        at["<|BOT|>"], *encode("human\n"), at["<audio_start>"], patch, patch, patch, at["<audio_end>"], at["<|EOT|>"],
        at["<|BOT|>"], *encode("assistant\n"), at["<tts_start>"], *answer, at["<tts_end>"], at["<|EOT|>"],
        at["<|BOT|>"], *encode("human\n"), at["<audio_start>"], patch, patch, at["<audio_end>"], at["<|EOT|>"],
        at["<|BOT|>"], *encode("assistant\n"), at["<tts_start>"],
    ]  # fmt: skip
    assert prompt.text_ids.tolist() == wanted
    assert prompt.continuous.tolist() == [one == patch for one in wanted]
    assert prompt.features is not None
    first, second = (policy.ears.features(turn.clip.at(16_000).samples) for turn in (turns[1], turns[3]) if turn.clip)
    np.testing.assert_array_equal(prompt.features[prompt.continuous], np.concatenate([first, second]))
    assert not prompt.features[~prompt.continuous].any()
    # Without a system turn there is the makers', and names of special tokens are text.
    plain = policy.encode_prompt([Turn("user", "<|EOT|>")])
    assert encode("<|EOT|>") == list(b"<|EOT|>")
    told = encode("system\nYou are a helpful assistant.")
    asked = [at["<|BOT|>"], *told, at["<|EOT|>"], at["<|BOT|>"], *encode("human\n<|EOT|>"), at["<|EOT|>"]]
    assert plain.text_ids.tolist() == [*asked, at["<|BOT|>"], *encode("assistant\n"), at["<tts_start>"]]
    assert plain.features is None
    assert not plain.continuous.any()
    for wrong in (Turn("user"), Turn("assistant", clip=turns[2].clip), Turn("system")):
        with pytest.raises(PolicyError, match="words"):
            policy.encode_prompt([Turn("user", "Hi"), wrong])


@pytest.mark.parametrize(
    ("words", "codes", "kinds"),
    [(2, 8, "wccccwcccc"), (1, 6, "wccccpccnn"), (3, 5, "wccccwcnnnwnnnn"), (0, 3, "pcccn"), (1, 0, "wnnnn"), (0, 0, "")],
)
def test_step_says_one_word_and_four_codes_in_turn(words: int, codes: int, kinds: str) -> None:
    policy = tiny_step_once()
    none, base = policy.tokens["<tts_pad>"], policy.first_audio
    ids = policy.interleave([65 + one for one in range(words)], list(range(codes)))
    names = {none: "p", base + policy.codes: "n"}
    assert "".join(names.get(one, "c" if one >= base else "w") for one in ids) == kinds
    assert [one - base for one in ids if base <= one < base + policy.codes] == list(range(codes))
    (target,) = policy.encode_target(sliding(0.2, 16_000, 120), "Hi")
    assert target.tokens[0, -2:, 0].tolist() == [policy.tokens["<tts_end>"], policy.tokens["<|EOT|>"]]
    assert target.sampled.all()
    assert policy.decode_text([target], 0) == "Hi"
    assert policy.decode_codes([target], 0)[:, 0].tolist() == policy.tokenizer.encode(sliding(0.2, 16_000, 120)).tolist()


# -- Step-Audio 2's ears ----------------------------------------------------------------------------------------------


def log_mel(samples: np.ndarray, bins: int) -> Tensor:
    """Step-Audio 2's recipe [bins, M], from its parts."""
    from transformers.audio_utils import mel_filter_bank

    wave = fn.pad(torch.from_numpy(samples), (0, 479))
    spectrum = torch.stft(wave, 400, 160, window=torch.hann_window(400), return_complex=True)[..., :-1].abs().square()
    filters = mel_filter_bank(201, bins, 0.0, 8000.0, 16_000, norm="slaney", mel_scale="slaney")
    logs = (torch.from_numpy(filters).float().T @ spectrum).clamp(min=1e-10).log10()
    return (torch.maximum(logs, logs.max() - 8) + 4) / 4


def ears_by_hand(weights: dict[str, Tensor], mel: Tensor, heads: int) -> Tensor:
    """Vectors [T, H] of mel [bins, M], as the released forward counts them: lengths, mask and all."""
    width, heard = weights["encoder.conv1.bias"].shape[0], mel.shape[1] - 2

    def named(name: str) -> tuple[Tensor, Tensor | None]:
        return weights[f"{name}.weight"], weights.get(f"{name}.bias")

    def norm(x: Tensor, name: str) -> Tensor:
        return fn.layer_norm(x, (width,), *named(name))

    x = fn.gelu(fn.conv1d(mel[None], *named("encoder.conv1"), padding=1))
    x = fn.gelu(fn.conv1d(x, *named("encoder.conv2"), stride=2, padding=1))[0].T
    mask = (torch.arange(mel.shape[1]) < heard)[(mel.shape[1] + 1) % 2 :: 2]
    x = x + weights["encoder.positional_embedding.weight"][: len(x)]
    layer = 0
    while f"encoder.blocks.{layer}.attn_ln.weight" in weights:
        at = f"encoder.blocks.{layer}"
        y = norm(x, f"{at}.attn_ln")
        q, k, v = (fn.linear(y, *named(f"{at}.attn.{one}")).view(len(y), heads, -1) for one in ("query", "key", "value"))
        scores = torch.einsum("qhd,khd->hqk", q, k) / (width // heads) ** 0.5 + (~mask) * -1e10
        seen = torch.einsum("hqk,khd->qhd", scores.softmax(-1), v).reshape(len(y), width)
        x = x + fn.linear(seen, *named(f"{at}.attn.out"))
        x = x + fn.linear(fn.gelu(fn.linear(norm(x, f"{at}.mlp_ln"), *named(f"{at}.mlp.0"))), *named(f"{at}.mlp.2"))
        layer += 1
    x = norm(x[: len(x) // 2 * 2].view(-1, 2, width).mean(1), "encoder.after_norm")
    x = fn.gelu(fn.conv1d(x.T[None], *named("adapter.conv"), stride=2, padding=1))[0].T
    x = fn.linear(fn.relu(fn.linear(x, *named("adapter.linear1"))), *named("adapter.linear2"))
    return x[: ((heard + 1) // 2 // 2 - 1) // 2 + 1]


@pytest.mark.parametrize(
    ("samples", "vectors"), [(1, 0), (800, 1), (3200, 3), (3201, 3), (4960, 4), (16_000, 13), (25 * 16_000, 313)]
)
def test_the_ears_hear_what_the_released_arithmetic_does(samples: int, vectors: int, tmp_path: Path) -> None:
    policy = tiny_step_once()
    clip = sliding(samples / 16_000, 16_000, 180).samples[:samples]
    assert len(clip) == samples
    found = policy.ears.features(clip)
    assert found.shape == (vectors, 16)
    assert found.dtype == np.float64
    assert policy.ears.config.vectors(samples) == vectors
    weights = {name: value for name, value in policy.tensors().items() if name.startswith(("encoder.", "adapter."))}
    wanted = ears_by_hand(weights, log_mel(clip, 8).double(), heads=2).numpy()
    np.testing.assert_allclose(found, wanted, atol=2e-5, rtol=0)
    if vectors > 2:
        assert np.abs(found[1] - found[0]).max() > 1e-2


def test_long_sound_is_heard_in_pieces_of_25_s() -> None:
    policy = tiny_step_once()
    clip = sliding(27.0, 16_000, 180)
    prompt = policy.encode_prompt([Turn("user", clip=clip)])
    runs = [(held, len(list(group))) for held, group in itertools.groupby(prompt.continuous.tolist())]
    assert [count for held, count in runs if held] == [313, 25]
    assert prompt.features is not None
    pieces = [policy.ears.features(clip.samples[: 25 * 16_000]), policy.ears.features(clip.samples[25 * 16_000 :])]
    np.testing.assert_array_equal(prompt.features[prompt.continuous], np.concatenate(pieces))


def test_what_cannot_be_heard_is_refused() -> None:
    ears = tiny_step_once().ears
    assert ears.longest == 30 * 16_000 - 479
    for samples in (0, ears.longest + 1):
        with pytest.raises(AudioError, match="hears 1 to"):
            ears.features(np.zeros(samples, dtype=np.float32))
    assert not any(parameter.requires_grad for parameter in ears.parameters())


def test_vectors_of_the_released_sizes() -> None:
    config = StepEncoderConfig(n_mels=128, n_audio_ctx=1500, n_audio_state=1280, n_audio_head=20, n_audio_layer=32,
                               llm_dim=3584, kernel_size=3, adapter_stride=2)  # fmt: skip
    for frames in range(3, 2600):
        released = (((frames - 2 + 1) // 2 // 2) + 2 - 3) // 2 + 1
        assert config.vectors(frames * 160 - 479) == released


# -- conformance (reference 3.3) --------------------------------------------------------------------------------------


@pytest.mark.parametrize("sampling", [Sampling(max_steps=9), WARM], ids=["T 1", "T 0.7"])
def test_1_behaviour_logprobs_are_the_teacher_forced_ones(
    case: tuple[InterleavedPolicy, list[Prompt]], sampling: Sampling
) -> None:
    policy, prompts = case
    blocks = drawn(policy, prompts, 5, sampling)
    logp = scored(policy, prompts, blocks, sampling).detach().numpy()
    for number, block in enumerate(blocks):
        rows = logp[5 * number : 5 * number + 5]
        np.testing.assert_allclose(rows[:, : block.tokens.shape[1]], block.behaviour_logp, atol=1e-10, rtol=0)
        assert not rows[:, block.tokens.shape[1] :].any()
        assert (block.behaviour_logp[block.sampled] < 0).all()


def test_1_every_token_is_labelled_by_its_id_and_ends_are_ends(case: tuple[InterleavedPolicy, list[Prompt]]) -> None:
    policy, prompts = case
    kinds: Counter[int] = Counter()
    for one in policy.generate(prompts, 12, Sampling(max_steps=24), seeds(3, 12)):
        (block,) = one.blocks
        assert block.slots == ("text",)
        assert block.labels is not None
        np.testing.assert_array_equal(block.labels == AUDIO, block.tokens >= policy.first_audio)
        np.testing.assert_array_equal(block.streams, block.labels)
        for answer, finish in enumerate(one.finish_reason):
            steps = int(block.sampled[answer].sum())
            ids = block.tokens[answer, :steps, 0]
            # From the first to the last all are sampled, and none behind.
            assert block.sampled[answer, :steps].all()
            ended = np.isin(ids, policy.config.text_end_ids)
            assert ended.tolist() == [False] * (steps - 1) + [finish == "eos"]
            assert finish == "eos" or steps == 24
            kinds.update(block.labels[answer, :steps, 0].tolist())
            kinds[10 + (finish == "eos")] += 1
    assert min(kinds[TEXT], kinds[AUDIO], kinds[10], kinds[11]) > 3


def test_2_a_batch_is_its_prompts_one_by_one(case: tuple[InterleavedPolicy, list[Prompt]]) -> None:
    policy, prompts = case
    together = policy.generate(prompts, 4, WARM, seeds(3, 4))
    logp = scored(policy, prompts, [one.blocks[0] for one in together])
    for number, (prompt, one) in enumerate(zip(prompts, together, strict=True)):
        (alone,) = policy.generate([prompt], 4, WARM, [seeds(3, 4)[number]])
        np.testing.assert_array_equal(alone.blocks[0].tokens, one.blocks[0].tokens)
        np.testing.assert_array_equal(alone.blocks[0].sampled, one.blocks[0].sampled)
        np.testing.assert_allclose(alone.blocks[0].behaviour_logp, one.blocks[0].behaviour_logp, atol=1e-10, rtol=0)
        own = scored(policy, [prompt], [one.blocks[0]])
        torch.testing.assert_close(logp[4 * number : 4 * number + 4, : own.shape[1]], own, atol=1e-10, rtol=0)


def test_2_both_clips_of_a_prompt_are_heard(case: tuple[InterleavedPolicy, list[Prompt]]) -> None:
    policy, prompts = case
    (block,) = drawn(policy, prompts[1:2], 2)
    before = scored(policy, prompts[1:2], [block])
    for place in (1, 3):
        turns = list(tiny_turns()[1])
        turns[place] = Turn("user", clip=sliding(0.2 if place == 1 else 0.16, 16_000, 700))
        other = scored(policy, [policy.encode_prompt(turns)], [block])
        assert (other - before).abs().max() > 1e-3


def test_3_a_group_is_its_answers_one_by_one(case: tuple[InterleavedPolicy, list[Prompt]]) -> None:
    policy, prompts = case
    (group,) = policy.generate(prompts[1:2], 5, WARM, seeds(1, 5))
    for answer, seed in enumerate(seeds(1, 5)[0]):
        (alone,) = policy.generate(prompts[1:2], 1, WARM, [[seed]])
        steps = alone.blocks[0].tokens.shape[1]
        np.testing.assert_array_equal(alone.blocks[0].tokens[0], group.blocks[0].tokens[answer, :steps])
        assert not group.blocks[0].sampled[answer, steps:].any()


def test_4_masks_and_causality(case: tuple[InterleavedPolicy, list[Prompt]]) -> None:
    policy, prompts = case
    (block,) = drawn(policy, prompts[:1], 6)
    whole = scored(policy, prompts[:1], [block])
    assert not whole[~torch.from_numpy(block.sampled)].any()
    answer = int(block.sampled.sum((1, 2)).argmax())
    tokens, sampled = block.tokens[answer : answer + 1], block.sampled[answer : answer + 1]
    steps = int(sampled.sum())
    assert steps > 4

    def again(tokens: np.ndarray, sampled: np.ndarray) -> Tensor:
        return scored(policy, prompts[:1], [Block(block.slots, tokens, sampled, sampled * 0.0)])[0, :, 0]

    before = again(tokens, sampled)
    for step in range(steps):
        fewer = sampled.copy()
        fewer[0, step] = False
        left = again(tokens, fewer)
        assert left[step] == 0
        kept = [other for other in range(steps) if other != step]
        torch.testing.assert_close(left[kept], before[kept], atol=1e-12, rtol=0)
        changed = tokens.copy()
        changed[0, step, 0] = (tokens[0, step, 0] + 1) % policy.config.vocab_size
        after = again(changed, sampled)
        assert torch.equal(after[:step], before[:step])
        assert step == steps - 1 or (after[step + 1 :] != before[step + 1 :]).any()


def test_5_every_adapter_learns_from_text_and_from_audio(case: tuple[InterleavedPolicy, list[Prompt]]) -> None:
    policy, prompts = fresh(case), case[1]
    blocks = drawn(policy, prompts, 4)
    labels = torch.cat(
        [fn.pad(torch.from_numpy(b.labels), (0, 0, 0, 9 - b.labels.shape[1])) for b in blocks if b.labels is not None]
    )
    policy.add_lora(rank=2, alpha=4)
    matrices = {name: one for name, one in policy.model.named_parameters() if "lora_" in name}
    # Two layers of seven projections, two matrices each.
    assert len(matrices) == 2 * 7 * 2
    for parameter in matrices.values():
        parameter.data += 0.2 * torch.randn_like(parameter)
    for kind in (TEXT, AUDIO):
        logp = fn.pad(scored(policy, prompts, blocks), (0, 0, 0, 9))[:, :9]
        assert (labels == kind).sum() > 5
        logp[labels == kind].sum().backward()
        assert not [name for name, one in matrices.items() if one.grad is None or not one.grad.abs().max() > 1e-9]
        assert not [name for name, one in policy.model.named_parameters() if "lora_" not in name and one.grad is not None]
        policy.model.zero_grad()


def test_6_reference_merge_and_files(case: tuple[InterleavedPolicy, list[Prompt]], tmp_path: Path) -> None:
    policy, prompts = fresh(case), case[1]
    blocks = drawn(policy, prompts, 3)
    before = scored(policy, prompts, blocks).detach()
    policy.add_lora(rank=2, alpha=4)
    for name, parameter in policy.model.named_parameters():
        if "lora_" in name:
            parameter.data += 0.2 * torch.randn_like(parameter)
    trained = scored(policy, prompts, blocks).detach()
    with policy.reference():
        assert torch.equal(scored(policy, prompts, blocks), before)
    assert torch.equal(scored(policy, prompts, blocks), trained)
    assert (trained - before).abs().max() > 1e-2
    policy.merge_lora()
    policy.save(tmp_path)
    loaded = type(policy).load(tmp_path, dtype=torch.float64)
    assert loaded.spec == policy.spec
    torch.testing.assert_close(scored(loaded, prompts, blocks), trained, atol=1e-10, rtol=0)
    # A reload changes the weights and nothing else.
    policy.model.load_state_dict({name: value + 1 for name, value in policy.model.state_dict().items()})
    policy.reload(tmp_path)
    torch.testing.assert_close(scored(policy, prompts, blocks), trained, atol=1e-10, rtol=0)


def plain_six() -> DualStreamLM:
    """Six ids: 0 pads, 1 is a word, 2 and 3 are codes, 4 and 5 end."""
    unused = dict.fromkeys(UNUSED, 0)
    config = DualStreamConfig(
        hidden_size=16, intermediate_size=24, num_layers=2, tap_layer=1, num_heads=4, num_kv_heads=2, rotary_share=0.5,
        rotary_in_pairs=True, text_vocab=6, codebook_sizes=(), audio_delay_steps=0, text_eos_id=5, more_end_ids=(4,),
        audio_from_id=2, mask_invalid_ids=False, **unused,
    )  # fmt: skip
    torch.manual_seed(3)
    model = DualStreamLM(config).double()
    for parameter in model.parameters():
        parameter.data += 0.4 * torch.randn_like(parameter)
    return model.eval()


def all_answers(length: int) -> Iterator[tuple[int, ...]]:
    """Every answer of at most so many of six ids that ends with its first 4 or 5."""
    for steps in range(1, length + 1):
        for body in itertools.product(range(4), repeat=steps - 1):
            yield from ((*body, last) for last in (range(6) if steps == length else (4, 5)))


def test_7_the_probabilities_of_all_answers_add_up_to_one() -> None:
    model = plain_six()
    prompt = Prompt(np.zeros((4, 0), dtype=np.int64), np.array([1, 3, 2, 1]), None, np.zeros(4, dtype=bool))
    answers = list(all_answers(3))
    assert len(answers) == 2 + 4 * 2 + 16 * 6
    tokens, sampled = np.zeros((len(answers), 3, 1), dtype=np.int64), np.zeros((len(answers), 3, 1), dtype=bool)
    for row, ids in enumerate(answers):
        tokens[row, : len(ids), 0], sampled[row, : len(ids)] = ids, True
    block = Block(("text",), tokens, sampled, np.zeros(tokens.shape))
    sampling = Sampling(text_temperature=0.8, max_steps=3)
    logp = teacher_forced(model, [prompt], [block], sampling).sum((1, 2))
    assert logp.exp().sum().item() == pytest.approx(1, abs=1e-12)
    count = 4000
    (found,) = sample(model, [prompt], count, sampling, [list(range(count))])
    places = {ids: row for row, ids in enumerate(answers)}
    one = found.blocks[0]
    counts = Counter(
        places[tuple(ids[mask].tolist())] for ids, mask in zip(one.tokens[..., 0], one.sampled[..., 0], strict=True)
    )
    for row, probability in enumerate(logp.exp().tolist()):
        error = (probability * (1 - probability) / count) ** 0.5
        assert counts[row] / count == pytest.approx(probability, abs=5 * error + 1 / count)


def test_8_answers_are_decoded(case: tuple[InterleavedPolicy, list[Prompt]]) -> None:
    policy, _ = case
    base, word, end = policy.first_audio, ord("H"), policy.config.text_eos_id
    # A code, a word, the first id behind the codes, codes, an end; and a second answer that is an end and padding.
    ids = [[base + 3, word, base + policy.codes, base, base + policy.codes - 1, end], [end, base, word, base, 0, 0]]
    sampled = np.array([[True] * 6, [True] + [False] * 5])[..., None]
    block = Block(("text",), np.array(ids)[..., None], sampled, np.zeros((2, 6, 1)))
    assert policy.decode_codes([block], 0).tolist() == [[3], [0], [policy.codes - 1]]
    assert policy.decode_text([block], 0) == "H"
    first, again, other = (policy.decode_audio([block], 0, seed) for seed in (1, 1, 2))
    rate = policy.spec.output_rate_hz
    assert first.sample_rate_hz == rate
    assert len(first.samples) == 3 * rate / (12.5 if isinstance(policy, TinyGlm) else 25)
    np.testing.assert_array_equal(first.samples, again.samples)
    assert (first.samples != other.samples).any()
    assert policy.decode_codes([block], 1).shape == (0, 1)
    assert policy.decode_text([block], 1) == ""
    silent = policy.decode_audio([block], 1, 1)
    assert (len(silent.samples), silent.sample_rate_hz) == (0, rate)


def test_8_without_a_decoder_it_is_said_where_one_is(case: tuple[InterleavedPolicy, list[Prompt]]) -> None:
    policy = fresh(case)
    policy.decoder = None
    (target,) = policy.encode_target(sliding(0.3, 16_000, 100), "Hi")
    with pytest.raises(PolicyError, match=r"load\(decoder=...\).*github.com/"):
        policy.decode_audio([target], 0, 0)


def test_specs() -> None:
    glm, step = tiny_glm_once().spec, tiny_step_once().spec
    assert (glm.step_rate_hz, glm.output_rate_hz, glm.code_format) == (18.75, 22_050, "glm-4-voice-16384@12.5")
    assert (step.step_rate_hz, step.output_rate_hz, step.code_format) == (31.25, 24_000, "s3-6561@25")
    assert (glm.continuous_audio_input, step.continuous_audio_input) == (False, True)
    assert [(slot.name, slot.kind, slot.start, slot.stop) for slot in glm.slots] == [("text", "both", 0, 340)]
    assert not glm.joint_step
    assert Glm4VoicePolicy.codes == 16_384
    assert StepAudio2Policy.codes == 6561
    assert STEP_IDS["<audio_0>"] == tiny_step_once().first_audio


# -- the S3 tokenizer's package ---------------------------------------------------------------------------------------


class FakeS3Network(torch.nn.Module):
    """As `s3tokenizer.model_v2.S3TokenizerV2` is called."""

    def __init__(self, name: str) -> None:
        super().__init__()
        assert name == "speech_tokenizer_v2_25hz"
        self.weight = torch.nn.Parameter(torch.ones(1))
        self.read = ""

    def init_from_onnx(self, path: str) -> None:
        self.read = path

    def quantize(self, mel: Tensor, lengths: Tensor) -> tuple[Tensor, Tensor]:
        assert mel.shape == (1, 3, 100)
        assert not torch.is_grad_enabled()
        return torch.arange(27)[None].int(), torch.tensor([25])


def test_the_s3_tokenizer_is_called_as_its_package_wants(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    package, inner = types.ModuleType("s3tokenizer"), types.ModuleType("s3tokenizer.model_v2")
    package.log_mel_spectrogram = lambda wave: wave[: len(wave) // 160 * 160].view(-1, 160)[:, :3].T  # type: ignore[attr-defined]
    package.padding = lambda mels: (torch.stack(mels), torch.tensor([mel.shape[1] for mel in mels]))  # type: ignore[attr-defined]
    inner.S3TokenizerV2 = FakeS3Network  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "s3tokenizer", package)
    monkeypatch.setitem(sys.modules, "s3tokenizer.model_v2", inner)
    path = tmp_path / "speech_tokenizer_v2_25hz.onnx"
    with pytest.raises(PolicyError, match="token2wav"):
        S3Tokenizer.load(path)
    path.write_bytes(b"onnx")
    tokenizer = S3Tokenizer.load(path)
    assert tokenizer.network.read == str(path)
    codes = tokenizer.encode(sliding(1.0, 24_000, 100))
    assert codes.tolist() == list(range(25))
    assert codes.dtype == np.int64
    with pytest.raises(AudioError, match="no samples"):
        tokenizer.encode(silence(0))


def test_without_the_package_it_is_said_what_to_install(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setitem(sys.modules, "s3tokenizer", None)
    policy = TinyStep.load(write_step(tmp_path / "step"))
    with pytest.raises(PolicyError, match="no token2wav in it or beside it"):
        policy.encode_target(sliding(0.3, 16_000, 100), "Hi")
    (tmp_path / "step" / "token2wav").mkdir()
    (tmp_path / "step" / "token2wav" / "speech_tokenizer_v2_25hz.onnx").write_bytes(b"onnx")
    with pytest.raises(PolicyError, match="pip install torchaudio 's3tokenizer"):
        policy.encode_target(sliding(0.3, 16_000, 100), "Hi")
