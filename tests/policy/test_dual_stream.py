"""The network against the golden numbers of docs/policies.md, in float64.

Not covered: the released checkpoint itself, which cannot be had here.
"""

from __future__ import annotations

import numpy as np
import pytest
import torch
from tiny.dual_stream import golden_model, golden_prompt

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
