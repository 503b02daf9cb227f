"""`StreamPolicy`: the base of every policy on `DualStreamLM`, whatever its tokenizer, audio encoder and codec.

The embedded policy, Kimi-Audio, and the interleaved single-stream models are subclasses.
"""

from __future__ import annotations

from collections.abc import Generator, Sequence
from functools import cached_property

import numpy as np
import torch

from paras2s.errors import PolicyError
from paras2s.policy.base import Policy
from paras2s.policy.dual_stream.alterations import alterations_of
from paras2s.policy.dual_stream.captured import CapturedDecoder, graph_recorder
from paras2s.policy.dual_stream.config import DualStreamConfig
from paras2s.policy.dual_stream.logprobs import answer_logits
from paras2s.policy.dual_stream.model import DualStreamLM
from paras2s.policy.dual_stream.sampler import sample, sample_in_parts
from paras2s.policy.types import Alteration, Generation, Prompt, SampleRequest, SamplingEvent, SlotSpec, slot_names, with_words
from paras2s.types import Block

LORA_TARGETS = r".*model\.(layers|mimo_layers)\.\d+\.(self_attn\.(q|k|v|o)_proj|mlp\.(gate|up|down)_proj)"
ADAPTOR = r"model\.vq_adaptor\..*"
SHARDED = r"model\.(layers|mimo_layers)\.\d+"


class StreamPolicy(Policy):
    """Sampling, targets and codes around one `DualStreamLM`."""

    model: DualStreamLM
    passes_in_threads = True

    @property
    def config(self) -> DualStreamConfig:
        """Sizes and ids of the network."""
        return self.model.dual_config

    def slots(self) -> tuple[SlotSpec, ...]:
        """Return the token slots, for the spec."""
        config = self.config
        text = "text" if config.audio_from_id is None else "both"
        kinds = [(text, *config.text_range), *(("audio", *r) for r in config.audio_ranges)]
        return tuple(
            SlotSpec(name, kind, start, stop)  # type: ignore[arg-type]
            for name, (kind, start, stop) in zip(slot_names(config.num_codebooks), kinds, strict=True)
        )

    @property
    def final_ids(self) -> dict[str, tuple[int, ...]]:
        """Those of the first audio slot; of the only slot where there is no audio branch."""
        config = self.config
        return {"audio0": config.audio_end_ids} if config.num_codebooks else {self.spec.slots[0].name: config.text_end_ids}

    def generate(self, request: SampleRequest) -> list[Generation]:
        """See `sampler.sample`."""
        self.model.eval()
        return sample(self.model, request, decoder=self._decoder)

    @property
    def _decoder(self) -> CapturedDecoder | None:
        """The decoder with recorded steps where it may be used, else None: the sampler takes its own."""
        captured = self._captured
        # A record knows neither another model in its place, nor adapters that are switched off and on.
        usable = captured.records and captured.model is self.model and not self.adapters
        return captured if usable else None

    @cached_property
    def _captured(self) -> CapturedDecoder:
        """The decoder with recorded steps of the model that this policy samples with; it records where there is a GPU."""
        return CapturedDecoder(self.model, graph_recorder(self.device))

    def generate_in_parts(
        self, request: SampleRequest, report_every: int | None
    ) -> Generator[SamplingEvent, None, list[Generation]]:
        """See `sampler.sample_in_parts`."""
        self.model.eval()
        return sample_in_parts(self.model, request, report_every, decoder=self._decoder)

    def answer_logits(self, prompt: Prompt, blocks: Sequence[Block]) -> list[np.ndarray]:
        """See `logprobs.answer_logits`."""
        self.model.eval()
        (block,) = blocks
        logits = answer_logits(self.model, prompt, block)
        return [slot.to(torch.promote_types(slot.dtype, torch.float32)).cpu().numpy() for slot in logits]

    def with_message(self, prompt: Prompt, words: Sequence[int]) -> Prompt:
        """Return a prompt with word ids as a message of the user before the last clip: words beside no sound."""
        config = self.config
        none = [config.blank_id, *[config.pad_id] * (config.num_codebooks - 1)]
        clips = np.flatnonzero(prompt.audio_ids[:, 0] == config.media_begin_id)
        return with_words(prompt, int(clips[-1]) if len(clips) else 1, words, none)

    def alterations(self) -> list[Alteration]:
        """See `alterations_of`."""
        return alterations_of(self.model)

    def target_block(self, codes: np.ndarray, words: Sequence[int]) -> Block:
        """Make a demonstration's block from codes [T, K] and word ids, G = 1 (docs/policies.md, "Kimi-Audio: targets").

        Forced blanks are marked as not sampled, terminators as sampled.

        Raises:
            PolicyError: the words are longer than their speech.
        """
        config = self.config
        delay, eos = config.audio_delay_steps, len(words)
        steps = max(eos + 1, delay + len(codes) + 1)
        if eos + 1 > delay + len(codes) + 1:
            raise PolicyError(f"the words ({eos} pieces) are longer than their speech ({len(codes)} steps)")
        tokens = np.full((1, steps, 1 + config.num_codebooks), config.pad_id, dtype=np.int64)
        sampled = np.zeros(tokens.shape, dtype=bool)
        tokens[0, :, 0] = config.blank_id
        tokens[0, : eos + 1, 0] = [*words, config.text_eos_id]
        sampled[0, : eos + 1, 0] = True
        tokens[0, :delay, 1] = config.blank_id
        tokens[0, delay : delay + len(codes), 1:] = codes + np.asarray(config.codebook_offsets)
        tokens[0, delay + len(codes), 1] = config.msg_end_id
        sampled[0, delay : delay + len(codes), 1:] = True
        sampled[0, delay + len(codes), 1] = True
        return Block(slot_names(config.num_codebooks), tokens, sampled, np.zeros(tokens.shape))

    def decode_codes(self, blocks: Sequence[Block], answer: int) -> np.ndarray:
        """Codec codes [T, K] of one answer: the sampled ids of the audio slots, without the end."""
        (block,) = blocks
        tokens = block.tokens[answer, :, 1:]
        low = np.asarray(self.config.codebook_offsets)
        complete = ((tokens >= low) & (tokens < low + np.asarray(self.config.codebook_sizes))).all(1)
        return tokens[complete & block.sampled[answer, :, 1:].all(1)] - low
