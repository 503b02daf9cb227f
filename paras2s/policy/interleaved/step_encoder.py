"""`StepEncoder`: Step-Audio 2's audio encoder, speech to vectors in the place of 12.5 embeddings a second.

Whisper's log-mel of the clip and of 479 zeros behind it, Whisper's convolutions and layers at 50 Hz, an average of two and a
norm; then the adaptor, whose convolution halves the rate once more, and which ends at the language model's width. Names are
those of the released checkpoint, which holds both beside the language model.

As released, attention does not look at the last frame, which is all zeros. Left out: batches. The release pads pieces to
one length, and there a piece's last vector depends on how long its neighbours are (its mask is thinned out from the end of the
padding, and the adaptor reads one frame behind the piece); here each is encoded alone, as the release does with one. Also left
out: bfloat16, in which the release runs it (here float32 at least).
Alphabet: M mel frames (100 Hz), F frames (50 Hz), D width, T vectors (12.5 Hz), H the language model's width.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from pydantic import BaseModel, ConfigDict, PositiveInt, ValidationError, model_validator
from torch import Tensor, nn
from torch.nn import functional as fn

from paras2s.errors import AudioError, PolicyError, one_line

RATE_HZ, HOP = 16_000, 160
# What is put behind a clip before its mel, in samples.
TAIL = 479
# Between the adaptor's two linear layers; no config holds it.
ADAPTOR_WIDTH = 2048


class StepEncoderConfig(BaseModel):
    """Sizes, under the names of `audio_encoder_config` in the released `config.json`."""

    model_config = ConfigDict(extra="ignore", frozen=True)

    n_mels: PositiveInt
    n_audio_ctx: PositiveInt
    n_audio_state: PositiveInt
    n_audio_head: PositiveInt
    n_audio_layer: PositiveInt
    llm_dim: PositiveInt
    kernel_size: PositiveInt
    adapter_stride: PositiveInt

    @model_validator(mode="after")
    def _check(self) -> StepEncoderConfig:
        if self.n_audio_state % self.n_audio_head:
            raise ValueError("n_audio_head must divide n_audio_state")
        return self

    @classmethod
    def read(cls, released: Any, where: str) -> StepEncoderConfig:
        """Read the config from a released config's part.

        Raises:
            PolicyError: a size is missing or wrong.
        """
        try:
            return cls.model_validate(released)
        except ValidationError as error:
            raise PolicyError(f"{where}: audio_encoder_config is not one this code knows ({one_line(error)})") from error

    def vectors(self, samples: int) -> int:
        """Return T of a clip of *n* samples at 16 kHz."""
        pooled = ((samples + TAIL) // HOP - 1) // 4
        return max(0, (pooled + 2 - self.kernel_size) // self.adapter_stride + 1)


class _Attention(nn.Module):
    def __init__(self, config: StepEncoderConfig) -> None:
        super().__init__()
        width, self.heads = config.n_audio_state, config.n_audio_head
        self.query = nn.Linear(width, width)
        self.key = nn.Linear(width, width, bias=False)
        self.value = nn.Linear(width, width)
        self.out = nn.Linear(width, width)

    def forward(self, x: Tensor) -> Tensor:
        """[1, F, D] to the same; the last frame is not attended to."""
        q, k, v = (project(x).unflatten(2, (self.heads, -1)).transpose(1, 2) for project in (self.query, self.key, self.value))
        attended = fn.scaled_dot_product_attention(q, k[:, :, :-1], v[:, :, :-1])
        return self.out(attended.transpose(1, 2).flatten(2))


class _Layer(nn.Module):
    def __init__(self, config: StepEncoderConfig) -> None:
        super().__init__()
        width = config.n_audio_state
        self.attn = _Attention(config)
        self.attn_ln = nn.LayerNorm(width)
        self.mlp = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))
        self.mlp_ln = nn.LayerNorm(width)

    def forward(self, x: Tensor) -> Tensor:
        """[1, F, D] to the same."""
        x = x + self.attn(self.attn_ln(x))
        return x + self.mlp(self.mlp_ln(x))


class _Encoder(nn.Module):
    def __init__(self, config: StepEncoderConfig) -> None:
        super().__init__()
        width = config.n_audio_state
        self.conv1 = nn.Conv1d(config.n_mels, width, kernel_size=3, padding=1)
        self.conv2 = nn.Conv1d(width, width, kernel_size=3, stride=2, padding=1)
        self.positional_embedding = nn.Embedding(config.n_audio_ctx, width)
        self.blocks = nn.ModuleList(_Layer(config) for _ in range(config.n_audio_layer))
        self.after_norm = nn.LayerNorm(width)

    def forward(self, mel: Tensor) -> Tensor:
        """[1, bins, M] to [1, F // 2, D]."""
        x = fn.gelu(self.conv2(fn.gelu(self.conv1(mel)))).transpose(1, 2)
        x = x + self.positional_embedding.weight[: x.shape[1]]
        for block in self.blocks:
            x = block(x)
        return self.after_norm(fn.avg_pool1d(x.transpose(1, 2), 2).transpose(1, 2))


class _Adaptor(nn.Module):
    def __init__(self, config: StepEncoderConfig) -> None:
        super().__init__()
        width = config.n_audio_state
        self.conv = nn.Conv1d(width, width, config.kernel_size, config.adapter_stride, padding=1)
        self.linear1 = nn.Linear(width, ADAPTOR_WIDTH)
        self.linear2 = nn.Linear(ADAPTOR_WIDTH, config.llm_dim)

    def forward(self, x: Tensor) -> Tensor:
        """[1, F // 2, D] to [1, T, H], or one more."""
        x = fn.gelu(self.conv(x.transpose(1, 2))).transpose(1, 2)
        return self.linear2(fn.relu(self.linear1(x)))


class StepEncoder(nn.Module):
    """Encoder and adaptor, frozen."""

    def __init__(self, config: StepEncoderConfig) -> None:
        from transformers import WhisperFeatureExtractor

        super().__init__()
        self.config = config
        self.encoder, self.adapter = _Encoder(config), _Adaptor(config)
        # One position is a frame of 20 ms, so this is the longest clip.
        self.longest = 2 * config.n_audio_ctx * HOP - TAIL
        self.mel: Any = WhisperFeatureExtractor(  # type: ignore[no-untyped-call]
            feature_size=config.n_mels, chunk_length=-(-(self.longest + TAIL) // RATE_HZ)
        )

    @torch.inference_mode()
    def features(self, samples: np.ndarray) -> np.ndarray:
        """Return vectors [T, H] of samples [n] at 16 kHz; as float32, or float64 of float64 weights.

        Raises:
            AudioError: an empty clip, or more than there are positions for.
        """
        if not 0 < len(samples) <= self.longest:
            raise AudioError(f"{len(samples)} samples at 16 kHz; Step-Audio 2 takes 1 to {self.longest} at once")
        weight = self.adapter.linear2.weight
        padded = np.pad(np.asarray(samples, dtype=np.float32), (0, TAIL))
        mel = self.mel(padded, sampling_rate=RATE_HZ, padding="longest", return_tensors="pt")["input_features"]
        vectors = self.adapter(self.encoder(mel.to(weight)))[0, : self.config.vectors(len(samples))]
        return np.asarray(vectors.cpu().numpy())
