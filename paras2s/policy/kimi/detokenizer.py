"""Codes to waveform as Kimi-Audio's released inference does it: in chunks, with look-ahead, prefix and cross-fade.

The chunks are kept though the whole reply is there at once: the networks were trained on them, and replies must sound as they
do in the release. Left out: the prefill of a reference voice (the release answers in its default voice), and guidance.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import pad_sequence

from paras2s.audio.clip import Clip
from paras2s.errors import PolicyError
from paras2s.policy.kimi.bigvgan import BigVGAN, BigVGANConfig, learned_tensors
from paras2s.policy.kimi.flow_matching import FlowConfig, FlowModel, KeysValues, euler
from paras2s.policy.speaking import ANSWERS_AT_ONCE, batches_by_length
from paras2s.policy.weights import check_state, shapes_of
from paras2s.utils.io import read_json, read_yaml, reading

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


class MelStreams:
    """The mel of N utterances, chunk by chunk. A chunk's last frames are only a preview, made again with the next.

    All utterances are at the same chunk, so that positions and prefixes are equally long; a final chunk ends its utterance.
    """

    def __init__(self, flow: FlowModel, streaming: Streaming, seeds: Sequence[int]) -> None:
        self._flow = flow
        self._streaming = streaming
        # Drawn on the CPU, so that a seed means the same noise on every device and in every batch.
        self._noise = [torch.Generator().manual_seed(seed) for seed in seeds]
        self._position = 0
        self._prefix: list[KeysValues] = []
        self._previewed = torch.zeros(len(seeds), 0, dtype=torch.long, device=flow.device)

    def push(self, codes: Sequence[Tensor], final: Sequence[bool]) -> list[Tensor]:
        """Turn codes [S] of a chunk into mels [T, M]; the last frames are held back unless it is `final`."""
        config, flow = self._flow.config, self._flow
        frame_codes = [
            torch.cat([before, frames.repeat_interleave(self._streaming.frames_per_code)])
            for before, frames in zip(self._previewed, codes, strict=True)
        ]
        noise = [
            torch.randn(len(frames), config.input_size, generator=generator).to(flow.device, flow.dtype)
            for frames, generator in zip(frame_codes, self._noise, strict=True)
        ]
        padded, mask = pad_sequence(frame_codes, batch_first=True), self._mask([len(frames) for frames in frame_codes])

        def velocity(x: Tensor, time: int) -> Tensor:
            return flow(x, padded, time, self._position, self._prefix, mask)[0]

        mels = euler(velocity, pad_sequence(noise, batch_first=True), self._streaming.ode_points)
        lasting = [row for row, is_final in enumerate(final) if not is_final]
        done = padded.shape[1] - self._streaming.look_ahead_codes * self._streaming.frames_per_code
        ends = [len(frames) if is_final else done for frames, is_final in zip(frame_codes, final, strict=True)]
        if lasting:
            self._previewed = padded[lasting, done:]
            self._noise = [self._noise[row] for row in lasting]
            self._prefix = [(keys[lasting], values[lasting]) for keys, values in self._prefix]
            self._remember(mels[lasting, :done], padded[lasting, :done])
        mels = mels.to(torch.promote_types(mels.dtype, torch.float32)) * config.mel_std + config.mel_mean
        return [mel[:end] for mel, end in zip(mels, ends, strict=True)]

    def _mask(self, frames: Sequence[int]) -> Tensor | None:
        """Return a mask [N, 1, 1, prefix + T], False where nothing is to be seen; None if nothing is padded."""
        longest = max(frames)
        if min(frames) == longest:
            return None
        past = self._prefix[0][0].shape[1] if self._prefix else 0
        seen = (
            torch.arange(past + longest, device=self._flow.device)
            < past + torch.tensor(frames, device=self._flow.device)[:, None]
        )
        return seen[:, None, None]

    def _remember(self, mel: Tensor, frame_codes: Tensor) -> None:
        """Add normalised mel [N, T, M] to the prefix, with the keys and values it has now that it is no longer noise."""
        _, owns = self._flow(mel, frame_codes, REFRESH_TIME, self._position, self._prefix)
        if self._prefix:
            owns = [
                (torch.cat([k, own_k], 1), torch.cat([v, own_v], 1))
                for (k, v), (own_k, own_v) in zip(self._prefix, owns, strict=True)
            ]
        limit, frames = self._streaming.prefix_frames, mel.shape[1]
        self._prefix = [(keys[:, -limit:], values[:, -limit:]) for keys, values in owns]
        self._position += frames
        # The network starts again, without prefix, where two more chunks might not fit; the previewed codes stay.
        if self._position + 2 * frames > self._streaming.positions:
            self._position, self._prefix = 0, []


class WaveStreams:
    """The waveforms of N utterances, mel chunk by mel chunk. The next chunk settles what a chunk's end sounds like."""

    def __init__(self, vocoder: nn.Module, hop: int) -> None:
        self._vocoder = vocoder
        self._hop = hop
        self._held_mel: Tensor | None = None
        self._held_wave: Tensor | None = None

    def push(self, mels: Sequence[Tensor], final: Sequence[bool]) -> list[Tensor]:
        """Mel [T, M] of each utterance's next chunk to samples [N]; what is held back comes with the next chunk.

        Those that go on have equally many frames. A convolution reads padding, so that only equal lengths go through together.
        """
        waves: dict[int, Tensor] = {}
        kinds = sorted({(len(mel), is_final) for mel, is_final in zip(mels, final, strict=True)}, key=lambda kind: not kind[1])
        # Those that go on come last: what they hold takes the place of what all held.
        for kind in kinds:
            rows = [row for row, kind_of_row in enumerate(zip(map(len, mels), final, strict=True)) if kind_of_row == kind]
            for row, wave in zip(rows, self._push(torch.stack([mels[row] for row in rows]), rows, kind[1]), strict=True):
                waves[row] = wave
        return [waves[row] for row in range(len(mels))]

    def _push(self, mel: Tensor, rows: list[int], final: bool) -> Tensor:
        wave = self._vocoder(mel if self._held_mel is None else torch.cat([self._held_mel[rows], mel], 1))
        if final:
            # The release does not fade into the last chunk: what was held is dropped for its new rendering.
            return wave
        if self._held_wave is None:
            hold = mel.shape[1] // 2
        else:
            held = self._held_wave.shape[1]
            # Twice what was held goes out, the first half of it faded. The two halves of a Hamming window add up to 1.08, so
            # a fade is 0.7 dB loud (and may pass 1): so it is in the release.
            window = torch.hamming_window(2 * held, dtype=wave.dtype, device=wave.device)
            fade = self._held_wave[rows] * window[held:] + wave[:, :held] * window[:held]
            wave = torch.cat([fade, wave[:, held:]], 1)
            hold = mel.shape[1] - held // self._hop
        self._held_mel, self._held_wave = mel[:, -hold:], wave[:, -hold * self._hop :]
        return wave[:, : -hold * self._hop]


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
        """Read the networks from `folder`, which holds `audio_detokenizer/` and `vocoder/` as released.

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

    def decode(self, codes: np.ndarray, seed: int) -> Clip:
        """Decode codes [T] to a waveform, the same for the same seed. Raises PolicyError: unknown codes, or NaN."""
        return self.decode_all([codes], [seed])[0]

    def speak(self, codes: Sequence[np.ndarray], seeds: Sequence[int]) -> list[Clip]:
        """Make waveforms of codes [T, 1] as `decode_all` does."""
        return self.decode_all([rows[:, 0] for rows in codes], seeds)

    @torch.inference_mode()
    def decode_all(self, codes: Sequence[np.ndarray], seeds: Sequence[int]) -> list[Clip]:
        """Decode rows of codes, `ANSWERS_AT_ONCE` together, as by themselves. Raises PolicyError: unknown codes, or NaN."""
        rows = [self._checked(row) for row in codes]
        clips = {n: Clip(np.zeros(0, dtype=np.float32), self.sample_rate_hz) for n, row in enumerate(rows) if not len(row)}
        # Those of like length end together, so that no batch runs on for a few.
        for batch in batches_by_length([len(row) for row in rows], ANSWERS_AT_ONCE):
            waves = self._decode_batch([rows[n] for n in batch], [seeds[n] for n in batch])
            for n, wave in zip(batch, waves, strict=True):
                samples = wave.float().cpu().numpy()
                if not np.isfinite(samples).all():
                    raise PolicyError(
                        f"the detokenizer made NaN of {len(rows[n])} codes, seed {seeds[n]}; check its weights and dtype"
                    )
                clips[n] = Clip(samples, self.sample_rate_hz)
        return [clips[n] for n in range(len(rows))]

    def _decode_batch(self, rows: Sequence[Tensor], seeds: Sequence[int]) -> list[Tensor]:
        """Decode rows of codes [T], T above 0, to samples, all together chunk by chunk."""
        mels = MelStreams(self.flow, self.streaming, seeds)
        waves = WaveStreams(self.vocoder, self.vocoder.config.hop_size)
        parts: list[list[Tensor]] = [[] for _ in rows]
        active, start, size = list(range(len(rows))), 0, self.streaming.chunk_codes
        while active:
            final = [start + size >= len(rows[n]) for n in active]
            chunks = mels.push([rows[n][start : start + size] for n in active], final)
            for n, wave in zip(active, waves.push(chunks, final), strict=True):
                parts[n].append(wave)
            active = [n for n, is_final in zip(active, final, strict=True) if not is_final]
            start += size
        return [torch.cat(chunks) for chunks in parts]

    def _checked(self, codes: np.ndarray) -> Tensor:
        """Return a row of codes on the flow model's device."""
        codes, known = np.asarray(codes), self.flow.config.semantic_vocab_size
        if codes.size and (codes.ndim != 1 or codes.dtype.kind not in "iu" or codes.min() < 0 or codes.max() >= known):
            raise PolicyError(
                f"expected codes [T] in 0..{known - 1}, got {codes.dtype} {codes.shape} in {codes.min()}..{codes.max()}"
            )
        return torch.from_numpy(codes.astype(np.int64).reshape(-1)).to(self.flow.device)


def _read_config(path: Path) -> Mapping[str, Any]:
    with reading(path, "cannot be read", "; give the folder of the released model", kind=PolicyError):
        config = read_json(path) if path.suffix == ".json" else read_yaml(path, kind=PolicyError)
    if not isinstance(config, dict):
        raise PolicyError(f"{path}: holds no mapping; give the released file")
    return config


def _read_tensors(path: Path, entry: str) -> dict[str, Tensor]:
    """Read tensors under `entry` of a torch file, on the CPU. Only tensors are unpickled: the file may come from anyone."""
    with reading(path, "cannot be read", "; give the folder of the released model", kind=PolicyError):
        stored = torch.load(path, map_location="cpu", weights_only=True)
    tensors = stored.get(entry) if isinstance(stored, dict) else None
    if not isinstance(tensors, dict) or not all(isinstance(tensor, Tensor) for tensor in tensors.values()):
        raise PolicyError(f"{path}: no tensors under {entry!r}; give the released file")
    return tensors


def _fill(model: nn.Module, state: Mapping[str, Tensor], path: Path) -> None:
    """Give a model made on the meta device its tensors, for inference only."""
    check_state(shapes_of(model.state_dict()), shapes_of(state), str(path))
    model.load_state_dict(state, assign=True)
    model.requires_grad_(False).eval()
