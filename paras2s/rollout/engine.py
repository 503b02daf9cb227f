"""The native engine: answers from a policy in this process, decoded to text and waveform."""

from __future__ import annotations

from collections.abc import Generator, Mapping, Sequence
from dataclasses import replace
from typing import Protocol

import numpy as np
import torch
from torch import Tensor

from paras2s.errors import PolicyError
from paras2s.policy.base import Policy
from paras2s.policy.types import Generation, Prompt, SampleRequest, SamplingEvent, result_of
from paras2s.policy.weights import fill
from paras2s.types import Rollout


def answer_seeds(seed: int, step: int, queries: Sequence[int], group_size: int) -> list[list[int]]:
    """Return a seed for every answer of a step, [B, G]: it depends on run, step and position alone."""
    rows = np.random.SeedSequence([seed, step]).generate_state(len(queries) * group_size, np.uint32)
    return [[int(value) for value in rows[i * group_size : (i + 1) * group_size]] for i in range(len(queries))]


def check_lengths(query_ids: Sequence[str], prompts: Sequence[Prompt], max_steps: int, context_steps: int | None) -> None:
    """Check that prompts and answers fit a policy's context; nothing is cut. Raises PolicyError: names the query."""
    for query_id, prompt in zip(query_ids, prompts, strict=True):
        if context_steps is not None and prompt.length + max_steps > context_steps:
            raise PolicyError(
                f"query {query_id}: a prompt of {prompt.length} steps and an answer of up to {max_steps} do not fit the "
                f"policy's {context_steps}; leave the query out, or lower policy.max_answer_steps"
            )


def decoded(policy: Policy, query_id: str, version: int, generation: Generation) -> Rollout:
    """Return a generation as a rollout with text and codes; `spoken` adds the waveforms."""
    blocks, answers = generation.blocks, range(len(generation.seeds))
    silence = np.zeros(0, dtype=np.float32)
    return Rollout(
        query_id=query_id,
        policy_version=version,
        blocks=blocks,
        finish_reason=generation.finish_reason,
        seeds=generation.seeds,
        texts=tuple(policy.decode_text(blocks, answer) for answer in answers),
        codes=tuple(policy.decode_codes(blocks, answer) for answer in answers),
        waves=tuple(silence for _ in answers),
        sample_rate_hz=policy.spec.output_rate_hz,
        code_format=policy.spec.code_format,
    )


def spoken(policy: Policy, rollouts: Sequence[Rollout]) -> list[Rollout]:
    """Return the rollouts with their waveforms, which the policy's vocoder makes of all answers together."""
    answers = [(rollout.blocks, answer, seed) for rollout in rollouts for answer, seed in enumerate(rollout.seeds)]
    sounds = iter(policy.decode_audios(answers))
    return [replace(rollout, waves=tuple(next(sounds).samples for _ in rollout.seeds)) for rollout in rollouts]


class Engine(Protocol):
    """Samples rollouts with the weights it was given last; its policy encodes prompts and decodes answers."""

    policy: Policy
    version: int

    def set_weights(self, weights: Mapping[str, np.ndarray], version: int) -> None:
        """Take the trained weights that `Learner.weights` returns."""

    def generate(self, query_ids: Sequence[str], request: SampleRequest, with_waves: bool = True) -> list[Rollout]:
        """Sample one rollout a query; `with_waves` False leaves the waveforms empty, for rewards that read codes."""

    def generate_in_parts(
        self, query_ids: Sequence[str], request: SampleRequest, report_every: int | None
    ) -> Generator[SamplingEvent, None, list[Rollout]]:
        """Sample rollouts without sound, and report the answers so far (see `Policy.generate_in_parts`)."""


class MergedAdapters:
    """The adapters of a policy that only samples: kept apart, and folded into its weights whenever they change.

    A step then costs as much as without adapters. The weights beneath stay on the host (page-locked, where there is a GPU):
    taking a product off weights in half precision does not give them back. There a product far smaller than its weight is
    rounded away: `parity_*` in a run's metrics says by how much sampler and learner differ.
    """

    def __init__(self, policy: Policy) -> None:
        self._layers = policy.take_off_adapters()
        self._beneath = _on_host({name: layer.get_base_layer().weight.detach() for name, layer in self._layers.items()})

    @property
    def tensors(self) -> dict[str, Tensor]:
        """The matrices, under the names that the learner sends."""
        return {
            f"{name}.{inner}": value
            for name, layer in self._layers.items()
            for inner, value in layer.named_parameters()
            if inner.startswith("lora_")
        }

    @torch.no_grad()
    def fold(self) -> None:
        """Set each layer's weight to the one beneath plus the product of its matrices; added up in float32 at least."""
        for name, layer in self._layers.items():
            weight = layer.get_base_layer().weight
            added = sum(layer.get_delta_weight(adapter) for adapter in layer.active_adapters)
            weight.copy_(self._beneath[name].to(weight.device, non_blocking=True) + added)

    @property
    def moved_bytes(self) -> int:
        """Bytes that `fold` reads of the weights beneath."""
        return sum(weight.nbytes for weight in self._beneath.values())


def _on_host(weights: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Copy weights to the host, a block for each precision: page-locked blocks are rounded up to a power of two."""
    held: dict[str, Tensor] = {}
    for dtype in {weight.dtype for weight in weights.values()}:
        alike = {name: weight for name, weight in weights.items() if weight.dtype == dtype}
        counts = [weight.numel() for weight in alike.values()]
        block = torch.empty(sum(counts), dtype=dtype, pin_memory=any(weight.is_cuda for weight in alike.values()))
        parts = zip(alike.items(), torch.split(block, counts), strict=True)
        held |= {name: part.view(weight.shape).copy_(weight) for (name, weight), part in parts}
    return held


class NativeEngine:
    """Samples with the policy's own batched sampler. `version` is -1 until weights come."""

    def __init__(self, policy: Policy) -> None:
        self.policy = policy
        self.version = -1
        # Of the last update: bytes from the learner, and those beneath the adapters, from the host.
        self.moved_bytes = 0
        self._adapters: MergedAdapters | None = None

    def set_weights(self, weights: Mapping[str, np.ndarray], version: int) -> None:
        """Fill the policy's weights; adapters are folded into them (see `MergedAdapters`)."""
        if self._adapters is None and self.policy.adapters:
            self._adapters = MergedAdapters(self.policy)
        if self._adapters is None:
            fill(self.policy.trainable(), weights, "the learner's weights")
        else:
            fill(self._adapters.tensors, weights, "the learner's weights")
            self._adapters.fold()
        beneath = 0 if self._adapters is None else self._adapters.moved_bytes
        self.moved_bytes = beneath + sum(value.nbytes for value in weights.values())
        self.version = version

    def generate(self, query_ids: Sequence[str], request: SampleRequest, with_waves: bool = True) -> list[Rollout]:
        """See `Engine.generate`."""
        rollouts = result_of(self.generate_in_parts(query_ids, request, None))
        return spoken(self.policy, rollouts) if with_waves else rollouts

    def generate_in_parts(
        self, query_ids: Sequence[str], request: SampleRequest, report_every: int | None
    ) -> Generator[SamplingEvent, None, list[Rollout]]:
        """See `Engine.generate_in_parts`."""
        check_lengths(query_ids, request.prompts, request.sampling.max_steps, self.policy.spec.context_steps)
        generations = yield from self.policy.generate_in_parts(request, report_every)
        both = zip(query_ids, generations, strict=True)
        return [decoded(self.policy, query_id, self.version, generation) for query_id, generation in both]
