"""A cluster of two machines whose network, speed, clock and presence are disturbed while a run goes on.

The machines are network namespaces of this one, each with an address of its own and Ray's processes of its own, joined by a
virtual cable; they share the disk, as machines of a cluster do. The driver and the learner are on the first, and each has a
rollout worker and a judge. The second is disturbed; the run must end as the undisturbed one does, to the byte. Where it is lost
the first samples all questions, in batches of another shape, whose sums round otherwise: then the questions and seeds of every
step must be the same, and each answered once.

Wants root, `ip`, `nft` (packets that get lost) and `cc` (clocks). Ray's own cluster on one address, where machines are
lost at a chosen call, is tested by `tests/integration/test_cluster.py`.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from chaos.kills import GONE_WITHIN_S, REPOSITORY, commit, without_time

STEPS, QUERIES, GROUP = 60, 4, 3
# The disturbance starts once this many steps are logged.
AFTER_STEPS = 3
LONGEST_S = 600.0
PORT = 6391
ADDRESSES = {"paras2s-a": "10.77.0.1", "paras2s-b": "10.77.0.2"}
FIRST, SECOND = ADDRESSES
DRIVER = """
import sys
from pathlib import Path
from tiny.job import tiny_job
from paras2s.grpo import train_grpo
role = lambda name: {"count": 2, "cpus": 0, "threads": 1, "resources": {name: 1}}
workers = {"learner": {"cpus": 0, "threads": 1, "resources": {"learner": 1}}, "rollout": role("rollout"),
           "reward": role("reward"), "ray_address": sys.argv[2]}
train_grpo(tiny_job(Path(sys.argv[1]), workers, steps=int(sys.argv[3]), checkpoint_every=10), resume=False)
"""


@dataclass
class ClusterResult:
    """Seconds of the run under each disturbance, and every failure."""

    took_s: dict[str, float] = field(default_factory=dict)
    failures: list[str] = field(default_factory=list)


def sh(*command: str) -> str:
    """Run a command to its end; return what it prints."""
    return subprocess.run(command, check=True, capture_output=True, text=True, timeout=60).stdout


class Network:
    """Two namespaces with a cable between them."""

    def __enter__(self) -> Network:
        # Of a campaign that was killed.
        self.__exit__()
        for name in ADDRESSES:
            sh("ip", "netns", "add", name)
        sh("ip", "link", "add", "cable-a", "netns", FIRST, "type", "veth", "peer", "name", "cable-b", "netns", SECOND)
        for (name, address), end in zip(ADDRESSES.items(), ("cable-a", "cable-b"), strict=True):
            sh("ip", "-n", name, "address", "add", f"{address}/24", "dev", end)
            for device in (end, "lo"):
                sh("ip", "-n", name, "link", "set", device, "up")
        return self

    def __exit__(self, *_: object) -> None:
        existing = sh("ip", "netns", "list").split()
        for name in ADDRESSES:
            if name in existing:
                for pid in pids_on(name):
                    send(pid, signal.SIGKILL)
                sh("ip", "netns", "del", name)


def pids_on(machine: str) -> list[int]:
    """Return the processes of a machine."""
    return [int(pid) for pid in sh("ip", "netns", "pids", machine).split()]


def send(pid: int, number: int) -> None:
    """Send a signal to a process that may have ended."""
    try:
        os.kill(pid, number)
    except ProcessLookupError:
        return


def start(machine: str, command: Sequence[str], log: Path, **environment: str) -> subprocess.Popen[bytes]:
    """Start a command on a machine."""
    paths = os.pathsep.join([str(REPOSITORY), str(REPOSITORY / "tests")])
    own = os.environ | {"PYTHONPATH": paths, "OMP_NUM_THREADS": "1", "RAY_USAGE_STATS_ENABLED": "0"} | environment
    with log.open("ab") as said:
        return subprocess.Popen(
            ["ip", "netns", "exec", machine, *command], env=own, stdout=said, stderr=said, start_new_session=True
        )


def start_ray(machine: str, folder: Path, **environment: str) -> None:
    """Start Ray on a machine: the first is the head, the second joins it."""
    ray = [sys.executable, "-m", "ray.scripts.scripts", "start", "--block", "--disable-usage-stats"]
    has = {"rollout": 1, "reward": 1} | ({"learner": 1} if machine == FIRST else {})
    ray += ["--node-ip-address", ADDRESSES[machine], "--num-cpus", "2", "--resources", json.dumps(has)]
    head = ["--head", "--port", str(PORT), "--include-dashboard", "false", "--temp-dir", str(folder / "ray")]
    start(
        machine,
        ray + (head if machine == FIRST else ["--address", f"{ADDRESSES[FIRST]}:{PORT}"]),
        folder / "ray.txt",
        **environment,
    )


@dataclass(frozen=True)
class Cluster:
    """A started cluster and the run on it."""

    folder: Path
    ended: threading.Event
    # What shows that the disturbance took place, and the errors of its thread.
    effects: list[str] = field(default_factory=list)
    errors: list[BaseException] = field(default_factory=list)

    def wait(self, seconds: float) -> bool:
        """Wait; return whether the run has not ended."""
        return not self.ended.wait(seconds)


def lose_packets(cluster: Cluster, percent: int = 10) -> None:
    """Drop this share of the packets that reach the second machine."""
    nft = ("ip", "netns", "exec", SECOND, "nft")
    sh(*nft, "add", "table", "inet", "chaos")
    sh(*nft, "add", "chain", "inet", "chaos", "input", "{ type filter hook input priority 0; }")
    dropped = ("iif", "!=", "lo", "numgen", "random", "mod", "100", "<", str(percent), "counter", "drop")
    sh(*nft, "add", "rule", "inet", "chaos", "input", *dropped)
    while cluster.wait(0.2):
        packets = re.search(r"counter packets (\d+)", sh(*nft, "list", "table", "inet", "chaos"))
        cluster.effects[:] = [f"{packets[1]} packets lost"] if packets and packets[1] != "0" else []


def pull_the_cable(cluster: Cluster) -> None:
    """Cut the network for two seconds of every three."""
    while cluster.wait(1.0):
        cut_the_cable(cluster)
        cluster.wait(2.0)
        sh("ip", "-n", FIRST, "link", "set", "cable-a", "up")


def cut_the_cable(cluster: Cluster) -> None:
    """Cut the network for good."""
    sh("ip", "-n", FIRST, "link", "set", "cable-a", "down")
    assert "state DOWN" in sh("ip", "-n", FIRST, "link", "show", "cable-a")
    cluster.effects.append("cut")


def slow_down(cluster: Cluster) -> None:
    """Let the second machine's processes run for about a tenth of the time."""
    ran_s, begun = 0.0, time.monotonic()
    while cluster.wait(0.01):
        ran_s += 0.01
        # The processes go on while they are listed.
        listed = time.monotonic()
        pids = pids_on(SECOND)
        for pid in pids:
            send(pid, signal.SIGSTOP)
        ran_s += (listing_s := time.monotonic() - listed)
        cluster.wait(9 * (0.01 + listing_s))
        for pid in pids:
            send(pid, signal.SIGCONT)
    share = ran_s / (time.monotonic() - begun)
    cluster.effects.extend([f"ran {share:.0%} of the time"] if share < 0.15 else [])


def leave(cluster: Cluster) -> None:
    """Kill all of the second machine's processes."""
    pids = pids_on(SECOND)
    for pid in pids:
        send(pid, signal.SIGKILL)
    cluster.effects.extend([f"{len(pids)} processes killed"] if len(pids) > 3 else [])


def leave_and_join(cluster: Cluster) -> None:
    """Kill all of the second machine's processes, and let it join again."""
    leave(cluster)
    if cluster.wait(3.0):
        start_ray(SECOND, cluster.folder)


def show_the_clock(cluster: Cluster) -> None:
    """Leave the machines alone; the second one's Ray has said at its start what time it is there."""
    hours = set(re.findall(r"(?m)^(\d{4}-\d\d-\d\d \d\d)", (cluster.folder / "ray.txt").read_text(errors="replace")))
    cluster.effects.extend([f"clocks say {' and '.join(sorted(hours))}"] if len(hours) > 1 else [])


def nothing(cluster: Cluster) -> None:
    """Leave the machines alone."""
    cluster.effects.append("nothing")


def guarded(disturbance: Disturbance, cluster: Cluster) -> None:
    """Disturb the cluster; keep an error for the thread that waits for the run."""
    try:
        disturbance.start(cluster)
    except BaseException as error:
        cluster.errors.append(error)


@dataclass(frozen=True)
class Disturbance:
    """A disturbance; `ahead_s` of the second machine's clock; `lost`: the first machine samples alone for a while."""

    start: Callable[[Cluster], None]
    ahead_s: int = 0
    lost: bool = False


DISTURBANCES = {
    "nothing": Disturbance(nothing),
    "10 % of the packets are lost": Disturbance(lose_packets),
    "the network is cut for 2 s of every 3": Disturbance(pull_the_cable),
    "the network is cut for good": Disturbance(cut_the_cable, lost=True),
    "a machine is ten times slower": Disturbance(slow_down),
    "a machine's clock is three days ahead": Disturbance(show_the_clock, ahead_s=3 * 86_400),
    "a machine's clock is an hour behind": Disturbance(show_the_clock, ahead_s=-3_600),
    "a machine leaves": Disturbance(leave, lost=True),
    "a machine leaves, and joins again": Disturbance(leave_and_join, lost=True),
}


def steps_of(run: Path) -> int:
    """Return the number of logged steps."""
    log = run / "metrics.jsonl"
    return log.read_bytes().count(b"\n") if log.is_file() else 0


def run_under(folder: Path, disturbance: Disturbance) -> float:
    """Run the tiny job on a new cluster under a disturbance; return the seconds.

    Raises:
        AssertionError: the run did not end well, or was not disturbed.
    """
    folder.mkdir(parents=True)
    clock: dict[str, str] = {}
    if disturbance.ahead_s:
        library = str(folder / "clock.so")
        sh("cc", "-shared", "-fPIC", "-o", library, str(Path(__file__).with_name("clock.c")), "-ldl")
        clock = {"LD_PRELOAD": library, "CHAOS_CLOCK_S": str(disturbance.ahead_s)}
    with Network():
        start_ray(FIRST, folder)
        start_ray(SECOND, folder, **clock)
        address, started = f"{ADDRESSES[FIRST]}:{PORT}", time.monotonic()
        wait_for_machines(address, folder)
        driver = start(FIRST, [sys.executable, "-c", DRIVER, str(folder), address, str(STEPS)], folder / "said.txt")
        cluster, troubles = Cluster(folder, threading.Event()), threading.Thread()
        try:
            while driver.poll() is None and steps_of(folder / "run") < AFTER_STEPS and time.monotonic() < started + LONGEST_S:
                time.sleep(0.05)
            assert driver.poll() is None, f"ended undisturbed: {(folder / 'said.txt').read_text(errors='replace')[-300:]!r}"
            troubles = threading.Thread(target=guarded, args=(disturbance, cluster))
            troubles.start()
            code = driver.wait(LONGEST_S)
        finally:
            cluster.ended.set()
            if troubles.ident is not None:
                troubles.join(GONE_WITHIN_S)
        if cluster.errors:
            raise AssertionError(f"the disturbance failed: {cluster.errors[0]!r}")
        assert cluster.effects, "the disturbance had no effect"
        print(f"  {cluster.effects[0]}", file=sys.stderr, flush=True)
        assert code == 0, f"ended with {code}: {(folder / 'said.txt').read_text(errors='replace')[-300:]!r}"
        return time.monotonic() - started


def wait_for_machines(address: str, folder: Path) -> None:
    """Wait until both machines have joined."""
    code = (
        "import ray, sys, time; ray.init(address=sys.argv[1], log_to_driver=False)\n"
        "until = time.monotonic() + 120\n"
        "while ray.cluster_resources().get('rollout') != 2 and time.monotonic() < until: time.sleep(0.1)\n"
        "sys.exit(ray.cluster_resources().get('rollout') != 2)"
    )
    for _ in range(60):
        if start(FIRST, [sys.executable, "-c", code, address], folder / "waiting.txt").wait(180) == 0:
            return
        time.sleep(1.0)
    raise AssertionError("the second machine did not join")


def answers_of(run: Path) -> dict[str, list[tuple[str, int, int, int]]]:
    """Return the answers of every step: question, its group, the answer's number and seed, sorted."""
    import pyarrow.parquet as pq

    columns = ["query_id", "group", "answer", "seed"]
    tables = {path.name: pq.read_table(path, columns=columns) for path in (run / "rollouts").glob("step_*.parquet")}
    return {name: sorted(tuple(row.values()) for row in table.to_pylist()) for name, table in tables.items()}


def differences(found: Path, expected: Path, lost: bool) -> list[str]:
    """Return how a disturbed run differs: answers; and weights, tokens and log, where no machine was lost."""
    own, right = answers_of(found), answers_of(expected)
    assert [len(set(rows)) for rows in right.values()] == [QUERIES * GROUP] * STEPS
    apart = [f"{name}: other questions, or other numbers of answers" for name in right if own.get(name) != right[name]]
    if lost:
        return apart
    for name in ("aligned/model.safetensors", *(f"rollouts/{name}" for name in right)):
        if not (found / name).is_file() or (found / name).read_bytes() != (expected / name).read_bytes():
            apart.append(f"{name}: differs")
    logs = ([without_time(json.loads(line)) for line in (run / "metrics.jsonl").open()] for run in (found, expected))
    return apart + ([] if next(logs) == next(logs) else ["metrics.jsonl: differs"])


def missing_tools() -> list[str]:
    """Return what this machine lacks for the campaign."""
    return [name for name in ("ip", "nft", "cc") if shutil.which(name) is None] + ([] if os.geteuid() == 0 else ["root"])


def run_cluster(folder: Path) -> ClusterResult:
    """Run the job under every disturbance; what a failed one has made stays in the folder."""
    result = ClusterResult()
    if missing := missing_tools():
        return ClusterResult(failures=[f"not run: this machine lacks {', '.join(missing)}"])
    runs = {name: folder / f"cluster-{number}" for number, name in enumerate(DISTURBANCES)}
    for name in DISTURBANCES:
        try:
            result.took_s[name] = run_under(runs[name], DISTURBANCES[name])
            faults = differences(runs[name] / "run", runs["nothing"] / "run", DISTURBANCES[name].lost)
        except (AssertionError, OSError, subprocess.SubprocessError) as error:
            faults = [str(error)]
        result.failures += [f"{name}: {fault}" for fault in faults[:5]]
        print(f"{name}: {result.took_s.get(name, float('nan')):.0f} s, {faults}", file=sys.stderr, flush=True)
    return result


def cluster_section(result: ClusterResult) -> str:
    """Return the part of the page on the cluster."""
    rows = [f"| {name} | {result.took_s[name]:.0f} |" if name in result.took_s else f"| {name} | - |" for name in DISTURBANCES]
    failures = [f"- {failure:.118}" for failure in result.failures] or ["No failure."]
    return "\n".join([
        "## Cluster", "",
        "Two machines (network namespaces with addresses of their own, and Ray's processes of their own) run a tiny job of",
        f"{STEPS} steps; from step {AFTER_STEPS} on the second is disturbed, its clock from the start. Weights, answers and",
        "log must be those of the undisturbed run; where the machine is lost, the questions and seeds of every step, each",
        "answered once. Seconds are with the start of Ray.", "", "```bash",
        "python tests/chaos/campaign.py --only cluster --out docs/reliability.md", "```", "",
        f"Commit {commit()}. It wants root, `ip`, `nft` and `cc`.", "",
        "| disturbance | seconds |", "|---|---|", *rows, "", *failures, "",
    ])  # fmt: skip
