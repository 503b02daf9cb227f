"""The report of UniSRM-Bench: every figure with its interval, its numbers and its controls, the paper's beside ours."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from importlib import resources
from typing import Any

import yaml

from paras2s.types import Absent
from paras2s.unisrm.bench.data import COLUMNS, CONDITIONS, CROSS_DATASET, RATINGS, BenchData, Column, column_of
from paras2s.unisrm.bench.metrics import (
    Figure,
    accuracy,
    by_dimension,
    majority,
    order_consistency,
    overall_correlation,
    parsed_share,
    sound_test,
)
from paras2s.unisrm.bench.results import BenchRow
from paras2s.unisrm.reward.tasks import TASKS, Item, TaskId
from paras2s.utils.tables import Table, with_interval

Json = dict[str, Any]


@dataclass(frozen=True)
class JudgeResult:
    """A judge's rows, what it gets and what it cannot do, and the groundedness of its replies by task."""

    name: str
    inputs: Mapping[TaskId, str]
    unfit: Mapping[TaskId, str]
    rows: Sequence[BenchRow]
    grounded: Mapping[str, Figure]


def load_published() -> Json:
    """Return the paper's figures."""
    published: Json = yaml.safe_load(
        resources.files("paras2s.unisrm.bench").joinpath("published.yaml").read_text(encoding="utf-8")
    )
    return published


def bench_report(data: BenchData, results: Sequence[JudgeResult], limit: int | None = None) -> Json:
    """Return all figures as plain JSON; a figure that is absent has its reason as `absent`."""
    items: dict[Column, list[Item]] = {column: [] for column in COLUMNS}
    for task_id in TASKS:
        for item in data.of_task(task_id)[:limit]:
            items[column_of(item)].append(item)
    return {
        "data": str(data.folder),
        "digest": data.digest,
        "split": data.split,
        "items": {column: len(own) for column, own in items.items()},
        "majority": {column: figure_json(majority(own)) for column, own in items.items()},
        "judges": {result.name: _judge(result, items) for result in results},
        "published": load_published(),
    }


def figure_json(figure: Figure) -> Json:
    """Return a figure with its interval and numbers, or the reason why there is none."""
    return {"absent": figure.reason} if isinstance(figure, Absent) else asdict(figure)


def _judge(result: JudgeResult, items: Mapping[Column, Sequence[Item]]) -> Json:
    columns = {column: _column(result, column, own) for column, own in items.items()}
    grounded = {task: figure_json(figure) for task, figure in result.grounded.items()}
    return {"columns": columns, "inputs": dict(result.inputs), "groundedness": grounded}


def _column(result: JudgeResult, column: Column, items: Sequence[Item]) -> Json:
    if not items:
        return {"absent": "the data has no item of it"}
    if why := result.unfit.get(items[0].task):
        return {"absent": why}
    rows = {condition: {row.item: row for row in result.rows if row.condition == condition} for condition in CONDITIONS}
    own, rating = rows["own"], column in RATINGS
    test = sound_test(items, own, rows["shuffled"])
    figures: Json = {
        "acc": figure_json(accuracy(items, own)),
        "controls": {
            condition: figure_json(accuracy(items, rows[condition]))
            for condition in CONDITIONS if condition != "own" and not (rating and condition == "swapped")
        },
        "sound": {**asdict(test), "gain": figure_json(test.gain)},
        "parsed": figure_json(parsed_share(items, own)),
        "malformed": dict(Counter(row.malformed for row in own.values() if row.malformed)),
        "ties": sum(row.better == "tie" for row in own.values() if row.item in {item.id for item in items}),
        "dimensions": {key: figure_json(figure) for key, figure in by_dimension(items, own).items()},
    }  # fmt: skip
    if rating:
        pcc = {condition: figure_json(overall_correlation(items, rows[condition])) for condition in CONDITIONS}
        return figures | {"pcc": pcc.pop("own"), "pcc_controls": {key: value for key, value in pcc.items() if key != "swapped"}}
    return figures | {"order_consistency": figure_json(order_consistency(items, own, rows["swapped"]))}


# As text.


def markdown(report: Json) -> str:
    """Return the tables as Markdown."""
    parts = ["# UniSRM-Bench", f"Data: {report['data']} ({report['digest']}), split {report['split']}."]
    return "\n\n".join([*parts, *(table.markdown(heading=2) for table in tables_of(report)), NOTES]) + "\n"


def tables_of(report: Json) -> Iterator[Table]:
    """Yield every table that has a row."""
    for column in COLUMNS:
        # Few data sets have a column of Table 7.
        if report["items"][column]:
            yield _main_table(report, column)
        elif column not in CROSS_DATASET:
            yield Table((), [], column, ["The data has no item of it."])
    for column in COLUMNS:
        if column not in CROSS_DATASET and (table := _dimension_table(report, column)).rows:
            yield table
    judges = report["judges"]
    inputs = [(name, *(judge["inputs"].get(task, "absent") for task in TASKS)) for name, judge in judges.items()]
    yield Table(("judge", *TASKS), inputs, "What each judge gets")
    grounded = {name: judge["groundedness"] for name, judge in judges.items() if judge["groundedness"]}
    if grounded:
        rows = [(name, *(number(own[task], 2) if task in own else "" for task in TASKS)) for name, own in grounded.items()]
        printed = report["published"]["groundedness"]
        paper = [f"{printed[key]:.2f}" if (key := "T3-en" if task == "T3" else task) in printed else "" for task in TASKS]
        rows.append(("UniSRM (paper)", *paper))
        yield Table(("judge", *TASKS), rows, "Evidence groundedness (0 to 2, by an LLM)")


def _main_table(report: Json, column: Column) -> Table:
    """Return each judge's figure beside its controls, then the paper's."""
    rating = column in RATINGS
    head = ["judge", "ACC %"] + (["PCC"] if rating else []) + ["majority", "text only", "clips shuffled"]
    head += (["PCC text only", "PCC shuffled"] if rating else ["swapped", "same in both orders"]) + ["sound", "parsed", "n"]
    rows: list[list[str]] = []
    for name, judge in report["judges"].items():
        own = judge["columns"][column]
        if "absent" in own:
            rows.append([name, f"absent: {own['absent']}"])
            continue
        controls, acc = own["controls"], own["acc"]
        cells = [name, percent(acc), *([number(own["pcc"])] if rating else []), percent(report["majority"][column])]
        cells += [control(controls["text_only"]), control(controls["shuffled"])]
        if rating:
            cells += [number(own["pcc_controls"]["text_only"]), number(own["pcc_controls"]["shuffled"])]
        else:
            cells += [control(controls["swapped"]), percent(own["order_consistency"])]
        count = f"{acc['n']} of {acc['n_asked']}" if "n" in acc else f"0 of {report['items'][column]}"
        rows.append([*cells, _sound(own["sound"]), percent(own["parsed"]), count])
    pcc = f"{column}_pcc"
    for name, figures in report["published"]["table_7" if column in CROSS_DATASET else "table_1"].items():
        if column in figures or pcc in figures:
            printed = [f"{figures[column]:.2f}" if column in figures else ""]
            printed += [f"{figures[pcc]:.3f}" if pcc in figures else ""] if rating else []
            rows.append([f"{name} (paper)", *printed])
    return Table(head, rows, column)


def _dimension_table(report: Json, column: Column) -> Table:
    """Return each judge's figures by dimension, then the paper's; without a row where no judge has one."""
    keys = TASKS["T3" if column.startswith("T3") else column].keys  # type: ignore[index]
    rating = column in RATINGS
    show = number if rating else percent
    rows = []
    for name, judge in report["judges"].items():
        own = judge["columns"][column].get("dimensions", {})
        if any("value" in figure for figure in own.values()):
            rows.append((name, *(show(own[key]) for key in keys)))
    if rows:
        printed = report["published"]["dimensions"][column]
        rows.append(("UniSRM (paper)", *(f"{printed[key]:.{3 if rating else 2}f}" for key in keys)))
    return Table(("judge", *keys), rows, f"{column} by dimension ({'PCC' if rating else 'ACC %'})")


NOTES = (
    "Intervals: 95 %, bootstrap over texts. A tie is half right. Swapped: the candidates exchanged, the verdict turned "
    "back. Clips shuffled: another item's clips. Text only: silence. Deaf: not better with the item's own clips than with "
    "another's (the interval of the gain reaches 0). The paper's figures are of other data: no comparison of models."
)


def _sound(test: Json) -> str:
    gain, unit = test["gain"], test["measure"]
    if "absent" in gain:
        return f"not tested: {gain['absent']}"
    return f"{test['verdict']} ({percent(gain) if unit == 'ACC' else number(gain)} {unit})"


def percent(figure: Json) -> str:
    """Return a share in percent with its interval, or why there is none."""
    return _shown(figure, 100.0, 1)


def control(figure: Json) -> str:
    """Return a control's share in percent, and its n where some replies gave no verdict: 100 % may be 3 of 240."""
    partial = "absent" not in figure and figure["n"] < figure["n_asked"]
    return f"{percent(figure)}, {figure['n']} of {figure['n_asked']}" if partial else percent(figure)


def number(figure: Json, digits: int = 3) -> str:
    """Return a figure with its interval, or why there is none."""
    return _shown(figure, 1.0, digits)


def _shown(figure: Json, scale: float, digits: int) -> str:
    if "absent" in figure:
        return f"none: {figure['absent']}"
    return with_interval(figure, digits, scale=scale, brackets=True, none="none")
