"""The share of right verdicts on a suite of one characteristic, against people and a baseline, as JSON and as a table.

A tie counts as half a right answer (AudioJudge, appendix E). A pair without a verdict is left out of every figure, and counted.
Added to the paper: intervals, and the difference from the baseline with its own.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Literal

import numpy as np
from rich.console import Console

from paras2s.bench.detection.data import DetectPair, DetectRow, DetectSuite, Loaded, matched, why_missing
from paras2s.statistics.intervals import Share
from paras2s.statistics.resampling import mean_by_cluster
from paras2s.statistics.significance import mcnemar, p_equal
from paras2s.utils.tables import Styled, Table, number_text, span

RIGHT, TIED, WRONG = 1.0, 0.5, 0.0
# The paper's stars: a judge that is better than the baseline, by chance with less than this probability.
LEVELS = ((0.001, "***"), (0.01, "**"), (0.05, "*"))
Report = dict[str, Any]


def mark(row: DetectRow | None) -> float | None:
    """Return the value of a verdict: 1 right, 0.5 a tie, 0 wrong; None without one."""
    if row is None or row.label is None:
        return None
    return TIED if row.label == "tie" else RIGHT if row.label == row.truth else WRONG


def accuracy(marks: Sequence[float | None]) -> Share:
    """Mean of the marks that there are, with its 95 % interval over pairs: bootstrap, at 0 and 1 Wilson's; none of one pair."""
    return mean_by_cluster(marks)


def squared_error(pairs: Sequence[DetectPair], rows: Sequence[DetectRow | None]) -> Share | None:
    """Return mean squared error against people's mean ratings (Table 10), its interval by pairs; None without rated clips."""
    sums = [
        None
        if row is None or row.scores is None or pair.mos1 is None or pair.mos2 is None
        else (row.scores[0] - pair.mos1) ** 2 + (row.scores[1] - pair.mos2) ** 2
        for pair, row in zip(pairs, rows, strict=True)
    ]
    return mean_by_cluster(sums, size=2, is_share=False) if any(total is not None for total in sums) else None


@dataclass(frozen=True)
class Against:
    """A judge and the baseline, on the pairs that both scored: how much more often it is right, and whether by chance.

    `better` and `worse` count the pairs with a higher and a lower mark than the baseline's. Where neither tied, `test` is
    McNemar's, else each pair's difference gets a random sign; two-sided. Without a pair that both scored there is no test, and
    `why_none` says so.
    """

    difference: Share
    better: int
    worse: int
    p_value: float | None
    test: Literal["McNemar, exact", "sign flips"] | None
    stars: str
    why_none: str | None = None


def against(marks: Sequence[float | None], baseline: Sequence[float | None]) -> Against:
    """Return both judges' marks of the same pairs, in the same order."""
    pairs = list(zip(marks, baseline, strict=True))
    gains = [None if own is None or base is None else own - base for own, base in pairs]
    difference = mean_by_cluster(gains, is_share=False)
    known = [gain for gain in gains if gain is not None]
    better, worse = sum(gain > 0 for gain in known), sum(gain < 0 for gain in known)
    if not known:
        return Against(difference, 0, 0, None, None, "", "no pair has a verdict of both judges")
    if any(TIED in pair and None not in pair for pair in pairs):
        p_value = p_equal(np.rint(2 * np.array(known)).astype(int))
        return Against(difference, better, worse, p_value, "sign flips", stars(p_value, difference.value))
    p_value = mcnemar(better, worse, exact=True)
    return Against(difference, better, worse, p_value, "McNemar, exact", stars(p_value, difference.value))


def stars(p_value: float, difference: float | None) -> str:
    """Return the paper's stars, only for a judge above the baseline."""
    if difference is None or difference <= 0:
        return ""
    return next((sign for level, sign in LEVELS if p_value < level), "")


# The report.


def detection_report(suite: DetectSuite, loaded: Loaded, judges: Mapping[str, Mapping[str, DetectRow]]) -> Report:
    """Return every judge's figures; the first judge is the others' baseline. Raises DataError: verdicts on other pairs."""
    # The bootstrap draws pairs by their place: a shuffled file must give the same interval.
    pairs = sorted(loaded.pairs, key=lambda pair: pair.id)
    rows = {name: matched(pairs, verdicts, name) for name, verdicts in judges.items()}
    marks = {name: [mark(row) for row in verdicts] for name, verdicts in rows.items()}
    baseline = next(iter(marks.values()))
    reports = {name: _judge(pairs, judges[name], rows[name], marks[name]) for name in rows}
    for name in list(reports)[1:]:
        reports[name]["against_baseline"] = asdict(against(marks[name], baseline))
    return {
        "suite": suite.name,
        "task": suite.task,
        "n_pairs": len(pairs),
        "drawn_from": loaded.drawn_from,
        "empty_ratings": loaded.empty_ratings,
        "labels": dict(Counter(pair.label for pair in pairs)),
        "majority": _majority(pairs),
        "judges": reports,
        "paper": {
            "n_pairs": suite.pairs,
            "accuracy": dict(suite.paper) | {name: figures[0] for name, figures in suite.pointwise.items()},
            "squared_error": {name: figures[1] for name, figures in suite.pointwise.items()},
        },
    }


def _majority(pairs: Sequence[DetectPair]) -> Report | None:
    """Return the label that people gave most often, and the accuracy of always giving it: what a judge has to beat."""
    if not pairs:
        return None
    label, count = Counter(pair.label for pair in pairs).most_common(1)[0]
    return {"label": label, "accuracy": count / len(pairs)}


def _said(rows: Sequence[DetectRow]) -> dict[str, int]:
    """Return counts of each label given, the most frequent one first."""
    return dict(Counter(row.label for row in rows if row.label).most_common())


def _first_place(rows: Sequence[DetectRow]) -> Report | None:
    """Return how often the first clip wins, by the judge, by people on the same pairs; None without a winner."""
    won = [row for row in rows if row.label in ("1", "2")]
    if not won:
        return None
    judge, people = (sum(label == "1" for label in labels) for labels in ([r.label for r in won], [r.truth for r in won]))
    return {"judge": judge / len(won), "people": people / len(won), "n": len(won)}


def _judge(
    pairs: Sequence[DetectPair],
    recorded: Mapping[str, DetectRow],
    rows: Sequence[DetectRow | None],
    marks: Sequence[float | None],
) -> Report:
    error = squared_error(pairs, rows)
    known = [row for row in rows if row is not None]
    why = [row.unscored if row else why_missing(pair, recorded) for pair, row in zip(pairs, rows, strict=True)]
    costs = [row.cost_usd for row in known if row.label is not None]
    return {
        "judge": sorted({"/".join(filter(None, (row.judge, row.version, row.prompt_hash))) for row in known if row.label}),
        "accuracy": asdict(accuracy(marks)),
        "ties": sum(value == TIED for value in marks),
        "said": _said(known),
        "first": _first_place(known),
        "unscored": dict(Counter(reason for reason in why if reason)),
        "other_pairs": len(recorded) - len(known),
        "squared_error": None if error is None else asdict(error),
        "cost_usd": None if None in costs else sum(cost for cost in costs if cost is not None),
        "against_baseline": None,
    }


def show_detection(console: Console, report: Report) -> None:
    """Show the judges' figures, then the paper's."""
    drawn = f", drawn from {report['drawn_from']} pairs of one sentence" if report["drawn_from"] else ""
    empty = f"; {report['empty_ratings']} empty ratings" if report["empty_ratings"] else ""
    labels = ", ".join(f"{count} times {label}" for label, count in sorted(report["labels"].items()))
    of_paper = report["paper"]
    console.print(
        f"{report['suite']}: {report['n_pairs']} pairs{drawn} ({labels}){empty}; the paper's are {of_paper['n_pairs']}"
    )
    head = ("judge", "accuracy %", "95 %", "scored", "said", "first wins % (people)", "MSE", "against the first", "p", "")
    rows = [(name, *_cells(judge)) for name, judge in report["judges"].items()]
    sections = (len(rows),)
    if majority := report["majority"]:
        rows.append((f"always {majority['label']} (majority)", number_text(majority["accuracy"], 1, scale=100.0)))
    for name, value in of_paper["accuracy"].items():
        error = number_text(of_paper["squared_error"].get(name), none="")
        rows.append((Styled(f"paper: {name}", "dim"), number_text(value, 1, scale=100.0), "", "", "", "", error))
    Table(head, rows, sections=sections).show(console)
    for name, judge in report["judges"].items():
        for reason, count in judge["unscored"].items():
            console.print(f"{name}: {count} pairs unscored: {reason}")
        if judge["other_pairs"]:
            console.print(
                f"{name}: {judge['other_pairs']} verdicts unused: on pairs that are not asked here, or not in this order"
            )
        if judge["against_baseline"] and judge["against_baseline"]["why_none"]:
            console.print(f"{name}: not tested: {judge['against_baseline']['why_none']}")


def _cells(figures: Report) -> list[str]:
    right, error, against_first = figures["accuracy"], figures["squared_error"], figures["against_baseline"]
    cells = [number_text(right["value"], 1, scale=100.0, none="none"), _span(right, 100, 1)]
    said = ", ".join(f"{label}: {count}" for label, count in figures["said"].items())
    first = figures["first"]
    first_place = "" if first is None else f"{100 * first['judge']:.1f} ({100 * first['people']:.1f})"
    cells += [f"{right['n']} of {right['n_asked']}", said, first_place]
    cells.append("" if error is None else f"{error['value']:.2f} ({_span(error, 1, 2)})")
    if against_first is None or against_first["difference"]["value"] is None:
        return [*cells, "", "", ""]
    difference = against_first["difference"]
    cells.append(f"{100 * difference['value']:+.1f} ({_span(difference, 100, 1)})")
    p_value = against_first["p_value"]
    return [*cells, "< 0.0001" if p_value < 1e-4 else f"{p_value:.4f}", against_first["stars"]]


def _span(share: Mapping[str, Any], scale: float, digits: int) -> str:
    return span(share["low"], share["high"], digits, scale=scale) or ("" if share["value"] is None else "no interval")
