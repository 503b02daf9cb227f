"""Two and three gloo ranks that must do what one process does: losses, weights, checkpoints, the exported policy.

Not covered: NCCL and GPUs, several machines, and the speed or memory of sharding.
"""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from fsdp_rank import advance, first_policy, make_learner, run
from tiny.dual_stream import small_rollouts
from tiny.learner import GROUP, STEPS, make_prompts

from paras2s.configs.schema.align import LAYERED_ROWS, AlignConfig
from paras2s.errors import PolicyError
from paras2s.policy.embedded.policy import EmbeddedPolicy
from paras2s.policy.types import Sampling
from paras2s.train.checkpoint import fill_trained
from paras2s.train.fsdp import _allow_empty_call
from paras2s.train.single_device import Devices

HERE = Path(__file__).parent
LORA = {"lora": {"rank": 2, "alpha": 4}}
CASES: dict[str, dict[str, Any]] = {
    "full": {},
    "portions": {"micro_batch_size": 3, "loss_type": "bnpo", "average": "per_stream"},
    "lora": LORA,
    "checkpointed": {"gradient_checkpointing": True},
    "anchored": {"micro_batch_size": 3, "anchor": {"streams": "both", "weight": 0.5, "demonstrations": 3}},
}
# Ranks that gather layer by layer. In portions of 3, one of the two has four passes and the other two; passes are equal in
# number, not in length. The checkpointed one would gather once more where activations are made anew.
LAYERED: dict[str, dict[str, Any]] = {
    "layer portions": CASES["portions"],
    "layer lora": LORA | {"micro_batch_size": 4},
    # Of three demonstrations, a pass each, one rank has two.
    "layer anchored": {"micro_batch_size": 1, "anchor": {"demonstrations": 3, "every": 2}},
    "layer checkpointed": {"gradient_checkpointing": True, "micro_batch_size": 3},
    # The sound has no weight: passes end with the text, and where no anchor is added its branch has gradients of 0.
    "layer words": {
        "micro_batch_size": 3,
        "average": "per_stream",
        "audio_weight": 0.0,
        "anchor": {"demonstrations": 3, "every": 2},
        "evaluate_every": 10,
    },
}
# Recorded answers: of three pairs one rank has two, of six single answers three.
PREFERRED: dict[str, dict[str, Any]] = {
    name: {"preferences": {"file": "none.jsonl", "loss": loss, "beta": 0.5}, "micro_batch_size": 2, **more}
    for name, loss, more in (("dpo", "dpo", {"anchor": CASES["anchored"]["anchor"]}), ("layer dpo", "dpo", {}),
                             ("kto", "kto", LORA))
}  # fmt: skip


def test_a_call_without_inputs_answers_on_the_ranks_device() -> None:
    """FSDP waits in the streams of that device; a zero on the processor would belong to none of them."""
    model = SimpleNamespace(forward=None)
    _allow_empty_call(model, torch.device("meta"))
    assert model.forward(None, None, None).device.type == "meta"


def free_port() -> int:
    with socket.socket() as held:
        held.bind(("127.0.0.1", 0))
        return int(held.getsockname()[1])


def on_ranks(world: int, jobs: list[dict[str, Any]], folder: Path) -> None:
    """Each job on `world` processes; one group of them for all jobs, since starting takes longer than running."""
    (folder / "jobs.json").write_text(json.dumps(jobs))
    ports = [str(free_port()), str(free_port())]
    paths = os.pathsep.join([str(HERE), str(HERE.parent), os.environ.get("PYTHONPATH", "")])
    environment = {**os.environ, "PYTHONPATH": paths, "OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo"}
    command = [sys.executable, str(HERE / "fsdp_rank.py")]
    ranks = [
        subprocess.Popen([*command, str(rank), str(world), str(folder / "jobs.json"), *ports], env=environment,
                         stderr=subprocess.PIPE, text=True)
        for rank in range(world)
    ]  # fmt: skip
    try:
        for one in ranks:
            _, error = one.communicate(timeout=600)
            assert one.returncode == 0, error[-3000:]
    finally:
        for one in ranks:
            one.kill()


def job(folder: Path, name: str, settings: dict[str, Any], steps: int = 3, **more: Any) -> dict[str, Any]:
    out = folder / name
    out.mkdir(parents=True)
    return {"out": str(out), "settings": settings, "steps": steps, **{key: str(value) for key, value in more.items()}}


def seen(folder: Path, name: str) -> tuple[list[dict[str, Any]], dict[str, np.ndarray]]:
    with np.load(folder / name / "weights.npz") as held:
        return json.loads((folder / name / "log.json").read_text()), dict(held)


@pytest.fixture(scope="module")
def done(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Every case on two ranks and alone; checkpoints in the middle, and a learner that goes on from them."""
    folder = tmp_path_factory.mktemp("sharded")
    jobs = [
        job(
            folder / "2",
            name,
            settings,
            save=folder / "2" / f"at3-{name}",
            export=folder / "2" / f"policy-{name}",
            **({"watch": True} if name == "full" else {}),
        )
        for name, settings in CASES.items()
    ]
    jobs += [
        job(
            folder / "2",
            name,
            settings,
            gather="layer",
            save=folder / "2" / f"at3-{name}",
            export=folder / "2" / f"policy-{name}",
            **({"watch": True} if name == "layer checkpointed" else {}),
        )
        for name, settings in LAYERED.items()
    ]
    jobs += [
        job(folder / "2", name, settings, gather="layer" if "layer" in name else "step") for name, settings in PREFERRED.items()
    ]
    jobs += [job(folder / "2", f"on-{name}", CASES[name], 2, resume=folder / "2" / f"at3-{name}") for name in ("full", "lora")]
    # What one way has written the other goes on from.
    jobs += [job(folder / "2", f"on-{name}", settings, 2, gather="layer", resume=folder / "2" / f"at3-{other}") for
             name, other, settings in (("layer portions", "layer portions", LAYERED["layer portions"]),
                                       ("layer anchored", "layer anchored", LAYERED["layer anchored"]),
                                       ("full by layers", "full", {"micro_batch_size": 32}))]  # fmt: skip
    on_ranks(2, jobs, folder)
    # Three ranks have fewer groups than one each to share in some steps; they go on from what two have written.
    on_ranks(3, [job(folder / "3", "full", {}), job(folder / "3", "on-full", {}, 2, resume=folder / "2" / "at3-full"),
                 job(folder / "3", "few", {"groups_per_update": 2}),
                 job(folder / "3", "layer few", {"groups_per_update": 2, "micro_batch_size": 3}, gather="layer")],
             folder)  # fmt: skip
    return folder


@pytest.fixture(scope="module")
def alone(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("alone")
    for name, settings in (CASES | LAYERED | PREFERRED | {"few": {"groups_per_update": 2}}).items():
        steps = 3 if name == "few" else 5
        run(Devices(), job(folder, name, settings, steps), folder / name)
        run(Devices(), job(folder, f"{name}3", settings, 3), folder / f"{name}3")
    return folder


def assert_close_logs(found: list[dict[str, Any]], expected: list[dict[str, Any]]) -> None:
    assert len(found) == len(expected)
    for one, other in zip(found, expected, strict=True):
        assert one == pytest.approx(other, abs=1e-9)


def assert_close_weights(found: dict[str, np.ndarray], expected: dict[str, np.ndarray]) -> None:
    assert found.keys() == expected.keys()
    for name, value in found.items():
        np.testing.assert_allclose(value, expected[name], atol=1e-9, err_msg=name)


@pytest.mark.parametrize("name", [*CASES, *LAYERED])
def test_two_ranks_are_one_process(name: str, done: Path, alone: Path) -> None:
    (log, weights), (expected, wanted) = seen(done / "2", name), seen(alone, f"{name}3")
    assert_close_logs(log, expected)
    assert_close_weights(weights, wanted)
    assert log[1]["kl"] > 0
    assert ["anchor_loss" in row for row in log] == {
        "anchored": [True] * 3,
        "layer anchored": [True, False, True],
        "layer words": [True, False, True],
    }.get(name, [False] * 3)


@pytest.mark.parametrize("name", PREFERRED)
def test_two_ranks_learn_from_recorded_answers_as_one_process(name: str, done: Path, alone: Path) -> None:
    (log, weights), (expected, wanted) = seen(done / "2", name), seen(alone, f"{name}3")
    assert_close_logs(log, expected)
    assert_close_weights(weights, wanted)
    assert log[2]["reward_margin"] > 0
    assert ("kto_reference_point" in log[0]) is ("kto" in name)


@pytest.mark.parametrize(("name", "lone"), [("full", "full3"), ("few", "few"), ("layer few", "few")])
def test_three_ranks_are_one_process(name: str, lone: str, done: Path, alone: Path) -> None:
    """Three groups for three ranks; and two, so that a rank has nothing to do: layer by layer it passes padding alone."""
    (log, weights), (expected, wanted) = seen(done / "3", name), seen(alone, lone)
    assert_close_logs(log, expected)
    assert_close_weights(weights, wanted)


@pytest.mark.parametrize(
    ("world", "name"),
    [("2", "full"), ("2", "lora"), ("3", "full"), ("2", "layer portions"), ("2", "layer anchored"), ("2", "full by layers")],
)
def test_ranks_go_on_from_a_checkpoint_of_two(world: str, name: str, done: Path, alone: Path) -> None:
    log, weights = seen(done / world, f"on-{name}")
    expected, wanted = seen(alone, name.removesuffix(" by layers"))
    assert_close_logs(log, expected[3:])
    assert_close_weights(weights, wanted)


@pytest.mark.parametrize("name", ["full", "lora", "layer lora"])
def test_the_exported_policy_is_the_lone_learners(name: str, done: Path, tmp_path: Path) -> None:
    learner = make_learner(Devices(), (CASES | LAYERED)[name])
    advance(learner, 3)
    learner.export(tmp_path)
    first = first_policy()
    found, expected = (EmbeddedPolicy.load(place, codec=first.codec) for place in (done / "2" / f"policy-{name}", tmp_path))
    names = list(first.model.state_dict())
    assert list(found.model.state_dict()) == list(expected.model.state_dict()) == names
    prompts = make_prompts(2)
    answers = [rollout.blocks for rollout in small_rollouts(first, prompts, GROUP, STEPS, 0)]
    one, other = (policy.logprobs(prompts, answers, Sampling())[0] for policy in (found, expected))
    torch.testing.assert_close(one, other, atol=1e-5, rtol=0)
    assert not torch.allclose(one.double(), first.logprobs(prompts, answers, Sampling())[0].double(), atol=1e-3)


def test_layers_are_put_back_behind_their_pass(done: Path) -> None:
    """The most weights that a rank reads from: all; or those of one layer in five, and embedding, norms, adaptor and heads."""
    sizes = {name: value.numel() for name, value in first_policy().model.named_parameters()}
    layers = sum(size for name, size in sizes.items() if "layers." in name and "adaptor" not in name)
    held = {name: json.loads((done / "2" / name / "held.json").read_text()) for name in ("full", "layer checkpointed")}
    assert held["full"] == sum(sizes.values())
    assert held["layer checkpointed"] == sum(sizes.values()) - layers + layers / 5


def test_activations_made_anew_change_nothing() -> None:
    plain, anew = make_learner(Devices(), {}), make_learner(Devices(), {"gradient_checkpointing": True})
    assert_close_logs(advance(anew, 3), advance(plain, 3))
    for left, right in zip(plain.weights().values(), anew.weights().values(), strict=True):
        np.testing.assert_allclose(left, right, atol=1e-10)


def test_a_lone_learners_checkpoint_is_refused_by_ranks(tmp_path: Path) -> None:
    from paras2s.train.fsdp import Sharded

    make_learner(Devices(), {}).save(tmp_path)
    devices = Sharded(0, 1, "127.0.0.1", free_port(), "cpu", mixed_precision=False)
    try:
        with pytest.raises(PolicyError, match="one learner"):
            make_learner(devices, {}).restore(tmp_path)
        # A group of one, in mixed precision: weights stay whole and in float32, passes are in half of it.
        devices.mixed_precision = True
        learner = make_learner(devices, {"max_logprob_gap": 5.0})
        log = advance(learner, 2)
        assert all(np.isfinite(row["loss"]) for row in log)
        assert 1e-4 < log[0]["parity_text_mean"] < 0.2
        assert {value.dtype for value in learner.weights().values()} == {np.dtype(np.float64)}
    finally:
        devices.close()


@pytest.mark.parametrize("name", ["full", "lora"])
def test_one_process_reads_what_two_ranks_wrote(name: str, done: Path, alone: Path) -> None:
    """So that any checkpoint can be exported; and one of another size is refused by name."""
    policy = make_learner(Devices(), CASES[name]).policy
    fill_trained(done / "2" / f"at3-{name}", policy)
    assert_close_weights({key: value.detach().numpy() for key, value in policy.trainable().items()}, seen(alone, f"{name}3")[1])
    other = make_learner(Devices(), {"lora": {"rank": 3, "alpha": 4}}).policy
    with pytest.raises(PolicyError, match=r"parts: (holds adapters of rank 2, and rank 3|\d+ tensors do not fit: .*lora_A)"):
        fill_trained(done / "2" / f"at3-{name}", other)


@pytest.mark.parametrize(
    ("learner", "rows", "said"),
    [
        ({"count": 1, "gather": "layer"}, 8, "one rank has nothing to gather"),
        ({"count": 2, "gather": "layer"}, None, "set optimizer.micro_batch_size to at most 32"),
        ({"count": 2, "gather": "layer"}, 33, "set optimizer.micro_batch_size to at most 32"),
    ],
)
def test_ranks_that_would_wait_for_each_other_are_refused(learner: dict[str, Any], rows: int | None, said: str) -> None:
    with pytest.raises(ValueError, match=said):
        AlignConfig.model_validate({"workers": {"learner": learner}, "optimizer": {"micro_batch_size": rows}})


def test_as_many_answers_as_are_allowed_make_one_pass() -> None:
    """33 would be two for some ranks and one for others."""
    model, prompts = first_policy().model, make_prompts(1)
    calls: list[int] = []
    model.model.layers[0].register_forward_hook(lambda *_: calls.append(1))
    for count in (1, LAYERED_ROWS, LAYERED_ROWS + 1):
        answers = [rollout.blocks for rollout in small_rollouts(first_policy(), prompts, count, STEPS, 0)]
        model(prompts, answers, Sampling())
        assert len(calls) == (3 if count > LAYERED_ROWS else 2)
        calls.clear()
