"""Steps in time: drivers, batches, lengths, calls, and weights that travel, all by hand."""

from __future__ import annotations

import random

import pytest
from tiny.plans import TINY, cluster, device, figure, kimi_plan

from paras2s.planning import cost
from paras2s.planning.cluster import Driver, Engine, LearnerPlan
from paras2s.planning.driver import StepTimes, run_driver
from paras2s.planning.queues import SpeechBatch, batches_as_they_end, calls_seconds, spoken_seconds
from paras2s.planning.simulate import (
    AnswerLength,
    Lengths,
    bandwidth,
    deal,
    decode,
    draw_answers,
    exchange_seconds,
    sync_seconds,
)


@pytest.mark.parametrize(
    ("driver", "colocated", "step_s"),
    [
        (Driver(), False, 20.0),
        (Driver(), True, 20.0),
        # Judge and learner are hidden behind the rollout: the longest phase, no longer the sum.
        (Driver(kind="async", max_staleness=1), False, 10.0),
        (Driver(kind="async", max_staleness=3), False, 10.0),
        # Devices that do everything have only the judge's time to hide.
        (Driver(kind="async", max_staleness=1), True, 16.0),
    ],
)
def test_the_driver_sums_or_hides(driver: Driver, colocated: bool, step_s: float) -> None:
    found = run_driver([StepTimes(rollout=10, reward=4, learner=6, sync=0)], driver, colocated, reward_on_devices=False)
    assert found.step_s == pytest.approx(step_s)
    assert found.bottleneck == "rollout"
    assert found.busy["rollout"] == pytest.approx(10 / step_s)


def test_a_slow_judge_is_hidden_by_older_samples_as_far_as_it_takes_several_steps_at_once() -> None:
    """A sample is learned from after 10 + 50 + 6 seconds; k steps of staleness let k + 1 of them share that."""
    times = [StepTimes(rollout=10, reward=50, learner=6, sync=0)]

    def step_s(staleness: int, at_once: int) -> float:
        driver = Driver(kind="async", max_staleness=staleness) if staleness else Driver()
        return run_driver(times, driver, False, False, at_once).step_s

    assert step_s(0, 1) == pytest.approx(66)
    assert [step_s(k, 1) for k in (1, 2, 9)] == pytest.approx([50, 50, 50])
    assert [step_s(k, 8) for k in (1, 2, 9)] == pytest.approx([33, 22, 10])


def test_devices_that_judge_are_shared_or_their_own() -> None:
    times = [StepTimes(rollout=10, reward=4, learner=6, sync=0)]
    ahead = Driver(kind="async", max_staleness=2)
    assert run_driver(times, ahead, colocated=True, reward_on_devices=True).step_s == pytest.approx(20)
    assert run_driver(times, ahead, colocated=False, reward_on_devices=True).step_s == pytest.approx(10)


def test_weights_take_time_of_learner_and_samplers() -> None:
    times = [StepTimes(rollout=10, reward=0, learner=6, sync=2)]
    assert run_driver(times, Driver(), False, False).step_s == pytest.approx(18)
    ahead = Driver(kind="async", max_staleness=1)
    assert run_driver(times, ahead, False, False).step_s == pytest.approx(12)
    assert run_driver([StepTimes(rollout=5, reward=0, learner=9, sync=2)], ahead, False, False).step_s == pytest.approx(11)
    # Devices that do both send once.
    assert run_driver(times, ahead, True, False).step_s == pytest.approx(18)


def test_samplers_take_weights_while_the_learner_is_at_the_next_step() -> None:
    """Samples 0, 1, 2 end at 10, 20, 30; the first is spoken until 18, judged until 19 and learned from until 21.

    The second is learned from between 29 and 31, so that at 30 the weights of the first have been there for long.
    """
    times = [StepTimes(rollout=10, reward=1, learner=2, sync=0, speak=(SpeechBatch(0, 8),))]
    assert run_driver(times, Driver(kind="async", max_staleness=2), False, False).step_s == pytest.approx(10)


def ticks(engine: Engine, lengths: list[int]) -> list[float]:
    """When each answer ends where a step takes a second and nothing else any time."""
    slow = device(peak_tflops=1e12, memory_gb_s=1e12, step_overhead_ms=1000)
    answers = [AnswerLength(length, 1) for length in lengths]
    return [round(end, 6) for end in decode(TINY, slow, engine, answers, group=2, prompt_steps=3).ends_s]


def test_a_batch_takes_its_longest_and_continuous_batching_does_not_wait() -> None:
    # The first step is drawn from the prompt: an answer of n steps takes n - 1.
    assert ticks(Engine(rows=8), [3, 5]) == [2, 4]
    assert ticks(Engine(rows=2, batching="static"), [3, 5, 4]) == [2, 4, 7]
    assert ticks(Engine(rows=2, batching="continuous"), [3, 5, 4]) == [2, 4, 5]
    assert ticks(Engine(rows=1), [3, 5]) == [2, 6]


def test_rows_that_ended_cost_until_they_leave() -> None:
    slow, answers = device(peak_tflops=1e-9), [AnswerLength(3, 1), AnswerLength(5, 1)]

    def end_s(engine: Engine) -> float:
        return decode(TINY, slow, engine, answers, group=1, prompt_steps=0).seconds

    leaving, staying = end_s(Engine(rows=2)), end_s(Engine(rows=2, batching="static"))
    assert leaving < end_s(Engine(rows=2, leave_share=0.6)) <= staying * (1 + 1e-9)


def test_lengths_are_drawn_within_bounds_and_about_their_mean() -> None:
    rng = random.Random(0)
    even, chance = Lengths(40, 0.5, 100), Lengths(40, None, 10_000)
    drawn = [even.draw(rng) for _ in range(4000)]
    assert min(drawn) >= 20
    assert max(drawn) <= 60
    assert sum(drawn) / 4000 == pytest.approx(40, rel=0.02)
    assert sum(chance.draw(rng) for _ in range(20_000)) / 20_000 == pytest.approx(40, rel=0.03)
    assert {Lengths(40, 0.5, 8).draw(rng) for _ in range(50)} == {8}
    assert all(one.text_steps <= one.steps for one in draw_answers(200, Lengths(9, 0.9, 99), Lengths(9, 0.9, 99), rng))


def test_calls_take_turns_on_their_slots() -> None:
    assert calls_seconds([0.0] * 5, concurrency=2, latency_s=3) == 9
    assert calls_seconds([0.0] * 5, concurrency=64, latency_s=3) == 3
    # Each is asked as soon as it is there.
    assert calls_seconds([0, 1, 2, 10], concurrency=1, latency_s=2) == 12


def test_answers_are_dealt_by_groups_and_one_by_one_where_groups_are_few() -> None:
    answers = [AnswerLength(number, 1) for number in range(1, 9)]
    assert [[one.steps for one in hand] for hand in deal(answers, 2, 3)] == [[1, 2, 7, 8], [3, 4], [5, 6]]
    assert [len(hand) for hand in deal(answers, 4, 5)] == [2, 2, 2, 1, 1]


def test_exchange_by_hand() -> None:
    """Two shards in a node: half of the weights and their copy come, half of the gradients go."""
    learner = LearnerPlan(shard_over=2)
    of_two = cluster(devices=2, devices_per_node=2, learner=learner)
    assert bandwidth(of_two, 2) == 50e9
    once = exchange_seconds(of_two, total=1e9, trained=1e9, passes=3)
    assert once == pytest.approx(0.5 * (2 * 2 + 4) * 1e9 / 50e9)
    # With adapters the same weights come twice, before the reference's passes and again before the policy's.
    adapters = of_two.model_copy(update={"learner": learner.model_copy(update={"trainable": "lora"})})
    assert exchange_seconds(adapters, total=1e9, trained=1e6, passes=3) == pytest.approx(0.5 * (2 * 2e9 + 4e6) / 50e9)
    # Layer by layer they come three times a pass, for the reference, for the policy and on the way back; each time twice, for
    # prompts and for answers.
    by_layer = of_two.model_copy(update={"learner": learner.model_copy(update={"gather": "layer"})})
    assert exchange_seconds(by_layer, total=1e9, trained=1e9, passes=3) == pytest.approx(6 * 0.5 * (3 * 2 + 4) * 1e9 / 50e9)
    # Two copies on two nodes: what a device has of the gradients goes over the network, there and back.
    copies = cluster(devices=2, devices_per_node=1)
    assert exchange_seconds(copies, total=1e9, trained=1e9, passes=3) == pytest.approx(2 * 0.5 * 4 * 1e9 / 5e9)


def test_new_weights_travel_by_hand() -> None:
    total = sum(cost.parameters(TINY).values())
    slow = cluster(transport_gb_s=figure(2))
    assert sync_seconds(TINY, slow) == pytest.approx(2 * total / 2e9)
    adapters = slow.model_copy(update={"learner": LearnerPlan(trainable="lora", lora_rank=1)})
    assert sync_seconds(TINY, adapters) == pytest.approx(4 * cost.lora_parameters(TINY, 1) / 2e9)
    assert sync_seconds(TINY, cluster(devices=8)) == pytest.approx(2 * total / 50e9)
    # Every sampler brings the weights beneath the adapters from its host: seven products of four layers.
    from_host = adapters.model_copy(update={"device": device().model_copy(update={"host_gb_s": figure(0.5)})})
    beneath = 2 * 4 * (2 * 16 + 2 * 8 + 3 * 24)
    assert sync_seconds(TINY, from_host) - sync_seconds(TINY, adapters) == pytest.approx(beneath / 0.5e9)
    full = from_host.model_copy(update={"learner": LearnerPlan()})
    assert sync_seconds(TINY, full) == sync_seconds(TINY, slow)


def test_answers_are_spoken_in_batches_as_they_end() -> None:
    """Sixteen that ended at 1 to 16 s and sixteen at 17 to 32 s, of a second of sound each, at half a second each."""
    ends, sound = [float(n) for n in range(1, 33)], [1.0] * 32
    batches = batches_as_they_end(ends, sound, each_s=0.5)
    assert batches == [SpeechBatch(16, 8), SpeechBatch(32, 8)]
    # The first batch from 16 to 24, the second from 32 to 40, whoever speaks it.
    assert spoken_seconds(batches, devices=1) == spoken_seconds(batches, devices=2) == 40
    # At two seconds each one device has the first until 48, and two overlap.
    slow = batches_as_they_end(ends, sound, each_s=2)
    assert spoken_seconds(slow, devices=1) == 80
    assert spoken_seconds(slow, devices=2) == 64
    assert spoken_seconds(batches_as_they_end([], [], each_s=2), devices=2) == 0


def test_speaking_apart_begins_before_the_rollout_ends_and_hides_behind_the_next() -> None:
    # From 5 to 10 and from 10 to 13.
    times = [StepTimes(rollout=10, reward=1, learner=6, sync=0, speak=(SpeechBatch(-5, 5), SpeechBatch(0, 3)))]
    assert run_driver(times, Driver(), False, False).step_s == pytest.approx(10 + 3 + 1 + 6)
    ahead = Driver(kind="async", max_staleness=3)
    assert run_driver(times, ahead, False, False).step_s == pytest.approx(10)
    # Devices that speak longer than all else set the pace.
    slow = [StepTimes(rollout=10, reward=4, learner=6, sync=0, speak=(SpeechBatch(-5, 15), SpeechBatch(0, 15)))]
    found = run_driver(slow, ahead, False, False)
    assert (found.step_s, found.bottleneck) == (pytest.approx(30), "speak")
    found = run_driver(slow, ahead, False, False, speakers=2)
    assert (found.step_s, found.bottleneck) == (pytest.approx(15), "speak")
    assert found.busy["speak"] == pytest.approx(1)


def test_more_devices_than_batches_do_not_speak_the_last_batch_sooner() -> None:
    """A step of 10 s and one batch of 8 s behind it: 18 s, and 7 s more to learn, on however many devices."""
    times = [StepTimes(rollout=10, reward=1, learner=6, sync=0, speak=(SpeechBatch(0, 8),))]
    for speakers in (1, 2, 4):
        found = run_driver(times, Driver(), False, False, speakers=speakers)
        assert found.step_s == pytest.approx(25)
        assert found.busy["speak"] == pytest.approx(8 / 25 / speakers)


def test_a_plan_with_devices_that_speak_adds_up() -> None:
    """16 devices sample, 24 speak, 16 learn, 8 judge: without stale samples a step is its phases one after another."""
    roles = {"layout": "apart", "rollout": 16, "speak": 24, "learner": 16, "reward": 8}
    waiting = kimi_plan(cluster="gpu64", changes={"roles": roles, "driver": {"kind": "sync", "max_staleness": 0}})
    phases = waiting.phases
    # The last batch is longer than a device's share of all, which a step cannot be shorter by.
    assert phases.speak_behind > phases.speak_apart
    chain_s = phases.rollout + phases.speak_behind + phases.judge + phases.learner + phases.sync
    assert waiting.rhythm.step_s == pytest.approx(chain_s, rel=1e-3)
    # Two steps of staleness hide all but the slowest role: here those that speak, which take turns.
    ahead = kimi_plan(cluster="gpu64", changes={"roles": roles})
    assert ahead.rhythm.bottleneck == "speak"
    assert phases.speak_apart < ahead.rhythm.step_s < waiting.rhythm.step_s / 2
    # Twice the seconds of speaking, as a timed run may say.
    slower = kimi_plan(
        cluster="gpu64", changes={"roles": roles, "driver": {"kind": "sync", "max_staleness": 0}},
        factors={"speak_apart": 2.0, "speak_behind": 2.0},
    )  # fmt: skip
    assert slower.rhythm.step_s > waiting.rhythm.step_s + phases.speak_behind / 2
