"""`align --meta`: what is built and summed, against counts by hand and the plan; placement; refusals.

Not covered: memory that is really held (test_measured_memory.py), and the networks of policies that no plan knows.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import typer
from tiny.plans import KIMI_CONFIG, RATES
from typer.testing import CliRunner

from paras2s.cli.align import align
from paras2s.configs.schema.align import RoleConfig
from paras2s.configs.schema.run import RunConfig, load_config
from paras2s.errors import ConfigError
from paras2s.pipeline import dry_run as module
from paras2s.pipeline.dry_run import DryRun, choose_cluster, dry_run
from paras2s.planning.footprint import RoleMemory, device_loads, place, refusal, shared_ranks

GIB = 2**30
DECODER, LORA = 9_766_334_464, 49_020_928


@pytest.fixture(scope="module")
def kimi() -> DryRun:
    return dry_run(load_config(KIMI_CONFIG), RATES, "h100x8")


def test_the_papers_run_by_hand(kimi: DryRun) -> None:
    """8 ranks share bfloat16 weights and float32 adapters, which gather in bfloat16 with gradients in float32."""
    learner, rollout = kimi.roles["learner"].device, kimi.roles["rollout"]
    assert kimi.sizes_from == "configs/released/kimi.yaml"
    assert kimi.parameters["policy"] == DECODER
    assert learner["weights"] == (2 * DECODER + 4 * LORA) / 8
    assert learner["optimiser"] == 8 * LORA / 8
    assert learner["gradients"] == 4 * LORA / 8
    assert learner["gathered"] == 2 * (DECODER + LORA) + 4 * LORA
    assert (rollout.device["weights"], rollout.device["adapters"]) == (2 * DECODER, 4 * LORA)
    # Seven products of 34 layers, in bfloat16, from which every worker folds its adapters.
    assert rollout.host["weights beneath the adapters"] == 2 * 34 * (2 * 3584 * 3584 + 2 * 512 * 3584 + 3 * 3584 * 18944)
    assert kimi.hosts["all rollout workers"]["weights beneath the adapters"] == 8 * rollout.host["weights beneath the adapters"]
    assert [(load.numbers, load.roles) for load in kimi.devices] == [(tuple(range(8)), ("learner", "rollout", "reward"))]
    assert not kimi.problems


def test_the_plan_counts_the_same(kimi: DryRun) -> None:
    for role in kimi.roles:
        assert kimi.apart(role) == pytest.approx(0, abs=0.01)
    demo = dry_run(RunConfig(), RATES)
    assert demo.parameters == {"policy": 6_516_160}
    assert not demo.problems
    assert demo.apart("learner") == demo.apart("rollout") == pytest.approx(0, abs=0.01)


def test_the_rates_hold_what_is_built(kimi: DryRun) -> None:
    facts, rollout = RATES.policies["kimi-audio-7b"], kimi.roles["rollout"].device
    assert facts.audio_encoder is not None
    assert facts.speaking is not None
    assert RATES.rewards["omni"].held_gib is not None
    assert rollout["audio encoders"] / GIB == pytest.approx(facts.audio_encoder.held_gib.value, rel=0.01)
    assert rollout["vocoder"] / GIB == pytest.approx(facts.speaking.held_gib.value, rel=0.01)
    assert kimi.roles["reward"].device["reward model"] / GIB == pytest.approx(RATES.rewards["omni"].held_gib.value, rel=0.01)
    # Whisper's encoder: 32 layers of four products of 1280 and two to 5120, the convolutions, norms and positions.
    layer = 4 * 1280**2 + 3 * 1280 + 2 * 1280 * 5120 + 5120 + 1280 + 4 * 1280
    convolutions = 3 * 128 * 1280 + 1280 + 3 * 1280**2 + 1280
    assert kimi.parameters["Whisper"] == 32 * layer + convolutions + 1500 * 1280 + 2 * 1280


def test_all_weights_do_not_fit_and_it_says_whose_and_what_to_change() -> None:
    app = typer.Typer()
    app.command()(align)
    words = [
        str(KIMI_CONFIG),
        "--meta",
        "--cluster",
        "h100x8",
        "--json",
        "-s",
        "align.lora=null",
        "-s",
        "align.optimizer.lr=1e-5",
    ]
    done = CliRunner().invoke(app, words)
    assert done.exit_code == 1, done.output
    found = json.loads(done.stdout)
    assert not found["fits"]
    (problem,) = found["problems"]
    (load,) = found["devices"]
    assert load["needed"] > load["room"] == 74 * GIB
    assert problem.startswith("devices 0 to 7: shared by learner, rollout, reward, needs ")
    assert f"{load['needed']:,.0f} bytes" in problem
    assert "the learner's gathered (54.6 GiB): align.lora: {rank: 16}" in problem
    assert found["roles"]["learner"]["device"]["weights"] == 4 * DECODER / 8
    assert found["roles"]["learner"]["device"]["reference"] == 2 * DECODER / 8


def test_stale_samples_mean_that_roles_do_not_take_turns(kimi: DryRun) -> None:
    stale = dry_run(load_config(KIMI_CONFIG, {"align.max_staleness": 1}), RATES, "h100x8")
    turns = [role.turn for role in kimi.roles.values()]
    assert stale.devices[0].needed - kimi.devices[0].needed == pytest.approx(sum(turns) - max(turns))


# -- placement and refusals ---------------------------------------------------------------------------------------------


def test_workers_are_placed_as_ray_does_and_what_finds_no_place_is_named() -> None:
    thirds = {role: RoleConfig(count=2, gpus=share) for role, share in (("learner", 0.6), ("rollout", 0.3), ("reward", 0.1))}
    assert place(thirds, 3) == [("learner", "rollout", "reward"), ("learner", "rollout", "reward"), ()]
    halves = thirds | {"learner": RoleConfig(count=2, gpus=0.5), "reward": RoleConfig(count=1, cpus=1)}
    assert place(halves, 2) == [("learner", "learner"), ("rollout", "rollout")]
    assert place(thirds | {"learner": RoleConfig(count=1, gpus=2)}, 3)[:2] == [("learner",), ("learner",)]
    with pytest.raises(
        ConfigError, match=r"align.workers.rollout: 2 workers with 0.3 of a device each do not fit the 1 devices"
    ):
        place(thirds | {"learner": RoleConfig(count=1, gpus=0.6)}, 1)


def test_a_devices_bytes_by_hand() -> None:
    roles = {
        "learner": RoleMemory({"weights": 5.0, "activations": 7.0}, {}),
        "rollout": RoleMemory({"weights": 3.0, "keys and values": 2.0}, {}),
    }
    placed = [("learner", "rollout", "rollout"), ("rollout",), ("rollout",), ()]
    apart, alone = device_loads(placed, roles, in_turn=True)
    # What lasts of all three, and the learner's 7, which are more than twice 2.
    assert (apart.needed, alone.needed, alone.numbers) == (5 + 3 + 3 + 7, 5, (1, 2))
    assert device_loads(placed, roles, in_turn=False)[0].needed == 5 + 3 + 3 + 7 + 2 + 2
    assert refusal(alone, roles, 5) is None
    assert shared_ranks([apart, alone]) == []
    assert shared_ranks(device_loads([("learner", "learner")], roles, in_turn=True))[0].startswith(
        "device 0: 2 of the learner's ranks"
    )
    said = refusal(alone, roles, 4)
    assert said is not None
    assert said.startswith("devices 1 to 2: needs 5 bytes (0.0 GiB) and has 4 (0.0); the most is the rollout's weights")


def test_the_devices_are_those_here_or_the_named_ones(monkeypatch: pytest.MonkeyPatch) -> None:
    paper = load_config(KIMI_CONFIG)
    assert choose_cluster(paper, RATES, None)[1] == "h100x8, since this machine has no GPU"
    monkeypatch.setattr(module, "memory_here", lambda: 7.0 * GIB)
    cluster, where = choose_cluster(RunConfig(), RATES, None)
    assert (cluster.rates.memory_gib.value, where) == (7, "this machine's memory")
    monkeypatch.setattr(module, "devices_here", lambda: [24.0 * GIB] * 8)
    cluster, where = choose_cluster(paper, RATES, None)
    assert (cluster.devices, cluster.rates.memory_gib.value, where) == (8, 24, "8 GPUs here")
    (problem,) = dry_run(paper, RATES).problems
    assert "(18.0)" in problem


@pytest.mark.parametrize(
    ("overrides", "named"),
    [
        ({"policy.kind": "moshi"}, "no policy 'moshi' in the rates"),
        ({"align.sampling.engine": "vllm"}, "counts align.sampling.engine native"),
        (
            {"reward.sources": [{"kind": "omni", "options": {"model": "Qwen/Qwen2.5-Omni-99B"}}]},
            "sizes of Qwen/Qwen2.5-Omni-99B",
        ),
    ],
)
def test_what_is_not_counted_is_named(overrides: dict[str, Any], named: str) -> None:
    with pytest.raises(ConfigError) as refused:
        dry_run(load_config(KIMI_CONFIG, overrides), RATES, "h100x8")
    assert named in str(refused.value)


def test_options_of_a_dry_run_belong_to_it(tmp_path: Path) -> None:
    app = typer.Typer()
    app.command()(align)
    done = CliRunner().invoke(app, [str(KIMI_CONFIG), "--cluster", "h100x8", "--run-dir", str(tmp_path / "run")])
    assert isinstance(done.exception, ConfigError)
    assert not (tmp_path / "run").exists()
