"""The network against the golden numbers of docs/experiments/policies.md, in float64.

Not covered: the released checkpoint itself, which cannot be had here.
"""

from __future__ import annotations

import numpy as np
import pytest
import torch
from tiny.dual_stream import golden_model, golden_prompt, small_config, small_model, small_prompt

from paras2s.policy.dual_stream.kv_cache import PromptCache
from paras2s.policy.dual_stream.logprobs import teacher_forced
from paras2s.policy.dual_stream.sampler import pad_prompts
from paras2s.policy.types import Sampling
from paras2s.types import Block


def golden_block() -> Block:
    tokens = np.array([[[5, 36], [9, 36], [37, 43], [36, 57]]])
    sampled = np.array([[[1, 0], [1, 0], [1, 1], [0, 1]]], dtype=bool)
    return Block(("text", "audio0"), tokens, sampled, np.zeros(tokens.shape))


def test_golden_logits_of_both_heads() -> None:
    model = golden_model()
    audio, text, features, continuous, _ = pad_prompts(model.dual_config, [golden_prompt()], torch.device("cpu"))
    states = model.hidden(model.embed(audio, text, features, continuous), torch.arange(9)[None])
    expected_audio = [-0.8532993898226, -1.6548971465289, -1.2800061200282, 0.0048585841769]
    expected_text = [-1.6844172882560, -0.8216586085228, 0.6252282985024, 1.6276319446346]
    assert model.audio_logits(states[1])[0][0, 8, :4].tolist() == pytest.approx(expected_audio, abs=1e-10)
    assert model.text_logits(states[0])[0, 8, :4].tolist() == pytest.approx(expected_text, abs=1e-10)


def test_golden_masked_joint_logprob() -> None:
    logp = teacher_forced(golden_model(), [golden_prompt()], [golden_block()], Sampling())
    assert logp.sum().item() == pytest.approx(-23.2060466182290, abs=1e-10)
    # The official code's table is rounded to 8 digits and ran its norms in float32.
    assert logp[0, :, 0].tolist() == pytest.approx([-4.53604599, -3.56407593, -6.45717634, 0], abs=1e-6)
    assert logp[0, :, 1].tolist() == pytest.approx([0, 0, -4.19051272, -4.45823600], abs=1e-6)


@pytest.mark.parametrize("tap", [0, 2])
@pytest.mark.parametrize("checkpointing", [False, True])
def test_the_one_position_that_asks_has_the_states_keys_and_gradients_of_the_whole_pass(tap, checkpointing):
    """Also where a branch has no layer of its own, and where prompts differ in length."""
    model = small_model(small_config(layers=3, tap=tap))
    model.gradient_checkpointing = checkpointing
    prompts = [small_prompt(model.dual_config, 1, steps, seed=steps) for steps in (2, 5, 3)]
    *parts, lengths = pad_prompts(model.dual_config, prompts, torch.device("cpu"))
    audio, text, features, continuous = parts

    def read(only):
        model.zero_grad()
        cache = PromptCache(lengths)
        x = model.embed(audio, text, features, continuous)
        states = model.hidden(x, torch.arange(text.shape[1]).expand(text.shape), cache, only=only)
        if only is None:
            states = [None if one is None else one[torch.arange(3), lengths - 1][:, None] for one in states]
        keys = [part for layer in sorted(cache.pairs) for part in cache.pairs[layer]]
        # Of keys behind a prompt's end nothing is asked.
        inside = (torch.arange(text.shape[1]) < lengths[:, None])[:, None, :, None]
        found = [one for one in states if one is not None] + [one * inside for one in keys]
        torch.autograd.backward(
            sum((one * torch.cos(torch.arange(one.numel(), dtype=one.dtype)).view(one.shape)).sum() for one in found)
        )
        return found, [parameter.grad for parameter in model.parameters() if parameter.grad is not None]

    for full, one in zip(read(None), read(lengths - 1), strict=True):
        assert len(full) == len(one) > 5
        for expected, found in zip(full, one, strict=True):
            torch.testing.assert_close(found, expected, rtol=1e-10, atol=1e-12)
