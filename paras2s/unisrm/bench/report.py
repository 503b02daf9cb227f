"""The report of UniSRM-Bench: every figure with its interval, its numbers and its controls, the paper's beside ours."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from importlib import resources
from typing import Any

import yaml

from paras2s.statistics.intervals import Share
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
    """The paper's figures."""
    found: Json = yaml.safe_load(resources.files("paras2s.unisrm.bench").joinpath("published.yaml").read_text())
    return found


def bench_report(data: BenchData, results: Sequence[JudgeResult], limit: int | None = None) -> Json:
    """All figures as plain JSON; a figure that is absent has its reason as `absent`."""
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
        "judges": {one.name: _judge(one, items) for one in results},
        "published": load_published(),
    }


def figure_json(figure: Figure) -> Json:
    """A figure with its interval and numbers, or the reason why there is none."""
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
    found: Json = {
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
        return found | {"pcc": pcc.pop("own"), "pcc_controls": {key: one for key, one in pcc.items() if key != "swapped"}}
    return found | {"order_consistency": figure_json(order_consistency(items, own, rows["swapped"]))}


# As text.


def markdown(report: Json) -> str:
    """The tables."""
    lines = ["# UniSRM-Bench", "", f"Data: {report['data']} ({report['digest']}), split {report['split']}.", ""]
    for column in COLUMNS:
        lines += _main_table(report, column)
    for column in COLUMNS:
        lines += _dimension_table(report, column)
    return "\n".join([*lines, *_parity(report), *_groundedness(report), *_notes()]) + "\n"


def _main_table(report: Json, column: Column) -> list[str]:
    """Each judge's figure beside its controls, then the paper's."""
    if not report["items"][column]:
        # Few data sets have a column of Table 7: one that has none of it says nothing.
        return [] if column in CROSS_DATASET else [f"## {column}", "", "The data has no item of it.", ""]
    rating = column in RATINGS
    head = ["judge", "ACC %"] + (["PCC"] if rating else []) + ["majority", "text only", "clips shuffled"]
    head += (["PCC text only", "PCC shuffled"] if rating else ["swapped", "same in both orders"]) + ["sound", "parsed", "n"]
    lines = [f"## {column}", "", *_header(head)]
    for name, judge in report["judges"].items():
        found = judge["columns"][column]
        if "absent" in found:
            lines.append(_line([name, f"absent: {found['absent']}", *[""] * (len(head) - 2)]))
            continue
        controls, acc = found["controls"], found["acc"]
        cells = [name, percent(acc), *([number(found["pcc"])] if rating else []), percent(report["majority"][column])]
        cells += [control(controls["text_only"]), control(controls["shuffled"])]
        if rating:
            cells += [number(found["pcc_controls"]["text_only"]), number(found["pcc_controls"]["shuffled"])]
        else:
            cells += [control(controls["swapped"]), percent(found["order_consistency"])]
        count = f"{acc['n']} of {acc['n_asked']}" if "n" in acc else f"0 of {report['items'][column]}"
        lines.append(_line([*cells, _sound(found["sound"]), percent(found["parsed"]), count]))
    pcc = f"{column}_pcc"
    for name, figures in report["published"]["table_7" if column in CROSS_DATASET else "table_1"].items():
        if column in figures or pcc in figures:
            printed = [f"{figures[column]:.2f}" if column in figures else ""]
            printed += [f"{figures[pcc]:.3f}" if pcc in figures else ""] if rating else []
            lines.append(_line([f"{name} (paper)", *printed, *[""] * (len(head) - 1 - len(printed))]))
    return [*lines, ""]


def _dimension_table(report: Json, column: Column) -> list[str]:
    if column in CROSS_DATASET:
        return []
    keys = TASKS["T3" if column.startswith("T3") else column].keys  # type: ignore[index]
    rating = column in RATINGS
    show = number if rating else percent
    lines = []
    for name, judge in report["judges"].items():
        found = judge["columns"][column].get("dimensions", {})
        if any("value" in figure for figure in found.values()):
            lines.append(_line([name, *(show(found[key]) for key in keys)]))
    if not lines:
        return []
    printed = report["published"]["dimensions"][column]
    paper = [f"{printed[key]:.3f}" if rating else f"{printed[key]:.2f}" for key in keys]
    title = f"## {column} by dimension ({'PCC' if rating else 'ACC %'})"
    return [title, "", *_header(["judge", *keys]), *lines, _line(["UniSRM (paper)", *paper]), ""]


def _parity(report: Json) -> list[str]:
    """Lists the inputs that each judge gets (Table 12)."""
    lines = ["## What each judge gets", "", *_header(["judge", *TASKS])]
    for name, judge in report["judges"].items():
        lines.append(_line([name, *(judge["inputs"].get(task, "absent") for task in TASKS)]))
    return [*lines, ""]


def _groundedness(report: Json) -> list[str]:
    rows = {name: judge["groundedness"] for name, judge in report["judges"].items() if judge["groundedness"]}
    if not rows:
        return []
    lines = ["## Evidence groundedness (0 to 2, by an LLM)", "", *_header(["judge", *TASKS])]
    lines += [
        _line([name, *(number(found[task], 2) if task in found else "" for task in TASKS)]) for name, found in rows.items()
    ]
    printed = report["published"]["groundedness"]
    paper = [f"{printed[key]:.2f}" if (key := "T3-en" if task == "T3" else task) in printed else "" for task in TASKS]
    return [*lines, _line(["UniSRM (paper)", *paper]), ""]


def _notes() -> list[str]:
    return [
        "Intervals: 95 %, bootstrap over texts. A tie is half right. Swapped: the candidates exchanged, the verdict turned "
        "back. Clips shuffled: another item's clips. Text only: silence. Deaf: not better with the item's own clips than with "
        "another's (the interval of the gain reaches 0). The paper's figures are of other data: no comparison of models.",
    ]


def _sound(test: Json) -> str:
    gain, unit = test["gain"], test["measure"]
    if "absent" in gain:
        return f"not tested: {gain['absent']}"
    return f"{test['verdict']} ({percent(gain) if unit == 'ACC' else number(gain)} {unit})"


def percent(figure: Json) -> str:
    """A share in per cent with its interval, or why there is none."""
    return _shown(figure, 100.0, 1)


def control(figure: Json) -> str:
    """A control's share in per cent, and of how many replies it is where others gave no verdict: 100 % may be 3 of 240."""
    partial = "absent" not in figure and figure["n"] < figure["n_asked"]
    return f"{percent(figure)}, {figure['n']} of {figure['n_asked']}" if partial else percent(figure)


def number(figure: Json, digits: int = 3) -> str:
    """A figure as it is with its interval, or why there is none."""
    return _shown(figure, 1.0, digits)


def _shown(figure: Json, scale: float, digits: int) -> str:
    if "absent" in figure:
        return f"none: {figure['absent']}"
    share = Share(**figure)
    if share.value is None:
        return "none"
    ends = (
        "" if share.low is None or share.high is None else f" [{scale * share.low:.{digits}f}, {scale * share.high:.{digits}f}]"
    )
    return f"{scale * share.value:.{digits}f}{ends}"


def _header(cells: Sequence[str]) -> list[str]:
    return [_line(cells), _line(["---"] * len(cells))]


def _line(cells: Sequence[str]) -> str:
    return "| " + " | ".join(cell.replace("|", "/").replace("\n", " ") for cell in cells) + " |"
