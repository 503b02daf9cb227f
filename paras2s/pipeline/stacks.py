"""Memory of policies that are stacks of transformers' layers, for `align --meta`: Qwen2.5-Omni and CSM.

A learner reads a prompt again for each answer, so a row is a prompt and an answer, or a frame of a depth decoder. What a layer
stores for its gradient is not counted by hand: one layer of the true class runs on the meta device, and what it saves is added
up. Attention is taken as fused: it stores queries, keys, values and its result, and no scores.
Left out: `torch.cat` of growing caches, vocoders at work, the mixture of experts of Qwen3-Omni.
Alphabet: R rows, L positions of a row, V ids.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from paras2s.planning.cluster import Cluster
from paras2s.planning.simulate import Load
from paras2s.policy.base import Policy
from paras2s.policy.csm import ROWS_AT_ONCE, CsmPolicy

# Bytes of a logit while a pass scores it: as computed in float32, scaled, and normalised.
LOGIT_BYTES = 12
# The name of fused attention that runs on the meta device.
STORED = "paras2s_stored"


@dataclass(frozen=True)
class Stack:
    """A decoder with R rows of L positions for an answer; its head scores `scored` positions of a row among V ids."""

    module: Any
    rows: int
    positions: int
    scored: int
    ids: int


class _Fused(torch.autograd.Function):
    """Attention that stores what a fused kernel does."""

    @staticmethod
    def forward(ctx: Any, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        made = torch.empty_like(q)
        ctx.save_for_backward(q, k, v, made)
        return made

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None, None]:
        return gradients[0], None, None


def _attend(_: Any, q: Tensor, k: Tensor, v: Tensor, *__: Any, **___: Any) -> tuple[Tensor, None]:
    made: Tensor = _Fused.apply(q, k, v)  # type: ignore[no-untyped-call]
    return made.transpose(1, 2), None


def layer_bytes(module: Any, rows: int, positions: int, dtype: torch.dtype) -> int:
    """Return the bytes that a decoder's first layer saves for its gradient, of inputs [R, L, .]; weights are not counted."""
    from transformers import AttentionInterface

    weights = {tensor.untyped_storage()._cdata for tensor in (*module.parameters(), *module.buffers())}
    saved: dict[int, Tensor] = {}

    def keep(tensor: Tensor) -> Tensor:
        if (storage := tensor.untyped_storage()._cdata) not in weights:
            saved[storage] = tensor
        return tensor

    with torch.device("meta"):
        x = torch.zeros(rows, positions, module.config.hidden_size, dtype=dtype, requires_grad=True)
        position = torch.zeros(rows, positions, dtype=torch.long)
        if "mrope_section" in module.config.rope_parameters:
            position = position.expand(3, -1, -1)
        angles = module.rotary_emb(x, position)
        AttentionInterface.register(STORED, _attend)
        module.config._attn_implementation = STORED
        with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
            module.layers[0](x, position_embeddings=angles, position_ids=position, attention_mask=None)
    return sum(tensor.untyped_storage().nbytes() for tensor in saved.values())


def stacks_of(policy: Policy, prompt: int, text: int, audio: int) -> tuple[Stack, ...]:
    """Return the decoders of one answer, with the positions of its prompt, words and steps of audio."""
    model: Any = policy.model
    if isinstance(policy, CsmPolicy):
        frame = model.codebooks
        depth = Stack(model.depth_decoder.model, audio, frame, frame - 1, int(model.config.vocab_size))
        return Stack(model.backbone_model, 1, prompt + audio, audio, int(model.config.vocab_size)), depth
    thinker, talker = model.thinker, model.talker
    return (
        Stack(thinker.model.language_model, 1, prompt + text, text, thinker.lm_head.out_features),
        # Two more positions: the begin of the text and of the codes.
        Stack(talker.model, 1, prompt + 2 + audio, audio, talker.codec_head.out_features),
    )


def learner_parts(policy: Policy, cluster: Cluster, load: Load) -> dict[str, float]:
    """Return the bytes of one pass of a rank, prepared as it trains: stored inputs, a layer at work, and logits."""
    plan = cluster.learner
    learned = math.ceil(load.learned * load.group / cluster.count("learner"))
    rows = min(plan.rows or learned, learned)
    text, audio = (min(part.most, math.ceil(part.mean * (1 + (part.spread or 1.0)))) for part in (load.text, load.audio))
    kept, working, logits = 0.0, 0.0, 0.0
    for stack in stacks_of(policy, load.prompt_steps, min(text, audio), audio):
        dtype, count = stack.module.layers[0].mlp.down_proj.weight.dtype, len(stack.module.layers)
        shape = (rows * stack.rows, stack.positions)
        layer = layer_bytes(stack.module, *shape, dtype)
        if plan.checkpointing:
            kept += count * math.prod(shape) * stack.module.config.hidden_size * dtype.itemsize
            working = max(working, layer)
        else:
            kept += count * layer
        logits += LOGIT_BYTES * rows * stack.rows * stack.scored * stack.ids
    return {"activations": kept + working, "logits": logits}


def rollout_parts(policy: Policy, cluster: Cluster, load: Load) -> dict[str, float]:
    """Return the bytes of a sampler at work: keys and values of all answers under way, and logits."""
    answers = math.ceil(load.queries * load.group / cluster.count("rollout"))
    rows = min(max(ROWS_AT_ONCE, load.group), answers)
    cached, widest = 0.0, 0
    for stack in stacks_of(policy, load.prompt_steps, load.text.most, load.audio.most):
        attention = stack.module.layers[0].self_attn
        a_position = 2 * len(stack.module.layers) * stack.module.config.num_key_value_heads * attention.head_dim
        # Of a depth decoder, the one frame that is being drawn.
        cached += a_position * rows * stack.positions * attention.k_proj.weight.element_size()
        widest = max(widest, stack.ids)
    return {"keys and values": cached, "logits": 4.0 * 4 * rows * widest}


def corrected(
    planned: dict[str, dict[str, float]], policy: Policy, sampler: Policy, cluster: Cluster, load: Load
) -> dict[str, dict[str, float]]:
    """Return the plan's parts by role with those of a dual-stream decoder replaced; `policy` is prepared for training."""
    trained = sum(value.numel() for value in policy.trainable().values())
    context = {part: size for part, size in planned["learner"].items() if part == "context"}
    gradients = {"gradients": 4.0 * trained, "optimiser": 8.0 * trained}
    return planned | {
        "learner": learner_parts(policy, cluster, load) | gradients | context,
        "rollout": rollout_parts(sampler, cluster, load) | context,
    }
