"""`DualStreamNetwork`: Kimi-Audio's two-stream decoder with every size in its config.

Input ids of both streams are embedded by one table and summed; after layer `tap_layer` the state is copied. The text
branch is the rest of `layers`, then `norm`, then `lm_head`; the audio branch is `mimo_layers`, `mimo_norm`,
`mimo_output`. Both heads at position l predict position l + 1, independently given the history. Parameter names are those
of the released checkpoint, whose own code names its two heads the wrong way round.

Without codebooks it is a plain causal decoder, Qwen2's or (with half of each head rotated, in pairs) GLM-4's.

Left out: flash attention, tensor parallelism, Whisper itself (features come in ready).
Alphabet: B rows, L positions, K codebooks, F continuous features, V vocabulary.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn
from torch.nn import functional as fn
from torch.utils.checkpoint import checkpoint

from paras2s.policy.dual_stream.config import DualStreamConfig
from paras2s.policy.dual_stream.kv_cache import KVCache, PromptCache
from paras2s.policy.dual_stream.recomputed import rms_norm, swiglu


class RMSNorm(nn.Module):
    """Root-mean-square norm; half precision is normalised in float32."""

    def __init__(self, size: int, eps: float) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(size))
        self.eps = eps

    def forward(self, x: Tensor) -> Tensor:
        """[..., d] to [..., d]."""
        return rms_norm(x, self.weight, self.eps)


def rotary(positions: Tensor, config: DualStreamConfig, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """Cosine and sine [B, 1, L, turned] of positions [B, L]; computed once and shared by every layer."""
    wide = torch.float64 if dtype == torch.float64 else torch.float32
    turned = int(config.rotary_share * config.hidden_size // config.num_heads)
    inverse = config.rope_theta ** (-torch.arange(0, turned, 2, device=positions.device, dtype=wide) / turned)
    angles = positions.to(wide)[..., None] * inverse
    angles = angles.repeat_interleave(2, -1) if config.rotary_in_pairs else torch.cat([angles, angles], dim=-1)
    return angles[:, None].cos().to(dtype), angles[:, None].sin().to(dtype)


def _rotate(x: Tensor, cos: Tensor, sin: Tensor, in_pairs: bool) -> Tensor:
    turned = cos.shape[-1]
    if turned < x.shape[-1]:
        return torch.cat([_rotate(x[..., :turned], cos, sin, in_pairs), x[..., turned:]], -1)
    if in_pairs:
        across = torch.stack([-x[..., 1::2], x[..., 0::2]], -1).flatten(-2)
    else:
        across = torch.cat([-x[..., turned // 2 :], x[..., : turned // 2]], dim=-1)
    return x * cos + across * sin


def one_position(x: Tensor, index: Tensor) -> Tensor:
    """Take one position [B] of each row of [B, L, d]; return [B, 1, d]."""
    return x.gather(1, index[:, None, None].expand(-1, 1, x.shape[2]))


class Attention(nn.Module):
    """Grouped-query attention with rotary positions; q, k, v with bias, o without (Qwen2)."""

    def __init__(self, config: DualStreamConfig) -> None:
        super().__init__()
        self.heads, self.kv_heads = config.num_heads, config.num_kv_heads
        self.head_dim = config.hidden_size // config.num_heads
        self.in_pairs = config.rotary_in_pairs
        self.q_proj = nn.Linear(config.hidden_size, self.heads * self.head_dim)
        self.k_proj = nn.Linear(config.hidden_size, self.kv_heads * self.head_dim)
        self.v_proj = nn.Linear(config.hidden_size, self.kv_heads * self.head_dim)
        self.o_proj = nn.Linear(self.heads * self.head_dim, config.hidden_size, bias=False)

    def forward(
        self, x: Tensor, cos: Tensor, sin: Tensor, cache: KVCache | None, layer: int, only: Tensor | None = None
    ) -> Tensor:
        """[B, L, d] to [B, L, d], or to [B, 1, d] of the one position `only` [B]; causal over x alone without a cache."""
        rows, length, _ = x.shape
        k = self.k_proj(x).view(rows, length, self.kv_heads, self.head_dim).transpose(1, 2)
        v = self.v_proj(x).view(rows, length, self.kv_heads, self.head_dim).transpose(1, 2)
        k = _rotate(k, cos, sin, self.in_pairs)
        if only is not None:
            x, length = one_position(x, only), 1
            cos, sin = (one_position(part[:, 0], only)[:, None] for part in (cos, sin))
        q = self.q_proj(x).view(rows, length, self.heads, self.head_dim).transpose(1, 2)
        q = _rotate(q, cos, sin, self.in_pairs)
        if cache is None:
            seen = fn.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=self.heads != self.kv_heads)
        else:
            seen = cache.attend(layer, q, k, v)
        return self.o_proj(seen.transpose(1, 2).reshape(rows, length, self.heads * self.head_dim))


class FeedForward(nn.Module):
    """SwiGLU."""

    def __init__(self, config: DualStreamConfig) -> None:
        super().__init__()
        self.gate_proj = nn.Linear(config.hidden_size, config.intermediate_size, bias=False)
        self.up_proj = nn.Linear(config.hidden_size, config.intermediate_size, bias=False)
        self.down_proj = nn.Linear(config.intermediate_size, config.hidden_size, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        """[..., d] to [..., d]."""
        return self.down_proj(swiglu(self.gate_proj(x), self.up_proj(x)))


class Layer(nn.Module):
    """One Qwen2 decoder layer."""

    def __init__(self, config: DualStreamConfig) -> None:
        super().__init__()
        self.self_attn = Attention(config)
        self.mlp = FeedForward(config)
        self.input_layernorm = RMSNorm(config.hidden_size, config.rms_norm_eps)
        self.post_attention_layernorm = RMSNorm(config.hidden_size, config.rms_norm_eps)

    def forward(
        self, x: Tensor, cos: Tensor, sin: Tensor, cache: KVCache | None, layer: int, only: Tensor | None = None
    ) -> Tensor:
        """[B, L, d] to [B, L, d], or to [B, 1, d]: see `Attention`."""
        seen = self.self_attn(self.input_layernorm(x), cos, sin, cache, layer, only)
        x = (x if only is None else one_position(x, only)) + seen
        return x + self.mlp(self.post_attention_layernorm(x))


class ContinuousAdaptor(nn.Module):
    """Continuous features into the embedding space (Kimi-Audio's VQAdaptor)."""

    def __init__(self, features: int, hidden: int, eps: float) -> None:
        super().__init__()
        self.layers = nn.Sequential(
            nn.Linear(features, hidden), nn.SiLU(), nn.Dropout(0.0), nn.Linear(hidden, hidden), nn.LayerNorm(hidden, eps)
        )

    def forward(self, features: Tensor) -> Tensor:
        """[B, L, F] to [B, L, d]."""
        return self.layers(features)


class _Backbone(nn.Module):
    def __init__(self, config: DualStreamConfig) -> None:
        super().__init__()
        self.embed_tokens = nn.Embedding(config.vocab_size, config.hidden_size, padding_idx=config.pad_id)
        self.layers = nn.ModuleList(Layer(config) for _ in range(config.num_layers))
        self.norm = RMSNorm(config.hidden_size, config.rms_norm_eps)
        if config.num_codebooks:
            self.mimo_layers = nn.ModuleList(Layer(config) for _ in range(config.branch_layers))
            self.mimo_norm = RMSNorm(config.hidden_size, config.rms_norm_eps)
        if config.continuous_dim and config.continuous == "adapted":
            self.vq_adaptor = ContinuousAdaptor(config.continuous_dim, config.hidden_size, config.rms_norm_eps)


class DualStreamNetwork(nn.Module):
    """The layers alone: ids and features to hidden states to logits. Log-probs, sampling and prompts are built on it."""

    def __init__(self, config: DualStreamConfig) -> None:
        super().__init__()
        self.dual_config = config
        self.gradient_checkpointing = False
        # What a continuous position is multiplied by, so that it is as large as a sum of two embeddings (Kimi-Audio).
        self.continuous_scale = math.sqrt(2)
        self.model = _Backbone(config)
        self.lm_head = nn.Linear(config.hidden_size, config.vocab_size, bias=False)
        if config.num_codebooks:
            self.mimo_output = nn.Linear(config.hidden_size, config.vocab_size, bias=False)

    def initialise(self, seed: int) -> None:
        """Small normal weights; the outputs of residual blocks are scaled down by depth."""
        generator = torch.Generator().manual_seed(seed)
        depth_scale = 1 / math.sqrt(2 * self.dual_config.num_layers)
        for name, parameter in sorted(self.named_parameters()):
            if parameter.ndim >= 2:
                std = 0.02 * (depth_scale if name.endswith(("o_proj.weight", "down_proj.weight")) else 1.0)
                parameter.data.normal_(0.0, std, generator=generator)
            elif name.endswith("bias"):
                parameter.data.zero_()
        self.model.embed_tokens.weight.data[self.dual_config.pad_id] = 0

    def embed(self, audio_ids: Tensor, text_ids: Tensor, features: Tensor | None, continuous: Tensor | None) -> Tensor:
        """Sum of both streams' embeddings, [B, L, d].

        audio_ids [B, L, K], text_ids [B, L]; where `continuous` [B, L] holds, the audio part becomes
        (E(a) + adaptor(features)) times `continuous_scale`, before the text embedding is added.
        """
        config, weight = self.dual_config, self.model.embed_tokens.weight
        if features is not None and continuous is not None and config.continuous == "ready" and config.continuous_dim:
            return torch.where(continuous[..., None], features.to(weight.dtype), self.model.embed_tokens(text_ids))
        x = torch.zeros(*text_ids.shape, config.hidden_size, dtype=weight.dtype, device=weight.device)
        for codebook in range(audio_ids.shape[-1]):
            x = x + self.model.embed_tokens(audio_ids[..., codebook])
        if features is not None and continuous is not None and config.continuous_dim:
            scaled = (x + self.model.vq_adaptor(features.to(x.dtype))) * self.continuous_scale
            x = torch.where(continuous[..., None], scaled, x)
        return x + self.model.embed_tokens(text_ids)

    def hidden(
        self,
        x: Tensor,
        positions: Tensor,
        cache: KVCache | None = None,
        text_steps: int | None = None,
        only: Tensor | None = None,
    ) -> tuple[Tensor, Tensor | None]:
        """Return the normed states of both branches, [B, L, d] each; the second is None without an audio branch.

        The text branch goes no further than `text_steps` positions: behind the end of the text nothing asks for it. With
        `only` [B] the states [B, 1, d] of that position alone: of all others the last layers make keys and values, no more.
        """
        config = self.dual_config
        cos, sin = rotary(positions, config, x.dtype)
        for number in range(config.tap_layer + 1):
            x = self._through(self.model.layers[number], x, cos, sin, cache, number)
        audio = None
        if config.num_codebooks:
            audio = self._branch(self.model.mimo_layers, config.num_layers, x, cos, sin, cache, only)
            audio = self.model.mimo_norm(audio)
        if text_steps is not None and text_steps < x.shape[1]:
            x, cos, sin = x[:, :text_steps], cos[:, :, :text_steps], sin[:, :, :text_steps]
        if x.shape[1]:
            first = config.tap_layer + 1
            x = self._branch(self.model.layers[first:], first, x, cos, sin, cache, only)
        return self.model.norm(x), audio

    def _branch(
        self, layers: nn.ModuleList, first: int, x: Tensor, cos: Tensor, sin: Tensor, cache: KVCache | None, only: Tensor | None
    ) -> Tensor:
        """Run the layers behind the common ones, numbered from `first`."""
        for layer, number in zip(layers, range(first, first + len(layers)), strict=True):
            x = self._through(layer, x, cos, sin, cache, number, only if layer is layers[-1] else None)
        return x if only is None or len(layers) else one_position(x, only)

    def _through(
        self,
        layer: nn.Module,
        x: Tensor,
        cos: Tensor,
        sin: Tensor,
        cache: KVCache | None,
        number: int,
        only: Tensor | None = None,
    ) -> Tensor:
        """Run one layer, recomputed in the backward pass on request; it draws nothing, and torch's generator is left alone."""
        if not (self.gradient_checkpointing and torch.is_grad_enabled()):
            return layer(x, cos, sin, cache, number, only)
        if not isinstance(cache, PromptCache):
            return checkpoint(layer, x, cos, sin, cache, number, only, use_reentrant=False, preserve_rng_state=False)

        def keyed(x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
            # The keys and values of the layer must come out of the checkpoint, since answers differentiate through it.
            own = PromptCache(cache.lengths)
            return (layer(x, cos, sin, own, number, only), *own.pairs[number])

        x, *pair = checkpoint(keyed, x, use_reentrant=False, preserve_rng_state=False)
        cache.pairs[number] = pair[0], pair[1]
        return x

    def text_logits(self, text_hidden: Tensor) -> Tensor:
        """Return the logits [..., n] over `text_range`."""
        start, stop = self.dual_config.text_range
        return fn.linear(text_hidden, self.lm_head.weight[start:stop])

    def audio_logits(self, audio_hidden: Tensor) -> list[Tensor]:
        """Return the logits of each audio slot over its range, from one projection for all K."""
        ranges = self.dual_config.audio_ranges
        first, last = ranges[0][0], ranges[-1][1]
        joint = fn.linear(audio_hidden, self.mimo_output.weight[first:last])
        return [joint[..., start - first : stop - first] for start, stop in ranges]
