"""A long run of the smallest world, in which workers are killed: benchmarks/soak.py, and its part of the page."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from chaos.kills import REPOSITORY, commit

SOAK = REPOSITORY / "benchmarks/soak.py"
# On two cores a step takes half a second: about a minute.
KILL_EVERY = 100
LONGEST_S = 24 * 3600.0


@dataclass
class LongResult:
    """Figures of the soak, and those that are over their bounds."""

    figures: list[dict[str, Any]] = field(default_factory=list)
    failures: list[str] = field(default_factory=list)


def run_long(steps: int, folder: Path) -> LongResult:
    """Run the soak; one that ends early can be continued by the same command with the same folder."""
    out = folder / "figures.json"
    command = [sys.executable, str(SOAK), "--steps", str(steps), "--resumes", "0", "--kill-every", str(KILL_EVERY)]
    ended = subprocess.run(
        [*command, "--folder", str(folder / "soak"), "--json", str(out)], timeout=LONGEST_S, stdout=sys.stderr
    )
    if not out.is_file():
        return LongResult(failures=[f"the soak ended with {ended.returncode} and without figures"])
    return result_of(json.loads(out.read_text(encoding="utf-8"))["figures"])


def result_of(figures: list[dict[str, Any]]) -> LongResult:
    """Return the figures, and a failure for each that is over its bound."""
    over = [f"{one['name']}: {shown(one)}" for one in figures if "at_most" in one and one["ours"][0] > one["at_most"]]
    return LongResult(figures, over)


def shown(figure: dict[str, Any]) -> str:
    """Return a figure with its unit and its bound."""
    bound = f", at most {figure['at_most']:g}" if "at_most" in figure else ""
    return f"{figure['ours'][0]:.1f} {figure.get('unit', '')}".rstrip() + bound


def long_section(result: LongResult, steps: int) -> str:
    """Return the part of the page on the long run."""
    rows = [f"| {one['name']} | {shown(one)} |" for one in result.figures]
    failures = [f"- {failure:.118}" for failure in result.failures] or ["No failure."]
    return "\n".join([
        "## Long", "",
        "A tiny policy with two rollout workers, two learner ranks, a speak worker and a judge, twice over: undisturbed, and",
        f"with a worker killed every {KILL_EVERY} steps. The questions and seeds of all steps' answers must be the",
        "same (weights are not, where a worker is lost: the others sample in batches of another shape), and the memory, open",
        "files and sockets of every process and the time of a step must not grow after the first 100 steps.", "", "```bash",
        f"python tests/chaos/campaign.py --only long --steps {steps} --folder FOLDER --out docs/reliability.md", "```", "",
        f"Commit {commit()}.", "", "| what | found |", "|---|---|", *rows, "", *failures, "",
    ])  # fmt: skip
