"""The native engine: answers from a policy in this process, decoded to text and waveform."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from paras2s.policy.dual_policy import DualStreamPolicy
from paras2s.policy.interface import Prompt, Sampling
from paras2s.records import Rollout


def answer_seeds(seed: int, step: int, queries: Sequence[int], group_size: int) -> list[list[int]]:
    """A seed for every answer of a step, [B][G]: it depends on the run, the step and the place, and on nothing else."""
    rows = np.random.SeedSequence([seed, step]).generate_state(len(queries) * group_size, np.uint32)
    return [[int(value) for value in rows[i * group_size : (i + 1) * group_size]] for i in range(len(queries))]


class NativeEngine:
    """Samples with the policy's own batched sampler."""

    def __init__(self, policy: DualStreamPolicy) -> None:
        self.policy = policy
        self.version = 0

    def generate(
        self,
        query_ids: Sequence[str],
        prompts: Sequence[Prompt],
        group_size: int,
        sampling: Sampling,
        seeds: Sequence[Sequence[int]],
        with_waves: bool = True,
    ) -> list[Rollout]:
        """One rollout a query; `with_waves` False leaves the waveforms empty, for rewards that read codes."""
        generations = self.policy.generate(prompts, group_size, sampling, seeds)
        rollouts = []
        for query_id, generation in zip(query_ids, generations, strict=True):
            block = generation.blocks[0]
            codes = tuple(self.policy.decode_codes(block, answer) for answer in range(group_size))
            waves = tuple(
                self.policy.codec.decode(one).samples if with_waves else np.zeros(0, dtype=np.float32) for one in codes
            )
            rollouts.append(
                Rollout(
                    query_id=query_id,
                    policy_version=self.version,
                    blocks=generation.blocks,
                    finish_reason=generation.finish_reason,
                    seeds=generation.seeds,
                    texts=tuple(self.policy.decode_text(block, answer) for answer in range(group_size)),
                    codes=codes,
                    waves=waves,
                    sample_rate_hz=self.policy.codec.sample_rate_hz,
                )
            )
        return rollouts
