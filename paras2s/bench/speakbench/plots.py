"""The probes and the confusion of judges as plots (TRACE, Figs. 3, 4, 5 and 9), from the same report as the tables."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import yaml
from pydantic import BaseModel, ConfigDict, TypeAdapter

from paras2s.bench.plots.bars import Bar, Bars
from paras2s.bench.plots.base import svg_of
from paras2s.bench.plots.confusion import Confusion
from paras2s.statistics.intervals import Share
from paras2s.utils.io import write_text

PUBLISHED = Path(__file__).with_name("published.yaml")
# Plot: its title, and each bar's label and the keys of its share in a report's probes.
PROBE_PLOTS: dict[str, tuple[str, dict[str, tuple[str, ...]]]] = {
    "ties": (
        "P1: what breaks the tie where both contents count as good (TRACE, Fig. 3)",
        {
            name.replace("_", " "): ("p1_resolved_by", name)
            for name in ("paralinguistics", "voice_quality", "both_good", "both_bad")
        },
    ),
    "flips": (
        "P2: overall labels that change where one dimension counts as both good (TRACE, Fig. 4)",
        {name.replace("_", " "): ("p2_flip_rate", name) for name in ("content", "voice_quality", "paralinguistics")},
    ),
    "winners": (
        "P3: winners named where people call both bad (low is good), and right winners (TRACE, Fig. 5)",
        {"winner on bad": ("p3_winner_on_bad",), "winner slice": ("p3_winner_slice",)},
    ),
}


class PublishedShares(BaseModel):
    """Shares that a figure's text gives of a suite, in per cent, by the label of a bar and by judge."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    figure: str
    note: str
    suite: str
    plot: str
    shares: dict[str, dict[str, float]]

    def lines(self) -> list[str]:
        """Return the shares of each label in one line."""
        return [
            f"printed in {self.figure} ({self.note}), {label}: {', '.join(f'{judge} {n:g} %' for judge, n in of.items())}"
            for label, of in self.shares.items()
        ]


def write_plots(folder: Path, reports: Mapping[str, Mapping[str, Any]], labels: str) -> None:
    """Write a plot for each probe and one of confusion, a group or matrix a report; `labels`: whose. Raises StorageError."""
    first = next(iter(reports.values()))
    about = f"{first['suite']}: {first['n_pairs']} pairs, {first['n_instructions']} instructions; {labels}"
    intervals = "dark lines: 95 % intervals, bootstrap over instructions; n: pairs counted"
    for name, (title, bars) in PROBE_PLOTS.items():
        drawn = [
            Bar(judge, label, _share(report, path), index)
            for judge, report in reports.items()
            for index, (label, path) in enumerate(bars.items())
        ]
        lines = [about, intervals, *_published(first["suite"], name)]
        write_text(folder / f"{name}.svg", svg_of([Bars(drawn)], title, title, lines))
    title = "People's overall labels, and those fused (TRACE, Fig. 9)"
    matrices = [_confusion(name, report) for name, report in reports.items()]
    lines = [about, "P, R: precision and recall weighted by people's labels; darker: more of a row"]
    write_text(folder / "confusion.svg", svg_of(matrices, title, title, lines, columns=len(matrices)))


def _share(report: Mapping[str, Any], path: tuple[str, ...]) -> Share:
    value = report["probes"]
    for key in path:
        value = value[key]
    return Share(**value)


def _published(suite: str, plot: str) -> Iterator[str]:
    figures = TypeAdapter(tuple[PublishedShares, ...]).validate_python(yaml.safe_load(PUBLISHED.read_text(encoding="utf-8")))
    for figure in figures:
        if (figure.suite, figure.plot) == (suite, plot):
            yield from figure.lines()


def _confusion(name: str, report: Mapping[str, Any]) -> Confusion:
    confusion = report["confusion"]
    n = f"n = {sum(map(sum, confusion['counts']))} of {confusion['n_asked']}"
    precision, recall = confusion["weighted_precision"], confusion["weighted_recall"]
    figures = n if precision is None else f"P {100 * precision:.1f}, R {100 * recall:.1f} %, {n}"
    return Confusion((name, figures), tuple(confusion["labels"]), tuple(map(tuple, confusion["counts"])), ("people", "fused"))
