"""The report of a suite's verdicts: one table a judge, how judges agree, and everything that has no score, counted."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

from paras2s.bench.suites.agreement import by_position, compare_judges
from paras2s.bench.suites.base import Suite, SuiteRow
from paras2s.bench.suites.judging import RULES
from paras2s.utils.tables import Table, number_text, percent, with_interval

# More columns than these do not fit a terminal: the table is turned.
WIDEST = 8
# Reasons that a page shows; the file of verdicts has all.
SHOWN = 20


def by_judge(rows: Sequence[SuiteRow]) -> dict[str, list[SuiteRow]]:
    """Return the rows of every judge, with those that rules made; judges of different measures are one row of the table."""
    measures: dict[str, set[str]] = {}
    for row in rows:
        measures.setdefault(row.label, set()).add(row.metric)
    rules = measures.pop(RULES, set())
    groups: list[tuple[list[str], set[str]]] = []
    for label, metrics in measures.items():
        free = next((group for group in groups if not group[1] & metrics), None)
        if free is None:
            groups.append(([label], set(metrics)))
        else:
            free[0].append(label)
            free[1].update(metrics)
    if not groups and rules:
        groups = [([RULES], rules)]
    return {", ".join(labels): [row for row in rows if row.label in (*labels, RULES)] for labels, _ in groups}


def build_report(suite: Suite, rows: Sequence[SuiteRow], problems: Sequence[str], stopped: str | None) -> dict[str, Any]:
    """Return the report as JSON values; `stopped` says why not everything was judged."""
    judged = by_judge(rows)
    tables = {judge: suite.table(of_judge) for judge, of_judge in judged.items()}
    reasons = Counter((row.label, row.system, row.metric, row.unscored) for row in rows if row.unscored is not None)
    positions = {judge: by_position(of_judge) for judge, of_judge in judged.items()}
    return {
        "suite": suite.name,
        "stopped": stopped,
        "tables": {
            judge: {system: {name: asdict(figure) for name, figure in columns.items()} for system, columns in table.items()}
            for judge, table in tables.items()
        },
        "agreement": compare_judges(judged, tables),
        "positions": {
            judge: {name: asdict(figure) for name, figure in figures.items()} for judge, figures in positions.items() if figures
        },
        "unscored": [
            {"judge": judge, "system": system, "metric": metric, "reason": reason, "count": count}
            for (judge, system, metric, reason), count in reasons.most_common()
        ],
        "problems": list(problems),
    }


def tables_of(suite: Suite, report: Mapping[str, Any]) -> list[Table]:
    """Return the tables of a report, for a terminal or a page."""
    tables = [_scores(suite, judge, systems) for judge, systems in report["tables"].items()]
    if agreement := [_agreement(compared) for compared in report["agreement"] if compared["measures"]]:
        tables += agreement
    notes = [_position(judge, figures) for judge, figures in report["positions"].items()]
    notes += [
        f"{entry['count']} without a score: {entry['system']}, {entry['metric']}: {entry['reason']}"
        for entry in report["unscored"][:SHOWN]
    ]
    hidden = sum(entry["count"] for entry in report["unscored"][SHOWN:])
    notes += [f"{hidden} more without a score, for other reasons"] if hidden else []
    notes += [f"left out: {problem}" for problem in report["problems"][:SHOWN]]
    notes += [f"{len(report['problems']) - SHOWN} more problems of the files"] if len(report["problems"]) > SHOWN else []
    notes += [f"stopped: {report['stopped']}"] if report["stopped"] else []
    return [*tables, Table((), (), notes=notes)] if notes else tables


def markdown(suite: Suite, report: Mapping[str, Any]) -> str:
    """Return the report as Markdown."""
    parts = [table.markdown(2 if table.title else 0) for table in tables_of(suite, report)]
    return f"# {suite.title}\n\n" + "\n\n".join(parts) + "\n"


def _scores(suite: Suite, judge: str, systems: Mapping[str, Any]) -> Table:
    columns = list(dict.fromkeys(name for figures in systems.values() for name in figures))
    cells = {(system, name): cell(figures.get(name)) for system, figures in systems.items() for name in columns}
    title = f"{suite.title}, judged by {judge}"
    if len(columns) > WIDEST:
        return Table(("", *systems), [(name, *(cells[system, name] for system in systems)) for name in columns], title)
    return Table(("system", *columns), [(system, *(cells[system, name] for name in columns)) for system in systems], title)


def cell(figure: Mapping[str, Any] | None) -> str | None:
    """Return a figure with its interval, and the number scored where not everything is."""
    if figure is None:
        return None
    counted = f", {figure['n']}/{figure['n_asked']}" if figure["n"] < figure["n_asked"] else ""
    return with_interval(figure) + counted


def _agreement(compared: Mapping[str, Any]) -> Table:
    first, second = compared["judges"]
    rows = [
        (metric, f"{entry['statistic']} {with_interval(entry)}", entry["n"]) for metric, entry in compared["measures"].items()
    ]
    swaps = [f"{a} is before {b} by {first}, behind it by {second}" for a, b in compared["change_places"]]
    return Table(("measure", "agreement", "n"), rows, f"{first} and {second}", swaps or ["no two systems change places"])


def _position(judge: str, figures: Mapping[str, Any]) -> str:
    first, same = figures["first_wins"], figures["consistent"]
    parts = [f"the clip that comes first wins {percent(first['value'])} of {first['n']} decided"] if first["n"] else []
    parts += [f"both orders agree on {percent(same['value'])} of {number_text(same['n'], 0)} pairs"] if same["n"] else []
    return f"{judge}: {'; '.join(parts)}"
