"""The campaigns: damaged files, hostile words, judges that misbehave, kills, a cluster, a long run; all to docs/reliability.md.

`python tests/chaos/campaign.py --out docs/reliability.md`, or `make chaos`; `--only input` and its siblings run one of them,
and leave the page's other parts as they are. Every mutation comes from the seed, the reader and its number, so that a failure
can be made again alone.
"""

from __future__ import annotations

import argparse
import logging
import math
import re
import resource
import sys
import tempfile
import time
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE.parent), str(HERE.parents[1])]

from chaos.cluster import cluster_section, run_cluster  # noqa: E402
from chaos.judges import judges_section, run_budgets, run_judges  # noqa: E402
from chaos.kills import KillsResult, commit, kills_section, run_kills  # noqa: E402
from chaos.long import long_section, run_long  # noqa: E402
from chaos.readers import READERS, Reader  # noqa: E402
from chaos.words import run_words, section  # noqa: E402
from paras2s.errors import ParaS2SError  # noqa: E402

HANG_S = 20.0
LARGEST_GIB = 2.0
# Text that has broken parsers: deep, huge, of another kind, of another encoding.
SPLICES = (
    b"[" * 5_000, b"{" * 300, b'{"a":' * 2_000, b"9" * 5_000, b"1e999", b"NaN", b"-Infinity", b"null", b"\x00", b"\xff\xfe",
    b"\xef\xbb\xbf", b'"\\ud800"', b"\r\n", b"- " * 300, b": ", b"&a [*a]", b"!!binary x", b"2026-99-99", b",", b'"', b"\\",
    b"\x7f\xff\xff\xff", b"\x80\x00\x00\x00", b"\xff" * 8, "é".encode("latin-1"), "\u2028".encode(),
)  # fmt: skip


@dataclass
class Result:
    """Outcome of a campaign: mutations by reader, those that were read, and every failure."""

    counts: Counter[str] = field(default_factory=Counter)
    refused: Counter[str] = field(default_factory=Counter)
    failures: list[str] = field(default_factory=list)
    slowest_s: float = 0.0


def mutated(data: bytes, draw: np.random.Generator) -> bytes:
    """Return the data with one to four mutations: bytes changed, cut, doubled, swapped or replaced by a splice."""
    changed = bytearray(data)
    for _ in range(int(draw.integers(1, 5))):
        start = int(draw.integers(0, len(changed) + 1))
        length = int(draw.integers(1, 1 + max(1, len(changed) // 4)))
        kind = int(draw.integers(0, 6))
        if kind == 0 and changed:
            changed[min(start, len(changed) - 1)] = int(draw.integers(0, 256))
        elif kind == 1:
            del changed[start:]
        elif kind == 2:
            del changed[start : start + length]
        elif kind == 3:
            changed[start:start] = changed[start : start + length]
        else:
            changed[start : start + (length if kind == 4 else 0)] = SPLICES[int(draw.integers(0, len(SPLICES)))]
    return bytes(changed)


def attack(name: str, reader: Reader, number: int, folder: Path, seed: int, result: Result) -> None:
    """Read one mutation; anything but a value or an error of this project is a failure."""
    data = mutated(reader.data, np.random.default_rng([seed, number, sum(name.encode())]))
    result.counts[name] += 1
    started = time.perf_counter()
    try:
        reader.run(folder, data)
    except ParaS2SError:
        result.refused[name] += 1
    except Exception as error:
        result.failures.append(f"{name} {number}: {type(error).__name__}: {str(error)[:100]}")
    took_s = time.perf_counter() - started
    result.slowest_s = max(result.slowest_s, took_s)
    if took_s > HANG_S:
        result.failures.append(f"{name} {number}: {took_s:.0f} s")


def run(count: int, seed: int) -> Result:
    """Spread `count` mutations evenly over all readers."""
    result = Result()
    with tempfile.TemporaryDirectory() as made:
        for number in range(count):
            name = list(READERS)[number % len(READERS)]
            folder = Path(made) / name.replace(" ", "-")
            folder.mkdir(exist_ok=True)
            attack(name, READERS[name], number // len(READERS), folder, seed, result)
    return result


def peak_gib() -> float:
    """Return the most memory that this process has held."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20


def page(result: Result, seed: int) -> str:
    """Return the campaign as a page of the documents."""
    total = sum(result.counts.values())
    command = f"python tests/chaos/campaign.py --only input --count {total} --seed {seed} --out docs/reliability.md"
    rows = [f"| {name} | {result.counts[name]} | {result.refused[name]} |" for name in READERS]
    failures = [f"- {failure:.118}" for failure in result.failures] or ["None."]
    return "\n".join(
        [
            "# Reliability",
            "",
            f"{total:,} mutations of intact files over {len(READERS)} readers: {len(result.failures)} tracebacks or hangs, the",
            f"slowest read {result.slowest_s:.1f} s, memory at most {peak_gib():.2f} GiB.",
            "",
            "```bash",
            command,
            "```",
            "",
            f"Commit {commit()}. A mutation changes, cuts, doubles or splices bytes; a reader returns a value or",
            "raises an error of this project. CI runs a table of known damages and a small edition of the campaign.",
            "",
            "| reader | mutations | refused |",
            "|---|---|---|",
            *rows,
            "",
            "## Failures",
            "",
            *failures,
            "",
        ]
    )


# The page's parts by their headings, in order; what is before them is the input's.
PARTS = {
    "input": "# Reliability",
    "words": "## Hostile words",
    "judges": "## Judges that misbehave",
    "kills": "## Kills",
    "cluster": "## Cluster",
    "long": "## Long",
    "found": "## Found and fixed",
}


# The last part is written by hand: every failure that a campaign found.
CAMPAIGNS = [name for name in PARTS if name != "found"]


def parts_of(page: str) -> dict[str, str]:
    """Return the parts of a page by their names."""
    found = re.split(f"(?m)^(?={'|'.join(map(re.escape, PARTS.values()))})", page)
    return {name: text.strip() for text in found for name, heading in PARTS.items() if text.startswith(heading + "\n")}


def write_page(out: Path | None, parts: dict[str, str]) -> str:
    """Write the page of these parts; return it."""
    text = "\n\n".join(parts[name].strip() for name in PARTS if name in parts) + "\n"
    if out is not None:
        out.write_text(text, encoding="utf-8")
    return text


def main() -> None:
    """Run the campaigns; exit with 1 where something failed."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--count", type=int, default=5_000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path)
    parser.add_argument("--words", type=int, default=10_000, help="hostile words")
    parser.add_argument("--seeds", type=int, default=3, help="batches of each judge's misbehaviour")
    parser.add_argument("--kills", type=int, default=100, help="kills, over all stages")
    parser.add_argument("--jobs", type=int, default=1, help="trials of kills at once")
    parser.add_argument("--steps", type=int, default=5_000, help="steps of the long run")
    parser.add_argument("--minutes", type=float, default=math.inf, help="start no trial of kills after these")
    parser.add_argument("--folder", type=Path, help="keep the runs of failed kills and the long run there")
    parser.add_argument("--only", choices=CAMPAIGNS, action="append", help="this campaign alone; repeatable")
    options = parser.parse_args()
    chosen, seed = options.only or CAMPAIGNS, options.seed
    parts = parts_of(options.out.read_text(encoding="utf-8")) if options.out is not None and options.out.is_file() else {}
    failed = False
    if "input" in chosen:
        mutations = run(options.count, seed)
        parts["input"] = page(mutations, seed)
        failed |= bool(mutations.failures) or peak_gib() > LARGEST_GIB
    if "words" in chosen:
        words = run_words(options.words, seed)
        parts["words"] = section(words, seed)
        failed |= bool(words.failures)
    if "judges" in chosen:
        logging.disable(logging.CRITICAL)
        judged, budgets = run_judges(options.seeds), run_budgets()
        judged.counts += budgets.counts
        judged.failures += budgets.failures
        parts["judges"] = judges_section(judged, options.seeds)
        failed |= bool(judged.failures)
    if "kills" in chosen:
        with tempfile.TemporaryDirectory() as made:

            def tell(result: KillsResult) -> None:
                # A campaign of hours may be stopped, and what it has shown stays.
                parts["kills"] = kills_section(result, options.kills, seed, options.jobs)
                write_page(options.out, parts)

            folder = options.folder or Path(made)
            killed = run_kills(options.kills, seed, folder, minutes=options.minutes, jobs=options.jobs, tell=tell)
        failed |= bool(killed.failures)
    if "cluster" in chosen:
        with tempfile.TemporaryDirectory() as made:
            cluster = run_cluster((options.folder or Path(made)).resolve())
        parts["cluster"] = cluster_section(cluster)
        failed |= bool(cluster.failures)
    if "long" in chosen:
        with tempfile.TemporaryDirectory() as made:
            lasted = run_long(options.steps, (options.folder or Path(made)).resolve())
        parts["long"] = long_section(lasted, options.steps)
        failed |= bool(lasted.failures)
    print(write_page(options.out, parts))
    sys.exit(1 if failed else 0)


if __name__ == "__main__":
    main()
