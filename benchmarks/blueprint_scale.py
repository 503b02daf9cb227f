"""Seconds and memory of `paras2s blueprint` over thousands of clips: one worker, two workers, and a second run.

Clips of 2.5 s are cut from the fixtures at places of their own, so that no two are equal. Two runs with the words and quality
of a few clips, on one worker and on two, give the ratio where a clip costs most; the run over all clips measures what is
cheap (loudness, ending) and shows whether memory grows: of all processes, after a quarter of the clips and at the end.

    python benchmarks/blueprint_scale.py [--clips 10000] [--few 200]
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from figures import REPOSITORY, Figure, add_json_option, write_figures

from paras2s.audio.clip import Clip, read_clip, write_clip
from paras2s.utils.process_memory import descendants, proportional_gib

PROGRAM = (sys.executable, "-c", "from paras2s.cli.app import main; main()", "blueprint")
CLIP_S, RATE_HZ, EVERY_S = 2.5, 16_000, 0.2
FULL, CHEAP = "words,pitch,loudness,quality", "loudness,ending"


@dataclass(frozen=True)
class Measured:
    """Seconds of one command, the start of its processes included, and their memory at each look once clips are measured."""

    seconds: float
    memory_mib: list[float]

    @property
    def growth(self) -> float:
        """Memory at the end by that after the first quarter: medians of a few looks each."""
        looks = self.memory_mib
        quarter, width = len(looks) // 4, max(1, len(looks) // 10)
        return statistics.median(looks[-width:]) / statistics.median(looks[quarter : quarter + width])


def make_clips(folder: Path, count: int) -> list[Path]:
    """Distinct clips of real speech, each cut at a place of its own."""
    files = sorted((REPOSITORY / "tests" / "fixtures" / "librispeech").glob("*.flac"))
    speech = np.concatenate([read_clip(file, RATE_HZ).samples for file in files])
    length = int(CLIP_S * RATE_HZ)
    starts = np.random.default_rng(0).choice(len(speech) - length, count, replace=False)
    paths = [folder / f"{number:05d}.wav" for number in range(count)]
    for path, start in zip(paths, starts, strict=True):
        write_clip(path, Clip(speech[start : start + length], RATE_HZ))
    return paths


def measure(paths: list[Path], extractors: str, workers: int, folder: Path, cache: bool) -> Measured:
    """Runs the verb, and looks at the memory of its processes now and then."""
    words = ["--extractors", extractors, "--workers", str(workers), "-s", f"cache_dir={folder / 'cache'}"]
    looks: list[float] = []
    # From inside the folder, so that thousands of names fit a command line.
    names = [path.name for path in paths]
    with (folder / "out.json").open("w") as out:
        more = [] if cache else ["--no-cache"]
        command = [*PROGRAM, *names, *words, *more]
        environment = os.environ | {"PYTHONPATH": str(REPOSITORY)}
        started = time.perf_counter()
        process = subprocess.Popen(command, cwd=paths[0].parent, env=environment, stdout=out, stderr=subprocess.DEVNULL)
        while process.poll() is None:
            time.sleep(EVERY_S)
            if (folder / "out.json").stat().st_size:
                looks.append(1024 * sum(map(proportional_gib, descendants(process.pid))))
        seconds = time.perf_counter() - started
    if process.returncode or len(json.loads((folder / "out.json").read_text())) != len(paths):
        raise SystemExit(f"paras2s blueprint ended with {process.returncode}")
    return Measured(seconds, looks)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--clips", type=int, default=10_000)
    parser.add_argument("--few", type=int, default=200, help="clips that are measured in full")
    parser.add_argument("--repeats", type=int, default=3, help="of the runs over few clips")
    add_json_option(parser)
    options = parser.parse_args()
    taken: dict[int, list[float]] = {1: [], 2: []}
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        paths = make_clips(folder, options.clips)
        few = paths[: options.few]
        for _ in range(options.repeats):
            for workers in taken:
                taken[workers].append(measure(few, FULL, workers, folder, cache=False).seconds)
                print(f"{len(few)} clips, {FULL}, {workers} workers: {taken[workers][-1]:.1f} s", flush=True)
        all_of_them = measure(paths, CHEAP, 2, folder, cache=True)
        again = measure(paths, CHEAP, 2, folder, cache=True)
    peak_mib = max(all_of_them.memory_mib)
    print(f"{len(paths)} clips, {CHEAP}: {all_of_them.seconds:.1f} s, at most {peak_mib:.0f} MiB in all processes, ", end="")
    print(f"{all_of_them.growth:.2f} times the memory after a quarter; a second run {again.seconds:.1f} s")
    name = f"{len(few)} clips of {CLIP_S} s, {FULL.replace(',', ', ')}: two workers"
    found = [
        Figure(name, "s", taken[2], taken[1], "one worker", least_ratio=1.8),
        Figure(f"{len(paths)} clips, {CHEAP.replace(',', ', ')}: two workers", "s", [all_of_them.seconds]),
        Figure("the same again, from the cache", "s", [again.seconds]),
        Figure(f"{len(paths)} clips: memory of all processes, at most", "MiB", [peak_mib]),
        Figure("memory at the end, times that after a quarter of the clips", "", [all_of_them.growth], at_most=1.05),
    ]
    write_figures(options.json, found)


if __name__ == "__main__":
    main()
