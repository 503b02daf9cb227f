"""Codes to mel: Kimi-Audio's flow-matching transformer, under the parameter names of its released checkpoint.

T = mel frames, M = mel bins, D = hidden size, H = heads, d = D / H; `...` is one utterance, or N at the same place of theirs.
Left out: classifier-free guidance (the streaming release runs without it) and the prefill of a reference voice.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from itertools import pairwise
from typing import Any, Literal

import torch
from pydantic import BaseModel, ConfigDict, PositiveFloat, PositiveInt, ValidationError, model_validator
from torch import Tensor, nn
from torch.nn import functional

from paras2s.errors import PolicyError, one_line

TIME_CHANNELS = 256
NORM_EPS = 1e-6
# One block's rotated keys and its values, each [..., T, H, d].
KeysValues = tuple[Tensor, Tensor]


class RopeConfig(BaseModel):
    """`rope_params` of the release."""

    model_config = ConfigDict(frozen=True)

    rope_base: PositiveFloat = 10_000.0
    rope_interpolation_factor: PositiveFloat = 1.0


class FlowConfig(BaseModel):
    """Sizes, under the names of the released config.yaml. A `Literal` field is a fork this module does not take.

    Sizes have no defaults: the defaults of the official class are not those of the checkpoint.
    """

    model_config = ConfigDict(frozen=True, extra="ignore")

    input_size: PositiveInt
    semantic_vocab_size: PositiveInt
    hidden_size: PositiveInt
    depth: PositiveInt
    num_heads: PositiveInt
    mlp_ratio: PositiveFloat
    ffn_type: Literal["vanilla_mlp"]
    use_rope: Literal[True]
    position_embedding_type: Literal["skip"]
    rope_params: RopeConfig = RopeConfig()
    normalize_mel: Literal[True]
    mel_mean: float
    mel_std: PositiveFloat

    @model_validator(mode="after")
    def _heads_turn(self) -> FlowConfig:
        if self.hidden_size % (2 * self.num_heads):
            raise ValueError(
                f"hidden_size {self.hidden_size} is not an even number of channels for each of {self.num_heads} heads"
            )
        return self

    @classmethod
    def from_released(cls, released: Mapping[str, Any]) -> FlowConfig:
        """Read the config from the parsed `audio_detokenizer/config.yaml`. Raises PolicyError: another architecture."""
        try:
            mel = {name: released[name] for name in ("normalize_mel", "mel_mean", "mel_std")}
            return cls.model_validate({**released["model"]["dit"], **mel})
        except KeyError as error:
            raise PolicyError(f"audio_detokenizer/config.yaml: no field {error}; give the released file") from error
        except (TypeError, ValidationError) as error:
            raise PolicyError(f"audio_detokenizer/config.yaml: {one_line(error)}") from error


def rotate(x: Tensor, turns: Tensor) -> Tensor:
    """Turn neighbouring channels of x [..., T, H, d] by unit complex numbers `turns` [T, d/2]; Llama turns halves instead."""
    pairs = torch.view_as_complex(x.to(turns.real.dtype).reshape(*x.shape[:-1], -1, 2))
    return torch.view_as_real(pairs * turns[:, None]).flatten(-2).to(x.dtype)


def modulate(x: Tensor, shift: Tensor, scale: Tensor) -> Tensor:
    """Layer norm without learned scale, then the scale and shift that the condition gave; all [..., T, D]."""
    return functional.layer_norm(x, x.shape[-1:], eps=NORM_EPS) * (1 + scale) + shift


def _modulation(hidden: int, parts: int) -> nn.Sequential:
    return nn.Sequential(nn.SiLU(), nn.Linear(hidden, parts * hidden))


class TimeEmbedder(nn.Module):
    """A time in thousandths, 0..999, to a vector [D]."""

    def __init__(self, hidden: int) -> None:
        super().__init__()
        self.mlp = nn.Sequential(nn.Linear(TIME_CHANNELS, hidden), nn.SiLU(), nn.Linear(hidden, hidden))

    def forward(self, time: int, like: Tensor) -> Tensor:
        """Return the embedding, on the device and in the type of `like`."""
        half = TIME_CHANNELS // 2
        octave = torch.arange(half, device=like.device, dtype=torch.promote_types(like.dtype, torch.float32)) / half
        angles = time * torch.exp(-math.log(10_000) * octave)
        # Cosines come first.
        return self.mlp(torch.cat([angles.cos(), angles.sin()]).to(like.dtype))


class Attention(nn.Module):
    """Every frame of the chunk sees the whole chunk and the whole prefix: no causal mask."""

    def __init__(self, hidden: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.qkv = nn.Linear(hidden, 3 * hidden)
        self.proj = nn.Linear(hidden, hidden)

    def forward(
        self, x: Tensor, turns: Tensor, past: KeysValues | None, mask: Tensor | None = None
    ) -> tuple[Tensor, KeysValues]:
        """Map x [..., T, D] and earlier keys and values to output and own keys and values; `mask` [N, 1, 1, earlier + T]."""
        query, key, value = self.qkv(x).view(*x.shape[:-1], 3, self.heads, -1).unbind(-3)
        query, key = rotate(query, turns), rotate(key, turns)
        keys, values = (key, value) if past is None else (torch.cat([past[0], key], -3), torch.cat([past[1], value], -3))
        # Fused kernels take four axes only, so that one utterance gets a batch axis of 1.
        query, keys, values = (part.transpose(-3, -2)[None].flatten(0, -4) for part in (query, keys, values))
        seen = functional.scaled_dot_product_attention(query, keys, values, attn_mask=mask)
        return self.proj(seen.transpose(1, 2).reshape(x.shape)), (key, value)


class Mlp(nn.Module):
    """Two layers with the tanh form of GELU between them."""

    def __init__(self, hidden: int, inner: int) -> None:
        super().__init__()
        self.fc1 = nn.Linear(hidden, inner)
        self.fc2 = nn.Linear(inner, hidden)

    def forward(self, x: Tensor) -> Tensor:
        """[..., T, D] to [..., T, D]."""
        return self.fc2(functional.gelu(self.fc1(x), approximate="tanh"))


class Block(nn.Module):
    """Attention and MLP; the condition shifts, scales and gates both (adaLN-zero), frame by frame."""

    def __init__(self, config: FlowConfig) -> None:
        super().__init__()
        hidden = config.hidden_size
        self.attn = Attention(hidden, config.num_heads)
        self.mlp = Mlp(hidden, int(hidden * config.mlp_ratio))
        self.adaLN_modulation = _modulation(hidden, 6)

    def forward(
        self, x: Tensor, condition: Tensor, turns: Tensor, past: KeysValues | None, mask: Tensor | None = None
    ) -> tuple[Tensor, KeysValues]:
        """Map x and condition [..., T, D] to [..., T, D] and the chunk's own keys and values."""
        parts = self.adaLN_modulation(condition).chunk(6, dim=-1)
        shift_attn, scale_attn, gate_attn, shift_mlp, scale_mlp, gate_mlp = parts
        seen, own = self.attn(modulate(x, shift_attn, scale_attn), turns, past, mask)
        x = x + gate_attn * seen
        return x + gate_mlp * self.mlp(modulate(x, shift_mlp, scale_mlp)), own


class FinalLayer(nn.Module):
    """Hidden states to mel bins, under the same condition."""

    def __init__(self, hidden: int, out: int) -> None:
        super().__init__()
        self.linear = nn.Linear(hidden, out)
        self.adaLN_modulation = _modulation(hidden, 2)

    def forward(self, x: Tensor, condition: Tensor) -> Tensor:
        """[..., T, D] to [..., T, M]."""
        shift, scale = self.adaLN_modulation(condition).chunk(2, dim=-1)
        return self.linear(modulate(x, shift, scale))


class FlowModel(nn.Module):
    """Velocity of the mel between noise (0) and speech (1), given each frame's code; tensors as in the released `model.pt`."""

    def __init__(self, config: FlowConfig) -> None:
        super().__init__()
        self.config = config
        hidden = config.hidden_size
        self.t_embedder = TimeEmbedder(hidden)
        # One row more than there are codes: the condition of guidance, trained and released but not used in streaming.
        self.semantic_token_embedding = nn.Embedding(config.semantic_vocab_size + 1, hidden)
        self.input_linear = nn.Linear(config.input_size, hidden)
        self.blocks = nn.ModuleList(Block(config) for _ in range(config.depth))
        self.final_layer = FinalLayer(hidden, config.input_size)

    @property
    def dtype(self) -> torch.dtype:
        """The type of its weights."""
        return self.input_linear.weight.dtype

    @property
    def device(self) -> torch.device:
        """Device of the weights."""
        return self.input_linear.weight.device

    def forward(
        self, mel: Tensor, codes: Tensor, time: int, start: int, prefix: Sequence[KeysValues] = (), mask: Tensor | None = None
    ) -> tuple[Tensor, list[KeysValues]]:
        """Velocity [..., T, M] of normalised mel [..., T, M], and the keys and values of these frames, one pair a block.

        `codes` [..., T], one a frame; `time` in thousandths; `start` is the first frame's position; `prefix` the earlier
        pairs; `mask` [N, 1, 1, earlier + T] is False at padding.
        """
        x = self.input_linear(mel)
        condition = self.t_embedder(time, x) + self.semantic_token_embedding(codes)
        turns = self._turns(start, mel.shape[-2])
        owns = []
        for number, block in enumerate(self.blocks):
            x, own = block(x, condition, turns, prefix[number] if prefix else None, mask)
            owns.append(own)
        return self.final_layer(x, condition), owns

    def _turns(self, start: int, frames: int) -> Tensor:
        """Unit complex numbers [T, d/2]. At least float32: bfloat16 cannot tell position 4095 from 4080."""
        rope, width = self.config.rope_params, self.config.hidden_size // self.config.num_heads
        wide = torch.promote_types(self.dtype, torch.float32)
        steps = rope.rope_base ** (-torch.arange(0, width, 2, dtype=wide, device=self.device) / width)
        positions = torch.arange(start, start + frames, dtype=wide, device=self.device)
        angles = torch.outer(positions / rope.rope_interpolation_factor, steps)
        return torch.polar(torch.ones_like(angles), angles)


def euler(velocity: Callable[[Tensor, int], Tensor], noise: Tensor, points: int) -> Tensor:
    """Follow `velocity(x, time in thousandths)` from `noise` at time 0 to time 1, over `points` - 1 equal steps.

    The network knows whole thousandths only, rounded down. Times are float32 whatever x is: in bfloat16 they would merge.
    """
    x = noise
    for now, after in pairwise(torch.linspace(0, 1, points, dtype=torch.float32)):
        x = x + (after - now).item() * velocity(x, int(now * 1000))
    return x
