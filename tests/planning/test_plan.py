"""The plan: parameters and FLOPs by hand and against the network itself, memory, drivers, lengths, costs, refusals.

Not covered: whether the rates are true. benchmarks/plan_check.py compares predicted with measured steps.
"""

from __future__ import annotations

import json
import random
import subprocess
import sys
from importlib import resources
from pathlib import Path
from typing import Any

import pytest
import typer
import yaml
from typer.testing import CliRunner

from paras2s.cli.plan import plan
from paras2s.configs.schema.run import AlignConfig, PolicyConfig, RunConfig, load_config
from paras2s.errors import ConfigError
from paras2s.planning import cost
from paras2s.planning.cluster import (
    Cluster,
    Driver,
    Engine,
    Figure,
    LearnerPlan,
    PeakDevice,
    Rates,
    as_the_run_says,
    figures,
    load_cluster,
    load_rates,
    policy_facts,
)
from paras2s.planning.cost import PolicySizes, Work
from paras2s.planning.simulate import (
    Answer,
    Lengths,
    StepTimes,
    bandwidth,
    calls_seconds,
    deal,
    decode,
    draw_answers,
    exchange_seconds,
    load_of,
    make_plan,
    run_driver,
    sync_seconds,
)

SHIPPED = sorted((Path(str(resources.files("paras2s"))) / "configs" / "clusters").glob("*.yaml"))
KIMI_CONFIG = Path(str(resources.files("paras2s"))) / "configs" / "kimi_paper.yaml"
RATES = load_rates()
# Two shared layers, one more in each branch; d = 4, f = 6, j = 2, V = 10.
TINY = PolicySizes(
    hidden=4, intermediate=6, layers=3, tap=1, heads=2, kv_heads=1, vocab=10, text_rows=5, audio_rows=7, codebooks=1,
    continuous=3,
)  # fmt: skip


def figure(value: float) -> Figure:
    return Figure(value=value, origin="assumed", note="for a test")


def device(**changes: float) -> PeakDevice:
    """1 TFLOP/s and 1 GB/s, all of it reached; nothing besides."""
    values = {
        "memory_gib": 80.0, "peak_tflops": 1.0, "memory_gb_s": 1.0, "train_share": 1.0, "read_share": 1.0, "decode_share": 1.0,
        "memory_share": 1.0, "step_overhead_ms": 0.0,
    }  # fmt: skip
    return PeakDevice(kind="peak", **{name: figure(value) for name, value in (values | changes).items()})


def cluster(**changes: Any) -> Cluster:
    values: dict[str, Any] = {
        "name": "test", "device": device(), "devices": 1, "link_gb_s": figure(100), "network_gb_s": figure(10),
        "link_share": figure(0.5), "reserve_gib": figure(0), "usd_per_device_hour": figure(2),
    }  # fmt: skip
    return Cluster(**(values | changes))


# -- parameters and FLOPs -----------------------------------------------------------------------------------------------


def test_kimi_audio_has_the_parameters_counted_by_hand() -> None:
    """From the configuration in the reference, 1.1 and 1.3: 28 + 6 layers, tap 21, two untied heads, VQ adaptor."""
    sizes = cost.policy_sizes(load_config(KIMI_CONFIG).policy, RATES.policies["kimi-audio-7b"])
    q, k, o = 3584 * 3584 + 3584, 3584 * 512 + 512, 3584 * 3584
    layer = q + 2 * k + o + 3 * 3584 * 18944 + 2 * 3584
    assert layer == 233_057_792
    parts = cost.parameters(sizes)
    assert parts == {
        "embedding": 168_448 * 3584,
        "shared layers": 22 * layer,
        "text branch": 6 * layer,
        "audio branch": 6 * layer,
        "heads": 2 * 168_448 * 3584,
        "norms": 2 * 3584,
        "adaptor": (5120 * 3584 + 3584) + (3584 * 3584 + 3584) + 2 * 3584,
    }
    assert sum(parts.values()) == 9_766_334_464


@pytest.mark.parametrize(
    "sizes",
    [{}, {"hidden_size": 96, "intermediate_size": 160, "num_layers": 3, "tap_layer": 0, "num_heads": 6, "num_kv_heads": 2}],
    ids=["default", "grouped heads"],
)
def test_the_embedded_policy_has_the_parameters_of_its_network(sizes: dict[str, int]) -> None:
    from paras2s.policy.dual_stream.config import DualStreamConfig
    from paras2s.policy.dual_stream.model import DualStreamLM
    from paras2s.policy.embedded.codec2 import Codec2Pairs
    from paras2s.policy.embedded.features import FEATURE_DIM
    from paras2s.policy.embedded.policy import SPECIALS, special_ids

    config = PolicyConfig(**sizes)
    network = DualStreamLM(
        DualStreamConfig(
            **config.model_dump(include=set(PolicyConfig.model_fields) & set(DualStreamConfig.model_fields)),
            text_vocab=config.text_pieces + len(SPECIALS), codebook_sizes=Codec2Pairs().cardinality,
            continuous_dim=FEATURE_DIM, mask_invalid_ids=True, **special_ids(config.text_pieces),
        )
    )  # fmt: skip
    counted = cost.policy_sizes(config, RATES.policies["embedded"])
    assert sum(cost.parameters(counted).values()) == sum(one.numel() for one in network.parameters())
    text, audio = network.dual_config.text_range, network.dual_config.audio_ranges
    assert counted.text_rows == text[1] - text[0]
    assert counted.audio_rows == sum(stop - start for start, stop in audio)


def test_flops_of_the_linear_layers() -> None:
    # q and o 4x4, k and v 4x2, gate, up and down 4x6.
    assert cost.layer_products(TINY) == 16 + 16 + 8 + 8 + 3 * 24
    # 7 positions through 2 shared layers and one of each branch, and the adaptor's 3x4 and 4x4.
    read = cost.read_prompts(TINY, prompts=1, prompt_steps=7, dtype_bytes=2)
    assert read.products == 2 * 7 * (4 * 120 + 12 + 16)
    assert read.attention == 4 * 4 * 7 * 7 * 4


def test_a_decoded_step_by_hand() -> None:
    """3 rows with 6 positions behind them and prompts of 5, one text still being written: 4 layers and both heads."""
    step = cost.decode_step(TINY, rows=3, own_positions=6, prompts=1, prompt_steps=5, text=True, dtype_bytes=2)
    assert step.products == 2 * 3 * (4 * 120 + 4 * 5 + 4 * 7)
    assert step.attention == 4 * 4 * (6 + 3 * 5) * 4
    # The prompt's keys and values are read once for its rows.
    assert step.cache_bytes == 2 * 2 * 2 * 4 * (6 + 5)
    assert step.drawn_logits == 3 * (5 + 7)
    silent = cost.decode_step(TINY, rows=3, own_positions=6, prompts=1, prompt_steps=5, text=False, dtype_bytes=2)
    assert silent.products == 2 * 3 * (3 * 120 + 4 * 7)


def test_scoring_by_hand_and_its_way_back() -> None:
    """2 answers of 4 steps, their text 3 long, behind prompts of 5."""
    work = cost.score_answers(TINY, rows=2, steps=4, text_steps=3, prompt_steps=5, dtype_bytes=4)
    layers = 2 * 120 * (2 * 4 * 3 + 2 * 3 * 1)
    heads = 2 * 4 * (2 * 3 * 5 + 2 * 4 * 7)
    assert work.products == layers + heads
    assert work.attention == 4 * 4 * (9 * 2 * 4 * 3 + 8 * 2 * 3 * 1)
    assert cost.backward(work).products == 2 * work.products
    assert cost.backward(work, of_weights=False).products == work.products


def test_a_device_takes_the_slower_of_arithmetic_and_memory() -> None:
    fast = device()
    assert cost.seconds(Work(products=3e12, weight_bytes=1e9), fast, "decode") == 3
    assert cost.seconds(Work(products=3e12, weight_bytes=5e9), fast, "decode") == 5
    # Attention is another kernel, with limits of its own.
    assert cost.seconds(Work(products=3e12, cache_bytes=2e9), fast, "decode") == 5
    assert cost.seconds(Work(products=1e12), device(train_share=0.25), "train") == 4
    assert cost.seconds(Work(weight_bytes=1e9), device(memory_share=0.5), "decode") == 2


def test_a_measured_device_does_one_thing_after_another() -> None:
    here = load_cluster("this_machine", RATES).rates
    work = Work(products=1e9, weight_bytes=1e6, vector_bytes=1e6, backward_bytes=1e6, stream_bytes=1e6, drawn_logits=1e6,
                scored_logits=1e6, launches=10)  # fmt: skip
    alone = [Work(**{name: value}) for name, value in vars(work).items()]
    assert cost.seconds(work, here, "train") == pytest.approx(sum(cost.seconds(one, here, "train") for one in alone))


def test_kimi_decodes_at_the_speed_of_its_memory() -> None:
    """All of 34 layers and both heads are read once a step, whatever the rows."""
    sizes = cost.policy_sizes(load_config(KIMI_CONFIG).policy, RATES.policies["kimi-audio-7b"])
    bytes_read = 2 * (34 * 233_057_792 + 2 * 168_448 * 3584)
    step = cost.decode_step(sizes, rows=1, own_positions=0, prompts=1, prompt_steps=0, text=True, dtype_bytes=2)
    h100 = RATES.devices["h100_sxm"]
    assert cost.seconds(step, h100, "decode") == pytest.approx(bytes_read / (0.6 * 3350e9))


# -- memory -------------------------------------------------------------------------------------------------------------


LAYER = 120 + 4 + 2 * 2 + 2 * 4


def learner_parts(**changes: Any) -> dict[str, float]:
    """2 prompts of 5 steps, 4 answers of 3, their texts of 2."""
    plan = LearnerPlan(**({"rows": 4, "checkpointing": False, "logits_at_once": None} | changes))
    return cost.learner_memory(TINY, plan, rows=4, prompts=2, steps=3, text_steps=2, prompt_steps=5)


def test_learner_memory_by_hand() -> None:
    total = sum(cost.parameters(TINY).values())
    assert learner_parts(shard_over=2) == {
        "weights": 2 * total,  # float32, over 2 devices
        "reference": total,
        "optimiser": 4 * total,
        "gradients": 2 * total,
        # 22 positions, which see 22 and 4 times their prompt; 4 layers with keys of their own.
        "activations": 4 * 2 * ((9 * 4 + 4 * 6) * 22 + 2 * 2 * 42),
        # Kept once, and three copies: 4 x 2 x 5 logits of text, 4 x 3 x 7 of audio, 4 bytes each.
        "logits": 4 * 4 * (4 * 2 * 5 + 4 * 3 * 7),
        # The policy in 2 bytes and its gradients in 4, all of them on each device; the reference was, and is not any more.
        "gathered": 2 * total + 4 * total,
    }
    assert learner_parts(shard_over=2, gather="layer")["gathered"] == 2 * (2 * LAYER + total - 4 * LAYER)
    assert learner_parts(weight_bytes=4).get("gathered", 0) == 0


def test_adapters_by_hand() -> None:
    # q and o 4+4, k and v 4+2, gate, up and down 4+6.
    adapters, total = 4 * (8 + 8 + 6 + 6 + 30), sum(cost.parameters(TINY).values())
    assert cost.lora_parameters(TINY, 1) == adapters
    parts = learner_parts(shard_over=2, trainable="lora", lora_rank=1)
    assert parts["weights"] == (2 * total + 4 * adapters) / 2
    assert parts["reference"] == 0
    assert parts["optimiser"] == 8 * adapters / 2
    assert parts["gradients"] == 4 * adapters / 2
    assert parts["gathered"] == 2 * (total + adapters) + 4 * adapters


def test_what_less_memory_costs() -> None:
    assert learner_parts(checkpointing=True)["activations"] < learner_parts()["activations"]
    # Both heads in parts of 3 logits, of which there are four copies.
    assert learner_parts(logits_at_once=3)["logits"] == 2 * 4 * 4 * 3
    assert learner_parts(chunk_rows=1)["logits"] == 4 * (4 + 3) * (2 * 5 + 3 * 7)


def test_rollout_memory_by_hand() -> None:
    parts = cost.rollout_memory(TINY, Engine(), RATES.policies["embedded"], rows=4, prompts=2, most_steps=9, prompt_steps=5)
    assert parts["weights"] == 2 * sum(cost.parameters(TINY).values())
    assert parts["keys and values"] == 2 * 2 * 4 * 2 * (4 * 9 + 2 * 5)


# -- time ---------------------------------------------------------------------------------------------------------------


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


def test_weights_are_sent_while_neither_side_works() -> None:
    times = [StepTimes(rollout=10, reward=0, learner=6, sync=2)]
    assert run_driver(times, Driver(), False, False).step_s == pytest.approx(18)
    assert run_driver(times, Driver(kind="async", max_staleness=1), False, False).step_s == pytest.approx(12)


def ticks(engine: Engine, lengths: list[int]) -> list[float]:
    """When each answer ends where a step takes a second and nothing else any time."""
    slow = device(peak_tflops=1e12, memory_gb_s=1e12, step_overhead_ms=1000)
    answers = [Answer(length, 1) for length in lengths]
    return [round(end, 6) for end in decode(TINY, slow, engine, answers, group=2, prompt_steps=3).ends_s]


def test_a_batch_takes_its_longest_and_continuous_batching_does_not_wait() -> None:
    # The first step is drawn from the prompt: an answer of n steps takes n - 1.
    assert ticks(Engine(rows=8), [3, 5]) == [2, 4]
    assert ticks(Engine(rows=2, batching="static"), [3, 5, 4]) == [2, 4, 7]
    assert ticks(Engine(rows=2, batching="continuous"), [3, 5, 4]) == [2, 4, 5]
    assert ticks(Engine(rows=1), [3, 5]) == [2, 6]


def test_rows_that_ended_cost_until_they_leave() -> None:
    slow, answers = device(peak_tflops=1e-9), [Answer(3, 1), Answer(5, 1)]

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
    answers = [Answer(number, 1) for number in range(1, 9)]
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
    # Layer by layer they come three times a pass: for the reference, for the policy, and on the way back.
    by_layer = of_two.model_copy(update={"learner": learner.model_copy(update={"gather": "layer"})})
    assert exchange_seconds(by_layer, total=1e9, trained=1e9, passes=3) == pytest.approx(3 * 0.5 * (3 * 2 + 4) * 1e9 / 50e9)
    # Two copies on two nodes: what a device has of the gradients goes over the network, there and back.
    copies = cluster(devices=2, devices_per_node=1)
    assert exchange_seconds(copies, total=1e9, trained=1e9, passes=3) == pytest.approx(2 * 0.5 * 4 * 1e9 / 5e9)


def test_new_weights_travel_by_hand() -> None:
    total = sum(cost.parameters(TINY).values())
    slow = cluster(transport_gb_s=figure(2))
    assert sync_seconds(TINY, slow) == pytest.approx(2 * total / 2e9)
    adapters = slow.model_copy(update={"learner": LearnerPlan(trainable="lora", lora_rank=1)})
    assert sync_seconds(TINY, adapters) == pytest.approx(2 * cost.lora_parameters(TINY, 1) / 2e9)
    assert sync_seconds(TINY, cluster(devices=8)) == pytest.approx(2 * total / 50e9)


# -- whole plans --------------------------------------------------------------------------------------------------------


def kimi_plan(**options: Any) -> Any:
    config = load_config(KIMI_CONFIG, options.pop("overrides", None))
    machines = load_cluster(options.pop("cluster", "h100x8"), RATES, options.pop("changes", None))
    return make_plan(config, machines, RATES, policy_facts(RATES, config.policy), **options)


def test_the_papers_setting_adds_up() -> None:
    found = kimi_plan(prompts=100_000)
    phases = found.phases
    assert found.steps == 3125
    assert found.policy == "kimi-audio-7b"
    assert found.rhythm.step_s == pytest.approx(phases.rollout + phases.judge + phases.learner + phases.sync, rel=0.05)
    assert found.device_hours == pytest.approx(8 * 3125 * found.rhythm.step_s / 3600)
    assert found.devices_usd == pytest.approx(3 * found.device_hours)
    assert found.judge_usd == 0
    assert not found.problems


def test_longer_answers_more_answers_and_fewer_devices_take_longer() -> None:
    base = kimi_plan().rhythm.step_s
    assert kimi_plan(answer_s=10).rhythm.step_s < base
    assert kimi_plan(overrides={"align.group_size": 16}).rhythm.step_s > base
    assert kimi_plan(changes={"devices": 4, "learner.shard_over": 4}).rhythm.step_s > base
    assert kimi_plan(overrides={"align.lora": None}).rhythm.step_s > base
    assert kimi_plan(changes={"device.step_overhead_ms.value": 1}).rhythm.step_s < base


def test_an_asynchronous_driver_is_no_slower() -> None:
    sync = {"driver.kind": "sync", "driver.max_staleness": 0}
    assert kimi_plan(cluster="gpu64").rhythm.step_s < kimi_plan(cluster="gpu64", changes=sync).rhythm.step_s


def test_the_cap_is_the_configs_where_it_is_set() -> None:
    unset, paper = RunConfig(policy=PolicyConfig(kind="kimi")), load_config(KIMI_CONFIG)
    capped = load_config(KIMI_CONFIG, {"policy.max_answer_steps": 300})
    assert [load_of(run, policy_facts(RATES, run.policy)).audio.most for run in (unset, paper, capped)] == [1425, 600, 300]
    # 31 s at 12.5 a second, the delay of 6 and the end: the longest drawn are half as long again, just below 600.
    assert load_of(paper, policy_facts(RATES, paper.policy)).audio.mean * 1.5 == 591.75


def test_a_policy_is_known_by_its_kind_its_sizes_or_its_name() -> None:
    kimi = load_config(KIMI_CONFIG).policy
    assert policy_facts(RATES, kimi).name == "kimi-audio-7b"
    assert policy_facts(RATES, PolicyConfig()).name == "embedded"
    # By its kind a released policy brings its sizes.
    named = policy_facts(RATES, PolicyConfig(kind="kimi", weights=Path("kimi")))
    assert named.sizes.hidden_size == 3584
    assert cost.policy_sizes(named.sizes, named.facts) == cost.policy_sizes(kimi, RATES.policies["kimi-audio-7b"])
    # Sizes that the run sets are its own, unless it is asked about another policy.
    shallow = PolicyConfig(kind="kimi", num_layers=24)
    assert policy_facts(RATES, shallow).sizes.num_layers == 24
    assert policy_facts(RATES, shallow).sizes.hidden_size == 3584
    assert policy_facts(RATES, shallow, "kimi-audio-7b").sizes.num_layers == 28
    with pytest.raises(ConfigError, match="no policy 'glm4_voice' in the rates"):
        policy_facts(RATES, PolicyConfig(kind="glm4_voice"))
    with pytest.raises(ConfigError, match="say what it is"):
        policy_facts(RATES, PolicyConfig(weights=Path("somewhere")))


def test_what_the_run_sets_it_decides() -> None:
    align = load_config(KIMI_CONFIG, {"align.lora": {"rank": 4}, "align.answers_at_once": 2, "align.max_staleness": 3}).align
    found = as_the_run_says(load_cluster("h100x8", RATES, {"learner.trainable": "full"}), align)
    assert (found.learner.trainable, found.learner.lora_rank, found.learner.rows) == ("lora", 4, 2)
    assert found.driver == Driver(kind="async", max_staleness=3)
    adapters = as_the_run_says(load_cluster("h100x8", RATES, {"learner.weight_bytes": 4}), align)
    assert adapters.learner.weight_bytes == 2  # align.mixed_precision
    full = load_config(KIMI_CONFIG, {"align.lora": None}).align
    assert as_the_run_says(load_cluster("h100x8", RATES), full).learner.trainable == "full"
    whole = load_config(KIMI_CONFIG, {"align.lora": None, "align.mixed_precision": False}).align
    assert as_the_run_says(load_cluster("h100x8", RATES), whole).learner.weight_bytes == 4
    stored = load_config(KIMI_CONFIG, {"align.mixed_precision": False}).align
    assert as_the_run_says(load_cluster("h100x8", RATES), stored).learner.weight_bytes == 2


@pytest.mark.parametrize("name", [path.stem for path in SHIPPED])
def test_what_the_run_does_not_set_is_the_clusters(name: str) -> None:
    shipped = load_cluster(name, RATES)
    assert as_the_run_says(shipped, AlignConfig()) == shipped


@pytest.mark.parametrize("name", ["h100x8", "gpu64"])
def test_the_clusters_of_kimis_plan_say_what_its_run_does(name: str) -> None:
    shipped = load_cluster(name, RATES)
    assert as_the_run_says(shipped, load_config(KIMI_CONFIG).align) == shipped


def test_kimis_roles_share_8_devices_and_no_two_of_a_role_share_one() -> None:
    """Ray gives a fraction of a device to the fullest one that has it, learners first: two halves land on one."""
    align = load_config(KIMI_CONFIG).align
    left = [1.0] * 8
    for role, count in ((align.learner, align.learner_workers), (align.rollout, align.rollout_workers),
                        (align.reward, align.reward_workers)):  # fmt: skip
        places = []
        for _ in range(count):
            fullest = min((free, place) for place, free in enumerate(left) if free >= role.gpus - 1e-9)
            places.append(fullest[1])
            left[fullest[1]] -= role.gpus
        assert role.gpus > 0
        assert sorted(places) == list(range(8))


def test_the_judges_bill_by_hand() -> None:
    """256 answers a step, each a call of 2230 tokens in at 2.50 USD a million and 177 out at 10.00 (gpt-4o)."""
    judged = {"reward.sources": [{"kind": "llm", "options": {"judge": "trace"}}]}
    found = kimi_plan(overrides=judged, prompts=3200)
    assert found.judge_usd == pytest.approx(100 * 256 * (2230 * 2.50 + 177 * 10.0) / 1e6)
    pairs = {"reward.sources": [{"kind": "pairwise", "options": {"judge": "trace"}}]}
    # 8 answers meet in 28 pairs.
    assert kimi_plan(overrides=pairs, prompts=3200).judge_usd == pytest.approx(found.judge_usd * 28 / 8)


def test_a_judge_elsewhere_waits_for_its_slots() -> None:
    judged = {"reward.sources": [{"kind": "llm", "options": {"judge": "trace"}}]}
    few = kimi_plan(overrides=judged, changes={"judging.concurrency": 8})
    many = kimi_plan(overrides=judged, changes={"judging.concurrency": 256})
    # 256 calls of 3 s in 32 turns, or in one.
    assert few.phases.judge - many.phases.judge == pytest.approx(31 * 3)
    early = kimi_plan(overrides=judged, changes={"judging.concurrency": 8, "judging.streaming": True})
    assert early.phases.judge < few.phases.judge


def test_the_embedded_policy_has_a_plan_here() -> None:
    config = RunConfig()
    found = make_plan(config, load_cluster("this_machine", RATES), RATES, policy_facts(RATES, config.policy))
    assert found.policy == "embedded"
    assert found.steps == config.align.steps
    assert not found.problems


# -- refusals -----------------------------------------------------------------------------------------------------------


def command(*words: str) -> Any:
    app = typer.Typer()
    app.command()(plan)
    return CliRunner().invoke(app, list(words))


def test_a_plan_that_does_not_fit_is_refused_by_role_with_what_to_change() -> None:
    full, smaller = {"align.lora": None}, {"device.memory_gib.value": 60}
    done = command("kimi_paper", "--cluster", "gpu64", "-s", "align.lora=null", "-w", "device.memory_gib.value=60", "--json")
    assert done.exit_code == 1
    found = json.loads(done.stdout)
    assert not found["fits"]
    assert [problem.partition(":")[0] for problem in found["problems"]] == ["learner"]
    assert "gathered" in found["problems"][0]
    assert "align.lora: {rank: 16}" in found["problems"][0]
    # Each of the three ways out.
    assert not kimi_plan(cluster="gpu64", overrides=full).problems
    assert not kimi_plan(cluster="gpu64", overrides=full, changes=smaller | {"learner.gather": "layer"}).problems
    assert not kimi_plan(cluster="gpu64", changes=smaller).problems
    small = kimi_plan(cluster="gpu64", changes={"device.memory_gib.value": 24})
    assert [problem.partition(":")[0] for problem in small.problems] == ["rollout", "learner"]
    # Colocated roles take turns with what does not last.
    (whole,) = kimi_plan(overrides=full).problems
    assert "needs 111.6 GiB a device and has 74.0" in whole
    assert "while learning: gathered" in whole


def test_all_of_kimis_weights_on_16_learners_by_hand() -> None:
    """Policy, its gradients and two moments in 4 bytes and the reference in 2, a sixteenth each; whole, 2 and 4 bytes."""
    learner = kimi_plan(cluster="gpu64", overrides={"align.lora": None}).memory["learner"]
    total = 9_766_334_464
    lasting = [learner.pop(part) for part in ("weights", "reference", "optimiser", "gradients")]
    assert lasting == [4 * total / 16, 2 * total / 16, 8 * total / 16, 4 * total / 16]
    assert learner.pop("gathered") == 6 * total
    # One pass of 8 answers to one prompt, the longest of 592 steps: 34 layers' inputs, and all that one layer leaves.
    positions = 8 * 592 + 68
    one_layer = (9 * 3584 + 4 * 18944) * positions + 2 * 512 * (positions + 8 * 68)
    assert learner.pop("activations") == 2 * (34 * 3584 * positions + one_layer)
    # Each head's logits are made 2^25 at a time, four copies in float32.
    assert learner == {"logits": 2 * 4 * 4 * 2**25}


def test_a_plan_that_fits_exits_0_and_says_what_it_rests_on() -> None:
    done = command("kimi_paper", "--cluster", "h100x8", "--prompts", "100000", "--assumptions")
    assert done.exit_code == 0, done.output
    for said in ("does not fit", "traceback"):
        assert said not in done.output.lower()
    for said in ("fits", "3125 steps", "vendor data sheet", "policy.answer_s"):
        assert said in done.output


def test_json_is_whole() -> None:
    found = json.loads(command("demo", "--cluster", "this_machine", "--json").stdout)
    assert sum(found["parameters"].values()) > 6e6
    assert found["figures"]["device.product_gflops"]["origin"] == "measured"
    assert found["phases_s"]["decode"] > 0


@pytest.mark.parametrize("path", SHIPPED, ids=lambda path: path.stem)
def test_every_shipped_cluster_is_whole(path: Path) -> None:
    found = load_cluster(path.stem, RATES)
    assert found.name == path.stem
    assert len(list(figures(found))) >= 10


def test_there_are_shipped_clusters() -> None:
    assert {"this_machine", "h100x8", "gpu64"} <= {path.stem for path in SHIPPED}


@pytest.mark.parametrize(
    ("change", "named"),
    [
        ({"gpus": 3}, "gpus: unknown key"),
        ({"learner": {"sharding": 8}}, "learner.sharding: unknown key"),
        ({"device": "h1000"}, "no device 'h1000'; there are h100_sxm"),
        ({"learner": {"shard_over": 3}}, "shard_over 3 does not divide the 8 devices"),
        ({"driver": {"kind": "async"}}, "async one of at least 1"),
        ({"driver": {"kind": "sync", "max_staleness": 2}}, "sync means a max_staleness of 0"),
        ({"roles": {"layout": "apart", "rollout": 5, "learner": 2}}, "5 + 2 + 0 devices in roles, 8 there"),
        ({"roles": {"layout": "colocated", "learner": 2}}, "leave the counts out"),
        ({"link_gb_s": 450}, "link_gb_s"),
    ],
)
def test_a_wrong_cluster_is_refused_by_name(tmp_path: Path, change: dict[str, Any], named: str) -> None:
    values = yaml.safe_load((SHIPPED[0].parent / "h100x8.yaml").read_text()) | change
    path = tmp_path / "mine.yaml"
    path.write_text(yaml.safe_dump(values))
    with pytest.raises(ConfigError) as refused:
        load_cluster(str(path), RATES)
    assert named in str(refused.value)


def test_what_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="no cluster 'moon'; there are gpu64, h100x8, this_machine"):
        load_cluster("moon", RATES)
    with pytest.raises(ConfigError, match="leads through a value"):
        load_cluster("h100x8", RATES, {"name.first": 1})
    with pytest.raises(ConfigError, match="no policy 'moon'"):
        policy_facts(RATES, PolicyConfig(), "moon")
    (tmp_path / "rates.yaml").write_text("devices: {}\npolicies: {}\nrewards: {}\nmodels: {}\n")
    with pytest.raises(ConfigError, match="models: unknown key"):
        load_rates(tmp_path / "rates.yaml")
    bare = Rates(devices=RATES.devices, policies=RATES.policies, rewards={})
    config = load_config(KIMI_CONFIG)
    with pytest.raises(ConfigError, match="no reward 'omni' in the rates"):
        make_plan(config, load_cluster("h100x8", RATES), bare, policy_facts(RATES, config.policy))


def test_planning_imports_no_torch() -> None:
    said = (
        "import sys; import paras2s.cli.plan, paras2s.planning.simulate, paras2s.pipeline.demo; print('torch' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", said], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False"
