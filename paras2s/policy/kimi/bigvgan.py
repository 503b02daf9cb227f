"""Mel to waveform: the BigVGAN of Kimi-Audio's release, under the parameter names of its checkpoint.

C = channels, N = samples at the rate of the layer, T = mel frames, M = mel bins. One utterance at a time: no batch axis.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from functools import lru_cache
from typing import Any, Literal

import numpy as np
import torch
from pydantic import BaseModel, ConfigDict, PositiveInt, ValidationError, model_validator
from torch import Tensor, nn
from torch.nn import functional

from paras2s.errors import PolicyError, one_line

TAPS = 12


class BigVGANConfig(BaseModel):
    """Sizes, under the names of the released config.json. A `Literal` field is a fork this module does not take."""

    model_config = ConfigDict(frozen=True, extra="ignore")

    num_mels: PositiveInt
    sampling_rate: PositiveInt
    hop_size: PositiveInt
    upsample_rates: tuple[PositiveInt, ...]
    upsample_kernel_sizes: tuple[PositiveInt, ...]
    upsample_initial_channel: PositiveInt
    resblock_kernel_sizes: tuple[PositiveInt, ...]
    resblock_dilation_sizes: tuple[tuple[PositiveInt, ...], ...]
    resblock: Literal["1"]
    activation: Literal["snakebeta"]
    snake_logscale: Literal[True]
    # Required, since the official code takes a missing one as true.
    use_bias_at_final: Literal[False]
    use_tanh_at_final: Literal[False]

    @model_validator(mode="after")
    def _lengths_fit(self) -> BigVGANConfig:
        if math.prod(self.upsample_rates) != self.hop_size:
            raise ValueError(f"upsample_rates {self.upsample_rates} do not multiply to hop_size {self.hop_size}")
        if len(self.upsample_kernel_sizes) != len(self.upsample_rates):
            raise ValueError("upsample_kernel_sizes and upsample_rates differ in number")
        # An odd difference could not be trimmed alike on both sides, and the length would drift from hop to hop.
        if any((kernel - rate) % 2 for kernel, rate in zip(self.upsample_kernel_sizes, self.upsample_rates, strict=True)):
            raise ValueError(f"upsample_kernel_sizes {self.upsample_kernel_sizes} must differ from the rates by even numbers")
        if len(self.resblock_kernel_sizes) != len(self.resblock_dilation_sizes):
            raise ValueError("resblock_kernel_sizes and resblock_dilation_sizes differ in number")
        if self.upsample_initial_channel % 2 ** len(self.upsample_rates):
            raise ValueError(f"upsample_initial_channel {self.upsample_initial_channel} cannot be halved at every upsampling")
        return self

    @classmethod
    def from_released(cls, released: Mapping[str, Any]) -> BigVGANConfig:
        """Read the config from the parsed `vocoder/config.json`. Raises PolicyError: no such field, or another architecture."""
        try:
            return cls.model_validate(released)
        except ValidationError as error:
            raise PolicyError(f"vocoder/config.json: {one_line(error)}") from error


@lru_cache(maxsize=1)
def kaiser_sinc() -> tuple[float, ...]:
    """Return the only low-pass of the network, for up- and downsampling by 2: half band, 12 taps, gain 1 at DC."""
    half = TAPS // 2
    # Kaiser's design rule for a transition as wide as 1.2 of the new Nyquist; over 50 dB it takes this branch of beta.
    attenuation_db = 2.285 * (half - 1) * math.pi * 1.2 + 7.95
    window = np.kaiser(TAPS, 0.1102 * (attenuation_db - 8.7))
    taps = window * np.sinc((np.arange(TAPS) - half + 0.5) / 2)
    return tuple(float(tap) for tap in taps / taps.sum())


class SnakeBeta(nn.Module):
    """x + sin²(αx) / β, one α and one β a channel; both are stored as logarithms."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.alpha = nn.Parameter(torch.zeros(channels))
        self.beta = nn.Parameter(torch.zeros(channels))

    def forward(self, x: Tensor) -> Tensor:
        """[..., C, N] to [..., C, N]."""
        alpha, beta = self.alpha.exp()[:, None], self.beta.exp()[:, None]
        return x + torch.sin(alpha * x) ** 2 / (beta + 1e-9)


class Activation(nn.Module):
    """SnakeBeta at twice the rate, so that the overtones it makes are filtered out before they fold back."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.act = SnakeBeta(channels)

    def forward(self, x: Tensor, taps: Tensor) -> Tensor:
        """[..., C, N] to [..., C, N]; `taps` [12]. The edges are held, as in the official torch code, not in its CUDA kernel.

        That kernel, which the release runs, lets the last samples of a chunk see zeros instead.
        """
        channels = x.shape[-2]
        kernel = taps.expand(channels, 1, -1)
        edge = TAPS // 2 - 1
        x = functional.pad(x, (edge, edge), mode="replicate")
        # The factor 2 makes up for the zeros between the samples; what is cut off are the held edges and the filter's delay.
        x = 2 * functional.conv_transpose1d(x, kernel, stride=2, groups=channels)[..., 3 * edge : -3 * edge]
        x = functional.pad(self.act(x), (edge, edge + 1), mode="replicate")
        return functional.conv1d(x, kernel, stride=2, groups=channels)


class _Normed(nn.Module):
    """A kernel as direction `weight_v` and lengths `weight_g` a slice of axis 0: outputs, or a transposed one's inputs."""

    def __init__(self, shape: tuple[int, int, int]) -> None:
        super().__init__()
        self.weight_g = nn.Parameter(torch.ones(shape[0], 1, 1))
        self.weight_v = nn.Parameter(torch.randn(shape))

    def kernel(self) -> Tensor:
        """Return the kernel itself."""
        length = torch.linalg.vector_norm(self.weight_v, dim=(1, 2), keepdim=True)
        return self.weight_v * (self.weight_g / length)


class Conv(_Normed):
    """A convolution that keeps the length."""

    def __init__(self, inputs: int, outputs: int, width: int, dilation: int = 1, bias: bool = True) -> None:
        super().__init__((outputs, inputs, width))
        self.dilation = dilation
        self.padding = dilation * (width - 1) // 2
        self.bias = nn.Parameter(torch.zeros(outputs)) if bias else None

    def forward(self, x: Tensor) -> Tensor:
        """[..., C in, N] to [..., C out, N]."""
        return functional.conv1d(x, self.kernel(), self.bias, padding=self.padding, dilation=self.dilation)


class Upsample(_Normed):
    """A transposed convolution that makes `rate` samples of one."""

    def __init__(self, inputs: int, outputs: int, width: int, rate: int) -> None:
        super().__init__((inputs, outputs, width))
        self.rate = rate
        self.padding = (width - rate) // 2
        self.bias = nn.Parameter(torch.zeros(outputs))

    def forward(self, x: Tensor) -> Tensor:
        """[..., C in, N] to [..., C out, rate * N]."""
        return functional.conv_transpose1d(x, self.kernel(), self.bias, stride=self.rate, padding=self.padding)


class AmpBlock(nn.Module):
    """Residual pairs of a dilated and a plain convolution, each behind its own activation."""

    def __init__(self, channels: int, width: int, dilations: tuple[int, ...]) -> None:
        super().__init__()
        self.convs1 = nn.ModuleList(Conv(channels, channels, width, dilation) for dilation in dilations)
        self.convs2 = nn.ModuleList(Conv(channels, channels, width) for _ in dilations)
        # In the order they are used: dilated, plain, dilated, ...
        self.activations = nn.ModuleList(Activation(channels) for _ in range(2 * len(dilations)))

    def forward(self, x: Tensor, taps: Tensor) -> Tensor:
        """[..., C, N] to [..., C, N]."""
        for number, (dilated, plain) in enumerate(zip(self.convs1, self.convs2, strict=True)):
            first, second = self.activations[2 * number], self.activations[2 * number + 1]
            x = x + plain(second(dilated(first(x, taps)), taps))
        return x


class BigVGAN(nn.Module):
    """Mel [..., T, M] to waveform [..., T * hop]. Its tensors are those learned in the released `model.pt`, `generator`."""

    def __init__(self, config: BigVGANConfig) -> None:
        super().__init__()
        self.config = config
        channels = [config.upsample_initial_channel >> number for number in range(len(config.upsample_rates) + 1)]
        steps = zip(channels, channels[1:], config.upsample_kernel_sizes, config.upsample_rates, strict=False)
        resblocks = list(zip(config.resblock_kernel_sizes, config.resblock_dilation_sizes, strict=True))
        self.conv_pre = Conv(config.num_mels, channels[0], 7)
        # Each in a list of one, because the released names have that extra level.
        self.ups = nn.ModuleList(nn.Sequential(Upsample(*step)) for step in steps)
        self.resblocks = nn.ModuleList(AmpBlock(count, *resblock) for count in channels[1:] for resblock in resblocks)
        self.activation_post = Activation(channels[-1])
        self.conv_post = Conv(channels[-1], 1, 7, bias=False)

    def forward(self, mel: Tensor) -> Tensor:
        """[..., T, M], natural logarithm of the magnitude, to samples [..., T * hop] in -1..1.

        In float32 as it says, and the same each time: a GPU would by default round inputs to TF32, and choose its sums' order.
        """
        with torch.backends.cudnn.flags(enabled=True, deterministic=True, allow_tf32=False):
            return self._samples(mel)

    def _samples(self, mel: Tensor) -> Tensor:
        kinds = len(self.config.resblock_kernel_sizes)
        x = self.conv_pre(mel.transpose(-1, -2))
        taps = x.new_tensor(kaiser_sinc())
        for number, up in enumerate(self.ups):
            x = up(x)
            blocks = self.resblocks[number * kinds : (number + 1) * kinds]
            x = torch.stack([block(x, taps) for block in blocks]).mean(dim=0)
        # Clamped, not squashed by a tanh.
        return self.conv_post(self.activation_post(x, taps))[..., 0, :].clamp(-1.0, 1.0)


def learned_tensors(generator: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return the entry `generator` without the fixed low-passes stored at every activation: they are computed instead.

    Raises:
        PolicyError: a stored low-pass is not the one computed, so the network was trained with another.
    """
    learned = {}
    for name, tensor in generator.items():
        if not name.endswith((".upsample.filter", ".downsample.lowpass.filter")):
            learned[name] = tensor
        # Loose enough for a filter stored in bfloat16.
        elif tensor.numel() != TAPS or not np.allclose(tensor.flatten().float().numpy(), kaiser_sinc(), atol=2e-3):
            raise PolicyError(f"vocoder/model.pt: {name} is not the 12-tap half-band filter of the release")
    return learned
