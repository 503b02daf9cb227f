"""The interleaved policies' decoder against transformers' GLM and Qwen2, and against ChatGLM's arithmetic written out."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from tiny.interleaved import (
    TinyGlm,
    fresh,
    logits_of,
    stored_tensors,
    write_glm,
)
from torch import Tensor
from torch.nn import functional as fn

from paras2s.errors import PolicyError
from paras2s.policy.dual_stream.config import SPECIAL_IDS, DualStreamConfig
from paras2s.policy.dual_stream.model import DualStreamLM
from paras2s.policy.interleaved.base import OWN_OUTER, InterleavedPolicy, layered, load_joined
from paras2s.policy.interleaved.step_audio2 import QWEN_LAYER
from paras2s.policy.types import Prompt
from paras2s.policy.weights import shard_files


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
    unused = dict.fromkeys(set(SPECIAL_IDS) - {"text_eos_id"}, 0)
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


def test_glm_is_chatglms_arithmetic_on_its_stored_tensors(tmp_path: Path) -> None:
    policy = TinyGlm.load(write_glm(tmp_path / "glm"))
    ids = np.random.default_rng(0).integers(332, size=21).tolist()
    with torch.no_grad():
        found = logits_of(policy.model, torch.tensor([ids]))[0]
    torch.testing.assert_close(found, chatglm(stored_tensors(tmp_path / "glm"), ids), atol=1e-10, rtol=0)


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


def test_prompts_are_embedded_where_the_weights_are() -> None:
    """The device is a name alone; what comes back can be read on the host after `cpu`, and not before."""

    class OnDevice:
        def __getitem__(self, _: int) -> OnDevice:
            return self

        def float(self) -> OnDevice:
            return self

        def cpu(self) -> Tensor:
            return torch.ones(2, 3)

    given: list[str] = []

    def embed(*parts: Tensor) -> OnDevice:
        given.extend(part.device.type for part in parts)
        return OnDevice()

    flags = np.ones(2, dtype=bool)
    model = SimpleNamespace(embed=embed, lm_head=SimpleNamespace(weight=torch.empty(1, device="meta")))
    prompt = Prompt(np.zeros((2, 0), dtype=np.int64), np.zeros(2, dtype=np.int64), np.zeros((2, 3)), flags)
    vectors = InterleavedPolicy.embed_prompt(SimpleNamespace(model=model), prompt)  # type: ignore[arg-type]
    assert given == ["meta"] * 4
    np.testing.assert_array_equal(vectors, np.ones((2, 3)))


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
