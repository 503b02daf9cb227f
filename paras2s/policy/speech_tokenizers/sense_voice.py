"""SenseVoice-Small's encoder, by its makers' package funasr: speech to vectors of 512, one every 60 ms. It never learns."""

from __future__ import annotations

import contextlib
import sys
from pathlib import Path
from typing import Any

import numpy as np
import torch

from paras2s.audio.clip import Clip
from paras2s.errors import PolicyError, one_line

RATE_HZ, WINDOW = 16_000, 400
# funasr adds noise of one step of 16 bits to what it hears, without a seed; here the noise has one.
DITHER, DITHER_SEED = 2.0**-15, 0


class SenseVoice:
    """The filter bank and the encoder of a folder of SenseVoice-Small, without its heads, as MiniMind-O uses them."""

    def __init__(self, encoder: Any, frontend: Any) -> None:
        self.encoder, self.frontend = encoder.float().requires_grad_(False).eval(), frontend.eval()
        self.frontend.dither = 0.0

    @classmethod
    def load(cls, folder: Path, device: str | torch.device = "cpu") -> SenseVoice:
        """Read ModelScope's folder: `config.yaml`, `am.mvn`, `model.pt`. Raises PolicyError: no funasr, or unreadable."""
        # funasr prints to standard output, where JSON may go, and seeds every generator.
        with contextlib.redirect_stdout(sys.stderr), torch.random.fork_rng(devices=[]):
            try:
                from funasr import AutoModel
            except Exception as error:
                raise PolicyError(
                    f"MiniMind-O hears by SenseVoice-Small, which funasr runs ({one_line(error)[:200]}): pip install "
                    "'paras2s[trace]', or set the policy's audio_encoder to an object with features(clip) -> array [L, 512]"
                ) from error
            try:
                held = AutoModel(
                    model=str(folder), device=str(device), ncpu=torch.get_num_threads(), disable_update=True, disable_pbar=True
                )
            except Exception as error:
                # funasr raises what its readers do.
                raise PolicyError(f"{folder}: is no SenseVoice-Small that funasr reads ({one_line(error)[:200]})") from error
        return cls(held.model.encoder, held.kwargs["frontend"])

    @torch.no_grad()
    def features(self, clip: Clip) -> np.ndarray:
        """Return the encoder's output [L, F]. Raises PolicyError: the clip is shorter than a filter bank's window."""
        noise = np.random.Generator(np.random.Philox(DITHER_SEED))
        samples = clip.at(RATE_HZ).samples
        if len(samples) < WINDOW:
            raise PolicyError(f"a clip of {clip.duration_s:.3f} s; SenseVoice-Small hears {WINDOW / RATE_HZ:.3f} s and more")
        wave = torch.from_numpy((samples + DITHER * noise.normal(size=len(samples))).astype(np.float32))[None]
        mel, count = self.frontend(wave, torch.tensor([wave.shape[1]]))
        device = next(self.encoder.parameters()).device
        states, _ = self.encoder(mel.to(device), count.to(device))
        return np.asarray(states[0].cpu().numpy())
