"""Mutants of the families' own samplers and passes, and the check of `check-policy` that finds each.

Each is a mistake of a port: one side reads something otherwise than the other, a neighbour changes a row, or a gradient is cut.
The contract on the same policies without a mutant: test_contract.py. What both sides read wrongly: test_dumps.py.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
from test_mutants import Check, Patch, wrap
from tiny.csm import tiny_csm, tiny_csm_turns
from tiny.interleaved import tiny_glm, tiny_step, tiny_turns
from tiny.moshi import tiny_moshi, tiny_moshi_turns
from tiny.qwen3_omni import tiny_qwen3_omni, tiny_qwen3_omni_turns
from tiny.qwen_omni import tiny_qwen_omni, tiny_qwen_omni_turns
from tiny.spoken_lm import tiny_spoken_lm, tiny_spoken_lm_turns
from torch import Tensor

from paras2s.policy import contract, qwen_omni
from paras2s.policy.csm import CsmNetwork
from paras2s.policy.dual_stream import logprobs, sampler
from paras2s.policy.moshi import MoshiNet
from paras2s.policy.qwen3_omni import Qwen3Network
from paras2s.policy.qwen_omni import Qwen25Network
from paras2s.policy.spoken_lm import network
from paras2s.policy.spoken_lm.network import SpokenLmNetwork
from paras2s.policy.spoken_lm.prosody import SIZES
from paras2s.policy.subject import Subject, subject_of

MAKERS: dict[str, Callable[[], Any]] = {
    "moshi": lambda: (tiny_moshi(), tiny_moshi_turns()),
    "csm": lambda: (tiny_csm(), tiny_csm_turns()),
    "spoken_lm": lambda: (tiny_spoken_lm(), tiny_spoken_lm_turns()),
    "qwen_omni": lambda: (tiny_qwen_omni(), tiny_qwen_omni_turns()),
    "qwen3_omni": lambda: (tiny_qwen3_omni(), tiny_qwen3_omni_turns()),
    "glm4_voice": lambda: (tiny_glm(), tiny_turns()),
    "step_audio2": lambda: (tiny_step(), tiny_turns()),
}


@functools.cache
def subject_named(family: str) -> Subject:
    """One for all mutants, which are undone; few steps, and of Qwen2.5-Omni more answers: some must outlast their words."""
    return replace(subject_of(*MAKERS[family]()), long_steps=10, group=8 if family == "qwen_omni" else 3)


def sampling() -> bool:
    """Samplers, and they alone, run in inference mode."""
    return torch.is_inference_mode_enabled()


# -- Moshi ------------------------------------------------------------------------------------------------------------


def user_is_not_silent(patch: Patch) -> None:
    def read(original: Any, network: MoshiNet, text: Tensor, audio: Tensor, *more: Any, **named: Any) -> Tensor:
        user_side = audio.clone()
        if sampling() and audio.shape[1] == 1:
            user_side[..., network.codebooks :] = 0
        return original(network, text, user_side, *more, **named)

    wrap(patch, MoshiNet, "read", read)


def codes_forget_those_before(patch: Patch) -> None:
    from transformers import DynamicCache

    def next_code(original: Any, network: MoshiNet, states: Tensor, given: Tensor, cache: Any) -> Tensor:
        return original(network, states, given, DynamicCache() if cache.get_seq_length() > 1 else cache)

    wrap(patch, MoshiNet, "next_code", next_code)


def depth_decoder_looks_ahead(patch: Patch) -> None:
    """What transformers' own does with eager attention and without a mask."""

    def frames(_: Any, network: MoshiNet, states: Tensor, given: Tensor) -> Tensor:
        patch.setattr(network.depth_decoder.config, "_attn_implementation", "eager")
        return network.depth_decoder(input_ids=given, last_hidden_state=states[:, None], use_cache=False).logits

    wrap(patch, MoshiNet, "frames", frames)


def frames_are_detached(patch: Patch) -> None:
    wrap(patch, MoshiNet, "frames", lambda original, network, states, given: original(network, states.detach(), given))


# -- CSM --------------------------------------------------------------------------------------------------------------


def no_codes_may_be_drawn(patch: Patch) -> None:
    wrap(patch, CsmNetwork, "allowed", lambda original, net, logits: logits if sampling() else original(net, logits))


def depth_decoder_is_given(change: Callable[[Tensor], Tensor]) -> Callable[[Patch], None]:
    """The learner's depth decoder gets a changed state of the backbone."""

    def mutate(patch: Patch) -> None:
        def call(original: Any, *given: Any, backbone_last_hidden_state: Any = None, **more: Any) -> Any:
            state = backbone_last_hidden_state
            if state is not None and not sampling():
                state = change(state)
            return original(*given, backbone_last_hidden_state=state, **more)

        wrap(patch, subject_named("csm").policy.model.depth_decoder, "forward", call)

    return mutate


# -- SpokenLm ---------------------------------------------------------------------------------------------------------


def phrases_never_begin_again(patch: Patch) -> None:
    """The sampler says every phrase as the first one, and the learner knows better."""

    def said(original: Any, net: SpokenLmNetwork, tokens: Tensor, begins: Tensor) -> Tensor:
        return original(net, tokens, begins & (not sampling()))

    wrap(patch, SpokenLmNetwork, "said", said)


def prosody_of_the_first_prompt(patch: Patch) -> None:
    def read(original: Any, net: SpokenLmNetwork, prompts: Any) -> Any:
        x, lengths = original(net, prompts)
        width = x.shape[-1] // 2
        return torch.cat([x[..., :width], x[:1, -1:, width:].expand(*x.shape[:-1], width)], -1), lengths

    wrap(patch, SpokenLmNetwork, "read", read)


def prosody_is_detached(patch: Patch) -> None:
    """The heads of the codes learn, and the layers below learn of words alone."""

    def score(original: Any, head: Any, hidden: Tensor, *more: Any) -> Tensor:
        return original(head, hidden.detach() if head.out_features in SIZES else hidden, *more)

    wrap(patch, network, "score", score)


# -- Qwen-Omni --------------------------------------------------------------------------------------------------------


def end_is_spoken(patch: Patch) -> None:
    wrap(patch, qwen_omni, "replies_of", lambda original, block, end: original(block, end) + 1)


def begins_otherwise_alone(patch: Patch) -> None:
    """As transformers' own `generate`, which adds the codec's first embeddings in a padded batch alone."""
    prompts: list[int] = []

    def sample(original: Any, network: Any, request: Any, uniforms: Tensor) -> Any:
        prompts.append(len(request.prompts))
        return original(network, request, uniforms)

    def marks(original: Any, network: Qwen25Network) -> Any:
        begin, end, pad = original(network)
        pads = network.codec(torch.tensor(network.ids.codec_pad))
        return (begin - pads if sampling() and prompts[-1] == 1 else begin), end, pad

    wrap(patch, Qwen25Network, "sample", sample)
    wrap(patch, Qwen25Network, "marks", marks)


def talker_reads_the_embeddings(patch: Patch) -> None:
    def conditions(original: Any, network: Any, hidden: Tensor, x: Tensor, is_audio: Tensor) -> Tensor:
        return original(network, hidden, x, torch.zeros_like(is_audio) if sampling() else is_audio)

    wrap(patch, Qwen25Network, "conditions", conditions)


def talker_is_detached(patch: Patch) -> None:
    wrap(patch, Qwen25Network, "given", lambda original, network, state: state.detach())


def another_layer_is_read(patch: Patch) -> None:
    def opening(original: Any, network: Qwen3Network, prompts: Any, x: Tensor, tapped: Tensor, is_audio: Tensor) -> Any:
        return original(network, prompts, x, x if sampling() else tapped, is_audio)

    wrap(patch, Qwen3Network, "opening", opening)


def later_codes_are_not_read(patch: Patch) -> None:
    def frame(original: Any, network: Qwen3Network, codes: Tensor) -> Tensor:
        return network.first_codes(codes[..., 0]) if sampling() else original(network, codes)

    wrap(patch, Qwen3Network, "frame", frame)


def heads_are_swapped(patch: Patch) -> None:
    def later(original: Any, network: Qwen3Network, *given: Any) -> Tensor:
        predictor = network.talker.code_predictor
        kept, predictor.lm_head = predictor.lm_head, predictor.lm_head[::-1]
        try:
            return original(network, *given)
        finally:
            predictor.lm_head = kept

    wrap(patch, Qwen3Network, "later", later)


# -- one stream -------------------------------------------------------------------------------------------------------


def sound_moves_beside_others(patch: Patch) -> None:
    def pad(original: Any, config: Any, prompts: Any, device: Any) -> Any:
        audio, text, features, continuous, lengths = original(config, prompts, device)
        return audio, text, features.roll(len(prompts) - 1, 1), continuous, lengths

    wrap(patch, logprobs, "pad_prompts", pad)


def one_end_is_none(patch: Patch) -> None:
    passed_over = subject_named("glm4_voice").policy.config.pad_id

    def ends(original: Any, config: Any, tokens: Tensor, *more: Any) -> Tensor:
        return original(config, tokens, *more) & (tokens[:, 0] != passed_over)

    wrap(patch, sampler, "_ends", ends)


MUTANTS: dict[str, tuple[str, Callable[[Patch], None], Check]] = {
    "the user is not silent while Moshi answers": ("moshi", user_is_not_silent, contract.behaviour_is_scored),
    "a code is drawn without those before it": ("moshi", codes_forget_those_before, contract.behaviour_is_scored),
    "the depth decoder looks ahead": ("moshi", depth_decoder_looks_ahead, contract.tokens_are_causal),
    "frames are detached from the backbone": ("moshi", frames_are_detached, contract.slopes_are_gradients),
    "ids that are no codes may be drawn": ("csm", no_codes_may_be_drawn, contract.behaviour_is_scored),
    "later codes do not read the backbone": ("csm", depth_decoder_is_given(torch.zeros_like), contract.behaviour_is_scored),
    "later codes are detached from the backbone": ("csm", depth_decoder_is_given(Tensor.detach), contract.slopes_are_gradients),
    "phrases never begin again": ("spoken_lm", phrases_never_begin_again, contract.behaviour_is_scored),
    "all hear the first question": ("spoken_lm", prosody_of_the_first_prompt, contract.batch_is_one_by_one),
    "the codes are detached from the words": ("spoken_lm", prosody_is_detached, contract.slopes_are_gradients),
    "the reply's end is spoken": ("qwen_omni", end_is_spoken, contract.behaviour_is_scored),
    "alone, a prompt begins otherwise": ("qwen_omni", begins_otherwise_alone, contract.batch_is_one_by_one),
    "the talker hears the question's embeddings": ("qwen_omni", talker_reads_the_embeddings, contract.behaviour_is_scored),
    "the talker is detached from the thinker": ("qwen_omni", talker_is_detached, contract.slopes_are_gradients),
    "the talker hears another layer": ("qwen3_omni", another_layer_is_read, contract.behaviour_is_scored),
    "a frame's later codes are not read": ("qwen3_omni", later_codes_are_not_read, contract.behaviour_is_scored),
    "heads of later codes are swapped": ("qwen3_omni", heads_are_swapped, contract.behaviour_is_scored),
    "beside others, the sound is a step later": ("step_audio2", sound_moves_beside_others, contract.batch_is_one_by_one),
    "the end of text no longer ends": ("glm4_voice", one_end_is_none, contract.answers_end),
}


@pytest.mark.parametrize("name", MUTANTS)
def test_a_mutant_of_a_family_is_found(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    family, mutate, check = MUTANTS[name]
    subject = subject_named(family)
    mutate(monkeypatch)
    finding = check(subject)
    assert finding.ok is False, finding.detail
