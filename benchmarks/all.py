"""Runs every benchmark, quiet and beside busy processes, writes figures.json, and renews the tables of the documents.

Stopped, it goes on where it was: figures of the same package are not taken again (--again takes them). What a benchmark needs
and is not given (a checkout of TRACE's release, a finished run) leaves that benchmark's figures as they are. Stop other work
first: the load average stands beside every table. `--import` takes over what a benchmark has written itself with `--json`.

    python benchmarks/all.py [--only NAME ...] [--busy 0 1 2] [--trace CHECKOUT --trace-python PYTHON] [--run FOLDER]
        [--against CHECKOUT]
    python benchmarks/all.py --import NAME FILE
    python benchmarks/all.py --render
"""

from __future__ import annotations

import argparse
import json
import os
import shlex
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import tables
from figures import REPOSITORY, busy_processes, package_id, processor_s

FIGURES = REPOSITORY / "benchmarks" / "figures.json"
LIMIT_S = 3600.0


@dataclass(frozen=True)
class Benchmark:
    """One script with its arguments; {trace} and the like stand for paths that are given or are not."""

    title: str
    script: str
    arguments: tuple[str, ...] = ()
    # Whether it is taken beside busy processes as well.
    beside_busy: bool = False

    def command(self, given: Mapping[str, str]) -> list[str] | None:
        """Words of the command; None where something that it needs is not given."""
        try:
            words = [word.format_map(given) for word in self.arguments]
        except KeyError:
            return None
        clips = [str(path.relative_to(REPOSITORY)) for path in sorted(REPOSITORY.glob(CLIPS))]
        return [f"benchmarks/{self.script}", *(one for word in words for one in (clips if word == CLIPS else [word]))]

    @property
    def shown(self) -> str:
        """The command as a reader would type it."""
        return shlex.join(["python", f"benchmarks/{self.script}", *self.arguments]).replace("'", "").translate(CAPITALS)


CLIPS = "tests/fixtures/librispeech/*.flac"
VERDICTS = "tests/fixtures/audiojudge/speakbench_gpt4o_0shot.csv"
CAPITALS = str.maketrans({"{": None, "}": None})
BENCHMARKS = {
    "sampling": Benchmark("Sampling", "sampling.py", beside_busy=True),
    "prefill": Benchmark("One prompt for a group", "sampling.py", ("--prefill",)),
    "continuous": Benchmark("Answers of different length", "sampling.py", ("--continuous", "--repeats", "3")),
    "grpo_step": Benchmark("A GRPO step", "grpo_step.py", beside_busy=True),
    "workers": Benchmark("Rollout workers", "workers.py", beside_busy=True),
    "drivers": Benchmark("Synchronous and asynchronous", "drivers.py", ("--steps", "16", "--repeats", "1")),
    "plan_check": Benchmark("What `paras2s plan` predicts", "plan_check.py"),
    "blueprint": Benchmark(
        "The blueprint", "blueprint.py", (CLIPS, "--repeats", "5", "--trace", "{TRACE}", "--trace-python", "{TRACE_PYTHON}"),
        beside_busy=True,
    ),
    "blueprint_fields": Benchmark(
        "The blueprint's fields", "blueprint_fields.py", (CLIPS, "--trace", "{TRACE}", "--trace-python", "{TRACE_PYTHON}")
    ),
    "blueprint_scale": Benchmark("The blueprint of many clips", "blueprint_scale.py", beside_busy=True),
    "recognition": Benchmark("Speech recognition", "recognition.py"),
    "judge_calls": Benchmark("Judge calls", "judge_calls.py", ("--repeats", "5"), beside_busy=True),
    "rank": Benchmark("Ranking", "rank.py", ("--verdicts", VERDICTS)),
    "curation": Benchmark("Curation", "curation.py"),
    "dependence": Benchmark("Words or voice", "dependence.py", ("{RUN}",)),
    "style_guesses": Benchmark("The style of a prompt", "style_guesses.py", ("{RUN}/data",)),
    "answer_parts": Benchmark("What answers get right", "answer_parts.py", ("{RUN}",)),
    "other_synthesiser": Benchmark("Another synthesiser", "other_synthesiser.py", ("{RUN}",)),
    "composed": Benchmark("Composed answers", "composed.py", ("{RUN}",)),
    # A filled cache as well, or more seeds, take longer than the limit of time.
    "demo_clock": Benchmark("The demo's clock", "demo_clock.py", ("--against", "{AGAINST}", "--caches", "empty")),
    "growth": Benchmark("Cost growth", "growth.py"),
    "studio": Benchmark("The studio", "studio.py"),
    "precision": Benchmark("Half precision in the logits", "precision.py"),
    "captured": Benchmark("Recorded decoding steps", "captured.py"),
    "expert_choice": Benchmark("Choice of experts", "expert_choice.py"),
    # As many steps as the limit of time allows; the README names more.
    "soak": Benchmark("A long run, straight and resumed", "soak.py", ("--steps", "300", "--prompts", "1000", "--resumes", "2")),
}  # fmt: skip
TITLES = {name: one.title for name, one in BENCHMARKS.items()}


def load_runs(path: Path = FIGURES) -> dict[str, dict[str, Any]]:
    """Returns what was taken so far, by benchmark and number of busy processes."""
    return dict(json.loads(path.read_text())["runs"]) if path.is_file() else {}


def save_run(name: str, busy: int, run: Mapping[str, Any], path: Path = FIGURES) -> None:
    """Adds one benchmark's figures; read again first, since another `all.py` may have written meanwhile."""
    runs = load_runs(path)
    runs.setdefault(name, {})[str(busy)] = run
    ordered = {key: dict(sorted(runs[key].items())) for key in sorted(runs)}
    written = path.with_suffix(".tmp")
    written.write_text(json.dumps({"schema": 1, "runs": ordered}, indent=1) + "\n")
    written.replace(path)


def is_done(runs: Mapping[str, Mapping[str, Any]], name: str, busy: int, package: str) -> bool:
    """Whether these figures are of this very package."""
    found = runs.get(name, {}).get(str(busy))
    return found is not None and found["taken"]["package"] == package


def take(one: Benchmark, command: Sequence[str], busy: int) -> dict[str, Any] | None:
    """Runs a benchmark beside `busy` busy processes; None where it failed, which it says itself."""
    with tempfile.TemporaryDirectory() as folder, busy_processes(busy) as burners:
        path, load, started = Path(folder) / "figures.json", os.getloadavg()[0], time.perf_counter()
        words = [sys.executable, *command, "--json", str(path)]
        paths = os.pathsep.join(filter(None, [str(REPOSITORY), os.environ.get("PYTHONPATH")]))
        environment = os.environ | {"PYTHONPATH": paths}
        try:
            done = subprocess.run(words, cwd=REPOSITORY, env=environment, check=False, timeout=LIMIT_S)
        except subprocess.TimeoutExpired:
            return None
        wall_s = time.perf_counter() - started
        if done.returncode or not path.is_file():
            return None
        run: dict[str, Any] = {
            "command": one.shown,
            "load_average": [round(load, 2), round(os.getloadavg()[0], 2)],
            "wall_s": round(wall_s, 1),
        }
        if burners:
            used_s = processor_s(burner.pid for burner in burners)
            run["busy_share_of_cores"] = round(used_s / wall_s / len(os.sched_getaffinity(0)), 3)
        figures: dict[str, Any] = json.loads(path.read_text())
        return run | figures


def import_figures(name: str, written: Path, path: Path = FIGURES) -> None:
    """Stores what a benchmark wrote by itself; how busy the machine was is not known.

    Raises:
        SystemExit: the file is not there, or not what a benchmark writes.
    """
    try:
        figures: dict[str, Any] = json.loads(written.read_text())
    except (OSError, ValueError) as error:
        raise SystemExit(f"{written}: cannot be read ({error})") from error
    if not {"taken", "figures"} <= set(figures):
        raise SystemExit(f"{written}: has no figures; give what benchmarks/{BENCHMARKS[name].script} wrote with --json")
    save_run(name, 0, {"command": BENCHMARKS[name].shown} | figures, path)


def render() -> None:
    """Renews the generated parts of the documents."""
    for path, text in tables.rendered(load_runs(), TITLES).items():
        path.write_text(text)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="+", choices=BENCHMARKS, default=list(BENCHMARKS), metavar="NAME")
    parser.add_argument("--busy", type=int, nargs="+", default=[0, 1, 2], help="busy processes beside it, one number a turn")
    parser.add_argument("--again", action="store_true", help="take figures of this package again")
    parser.add_argument(
        "--import",
        dest="imported",
        nargs=2,
        metavar=("NAME", "FILE"),
        help="written by --json; run nothing",
    )
    parser.add_argument("--render", action="store_true", help="renew the documents, run nothing")
    parser.add_argument("--trace", dest="TRACE", metavar="CHECKOUT", help="of TRACE's release")
    parser.add_argument("--trace-python", dest="TRACE_PYTHON", metavar="PYTHON", help="with what that needs")
    parser.add_argument("--against", dest="AGAINST", metavar="CHECKOUT", help="of an earlier paras2s, with its environment")
    parser.add_argument("--run", dest="RUN", metavar="FOLDER", help="a finished run, for what is measured of one")
    options = parser.parse_args()
    given = {key: value for key, value in vars(options).items() if key.isupper() and value is not None}
    failed = []
    if options.imported:
        name, written = options.imported
        if name not in BENCHMARKS:
            parser.error(f"--import: {name} is none of {', '.join(BENCHMARKS)}")
        import_figures(name, Path(written))
    for name in [] if options.render or options.imported else options.only:
        one = BENCHMARKS[name]
        command = one.command(given)
        if command is None:
            print(f"{name}: not run, {one.shown} needs more than is given")
            continue
        for busy in options.busy if one.beside_busy else [0]:
            if not options.again and is_done(load_runs(), name, busy, package_id()):
                print(f"{name} beside {busy}: taken already")
                continue
            print(f"{name} beside {busy} busy processes", flush=True)
            run = take(one, command, busy)
            if run is None:
                failed.append(f"{name} beside {busy}")
            else:
                save_run(name, busy, run)
                render()
    if options.render or options.imported:
        render()
    print(f"failed: {', '.join(failed)}" if failed else "all done")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
