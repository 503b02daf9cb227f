"""The contract of docs/policies.md on tiny random Moshis in float64, and parity with transformers' own generation.

Not covered: the released weights and tokenizer, half precision, GPUs, flash attention.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tiny.moshi import tiny_exhaustive, tiny_moshi, tiny_moshi_turns, tone

from paras2s.audio.clip import Clip
from paras2s.errors import PolicyError
from paras2s.policy.moshi import MoshiPolicy, MoshiText, _PerCodebook
from paras2s.policy.types import Generation, Prompt, SampleRequest, Sampling, Turn
from paras2s.types import Block

WARM = Sampling(text_temperature=0.7, audio_temperature=1.4, max_steps=7)
SEEDS = [[1, 2, 3], [4, 5, 6], [7, 8, 9]]
# A text id that these models say often enough to end some answers and not all.
END = 9


@pytest.fixture(scope="module")
def policy() -> MoshiPolicy:
    """One for all tests that change nothing."""
    return tiny_moshi()


@pytest.fixture(scope="module")
def prompts(policy: MoshiPolicy) -> list[Prompt]:
    return [policy.encode_prompt(turns) for turns in tiny_moshi_turns()]


@pytest.fixture(scope="module")
def answers(policy: MoshiPolicy, prompts: list[Prompt]) -> list[Generation]:
    return policy.generate(SampleRequest(prompts, SEEDS, WARM))


def scores(policy: MoshiPolicy, prompts: Sequence[Prompt], blocks: Sequence[Block], sampling: Sampling = WARM) -> torch.Tensor:
    (logp,) = policy.logprobs(prompts, [(block,) for block in blocks], sampling)
    return logp


def with_end(policy: MoshiPolicy, end_id: int) -> MoshiPolicy:
    """The same network, taught an end."""
    other = object.__new__(MoshiPolicy)
    other.__dict__.update(policy.__dict__, text_ids=MoshiText(3, 0, end_id))
    return other


def assert_same_answer(first: Block, row: int, second: Block, other: int) -> None:
    steps = min(first.tokens.shape[1], second.tokens.shape[1])
    np.testing.assert_array_equal(first.tokens[row, :steps], second.tokens[other, :steps])
    np.testing.assert_array_equal(first.sampled[row, :steps], second.sampled[other, :steps])
    np.testing.assert_allclose(first.behaviour_logp[row, :steps], second.behaviour_logp[other, :steps], atol=1e-6, rtol=0)
    assert not first.sampled[row, steps:].any()
    assert not second.sampled[other, steps:].any()


# -- 1: what sampling says and what teacher forcing says ------------------------------------------------------------


@pytest.mark.parametrize("sampling", [Sampling(max_steps=7), WARM], ids=["T 1", "T of its own a stream"])
@pytest.mark.parametrize("end_id", [None, END])
def test_1_behaviour_logprobs_are_the_teacher_forced_ones(
    policy: MoshiPolicy, prompts: list[Prompt], sampling: Sampling, end_id: int | None
) -> None:
    policy = policy if end_id is None else with_end(policy, end_id)
    found = policy.generate(SampleRequest(prompts, [[6 * row + number for number in range(6)] for row in range(3)], sampling))
    logp = scores(policy, prompts, [one.blocks[0] for one in found], sampling).detach().numpy()
    for number, one in enumerate(found):
        (block,) = one.blocks
        mine = logp[6 * number : 6 * number + 6]
        np.testing.assert_allclose(mine[:, : block.tokens.shape[1]], block.behaviour_logp, atol=1e-6, rtol=0)
        assert not mine[:, block.tokens.shape[1] :].any()
        assert (block.behaviour_logp[block.sampled] < 0).all()
        assert not block.behaviour_logp[~block.sampled].any()
    reasons = {reason for one in found for reason in one.finish_reason}
    assert reasons == ({"length"} if end_id is None else {"eos", "length"})


def test_1_each_stream_has_its_own_temperature(policy: MoshiPolicy, prompts: list[Prompt], answers: list[Generation]) -> None:
    blocks = [one.blocks[0] for one in answers]
    cold, warm = (scores(policy, prompts, blocks, s) for s in (Sampling(), Sampling(audio_temperature=1.4)))
    assert torch.equal(cold[..., 0], warm[..., 0])
    assert (cold[..., 1] - warm[..., 1]).abs().max() > 0.01


# -- 2 and 3: neighbours and groups change nothing ------------------------------------------------------------------


@pytest.mark.parametrize("end_id", [None, END])
def test_2_batched_is_one_by_one(policy: MoshiPolicy, prompts: list[Prompt], end_id: int | None) -> None:
    assert len({prompt.length for prompt in prompts}) == 3
    policy = policy if end_id is None else with_end(policy, end_id)
    together = policy.generate(SampleRequest(prompts, SEEDS, WARM))
    for number, prompt in enumerate(prompts):
        (alone,) = policy.generate(SampleRequest([prompt], [SEEDS[number]], WARM))
        assert alone.finish_reason == together[number].finish_reason
        for row in range(3):
            assert_same_answer(together[number].blocks[0], row, alone.blocks[0], row)


def test_2_batched_scores_are_those_one_by_one(policy: MoshiPolicy, prompts: list[Prompt], answers: list[Generation]) -> None:
    short = answers[0].blocks[0]
    short = Block(short.slots, short.tokens[:2, :3], short.sampled[:2, :3], short.behaviour_logp[:2, :3])
    blocks = [short, answers[1].blocks[0], answers[2].blocks[0]]
    together, row = scores(policy, prompts, blocks), 0
    for prompt, block in zip(prompts, blocks, strict=True):
        alone = scores(policy, [prompt], [block])
        count, steps, _ = alone.shape
        torch.testing.assert_close(together[row : row + count, :steps], alone, atol=1e-6, rtol=0)
        assert not together[row : row + count, steps:].any()
        row += count


def test_2_more_rows_than_fit_go_one_after_the_other(
    policy: MoshiPolicy, prompts: list[Prompt], answers: list[Generation], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("paras2s.policy.moshi.ROWS_AT_ONCE", 4)
    for one, other in zip(policy.generate(SampleRequest(prompts, SEEDS, WARM)), answers, strict=True):
        assert one.seeds == other.seeds
        for row in range(3):
            assert_same_answer(one.blocks[0], row, other.blocks[0], row)


def test_3_shared_prefill_is_as_many_prefills(policy: MoshiPolicy, prompts: list[Prompt]) -> None:
    policy = with_end(policy, END)
    seeds = list(range(10))
    (group,) = policy.generate(SampleRequest(prompts[1:2], [seeds], WARM))
    assert set(group.finish_reason) == {"eos", "length"}
    for row, seed in enumerate(seeds):
        (alone,) = policy.generate(SampleRequest(prompts[1:2], [[seed]], WARM))
        assert alone.finish_reason[0] == group.finish_reason[row]
        assert_same_answer(group.blocks[0], row, alone.blocks[0], 0)
    (twice,) = policy.generate(SampleRequest(prompts[1:2], [[0, 0]], WARM))
    assert_same_answer(twice.blocks[0], 0, twice.blocks[0], 1)


def test_3_an_end_is_the_last_frame_and_is_sampled_full(policy: MoshiPolicy, prompts: list[Prompt]) -> None:
    (group,) = with_end(policy, END).generate(SampleRequest(prompts[:1], [list(range(12))], WARM))
    (block,) = group.blocks
    for row, reason in enumerate(group.finish_reason):
        steps = int(block.sampled[row].any(1).sum())
        assert block.sampled[row, :steps, 0].all()
        assert block.sampled[row, 1:steps].all()
        assert (block.tokens[row, : steps - 1, 0] != END).all()
        assert (block.tokens[row, steps - 1, 0] == END) == (reason == "eos")
        assert (block.tokens[row, steps:, 0] == 3).all()
        assert (block.tokens[row, steps:, 1:] == 8).all()


@pytest.mark.parametrize(
    ("sampling", "match"),
    [
        (Sampling(max_steps=110), "context holds 120"),
        (Sampling(speak=False), "text alone"),
        (Sampling(text_temperature=0.0), "temperatures"),
    ],
)
def test_3_what_cannot_be_sampled_is_refused(
    policy: MoshiPolicy, prompts: list[Prompt], sampling: Sampling, match: str
) -> None:
    with pytest.raises(PolicyError, match=match):
        policy.generate(SampleRequest(prompts, SEEDS, sampling))


def test_3_top_k_keeps_to_the_likeliest(policy: MoshiPolicy, prompts: list[Prompt]) -> None:
    greedy = Sampling(1e-4, 1e-4, 7)
    (best,) = policy.generate(SampleRequest(prompts[:1], [[1]], greedy))
    (top,) = policy.generate(SampleRequest(prompts[:1], [[2]], Sampling(1.0, 1.0, 7, text_top_k=1, audio_top_k=1)))
    np.testing.assert_array_equal(best.blocks[0].tokens, top.blocks[0].tokens)


# -- transformers' own generation, and its traps ---------------------------------------------------------------------


def test_greedy_answers_are_those_of_transformers(prompts: list[Prompt], tmp_path: Path) -> None:
    """The layout, the delays, the forced first frame and the user's silence, against `generate` of the saved checkpoint."""
    from transformers import MoshiForConditionalGeneration

    policy = tiny_moshi()
    policy.save(tmp_path)
    other: Any = MoshiForConditionalGeneration.from_pretrained(tmp_path, dtype=torch.float64)
    # transformers' silence is the first frame that Mimi gives, ours the one it settles at; here both take the first.
    frame = np.zeros(1920, dtype=np.float32)
    policy.__dict__["silence"] = policy._codes_of(Clip(frame, 24_000))[0]
    for number, turns in enumerate(tiny_moshi_turns()):
        prompt = policy.encode_prompt(turns)
        own, user = (_undelayed(part, policy.silence) for part in np.split(prompt.audio_ids, 2, 1))
        with torch.no_grad():
            theirs = other.generate(
                input_ids=torch.from_numpy(prompt.text_ids[None, 1:]),
                moshi_audio_codes=torch.from_numpy(own.T[None]),
                user_audio_codes=torch.from_numpy(user.T[None]),
                max_new_tokens=8,
                do_sample=False,
                depth_decoder_do_sample=False,
                return_audio_codes=True,
                return_audio_waveforms=True,
            )
        (ours,) = policy.generate(SampleRequest([prompt], [[number]], Sampling(1e-4, 1e-4, 8)))
        text = theirs.sequences[0, -8:]
        np.testing.assert_array_equal(ours.blocks[0].tokens[0, :, 0], text)
        codes = policy.decode_codes(ours.blocks, 0)
        assert len(set(map(tuple, codes))) > 2, "a constant answer would prove little"
        np.testing.assert_array_equal(codes, theirs.audio_codes[0].T[-7:])


def _undelayed(laid: np.ndarray, last: np.ndarray) -> np.ndarray:
    """Codes [F, K] of a prompt's stream; the last frame's later codes are silence."""
    return np.concatenate([laid[1:, :1], np.concatenate([laid[2:, 1:], last[None, 1:]])], 1)


def test_a_depth_decoder_with_eager_attention_does_not_look_ahead(prompts: list[Prompt]) -> None:
    """Without a mask, transformers' own does (docs/policies.md, "Moshi")."""
    policy = tiny_moshi()
    depth = policy.model.depth_decoder
    (found,) = policy.generate(SampleRequest(prompts[:1], SEEDS[:1], WARM))
    depth.config._attn_implementation = "eager"
    torch.testing.assert_close(
        scores(policy, prompts[:1], found.blocks).detach(), torch.from_numpy(found.blocks[0].behaviour_logp), atol=1e-6, rtol=0
    )
    (eager,) = policy.generate(SampleRequest(prompts[:1], SEEDS[:1], WARM))
    assert_same_answer(found.blocks[0], 2, eager.blocks[0], 2)
    given = torch.tensor([[4, 1, 2], [4, 1, 7]])
    states = torch.ones(2, 24, dtype=torch.float64)
    masked = policy.model.frames(states, given)
    torch.testing.assert_close(masked[0, :2], masked[1, :2], atol=1e-6, rtol=0)
    bare = depth(input_ids=given, last_hidden_state=states[:, None], use_cache=False).logits
    assert (bare[0, :2] - bare[1, :2]).abs().max() > 1e-3


def test_a_product_a_codebook_is_transformers_own() -> None:
    from transformers.models.moshi.modeling_moshi import MoshiFlexibleLinear

    theirs = MoshiFlexibleLinear(5, 7, 3).double()
    ours = _PerCodebook(theirs.weight)
    x = torch.randn(4, 3, 5, dtype=torch.float64)
    torch.testing.assert_close(ours(x), theirs(x))
    for idx in (torch.tensor([1]), torch.arange(3)):
        torch.testing.assert_close(ours(x[:, :1], idx), theirs(x[:, :1], idx))


# -- 4: causality and forced tokens ---------------------------------------------------------------------------------


def changed(block: Block, row: int, step: int, slot: int, count: int) -> Block:
    tokens = block.tokens.copy()
    tokens[row, step, slot] = (tokens[row, step, slot] + 1) % count
    return Block(block.slots, tokens, block.sampled, block.behaviour_logp)


@pytest.mark.parametrize("step", [0, 3, 6])
@pytest.mark.parametrize("slot", [0, 1, 2, 3])
def test_4_a_token_changes_only_what_comes_after(
    policy: MoshiPolicy, prompts: list[Prompt], answers: list[Generation], step: int, slot: int
) -> None:
    (block,) = answers[0].blocks
    before = scores(policy, prompts[:1], [block]).detach()
    after = scores(policy, prompts[:1], [changed(block, 1, step, slot, 8)]).detach()
    moved = (before - after).abs() > 1e-9
    assert not moved[[0, 2]].any()
    assert not moved[1, :step].any()
    assert not moved[1, step, :slot].any()
    if block.sampled[1, step, slot]:
        assert moved[1, step, slot]
    if slot < 3 and step > 0:
        assert moved[1, step, slot + 1 :].all(), "later codes of a frame hang on its earlier tokens"
    if step < 6:
        assert moved[1, step + 1 :].all(), "later frames hang on all tokens of a frame"


def test_4_a_mask_changes_its_token_alone(policy: MoshiPolicy, prompts: list[Prompt], answers: list[Generation]) -> None:
    (block,) = answers[0].blocks
    before = scores(policy, prompts[:1], [block]).detach()
    sampled = block.sampled.copy()
    sampled[:, 0, 2:] = True
    sampled[:, 4, 1] = False
    after = scores(policy, prompts[:1], [Block(block.slots, block.tokens, sampled, block.behaviour_logp)]).detach()
    assert (after[:, 0, 2:] < 0).all()
    assert not after[:, 4, 1].any()
    after[:, 0, 2:], after[:, 4, 1] = 0, before[:, 4, 1]
    assert torch.equal(before, after)


def test_4_forced_are_the_first_frames_later_codes(
    policy: MoshiPolicy, prompts: list[Prompt], answers: list[Generation]
) -> None:
    for one in answers:
        (block,) = one.blocks
        assert not block.sampled[:, 0, 2:].any()
        assert block.sampled[:, 0, :2].all()
        assert block.sampled[:, 1:].all()
        assert (block.tokens[:, 0, 2:] == policy.silence[1:]).all()


def test_4_both_sides_of_the_question_are_read(policy: MoshiPolicy, prompts: list[Prompt], answers: list[Generation]) -> None:
    (block,) = answers[1].blocks
    before = scores(policy, prompts[1:2], [block])
    for step, column in itertools.product((1, 4, prompts[1].length - 1), range(6)):
        audio = prompts[1].audio_ids.copy()
        audio[step, column] = (audio[step, column] + 1) % 8
        other = Prompt(audio, prompts[1].text_ids, None, prompts[1].continuous)
        assert (scores(policy, [other], [block]) - before)[:, 0, :2].abs().min() > 1e-9


def test_an_answer_without_sound_is_scored(policy: MoshiPolicy, prompts: list[Prompt]) -> None:
    sampled = np.zeros((1, 2, 4), dtype=bool)
    sampled[0, :, 0] = True
    tokens = np.full((1, 2, 4), 3)
    logp = scores(policy, prompts[:1], [Block(("text", "audio0", "audio1", "audio2"), tokens, sampled, sampled * 0.0)])
    assert (logp[0, :, 0] < 0).all()
    assert not logp[..., 1:].any()


# -- 5 and 6: gradients, reference, files ---------------------------------------------------------------------------


def test_5_each_stream_reaches_every_adapter(prompts: list[Prompt]) -> None:
    policy = tiny_moshi()
    policy.add_lora(2, 4)
    names = {name for name in policy.trainable() if "lora_" in name}
    assert len(names) == len(policy.trainable()) == 2 * 2 * 6
    for name, parameter in policy.trainable().items():
        if "lora_B" in name:
            torch.nn.init.normal_(parameter, std=0.1)
    (found,) = policy.generate(SampleRequest(prompts[:1], SEEDS[:1], WARM))
    for slots in (slice(0, 1), slice(1, 4)):
        policy.model.zero_grad()
        scores(policy, prompts[:1], found.blocks)[..., slots].sum().backward()
        for name, parameter in policy.trainable().items():
            assert parameter.grad is not None, name
            assert parameter.grad.abs().max() > 0, name


def test_5_without_adapters_everything_learns_but_mimi(prompts: list[Prompt], answers: list[Generation]) -> None:
    policy = tiny_moshi()
    scores(policy, prompts, [one.blocks[0] for one in answers]).sum().backward()
    assert set(policy.trainable()) == set(dict(policy.model.named_parameters()))
    for name, parameter in policy.trainable().items():
        assert parameter.grad is not None, name
        assert parameter.grad.abs().max() > 0, name
    assert all(parameter.grad is None and not parameter.requires_grad for parameter in policy.mimi.parameters())


@pytest.mark.parametrize("lora", [True, False])
def test_6_the_reference_is_the_policy_before_training(
    prompts: list[Prompt], answers: list[Generation], lora: bool, tmp_path: Path
) -> None:
    policy = tiny_moshi()
    blocks = [one.blocks[0] for one in answers]
    before = scores(policy, prompts, blocks).detach()
    if lora:
        policy.add_lora(2, 4)
    else:
        policy.freeze_reference()
    with torch.no_grad():
        for parameter in policy.trainable().values():
            parameter += 0.05 * torch.randn_like(parameter)
    after = scores(policy, prompts, blocks).detach()
    assert (after - before).abs().max() > 1e-2
    with policy.reference():
        assert torch.equal(scores(policy, prompts, blocks), before)
    assert torch.equal(scores(policy, prompts, blocks), after)

    if lora:
        with pytest.raises(PolicyError, match="merge_lora"):
            policy.save(tmp_path)
        policy.merge_lora()
    policy.save(tmp_path)
    loaded = MoshiPolicy.load(tmp_path)
    assert set(loaded.model.state_dict()) == set(tiny_moshi().model.state_dict())
    torch.testing.assert_close(scores(loaded, prompts, blocks).detach(), after, atol=1e-5, rtol=0)
    assert (loaded.text_ids, loaded.spec) == (policy.text_ids, policy.spec)
    clip = tone(0.3, 24_000, 300)
    np.testing.assert_array_equal(loaded._codes_of(clip), policy._codes_of(clip))
    assert loaded.tokenizer.encode("a c").ids == [4, 6]

    other = tiny_moshi(seed=5)
    codec = {name: value.clone() for name, value in other.mimi.state_dict().items()}
    other.reload(tmp_path)
    torch.testing.assert_close(scores(other, prompts, blocks).detach(), after, atol=1e-5, rtol=0)
    assert all(torch.equal(codec[name], value) for name, value in other.mimi.state_dict().items())


# -- 7: all answers -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("end_id", "count"), [(None, 6 * 12), (2, 2 + 4 * 12)])
def test_7_the_probabilities_of_all_answers_add_up_to_one(end_id: int | None, count: int) -> None:
    policy = tiny_exhaustive(end_id)
    sampling = Sampling(text_temperature=0.8, audio_temperature=1.3, max_steps=2)
    prompt = policy.encode_prompt([Turn("user", clip=tone(0.2, 24_000, 200))])
    tokens, sampled = [], []
    for text, code in itertools.product(range(3), range(2)):
        first = [text, code, int(policy.silence[1])]
        ends = text == end_id
        for second in [(1, 2, 2)] if ends else itertools.product(range(3), range(2), range(2)):
            tokens.append([first, list(second)])
            sampled.append([[True, True, False], [not ends] * 3])
    assert len(tokens) == count
    mask = np.array(sampled)
    block = Block(("text", "audio0", "audio1"), np.array(tokens), mask, mask * 0.0)
    probability = scores(policy, [prompt], [block], sampling).sum((1, 2)).exp()
    assert probability.sum().item() == pytest.approx(1, abs=1e-6)

    drawn = 2000
    (found,) = policy.generate(SampleRequest([prompt], [list(range(drawn))], sampling))
    places = {one.tobytes(): row for row, one in enumerate(block.tokens)}
    rows = [places[one.tobytes()] for one in found.blocks[0].tokens]
    np.testing.assert_array_equal(found.blocks[0].sampled, mask[rows])
    for row, expected in enumerate(probability.tolist()):
        error = (expected * (1 - expected) / drawn) ** 0.5
        assert rows.count(row) / drawn == pytest.approx(expected, abs=5 * error + 1 / drawn)


# -- 8: prompts, targets, decoding ----------------------------------------------------------------------------------


def test_8_an_answer_decodes_to_a_wave_of_1920_samples_a_frame(policy: MoshiPolicy, answers: list[Generation]) -> None:
    blocks = answers[0].blocks
    codes = policy.decode_codes(blocks, 1)
    assert codes.shape == (6, 3), "seven steps hold six whole frames"
    np.testing.assert_array_equal(codes[:, 0], blocks[0].tokens[1, :6, 1])
    np.testing.assert_array_equal(codes[:, 1:], blocks[0].tokens[1, 1:, 2:])
    first, second = policy.decode_audio(blocks, 1, 0), policy.decode_audio(blocks, 1, 0)
    assert (len(first.samples), first.sample_rate_hz, first.samples.dtype) == (6 * 1920, 24_000, np.float32)
    np.testing.assert_array_equal(first.samples, second.samples)
    assert np.isfinite(first.samples).all()
    assert np.abs(first.samples).max() > 0


@pytest.mark.parametrize("steps", [0, 1])
def test_8_an_answer_without_a_full_frame_is_empty(policy: MoshiPolicy, answers: list[Generation], steps: int) -> None:
    (block,) = answers[0].blocks
    sampled = block.sampled.copy()
    sampled[:, steps:] = False
    cut = (Block(block.slots, block.tokens, sampled, block.behaviour_logp),)
    assert policy.decode_codes(cut, 0).shape == (0, 3)
    assert policy.decode_audio(cut, 0, 0).samples.shape == (0,)
    assert policy.decode_text((Block(block.slots, block.tokens * 0 + 3, sampled, block.behaviour_logp),), 0) == ""


@pytest.mark.parametrize("end_id", [None, 2])
def test_8_a_demonstration_is_what_the_model_should_have_sampled(
    policy: MoshiPolicy, prompts: list[Prompt], end_id: int | None
) -> None:
    policy = policy if end_id is None else with_end(policy, end_id)
    clip = tone(0.5, 24_000, 300)
    blocks = policy.encode_target(clip, "b a h")
    np.testing.assert_array_equal(policy.decode_codes(blocks, 0), policy._codes_of(clip))
    assert policy.decode_text(blocks, 0) == "b a h"
    last = 3 if end_id is None else end_id
    assert blocks[0].tokens[0, :, 0].tolist() == [5, 4, 11, 3, 3, 3, 3, last]
    assert blocks[0].sampled.sum() == 8 * 4 - 2
    assert not blocks[0].sampled[0, 0, 2:].any()
    assert (scores(policy, prompts[:1], blocks)[0][torch.from_numpy(blocks[0].sampled[0])] < 0).all()
    with pytest.raises(PolicyError, match=r"8 pieces\) are longer than their speech \(7 frames"):
        policy.encode_target(clip, "a b c d e f g h")


def test_8_a_prompt_is_both_streams_a_frame_apart(policy: MoshiPolicy) -> None:
    question, reply, more = (tone(seconds, 24_000, pitch) for seconds, pitch in ((0.2, 150), (0.16, 330), (0.08, 260)))
    prompt = policy.encode_prompt([Turn("user", clip=question), Turn("assistant", "c", reply), Turn("user", clip=more)])
    first, second, third = map(policy._codes_of, (question, reply, more))
    assert list(map(len, (first, second, third))) == [3, 2, 1]
    assert prompt.length == 1 + 3 + 2 + 1 + 2
    assert prompt.text_ids.tolist() == [12, 3, 3, 3, 6, 3, 3, 3, 3]
    quiet = np.tile(policy.silence, (9, 1))
    own = np.concatenate([quiet[:3], second, quiet[:3]])
    user = np.concatenate([first, quiet[:2], third, quiet[:2]])
    for laid, codes in zip(np.split(prompt.audio_ids, 2, 1), (own, user), strict=True):
        assert (laid[0] == 8).all()
        assert (laid[1, 1:] == 8).all()
        np.testing.assert_array_equal(laid[1:, 0], codes[:, 0])
        np.testing.assert_array_equal(laid[2:, 1:], codes[:-1, 1:])
        np.testing.assert_array_equal(laid[-1], policy.silence)
    assert not prompt.continuous.any()
    assert prompt.features is None


@pytest.mark.parametrize(
    ("turns", "match"),
    [
        ([], "needs a turn"),
        ([Turn("system", "be kind"), Turn("user", clip=tone(0.1, 24_000, 200))], "speech alone"),
        ([Turn("user", "hello")], "speech alone"),
        ([Turn("user", clip=tone(9.6, 24_000, 200))], "context 120"),
    ],
)
def test_8_dialogues_that_moshi_cannot_hear_are_refused(policy: MoshiPolicy, turns: list[Turn], match: str) -> None:
    with pytest.raises(PolicyError, match=match):
        policy.encode_prompt(turns)


def test_the_spec_says_what_the_model_is(policy: MoshiPolicy) -> None:
    spec = policy.spec
    assert [slot.name for slot in spec.slots] == ["text", "audio0", "audio1", "audio2"]
    assert [(slot.kind, slot.start, slot.stop) for slot in spec.slots] == [("text", 0, 12)] + 3 * [("audio", 0, 8)]
    assert (spec.step_rate_hz, spec.input_rate_hz, spec.output_rate_hz) == (12.5, 24_000, 24_000)
    assert (spec.code_format, spec.context_steps) == ("mimi-3@12.5", 120)
    sharded = [name for name, _ in policy.model.named_modules() if re.fullmatch(spec.sharded, name)]
    assert len(sharded) == 4
    assert not [name for name, _ in policy.model.named_parameters() if re.fullmatch(spec.adaptor_parameters, name)]
