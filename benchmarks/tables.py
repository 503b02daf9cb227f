"""The tables of the documents, made of figures.json: no figure in them is typed by hand."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from figures import REPOSITORY

from paras2s.utils.generated import put_between

# A generated part of a document stands between two comments with its name.
BEGIN, END = "<!-- {name}: begin; written by benchmarks/all.py -->", "<!-- {name}: end -->"
SPEED, GROWTH = REPOSITORY / "benchmarks" / "README.md", REPOSITORY / "docs" / "benchmarks.md"
FIELDS = REPOSITORY / "docs" / "experiments" / "judges.md"
# Benchmarks with a table of their own, not among the figures of speed.
APART = ("growth", "blueprint_fields")
# The least difference of a field that is shown in digits.
LEAST = 0.001
Runs = Mapping[str, Mapping[str, Any]]


def rendered(runs: Runs, titles: Mapping[str, str]) -> dict[Path, str]:
    """Returns every document with generated parts, as it should read; `runs` by benchmark and number of busy processes."""
    parts = {
        (SPEED, "figures"): figures_part(runs, titles),
        (SPEED, "busy"): busy_part(runs, titles),
        (GROWTH, "growth"): growth_part(runs.get("growth", {}).get("0")),
        (FIELDS, "blueprint_fields"): fields_part(runs.get("blueprint_fields", {}).get("0")),
    }
    texts = {path: path.read_text() for path, _ in parts}
    for (path, name), body in parts.items():
        texts[path] = put_between(texts[path], BEGIN.format(name=name), END.format(name=name), body)
    return texts


def number(value: float) -> str:
    """A value with three or four digits that say something."""
    size = abs(value)
    if size == 0 or size >= 100:
        return f"{value:,.0f}"
    digits = 1 if size >= 10 else 2 if size >= 1 else 3
    return f"{value:.{digits}f}" if size >= 0.001 else f"{value:.1e}"


def spread(values: Sequence[float]) -> str:
    """Median, and the range where it is wider than a point."""
    middle, low, high = statistics.median(values), min(values), max(values)
    return number(middle) if number(low) == number(high) else f"{number(middle)} ({number(low)} to {number(high)})"


def ratio_of(figure: Mapping[str, Any]) -> float | None:
    """How many times better ours is, by medians."""
    if not figure.get("other"):
        return None
    ours, other = statistics.median(figure["ours"]), statistics.median(figure["other"])
    above, below = (ours, other) if figure.get("more_is_better") else (other, ours)
    return above / below if below else None


def aim_of(figure: Mapping[str, Any]) -> str:
    """The aim, and whether it is met."""
    middle, ratio = statistics.median(figure["ours"]), ratio_of(figure)
    aims = (
        ("ratio at least", figure.get("least_ratio"), lambda aim: ratio is not None and ratio >= aim),
        ("at most", figure.get("at_most"), lambda aim: middle <= aim),
        ("at least", figure.get("at_least"), lambda aim: middle >= aim),
    )
    shown = [f"{name} {number(aim)}: {'met' if is_met(aim) else 'missed'}" for name, aim, is_met in aims if aim is not None]
    return "; ".join(shown)


def figures_part(runs: Runs, titles: Mapping[str, str]) -> str:
    """A table for each benchmark on the quiet machine, below what made it and where."""
    quiet = {name: runs[name]["0"] for name in titles if name not in APART and "0" in runs.get(name, {})}
    places: dict[str, list[str]] = {}
    for name, run in quiet.items():
        versions = ", ".join(f"{package} {version}" for package, version in run["taken"]["versions"].items())
        places.setdefault(f"{run['taken']['machine']}; {versions}", []).append(name)
    lines = [f"Taken on {place}" + ("." if len(places) == 1 else f" ({', '.join(names)}).") for place, names in places.items()]
    for name, run in quiet.items():
        load = "load average not noted"
        if "load_average" in run:
            load = "load average {:.1f} before and {:.1f} after".format(*run["load_average"])
        lines += ["", f"**{titles[name]}.** `{run['command']}`, commit {run['taken']['commit']}, {load}."]
        lines += ["", "| figure | ours | other | ratio | aim | n |", "|---|---|---|---|---|---|"]
        for figure in run["figures"]:
            ratio = ratio_of(figure)
            other = f"{spread(figure['other'])}, {figure['other_name']}" if figure.get("other") else ""
            cells = [
                f"{figure['name']}, {figure['unit']}" if figure.get("unit") else figure["name"],
                spread(figure["ours"]),
                other,
            ]
            cells += ["" if ratio is None else f"{ratio:.2f}", aim_of(figure), str(len(figure["ours"]))]
            lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines)


def busy_part(runs: Runs, titles: Mapping[str, str]) -> str:
    """What is left of each figure beside one and two processes of lowest priority, where all are of one package."""
    lines = ["| figure | quiet | beside one | beside two | left beside one, two |", "|---|---|---|---|---|"]
    for name in titles:
        taken = [runs.get(name, {}).get(count) for count in ("0", "1", "2")]
        if any(run is None for run in taken):
            continue
        rows = [{figure["name"]: figure for figure in run["figures"]} for run in taken if run is not None]
        shown: list[Any] = []
        for figure_name, figure in rows[0].items():
            values = [row[figure_name]["ours"] for row in rows if figure_name in row]
            # Ours beside several others is one figure.
            if figure.get("unit") not in ("s", "tokens/s") or len(values) < 3 or values in shown:
                continue
            shown.append(values)
            middles = [statistics.median(one) for one in values]
            left = [one / middles[0] if figure.get("more_is_better") else middles[0] / one for one in middles[1:]]
            alike = len({run["taken"]["package"] for run in taken if run is not None}) == 1
            shares = ", ".join(f"{100 * one:.0f} %" for one in left) if alike else "not of one version"
            title = figure["unit"] if figure_name.startswith("beside ") else f"{figure_name}, {figure['unit']}"
            lines.append(f"| {name}: {title} | " + " | ".join(map(spread, values)) + f" | {shares} |")
    return "\n".join(lines) if len(lines) > 2 else "Not taken yet."


def growth_part(run: Mapping[str, Any] | None) -> str:
    """A row for each stage and what it grows with: measured, fitted exponent, exponent by arithmetic, and the bend."""
    if run is None:
        return "Not taken yet."
    lines = [f"`{run['command']}` on {run['taken']['machine']}, commit {run['taken']['commit']}.", ""]
    lines += [
        "| stage | grows with | sizes | wall s | processor s | peak MiB | exponent of s (by arithmetic) | of MiB | bend |"
    ]
    lines += ["|---|---|---|---|---|---|---|---|---|"]
    for row in run["growth"]:
        columns = [" / ".join(f"{one['size']:g}" for one in row["points"])]
        columns += [" / ".join(number(one[key]) for one in row["points"]) for key in ("wall_s", "processor_s", "peak_mib")]
        fitted = f"{row['exponent_s']:.2f} ({row['expected']})"
        cells = [row["stage"], row["variable"], *columns, fitted, f"{row['exponent_mib']:.2f}", row["bend"]]
        lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines)


def fields_part(run: Mapping[str, Any] | None) -> str:
    """A row for each field of the blueprint: how far ours is from the authors', and what could not be compared."""
    if run is None:
        return "Not taken yet."
    lines = [f"`{run['command']}`, {run['clips']} clips, commit {run['taken']['commit']}.", ""]
    lines += ["| field | median | p90 | max | largest on | n | left out |", "|---|---|---|---|---|---|---|"]
    for figure in run["figures"]:
        name, values = figure["name"], figure["ours"]
        shares = [small(float(np.quantile(values, share))) for share in (0.5, 0.9, 1.0)] if values else ["", "", ""]
        # The clip alone says nothing to a reader, what was done to it does.
        largest = run["largest"][name].rpartition(", ")[2] if values and max(values) >= LEAST else ""
        left_out = "; ".join(f"{count}: {reason}" for reason, count in run["left_out"].get(name, {}).items())
        unit = f", {figure['unit']}" if figure.get("unit") else ""
        lines.append("| " + " | ".join([name + unit, *shares, largest, str(len(values)), left_out]) + " |")
    lines += [f"| {name} | | | | | 0 | {reason} |" for name, reason in run["not_compared"].items()]
    return "\n".join(lines)


def small(value: float) -> str:
    """A difference as a reader takes it: those under a thousandth are all alike."""
    return number(value) if value >= LEAST else f"under {LEAST}"
