"""Three ways to attend that must agree: plain causal attention, answers behind shared prompts, and step by step.

Not covered: gradients through a shared prompt (test_conformance.py, by its log-probs) and half precision on a GPU.
"""

from __future__ import annotations

import numpy as np
import pytest
import torch
from tiny.dual_stream import small_config, small_prompt
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.nn import functional as fn

from paras2s.policy.dual_stream.kv_cache import AnswerCache, DecodeCache, PromptCache, _masked, _scores
from paras2s.policy.dual_stream.logprobs import teacher_forced
from paras2s.policy.dual_stream.model import DualStreamLM
from paras2s.policy.dual_stream.sampler import ModelDecoder, sample
from paras2s.policy.types import SampleRequest, Sampling

LENGTHS = torch.tensor([5, 3])
GROUP, STEPS, SIZE = 3, 4, 8


def draw(rows: int, heads: int, length: int, seed: int) -> Tensor:
    return torch.randn(rows, heads, length, SIZE, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def read(heads: int, kv_heads: int) -> tuple[PromptCache, Tensor, Tensor]:
    memory = PromptCache(LENGTHS)
    q, k, v = draw(2, heads, 5, 1), draw(2, kv_heads, 5, 2), draw(2, kv_heads, 5, 3)
    memory.attend(0, q, k, v)
    return memory, k, v


def plainly(row: int, q: Tensor, k: Tensor, v: Tensor, prompt_k: Tensor, prompt_v: Tensor) -> Tensor:
    """Row n of the answers behind its unpadded prompt, by ordinary attention over the whole sequence."""
    prompt, length = row // GROUP, int(LENGTHS[row // GROUP])
    keys = torch.cat([prompt_k[prompt : prompt + 1, :, :length], k[row : row + 1]], 2)
    values = torch.cat([prompt_v[prompt : prompt + 1, :, :length], v[row : row + 1]], 2)
    queries = torch.cat([torch.zeros(1, q.shape[1], length, SIZE, dtype=q.dtype), q[row : row + 1]], 2)
    seen = fn.scaled_dot_product_attention(queries, keys, values, is_causal=True, enable_gqa=True)
    return seen[0, :, length:]


def seated(memory: PromptCache, seats: int = 2) -> DecodeCache:
    found = DecodeCache(memory, seats, GROUP, STEPS, prompt_width=7)
    found.admit(memory)
    return found


@pytest.mark.parametrize(("heads", "kv_heads"), [(2, 2), (4, 2), (4, 1)])
def test_all_ways_agree(heads: int, kv_heads: int) -> None:
    memory, prompt_k, prompt_v = read(heads, kv_heads)
    rows = 2 * GROUP
    q, k, v = draw(rows, heads, STEPS, 4), draw(rows, kv_heads, STEPS, 5), draw(rows, kv_heads, STEPS, 6)
    prompt_of = torch.arange(2).repeat_interleave(GROUP)
    full = AnswerCache(memory, prompt_of, STEPS).attend(0, q, k, v)
    steps = seated(memory)
    one_by_one = []
    for step in range(STEPS):
        here = slice(step, step + 1)
        one_by_one.append(steps.attend(0, q[:, :, here], k[:, :, here], v[:, :, here]))
        steps.advance()
    for row in range(rows):
        expected = plainly(row, q, k, v, prompt_k, prompt_v)
        torch.testing.assert_close(full[row], expected)
        torch.testing.assert_close(torch.cat(one_by_one, 2)[row], expected)


def test_rows_that_leave_do_not_disturb_those_that_stay() -> None:
    memory, *_ = read(4, 2)
    rows = 2 * GROUP
    q, k, v = draw(rows, 4, STEPS, 4), draw(rows, 2, STEPS, 5), draw(rows, 2, STEPS, 6)
    kept, leaving = seated(memory), seated(memory)
    left = torch.arange(rows)
    for step, going in enumerate([None, torch.tensor([0, 2, 4, 5]), torch.tensor([0, 3]), None]):
        here = slice(step, step + 1)
        if going is not None:
            leaving.select(going)
            left = left[going]
        expected = kept.attend(0, q[:, :, here], k[:, :, here], v[:, :, here])[left]
        found = leaving.attend(0, q[left][:, :, here], k[left][:, :, here], v[left][:, :, here])
        torch.testing.assert_close(found, expected)
        kept.advance()
        leaving.advance()
    assert left.tolist() == [0, 5]


def test_groups_that_enter_later_disturb_nobody() -> None:
    """Two groups of three; row 1, then all of the first group leave, and a third group takes their seat at step 2."""
    memory, *_ = read(4, 2)
    late = PromptCache(torch.tensor([4]))
    late.attend(0, draw(1, 4, 4, 11), draw(1, 2, 4, 12), draw(1, 2, 4, 13))
    rows = 2 * GROUP
    q, k, v = draw(rows, 4, STEPS, 4), draw(rows, 2, STEPS, 5), draw(rows, 2, STEPS, 6)
    new_q, new_k, new_v = draw(GROUP, 4, 2, 14), draw(GROUP, 2, 2, 15), draw(GROUP, 2, 2, 16)
    kept, alone, busy = seated(memory), seated(late, 1), seated(memory)
    left = torch.arange(rows)
    for step, going in enumerate([None, torch.tensor([0, 2, 3, 4, 5]), torch.tensor([2, 3, 4]), None]):
        here = slice(step, step + 1)
        if going is not None:
            busy.select(going)
            left = left[going]
        newcomer = step >= 2
        if step == 2:
            assert busy.free_seats == [0]
            busy.admit(late)
            assert busy.free_seats == []
        expected = kept.attend(0, q[:, :, here], k[:, :, here], v[:, :, here])[left]
        parts = [x[left][:, :, here] for x in (q, k, v)]
        if newcomer:
            at = slice(step - 2, step - 1)
            expected = torch.cat([expected, alone.attend(0, new_q[:, :, at], new_k[:, :, at], new_v[:, :, at])])
            parts = [torch.cat([x, new[:, :, at]]) for x, new in zip(parts, (new_q, new_k, new_v), strict=True)]
            alone.advance()
        torch.testing.assert_close(busy.attend(0, *parts), expected)
        kept.advance()
        busy.advance()
    assert left.tolist() == [3, 4, 5]


def test_a_branch_may_stop_early() -> None:
    memory, *_ = read(2, 2)
    q, k, v = draw(2, 2, STEPS, 4), draw(2, 2, STEPS, 5), draw(2, 2, STEPS, 6)
    answers = AnswerCache(memory, torch.tensor([0, 1]), STEPS)
    full = answers.attend(0, q, k, v)
    torch.testing.assert_close(answers.attend(0, q[:, :, :2], k[:, :, :2], v[:, :, :2]), full[:, :, :2])


def test_on_a_gpu_masked_heads_get_keys_of_their_own(monkeypatch: pytest.MonkeyPatch) -> None:
    """A fake GPU: shapes and devices without numbers. Grouped heads with a mask have no kernel but the one of all scores."""
    called = []

    def attention(q: Tensor, k: Tensor, v: Tensor, attn_mask: Tensor, enable_gqa: bool) -> Tensor:
        called.append((k.shape, v.shape, enable_gqa))
        return q

    monkeypatch.setattr("paras2s.policy.dual_stream.kv_cache.fn.scaled_dot_product_attention", attention)
    with FakeTensorMode():
        q, k = (torch.empty(3, heads, 4, 8, dtype=torch.bfloat16, device="cuda") for heads in (4, 2))
        _masked(q, k, k, torch.zeros(3, 1, 4, 4, device="cuda"))
    q, k = draw(3, 4, 4, 0), draw(3, 2, 4, 1)
    _masked(q, k, k, torch.zeros(3, 1, 4, 4))
    assert called == [((3, 4, 4, 8), (3, 4, 4, 8), False), ((3, 2, 4, 8), (3, 2, 4, 8), True)]


def test_on_a_gpu_scores_are_made_in_float32_from_keys_as_they_are() -> None:
    with FakeTensorMode():
        q, k = (torch.empty(3, 2, length, 8, dtype=torch.bfloat16, device="cuda") for length in (4, 9))
        # Fake tensors cannot be sliced where torch has no CUDA.
        scores = _scores(q, k.narrow(2, 0, 7))
    assert (scores.dtype, scores.shape, scores.device.type) == (torch.float32, (3, 2, 4, 7), "cuda")


def half_precision_decoder(constant: float) -> DualStreamLM:
    """Two heads of 64, half of each rotated; biases of the other half add `constant` to every score, as Qwen2's do."""
    sizes = dict(hidden_size=128, intermediate_size=192, num_heads=2, num_kv_heads=1, rotary_share=0.5)
    model = DualStreamLM(small_config((50,), text=40, layers=4, tap=1).model_copy(update=sizes))
    generator = torch.Generator().manual_seed(0)
    for name, weight in model.named_parameters():
        if weight.ndim > 1:
            weight.data.normal_(0, weight.shape[-1] ** -0.5, generator=generator)
        elif name.endswith("bias"):
            weight.data.zero_()
        if name.endswith(("q_proj.bias", "k_proj.bias")):
            weight.data.view(-1, 64)[:, 32:] = (constant * 64**0.5 / 32) ** 0.5
    return model.bfloat16().eval()


def test_half_precision_keeps_scores_in_float32_as_the_learner_does() -> None:
    """A constant part of scores cancels in the softmax; rounded to bfloat16 it takes the rest with it (0.2 nats a token)."""
    model = half_precision_decoder(283.0)
    prompts = [small_prompt(model.dual_config, 1, 12, seed=1)]
    sampling = Sampling(max_steps=24)
    (generation,) = sample(model, SampleRequest(prompts, [[1, 2, 3, 4]], sampling), decoder=ModelDecoder(model))
    (block,) = generation.blocks
    with torch.no_grad():
        scored = teacher_forced(model, prompts, [block], sampling).double().numpy()
    gaps = np.abs(scored - block.behaviour_logp)[block.sampled]
    assert len(gaps) > 50
    assert gaps.mean() < 0.04
