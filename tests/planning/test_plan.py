"""Plans of full runs: what adds up, what the run and the cluster set, costs, refusals.

Not covered: whether the rates are true. benchmarks/plan_check.py compares predicted with measured steps.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import typer
import yaml
from tiny.plans import KIMI_CONFIG, RATES, SHIPPED, kimi_plan
from typer.testing import CliRunner

from paras2s.cli.plan import plan
from paras2s.configs.schema.align import AlignConfig
from paras2s.configs.schema.run import PolicyConfig, RunConfig, load_config
from paras2s.errors import ConfigError
from paras2s.planning import cost
from paras2s.planning.cluster import Driver, Rates, figures, load_cluster, load_rates, override_by_run, policy_facts
from paras2s.planning.simulate import load_of, make_plan

# -- plans --------------------------------------------------------------------------------------------------------------


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
    # A process for each of three roles, and 130 recorded steps of 34 layers.
    on_device = found.memory["every device"]
    assert [on_device[f"{role} context"] for role in ("rollout", "learner", "reward")] == [0.6 * 2**30] * 3
    assert on_device["rollout recorded steps"] == 10 * (10 + 3) * 41 * 34 * 8 * 1024
    assert "rollout kept keys and values" in on_device


def test_longer_answers_more_answers_and_fewer_devices_take_longer() -> None:
    base = kimi_plan().rhythm.step_s
    assert kimi_plan(answer_s=10).rhythm.step_s < base
    assert kimi_plan(overrides={"align.sampling.group_size": 16}).rhythm.step_s > base
    assert kimi_plan(changes={"devices": 4, "learner.shard_over": 4}).rhythm.step_s > base
    assert kimi_plan(overrides={"align.lora": None}).rhythm.step_s > base
    assert kimi_plan(changes={"device.step_overhead_ms.value": 1}).rhythm.step_s < base


def test_where_the_sound_has_no_weight_an_update_reads_the_text_alone() -> None:
    both, text = (
        kimi_plan(overrides={"align.objective.average": "per_stream", "align.objective.audio_weight": weight})
        for weight in (0.3, 0.0)
    )
    assert text.phases.learner < 0.5 * both.phases.learner
    assert text.phases.rollout == both.phases.rollout
    # An evaluation reads all, so the memory is that of all.
    assert text.memory == both.memory


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
    with pytest.raises(ConfigError, match="name its family by --policy"):
        policy_facts(RATES, PolicyConfig(weights=Path("somewhere")))


def test_what_the_run_sets_it_decides() -> None:
    overrides = {"align.lora": {"rank": 4}, "align.optimizer.micro_batch_size": 2, "align.max_staleness": 3}
    align = load_config(KIMI_CONFIG, overrides).align
    found = override_by_run(load_cluster("h100x8", RATES, {"learner.trainable": "full"}), align)
    assert (found.learner.trainable, found.learner.lora_rank, found.learner.rows) == ("lora", 4, 2)
    assert found.driver == Driver(kind="async", max_staleness=3)
    adapters = override_by_run(load_cluster("h100x8", RATES, {"learner.weight_bytes": 4}), align)
    assert adapters.learner.weight_bytes == 2  # align.optimizer.mixed_precision
    full = load_config(KIMI_CONFIG, {"align.lora": None}).align
    assert override_by_run(load_cluster("h100x8", RATES), full).learner.trainable == "full"
    float32 = load_config(KIMI_CONFIG, {"align.lora": None, "align.optimizer.mixed_precision": False}).align
    assert override_by_run(load_cluster("h100x8", RATES), float32).learner.weight_bytes == 4
    stored = load_config(KIMI_CONFIG, {"align.optimizer.mixed_precision": False}).align
    assert override_by_run(load_cluster("h100x8", RATES), stored).learner.weight_bytes == 2


@pytest.mark.parametrize("name", [path.stem for path in SHIPPED])
def test_what_the_run_does_not_set_is_the_clusters(name: str) -> None:
    shipped = load_cluster(name, RATES)
    assert override_by_run(shipped, AlignConfig()) == shipped


@pytest.mark.parametrize("name", ["h100x8", "gpu64"])
def test_the_clusters_of_kimis_plan_say_what_its_run_does(name: str) -> None:
    shipped = load_cluster(name, RATES)
    assert override_by_run(shipped, load_config(KIMI_CONFIG).align) == shipped


def test_kimis_roles_share_8_devices_and_no_two_of_a_role_share_one() -> None:
    """Ray gives a fraction of a device to the fullest one that has it, learners first: two halves land on one."""
    align = load_config(KIMI_CONFIG).align
    left = [1.0] * 8
    for role in (align.workers.learner, align.workers.rollout, align.workers.reward):
        places = []
        for _ in range(role.count):
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
    assert [problem.partition(":")[0] for problem in small.problems] == ["rollout", "learner", "reward"]
    # Colocated roles take turns with what does not last.
    (problem,) = kimi_plan(overrides=full).problems
    assert "and has 74.0" in problem
    assert "while learner works: gathered" in problem
    assert "align.lora: {rank: 16}" in problem


def test_all_of_kimis_weights_on_16_learners_by_hand() -> None:
    """Policy, its gradients and two moments in 4 bytes and the reference in 2, a sixteenth each; gathered, 2 and 4 bytes."""
    learner = kimi_plan(cluster="gpu64", overrides={"align.lora": None}).memory["learner"]
    total = 9_766_334_464
    lasting = [learner.pop(part) for part in ("weights", "reference", "optimiser", "gradients")]
    # At the end of the way back, two look-ups' gradients of the table lie beside those that are scattered.
    table = 4 * 168_448 * 3584
    assert lasting == [4 * total / 16, 2 * total / 16, 8 * total / 16, 4 * total / 16 + 2 * table]
    assert learner.pop("gathered") == 6 * total
    # Keys and values of 28 heads in place of 4, and their gradients, in 2 bytes: 8 answers of 592 steps behind prompts of 68.
    assert learner.pop("attention") == 4 * 2 * 3584 * 8 * (592 + 68)
    assert learner.pop("context") == 0.6 * 2**30
    assert learner == {"activations": 0, "logits": 0}


def test_a_plan_that_fits_exits_0_and_says_what_it_rests_on() -> None:
    done = command("kimi_paper", "--cluster", "h100x8", "--prompts", "100000", "--assumptions")
    assert done.exit_code == 0, done.output
    for text in ("does not fit", "traceback"):
        assert text not in done.output.lower()
    for text in ("fits", "3125 steps", "vendor data sheet", "policy.answer_s"):
        assert text in done.output


def test_json_has_every_part() -> None:
    found = json.loads(command("demo", "--cluster", "this_machine", "--json").stdout)
    assert sum(found["parameters"].values()) > 6e6
    assert found["figures"]["device.product_gflops"]["origin"] == "measured"
    assert found["phases_s"]["decode"] > 0


@pytest.mark.parametrize("path", SHIPPED, ids=lambda path: path.stem)
def test_every_shipped_cluster_has_its_figures(path: Path) -> None:
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
        ({"roles": {"layout": "apart", "rollout": 5, "learner": 2}}, "5 + 0 + 2 + 0 devices in roles, 8 there"),
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
    code = (
        "import sys; import paras2s.cli.plan, paras2s.planning.simulate, paras2s.pipeline.demo; print('torch' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=300)
    assert done.stdout.strip() == "False"
