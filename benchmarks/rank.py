"""Seconds that `paras2s rank` takes, from the start of the process to its end, on random verdicts and on recorded ones.

Seconds of the processor stand beside those of the clock, which grow when other programs want it too. The first file has
1,000 rows: 4 aspects, 10 systems, 25 instructions. The recorded ones are given by --verdicts.

    python benchmarks/rank.py [--verdicts speakbench_gpt4o_0shot.csv --human speakbench.json] [--repeats 5]
"""

from __future__ import annotations

import argparse
import random
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from figures import Figure, add_json_option, write_figures

PROGRAM = Path(sys.executable).parent / "paras2s"
ASPECTS = ("lexical", "paralinguistic", "speech_quality", "standard")
LIMIT_S = 5.0


def write_verdicts(path: Path, systems: int, instructions: int) -> int:
    """Random verdicts of every aspect, system and instruction; how many rows."""
    rng = random.Random(0)
    rows = [
        f"{aspect},{number},system-{system},system-0,{rng.choice(('1', '2', 'tie'))},{rng.choice(('1', '2', 'tie'))}"
        for aspect in ASPECTS
        for system in range(systems)
        for number in range(instructions)
    ]
    path.write_text("aspect,instruction_id,system,reference,system_first,system_second\n" + "\n".join(rows) + "\n")
    return len(rows)


def seconds_of(words: list[str]) -> tuple[float, float]:
    """By the clock, and of the processor."""
    started, used = time.perf_counter(), resource.getrusage(resource.RUSAGE_CHILDREN)
    subprocess.run([PROGRAM, "rank", *words], check=True, capture_output=True)
    took_s, after = time.perf_counter() - started, resource.getrusage(resource.RUSAGE_CHILDREN)
    return took_s, after.ru_utime + after.ru_stime - used.ru_utime - used.ru_stime


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--verdicts", type=Path)
    parser.add_argument("--human", type=Path)
    parser.add_argument("--repeats", type=int, default=5)
    add_json_option(parser)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        made = Path(folder) / "verdicts.csv"
        rows = write_verdicts(made, 10, 25)
        requests = [(f"{rows} rows", [str(made)])]
        if options.verdicts:
            more = ["--human", str(options.human)] if options.human else []
            requests.append((f"{options.verdicts.name}", [str(options.verdicts), *more, "--out", f"{folder}/out"]))
        found = []
        for name, words in requests:
            took_s, used_s = zip(*(seconds_of(words) for _ in range(options.repeats)), strict=True)
            middle_s = statistics.median(took_s)
            found.append(Figure(name, "s", took_s, at_most=LIMIT_S))
            kept = "within" if middle_s < LIMIT_S else "ABOVE"
            print(
                f"{name}: {middle_s:.2f} s ({min(took_s):.2f} to {max(took_s):.2f}, n = {len(took_s)}), {kept} {LIMIT_S:g} s",
                end="; ",
            )
            print(f"of the processor {statistics.median(used_s):.2f} s")
    write_figures(options.json, found)


if __name__ == "__main__":
    main()
