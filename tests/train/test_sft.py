"""Warm-up: its schedule and order by hand, its losses against explicit log-softmax, and that it learns.

Not covered: how well a warmed-up policy answers, which the benchmark measures.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from tiny.dual_stream import small_config, small_model, small_policy
from tiny.learner import examples

from paras2s.configs.schema.align import AugmentConfig
from paras2s.configs.schema.run import WarmupConfig
from paras2s.errors import PolicyError
from paras2s.policy.embedded.policy import EmbeddedPolicy
from paras2s.train.sft import Example, Warmup, schedule, stream_losses

STILL = {"words_dropped": 0.0, "codes_dropped": 0.0, "prosody_noise": 0.0, "words_noise": 0.0}


@pytest.mark.parametrize(
    ("step", "steps", "expected"),
    [
        (0, 120, 0.05),
        (9, 120, 0.5),
        (19, 120, 1.0),
        (20, 120, 1.0),
        (45, 120, 0.55 + 0.45 * 2**-0.5),
        (70, 120, 0.55),
        (120, 120, 0.1),
        (4, 5, 0.25),
        (20, 20, 1.0),
    ],
)
def test_schedule_by_hand(step: int, steps: int, expected: float) -> None:
    assert schedule(step, steps) == pytest.approx(expected)


# -- targets and losses ---------------------------------------------------------------------------------------------


def test_target_by_hand() -> None:
    """Two words, two steps. End of text is 6, blank 7, pad 8, end of answer 14; codebooks start at 15 and 20."""
    block = small_policy(small_model(small_config())).target_block(np.array([[4, 0], [1, 3]]), [0, 2])
    assert block.tokens[0].tolist() == [[0, 7, 8], [2, 19, 20], [6, 16, 23], [7, 14, 8]]
    assert block.sampled[0].astype(int).tolist() == [[1, 0, 0], [1, 1, 1], [1, 1, 1], [0, 1, 0]]


def test_target_with_more_words_than_speech_is_refused() -> None:
    with pytest.raises(PolicyError, match="longer than their speech"):
        small_policy(small_model(small_config())).target_block(np.array([[4, 0]]), [0, 1, 2])


def explicit_losses(policy: EmbeddedPolicy, batch: list[Example], first: float) -> tuple[float, float]:
    """One example at a time, all logits, log-softmax over the ids of a slot written out by hand."""
    model, config = policy.model, policy.model.dual_config
    text, audio, text_weight, audio_count = 0.0, 0.0, 0.0, 0
    for example in batch:
        (target,) = example.target
        tokens, sampled = target.tokens[0], target.sampled[0]
        prompt = example.prompt
        audio_ids = torch.from_numpy(np.concatenate([prompt.audio_ids, tokens[:, 1:]]))[None]
        text_ids = torch.from_numpy(np.concatenate([prompt.text_ids, tokens[:, 0]]))[None]
        features = torch.zeros(1, audio_ids.shape[1], 3, dtype=torch.float64)
        features[0, : prompt.length] = torch.from_numpy(prompt.features)
        transcript = torch.zeros(1, audio_ids.shape[1], dtype=torch.bool)
        transcript[0, : prompt.length] = torch.from_numpy(prompt.continuous)
        positions = torch.arange(audio_ids.shape[1])[None]
        text_state, audio_state = model.hidden(model.embed(audio_ids, text_ids, features, transcript), positions)
        all_text, all_audio = model.lm_head(text_state)[0], model.mimo_output(audio_state)[0]
        # Words 0..5 and the end 6; the end 14 and codes 15..19; codes 20..23.
        ranges = [(0, 7), (14, 20), (20, 24)]
        assert config.vocab_size == 24
        for step, slot in np.argwhere(sampled):
            start, stop = ranges[slot]
            logits = (all_audio if slot else all_text)[prompt.length - 1 + step, start:stop]
            surprise = -(logits - logits.exp().sum().log())[tokens[step, slot] - start].item()
            if slot:
                audio, audio_count = audio + surprise, audio_count + 1
            else:
                weight = first if step == 0 else 1.0
                text, text_weight = text + weight * surprise, text_weight + weight
    return text / text_weight, audio / audio_count


@pytest.mark.parametrize("first", [1.0, 4.0])
def test_losses_are_the_explicit_ones(first: float) -> None:
    policy = small_policy(small_model(small_config()))
    batch = examples(policy, 3)
    found = stream_losses(policy, batch, first)
    assert found.tolist() == pytest.approx(explicit_losses(policy, batch, first), abs=1e-10)


@pytest.mark.parametrize("at_once", [1, 2, 5])
def test_a_batch_in_parts_is_the_full_batch(at_once: int) -> None:
    full, parts = (small_policy(small_model(small_config())) for _ in range(2))
    settings = {"steps": 4, "batch_size": 5, "augment": AugmentConfig(**STILL)}
    one = Warmup(full, examples(full, 5), WarmupConfig(**settings), seed=0)
    other = Warmup(
        parts, examples(parts, 5), WarmupConfig(micro_batch_size=at_once, gradient_checkpointing=True, **settings), seed=0
    )
    for step in range(3):
        assert other.step(step) == pytest.approx(one.step(step), abs=1e-6)
    for left, right in zip(full.model.parameters(), parts.model.parameters(), strict=True):
        torch.testing.assert_close(left, right, atol=1e-10, rtol=0)


def test_with_adapters_they_alone_are_warmed_up() -> None:
    policy = small_policy(small_model(small_config()))
    policy.add_lora(2, 4)
    before = {name: value.clone() for name, value in policy.model.state_dict().items()}
    Warmup(policy, examples(policy, 4), WarmupConfig(steps=2, batch_size=4), seed=0).step(0)
    moved = {name for name, value in policy.model.state_dict().items() if not torch.equal(value, before[name])}
    assert moved
    assert all("lora_" in name for name in moved)


def test_the_adaptor_has_a_learning_rate_of_its_own() -> None:
    """The first step of Adam moves every number that has a gradient by its rate; the first of a schedule is a twentieth."""
    policy = small_policy(small_model(small_config()))
    before = {name: value.clone() for name, value in policy.model.state_dict().items()}
    config = WarmupConfig(steps=60, batch_size=4, lr=1e-3, adaptor_lr=1e-1, weight_decay=0.0)
    Warmup(policy, examples(policy, 4), config, seed=0).step(0)
    moved = {name: float((value - before[name]).abs().max()) for name, value in policy.model.state_dict().items()}
    adaptor = {name for name in moved if "vq_adaptor" in name}
    assert adaptor
    assert max(moved[name] for name in adaptor) == pytest.approx(1e-1 / 20, rel=0.05)
    assert max(moved[name] for name in moved.keys() - adaptor) == pytest.approx(1e-3 / 20, rel=0.05)


# -- the loop -------------------------------------------------------------------------------------------------------


def assert_same_batch(first: list[Example], second: list[Example]) -> None:
    assert len(first) == len(second)
    for one, other in zip(first, second, strict=True):
        assert one.target is other.target
        for name in ("audio_ids", "text_ids", "features"):
            np.testing.assert_array_equal(getattr(one.prompt, name), getattr(other.prompt, name))


def test_a_batch_depends_on_seed_and_step_alone() -> None:
    policy = small_policy(small_model(small_config()))
    config = WarmupConfig(batch_size=3, steps=9)
    rows = examples(policy, 7)
    straight = Warmup(policy, rows, config, seed=5)
    batches = [straight.batch(step) for step in range(6)]
    resumed = Warmup(policy, rows, config, seed=5)
    for step in (4, 1, 5, 4):
        assert_same_batch(resumed.batch(step), batches[step])
    resumed.step(0)
    assert_same_batch(resumed.batch(2), batches[2])
    other = Warmup(policy, rows, config, seed=6)
    orders = [[id(one.target) for step in range(6) for one in warmup.batch(step)] for warmup in (straight, other)]
    assert orders[0] != orders[1]


@pytest.mark.parametrize("batch_size", [1, 3, 7, 10, 24])
def test_every_example_is_seen_once_an_epoch(batch_size: int) -> None:
    policy = small_policy(small_model(small_config()))
    rows = examples(policy, 7)
    warmup = Warmup(policy, rows, WarmupConfig(batch_size=batch_size, augment=AugmentConfig(**STILL)), seed=1)
    seen = [id(example.target) for step in range(14) for example in warmup.batch(step)]
    assert len(seen) == 14 * batch_size
    for epoch in range(2 * batch_size):
        assert len(set(seen[7 * epoch : 7 * epoch + 7])) == 7


def test_four_examples_are_learnt() -> None:
    policy = small_policy(small_model(small_config(), seed=1))
    policy.model.initialise(seed=1)
    config = WarmupConfig(steps=60, batch_size=4, lr=2e-2, weight_decay=0.0, augment=AugmentConfig(**STILL))
    warmup = Warmup(policy, examples(policy, 4), config, seed=0)
    losses = [warmup.step(number) for number in range(60)]
    for stream in ("loss_text", "loss_audio"):
        assert losses[-1][stream] < 0.5 * losses[0][stream]


# -- half precision -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("lora", [True, False], ids=["adapters", "all weights"])
def test_at_a_small_learning_rate_every_number_moves_on_a_half_precision_model(lora: bool) -> None:
    """At 1e-5 bfloat16 alone rounds most updates away: of 1,200 numbers of the A matrices 9 moved in these 8 steps."""
    policy = small_policy(small_model(small_config()).bfloat16())
    if lora:
        policy.add_lora(2, 4)
        for name, parameter in policy.trainable().items():
            # The A matrices have a gradient only where the B matrices are not 0.
            parameter.data += 0.1 if "lora_B" in name else 0.0
    warmup = Warmup(policy, examples(policy, 4), WarmupConfig(steps=8, batch_size=4, lr=1e-5, weight_decay=0.0), seed=0)
    before = {name: value.detach().clone() for name, value in policy.trainable().items()}
    for step in range(8):
        warmup.step(step)
    after = policy.trainable()
    assert {value.dtype for value in after.values()} == {torch.float32}
    weights = [name for name in after if ("lora_A" in name if lora else "layers" in name and "proj.weight" in name)]
    moved, numbers = sum(int((after[name] != before[name]).sum()) for name in weights), sum(after[n].numel() for n in weights)
    assert numbers > 1000
    assert moved > 0.98 * numbers
    if lora:
        policy.merge_lora()
    policy.narrow_trained()
    assert {value.dtype for value in policy.model.state_dict().values()} == {torch.bfloat16}


def test_a_share_of_the_prompts_gives_the_style_in_words() -> None:
    """Drawn by seed and step alone; the other draws of a warm-up do not know of it."""
    policy = small_policy(small_model(small_config()))
    rows = [replace(example, style="b a d") for example in examples(policy, 12)]

    def lengths(share: float, step: int) -> list[int]:
        config = WarmupConfig(style_share=share, batch_size=12, augment=AugmentConfig(**STILL))
        return [example.prompt.length for example in Warmup(policy, rows, config, 0).batch(step)]

    none, some, every = (lengths(share, 0) for share in (0.0, 0.5, 1.0))
    assert [one - other for one, other in zip(every, none, strict=True)] == [3] * 12
    given = [one - other for one, other in zip(some, none, strict=True)]
    assert set(given) == {0, 3}
    assert given == [one - other for one, other in zip(lengths(0.5, 0), none, strict=True)]
    assert given != [one - other for one, other in zip(lengths(0.5, 1), lengths(0.0, 1), strict=True)]
