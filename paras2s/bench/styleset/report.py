"""The report of `bench styleset`: every table as JSON, and as Markdown."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from itertools import product
from typing import Any

from paras2s.bench.styleset.data import ELEMENTS, FollowingItem
from paras2s.bench.styleset.metrics import (
    CHANGES,
    SD_TEXT,
    TITLES,
    Cell,
    HumanRow,
    StyleRow,
    element_means,
    sweep,
    table_1,
    table_2,
)


def unscored_reasons(rows: Sequence[StyleRow]) -> list[dict[str, Any]]:
    """The reasons why outputs have no score, counted by judge and system."""
    counted = Counter((row.task, row.system, row.label, row.unscored) for row in rows if row.unscored is not None)
    return [
        {"task": task, "system": system, "judge": judge, "reason": reason, "count": count}
        for (task, system, judge, reason), count in counted.items()
    ]


def build_report(
    rows: Sequence[StyleRow],
    ratings: Sequence[HumanRow],
    items: Sequence[FollowingItem],
    left_out: Sequence[str],
    made: Mapping[str, Any],
    stopped: str | None = None,
) -> dict[str, Any]:
    """The full report as JSON values; `made` describes the systems' outputs, `stopped` says why not all was judged."""
    rated = {(one.task, one.system, one.item) for one in ratings}
    judged = {(row.task, row.system, row.item) for row in rows}
    return {
        "sd": SD_TEXT,
        "stopped": stopped,
        "table_1": _plain(table_1(rows, ratings)),
        "table_2": table_2(rows, ratings, left_out),
        "not_correlated": list(left_out),
        "elements": _plain(element_means(rows, ratings, items)),
        "sweep": sweep(rows, ratings, left_out),
        "unscored": unscored_reasons(rows),
        "only_rated": len(rated - judged),
        "only_judged": len(judged - rated) if ratings else 0,
        "outputs": dict(made),
    }


def _plain(value: Any) -> Any:
    return asdict(value) if isinstance(value, Cell) else {key: _plain(one) for key, one in value.items()}


def markdown(report: Mapping[str, Any]) -> str:
    """Every table as Markdown."""
    lines = ["# StyleSet", "", f"Mean ± SD over items; SD: {report['sd']}. Where fewer are scored: (n of N)."]
    lines += ["", f"**Stopped before its end**: {' '.join(report['stopped'].split())}"] if report["stopped"] else []
    for task, systems in report["table_1"].items():
        judges = list(dict.fromkeys(name for cells in systems.values() for name in cells))
        lines += ["", f"## {TITLES[task]}", "", *_table(["system", *judges])]
        lines += [_line([name, *(_cell(cells.get(judge)) for judge in judges)]) for name, cells in systems.items()]
    if any(one["pairs"] for one in report["table_2"].values()):
        lines += ["", "## Pearson's r between raters", ""]
        if report["not_correlated"]:
            lines += [f"Not among the outputs correlated: {', '.join(report['not_correlated'])}.", ""]
        lines += _agreement(report["table_2"])
    if report["elements"]:
        pairs = [(system, judge) for system, judges in report["elements"].items() for judge in judges]
        lines += ["", "## Style elements: mean (n)", "", *_table(["element", *(f"{one}, by {other}" for one, other in pairs)])]
        for element in (*ELEMENTS, CHANGES):
            cells = [report["elements"][system][judge][element] for system, judge in pairs]
            lines.append(_line([element, *(f"{_number(one['mean'], 2)} ({one['n_scored']})" for one in cells)]))
    lines += _sweep(report["sweep"]) if report["sweep"] else []
    lines += _unscored(report["unscored"])
    if report["outputs"]:
        lines += ["", "## Outputs", "", *_outputs(report["outputs"])]
    return "\n".join(lines) + "\n"


def _agreement(tables: Mapping[str, Any]) -> list[str]:
    lines = _table(["", *(TITLES[task] for task in tables)])
    averages = {"human - human": [one["human_human"] for one in tables.values()]}
    for judge in dict.fromkeys(name for one in tables.values() for name in one["judge_human"]):
        averages[f"human - {judge}"] = [one["judge_human"].get(judge) for one in tables.values()]
    averages["judge - judge"] = [one["judge_judge"] for one in tables.values()]
    for name, row in averages.items():
        cells = [_average(one) for one in row]
        lines += [_line([name, *cells])] if any(cells) else []
    known = [(task, pair) for task, one in tables.items() for pair in one["pairs"]]
    lines += ["", *_table(["task", "raters", "r", "n"])]
    for task, pair in known:
        shown = _number(pair["r"], 3) + (f" ({pair['why_none']})" if pair["why_none"] else "")
        lines.append(_line([task, f"{pair['first']} - {pair['second']}", shown, pair["n"]]))
    return lines


def _sweep(judges: Mapping[str, Any]) -> list[str]:
    lines = ["", "## Temperatures: the same outputs, judged at each", "", *_table(["judge", "T", "task", "r", "systems"])]
    for (judge, temperatures), task in product(judges.items(), TITLES):
        for temperature, tasks in temperatures.items():
            if task in tasks:
                one = tasks[task]
                systems = "; ".join(f"{name} {_cell(cell)}" for name, cell in one["systems"].items())
                lines.append(_line([judge, temperature, task, _average(one["r_with_people"]), systems]))
    return lines


def _unscored(reasons: Sequence[Mapping[str, Any]]) -> list[str]:
    if not reasons:
        return []
    columns = ("task", "system", "judge", "count", "reason")
    return ["", "## Not scored", "", *_table(list(columns)), *(_line([one[key] for key in columns]) for one in reasons)]


def _outputs(systems: Mapping[str, Any]) -> list[str]:
    columns = ("outputs", "to_judge", "ended_early", "turns", "short_minutes", "shown_in_part", "cut")
    lines = _table(["system", "task", *(column.replace("_", " ") for column in columns)])
    return lines + [
        _line([name, task, *("" if one[key] is None else one[key] for key in columns)])
        for name, tasks in systems.items()
        for task, one in tasks.items()
    ]


def _table(head: Sequence[str]) -> list[str]:
    return [_line(head), "|---" * len(head) + "|"]


def _line(cells: Sequence[Any]) -> str:
    return "| " + " | ".join(" ".join(str(cell).replace("|", "\\|").split()) for cell in cells) + " |"


def _cell(one: Mapping[str, Any] | None) -> str:
    if one is None:
        return ""
    part = "" if one["n_scored"] == one["n_asked"] else f" ({one['n_scored']} of {one['n_asked']})"
    return _number(one["mean"], 2) + ("" if one["sd"] is None else f" ± {one['sd']:.2f}") + part


def _average(one: Mapping[str, Any] | None) -> str:
    if one is None or not one["n_pairs"]:
        return ""
    return f"{_number(one['r'], 3)} ({one['n_known']} of {one['n_pairs']} pairs)"


def _number(value: float | None, digits: int) -> str:
    return "none" if value is None else f"{value:.{digits}f}"
