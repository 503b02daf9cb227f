"""`align --meta`: what is built and summed, against counts by hand and the plan; placement; refusals.

Not covered: memory that is really held (test_measured_memory.py), and networks of policies that are not counted.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
import typer
from tiny.csm import CODEBOOKS, IDS, tiny_csm
from tiny.plans import KIMI_CONFIG, RATES
from typer.testing import CliRunner

from paras2s.cli.align import align
from paras2s.configs.schema.align import RoleConfig
from paras2s.configs.schema.run import RunConfig, load_config
from paras2s.errors import ConfigError
from paras2s.pipeline import dry_run as module
from paras2s.pipeline.dry_run import DryRun, choose_cluster, dry_run
from paras2s.pipeline.skeletons import policy_skeleton
from paras2s.pipeline.stacks import layer_bytes, learner_parts, stacks_of
from paras2s.planning.cluster import load_cluster, policy_facts
from paras2s.planning.footprint import RoleMemory, device_loads, place, refusal, shared_ranks
from paras2s.planning.simulate import load_of

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


# -- stacks of transformers' layers -------------------------------------------------------------------------------------


def small_run(kind: str, **more: Any) -> RunConfig:
    values = {
        "run_dir": "runs/x", "policy": {"weights": "models/x", "kind": kind, "max_answer_steps": 600}, "warmup": {"lr": 1e-5},
        "distill": {"teacher": "rubric"},
        "reward": {"sources": [{"kind": "length", "options": {"target_steps": 100}}]},
        "align": {
            "lora": {"rank": 16, "alpha": 32}, "sampling": {"queries_per_step": 2, "group_size": 4},
            "objective": {"groups_per_update": 2}, "optimizer": {"micro_batch_size": 4, "gradient_checkpointing": True} | more,
            "workers": {"rollout": {"gpus": 0.4}, "learner": {"gpus": 0.6}},
        },
    }  # fmt: skip
    return RunConfig.model_validate(values)


def test_csm_by_hand() -> None:
    """Backbone: 16 layers of 2048 with 8192, 32 heads and 8 pairs; depth decoder: 4 of 1024 with 8192, 8 heads and 2 pairs."""
    found = dry_run(small_run("csm"), RATES, "h100x8")
    layer = 2048 * (2 * 2048 + 2 * 512) + 3 * 2048 * 8192 + 2 * 2048
    depth = 1024 * (2 * 1024 + 2 * 256) + 3 * 1024 * 8192 + 2 * 1024
    tables = 128256 * 2048 + 32 * 2051 * 2048 + 2051 * 2048 + 31 * 1024 * 2051 + 2048 * 1024
    decoder = 16 * layer + 4 * depth + tables + 2048 + 1024
    assert found.parameters["policy"] == decoder
    assert found.sizes_from == "configs/released/csm-1b.yaml"
    adapters = found.roles["rollout"].device["adapters"] / 4
    lora = 16 * 16 * (2 * (2048 + 2048) + 2 * (2048 + 512) + 3 * (2048 + 8192))
    lora += 16 * 4 * (2 * (1024 + 1024) + 2 * (1024 + 256) + 3 * (1024 + 8192))
    assert adapters == lora
    learner, rollout = found.roles["learner"].device, found.roles["rollout"].device
    # And a few thousand bytes of buffers.
    assert learner["weights"] == pytest.approx(4 * (decoder + lora), rel=1e-6)
    assert (learner["optimiser"], learner["gradients"]) == (8 * lora, 4 * lora)
    assert found.hosts["object store"]["new weights"] == 4 * lora
    # 8 answers of 600 frames behind 122 positions, and a frame of 32 each: keys and values of 8 and 2 pairs of 64 and 128.
    cached = 8 * (2 * 16 * 8 * 64 * (122 + 600) + 2 * 4 * 2 * 128 * 32)
    assert rollout["keys and values"] == 4 * cached
    assert found.planned == {}
    assert not found.problems
    with pytest.raises(ConfigError, match="no plan of csm-1b's seconds; `paras2s align CONFIG --meta` counts its memory"):
        policy_facts(RATES, small_run("csm").policy)


@pytest.mark.parametrize("lora", [False, True])
def test_a_layer_stores_on_the_meta_device_what_it_stores_on_a_processor(lora: bool) -> None:
    saved: dict[int, torch.Tensor] = {}
    policy = tiny_csm()
    policy.model.float()
    if lora:
        policy.add_lora(2, 4)
    stack = policy.model.backbone_model
    weights = {weight.untyped_storage()._cdata for weight in (*stack.parameters(), *stack.buffers())}

    def keep(tensor: torch.Tensor) -> torch.Tensor:
        if tensor.untyped_storage()._cdata not in weights:
            saved[tensor.untyped_storage()._cdata] = tensor
        return tensor

    x = torch.zeros(3, 40, 24, requires_grad=True)
    position = torch.arange(40).expand(3, -1)
    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        stack.layers[0](x, position_embeddings=stack.rotary_emb(x, position), position_ids=position, attention_mask=None)
    measured = sum(tensor.untyped_storage().nbytes() for tensor in saved.values())
    counted = layer_bytes(stack.to("meta"), 3, 40, torch.float32)
    # The processor's attention keeps a number for each head and position besides.
    assert counted == pytest.approx(measured - 4 * 3 * 40 * 4, rel=0.01)


def test_recomputed_layers_store_their_inputs_and_one_layer_is_at_work() -> None:
    policy = tiny_csm()
    policy.model.float().to("meta")
    load = load_of(small_run("csm"), policy_facts(RATES, small_run("csm").policy, memory_only=True))
    machine = load_cluster("h100x8", RATES, {"devices": 1, "learner.shard_over": 1, "learner.rows": 4})
    parts = {}
    for checkpointing in (True, False):
        learner = machine.learner.model_copy(update={"checkpointing": checkpointing})
        parts[checkpointing] = learner_parts(policy, machine.model_copy(update={"learner": learner}), load)
    positions, frames = load.prompt_steps + 583, 4 * 583
    backbone, depth = (
        layer_bytes(stack, *shape, torch.float32)
        for stack, shape in (
            (policy.model.backbone_model, (4, positions)),
            (policy.model.depth_decoder.model, (frames, CODEBOOKS)),
        )
    )
    assert parts[False]["activations"] == 2 * (backbone + depth)
    inputs = 4 * 2 * (4 * positions * 24 + frames * CODEBOOKS * 16)
    assert parts[True]["activations"] == inputs + max(backbone, depth)
    assert parts[True]["logits"] == 12 * 4 * 583 * CODEBOOKS * IDS


def test_qwen_omni_is_counted_at_its_published_sizes() -> None:
    skeleton = policy_skeleton(small_run("qwen_omni").policy, "qwen_omni")
    model: Any = skeleton.policy.model
    assert sum(weight.numel() for weight in model.thinker.parameters()) == 8_931_813_888
    thinker, talker = stacks_of(skeleton.policy, prompt=185, text=150, audio=1550)
    assert (thinker.positions, thinker.ids, len(thinker.module.layers)) == (335, 152_064, 28)
    assert (talker.positions, talker.ids, len(talker.module.layers)) == (1737, 8448, 24)
