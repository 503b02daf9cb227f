"""Sizes and special ids of the dual-stream decoder."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, model_validator

from paras2s.errors import PolicyError, checking

# Special ids, in their order behind the word pieces of the embedded policy. text_eos comes first and msg_end last: each
# borders what it is sampled with.
SPECIAL_IDS = (
    "text_eos_id", "blank_id", "pad_id", "user_id", "assistant_id", "media_begin_id", "media_end_id",
    "audio_and_text_id", "msg_end_id",
)  # fmt: skip


class DualStreamConfig(BaseModel):
    """Sizes and ids. Text and special ids are below `text_vocab`; codebook k starts at `codebook_offsets[k]`."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    hidden_size: int
    intermediate_size: int
    num_layers: int
    tap_layer: int
    num_heads: int
    num_kv_heads: int
    rms_norm_eps: float = 1e-6
    rope_theta: float = 1e6
    rotary_share: float = 1.0  # of each head, from its front
    rotary_in_pairs: bool = False  # neighbours turn together (GLM), or the head's halves (Qwen2)
    text_vocab: int
    codebook_sizes: tuple[int, ...]
    audio_delay_steps: int
    continuous_dim: int = 0
    # "adapted": features go through the adaptor and are added (Kimi-Audio); "ready": they replace the embedding.
    continuous: Literal["adapted", "ready"] = "adapted"
    blank_id: int
    text_eos_id: int
    msg_end_id: int
    media_begin_id: int
    media_end_id: int
    user_id: int
    assistant_id: int
    audio_and_text_id: int
    pad_id: int
    # True: only ids that mean something in a slot can be sampled or scored there. False: all V, as in Kimi-Audio.
    mask_invalid_ids: bool
    # Of a plain decoder: what else ends an answer, and from which id on a token is audio; None: none is.
    more_end_ids: tuple[int, ...] = ()
    audio_from_id: int | None = None

    @model_validator(mode="after")
    def _check(self) -> DualStreamConfig:
        if self.hidden_size % self.num_heads or self.num_heads % self.num_kv_heads:
            raise ValueError("num_heads must divide hidden_size, and num_kv_heads must divide num_heads")
        if not 0 <= self.tap_layer < self.num_layers:
            raise ValueError(f"tap_layer {self.tap_layer} is outside the {self.num_layers} layers")
        if self.mask_invalid_ids and self.codebook_sizes and self.msg_end_id != self.text_vocab - 1:
            raise ValueError("with mask_invalid_ids, msg_end_id must be the last id below the codes")
        if self.continuous == "ready" and self.continuous_dim not in (0, self.hidden_size):
            raise ValueError(f"features that stand for embeddings must have their size, {self.hidden_size}")
        if len(self.codebook_sizes) > 1 and not self.mask_invalid_ids:
            raise ValueError("several codebooks need mask_invalid_ids, so that each slot stays in its own codebook")
        return self

    @classmethod
    def read(cls, values: Any, where: str) -> DualStreamConfig:
        """Read the config from a checkpoint's values. Raises PolicyError: they are missing or contradict each other."""
        with checking(where, "config", error=PolicyError):
            return cls.model_validate(values)

    @property
    def num_codebooks(self) -> int:
        """K; 0 makes a plain text decoder without an audio branch."""
        return len(self.codebook_sizes)

    @property
    def branch_layers(self) -> int:
        """Depth of each branch after the tap."""
        return self.num_layers - self.tap_layer - 1

    @property
    def vocab_size(self) -> int:
        """V: text, special ids, and all codebooks."""
        return self.text_vocab + sum(self.codebook_sizes)

    @property
    def codebook_offsets(self) -> tuple[int, ...]:
        """First id of each codebook."""
        return tuple(self.text_vocab + sum(self.codebook_sizes[:k]) for k in range(self.num_codebooks))

    @property
    def text_range(self) -> tuple[int, int]:
        """Ids [start, stop) that the text slot can take."""
        return (0, self.text_eos_id + 1) if self.mask_invalid_ids else (0, self.vocab_size)

    @property
    def audio_ranges(self) -> tuple[tuple[int, int], ...]:
        """Ids [start, stop) of each audio slot; the first one also holds `msg_end_id`, which ends the answer."""
        if not self.mask_invalid_ids:
            return ((0, self.vocab_size),) * self.num_codebooks
        starts = self.codebook_offsets
        ranges = [(start, start + size) for start, size in zip(starts, self.codebook_sizes, strict=True)]
        return ((self.msg_end_id, ranges[0][1]), *ranges[1:]) if ranges else ()

    @property
    def text_end_ids(self) -> tuple[int, ...]:
        """Either of them in the text slot ends the answer of a decoder without an audio branch."""
        return (self.text_eos_id, *self.more_end_ids)

    @property
    def audio_end_ids(self) -> tuple[int, int]:
        """Either of them in the first audio slot ends the answer."""
        return self.msg_end_id, self.media_end_id
