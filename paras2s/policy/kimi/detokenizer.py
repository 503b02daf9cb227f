"""Codes to waveform as Kimi-Audio's released inference does it: in chunks, with look-ahead, prefix and cross-fade.

The chunks are kept though the whole reply is there at once: the networks were trained on them, and replies must sound as they
do in the release. Left out: the prefill of a reference voice (the release answers in its default voice), and guidance.
"""

from __future__ import annotations

import json
import pickle
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
import yaml
from torch import Tensor, nn

from paras2s.audio.clip import Clip
from paras2s.errors import PolicyError, one_line
from paras2s.policy.kimi.bigvgan import BigVGAN, BigVGANConfig, learned_tensors
from paras2s.policy.kimi.flow_matching import FlowConfig, FlowModel, KeysValues, euler
from paras2s.policy.weights import check_state, shapes_of

# The time, in thousandths, at which finished mel is shown to the network for its keys and values: almost no noise left.
REFRESH_TIME = 999
FLOW_PREFIX = "speech_model."


@dataclass(frozen=True)
class Streaming:
    """Chunking of codes; the defaults are the released ones."""

    chunk_codes: int = 30
    look_ahead_codes: int = 12
    frames_per_code: int = 4
    prefix_frames: int = 900
    ode_points: int = 30
    positions: int = 4096

    def __post_init__(self) -> None:
        if not 0 < self.look_ahead_codes < self.chunk_codes:
            raise PolicyError(f"look_ahead_codes {self.look_ahead_codes} must be 1..{self.chunk_codes - 1}, less than a chunk")


class MelStream:
    """The mel of one utterance, chunk by chunk. A chunk's last frames are only a preview and are made anew with the next."""

    def __init__(self, flow: FlowModel, streaming: Streaming, seed: int) -> None:
        self._flow = flow
        self._streaming = streaming
        # Drawn on the CPU, so that a seed means the same noise on every device.
        self._noise = torch.Generator().manual_seed(seed)
        self._position = 0
        self._prefix: list[KeysValues] = []
        self._previewed = torch.zeros(0, dtype=torch.long, device=flow.device)

    def push(self, codes: Tensor, final: bool) -> Tensor:
        """Codes [S] of the next chunk to mel [T, M], float32 or wider. The last frames are held back unless this is `final`."""
        config, flow = self._flow.config, self._flow
        frame_codes = torch.cat([self._previewed, codes.repeat_interleave(self._streaming.frames_per_code)])
        noise = torch.randn(len(frame_codes), config.input_size, generator=self._noise).to(flow.device, flow.dtype)

        def velocity(x: Tensor, time: int) -> Tensor:
            return flow(x, frame_codes, time, self._position, self._prefix)[0]

        mel = euler(velocity, noise, self._streaming.ode_points)
        if not final:
            done = len(frame_codes) - self._streaming.look_ahead_codes * self._streaming.frames_per_code
            self._previewed, mel = frame_codes[done:], mel[:done]
            self._remember(mel, frame_codes[:done])
        return mel.to(torch.promote_types(mel.dtype, torch.float32)) * config.mel_std + config.mel_mean

    def _remember(self, mel: Tensor, frame_codes: Tensor) -> None:
        """Add normalised mel [T, M] to the prefix, with the keys and values it has now that it is no longer noise."""
        _, owns = self._flow(mel, frame_codes, REFRESH_TIME, self._position, self._prefix)
        if self._prefix:
            owns = [
                (torch.cat([k, own_k]), torch.cat([v, own_v]))
                for (k, v), (own_k, own_v) in zip(self._prefix, owns, strict=True)
            ]
        limit = self._streaming.prefix_frames
        self._prefix = [(keys[-limit:], values[-limit:]) for keys, values in owns]
        self._position += len(mel)
        # The network starts anew, without prefix, where two more chunks might not fit; the previewed codes stay.
        if self._position + 2 * len(mel) > self._streaming.positions:
            self._position, self._prefix = 0, []


class WaveStream:
    """The waveform of one utterance, mel chunk by mel chunk. What a chunk's end sounds like is settled by the next chunk."""

    def __init__(self, vocoder: nn.Module, hop: int) -> None:
        self._vocoder = vocoder
        self._hop = hop
        self._held_mel: Tensor | None = None
        self._held_wave: Tensor | None = None

    def push(self, mel: Tensor, final: bool) -> Tensor:
        """Mel [T, M] of the next chunk to samples [N]; what is held back comes with the next chunk."""
        wave = self._vocoder(mel if self._held_mel is None else torch.cat([self._held_mel, mel]))
        if final:
            # The release does not fade into the last chunk: what was held is dropped for its new rendering.
            return wave
        if self._held_wave is None:
            hold = len(mel) // 2
        else:
            held = len(self._held_wave)
            # Twice what was held goes out, the first half of it faded. The two halves of a Hamming window add up to 1.08, so
            # a fade is 0.7 dB loud (and may pass 1): so it is in the release.
            window = torch.hamming_window(2 * held, dtype=wave.dtype, device=wave.device)
            fade = self._held_wave * window[held:] + wave[:held] * window[:held]
            wave = torch.cat([fade, wave[held:]])
            hold = len(mel) - held // self._hop
        self._held_mel, self._held_wave = mel[-hold:], wave[-hold * self._hop :]
        return wave[: -hold * self._hop]


class KimiDetokenizer:
    """The released flow model and vocoder as one function of codes and a seed."""

    def __init__(self, flow: FlowModel, vocoder: BigVGAN, streaming: Streaming | None = None) -> None:
        if flow.config.input_size != vocoder.config.num_mels:
            raise PolicyError(
                f"the flow model makes {flow.config.input_size} mel bins, the vocoder reads {vocoder.config.num_mels}"
            )
        self.flow = flow
        self.vocoder = vocoder
        self.streaming = streaming or Streaming()
        self.sample_rate_hz = vocoder.config.sampling_rate
        self.samples_per_code = vocoder.config.hop_size * self.streaming.frames_per_code
        self.frame_rate_hz = self.sample_rate_hz / self.samples_per_code

    @classmethod
    def load(cls, folder: Path, device: str, dtype: torch.dtype | None = None) -> KimiDetokenizer:
        """From `folder`, which holds `audio_detokenizer/` and `vocoder/` as released.

        `dtype` is the flow model's: by default that of its file, on a CPU float32. The release runs both networks in
        bfloat16; the vocoder, the smaller one by far, is kept in float32 here.

        Raises:
            PolicyError: a file is missing or unreadable, or a tensor is missing, extra or of another shape.
        """
        where, vocoder_where = folder / "audio_detokenizer", folder / "vocoder"
        with torch.device("meta"):
            flow = FlowModel(FlowConfig.from_released(_read_config(where / "config.yaml")))
            vocoder = BigVGAN(BigVGANConfig.from_released(_read_config(vocoder_where / "config.json")))
        # The official loader passes over names without the prefix as well.
        stored = _read_tensors(where / "model.pt", "state_dict").items()
        state = {name.removeprefix(FLOW_PREFIX): tensor for name, tensor in stored if name.startswith(FLOW_PREFIX)}
        _fill(flow, state, where / "model.pt")
        _fill(vocoder, learned_tensors(_read_tensors(vocoder_where / "model.pt", "generator")), vocoder_where / "model.pt")
        if dtype is None:
            dtype = torch.float32 if torch.device(device).type == "cpu" else flow.dtype
        return cls(flow.to(device, dtype), vocoder.to(device, torch.float32))

    @torch.inference_mode()
    def decode(self, codes: np.ndarray, seed: int) -> Clip:
        """Waveform of codes [T], `samples_per_code` samples each. The same codes and seed give the same samples.

        Raises:
            PolicyError: not one row of codes the model knows, or the networks gave NaN.
        """
        codes = np.asarray(codes)
        if not codes.size:
            return Clip(np.zeros(0, dtype=np.float32), self.sample_rate_hz)
        known = self.flow.config.semantic_vocab_size
        if codes.ndim != 1 or codes.dtype.kind not in "iu" or codes.min() < 0 or codes.max() >= known:
            raise PolicyError(
                f"expected codes [T] in 0..{known - 1}, got {codes.dtype} {codes.shape} in {codes.min()}..{codes.max()}"
            )
        row = torch.from_numpy(codes.astype(np.int64)).to(self.flow.device)
        mels = MelStream(self.flow, self.streaming, seed)
        waves = WaveStream(self.vocoder, self.vocoder.config.hop_size)
        parts = []
        for start in range(0, len(codes), size := self.streaming.chunk_codes):
            final = start + size >= len(codes)
            parts.append(waves.push(mels.push(row[start : start + size], final), final))
        samples = torch.cat(parts).float().cpu().numpy()
        if not np.isfinite(samples).all():
            raise PolicyError(f"the detokenizer made NaN of {len(codes)} codes, seed {seed}; check its weights and dtype")
        return Clip(samples, self.sample_rate_hz)


def _read_config(path: Path) -> Mapping[str, Any]:
    try:
        text = path.read_text(encoding="utf-8")
        config = json.loads(text) if path.suffix == ".json" else yaml.safe_load(text)
    except (OSError, ValueError, yaml.YAMLError) as error:
        raise PolicyError(f"{path}: cannot be read ({one_line(error)}); give the folder of the released model") from error
    if not isinstance(config, dict):
        raise PolicyError(f"{path}: holds no mapping; give the released file")
    return config


def _read_tensors(path: Path, entry: str) -> dict[str, Tensor]:
    """The tensors under `entry` of a torch file, on the CPU. Only tensors are unpickled: the file may come from anywhere."""
    try:
        stored = torch.load(path, map_location="cpu", weights_only=True)
    except (OSError, RuntimeError, EOFError, pickle.UnpicklingError) as error:
        raise PolicyError(f"{path}: cannot be read ({one_line(error)[:200]}); give the folder of the released model") from error
    tensors = stored.get(entry) if isinstance(stored, dict) else None
    if not isinstance(tensors, dict) or not all(isinstance(tensor, Tensor) for tensor in tensors.values()):
        raise PolicyError(f"{path}: no tensors under {entry!r}; give the released file")
    return tensors


def _fill(model: nn.Module, state: Mapping[str, Tensor], path: Path) -> None:
    """Give a model made on the meta device its tensors, for inference only."""
    check_state(shapes_of(model.state_dict()), shapes_of(state), str(path))
    model.load_state_dict(state, assign=True)
    model.requires_grad_(False).eval()
