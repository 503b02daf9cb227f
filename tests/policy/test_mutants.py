"""Mutants of sampler, learner and adapters, and the check of `check-policy` that finds each (docs/policies.md has the table).

Each is a mistake that a change of `policy.dual_stream` could bring. Not covered: mistakes that only a GPU, half precision or a
family's own sampler would show, and what both sampler and learner read wrongly (`check-policy --against`, `--pairs`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import pytest
import torch
from tiny.dual_stream import small_config, small_model, small_policy, small_prompt
from torch import Tensor
from torch.nn import functional as fn

from paras2s.policy import contract
from paras2s.policy.base import Policy
from paras2s.policy.dual_stream import network, sampler
from paras2s.policy.dual_stream.kv_cache import AnswerCache, DecodeCache, PromptCache
from paras2s.policy.dual_stream.network import DualStreamNetwork
from paras2s.policy.embedded.policy import EmbeddedPolicy
from paras2s.policy.subject import Finding, Subject

Check = Callable[[Subject], Finding]
Patch = pytest.MonkeyPatch


@pytest.fixture
def subject() -> Subject:
    """One codebook without masks, so that either end of the audio can be drawn; answers of some 40 steps."""
    config = small_config((60,), delay=2).model_copy(update={"mask_invalid_ids": False})
    prompts = tuple(small_prompt(config, clips, steps, seed) for seed, (clips, steps) in enumerate(((1, 4), (2, 3), (1, 1))))
    return Subject(small_policy(small_model(config)), prompts, tolerance=1e-6)


def wrap(patch: Patch, owner: Any, name: str, change: Callable[..., Any]) -> None:
    """Replace a function by `change`, which gets the original first."""
    original = getattr(owner, name)
    patch.setattr(owner, name, lambda *given, **named: change(original, *given, **named))


# -- sampler ----------------------------------------------------------------------------------------------------------


def drifting_sampler(patch: Patch) -> None:
    def step(original: Any, decoder: Any, active: Any, *more: Any) -> None:
        original(decoder, active, *more)
        active.position = active.position + (active.step == 64)

    wrap(patch, sampler, "_step", step)


def drawn_at_the_square(patch: Patch) -> None:
    def pick(original: Any, logits: Tensor, temperature: float, uniform: Tensor, top_k: int = 0) -> tuple[Tensor, Tensor]:
        index, _ = original(logits, temperature**2, uniform, top_k)
        return index, (logits / temperature).log_softmax(-1).gather(1, index[:, None])[:, 0]

    wrap(patch, sampler, "pick", pick)


def drawn_among_few(patch: Patch) -> None:
    def pick(original: Any, logits: Tensor, temperature: float, uniform: Tensor, top_k: int = 0) -> tuple[Tensor, Tensor]:
        index, _ = original(logits, temperature, uniform, 8)
        return index, (logits / temperature).log_softmax(-1).gather(1, index[:, None])[:, 0]

    wrap(patch, sampler, "pick", pick)


def recorded_of_the_next_id(patch: Patch) -> None:
    def pick(original: Any, logits: Tensor, *settings: Any) -> tuple[Tensor, Tensor]:
        index, logp = original(logits, *settings)
        return (index + 1) % logits.shape[-1], logp

    wrap(patch, sampler, "pick", pick)


def one_end_is_none(patch: Patch) -> None:
    def ends(_: Any, config: Any, tokens: Tensor, sampled: Tensor, speak: bool) -> Tensor:
        return sampled[:, 1] & (tokens[:, 1] == config.msg_end_id)

    wrap(patch, sampler, "_ends", ends)


def all_have_ended(patch: Patch) -> None:
    def pack(original: Any, *given: Any) -> Any:
        return [replace(one, finish_reason=("eos",) * len(one.seeds)) for one in original(*given)]

    wrap(patch, sampler, "_pack", pack)


def temperatures_are_swapped(patch: Patch) -> None:
    def draw(original: Any, decoder: Any, config: Any, active: Any, uniform: Tensor, how: Any, audio: bool) -> Any:
        swapped = replace(how, text_temperature=how.audio_temperature, audio_temperature=how.text_temperature)
        return original(decoder, config, active, uniform, swapped, audio)

    wrap(patch, sampler, "_draw", draw)


def seeds_of_the_group(patch: Patch) -> None:
    def uniforms(original: Any, seeds: Sequence[Sequence[int]], steps: int, slots: int) -> Tensor:
        return original([[seed + 7 * len(row) for seed in row] for row in seeds], steps, slots)

    wrap(patch, sampler, "uniforms_of", uniforms)


def padding_is_seen_while_sampling(patch: Patch) -> None:
    def unmasked(_: Any, cache: DecodeCache, where: Tensor) -> Tensor:
        return torch.zeros(where.shape, dtype=cache.keys.dtype)[:, None, None]

    wrap(patch, DecodeCache, "minus_infinity", unmasked)


def caches_stay_when_answers_leave(patch: Patch) -> None:
    def select(_: Any, cache: Any, rows: Tensor) -> None:
        cache.places, cache.lengths = cache.places[rows], cache.lengths[rows]
        cache._settle()

    wrap(patch, DecodeCache, "select", select)


# -- learner ----------------------------------------------------------------------------------------------------------


def drifting_learner(patch: Patch) -> None:
    def hidden(original: Any, model: Any, x: Tensor, positions: Tensor, cache: Any = None, **more: Any) -> Any:
        if isinstance(cache, AnswerCache):
            positions = positions + (torch.arange(positions.shape[1]) >= 64)
        return original(model, x, positions, cache, **more)

    wrap(patch, DualStreamNetwork, "hidden", hidden)


def branch_is_detached(patch: Patch) -> None:
    def branch(original: Any, model: Any, layers: Any, first: int, x: Tensor, *more: Any) -> Tensor:
        return original(model, layers, first, x.detach() if layers is model.model.mimo_layers else x, *more)

    wrap(patch, DualStreamNetwork, "_branch", branch)


def detached_prompts(*parts: int) -> Callable[[Patch], None]:
    """Keys (0), values (1) of prompts that answers do not differentiate."""

    def mutate(patch: Patch) -> None:
        def attend(original: Any, cache: AnswerCache, layer: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
            kept = cache.prompts.pairs[layer]
            pair = [part.detach() if number in parts else part for number, part in enumerate(kept)]
            cache.prompts.pairs[layer] = pair[0], pair[1]
            attended = original(cache, layer, q, k, v)
            cache.prompts.pairs[layer] = kept
            return attended

        wrap(patch, AnswerCache, "attend", attend)

    return mutate


def own_keys_are_detached(patch: Patch) -> None:
    wrap(patch, AnswerCache, "attend", lambda original, cache, layer, q, k, v: original(cache, layer, q, k.detach(), v))


def text_learns_twice(patch: Patch) -> None:
    def logits(original: Any, model: Any, state: Tensor) -> Tensor:
        made = original(model, state)
        return 2 * made - made.detach()

    wrap(patch, DualStreamNetwork, "text_logits", logits)


def audio_does_not_learn(patch: Patch) -> None:
    def logits(original: Any, model: Any, state: Tensor) -> list[Tensor]:
        return [made.detach() for made in original(model, state)]

    wrap(patch, DualStreamNetwork, "audio_logits", logits)


def answers_see_ahead(patch: Patch) -> None:
    wrap(patch, AnswerCache, "_full_mask", lambda original, cache, like: torch.zeros_like(original(cache, like)))


def padding_is_seen_while_learning(patch: Patch) -> None:
    wrap(patch, PromptCache, "unseen", lambda original, cache, like: torch.zeros_like(original(cache, like)))


def norms_drop_out(patch: Patch) -> None:
    wrap(patch, network, "rms_norm", lambda original, *given: fn.dropout(original(*given), 0.01))


def temperature_is_ignored(patch: Patch) -> None:
    def logprobs(original: Any, policy: Any, prompts: Any, answers: Any, how: Any) -> Any:
        return original(policy, prompts, answers, replace(how, text_temperature=1.0))

    wrap(patch, Policy, "logprobs", logprobs)


def forced_tokens_count(patch: Patch) -> None:
    wrap(patch, Policy, "logprobs", lambda original, *given: tuple(part - 0.1 * (part == 0) for part in original(*given)))


def probabilities_are_more_than_one(patch: Patch) -> None:
    wrap(patch, Policy, "logprobs", lambda original, *given: tuple(part + 0.1 * (part != 0) for part in original(*given)))
    wrap(patch, sampler, "pick", lambda original, *given: (lambda index, logp: (index, logp + 0.1))(*original(*given)))


# -- adapters ---------------------------------------------------------------------------------------------------------


def merged(times: float, but: str = "nothing") -> Callable[[Patch], None]:
    """Adapters that are folded in `times` as much, and not at all in modules with `but` in their name."""

    def mutate(patch: Patch) -> None:
        def merge(original: Any, policy: Policy) -> None:
            for name, parameter in policy.model.named_parameters():
                if "lora_B" in name:
                    parameter.data *= 0.0 if but in name else times
            original(policy)

        wrap(patch, EmbeddedPolicy, "merge_lora", merge)

    return mutate


def reference_keeps_its_adapters(patch: Patch) -> None:
    from peft.tuners.lora import LoraLayer

    patch.setattr(LoraLayer, "enable_adapters", lambda layer, enabled: None)


MUTANTS: dict[str, tuple[Callable[[Patch], None], Check]] = {
    "the sampler's positions drift after 64 steps": (drifting_sampler, contract.behaviour_is_scored),
    "the learner's positions drift after 64 steps": (drifting_learner, contract.behaviour_is_scored),
    "drawn at T squared, recorded at T": (drawn_at_the_square, contract.draws_follow_probabilities),
    "drawn among the 8 likeliest, recorded among all": (drawn_among_few, contract.draws_follow_probabilities),
    "recorded of the next id": (recorded_of_the_next_id, contract.behaviour_is_scored),
    "text and audio temperatures swapped": (temperatures_are_swapped, contract.behaviour_is_scored),
    "the learner ignores the text temperature": (temperature_is_ignored, contract.behaviour_is_scored),
    "padding is seen while sampling": (padding_is_seen_while_sampling, contract.behaviour_is_scored),
    "caches stay when other answers leave": (caches_stay_when_answers_leave, contract.behaviour_is_scored),
    "dropout in a norm": (norms_drop_out, contract.behaviour_is_scored),
    "padding is seen while learning": (padding_is_seen_while_learning, contract.batch_is_one_by_one),
    "an answer's seed depends on its group": (seeds_of_the_group, contract.group_shares_a_prefill),
    "answers see ahead": (answers_see_ahead, contract.tokens_are_causal),
    "forced tokens have log-probs": (forced_tokens_count, contract.masks_hold),
    "the end of media no longer ends": (one_end_is_none, contract.answers_end),
    "an answer that was cut counts as ended": (all_have_ended, contract.answers_end),
    "the audio branch is detached from the trunk": (branch_is_detached, contract.slopes_are_gradients),
    "prompts' keys are detached from answers": (detached_prompts(0), contract.slopes_are_gradients),
    "prompts' values are detached from answers": (detached_prompts(1), contract.slopes_are_gradients),
    "an answer's own keys are detached": (own_keys_are_detached, contract.slopes_are_gradients),
    "the text learns twice": (text_learns_twice, contract.slopes_are_gradients),
    "the audio's logits are detached": (audio_does_not_learn, contract.adapters_learn),
    "adapters are doubled at merge": (merged(2.0), contract.merged_is_the_same),
    "adapters are halved at merge": (merged(0.5), contract.merged_is_the_same),
    "the audio branch's adapters are lost at merge": (merged(1.0, but="mimo_layers"), contract.merged_is_the_same),
    "the reference keeps its adapters": (reference_keeps_its_adapters, contract.reference_stays),
    "probabilities add up to more than 1": (probabilities_are_more_than_one, contract.first_tokens_sum_to_one),
}


@pytest.mark.parametrize("check", dict.fromkeys(check for _, check in MUTANTS.values()), ids=lambda check: check.__name__)
def test_without_a_mutant_each_check_holds(check: Check, subject: Subject) -> None:
    finding = check(subject)
    assert finding.ok, finding.detail


@pytest.mark.parametrize("name", MUTANTS)
def test_a_mutant_is_found(name: str, subject: Subject, monkeypatch: pytest.MonkeyPatch) -> None:
    mutate, check = MUTANTS[name]
    mutate(monkeypatch)
    finding = check(subject)
    assert finding.ok is False, finding.detail
