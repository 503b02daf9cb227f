"""CosyVoice's two ends, as GLM-4-Voice and Step-Audio 2 borrow them: a decoder of codes, and the S3 tokenizer.

The decoder (flow matching, then a HiFT vocoder) is on no package index: it is a folder of the makers' repositories. So it is
a protocol here, and whoever has one hands it to `load`. The S3 tokenizer was released as an ONNX file; the package
`s3tokenizer` (0.3, Apache-2.0) runs it in torch, and wants torchaudio.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

import numpy as np
import torch

from paras2s.audio.clip import Clip
from paras2s.errors import AudioError, PolicyError
from paras2s.policy.speaking import ANSWERS_AT_ONCE, batches_by_length

S3_RATE_HZ = 16_000
# The package reads from the name which of its three networks the file holds.
S3_NAME = "speech_tokenizer_v2_25hz"


class SpeechDecoder(Protocol):
    """Codes to a waveform; what it draws, it draws from the seed."""

    def decode(self, codes: np.ndarray, seed: int) -> Clip:
        """Decode codes [T], T > 0, to sound."""


@runtime_checkable
class BatchSpeechDecoder(Protocol):
    """A decoder that makes the sound of several answers at once, each as by itself but for rounding."""

    def decode_all(self, codes: Sequence[np.ndarray], seeds: Sequence[int]) -> list[Clip]:
        """Decode each row of codes [T], T > 0, to sound."""


class DecoderSpeaker:
    """Makes the sound of answers with a decoder, at `rate_hz`; many at once where the decoder can."""

    def __init__(self, decoder: SpeechDecoder, rate_hz: int) -> None:
        self._decoder, self._rate_hz = decoder, rate_hz

    def speak(self, codes: Sequence[np.ndarray], seeds: Sequence[int]) -> list[Clip]:
        """Decode codes [T, 1] to waveforms, in order."""
        clips = [Clip(np.zeros(0, dtype=np.float32), self._rate_hz)] * len(codes)
        at_once = ANSWERS_AT_ONCE if isinstance(self._decoder, BatchSpeechDecoder) else 1
        for batch in batches_by_length([len(row) for row in codes], at_once):
            for n, clip in zip(batch, self._batch([codes[n][:, 0] for n in batch], [seeds[n] for n in batch]), strict=True):
                clips[n] = clip.at(self._rate_hz)
        return clips

    def _batch(self, codes: Sequence[np.ndarray], seeds: Sequence[int]) -> list[Clip]:
        if isinstance(self._decoder, BatchSpeechDecoder):
            return self._decoder.decode_all(codes, seeds)
        return [self._decoder.decode(row, seed) for row, seed in zip(codes, seeds, strict=True)]


class SpeechEncoder(Protocol):
    """A waveform to codes."""

    def encode(self, clip: Clip) -> np.ndarray:
        """Return codes [T] from 0, int64."""


class S3Tokenizer:
    """Speech to the 6561 codes of CosyVoice 2, 25 a second."""

    def __init__(self, network: Any, mel: Any, pad: Any, device: str | torch.device = "cpu") -> None:
        self.network, self.mel, self.pad = network.to(device).eval(), mel, pad

    @classmethod
    def load(cls, path: Path, device: str | torch.device = "cpu") -> S3Tokenizer:
        """Read `speech_tokenizer_v2_25hz.onnx`. Raises PolicyError: no such file, or the package is missing."""
        log_mel_spectrogram, padding, network_type = cls.needs(path)
        network = network_type(S3_NAME)
        network.init_from_onnx(str(path))
        return cls(network, log_mel_spectrogram, padding, device)

    @staticmethod
    def needs(path: Path) -> tuple[Any, Any, Any]:
        """Find the file and the package; return log-mel, padding and network. Raises PolicyError: one is missing."""
        if not path.is_file():
            raise PolicyError(f"{path}: no such file; it is in the folder token2wav of the released checkpoint")
        try:
            from s3tokenizer import log_mel_spectrogram, padding
            from s3tokenizer.model_v2 import S3TokenizerV2
        except (ImportError, OSError) as error:
            # A torchaudio of another build than torch fails as a library that cannot be opened.
            raise PolicyError(
                f"the codes of Step-Audio 2 need the package s3tokenizer and your torch's torchaudio ({error}): "
                "pip install torchaudio 's3tokenizer>=0.3'"
            ) from error
        return log_mel_spectrogram, padding, S3TokenizerV2

    @torch.inference_mode()
    def encode(self, clip: Clip) -> np.ndarray:
        """Return codes [T], int64; the package cuts clips of more than 30 s itself. Raises AudioError: the clip is empty."""
        samples = clip.at(S3_RATE_HZ).samples
        if not len(samples):
            raise AudioError("the clip holds no samples; there is nothing to encode")
        mel, lengths = self.pad([self.mel(torch.from_numpy(np.ascontiguousarray(samples, dtype=np.float32)))])
        device = next(self.network.parameters()).device
        codes, counts = self.network.quantize(mel.to(device), lengths.to(device))
        return np.asarray(codes[0, : int(counts[0])].cpu().numpy(), dtype=np.int64)
