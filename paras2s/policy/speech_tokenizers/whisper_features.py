"""`WhisperFeatures`: continuous features of the user's speech, from a Whisper encoder.

Kimi-Audio's order: chunks of 30 s, each zero-padded to 30 s and encoded whole (silence included), the first 4 T of its 50 Hz
states kept, 4 of them side by side: one vector of 4 * d_model each 80 ms.

Left out: bfloat16, in which the official code runs its encoder (here float32), and its option to encode without the silence.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import nn

from paras2s.audio.clip import Clip
from paras2s.errors import AudioError, PolicyError
from paras2s.policy.weights import load_tensors, read_config, shard_files
from paras2s.utils.io import reading

if TYPE_CHECKING:
    from transformers import WhisperFeatureExtractor

# Mel frames to one encoder state: the stride of Whisper's second convolution.
CONV_STRIDE = 2
FRAMES_PER_STEP = 4
# Chunks in one pass: their number is the clips' length, and memory should not depend on it.
BATCH_CHUNKS = 8
_CONFIG_KEYS = (
    "d_model",
    "encoder_layers",
    "encoder_attention_heads",
    "encoder_ffn_dim",
    "num_mel_bins",
    "max_source_positions",
)


class WhisperFeatures:
    """A Whisper encoder and its log-mel recipe; `extractor` must fill its positions exactly (30 s in the release)."""

    def __init__(self, encoder: nn.Module, extractor: WhisperFeatureExtractor, device: str | torch.device = "cpu") -> None:
        config: Any = encoder.config
        made = (extractor.feature_size, extractor.nb_max_frames)
        expected = (config.num_mel_bins, CONV_STRIDE * config.max_source_positions)
        if made != expected:
            raise PolicyError(f"features of {made} mel bins x frames do not fit a Whisper encoder of {expected}")
        self.encoder = encoder.to(device).eval().requires_grad_(False)
        self.extractor = extractor
        self.sample_rate_hz = int(extractor.sampling_rate)
        self.samples_per_step = int(extractor.hop_length) * CONV_STRIDE * FRAMES_PER_STEP
        self.frame_rate_hz = self.sample_rate_hz / self.samples_per_step
        self.feature_dim = FRAMES_PER_STEP * int(config.d_model)

    @classmethod
    def load(cls, folder: Path, device: str | torch.device = "cpu") -> WhisperFeatures:
        """Read a Whisper checkpoint (Kimi-Audio: its folder `whisper-large-v3`); the text decoder in it is passed over.

        Raises:
            PolicyError: a file is missing, or the tensors are not those of its config.
            DataError: there is no config.json.
        """
        from transformers import WhisperConfig
        from transformers.models.whisper.modeling_whisper import WhisperEncoder

        config = WhisperConfig.from_dict(read_config(folder / "config.json", _CONFIG_KEYS))
        extractor = read_extractor(folder)
        # Nothing is initialised that the checkpoint fills anyway.
        with torch.device("meta"):
            encoder = WhisperEncoder(config)
        encoder.to_empty(device="cpu")
        load_tensors(encoder, shard_files(folder), str(folder), _encoder_name)
        return cls(encoder, extractor, device)

    def features(self, clip: Clip) -> np.ndarray:
        """Return features [T, 4 * d_model], float32; T = ceil(samples / 1280) a 30 s chunk. Raises AudioError: no samples."""
        return self.features_batch([clip])[0]

    def features_batch(self, clips: Sequence[Clip]) -> list[np.ndarray]:
        """Return features of each clip as by itself, `BATCH_CHUNKS` chunks at once. Raises AudioError: a clip is empty."""
        chunks = [(number, part) for number, clip in enumerate(clips) for part in split_clip(clip, self.extractor)]
        weight = next(self.encoder.parameters())
        features: list[list[torch.Tensor]] = [[] for _ in clips]
        with torch.inference_mode():
            for start in range(0, len(chunks), BATCH_CHUNKS):
                owners, parts = zip(*chunks[start : start + BATCH_CHUNKS], strict=True)
                made = self.extractor(list(parts), sampling_rate=self.sample_rate_hz, padding="max_length", return_tensors="pt")
                states = self.encoder(made.input_features.to(weight)).last_hidden_state
                for owner, part, rows in zip(owners, parts, states, strict=True):
                    steps = -(-len(part) // self.samples_per_step)
                    features[owner].append(rows[: FRAMES_PER_STEP * steps].reshape(steps, self.feature_dim).float().cpu())
        return [torch.cat(rows).numpy() for rows in features]


def split_clip(clip: Clip, extractor: WhisperFeatureExtractor) -> list[np.ndarray]:
    """Return samples at the extractor's rate in chunks of 30 s; the last may be shorter. Raises AudioError: an empty clip."""
    samples = clip.at(int(extractor.sampling_rate)).samples
    if not len(samples):
        raise AudioError(f"the clip holds no samples at {extractor.sampling_rate} Hz; there is nothing to encode")
    step = int(extractor.n_samples)
    return [np.asarray(samples[start : start + step], dtype=np.float32) for start in range(0, len(samples), step)]


def read_extractor(folder: Path) -> WhisperFeatureExtractor:
    """Read the log-mel recipe of a checkpoint. Raises PolicyError: missing, or not a recipe."""
    from transformers import WhisperFeatureExtractor

    path = folder / "preprocessor_config.json"
    # Without this, transformers would take the folder for a name on the hub and go online.
    if not path.is_file():
        raise PolicyError(f"{path}: no such file; copy it from the released checkpoint")
    with reading(path, "not a Whisper feature recipe", kind=PolicyError):
        return WhisperFeatureExtractor.from_pretrained(str(folder), local_files_only=True)


def _encoder_name(stored: str) -> str | None:
    """Return the encoder's own name of a stored tensor; a bare `WhisperModel` is saved without the `model.` in front."""
    name = stored.removeprefix("model.")
    if name.startswith("decoder.") or name == "proj_out.weight":
        return None
    return name.removeprefix("encoder.")
