"""Mimi, the codec of Moshi and CSM, as transformers has it: speech to codes and back, in float32."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from paras2s.audio.clip import Clip


def encode_mimi(mimi: Any, clip: Clip, codebooks: int) -> np.ndarray:
    """Return codes [T, K] of a clip; the tail is padded with silence to a whole frame."""
    rate_hz = int(mimi.config.sampling_rate)
    samples = clip.at(rate_hz).samples
    samples = np.pad(samples, (0, -len(samples) % round(rate_hz / float(mimi.config.frame_rate))))
    wave = torch.from_numpy(samples.astype(np.float32))[None, None].to(next(mimi.parameters()).device)
    with torch.no_grad():
        codes = mimi.encode(wave, num_quantizers=codebooks).audio_codes[0]
    return np.asarray(codes.T.cpu().numpy())


def decode_mimi(mimi: Any, codes: np.ndarray) -> Clip:
    """Waveform of codes [T, K], empty for T = 0."""
    rate_hz = int(mimi.config.sampling_rate)
    if not len(codes):
        return Clip(np.zeros(0, dtype=np.float32), rate_hz)
    held = torch.from_numpy(codes.T.copy())[None].to(next(mimi.parameters()).device)
    with torch.no_grad():
        wave = mimi.decode(held).audio_values[0, 0]
    return Clip(wave.float().cpu().numpy(), rate_hz)
