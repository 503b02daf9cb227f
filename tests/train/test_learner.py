"""The learner on tiny policies: resuming bit for bit, parity, direction of learning, unscored answers, a NaN loss.

Not covered: the objective's own arithmetic (test_objective.py), and whether a real run's reward rises.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file
from tiny.dual_stream import small_config, small_model, small_policy, small_rollouts
from tiny.learner import GROUP, STEPS, make_prompts, reward, rewards_of
from tiny.settings import align_config

from paras2s.errors import PolicyError
from paras2s.policy.embedded.policy import EmbeddedPolicy
from paras2s.policy.types import Prompt, SampleRequest, Sampling
from paras2s.rollout.engine import decoded
from paras2s.train.batching import parity, token_batch, top_groups_by_reward_std
from paras2s.train.learner import Learner, schedule
from paras2s.types import AUDIO, TEXT, Block, Reward, Rollout, Unscored

SILENT = Unscored("rubric", "no transcript")


def make_learner(dtype: torch.dtype = torch.float64, **values: Any) -> Learner:
    policy = small_policy(small_model(small_config()).to(dtype))
    settings = {"lr": 0.01, "loss_type": "grpo", "kl_weight": 0.05, **values}
    return Learner(policy, align_config(**settings), max_steps=STEPS)


def advance(learner: Learner, prompts: Sequence[Prompt], steps: int) -> list[dict[str, Any]]:
    log = []
    for _ in range(steps):
        rollouts = small_rollouts(learner.policy, prompts, GROUP, STEPS, learner.next_step)
        log.append(learner.step(prompts, rollouts, rewards_of(rollouts)))
    return log


def assert_same_weights(one: Learner, other: Learner, same: bool = True) -> None:
    left, right = one.weights(), other.weights()
    assert left.keys() == right.keys()
    assert all(np.array_equal(left[name], right[name]) for name in left) is same


# -- resuming ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=["float32", "float64"])
def test_a_resumed_learner_ends_with_the_weights_of_an_uninterrupted_one(tmp_path: Path, dtype: torch.dtype) -> None:
    prompts = make_prompts()
    complete, first = make_learner(dtype), make_learner(dtype)
    expected = advance(complete, prompts, 6)
    log = advance(first, prompts, 3)
    first.save(tmp_path)
    second = make_learner(dtype)
    second.restore(tmp_path)
    assert second.next_step == 3
    log += advance(second, prompts, 3)
    assert log == expected
    assert [row["step"] for row in log] == list(range(6))
    assert_same_weights(complete, second)
    assert_same_weights(complete, first, same=False)


def test_a_checkpoint_from_before_any_update_is_restored(tmp_path: Path) -> None:
    """Of a step that had too few scored answers to learn from: the optimiser has no state yet."""
    prompts = make_prompts()
    complete, first, second = (make_learner(max_unscored_share=1.0) for _ in range(3))
    for learner in (complete, first):
        rollouts = small_rollouts(learner.policy, prompts, GROUP, STEPS, 0)
        lone: list[list[Reward | Unscored]] = [[SILENT] * (GROUP - 1) + [reward(3.0)] for _ in rollouts]
        assert "loss" not in learner.step(prompts, rollouts, lone)
    first.save(tmp_path)
    second.restore(tmp_path)
    assert second.next_step == 1
    assert advance(second, prompts, 2) == advance(complete, prompts, 2)
    assert_same_weights(complete, second)


def test_the_optimiser_of_another_policy_is_refused(tmp_path: Path) -> None:
    prompts = make_prompts()
    first = make_learner()
    advance(first, prompts, 1)
    first.save(tmp_path)
    held = load_file(tmp_path / "optimiser.safetensors")
    held["0.exp_avg"] = held["0.exp_avg"][:1].clone()
    save_file(held, tmp_path / "optimiser.safetensors")
    with pytest.raises(PolicyError, match=r"optimiser.safetensors: is of another policy: its tensor 0"):
        make_learner().restore(tmp_path)


def test_restoring_keeps_the_reference(tmp_path: Path) -> None:
    """The KL is measured from the SFT policy, not from the checkpoint."""
    prompts = make_prompts()
    first = make_learner()
    start = first.weights()
    advance(first, prompts, 2)
    first.save(tmp_path)
    second = make_learner()
    second.restore(tmp_path)
    with second.policy.reference():
        held = second.policy.model.state_dict()
    assert all(np.array_equal(start[name], held[name].numpy()) for name in start)
    assert advance(second, prompts, 1)[0]["kl"] > 1e-4


# -- decisions --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("advantages", "count", "expected"),
    [
        ([[0.0, 0.0], [-2.0, 2.0], [-1.0, 1.0]], 2, [1, 2]),
        ([[-2.0, 2.0], [0.0, 0.0], [-1.0, 1.0]], 2, [0, 2]),
        ([[0.0, 0.0], [-1.0, 1.0]], 5, [0, 1]),
        ([[None, 3.0], [None, None], [-1.0, None, 1.0]], 3, [2]),
        ([[-1.0, 1.0], [1.0, -1.0], [-1.0, 1.0]], 1, [0]),
        ([], 4, []),
    ],
    ids=["widest", "in their order", "all there are", "unscored", "ties go to the first", "none"],
)
def test_the_groups_that_differ_most_are_learned_from(
    advantages: list[list[float | None]], count: int, expected: list[int]
) -> None:
    assert top_groups_by_reward_std(advantages, count) == expected


@pytest.mark.parametrize(("step", "expected"), [(0, 0.1), (4, 0.5 * 0.964), (9, 0.919), (50, 0.55), (99, 0.109)])
def test_learning_rate_by_hand(step: int, expected: float) -> None:
    config = align_config(warmup_steps=10, steps=100)
    assert schedule(config, step) == pytest.approx(expected)


def test_the_adaptor_has_a_learning_rate_of_its_own() -> None:
    """One step of Adam moves every number by about its learning rate."""
    learner = make_learner(lr=1e-3, adaptor_lr=1e-1, warmup_steps=1)
    before = learner.weights()
    advance(learner, make_prompts(), 1)
    moved = {name: float(np.abs(value - before[name]).max()) for name, value in learner.weights().items()}
    adaptor = {name for name in moved if "vq_adaptor" in name}
    assert adaptor
    assert max(moved[name] for name in adaptor) == pytest.approx(1e-1, rel=0.05)
    assert max(moved[name] for name in moved.keys() - adaptor) == pytest.approx(1e-3, rel=0.05)


def test_groups_that_are_left_out_move_nothing() -> None:
    """Two queries asked and one learned from: the same weights as from that one alone, but both rewards in the log."""
    prompts = make_prompts(2)
    both, alone = make_learner(groups_per_update=1), make_learner()
    rollouts = small_rollouts(both.policy, prompts, GROUP, STEPS, 0)
    rewards = [[reward(3.0), reward(3.1), reward(3.0), reward(3.0)], [reward(1.0), reward(2.0), reward(5.0), reward(1.0)]]
    metrics = both.step(prompts, rollouts, rewards)
    alone.step(prompts[1:], rollouts[1:], rewards[1:])
    assert metrics["reward_mean"] == pytest.approx((12.1 + 9.0) / 8)
    assert_same_weights(both, alone)


# -- one step ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float64, 1e-10), (torch.float32, 1e-4)])
def test_on_policy_rollouts_have_parity(dtype: torch.dtype, tolerance: float) -> None:
    for metrics in advance(make_learner(dtype), make_prompts(3), 2):
        for stream in ("text", "audio"):
            assert metrics[f"parity_{stream}_max"] < tolerance
            assert 0 <= metrics[f"parity_{stream}_mean"] <= metrics[f"parity_{stream}_max"]
        assert metrics["clipped_share"] == 0


def test_off_policy_rollouts_have_none() -> None:
    learner, prompts = make_learner(), make_prompts()
    stale = small_rollouts(learner.policy, prompts, GROUP, STEPS, 0)
    advance(learner, prompts, 1)
    assert learner.step(prompts, stale, rewards_of(stale))["parity_text_max"] > 1e-3


def test_metrics_by_hand() -> None:
    learner, prompts = make_learner(), make_prompts(2)
    rollouts = small_rollouts(learner.policy, prompts, GROUP, STEPS, 0)
    rewards = [[reward(2.0)] * GROUP, [reward(1.0), reward(2.0), reward(5.0), SILENT]]
    metrics = learner.step(prompts, rollouts, rewards)
    assert metrics["reward_mean"] == pytest.approx(16 / 7)
    assert metrics["reward_std"] == pytest.approx(np.std([2, 2, 2, 2, 1, 2, 5]))
    assert (metrics["zero_spread_groups"], metrics["unscored"], metrics["step"]) == (1, 1, 0)
    reasons = [reason for rollout in rollouts for reason in rollout.finish_reason]
    assert metrics["truncated"] == reasons.count("length")
    lengths = [block.sampled.any(2).sum(1) for rollout in rollouts for block in rollout.blocks]
    assert metrics["length_steps"] == pytest.approx(np.mean(np.concatenate(lengths)))
    assert metrics["kl"] == pytest.approx(0, abs=1e-12)


def probability_first(learner: Learner, prompts: Sequence[Prompt], token: int) -> float:
    rollout = small_rollouts(learner.policy, prompts, 2, STEPS, 0)[0]
    tokens = rollout.blocks[0].tokens.copy()
    tokens[:, 0, 0] = token
    block = replace(rollout.blocks[0], tokens=tokens)
    with torch.no_grad():
        return float(learner.policy.logprobs(prompts, [[block]], learner.sampling)[0][0, 0, 0].exp())


@pytest.mark.parametrize("token", [1, 4])
def test_a_rewarded_text_token_becomes_likelier(token: int) -> None:
    learner, prompts = make_learner(lr=0.02, kl_weight=0.0), make_prompts(1)
    before = probability_first(learner, prompts, token)
    for step in range(12):
        rollouts = small_rollouts(learner.policy, prompts, 24, STEPS, step)
        wanted = [[reward(float(row[0, 0] == token)) for row in r.blocks[0].tokens] for r in rollouts]
        learner.step(prompts, rollouts, wanted)
    assert before < 0.5
    assert probability_first(learner, prompts, token) > before + 0.3


# -- answers without a reward -----------------------------------------------------------------------------------------


def with_other_tokens(rollout: Rollout, answer: int) -> Rollout:
    """The rollout with other words and log-probs in one answer."""
    block = rollout.blocks[0]
    tokens, logp = block.tokens.copy(), block.behaviour_logp.copy()
    text = block.sampled[answer, :, 0]
    tokens[answer, text, 0] = (tokens[answer, text, 0] + 1) % small_config().text_eos_id
    logp[answer] -= 0.7 * block.sampled[answer]
    return replace(rollout, blocks=(replace(block, tokens=tokens, behaviour_logp=logp),))


@pytest.mark.parametrize("scored", [False, True], ids=["unscored", "scored"])
def test_only_scored_answers_have_a_gradient(scored: bool) -> None:
    one, other, prompts = make_learner(), make_learner(max_logprob_gap=9.0), make_prompts(2)
    rollouts = small_rollouts(one.policy, prompts, GROUP, STEPS, 0)
    rewards = rewards_of(rollouts)
    if not scored:
        rewards[1][2] = SILENT
    changed = [rollouts[0], with_other_tokens(rollouts[1], 2)]
    one.step(prompts, rollouts, rewards)
    other.step(prompts, changed, rewards)
    assert_same_weights(one, other, same=not scored)


def test_a_lone_scored_answer_is_left_out() -> None:
    one, other, prompts = make_learner(), make_learner(), make_prompts(2)
    rollouts = small_rollouts(one.policy, prompts, GROUP, STEPS, 0)
    rewards = rewards_of(rollouts)
    metrics = one.step(prompts, rollouts, [[SILENT, reward(5.0), SILENT, SILENT], rewards[1]])
    other.step(prompts[1:], rollouts[1:], rewards[1:])
    assert metrics["unscored"] == 3
    assert_same_weights(one, other)


def test_without_any_group_nothing_is_learned() -> None:
    learner, start, prompts = make_learner(max_unscored_share=1.0), make_learner(), make_prompts(2)
    rollouts = small_rollouts(learner.policy, prompts, 2, STEPS, 0)
    metrics = learner.step(prompts, rollouts, [[SILENT, reward(1.0)], [reward(4.0), SILENT]])
    assert "loss" not in metrics
    assert learner.next_step == 1
    assert_same_weights(learner, start)


@pytest.mark.parametrize(("missing", "stops"), [(4, False), (5, True), (8, True)])
def test_too_many_unscored_answers_stop_the_run(missing: int, stops: bool) -> None:
    learner, start, prompts = make_learner(max_unscored_share=0.5), make_learner(), make_prompts(2)
    rollouts = small_rollouts(learner.policy, prompts, GROUP, STEPS, 0)
    rewards = rewards_of(rollouts)
    for place in range(missing):
        rewards[place % 2][place // 2] = SILENT
    if not stops:
        assert learner.step(prompts, rollouts, rewards)["unscored"] == missing
        return
    with pytest.raises(PolicyError, match=rf"step 0: {missing} of 8 answers are unscored \(no transcript\)"):
        learner.step(prompts, rollouts, rewards)
    assert learner.next_step == 0
    assert_same_weights(learner, start)


def test_a_step_without_any_score_stops_the_run_whatever_the_share() -> None:
    """Its mean reward would be no number."""
    learner, prompts = make_learner(max_unscored_share=1.0), make_prompts(1)
    rollouts = small_rollouts(learner.policy, prompts, GROUP, STEPS, 0)
    with pytest.raises(PolicyError, match="4 of 4 answers are unscored"):
        learner.step(prompts, rollouts, [[SILENT] * GROUP])


# -- failures ---------------------------------------------------------------------------------------------------------


def test_a_loss_that_is_not_a_number_changes_nothing() -> None:
    learner, prompts = make_learner(), make_prompts(2)
    advance(learner, prompts, 1)
    before = learner.weights()
    rollouts = small_rollouts(learner.policy, prompts, GROUP, STEPS, 1)
    block = rollouts[0].blocks[0]
    poisoned = replace(block, behaviour_logp=np.where(block.sampled, np.nan, 0.0))
    with pytest.raises(PolicyError, match="step 1: the loss is nan"):
        learner.step(prompts, [replace(rollouts[0], blocks=(poisoned,)), rollouts[1]], rewards_of(rollouts))
    after = learner.weights()
    assert all(np.array_equal(before[name], after[name]) for name in before)
    assert learner.next_step == 1
    # And the learner is still able to go on.
    assert advance(learner, prompts, 1)[0]["step"] == 1


def test_a_gradient_that_is_not_a_number_changes_nothing() -> None:
    learner, prompts = make_learner(), make_prompts(2)
    before = learner.weights()
    weight = learner.policy.model.lm_head.weight
    handle = weight.register_hook(lambda gradient: gradient * float("nan"))
    with pytest.raises(PolicyError, match="step 0: the gradient"):
        advance(learner, prompts, 1)
    handle.remove()
    after = learner.weights()
    assert all(np.array_equal(before[name], after[name]) for name in before)
    assert advance(learner, prompts, 1)[0]["step"] == 0


# -- pure parts -------------------------------------------------------------------------------------------------------


def block_of(first: int, answers: int, steps: int) -> Block:
    """Two slots; tokens count up from `first`, old log-probs are minus a tenth of them, odd tokens were sampled."""
    tokens = first + np.arange(answers * steps * 2).reshape(answers, steps, 2)
    sampled = tokens % 2 == 1
    return Block(("text", "audio0"), tokens, sampled, np.where(sampled, -tokens / 10, 0.0))


def test_select_answers_by_hand() -> None:
    found = block_of(0, 3, 2).part([0, 2])
    assert found.slots == ("text", "audio0")
    assert found.tokens.tolist() == [[[0, 1], [2, 3]], [[8, 9], [10, 11]]]
    assert found.sampled.tolist() == [[[False, True], [False, True]]] * 2
    np.testing.assert_allclose(found.behaviour_logp[1], [[0, -0.9], [0, -1.1]])


def test_entries_by_hand() -> None:
    """A block of one answer and one step beside one of two answers and two steps."""
    found = token_batch([[block_of(1, 1, 1)], [block_of(0, 2, 2)]], torch.float64, torch.device("cpu"))
    assert found.mask.tolist() == [[1, 0, 0, 0], [0, 1, 0, 1], [0, 1, 0, 1]]
    torch.testing.assert_close(
        found.behaviour_logp,
        torch.tensor([[-0.1, 0, 0, 0], [0, -0.1, 0, -0.3], [0, -0.5, 0, -0.7]], dtype=torch.float64),
    )
    assert found.step_id.tolist() == [[0, 0, 1, 1]] * 3
    assert found.stream_id[1:].tolist() == [[TEXT, AUDIO, TEXT, AUDIO]] * 2


def test_entries_of_two_blocks_have_clocks_of_their_own() -> None:
    """Text of one step and audio of two, as of a thinker and a talker; and a slot that holds both streams in turn."""
    text = Block(("text",), np.full((1, 1, 1), 7), np.ones((1, 1, 1), dtype=bool), np.full((1, 1, 1), -1.0))
    audio = Block(("audio0",), np.full((1, 2, 1), 9), np.ones((1, 2, 1), dtype=bool), np.full((1, 2, 1), -2.0))
    found = token_batch([[text, audio]], torch.float64, torch.device("cpu"))
    assert found.step_id.tolist() == [[0, 1, 2]]
    assert found.stream_id.tolist() == [[TEXT, AUDIO, AUDIO]]
    assert found.behaviour_logp.tolist() == [[-1, -2, -2]]
    mixed = replace(audio, slots=("text",), labels=np.array([[[TEXT], [AUDIO]]]))
    assert token_batch([[mixed]], torch.float64, torch.device("cpu")).stream_id.tolist() == [[TEXT, AUDIO]]


def test_parity_by_hand() -> None:
    block = Block(("text", "audio0"), np.zeros((1, 3, 2), dtype=np.int64), np.ones((1, 3, 2), dtype=bool),
                  np.array([[[-1.0, -5.0], [-2.0, -5.0], [-3.0, -5.0]]]))  # fmt: skip
    logp = torch.tensor([[-1.0, -5.0, -2.5, -4.0, -3.0, -5.5]], dtype=torch.float64)
    found = parity(token_batch([[block]], torch.float64, torch.device("cpu")), logp)
    assert found == {"text": (0.5, 0.5, 3.0), "audio": (1.0, 1.5, 3.0)}


# -- portions, adapters, drift ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("size", [1, 3, 5, 100])
@pytest.mark.parametrize("loss", ["grpo", "bnpo", "dr_grpo"])
@pytest.mark.parametrize("average", ["joint", "per_stream"])
def test_a_batch_in_micro_batches_is_the_full_batch(size: int, loss: str, average: str) -> None:
    settings = {"loss_type": loss, "average": average, "scale_rewards": "group"}
    complete, parts = make_learner(**settings), make_learner(micro_batch_size=size, **settings)
    prompts = make_prompts(3)
    for step in range(2):
        rollouts = small_rollouts(complete.policy, prompts, GROUP, STEPS, step)
        rewards = rewards_of(rollouts)
        rewards[1][2] = SILENT
        one, other = complete.step(prompts, rollouts, rewards), parts.step(prompts, rollouts, rewards)
        assert other == pytest.approx(one, abs=1e-9)
    for left, right in zip(complete.weights().values(), parts.weights().values(), strict=True):
        np.testing.assert_allclose(left, right, atol=1e-9)


@pytest.mark.parametrize("unpaid", ["audio", "text"])
@pytest.mark.parametrize(
    "settings",
    [{}, {"ratio_level": "sequence", "scale_rewards": "group"}, {"loss_type": "dr_grpo", "tis_cap": 2.0}, {"loss_type": "dpo"}],
    ids=["grpo", "sequence", "dr_grpo", "dpo"],
)
def test_a_stream_without_a_weight_is_not_read_and_moves_as_little(unpaid: str, settings: dict[str, Any]) -> None:
    """Where an evaluation is due all is read; the weights are those of an update that reads all."""
    settings = {"average": "per_stream", "audio_weight": 0.3, f"{unpaid}_weight": 0.0, **settings}
    full, part = make_learner(evaluate_every=1, **settings), make_learner(evaluate_every=10, **settings)
    read: set[int] = set()
    logprobs = part.policy.logprobs

    def noted(prompts: Sequence[Prompt], answers: Sequence[Sequence[Block]], sampling: Any) -> Any:
        read.update(block.tokens.shape[1] for blocks in answers for block in blocks)
        return logprobs(prompts, answers, sampling)

    part.policy.logprobs = noted  # type: ignore[method-assign]
    prompts, paid = make_prompts(3), TEXT if unpaid == "audio" else AUDIO
    for step in range(3):
        rollouts = small_rollouts(full.policy, prompts, GROUP, STEPS, step)
        rewards, blocks = rewards_of(rollouts), [rollout.blocks[0] for rollout in rollouts]
        read.clear()
        one, other = full.step(prompts, rollouts, rewards), part.step(prompts, rollouts, rewards)
        # The paid stream's last step, of the group's longest answer.
        ends = {1 + int(np.flatnonzero((b.sampled & (b.streams == paid)).any((0, 2))).max()) for b in blocks}
        assert read <= (ends if step else {b.tokens.shape[1] for b in blocks})
        absent = {f"kl_{unpaid}", f"parity_{unpaid}_max", f"parity_{unpaid}_mean"}
        assert one.keys() - other.keys() == (absent if step else set())
        assert other == pytest.approx({key: value for key, value in one.items() if key in other}, abs=1e-9)
    for left, right in zip(full.weights().values(), part.weights().values(), strict=True):
        np.testing.assert_allclose(left, right, atol=1e-12)


def test_with_adapters_they_alone_learn_travel_and_are_kept(tmp_path: Path) -> None:
    prompts = make_prompts(2)
    settings = {"lora": {"rank": 2, "alpha": 4}, "lr": 0.05, "warmup_steps": 1}
    learner, other = make_learner(**settings), make_learner(**settings)
    base = {name: value.clone() for name, value in learner.policy.model.state_dict().items() if "lora_" not in name}
    first = advance(learner, prompts, 2)
    assert first[0]["kl"] == pytest.approx(0, abs=1e-12)
    assert first[1]["kl"] > 1e-6
    assert all("lora_" in name for name in learner.weights())
    assert all(torch.equal(learner.policy.model.state_dict()[name], value) for name, value in base.items())
    learner.save(tmp_path / "checkpoint")
    other.restore(tmp_path / "checkpoint")
    assert advance(other, prompts, 1) == advance(learner, prompts, 1)
    rollouts = small_rollouts(learner.policy, prompts, GROUP, STEPS, 9)
    answers = [rollout.blocks for rollout in rollouts]
    trained = learner.policy.logprobs(prompts, answers, learner.sampling)[0]
    learner.export(tmp_path / "aligned")
    merged = EmbeddedPolicy.load(tmp_path / "aligned", codec=learner.policy.codec)
    assert not merged.adapters
    torch.testing.assert_close(merged.logprobs(prompts, answers, learner.sampling)[0].double(), trained, atol=1e-5, rtol=0)


def test_sampler_and_learner_that_drift_apart_stop_the_run() -> None:
    """As where the sampler works in another precision, or was never given the weights."""
    learner, prompts = make_learner(), make_prompts(2)
    rollouts = small_rollouts(learner.policy, prompts, GROUP, STEPS, 0)
    rewards, before = rewards_of(rollouts), learner.weights()
    block = rollouts[1].blocks[0]
    shifted = block.behaviour_logp.copy()
    shifted[..., 1:] -= 0.5 * block.sampled[..., 1:]
    drifted = [rollouts[0], replace(rollouts[1], blocks=(replace(block, behaviour_logp=shifted),))]
    with pytest.raises(PolicyError, match=r"step 0: in the audio stream .*max_logprob_gap"):
        learner.step(prompts, drifted, rewards)
    assert all(np.array_equal(before[name], value) for name, value in learner.weights().items())
    # Of an older policy it is expected, and weighed.
    stale = [replace(one, policy_version=-3) for one in drifted]
    assert learner.step(prompts, stale, rewards)["staleness"] == 3


def test_with_a_tis_cap_stale_answers_weigh_their_ratio() -> None:
    """Under the cap the weight is exp(learner - sampler) of each token, here 2 on half of them, and 1.5 above it."""
    learner, prompts = make_learner(tis_cap=1.5, kl_weight=0.0, ratio_level="token"), make_prompts(1)
    rollouts = small_rollouts(learner.policy, prompts, GROUP, STEPS, 0)
    block = rollouts[0].blocks[0]
    unlikelier = replace(block, behaviour_logp=block.behaviour_logp - np.log(2) * block.sampled)
    plain = make_learner(kl_weight=0.0, ratio_level="token")
    rewards = rewards_of(rollouts)
    found = learner.step(prompts, [replace(rollouts[0], blocks=(unlikelier,), policy_version=-1)], rewards)
    expected = plain.step(prompts, rollouts, rewards)
    assert found["loss"] == pytest.approx(1.5 * expected["loss"], abs=1e-12)
    assert found["grad_norm"] == pytest.approx(1.5 * expected["grad_norm"], rel=1e-9)
    assert found["clipped_share"] == 0


@pytest.mark.parametrize("lora", [True, False], ids=["adapters", "all weights"])
def test_on_a_half_precision_model_what_learns_is_float32(tmp_path: Path, lora: bool) -> None:
    """At 1e-5, where bfloat16 would round nearly every update away; files and the sampler's weights stay as they were."""
    settings = {"lora": {"rank": 2, "alpha": 4}} if lora else {}
    learner = make_learner(torch.bfloat16, lr=1e-5, adaptor_lr=1e-5, warmup_steps=1, max_logprob_gap=99.0, **settings)
    for name, parameter in learner.policy.trainable().items():
        parameter.data += 0.1 if "lora_B" in name else 0.0
    before = {name: value.detach().clone() for name, value in learner.policy.trainable().items()}
    prompts = make_prompts(2)
    for _ in range(4):
        rollouts = small_rollouts(learner.policy, prompts, GROUP, STEPS, learner.next_step)
        learner.step(prompts, rollouts, rewards_of(rollouts))
    after = learner.policy.trainable()
    assert {value.dtype for value in after.values()} == {torch.float32}
    weights = [name for name in after if ("lora_A" in name if lora else "layers" in name and "proj.weight" in name)]
    moved, numbers = sum(int((after[n] != before[n]).sum()) for n in weights), sum(after[n].numel() for n in weights)
    assert numbers > 1000
    assert moved > 0.98 * numbers
    # int16 is how bfloat16 travels.
    assert {value.dtype for value in learner.weights().values()} == {np.dtype(np.float32 if lora else np.int16)}
    learner.export(tmp_path)
    loaded = EmbeddedPolicy.load(tmp_path, codec=learner.policy.codec)
    assert {value.dtype for value in learner.policy.model.state_dict().values()} == {torch.bfloat16}
    assert loaded.model.state_dict().keys() == learner.policy.model.state_dict().keys()


def test_each_stream_learns_at_the_temperature_it_was_sampled_at() -> None:
    learner = make_learner(temperature=0.7, audio_temperature=1.3)
    assert learner.sampling == Sampling(0.7, 1.3, STEPS)
    assert make_learner(temperature=0.7).sampling == Sampling(0.7, 0.7, STEPS)
    prompts = make_prompts(2)
    generations = learner.policy.generate(SampleRequest(prompts, [[1, 2, 3, 4], [5, 6, 7, 8]], learner.sampling))
    rollouts = [decoded(learner.policy, f"q{number}", 0, one) for number, one in enumerate(generations)]
    assert learner.step(prompts, rollouts, rewards_of(rollouts))["parity_audio_max"] < 1e-9


# -- other objectives -----------------------------------------------------------------------------------------------------


OTHERS: list[dict[str, Any]] = [
    {"loss_type": "rft", "kl_weight": 0.0},
    {"loss_type": "dpo", "kl_weight": 0.5, "average": "joint"},
    {"scale_rewards": "sources"},
]


@pytest.mark.parametrize("settings", OTHERS, ids=["rft", "dpo", "sources"])
def test_in_micro_batches_other_objectives_are_the_same(settings: dict[str, Any]) -> None:
    complete, parts = make_learner(**settings), make_learner(micro_batch_size=3, **settings)
    prompts = make_prompts(3)
    for step in range(2):
        rollouts = small_rollouts(complete.policy, prompts, GROUP, STEPS, step)
        rewards: list[list[Reward | Unscored]] = [
            [Reward(one.value, {"a": one.value, "b": -(one.value**2)}) for one in row if isinstance(one, Reward)]
            for row in rewards_of(rollouts)
        ]
        rewards[1][2] = SILENT
        one, other = complete.step(prompts, rollouts, rewards), parts.step(prompts, rollouts, rewards)
        assert other == pytest.approx(one, abs=1e-9)
    for left, right in zip(complete.weights().values(), parts.weights().values(), strict=True):
        np.testing.assert_allclose(left, right, atol=1e-9)


def answer_logps(learner: Learner, prompts: Sequence[Prompt], rollouts: Sequence[Rollout]) -> list[float]:
    """Of every answer over both streams, in order."""
    with torch.no_grad():
        found = learner.policy.logprobs(prompts, [rollout.blocks for rollout in rollouts], learner.sampling)[0]
    return [float(one) for one in found.sum((1, 2))]


@pytest.mark.parametrize("settings", OTHERS[:2], ids=["rft", "dpo"])
def test_the_best_answer_becomes_likelier(settings: dict[str, Any]) -> None:
    """By DPO than the worst: both may become less likely. An answer between them moves nothing."""
    learner, other, prompts = make_learner(**settings), make_learner(max_logprob_gap=9.0, **settings), make_prompts(1)
    rollouts = small_rollouts(learner.policy, prompts, GROUP, STEPS, 0)
    rewards = [[reward(2.0), reward(5.0), reward(1.0), reward(3.0)]]
    before = answer_logps(learner, prompts, rollouts)
    for _ in range(3):
        learner.step(prompts, [replace(one, policy_version=learner.next_step - 1) for one in rollouts], rewards)
        changed = [replace(with_other_tokens(rollouts[0], 3), policy_version=learner.next_step - 2)]
        other.step(prompts, changed, rewards)
    after = answer_logps(learner, prompts, rollouts)
    moved = [late - early for early, late in zip(before, after, strict=True)]
    assert moved[1] - (moved[2] if settings["loss_type"] == "dpo" else 0.0) > 0.1
    assert_same_weights(learner, other)


def test_a_step_of_flat_groups_chooses_nobody() -> None:
    learner, start, prompts = make_learner(loss_type="dpo"), make_learner(loss_type="dpo"), make_prompts(2)
    rollouts = small_rollouts(learner.policy, prompts, GROUP, STEPS, 0)
    metrics = learner.step(prompts, rollouts, [[reward(2.0)] * GROUP] * 2)
    assert metrics["zero_spread_groups"] == 2
    assert "loss" not in metrics
    assert_same_weights(learner, start)


def test_groups_that_are_left_out_have_no_advantage() -> None:
    """Of two groups the one whose rewards differ most is learned from."""
    learner, prompts = make_learner(groups_per_update=1, scale_rewards="none"), make_prompts(2)
    rollouts = small_rollouts(learner.policy, prompts, 2, STEPS, 0)
    learner.step(prompts, rollouts, [[reward(3.0), reward(3.2)], [reward(1.0), reward(5.0)]])
    assert learner.advantages == [[None, None], [-2.0, 2.0]]


def test_by_source_the_weights_of_the_run_count() -> None:
    """Two sources that prefer different answers: with all weight on one the other is as if it were not there."""
    prompts = make_prompts(2)
    first = make_learner(scale_rewards="sources")
    rollouts = small_rollouts(first.policy, prompts, 2, STEPS, 0)
    both = [[Reward(3.0, {"a": 1.0, "b": 5.0}), Reward(3.0, {"a": 5.0, "b": 1.0})] for _ in prompts]
    alone = [[Reward(1.0, {"a": 1.0}), Reward(5.0, {"a": 5.0})] for _ in prompts]
    first.source_weights = {"a": 1.0, "b": 1e-9}
    other = make_learner(scale_rewards="sources")
    first.step(prompts, rollouts, both)
    other.step(prompts, rollouts, alone)
    for left, right in zip(first.weights().values(), other.weights().values(), strict=True):
        np.testing.assert_allclose(left, right, atol=1e-6)
