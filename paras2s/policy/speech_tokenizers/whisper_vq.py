"""`WhisperVQEncoder` and `GlmTokenizer`: speech to the 12.5 Hz codes that Kimi-Audio and GLM-4-Voice read and speak.

The lower half of a Whisper encoder with causal convolutions and block-causal attention: a 50 Hz frame sees all earlier ones
and its own block of 200 (4 s). Four frames are averaged, and the nearest entry of a codebook is their code. Parameter names
are those of the released checkpoint.

Left out: training of the codebook, whatever the checkpoint holds above it, and every variant of the config that was not
released (frame-causal attention, symmetric convolutions, max pooling), which is refused.
Alphabet: B chunks, M mel frames (100 Hz), F encoder frames (50 Hz before pooling), T codes (12.5 Hz), D width.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import numpy as np
import torch
from pydantic import BaseModel, ConfigDict, PositiveInt, ValidationError, model_validator
from torch import Tensor, nn
from torch.nn import functional as fn
from torch.nn.utils.rnn import pad_sequence

from paras2s.audio.clip import Clip
from paras2s.errors import PolicyError, one_line
from paras2s.policy.speech_tokenizers.whisper_features import CONV_STRIDE, read_extractor, split_clip
from paras2s.policy.weights import check_state, load_tensors, read_config, shapes_of, shard_files, stored_shapes

if TYPE_CHECKING:
    from transformers import WhisperFeatureExtractor

# The released folder, and the name of its codes in `PolicySpec.code_format`.
TOKENIZER_FOLDER, CODE_FORMAT = "glm-4-voice-tokenizer", "glm-4-voice-16384@12.5"
# Distances to a codebook of 16384 are T x 16384 numbers a chunk: 400 MB in all at 30 s.
BATCH_CHUNKS = 16
_UNUSED = ("embed_positions2.", "layer_norm.", "model.decoder.", "proj_out.")


class WhisperVQConfig(BaseModel):
    """Sizes, under the names of the released `config.json`, whose other keys do not reach the codes.

    `pooling_position` and `quantize_position` count layers; `quantize_causal_block_size` counts frames before pooling.
    `encoder_layers` is Whisper's own depth, 32: only `quantize_position` of them were kept.
    """

    model_config = ConfigDict(extra="ignore", frozen=True)

    num_mel_bins: PositiveInt
    d_model: PositiveInt
    encoder_attention_heads: PositiveInt
    encoder_ffn_dim: PositiveInt
    max_source_positions: PositiveInt
    pooling_kernel_size: PositiveInt
    pooling_type: Literal["avg"]
    pooling_position: PositiveInt
    quantize_position: PositiveInt
    quantize_vocab_size: PositiveInt
    quantize_causal_block_size: PositiveInt
    quantize_causal_encoder: Literal[False]
    encoder_causal_attention: Literal[False]
    encoder_causal_convolution: Literal[True]
    activation_function: Literal["gelu"]

    @model_validator(mode="after")
    def _check(self) -> WhisperVQConfig:
        if self.d_model % self.encoder_attention_heads:
            raise ValueError("encoder_attention_heads must divide d_model")
        if self.pooling_position > self.quantize_position:
            raise ValueError("pooling_position must not come after quantize_position")
        if self.quantize_causal_block_size % self.pooling_kernel_size:
            raise ValueError("pooling_kernel_size must divide quantize_causal_block_size, or a code would see two blocks")
        return self

    @classmethod
    def load(cls, path: Path) -> WhisperVQConfig:
        """Read a released `config.json`. Raises PolicyError: a key is missing, or has a value that is not implemented."""
        config = read_config(path, cls.model_fields)
        try:
            return cls.model_validate(config)
        except ValidationError as error:
            raise PolicyError(f"{path}: not a tokenizer this code knows ({one_line(error)})") from error


class WhisperVQEncoder(nn.Module):
    """Log-mel to codes."""

    def __init__(self, config: WhisperVQConfig) -> None:
        super().__init__()
        self.config = config
        self.conv1 = nn.Conv1d(config.num_mel_bins, config.d_model, kernel_size=3)
        self.conv2 = nn.Conv1d(config.d_model, config.d_model, kernel_size=3, stride=CONV_STRIDE)
        self.embed_positions = nn.Embedding(config.max_source_positions, config.d_model)
        self.layers = nn.ModuleList(_Layer(config) for _ in range(config.quantize_position))
        self.codebook = nn.Embedding(config.quantize_vocab_size, config.d_model)

    def forward(self, mel: Tensor, valid: Tensor) -> Tensor:
        """Return codes [B, T], int64, of mel [B, bins, M]; those where a code's first mel frame is not `valid` mean nothing."""
        return nearest(self.hidden(mel, valid), self.codebook.weight)

    def hidden(self, mel: Tensor, valid: Tensor) -> Tensor:
        """Return unquantised states [B, T, D]. `valid` [B, M] is False at padding; `2 * pooling_kernel_size` divides M."""
        config, block = self.config, self.config.quantize_causal_block_size
        state = fn.gelu(_causal(self.conv1, mel))
        state = fn.gelu(_causal(self.conv2, state)).transpose(1, 2)
        state = state + self.embed_positions.weight[: state.shape[1]]
        valid = valid.bool()[:, ::CONV_STRIDE]
        visible = block_causal(valid, block)
        for number, layer in enumerate(self.layers, 1):
            state = layer(state, visible)
            if number == config.pooling_position:
                kernel = config.pooling_kernel_size
                state = state.unflatten(1, (-1, kernel)).mean(dim=2)
                valid = valid[:, ::kernel]
                visible = block_causal(valid, block // kernel)
        return state


class _Layer(nn.Module):
    """A pre-norm Whisper layer, [B, F, D] to the same."""

    def __init__(self, config: WhisperVQConfig) -> None:
        super().__init__()
        self.self_attn_layer_norm = nn.LayerNorm(config.d_model)
        self.self_attn = _Attention(config)
        self.final_layer_norm = nn.LayerNorm(config.d_model)
        self.fc1 = nn.Linear(config.d_model, config.encoder_ffn_dim)
        self.fc2 = nn.Linear(config.encoder_ffn_dim, config.d_model)

    def forward(self, state: Tensor, visible: Tensor) -> Tensor:
        state = state + self.self_attn(self.self_attn_layer_norm(state), visible)
        return state + self.fc2(fn.gelu(self.fc1(self.final_layer_norm(state))))


class _Attention(nn.Module):
    """Heads over [B, F, D]; `visible` [B, F, F] is True where a row (query) may look."""

    def __init__(self, config: WhisperVQConfig) -> None:
        super().__init__()
        width = config.d_model
        self.heads = config.encoder_attention_heads
        self.q_proj = nn.Linear(width, width)
        self.k_proj = nn.Linear(width, width, bias=False)
        self.v_proj = nn.Linear(width, width)
        self.out_proj = nn.Linear(width, width)

    def forward(self, state: Tensor, visible: Tensor) -> Tensor:
        query, key, value = (
            projection(state).unflatten(2, (self.heads, -1)).transpose(1, 2)
            for projection in (self.q_proj, self.k_proj, self.v_proj)
        )
        mixed = fn.scaled_dot_product_attention(query, key, value, attn_mask=visible[:, None])
        return self.out_proj(mixed.transpose(1, 2).flatten(2))


def block_causal(valid: Tensor, block: int) -> Tensor:
    """Attention mask, bool [B, F, F]: at valid frames up to the end of one's own block of `block` frames."""
    position = torch.arange(valid.shape[1], device=valid.device)
    # Blocks start at frame 0, so "earlier, or in my block" is "in a block not after mine".
    return (position[:, None] // block >= position // block) & valid[:, None, :]


def nearest(vectors: Tensor, codebook: Tensor) -> Tensor:
    """Index [...] of the entry of `codebook` [V, D] at the smallest Euclidean distance from each vector [..., D]."""
    # |x|^2 is the same for every entry; leaving it out keeps digits that decide between close ones.
    return (codebook.square().sum(dim=1) - 2 * vectors @ codebook.T).argmin(dim=-1)


def _causal(convolution: nn.Conv1d, signal: Tensor) -> Tensor:
    """Convolve with the whole kernel at and before each position."""
    return convolution(fn.pad(signal, (convolution.kernel_size[0] - 1, 0)))


class GlmTokenizer:
    """Speech to codes. One code lasts 1 / `frame_rate_hz` (80 ms) and is below `vocab_size`."""

    def __init__(
        self, encoder: WhisperVQEncoder, extractor: WhisperFeatureExtractor, device: str | torch.device = "cpu"
    ) -> None:
        config = encoder.config
        self._mels_per_code = CONV_STRIDE * config.pooling_kernel_size
        self.samples_per_code = int(extractor.hop_length) * self._mels_per_code
        longest = -(-int(extractor.n_samples) // self.samples_per_code) * config.pooling_kernel_size
        if extractor.feature_size != config.num_mel_bins or longest > config.max_source_positions:
            raise PolicyError(
                f"chunks of {extractor.feature_size} bins x {longest} frames do not fit an encoder of {config.num_mel_bins} x "
                f"{config.max_source_positions}; config.json and preprocessor_config.json are of different models"
            )
        self.encoder = encoder.to(device).eval().requires_grad_(False)
        self.extractor = extractor
        self.sample_rate_hz = int(extractor.sampling_rate)
        self.frame_rate_hz = self.sample_rate_hz / self.samples_per_code
        self.vocab_size = config.quantize_vocab_size

    @classmethod
    def load(cls, folder: Path, device: str | torch.device = "cpu") -> GlmTokenizer:
        """Read a folder in the layout of `THUDM/glm-4-voice-tokenizer`; the weights become float32.

        Raises:
            PolicyError: a file is missing, or the tensors are not those of the config.
            DataError: there is no config.json.
        """
        config = WhisperVQConfig.load(folder / "config.json")
        extractor = read_extractor(folder)
        # Nothing is initialised that the checkpoint fills anyway.
        with torch.device("meta"):
            encoder = WhisperVQEncoder(config)
        encoder.to_empty(device="cpu")
        load_tensors(encoder, shard_files(folder), str(folder), lambda stored: _own_name(stored, config.quantize_position))
        return cls(encoder, extractor, device)

    def encode(self, clip: Clip) -> np.ndarray:
        """Return codes [T], int64; T = ceil(samples / 1280) of each 30 s chunk. Raises AudioError: the clip is empty."""
        return self.encode_batch([clip])[0]

    def encode_batch(self, clips: Sequence[Clip]) -> list[np.ndarray]:
        """Return codes of each clip; the others in the batch do not matter to it. Raises AudioError: a clip is empty."""
        chunks = [(number, *chunk) for number, clip in enumerate(clips) for chunk in self._mels(clip)]
        weight = self.encoder.conv1.weight
        codes: list[list[np.ndarray]] = [[] for _ in clips]
        with torch.inference_mode():
            for start in range(0, len(chunks), BATCH_CHUNKS):
                owners, mels, masks = zip(*chunks[start : start + BATCH_CHUNKS], strict=True)
                # Padding is at the end, where neither causal convolutions nor masked attention can look.
                mel = pad_sequence(list(mels), batch_first=True).transpose(1, 2)
                valid = pad_sequence(list(masks), batch_first=True)
                encoded = self.encoder(mel.to(weight), valid.to(weight.device)).cpu().numpy()
                for owner, row, own in zip(owners, encoded, mels, strict=True):
                    codes[owner].append(row[: len(own) // self._mels_per_code])
        return [np.concatenate(parts) for parts in codes]

    def _mels(self, clip: Clip) -> Iterator[tuple[Tensor, Tensor]]:
        """Log-mel [M, bins] and `valid` [M] of each chunk, M up to the end of its last code."""
        parts = split_clip(clip, self.extractor)
        # A clip's chunks are padded together, as the released code does, but never those of two clips: its last mel frames
        # reflect the end of the padded signal, so they would depend on the longest clip of the batch.
        features = self.extractor(
            parts,
            sampling_rate=self.sample_rate_hz,
            padding="longest",
            pad_to_multiple_of=self.samples_per_code,
            return_attention_mask=True,
            return_tensors="pt",
        )
        for part, mel, valid in zip(parts, features.input_features, features.attention_mask, strict=True):
            length = -(-len(part) // self.samples_per_code) * self._mels_per_code
            yield mel.T[:length], valid[:length].bool()


def check_tokenizer(folder: Path, codes: int) -> None:
    """Compare a folder's config with its weights' headers and a model's number of codes. Raises PolicyError: they differ."""
    config = WhisperVQConfig.load(folder / "config.json")
    with torch.device("meta"):
        encoder = WhisperVQEncoder(config)
    stored = stored_shapes(shard_files(folder), lambda name: _own_name(name, config.quantize_position))
    check_state(shapes_of(encoder.state_dict()), stored, str(folder))
    if config.quantize_vocab_size != codes:
        raise PolicyError(
            f"{folder}: has {config.quantize_vocab_size} codes, and the model reads {codes}; copy the tokenizer of its release"
        )


def _own_name(stored: str, layers: int) -> str | None:
    """Return our name of a stored tensor, None for what cannot reach the codes; a checkpoint in training has all of Whisper."""
    name = stored.removeprefix("model.encoder.")
    if name in ("ema_count", "ema_weight") or name.startswith(_UNUSED):
        return None
    parts = name.split(".")
    above = parts[0] == "layers" and parts[1].isdigit() and int(parts[1]) >= layers
    return None if above else name
