"""Probes of judges as JSON, as a sentence each, as tables, and as one static page with its charts.

Nothing is loaded from elsewhere and every word on the page is escaped.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import cache
from pathlib import Path
from typing import Any

import yaml
from pydantic import BaseModel, ConfigDict, TypeAdapter
from rich.console import Console
from rich.markup import escape

from paras2s.bench.bias.examples import TrialExample
from paras2s.bench.bias.metrics import AGAINST_ORDER, PROBES, VERDICT, Part, ProbeResult
from paras2s.bench.bias.perturbations import CONTROL_DB
from paras2s.bench.plots.bars import Bar, Bars
from paras2s.bench.plots.base import svg_of
from paras2s.bench.plots.points import Points
from paras2s.statistics.intervals import Share
from paras2s.utils.html import page_template
from paras2s.utils.io import write_json, write_text
from paras2s.utils.tables import Table, with_interval

SCHEMA = "paras2s.probe/1"
SIGNIFICANT = 0.05
# Of reasons for which trials are unscored, at a terminal.
SHOWN_REASONS = 3
TITLES = {
    "position": "Place", "identical": "The same clip twice", "verbosity": "Length", "noise": "Noise",
    "loudness": "Loudness", "speaker": "Voice", "mos_gap": "How far apart the two are",
}  # fmt: skip


@dataclass(frozen=True)
class JudgeProbes:
    """The results of one judge. `comparisons` were made; `cost_usd` was spent on them now, None if unknown.

    Unusable replies are paid for too; those cached in an earlier run cost nothing.
    `stopped` says why not all comparisons were made, None if all were. Scores no further apart than `margin` count as a
    tie: 95 % of the judge's own changes under inaudible noise are as small; None if that was not measured.
    `examples` are clips for the page, by probe; the JSON is without them.
    """

    judge: str
    version: str
    task: str
    scores_alone: bool
    comparisons: int
    cost_usd: float | None
    stopped: str | None
    probes: tuple[ProbeResult, ...]
    margin: float | None = None
    examples: Mapping[str, tuple[TrialExample, ...]] = field(default_factory=dict)


@dataclass(frozen=True)
class ProbeReport:
    """A run of probes: the source of the pairs, the settings, and the results of every judge."""

    source: str
    pairs: int
    pairs_available: int
    clusters: int
    settings: dict[str, Any]
    judges: tuple[JudgeProbes, ...]

    @property
    def unscored(self) -> int:
        """Return the number of trials, of all probes of all judges, that have no label."""
        return sum(sum(probe.unscored.values()) for judge in self.judges for probe in judge.probes)

    def as_json(self) -> dict[str, Any]:
        """Return plain JSON, without the clips that the page holds."""
        from paras2s import __version__

        plain = asdict(replace(self, judges=tuple(replace(judge, examples={}) for judge in self.judges)))
        for judge in plain["judges"]:
            del judge["examples"]
        return {"schema": SCHEMA, "paras2s": __version__, **plain}


def write_probes(folder: Path, report: ProbeReport) -> None:
    """Write probe.json and probe.html. Raises StorageError: the disk refused."""
    write_json(folder / "probe.json", report.as_json())
    page = page_template(Path(__file__).with_name("report.html.j2")).render(
        report=report,
        facts=_facts(report),
        sections=[(judge, margin_text(judge), [_card(judge, result) for result in judge.probes]) for judge in report.judges],
    )
    write_text(folder / "probe.html", page)


def _facts(report: ProbeReport) -> list[tuple[str, str]]:
    settings = report.settings
    return [
        ("pairs", f"{report.pairs} of {report.pairs_available}, in {report.clusters} clusters"),
        ("from", report.source),
        ("noise", f"{', '.join(f'{snr_db:g}' for snr_db in settings['snrs_db'])} dB; control {settings['control_db']:g} dB"),
        ("gain", f"{settings['gain_db']:g} dB"),
        ("seed", str(settings["seed"])),
        ("resamples", f"{settings['resamples']:,}"),
    ]


# Sentences.


def margin_text(judge: JudgeProbes) -> str:
    """Return which scores of a judge of single answers count as alike; empty for other judges."""
    if not judge.scores_alone:
        return ""
    if judge.margin is None:
        return "any difference of scores counts: the judge's own spread is measured by the noise probe, which gave none"
    return f"scores within {judge.margin:.3g} count as a tie: 95 % of its own changes under inaudible noise are as small"


def _mean_changes(result: ProbeResult) -> str:
    shown = []
    for change in result.changes:
        if change.mean is not None:
            interval = "" if change.low is None else f" ({change.low:+.2f} to {change.high:+.2f})"
            shown.append(f"{change.mean:+.2f}{interval} ({', '.join(change.group)})")
    return f"; scores change by {', '.join(shown)} on average" if shown else ""


def percent(share: Share) -> str:
    """Return a share with its interval."""
    return with_interval(share, 1, scale=100.0, unit=" %", none="no share")


def p_text(value: float | None) -> str:
    """Return a p-value; one below the resolution of the resamples is given as a bound."""
    if value is None:
        return "no p-value"
    return "p < 0.001" if value < 0.001 else f"p = {value:.3f}"


def part_p(part: Part) -> str:
    """Return the p-value of a part that has one, and what it is compared with other than chance."""
    if part.against:
        return f"{p_text(part.p_value)} against {part.against}"
    return p_text(part.p_value) if part.compared else ""


def sentence(result: ProbeResult) -> str:
    """Return a probe's result in words."""
    if result.status != "measured":
        return f"{result.status[0].upper()}{result.status[1:]}: {result.why}."
    if not result.n_scored:
        return f"None of {result.n_asked} could be judged."
    return SENTENCES[result.name](result)


def _leaning(part: Part, towards: dict[str, str]) -> str:
    """Return the more frequent of the two compared outcomes, if it leads by more than chance."""
    assert part.compared is not None
    outcome, other = part.compared
    first, second = (part.shares[name].value or 0.0 for name in part.compared)
    numbers = f"{100 * first:.1f} % {outcome} against {100 * second:.1f} % {other}, {p_text(part.p_value)}"
    if part.p_value is None or part.p_value >= SIGNIFICANT or first == second:
        return f"no lean can be shown ({numbers})"
    return f"a lean towards {towards[outcome if first > second else other]} ({numbers})"


def _position(result: ProbeResult) -> str:
    part = result.part("all")
    assert part is not None
    lean = _leaning(part, {"first": "the first place", "second": "the second place"})
    return f"Asked in both orders, {percent(part.shares['stable'])} of the verdicts stay the same; of the others, {lean}."


def _identical(result: ProbeResult) -> str:
    part = result.part("all")
    assert part is not None
    lean = _leaning(part, {"first": "the first place", "second": "the second place"})
    return f"Of clips against themselves, {percent(part.shares['tie'])} are called a tie; otherwise {lean}."


def _verbosity(result: ProbeResult) -> str:
    part = result.part("all")
    assert part is not None
    lean = _leaning(part, {"longer": "longer answers", "shorter": "shorter answers"})
    pairs = f"Of {part.shares['tie'].n} verdicts on pairs rated alike, each pair in both orders"
    return f"{pairs}, {percent(part.shares['tie'])} are a tie; otherwise {lean}."


def _noise(result: ProbeResult) -> str:
    """Return the result by noise level; the last level is the control."""
    levels = [part for part in result.parts if len(part.group) == 1]
    shares = [
        f"{percent(part.shares['unchanged'])} at {part.group[0]}" + (f" ({part_p(part)})" if part.against else "")
        for part in levels
    ]
    text = f"The verdict is still the clean one for {shares[0]}"
    if len(shares) > 2:
        text += f" and {shares[-2]}"
    if len(shares) > 1:
        text += f"; with inaudible noise, for {shares[-1]}: so far the judge agrees with itself"
    changes = [change for change in result.changes if change.mean is not None]
    if changes:
        text += f"; scores change by {changes[0].mean:+.2f} on average at {changes[0].group[0]}"
    return f"{text}."


def _loudness(result: ProbeResult) -> str:
    part = result.part("all")
    assert part is not None
    lean = _leaning(part, {"louder": "louder clips", "quieter": "quieter clips"})
    ties = f"{percent(part.shares['tie'])} of the clips tie with themselves at another level"
    return f"{ties}; otherwise {lean}{_mean_changes(result)}."


def _speaker(result: ProbeResult) -> str:
    names = {"original": "the own voice", "other": "the other voice"}
    parts = [f"{part.group[0]}: {percent(part.shares['tie'])} ties, {_leaning(part, names)}" for part in result.parts]
    return f"Against another voice with the same words, {'; '.join(parts)}{_mean_changes(result)}."


def _mos_gap(result: ProbeResult) -> str:
    stable = result.part("all", AGAINST_ORDER)
    right = result.part("all", VERDICT)
    text = f"{percent(stable.shares['stable'])} of the pairs are stable" if stable else "No pair was asked in both orders"
    text += f" and {percent(right.shares['right'])} right" if right else ""
    link = result.correlation
    if link is None or link.value is None:
        return f"{text}; no correlation with the gap ({link.why_none if link else 'nothing was counted'})."
    return f"{text}; the gap and stability correlate by {link.value:.2f} (Spearman, {p_text(link.p_value)})."


SENTENCES: dict[str, Callable[[ProbeResult], str]] = {
    "position": _position, "identical": _identical, "verbosity": _verbosity, "noise": _noise,
    "loudness": _loudness, "speaker": _speaker, "mos_gap": _mos_gap,
}  # fmt: skip


# The page.


def _card(judge: JudgeProbes, result: ProbeResult) -> dict[str, Any]:
    parts = [part for part in result.parts if any(share.value is not None for share in part.shares.values())]
    printed = [figure for figure in published_figures() if figure.probe == result.name]
    same = _Same(judge, printed)
    charts = _charts(result, parts, same) if result.n_scored else []
    return {
        "title": TITLES[result.name],
        "says": PROBES[result.name].says,
        "sentence": sentence(result),
        "result": result,
        "charts": charts,
        "marked": [f"{figure.figure}: {figure.note}" for figure in same.figures],
        # Of other data or judges, and so for scale alone.
        "printed": [] if same.figures else printed,
        "rows": [row for part in result.parts for row in _rows(part, same)],
        "examples": judge.examples.get(result.name, ()),
        "unscored": sorted(result.unscored.items(), key=lambda item: -item[1]),
    }


class _Same:
    """The printed shares of the same judge on the same data."""

    def __init__(self, judge: JudgeProbes, printed: Sequence[PublishedFigure]) -> None:
        self._judge = judge
        of = (judge.judge, judge.task)
        self.figures = [figure for figure in printed if of in {(row.judge, row.task) for row in figure.rows}]

    def share(self, group: tuple[str, ...], label: str) -> float | None:
        """Return the printed share, from 0 to 1; None if there is none."""
        shares = [figure.share(self._judge.judge, self._judge.task, group, label) for figure in self.figures]
        return next((share for share in shares if share is not None), None)


def _rows(part: Part, same: _Same) -> list[tuple[str, str, str, str, str, str]]:
    """Return group, label, share, published share, n of n asked, and p-value of each share."""
    group = ", ".join(part.group)
    return [
        (group, label, percent(share), _printed(same.share(part.group, label)), f"{share.n} of {share.n_asked}", part_p(part))
        for label, share in part.shares.items()
    ]


def _printed(share: float | None) -> str:
    return "" if share is None else f"{100 * share:.1f} %"


def _charts(result: ProbeResult, parts: Sequence[Part], same: _Same) -> list[dict[str, Any]]:
    """Return line charts for what runs over a scale, bars for the rest."""
    if result.name == "noise":
        return [_noise_lines(parts, same)] if any(_db(part) != CONTROL_DB for part in parts) else []
    if result.name == "mos_gap":
        return [chart for chart in (_gap_lines(parts),) if chart]
    bars = [
        Bar(", ".join(part.group), label, share, number, same.share(part.group, label))
        for part in parts
        for number, (label, share) in enumerate(part.shares.items())
    ]
    svg = svg_of([Bars(bars)], f"{result.name}: shares with 95 % intervals")
    return [{"names": [], "kind": "fill", "axis": "", "svg": svg}]


def _noise_lines(parts: Sequence[Part], same: _Same) -> dict[str, Any]:
    """Return classes over levels; the highest level is the inaudible control."""
    classes = list(dict.fromkeys(_class(part) for part in parts))
    known = {(_db(part), _class(part)): part for part in parts}
    levels = sorted({level for level, _ in known})
    groups = [[known.get((level, name)) for level in levels] for name in classes]
    lines = [[None if part is None else part.shares["unchanged"] for part in line] for line in groups]
    marks = [[None if part is None else same.share(part.group, "unchanged") for part in line] for line in groups]
    axis = f"unchanged verdicts, % by signal-to-noise ratio, dB; at {CONTROL_DB:g} the noise is inaudible"
    return _lines(levels, lines, marks, classes, axis)


def _class(part: Part) -> str:
    return part.group[1] if len(part.group) > 1 else "all"


def _db(part: Part) -> float:
    return float(part.group[0].removesuffix(" dB"))


def _gap_lines(parts: Sequence[Part]) -> dict[str, Any] | None:
    binned = [part for part in parts if part.group[0] != "all"]
    bins = sorted({float(part.group[0].split()[0]) for part in binned})
    if not bins:
        return None

    def at(low: float, kind: str, label: str) -> Share | None:
        matching = (part for part in binned if float(part.group[0].split()[0]) == low and part.group[1] == kind)
        part = next(matching, None)
        return None if part is None else part.shares[label]

    kinds = {"right": VERDICT, "stable": AGAINST_ORDER, "first": AGAINST_ORDER, "second": AGAINST_ORDER}
    lines = [[at(low, kind, label) for low in bins] for label, kind in kinds.items()]
    return _lines(bins, lines, [], list(kinds), "% by lower end of the gap in mean opinion")


def _lines(
    steps: list[float], lines: list[list[Share | None]], marks: list[list[float | None]], names: list[str], axis: str
) -> dict[str, Any]:
    printed = [f"{100 * mark:.1f} %" for line in marks for mark in line if mark is not None]
    description = f"{axis}: {', '.join(names)}" + (f"; printed: {', '.join(printed)}" if printed else "")
    svg = svg_of([Points(steps, lines, marks)], description)
    return {"names": names, "kind": "line", "axis": f"{axis}; bars: 95 % intervals; below: n", "svg": svg}


# For people at a terminal.


def show_probe_estimates(console: Console, estimates: Sequence[Mapping[str, Any]]) -> None:
    """Show what every judge's probes would take and cost at most."""
    for row in estimates:
        name, usd = f"{row['judge']} {row['task']}".strip(), row["at_most_usd"]
        price = "free: it runs on this machine" if not row["calls"] else "no price is known"
        price = f"at most {usd:.4f} USD" if row["calls"] and usd is not None else price
        console.print(f"{name}: {row['comparisons']} comparisons, {row['calls']} calls, {price}")


def show_probes(console: Console, report: ProbeReport) -> None:
    """Show a table for each judge with a line for each part, and a sentence for each probe."""
    for judge in report.judges:
        task = f", task {judge.task}" if judge.task else ""
        rows: list[tuple[str, ...]] = []
        sections = []
        for result in judge.probes:
            sections.append(len(rows))
            for number, part in enumerate(result.parts):
                shares = "; ".join(f"{label} {percent(share)}" for label, share in part.shares.items())
                counted = next(iter(part.shares.values()))
                name = "" if number else result.name
                rows.append((name, ", ".join(part.group), shares, f"{counted.n} of {counted.n_asked}", part_p(part)))
        console.print(f"[bold]{escape(judge.judge)}{escape(task)}[/bold] {escape(judge.version)}", markup=True)
        Table(("probe", "of", "shares with 95 % intervals", "n", "p"), rows, sections=sections).show(console)
        for result in judge.probes:
            console.print(f"[bold]{escape(result.name)}[/bold] {escape(sentence(result))}", markup=True)
            for reason, count in sorted(result.unscored.items(), key=lambda item: -item[1])[:SHOWN_REASONS]:
                console.print(f"    {count} unscored: {escape(reason)}", markup=True)
        if margin := margin_text(judge):
            console.print(margin)
        if judge.stopped:
            console.print(f"[bold red]stopped[/bold red]: {escape(judge.stopped)}", markup=True)


PUBLISHED_FILE = Path(__file__).with_name("published.yaml")


# Shares that AudioJudge prints of its judges' biases (Figs. 3 to 6), to compare with those measured here.


class PublishedRow(BaseModel):
    """Shares of one group of one judge on one suite of data, in per cent; of other labels the paper prints none."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    judge: str
    task: str
    group: tuple[str, ...]
    shares: dict[str, float]


class PublishedFigure(BaseModel):
    """One figure: where it is printed, how it was measured there, and the probe here that measures the same."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    figure: str
    note: str
    probe: str
    rows: tuple[PublishedRow, ...]

    def share(self, judge: str, task: str, group: tuple[str, ...], label: str) -> float | None:
        """Return the share, from 0 to 1, of a label in a group of a judge on the same data; None if none is printed."""
        for row in self.rows:
            if (row.judge, row.task, row.group) == (judge, task, group) and label in row.shares:
                return row.shares[label] / 100
        return None


@cache
def published_figures() -> tuple[PublishedFigure, ...]:
    """Return every figure of the file, in its order."""
    adapter = TypeAdapter(tuple[PublishedFigure, ...])
    return adapter.validate_python(yaml.safe_load(PUBLISHED_FILE.read_text(encoding="utf-8")))
