"""One small decoder in two implementations with the same weights: ours without an audio branch, and transformers' Qwen2.

Beside it what the benchmarks share: their work, their clock, turns, and what the machine multiplies at best.
Alphabet: B prompts, G answers a prompt, L positions, V vocabulary.
"""

from __future__ import annotations

import os
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

# Nothing here is on a hub; without this, loading a local folder would ask one.
os.environ["HF_HUB_OFFLINE"] = "1"

import numpy as np
import torch
from transformers import Qwen2Config, Qwen2ForCausalLM
from transformers.utils import logging

from paras2s.policy.dual_stream.config import DualStreamConfig
from paras2s.policy.dual_stream.model import DualStreamLM
from paras2s.policy.types import Prompt

logging.set_verbosity_error()

THREADS = 2
VOCAB, PAD_ID = 2048, 0
# An id behind the vocabulary: it is never drawn, so that every answer has all its tokens.
EOS_ID = VOCAB


@dataclass(frozen=True)
class Work:
    """B prompts of so many tokens, G answers each, of so many tokens at most."""

    prompts: int = 8
    group: int = 8
    prompt_tokens: int = 16
    new_tokens: int = 64

    @property
    def tokens(self) -> int:
        """Of all answers."""
        return self.prompts * self.group * self.new_tokens

    def __str__(self) -> str:
        return f"{self.prompts} prompts of {self.prompt_tokens} tokens x {self.group} answers of {self.new_tokens}"


# -- the model --------------------------------------------------------------------------------------------------------


def our_model(seed: int, end_ids: Sequence[int] = ()) -> DualStreamLM:
    """A Qwen2-like text decoder of 6.3 M parameters; any of `end_ids` ends an answer."""
    unused = ("blank_id", "msg_end_id", "media_begin_id", "media_end_id", "user_id", "assistant_id",
              "audio_and_text_id")  # fmt: skip
    config = DualStreamConfig(
        hidden_size=256,
        intermediate_size=640,
        num_layers=7,
        tap_layer=0,
        # Heads of 64: vLLM's attention on the CPU knows 32, 64, 80, ...
        num_heads=4,
        num_kv_heads=4,
        text_vocab=VOCAB,
        codebook_sizes=(),
        audio_delay_steps=0,
        text_eos_id=EOS_ID,
        more_end_ids=tuple(end_ids),
        pad_id=PAD_ID,
        mask_invalid_ids=False,
        **dict.fromkeys(unused, PAD_ID),
    )
    model = DualStreamLM(config)
    model.initialise(seed)
    return model


def their_model(ours: DualStreamLM) -> Qwen2ForCausalLM:
    """The same decoder by transformers; the names of the parameters are equal already."""
    config = ours.dual_config
    model = Qwen2ForCausalLM(
        Qwen2Config(
            vocab_size=config.vocab_size,
            hidden_size=config.hidden_size,
            intermediate_size=config.intermediate_size,
            num_hidden_layers=config.num_layers,
            num_attention_heads=config.num_heads,
            num_key_value_heads=config.num_kv_heads,
            rms_norm_eps=config.rms_norm_eps,
            rope_parameters={"rope_type": "default", "rope_theta": config.rope_theta},
            max_position_embeddings=2048,
            tie_word_embeddings=False,
            pad_token_id=PAD_ID,
        )
    )
    model.load_state_dict(ours.state_dict())
    return model


def count_parameters(model: torch.nn.Module) -> float:
    """In millions."""
    return sum(parameter.numel() for parameter in model.parameters()) / 1e6


def products_flop(model: DualStreamLM, read: int, scored: int) -> float:
    """Of a forward pass's products with the weights: `read` positions go through the layers, `scored` through the head."""
    layers = sum(parameter.numel() for parameter in model.model.layers.parameters() if parameter.ndim == 2)
    return 2.0 * (layers * read + model.lm_head.weight.numel() * scored)


# -- the work ---------------------------------------------------------------------------------------------------------


def prompt_ids(work: Work, seed: int) -> np.ndarray:
    """Random ids [B, L] without padding among them."""
    return np.random.default_rng(seed).integers(PAD_ID + 1, VOCAB, size=(work.prompts, work.prompt_tokens))


def as_prompts(ids: np.ndarray) -> list[Prompt]:
    """The same ids as our sampler takes them."""
    no_audio, silent = np.zeros((ids.shape[1], 0), dtype=np.int64), np.zeros(ids.shape[1], dtype=bool)
    return [Prompt(no_audio, row, None, silent) for row in ids]


def seeds_of(work: Work, step: int) -> list[list[int]]:
    """Seeds [B][G] that no other step uses."""
    first = step * work.prompts * work.group
    return [[first + row * work.group + answer for answer in range(work.group)] for row in range(work.prompts)]


# -- measuring --------------------------------------------------------------------------------------------------------


def clock_of(processor: bool) -> Callable[[], float]:
    """The wall's seconds, or this process's own, which other programs lengthen less; for these, one thread is asked for."""
    torch.set_num_threads(1 if processor else THREADS)
    return time.process_time if processor else time.perf_counter


def in_turns(sides: Mapping[str, Callable[[int], float]], repeats: int) -> dict[str, list[float]]:
    """Seconds that each side says it took, one turn after the other, so that load on the machine meets all alike.

    Turn 0 warms up and does not count.
    """
    taken: dict[str, list[float]] = {name: [] for name in sides}
    for turn in range(repeats + 1):
        for name, work in sides.items():
            seconds = work(turn)
            if turn:
                taken[name].append(seconds)
    return taken


def spread(values: Sequence[float], digits: int = 2) -> str:
    """Median, range and n."""
    low, middle, high = min(values), statistics.median(values), max(values)
    return f"{middle:.{digits}f} ({low:.{digits}f} to {high:.{digits}f}, n = {len(values)})"


def peak_flops(now: Callable[[], float], size: int = 2048) -> dict[str, float]:
    """FLOP/s of one large float32 product, the fastest of nine: by torch's own, and by the oneDNN that torch has with it.

    torch multiplies with MKL, which uses no more than AVX2 on processors that are not Intel's.
    """
    one, other = torch.randn(2, size, size)
    kinds: dict[str, Callable[[], object]] = {"torch.matmul": lambda: one @ other}
    if torch.backends.mkldnn.is_available():
        kinds["oneDNN"] = lambda: torch.ops.mkldnn._linear_pointwise(one, other, None, "none", [], "")
    found = {}
    for name, work in kinds.items():
        taken = []
        for _ in range(9):
            started = now()
            work()
            taken.append(now() - started)
        found[name] = 2 * size**3 / min(taken)
    return found
