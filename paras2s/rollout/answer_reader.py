"""The frozen policy of the warm-up as a reader of answers, for the reward source `self_contrast`.

An answer is encoded again from its text and its codes (the embedded policy) or its sound, so an answer that was cut off is read
as if it had ended there.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import lru_cache
from pathlib import Path

import torch

from paras2s.audio.clip import Clip, read_clip
from paras2s.configs.schema.run import PolicyConfig
from paras2s.errors import PolicyError, one_line
from paras2s.policy.base import Policy, flat
from paras2s.policy.embedded.policy import EmbeddedPolicy
from paras2s.policy.registry import load_policy
from paras2s.policy.types import Prompt, Sampling
from paras2s.reward.sources.base import GivenAnswer, RewardQuestion
from paras2s.train.batching import token_batch
from paras2s.types import AUDIO, TEXT, Block, Query


class QuestionClips:
    """Questions' clips by their paths, with the features that are stored beside them."""

    def clip(self, name: str) -> Clip:
        """Read a clip."""
        return read_clip(Path(name))

    def cached_features(self, name: str) -> bytes | None:
        """Return the features beside it; None if there are none."""
        beside = Path(name).with_suffix(".npz")
        return beside.read_bytes() if beside.is_file() else None


class PolicyReader:
    """Log-likelihoods of answers under one policy, which does not change."""

    def __init__(self, policy: Policy, style_words: Mapping[str, str], batch_size: int = 16) -> None:
        self.policy, self.style_words, self._batch_size = policy, style_words, batch_size
        self.needs_sound = not isinstance(policy, EmbeddedPolicy)
        self._prompt = lru_cache(maxsize=256)(self._read_prompt)

    def nats(self, question: RewardQuestion, words: str, answers: Sequence[GivenAnswer]) -> list[tuple[float, float] | str]:
        """Return log-likelihoods of (text, audio) of each answer, or why there is none; `words` "": no style is given."""
        if question.clip is None:
            return ["the question has no clip"] * len(answers)
        plain = self._prompt(str(question.clip), question.transcript)
        prompt = self.policy.with_style(plain, words) if words else plain
        read = [self._blocks(answer) for answer in answers]
        rows = [row for row, blocks in enumerate(read) if not isinstance(blocks, str)]
        likelihoods: list[tuple[float, float] | str] = [blocks if isinstance(blocks, str) else "" for blocks in read]
        for start in range(0, len(rows), self._batch_size):
            part = rows[start : start + self._batch_size]
            for row, sums in zip(part, self._sums(prompt, [read[row] for row in part]), strict=True):  # type: ignore[misc]
                likelihoods[row] = sums
        return likelihoods

    def _read_prompt(self, clip: str, transcript: str) -> Prompt:
        query = Query("", "", None, None, "rl", "", clip, 0.0, transcript, None, None)
        (prompt,) = self.policy.encode_queries(QuestionClips(), [query])
        return prompt

    def _blocks(self, answer: GivenAnswer) -> tuple[Block, ...] | str:
        try:
            if isinstance(self.policy, EmbeddedPolicy):
                if answer.codes is None or not len(answer.codes) or not answer.text.strip():
                    return "the answer has no words or no sound"
                return (self.policy.target_block(answer.codes, self.policy.pieces.encode(answer.text)),)
            if answer.clip is None or not answer.text.strip():
                return "the answer has no words or no sound"
            return self.policy.encode_target(answer.clip, answer.text)
        except (PolicyError, ValueError) as error:
            return one_line(error)

    @torch.no_grad()
    def _sums(self, prompt: Prompt, answers: Sequence[tuple[Block, ...]]) -> list[tuple[float, float]]:
        self.policy.model.eval()
        logp = flat(self.policy.logprobs([prompt] * len(answers), answers, Sampling())).double().cpu()
        known = token_batch(answers, torch.float64, torch.device("cpu"))
        text, audio = ((logp * known.mask * (known.stream_id == stream)).sum(1).tolist() for stream in (TEXT, AUDIO))
        return list(zip(text, audio, strict=True))


def open_reader(checkpoint: Path, config: PolicyConfig) -> PolicyReader:
    """Open the warm-up's policy, on the device and in the precision of its config."""
    policy = load_policy(checkpoint, config.kind, config.device, config.torch_dtype, config.decoder)
    return PolicyReader(policy, config.style_words)
