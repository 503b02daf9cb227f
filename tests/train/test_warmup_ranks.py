"""A warm-up on two and three gloo ranks does what one process does, in float64: losses, weights, checkpoints, the policy.

Not covered: NCCL and GPUs, several machines; the actors around the ranks are in integration/test_distill_scale.py.
"""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load_file
from warmup_rank import run

from paras2s.train.single_device import Devices

HERE = Path(__file__).parent
# Batches of five: the second step crosses into the next epoch of seven, and two ranks have unequal shares.
PLAIN: dict[str, Any] = {"batch_size": 5}
PARTS: dict[str, Any] = {"batch_size": 5, "micro_batch_size": 2, "gradient_checkpointing": True, "first_token_weight": 2.0}
CASES: dict[str, dict[str, Any]] = {
    "plain": {"settings": PLAIN},
    "lora": {"settings": PARTS, "lora": True},
    # Fewer examples than ranks.
    "few": {"settings": {"batch_size": 2}},
}


def on_ranks(world: int, jobs: list[dict[str, Any]], folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "jobs.json").write_text(json.dumps(jobs))
    with socket.socket() as held:
        held.bind(("127.0.0.1", 0))
        port = str(held.getsockname()[1])
    paths = os.pathsep.join([str(HERE), str(HERE.parent), os.environ.get("PYTHONPATH", "")])
    environment = {**os.environ, "PYTHONPATH": paths, "OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo"}
    command = [sys.executable, str(HERE / "warmup_rank.py")]
    ranks = [
        subprocess.Popen([*command, str(rank), str(world), port, str(folder / "jobs.json")], env=environment,
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


def job(out: Path, name: str, until: int, **more: Any) -> dict[str, Any]:
    out.mkdir(parents=True)
    return {**CASES[name], "out": str(out), "until": until, **{key: str(value) for key, value in more.items()}}


@pytest.fixture(scope="module")
def done(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Three steps of each case, five with a checkpoint in between, and all of them in one process."""
    folder = tmp_path_factory.mktemp("warmups")
    two = [job(folder / "2" / name, name, 3, save=folder / "2" / f"{name}-at3") for name in ("plain", "lora")]
    two += [job(folder / "2" / f"{name}-on", name, 5, resume=folder / "2" / f"{name}-at3") for name in ("plain", "lora")]
    on_ranks(2, two, folder / "2")
    on_ranks(3, [job(folder / "3" / "few", "few", 3),
                 job(folder / "3" / "plain-on", "plain", 5, resume=folder / "2" / "plain-at3")], folder / "3")  # fmt: skip
    for name, until in (("plain", 3), ("plain", 5), ("lora", 3), ("lora", 5), ("few", 3)):
        out = folder / "1" / f"{name}{until}"
        run(Devices(), job(out, name, until), out)
    return folder


@pytest.mark.parametrize(
    ("ranks", "alone"),
    [("2/plain", "plain3"), ("2/lora", "lora3"), ("2/plain-on", "plain5"), ("2/lora-on", "lora5"), ("3/few", "few3"),
     ("3/plain-on", "plain5")],
)  # fmt: skip
def test_ranks_are_one_process(done: Path, ranks: str, alone: str) -> None:
    found, wanted = done / ranks, done / "1" / alone
    logs = [json.loads((place / "log.json").read_text()) for place in (found, wanted)]
    # One that was resumed has the last steps alone.
    assert len(logs[0]) == (2 if ranks.endswith("-on") else 3)
    for one, other in zip(logs[0], logs[1][-len(logs[0]) :], strict=True):
        assert one == pytest.approx(other, abs=1e-10)
    with np.load(found / "weights.npz") as held, np.load(wanted / "weights.npz") as expected:
        assert held.files == expected.files
        for name in held.files:
            np.testing.assert_allclose(held[name], expected[name], atol=1e-10, err_msg=name)
    policies = [load_file(place / "policy/model.safetensors") for place in (found, wanted)]
    assert policies[0].keys() == policies[1].keys()
    for name, value in policies[0].items():
        np.testing.assert_allclose(value, policies[1][name], atol=1e-6, err_msg=name)


def test_the_steps_differ(done: Path) -> None:
    """Else the comparisons above would say nothing."""
    with np.load(done / "1/plain3/weights.npz") as early, np.load(done / "1/plain5/weights.npz") as late:
        assert all(np.abs(early[name] - late[name]).max() > 1e-3 for name in early.files if name.endswith("q_proj.weight"))
