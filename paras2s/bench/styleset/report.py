"""The report of `bench styleset`: every table as JSON, and as Markdown."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from itertools import product
from typing import Any

from paras2s.bench.styleset.data import ELEMENTS, FollowingItem
from paras2s.bench.styleset.metrics import (
    CHANGES,
    SD_TEXT,
    TITLES,
    HumanRow,
    ScoreSummary,
    StyleRow,
    element_means,
    sweep,
    table_1,
    table_2,
)
from paras2s.utils.tables import Table, escape_markdown, number_text, with_error


def unscored_reasons(rows: Sequence[StyleRow]) -> list[dict[str, Any]]:
    """Return the reasons why outputs have no score, counted by judge and system."""
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
    """Return the full report as JSON values; `made` describes the systems' outputs, `stopped` says why not all was judged."""
    rated = {(rating.task, rating.system, rating.item) for rating in ratings}
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
    return asdict(value) if isinstance(value, ScoreSummary) else {key: _plain(entry) for key, entry in value.items()}


def markdown(report: Mapping[str, Any]) -> str:
    """Return every table as Markdown."""
    parts = ["# StyleSet", f"Mean ± SD over items; SD: {report['sd']}. Where fewer are scored: (n of N)."]
    if report["stopped"]:
        parts.append(f"**Stopped before its end**: {escape_markdown(report['stopped'])}")
    return "\n\n".join([*parts, *(table.markdown(heading=2 if table.title else 0) for table in tables_of(report))]) + "\n"


def tables_of(report: Mapping[str, Any]) -> Iterator[Table]:
    """Yield every table of the report."""
    for task, systems in report["table_1"].items():
        judges = list(dict.fromkeys(name for cells in systems.values() for name in cells))
        rows = [(name, *(_cell(cells.get(judge)) for judge in judges)) for name, cells in systems.items()]
        yield Table(("system", *judges), rows, TITLES[task])
    if any(agreement["pairs"] for agreement in report["table_2"].values()):
        yield from _agreement(report["table_2"], report["not_correlated"])
    if report["elements"]:
        pairs = [(system, judge) for system, judges in report["elements"].items() for judge in judges]
        rows = []
        for element in (*ELEMENTS, CHANGES):
            cells = [report["elements"][system][judge][element] for system, judge in pairs]
            rows.append((element, *(f"{number_text(cell['mean'], none='none')} ({cell['n_scored']})" for cell in cells)))
        yield Table(("element", *(f"{system}, by {judge}" for system, judge in pairs)), rows, "Style elements: mean (n)")
    if report["sweep"]:
        rows = list(_sweep(report["sweep"]))
        yield Table(("judge", "T", "task", "r", "systems"), rows, "Temperatures: the same outputs, judged at each")
    if report["unscored"]:
        columns = ("task", "system", "judge", "count", "reason")
        yield Table(columns, [[reason[key] for key in columns] for reason in report["unscored"]], "Not scored")
    if report["outputs"]:
        yield _outputs(report["outputs"])


def _agreement(tables: Mapping[str, Any], not_correlated: Sequence[str]) -> Iterator[Table]:
    averages = {"human - human": [table["human_human"] for table in tables.values()]}
    for judge in dict.fromkeys(name for table in tables.values() for name in table["judge_human"]):
        averages[f"human - {judge}"] = [table["judge_human"].get(judge) for table in tables.values()]
    averages["judge - judge"] = [table["judge_judge"] for table in tables.values()]
    rows = [(name, *map(_average, row)) for name, row in averages.items()]
    notes = [f"Not among the outputs correlated: {', '.join(not_correlated)}."] if not_correlated else []
    shown = [row for row in rows if any(row[1:])]
    yield Table(("", *(TITLES[task] for task in tables)), shown, "Pearson's r between raters", notes)
    pairs = []
    for task, table in tables.items():
        for pair in table["pairs"]:
            r = number_text(pair["r"], 3, none="none") + (f" ({pair['why_none']})" if pair["why_none"] else "")
            pairs.append((task, f"{pair['first']} - {pair['second']}", r, pair["n"]))
    yield Table(("task", "raters", "r", "n"), pairs)


def _sweep(judges: Mapping[str, Any]) -> Iterator[tuple[str, ...]]:
    for (judge, temperatures), task in product(judges.items(), TITLES):
        for temperature, tasks in temperatures.items():
            if task in tasks:
                systems = "; ".join(f"{name} {_cell(cell)}" for name, cell in tasks[task]["systems"].items())
                yield judge, temperature, task, _average(tasks[task]["r_with_people"]), systems


def _outputs(systems: Mapping[str, Any]) -> Table:
    columns = ("outputs", "to_judge", "ended_early", "turns", "short_minutes", "shown_in_part", "cut")
    rows = [
        (name, task, *("" if counts[key] is None else counts[key] for key in columns))
        for name, tasks in systems.items()
        for task, counts in tasks.items()
    ]
    return Table(("system", "task", *(column.replace("_", " ") for column in columns)), rows, "Outputs")


def _cell(score: Mapping[str, Any] | None) -> str:
    if score is None:
        return ""
    part = "" if score["n_scored"] == score["n_asked"] else f" ({score['n_scored']} of {score['n_asked']})"
    return ("none" if score["mean"] is None else with_error(score["mean"], score["sd"])) + part


def _average(r: Mapping[str, Any] | None) -> str:
    if r is None or not r["n_pairs"]:
        return ""
    return f"{number_text(r['r'], 3, none='none')} ({r['n_known']} of {r['n_pairs']} pairs)"
