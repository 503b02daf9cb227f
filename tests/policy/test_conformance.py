"""The contract of docs/policies.md on tiny dual-stream models in float64.

Not covered: half precision, GPUs, and whether the released checkpoint samples as these tiny models do.
"""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import torch
from tiny.dual_stream import golden_config, golden_model, golden_prompt, small_config, small_model, small_policy, small_prompt
from torch import Tensor

from paras2s.configs.schema.align import ObjectiveConfig
from paras2s.errors import PolicyError
from paras2s.policy.dual_stream.config import DualStreamConfig
from paras2s.policy.dual_stream.logprobs import teacher_forced
from paras2s.policy.dual_stream.model import DualStreamLM
from paras2s.policy.dual_stream.sampler import sample
from paras2s.policy.embedded.codec2 import Codec2Pairs
from paras2s.policy.embedded.policy import EmbeddedPolicy
from paras2s.policy.types import Prompt, SampleRequest, Sampling
from paras2s.train.losses import LogProbBatch, grpo_loss
from paras2s.types import Block

WARM = Sampling(text_temperature=0.7, audio_temperature=1.4, max_steps=9)


def text_prompt(config: DualStreamConfig, length: int) -> Prompt:
    """A prompt of a model without an audio branch."""
    text = np.arange(length) % config.text_eos_id
    return Prompt(np.zeros((length, 0), dtype=np.int64), text, None, np.zeros(length, dtype=bool))


def small_case(codebooks: tuple[int, ...] = (5, 4), delay: int = 1) -> tuple[DualStreamLM, list[Prompt]]:
    """Three prompts of different length, one of them with two clips."""
    config = small_config(codebooks, delay=delay)
    shapes = ((1, 4), (2, 3), (1, 1))
    prompts = [small_prompt(config, clips, steps, seed) for seed, (clips, steps) in enumerate(shapes)]
    return small_model(config), prompts


def case(name: str) -> tuple[DualStreamLM, list[Prompt]]:
    if name == "golden":
        complete = golden_prompt()
        short = Prompt(*(part[1:] for part in (complete.audio_ids, complete.text_ids, complete.features, complete.continuous)))
        return golden_model().eval(), [complete, short]
    if name == "text only":
        config = small_config(codebooks=())
        return small_model(config), [text_prompt(config, 5), text_prompt(config, 2)]
    settings = {"two codebooks": {}, "delay 3": {"delay": 3}, "no delay": {"codebooks": (5,), "delay": 0}}
    return small_case(**settings[name])


CASES = ("two codebooks", "delay 3", "no delay", "golden", "text only")


def seeds(prompts: int, group: int) -> list[list[int]]:
    return [[1000 * row + number for number in range(group)] for row in range(prompts)]


def lengths(block: Block) -> list[int]:
    """Steps of each answer, up to its last sampled token."""
    return [int(np.flatnonzero(rows.any(1)).max()) + 1 for rows in block.sampled]


def assert_same_answer(first: Block, row: int, second: Block, other: int) -> None:
    """Equal tokens, masks and log-probs; behind the shorter block nothing was sampled."""
    steps = min(first.tokens.shape[1], second.tokens.shape[1])
    np.testing.assert_array_equal(first.tokens[row, :steps], second.tokens[other, :steps])
    np.testing.assert_array_equal(first.sampled[row, :steps], second.sampled[other, :steps])
    np.testing.assert_allclose(first.behaviour_logp[row, :steps], second.behaviour_logp[other, :steps], atol=1e-10, rtol=0)
    assert not first.sampled[row, steps:].any()
    assert not second.sampled[other, steps:].any()


# -- 1: what sampling says and what teacher forcing says ------------------------------------------------------------


@pytest.mark.parametrize("sampling", [Sampling(max_steps=9), WARM], ids=["T 1", "T of its own a stream"])
@pytest.mark.parametrize("name", CASES)
def test_1_behaviour_logprobs_are_the_teacher_forced_ones(name: str, sampling: Sampling) -> None:
    model, prompts = case(name)
    found = sample(model, SampleRequest(prompts, seeds(len(prompts), 5), sampling))
    blocks = [one.blocks[0] for one in found]
    logp = teacher_forced(model, prompts, blocks, sampling).detach().numpy()
    row = 0
    for block in blocks:
        answers, steps, _ = block.tokens.shape
        np.testing.assert_allclose(logp[row : row + answers, :steps], block.behaviour_logp, atol=1e-10, rtol=0)
        assert not logp[row : row + answers, steps:].any()
        assert (block.behaviour_logp[block.sampled] < 0).all()
        assert not block.behaviour_logp[~block.sampled].any()
        row += answers


def test_1_each_stream_has_its_own_temperature() -> None:
    model, prompts = small_case()
    blocks = [one.blocks[0] for one in sample(model, SampleRequest(prompts, seeds(3, 2), WARM))]
    cold, warm = (teacher_forced(model, prompts, blocks, s) for s in (Sampling(), Sampling(audio_temperature=1.4)))
    assert torch.equal(cold[..., 0], warm[..., 0])
    assert not torch.equal(cold[..., 1], warm[..., 1])


# -- 2 and 3: neighbours and groups change nothing ------------------------------------------------------------------


@pytest.mark.parametrize("name", CASES)
def test_2_batched_is_one_by_one(name: str) -> None:
    model, prompts = case(name)
    together = sample(model, SampleRequest(prompts, seeds(len(prompts), 3), WARM))
    for number, prompt in enumerate(prompts):
        (alone,) = sample(model, SampleRequest([prompt], [seeds(len(prompts), 3)[number]], WARM))
        assert alone.finish_reason == together[number].finish_reason
        for answer in range(3):
            assert_same_answer(together[number].blocks[0], answer, alone.blocks[0], answer)


@pytest.mark.parametrize("name", CASES)
def test_2_batched_teacher_forcing_is_one_by_one(name: str) -> None:
    model, prompts = case(name)
    blocks = [one.blocks[0] for one in sample(model, SampleRequest(prompts, seeds(len(prompts), 2), WARM))]
    together = teacher_forced(model, prompts, blocks, WARM)
    for number, (prompt, block) in enumerate(zip(prompts, blocks, strict=True)):
        alone = teacher_forced(model, [prompt], [block], WARM)
        rows = together[2 * number : 2 * number + 2, : alone.shape[1]]
        torch.testing.assert_close(rows, alone, atol=1e-10, rtol=0)


@pytest.mark.parametrize("name", CASES)
def test_3_shared_prefill_is_as_many_prefills(name: str) -> None:
    model, prompts = case(name)
    (group,) = sample(model, SampleRequest(prompts[:1], seeds(1, 6), WARM))
    for answer, seed in enumerate(seeds(1, 6)[0]):
        (alone,) = sample(model, SampleRequest(prompts[:1], [[seed]], WARM))
        assert alone.finish_reason[0] == group.finish_reason[answer]
        assert_same_answer(group.blocks[0], answer, alone.blocks[0], 0)


def test_3_answers_that_end_leave_without_changing_the_others() -> None:
    model, prompts = small_case()
    sampling = Sampling(audio_temperature=3.0, max_steps=24)
    together = sample(model, SampleRequest(prompts, seeds(3, 8), sampling))
    ends = [length for one in together for length in lengths(one.blocks[0])]
    assert len(set(ends)) >= 6, "the batch must shrink several times for this test to mean anything"
    for number, prompt in enumerate(prompts):
        for answer in range(8):
            (alone,) = sample(model, SampleRequest([prompt], [[1000 * number + answer]], sampling))
            assert_same_answer(together[number].blocks[0], answer, alone.blocks[0], 0)


@pytest.mark.parametrize("rows", [4, 5, 9, 13])
def test_3_answers_that_wait_for_a_place_are_the_same(rows: int) -> None:
    """Continuous batching: nine queries of four answers, at most so many rows at a time; queries enter as answers end."""
    config = small_config(delay=2)
    model = small_model(config)
    prompts = [small_prompt(config, 1 + number % 2, 1 + (5 * number) % 4, number) for number in range(9)]
    sampling = Sampling(audio_temperature=3.0, max_steps=12)
    together = sample(model, SampleRequest(prompts, seeds(9, 4), sampling))
    waiting = sample(model, SampleRequest(prompts, seeds(9, 4), sampling), rows_at_once=rows)
    assert len({length for one in together for length in lengths(one.blocks[0])}) >= 5
    for one, other in zip(together, waiting, strict=True):
        assert one.finish_reason == other.finish_reason
        assert one.seeds == other.seeds
        for answer in range(4):
            assert_same_answer(one.blocks[0], answer, other.blocks[0], answer)


def test_3_a_seed_decides_an_answer() -> None:
    model, prompts = small_case()
    (first,) = sample(model, SampleRequest(prompts[:1], [[7, 7]], WARM))
    (second,) = sample(model, SampleRequest(prompts[:1], [[7, 8]], WARM))
    assert_same_answer(first.blocks[0], 0, first.blocks[0], 1)
    assert_same_answer(first.blocks[0], 0, second.blocks[0], 0)
    steps = min(first.blocks[0].tokens.shape[1], second.blocks[0].tokens.shape[1])
    assert (first.blocks[0].tokens[1, :steps] != second.blocks[0].tokens[1, :steps]).any()


@pytest.mark.parametrize(
    ("prompts", "rows", "sampling"),
    [
        (0, [], Sampling()),
        (2, [[1, 2], [3]], Sampling()),
        (1, [], Sampling()),
        (1, [[1, 2]], Sampling(text_temperature=0.0)),
        (1, [[1, 2]], Sampling(audio_temperature=-1.0)),
    ],
    ids=["no prompt", "a seed too few", "too few rows", "greedy text", "negative audio"],
)
def test_what_cannot_be_sampled_is_refused(prompts: int, rows: list[list[int]], sampling: Sampling) -> None:
    model, all_prompts = small_case()
    with pytest.raises(PolicyError):
        sample(model, SampleRequest(all_prompts[:prompts], rows, sampling))


# -- 4: masks and causality -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", CASES)
def test_4_only_the_sampled_mask_decides_what_counts(name: str) -> None:
    model, prompts = case(name)
    block = sample(model, SampleRequest(prompts[:1], seeds(1, 2), WARM))[0].blocks[0]
    complete = teacher_forced(model, prompts[:1], [block], WARM)
    assert not complete[~torch.from_numpy(block.sampled)].any()
    noisy = Block(block.slots, block.tokens, block.sampled, np.where(block.sampled, block.behaviour_logp, -50.0))
    assert torch.equal(teacher_forced(model, prompts[:1], [noisy], WARM), complete)
    for answer, step, slot in np.argwhere(block.sampled):
        sampled = block.sampled.copy()
        sampled[answer, step, slot] = False
        if slot == 1:
            # The first audio slot stands for its step: what is sampled beside it goes with it.
            sampled[answer, step, 1:] = False
        fewer = teacher_forced(model, prompts[:1], [Block(block.slots, block.tokens, sampled, complete)], WARM)
        expected = torch.where(torch.from_numpy(sampled), complete, 0.0)
        torch.testing.assert_close(fewer, expected, atol=1e-12, rtol=0)


def test_4_behaviour_logprobs_of_forced_tokens_do_not_reach_the_loss() -> None:
    model, prompts = small_case(delay=3)
    block = sample(model, SampleRequest(prompts[:1], seeds(1, 4), WARM))[0].blocks[0]
    logp = teacher_forced(model, prompts[:1], [block], WARM).detach().flatten(1)
    steps = torch.arange(block.tokens.shape[1]).repeat_interleave(3).expand(4, -1)
    streams = (torch.arange(logp.shape[1]) % 3 > 0).long().expand(4, -1)
    mask = torch.from_numpy(block.sampled).flatten(1).double()
    assert (mask == 0).sum() > 8
    advantages = torch.tensor([1.0, -1.0, 0.5, 2.0], dtype=torch.float64)
    losses = []
    for forced in (0.0, -7.0):
        old = torch.where(mask > 0, torch.from_numpy(block.behaviour_logp).flatten(1) + 0.1, forced)
        batch = LogProbBatch(logp, old, old, mask, steps, streams)
        losses.append(grpo_loss(batch, advantages, ObjectiveConfig(average="joint"), 9).loss.item())
    assert losses[0] == losses[1]


@pytest.mark.parametrize("name", CASES)
def test_4_a_token_changes_nothing_before_or_beside_it(name: str) -> None:
    model, prompts = case(name)
    config = model.dual_config
    found = sample(model, SampleRequest(prompts[:1], seeds(1, 6), WARM))[0]
    block = found.blocks[0]
    answer = int(np.argmax(lengths(block)))
    tokens, sampled = block.tokens[answer : answer + 1], block.sampled[answer : answer + 1]
    before = teacher_forced(model, prompts[:1], [Block(block.slots, tokens, sampled, sampled * 0.0)], WARM)
    ranges = (config.text_range, *config.audio_ranges)
    last = lengths(block)[answer] - 1
    moved = 0
    for _, step, slot in np.argwhere(sampled):
        changed = tokens.copy()
        start, stop = ranges[slot]
        changed[0, step, slot] = start + (tokens[0, step, slot] - start + 1) % (stop - start)
        after = teacher_forced(model, prompts[:1], [Block(block.slots, changed, sampled, sampled * 0.0)], WARM)
        assert torch.equal(after[0, :step], before[0, :step])
        beside = [other for other in range(tokens.shape[2]) if other != slot]
        assert torch.equal(after[0, step, beside], before[0, step, beside])
        if step < last:
            assert (after[0, step + 1 :] != before[0, step + 1 :]).any()
            moved += 1
    assert moved > 0


@pytest.mark.parametrize("name", CASES)
def test_4_sampled_tokens_follow_the_rules(name: str) -> None:
    model, prompts = case(name)
    config = model.dual_config
    for one in sample(model, SampleRequest(prompts, seeds(len(prompts), 6), WARM)):
        block = one.blocks[0]
        assert block.tokens.shape[1] == max(lengths(block))
        for answer, (steps, finish) in enumerate(zip(lengths(block), one.finish_reason, strict=True)):
            tokens, sampled = block.tokens[answer], block.sampled[answer]
            text = tokens[:steps, 0].tolist()
            words = text.index(config.text_eos_id) + 1 if config.text_eos_id in text else steps
            assert sampled[:, 0].tolist() == [step < words for step in range(len(tokens))]
            assert set(text[words:]) <= {config.blank_id}
            assert (tokens[steps:] == config.pad_id).all()
            if config.num_codebooks:
                assert not sampled[: config.audio_delay_steps, 1:].any()
                assert (tokens[: min(steps, config.audio_delay_steps), 1] == config.blank_id).all()
                assert sampled[config.audio_delay_steps : steps, 1].all()
            last = tokens[steps - 1]
            ended = last[1] in config.audio_end_ids if config.num_codebooks else last[0] == config.text_eos_id
            assert finish == ("eos" if ended else "length")
            if finish == "length":
                assert steps == WARM.max_steps


def test_4_steps_in_which_everything_is_forced_do_not_shorten_a_block() -> None:
    model, prompts = small_case(delay=3)
    config = model.dual_config
    gaps = 0
    for seed in range(80):
        (found,) = sample(model, SampleRequest(prompts[:1], [[seed]], WARM))
        block = found.blocks[0]
        gaps += int((~block.sampled[0].any(1)).any())
        if found.finish_reason == ("eos",):
            assert block.tokens[0, -1, 1] == config.msg_end_id
            assert block.sampled[0, -1, 1]
        else:
            assert block.tokens.shape[1] == WARM.max_steps
    assert gaps >= 5, "some answers must end their words two steps before their audio begins"


# -- 5 and 6: LoRA, the reference, files ----------------------------------------------------------------------------


def perturb_adapters(model: DualStreamLM, seed: int = 0) -> dict[str, torch.nn.Parameter]:
    torch.manual_seed(seed)
    found = {name: parameter for name, parameter in model.named_parameters() if "lora_" in name}
    for parameter in found.values():
        parameter.data += 0.2 * torch.randn_like(parameter)
    return found


def scored(policy: EmbeddedPolicy, prompts: list[Prompt], blocks: list[Block]) -> Tensor:
    """Through the policy's interface."""
    (logp,) = policy.logprobs(prompts, [[block] for block in blocks], WARM)
    return logp


def policy_case() -> tuple[EmbeddedPolicy, list[Prompt], list[Block]]:
    model, prompts = small_case()
    blocks = [one.blocks[0] for one in sample(model, SampleRequest(prompts, seeds(3, 2), WARM))]
    return small_policy(model), prompts, blocks


def test_5_every_lora_matrix_of_both_branches_learns() -> None:
    policy, prompts, blocks = policy_case()
    before = scored(policy, prompts, blocks)
    policy.add_lora(rank=2, alpha=4)
    assert torch.equal(scored(policy, prompts, blocks), before)
    adapters = perturb_adapters(policy.model)
    config = policy.model.dual_config
    # Seven projections, two matrices each.
    assert len(adapters) == 14 * (config.num_layers + config.branch_layers)
    assert sum("mimo_layers" in name for name in adapters) == 14 * config.branch_layers
    scored(policy, prompts, blocks).sum().backward()
    still = [name for name, one in adapters.items() if one.grad is None or not one.grad.abs().max() > 1e-9]
    assert not still
    others = [name for name, one in policy.model.named_parameters() if "lora_" not in name and one.grad is not None]
    assert not others


@pytest.mark.parametrize("slot", ["text", "audio"])
def test_5_a_branch_learns_from_its_own_stream_only(slot: str) -> None:
    policy, prompts, blocks = policy_case()
    policy.add_lora(rank=2, alpha=4)
    adapters = perturb_adapters(policy.model)
    logp = scored(policy, prompts, blocks)
    (logp[..., 0] if slot == "text" else logp[..., 1:]).sum().backward()
    shared = policy.model.dual_config.tap_layer
    for name, parameter in adapters.items():
        branch = "audio" if "mimo_layers" in name else "text"
        learns = branch == slot or any(f"model.layers.{layer}." in name for layer in range(shared + 1))
        assert (parameter.grad is not None and bool(parameter.grad.any())) == learns, name


def test_6_the_reference_is_the_model_without_its_adapters() -> None:
    policy, prompts, blocks = policy_case()
    before = scored(policy, prompts, blocks)
    policy.add_lora(rank=2, alpha=4)
    adapters = perturb_adapters(policy.model)
    trained = scored(policy, prompts, blocks)
    with policy.reference():
        assert torch.equal(scored(policy, prompts, blocks), before)
    assert not torch.allclose(trained, before, atol=1e-3)
    assert torch.equal(scored(policy, prompts, blocks), trained)
    assert all(parameter.requires_grad for parameter in adapters.values())


def test_6_the_reference_is_the_frozen_copy() -> None:
    policy, prompts, blocks = policy_case()
    before = scored(policy, prompts, blocks)
    policy.freeze_reference()
    for parameter in policy.model.parameters():
        parameter.data += 0.05
    trained = scored(policy, prompts, blocks)
    with policy.reference():
        held = scored(policy, prompts, blocks)
        assert torch.equal(held, before)
        assert not held.requires_grad
    assert not torch.allclose(trained, before, atol=1e-3)
    assert torch.equal(scored(policy, prompts, blocks), trained)


@pytest.mark.parametrize("lora", [True, False], ids=["lora", "frozen copy"])
def test_6_the_reference_ends_with_an_error_too(lora: bool) -> None:
    policy, prompts, blocks = policy_case()
    if lora:
        policy.add_lora(rank=2, alpha=4)
    else:
        policy.freeze_reference()
    for parameter in perturb_adapters(policy.model).values() if lora else policy.model.parameters():
        parameter.data += 0.05
    trained = scored(policy, prompts, blocks)
    with pytest.raises(RuntimeError, match="inside"), policy.reference():
        raise RuntimeError("inside")
    assert torch.equal(scored(policy, prompts, blocks), trained)


def test_6_without_a_reference_there_is_none() -> None:
    policy, _, _ = policy_case()
    with pytest.raises(PolicyError, match="freeze_reference"), policy.reference():
        pass


def test_6_merged_saved_and_loaded_is_the_same_policy(tmp_path: Path) -> None:
    policy, prompts, blocks = policy_case()
    names = list(policy.model.state_dict())
    policy.add_lora(rank=2, alpha=4)
    perturb_adapters(policy.model)
    trained = scored(policy, prompts, blocks)
    with pytest.raises(PolicyError, match="merge_lora"):
        policy.save(tmp_path)
    policy.merge_lora()
    assert list(policy.model.state_dict()) == names
    torch.testing.assert_close(scored(policy, prompts, blocks), trained, atol=1e-10, rtol=0)
    assert all(parameter.requires_grad for parameter in policy.model.parameters())
    policy.save(tmp_path)
    loaded = EmbeddedPolicy.load(tmp_path, codec=policy.codec)
    assert list(loaded.model.state_dict()) == names
    assert loaded.spec == policy.spec
    assert loaded.pieces.pieces == policy.pieces.pieces
    torch.testing.assert_close(scored(loaded, prompts, blocks).double(), trained, atol=1e-5, rtol=0)


# -- 7: all answers there are ---------------------------------------------------------------------------------------


def all_answers(config: DualStreamConfig, max_steps: int) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """Every (tokens [T, S], sampled [T, S]) that the sampling rules of docs/policies.md allow, written without the sampler."""
    slots = 1 + config.num_codebooks
    words = [*range(config.text_eos_id), config.text_eos_id]
    starts = config.codebook_offsets
    codes = [range(start, start + size) for start, size in zip(starts, config.codebook_sizes, strict=True)]

    def steps(step: int, text_done: bool) -> Iterator[tuple[tuple[int, ...], tuple[bool, ...], bool]]:
        texts = [(config.blank_id, False)] if text_done else [(word, True) for word in words]
        if not config.num_codebooks:
            audios = [((), (), False)]
        elif step < config.audio_delay_steps:
            rest = (config.pad_id,) * (slots - 2)
            audios = [((config.blank_id, *rest), (False,) * (slots - 1), False)]
        else:
            audios = [(frame, (True,) * (slots - 1), False) for frame in itertools.product(*codes)]
            end = ((config.msg_end_id, *(config.pad_id,) * (slots - 2)), (True, *(False,) * (slots - 2)), True)
            audios.append(end)
        for (word, drawn), (frame, mask, ended) in itertools.product(texts, audios):
            ended = ended if config.num_codebooks else word == config.text_eos_id
            yield (word, *frame), (drawn, *mask), ended

    def grow(tokens: list, sampled: list, text_done: bool) -> Iterator[tuple[np.ndarray, np.ndarray]]:
        for row, mask, ended in steps(len(tokens), text_done):
            grown, masks = [*tokens, row], [*sampled, mask]
            if ended or len(grown) == max_steps:
                yield np.array(grown), np.array(masks)
            else:
                yield from grow(grown, masks, text_done or row[0] == config.text_eos_id)

    yield from grow([], [], False)


def as_block(config: DualStreamConfig, answers: list[tuple[np.ndarray, np.ndarray]], max_steps: int) -> Block:
    tokens = np.full((len(answers), max_steps, 1 + config.num_codebooks), config.pad_id)
    sampled = np.zeros(tokens.shape, dtype=bool)
    for row, (ids, mask) in enumerate(answers):
        tokens[row, : len(ids)], sampled[row, : len(ids)] = ids, mask
    return Block(("text", *(f"audio{k}" for k in range(config.num_codebooks))), tokens, sampled, np.zeros(tokens.shape))


@pytest.mark.parametrize(
    ("codebooks", "delay", "max_steps", "count"),
    [((2,), 1, 3, None), ((2,), 2, 3, None), ((2, 2), 0, 2, None), ((2,), 3, 3, 2 + 4 + 8 + 1), ((), 0, 3, 1 + 2 + 12)],
    ids=["one codebook", "delay 2", "two codebooks", "all delay", "text only"],
)
def test_7_the_probabilities_of_all_answers_add_up_to_one(
    codebooks: tuple[int, ...], delay: int, max_steps: int, count: int | None
) -> None:
    config = small_config(codebooks, text=2, delay=delay)
    model = small_model(config)
    prompt = small_prompt(config, 1, 2, seed=1) if codebooks else text_prompt(config, 3)
    answers = list(all_answers(config, max_steps))
    assert count is None or len(answers) == count
    sampling = Sampling(text_temperature=0.8, audio_temperature=1.3, max_steps=max_steps)
    block = as_block(config, answers, max_steps)
    logp = teacher_forced(model, [prompt], [block], sampling).sum((1, 2))
    assert logp.exp().sum().item() == pytest.approx(1, abs=1e-12)

    drawn = 3000
    (found,) = sample(model, SampleRequest([prompt], [list(range(drawn))], sampling))
    places = {block.tokens[row].tobytes(): row for row in range(len(answers))}
    tokens = np.full((drawn, max_steps, 1 + config.num_codebooks), config.pad_id)
    masks = np.zeros(tokens.shape, dtype=bool)
    steps = found.blocks[0].tokens.shape[1]
    tokens[:, :steps], masks[:, :steps] = found.blocks[0].tokens, found.blocks[0].sampled
    rows = [places[one.tobytes()] for one in tokens]
    np.testing.assert_array_equal(masks, block.sampled[rows])
    counts = Counter(rows)
    for row, probability in enumerate(logp.exp().tolist()):
        error = (probability * (1 - probability) / drawn) ** 0.5
        assert counts[row] / drawn == pytest.approx(probability, abs=5 * error + 1 / drawn)


# -- 8: decoding ----------------------------------------------------------------------------------------------------


def test_8_decoding_gives_a_fixed_wave_of_640_samples_a_step() -> None:
    codec = Codec2Pairs()
    codes = np.random.default_rng(0).integers(codec.cardinality, size=(7, 8))
    first, second = codec.decode(codes), codec.decode(codes)
    assert first.samples.shape == (7 * 640,)
    assert first.sample_rate_hz / codec.frame_rate_hz == 640
    assert np.isfinite(first.samples).all()
    assert np.abs(first.samples).max() > 0
    np.testing.assert_array_equal(first.samples, second.samples)
    empty = codec.decode(np.zeros((0, 8), dtype=np.int64))
    assert (empty.samples.shape, empty.sample_rate_hz) == ((0,), 8000)


def test_8_an_answer_decodes_to_its_codes_and_words() -> None:
    config = small_config()
    policy = small_policy(small_model(config))
    codes = np.array([[4, 0], [0, 3], [2, 2]])
    block = policy.target_block(codes, [0, 2])
    np.testing.assert_array_equal(policy.decode_codes([block], 0), codes)
    assert policy.decode_text([block], 0) == "a c"
    assert policy.decode_audio([block], 0, 0).samples.shape == (3 * 640,)
    empty = policy.target_block(codes[:0], [])
    assert policy.decode_codes([empty], 0).shape == (0, 2)
    assert policy.decode_text([empty], 0) == ""
    assert policy.decode_audio([empty], 0, 0).samples.shape == (0,)


def test_8_a_codec_of_other_sizes_is_refused() -> None:
    policy = small_policy(small_model(small_config()))
    with pytest.raises(PolicyError, match="do not fit the codec"):
        EmbeddedPolicy(small_model(small_config((3,))), policy.pieces, policy.codec, policy.normalizer)


# -- What the model reads -------------------------------------------------------------------------------------------


def prompt_logits(model: DualStreamLM, prompt: Prompt) -> Tensor:
    sampled = np.ones((1, 1, 1 + model.dual_config.num_codebooks), dtype=bool)
    sampled[..., 1:] = False
    scored = []
    for word in range(model.dual_config.text_eos_id + 1):
        tokens = np.full(sampled.shape, word)
        scored.append(teacher_forced(model, [prompt], [Block(("text",), tokens, sampled, sampled * 0.0)], Sampling()))
    return torch.cat(scored)[:, 0, 0]


def test_the_continuous_features_are_read() -> None:
    model, prompts = small_case()
    prompt = prompts[0]
    step = int(np.flatnonzero(prompt.continuous)[0])
    transcript = prompt.features.copy()
    transcript[step] += 0.5
    elsewhere = prompt.features.copy()
    elsewhere[~prompt.continuous] += 0.5
    before = prompt_logits(model, prompt)
    changed = Prompt(prompt.audio_ids, prompt.text_ids, transcript, prompt.continuous)
    ignored = Prompt(prompt.audio_ids, prompt.text_ids, elsewhere, prompt.continuous)
    assert before.exp().sum().item() == pytest.approx(1, abs=1e-12)
    assert (prompt_logits(model, changed) - before).abs().max() > 1e-3
    assert torch.equal(prompt_logits(model, ignored), before)


def test_padding_adds_nothing_and_learns_nothing() -> None:
    model, prompts = small_case()
    pad = torch.full((1, 3, 2), model.dual_config.pad_id)
    assert not model.embed(pad, pad[..., 0], None, None).any()
    blocks = [one.blocks[0] for one in sample(model, SampleRequest(prompts, seeds(3, 2), WARM))]
    teacher_forced(model, prompts, blocks, WARM).sum().backward()
    gradient = model.model.embed_tokens.weight.grad
    assert gradient is not None
    assert gradient.any()
    assert not gradient[model.dual_config.pad_id].any()
    model.initialise(seed=3)
    assert not model.model.embed_tokens.weight[model.dual_config.pad_id].any()


def test_golden_config_scores_every_id_and_the_small_one_only_its_own() -> None:
    assert golden_config().text_range == (0, 64)
    assert golden_config().audio_ranges == ((0, 64),)
    config = small_config()
    assert config.text_range == (0, 7)
    assert config.audio_ranges == ((14, 20), (20, 24))
