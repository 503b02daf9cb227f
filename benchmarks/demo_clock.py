"""Seconds of the whole demo, ours beside another checkout's, in turns: from an empty cache, then from the cache that it left.

The other checkout has its own environment (`make .venv/.offline` there). Each side's scores are its own judge's, which has
changed since: they say that a side learned something, and not which learned more. With `--folder` runs that have ended there
are not run again.

    python benchmarks/demo_clock.py --against CHECKOUT [--preset demo] [--seeds 0] [--caches empty filled] [--folder FOLDER]
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import time
from dataclasses import asdict, dataclass
from pathlib import Path

from figures import REPOSITORY, Figure, add_json_option, write_figures

# The least that the demo of 244217d must take of ours, by what is in the cache.
LEAST_RATIO = {"empty": 1 / 0.4, "filled": 1 / 0.3}


@dataclass(frozen=True)
class Timed:
    """A demo's seconds, from the start of its process to its end, those of its stages, and the scores of two policies."""

    seconds: float
    stages: dict[str, float]
    sft: float | None
    aligned: float | None


def run_demo(checkout: Path, preset: str, seed: int, cache: Path, folder: Path) -> Timed:
    """Runs a checkout's demo, unless it has ended in this folder before; the folder's name says what its cache must be.

    Raises:
        SystemExit: the demo failed, and its output stands beside its folder; or the cache is not as it must be.
    """
    done = folder.with_suffix(".json")
    if done.is_file():
        return Timed(**json.loads(done.read_text()))
    if folder.exists():
        raise SystemExit(f"{folder}: a demo that was stopped is no measure; delete {folder.parent} and run again")
    if cache.exists() != (folder.name == "filled"):
        raise SystemExit(f"{cache}: is not {folder.name}; give another --folder, or measure the empty cache first")
    words = [checkout / ".venv/bin/paras2s", "demo", "--preset", preset, "--seed", seed, "--run-dir", folder]
    words += ["--set", f"cache_dir={cache}"]
    folder.parent.mkdir(parents=True, exist_ok=True)
    started = time.perf_counter()
    with folder.with_suffix(".log").open("w") as log:
        ended = subprocess.run(list(map(str, words)), cwd=folder.parent, stdout=log, stderr=subprocess.STDOUT)
    seconds = time.perf_counter() - started
    if ended.returncode:
        raise SystemExit(f"{checkout}: the demo failed, see {folder.with_suffix('.log')}")
    scores = json.loads((folder / "bench/summary.json").read_text())
    means = [scores[name]["overall"]["mean"] for name in ("sft", "aligned")]
    timed = Timed(round(seconds, 1), json.loads((folder / "timings.json").read_text()), *means)
    done.write_text(json.dumps(asdict(timed)) + "\n")
    return timed


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--against", type=Path, required=True, help="another checkout of this project, with its environment")
    parser.add_argument("--preset", default="demo", help="of either side; what it holds may have changed")
    parser.add_argument("--seeds", type=int, nargs="+", default=[0])
    parser.add_argument("--caches", nargs="+", choices=LEAST_RATIO, default=list(LEAST_RATIO))
    parser.add_argument("--folder", type=Path, help="keep the runs there")
    add_json_option(parser)
    options = parser.parse_args()
    sides = {"ours": REPOSITORY, "theirs": options.against.resolve()}
    figures, scores = [], dict[str, list[float]]()
    with tempfile.TemporaryDirectory() as temporary:
        base = (options.folder or Path(temporary)).resolve()
        for cache in options.caches:
            took: dict[str, list[Timed]] = {"ours": [], "theirs": []}
            for seed in options.seeds:
                for side, checkout in sides.items():
                    own = base / f"{side}-seed{seed}"
                    timed = run_demo(checkout, options.preset, seed, own / "cache", own / cache)
                    took[side].append(timed)
                    shown = ", ".join(f"{name} {took_s:.0f}" for name, took_s in timed.stages.items())
                    print(f"{cache} cache, seed {seed}, {side}: {timed.seconds:.0f} s ({shown})", end="; ")
                    print(f"SFT {timed.sft}, aligned {timed.aligned} by its own judge", flush=True)
            name = f"{options.preset}, {cache} cache"
            ours, theirs = ([one.seconds for one in took[side]] for side in sides)
            figures.append(Figure(name, "s", ours, theirs, "the other checkout", least_ratio=LEAST_RATIO[cache]))
            for system in ("sft", "aligned"):
                scores.setdefault(system, []).extend(
                    value for one in took["ours"] if (value := getattr(one, system)) is not None
                )
    for system, values in scores.items():
        if values:
            figures.append(Figure(f"{options.preset}: score of the {system} policy", "of 5", values))
    write_figures(options.json, figures)


if __name__ == "__main__":
    sys.exit(main())
