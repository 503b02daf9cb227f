"""Files to copy (a cluster's, a container's): commands parse, scripts are shell, and no field is unknown to its reader.

Not covered: running them, which needs Docker, Slurm, a cloud or Kubernetes.
"""

from __future__ import annotations

import json
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from test_docs import TARGETS, check_options, find_command, simple_commands

from paras2s.cli.studio import DEFAULT_PORT

ROOT = Path(__file__).parent.parent
SLURM, SKYPILOT, KUBERAY = (ROOT / "examples" / name for name in ("slurm.sbatch", "skypilot.yaml", "kuberay.yaml"))
# Of `sbatch --help`, version 24.05.
SBATCH = {
    *("array", "account", "constraint", "cpus-per-task", "error", "exclusive", "gpus-per-node", "gres", "job-name", "mem"),
    *("nodes", "ntasks-per-node", "output", "partition", "qos", "requeue", "signal", "time"),
}
# The fields of `sky/utils/schemas.py` that a task may have, with the types of their values.
SKY_TASK = {"name": str, "workdir": str, "num_nodes": int, "resources": dict, "envs": dict, "file_mounts": dict}
SKY_TASK |= {"secrets": dict, "setup": str, "run": str}
SKY_RESOURCES = {"infra": str, "accelerators": str, "cpus": str, "memory": str, "disk_size": int, "use_spot": bool}
SKY_MOUNT = {"name": str, "source": str, "store": str, "mode": str}
# KubeRay 1.7's RayJob (ray.io_rayjobs.yaml), as far as it is used: a field's type, or the fields below it.
RESOURCES = {"requests": {"*": str}, "limits": {"*": str}}
CONTAINER = {"name": str, "image": str, "resources": RESOURCES, "volumeMounts": [{"name": str, "mountPath": str}]}
VOLUME = {"name": str, "persistentVolumeClaim": {"claimName": str}, "emptyDir": {"medium": str}}
POD = {"spec": {"containers": [CONTAINER], "volumes": [VOLUME]}}
WORKERS = {"groupName": str, "replicas": int, "minReplicas": int, "maxReplicas": int, "rayStartParams": {"*": str}}
RAY_CLUSTER = {
    "headGroupSpec": {"rayStartParams": {"*": str}, "template": POD},
    "workerGroupSpecs": [WORKERS | {"template": POD}],
}
RAY_JOB = {
    "apiVersion": str,
    "kind": str,
    "metadata": {"name": str},
    "spec": {
        "entrypoint": str,
        "shutdownAfterJobFinishes": bool,
        "ttlSecondsAfterFinished": int,
        "backoffLimit": int,
        "rayClusterSpec": RAY_CLUSTER,
    },
}


def unknown(value: Any, fields: Any, path: str = "") -> Iterator[str]:
    """Yield every value that its reader does not know, or of another type."""
    if isinstance(fields, dict) and isinstance(value, dict):
        for key, inner in value.items():
            known = fields.get(key, fields.get("*"))
            yield from [f"{path}.{key}"] if known is None else unknown(inner, known, f"{path}.{key}")
    elif isinstance(fields, list) and isinstance(value, list):
        for inner in value:
            yield from unknown(inner, fields[0], f"{path}[]")
    elif not (isinstance(fields, type) and type(value) is fields):
        yield f"{path}: {value!r}"


def sky() -> dict[str, Any]:
    return dict(yaml.safe_load(SKYPILOT.read_text()))


def scripts() -> dict[str, str]:
    """The shell of each example."""
    job = yaml.safe_load(KUBERAY.read_text())
    return {
        "slurm": re.sub(r"<< 'END'\n.*?\nEND\n", "\n", SLURM.read_text(), flags=re.DOTALL),
        "skypilot setup": sky()["setup"],
        "skypilot run": sky()["run"],
        "kuberay": job["spec"]["entrypoint"],
        "dockerfile": "\n".join(re.findall(r"^#\s+docker build.*\b(paras2s \w+ .*)$", (ROOT / "Dockerfile").read_text(), re.M)),
    }


@pytest.mark.parametrize("name", [name for name in scripts() if name != "skypilot setup"])
def test_every_command_of_the_program_parses(name: str) -> None:
    shell = re.sub(r"^#.*$|\$\(\(.*?\)\)", "", scripts()[name], flags=re.MULTILINE)
    commands = [words[1:] for words in simple_commands(shell) if words[0] == "paras2s"]
    assert commands
    for words in commands:
        command, given = find_command(words)
        check_options(command, given)
        command.make_context(command.name, list(given))


@pytest.mark.parametrize("name", scripts())
def test_the_shell_of_an_example_has_no_error(name: str) -> None:
    done = subprocess.run(["bash", "-n"], input=scripts()[name], capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, done.stderr) == (0, "")


def test_slurm_knows_every_option() -> None:
    lines = SLURM.read_text().splitlines()
    options = [match for line in lines if (match := re.match(r"#SBATCH --([\w-]+)(=\S+)?$", line))]
    assert len(options) == sum(line.startswith("#SBATCH") for line in lines) > 5
    assert {match[1] for match in options} <= SBATCH
    # Slurm reads none after the first command.
    first = next(number for number, line in enumerate(lines) if line and not line.startswith("#"))
    assert not any(line.startswith("#SBATCH") for line in lines[first:])


def test_skypilot_and_kuberay_know_every_field() -> None:
    task = sky()
    assert (
        list(unknown(task, SKY_TASK | {"resources": SKY_RESOURCES, "envs": {"*": str}, "file_mounts": {"*": SKY_MOUNT}})) == []
    )
    job = yaml.safe_load(KUBERAY.read_text())
    assert list(unknown(job, RAY_JOB)) == []
    assert (job["apiVersion"], job["kind"]) == ("ray.io/v1", "RayJob")
    spec = job["spec"]["rayClusterSpec"]
    pods = [spec["headGroupSpec"]["template"]["spec"], *(group["template"]["spec"] for group in spec["workerGroupSpecs"])]
    for pod in pods:
        mounted = {mount["name"] for container in pod["containers"] for mount in container["volumeMounts"]}
        assert mounted == {volume["name"] for volume in pod["volumes"]}
    # A typo is seen.
    assert list(unknown({"spec": {"entrypont": "x", "backoffLimit": "3"}}, RAY_JOB)) == [
        ".spec.entrypont",
        ".spec.backoffLimit: '3'",
    ]


def test_the_dockerfile_and_the_devcontainer_name_what_exists() -> None:
    lines = (ROOT / "Dockerfile").read_text().replace("\\\n", " ").splitlines()
    steps = [line.split(maxsplit=1) for line in lines if line and not line.startswith("#")]
    assert {step for step, _ in steps} <= {"FROM", "RUN", "COPY", "WORKDIR", "USER", "CMD"}
    copied = [name for step, rest in steps if step == "COPY" for name in rest.split()[:-1]]
    kept = set(re.findall(r"^!(.+)$", (ROOT / ".dockerignore").read_text(), re.MULTILINE))
    assert set(copied) == kept
    assert all((ROOT / name).exists() for name in copied)
    pyproject = (ROOT / "pyproject.toml").read_text()
    (extras,) = re.findall(r"/src\[([\w,]+)\]", (ROOT / "Dockerfile").read_text())
    assert all(re.search(rf"^{extra} = \[", pyproject, re.MULTILINE) for extra in extras.split(","))
    opened = json.loads((ROOT / ".devcontainer/devcontainer.json").read_text())
    stages = [rest.split(" AS ")[1] for step, rest in steps if step == "FROM"]
    assert opened["build"]["target"] in stages
    assert (ROOT / ".devcontainer" / opened["build"]["dockerfile"]).resolve() == ROOT / "Dockerfile"
    assert opened["postCreateCommand"].removeprefix("make ") in TARGETS | {".venv/.dev"}
    assert opened["forwardPorts"] == [DEFAULT_PORT]
