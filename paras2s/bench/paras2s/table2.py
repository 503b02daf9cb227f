"""ParaS2SBench's table: systems by set, with the paper's averages (Table 2), and how the sets' names divide.

The overall average is the mean over all sets, each counting once: so it is in the paper's rows, but for that of Kimi-Audio
GRPO, whose six sets average 4.347 where 4.382 is printed.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from paras2s.bench.results import AnswerRow
from paras2s.bench.stats import Counted, Estimate, contrast_metric, mean_of_means, summarise
from paras2s.data_gen.corpora import CORPORA

# What the paper found (Table 2): age, emotion, gender, sarcasm, IEMOCAP, MELD.
PAPER_SETS = ("age", "emotion", "gender", "sarcasm", "iemocap", "meld")


def table_2(systems: Mapping[str, Sequence[AnswerRow]]) -> dict[str, Any]:
    """By system: each set, synthetic, real and overall averages, contrasts told apart, word errors, all with their n."""
    table = {}
    for name, rows in systems.items():
        scores = summarise(rows)
        real = [one for category, one in scores.categories.items() if category in CORPORA]
        synthetic = [one for category, one in scores.categories.items() if category not in CORPORA]
        table[name] = {
            "sets": {category: plain(one) for category, one in scores.categories.items()},
            "synthetic": plain(_average(synthetic)),
            "real": plain(_average(real)),
            "average": plain(scores.overall),
            "contrast": plain(contrast_metric([row for row in rows if row.category not in CORPORA])),
            "word_error_rate": plain(scores.word_error_rate),
            "judges": sorted({row.judge for row in rows if row.judge}),
        }
    return table


def _average(parts: Sequence[Counted]) -> Counted:
    if not parts:
        return Counted(Estimate(None, None, 0, 0), 0)
    return Counted(mean_of_means([one.estimate for one in parts]), sum(one.n_asked for one in parts))


def plain(counted: Counted) -> dict[str, Any]:
    """As JSON."""
    estimate = counted.estimate
    return {
        "mean": estimate.mean,
        "standard_error": estimate.standard_error,
        "n_scored": estimate.n,
        "n_asked": counted.n_asked,
    }


def cell(one: Mapping[str, Any], factor: float = 1.0, digits: int = 2) -> str:
    """Mean and standard error, and n scored of n asked where some are missing; a dash where there is no mean."""
    missing = one["n_asked"] - one["n_scored"]
    note = f" ({one['n_scored']} of {one['n_asked']})" if missing else ""
    if one["mean"] is None:
        return f"-{note}"
    error = "" if one["standard_error"] is None else f" ± {factor * one['standard_error']:.{digits}f}"
    return f"{factor * one['mean']:.{digits}f}{error}{note}"


def columns(table: Mapping[str, Any]) -> list[str]:
    """The sets in the paper's order, then others."""
    there = {name for row in table.values() for name in row["sets"]}
    return [*(name for name in PAPER_SETS if name in there), *sorted(there - set(PAPER_SETS))]


def markdown(table: Mapping[str, Any]) -> str:
    """The table for a page."""
    sets = columns(table)
    real = any(name in CORPORA for name in sets)
    averages = ["synthetic", "real", "average"] if real else ["average"]
    knows = ["still knows, of 100"] if any("guard" in row for row in table.values()) else []
    # Only a judge that names the kind of an answer can say that two answers are of different kinds.
    apart = ["told apart, %"] if any(row["contrast"]["n_scored"] for row in table.values()) else []
    head = ["system", *sets, *averages, *apart, "word errors, %", *knows]
    lines = [f"| {' | '.join(head)} |", f"|{'---|' * len(head)}"]
    empty = {"mean": None, "standard_error": None, "n_scored": 0, "n_asked": 0}
    for name, row in table.items():
        cells = [*(cell(row["sets"].get(one, empty)) for one in sets), *(cell(row[one]) for one in averages)]
        cells += [cell(row["contrast"], 100, 0) for _ in apart]
        cells += [cell(row["word_error_rate"], 100, 1)]
        cells += [cell(row.get("guard", empty), 1, 1) for _ in knows]
        lines.append(f"| {name} | {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"
