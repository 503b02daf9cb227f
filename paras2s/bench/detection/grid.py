"""`paras2s bench detect-grid`: every setup of a judge on every suite, and the mean over suites (AudioJudge, Table 1).

A YAML names the suites with their pairs and clips, and the setups: a judge with the settings that differ, or recorded verdicts
by suite. The first setup is the baseline that the others are tested against. A mean has one weight a suite, as the paper's;
where a suite has no figure there is none, since a mean over fewer suites is another quantity.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict, Field, model_validator
from rich.console import Console

from paras2s.bench.detection.data import SUITES, load_pairs, load_rows
from paras2s.bench.detection.report import detection_report
from paras2s.bench.detection.run import DetectionOptions, estimate_detection, run_detection
from paras2s.bench.display import PairsEstimate
from paras2s.clients.chat import Bill
from paras2s.errors import BudgetError, ConfigError, checking
from paras2s.utils.io import read_yaml, write_json
from paras2s.utils.tables import Table, number_text


class GridSuite(BaseModel):
    """The pairs of a suite and the folder of their clips, as `bench detect` takes them; recorded verdicts need no clips."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    pairs: Path
    audio: Path | None = None


class GridSetup(BaseModel):
    """A judge with the settings that this setup changes, or the file of its verdicts on each suite."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    judge: str | None = None
    settings: dict[str, Any] = Field(default_factory=dict)
    verdicts: dict[str, Path] = Field(default_factory=dict)

    @model_validator(mode="after")
    def _check(self) -> GridSetup:
        if (self.judge is None) == (not self.verdicts):
            raise ValueError("give either a judge or recorded verdicts")
        if self.settings and self.judge is None:
            raise ValueError("settings: are a judge's, and recorded verdicts have none")
        return self


class GridConfig(BaseModel):
    """A grid: suites by their names, and setups in the order in which they are shown."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    suites: dict[str, GridSuite] = Field(min_length=1)
    setups: dict[str, GridSetup] = Field(min_length=1)

    @model_validator(mode="after")
    def _check(self) -> GridConfig:
        named = {*self.suites, *(name for setup in self.setups.values() for name in setup.verdicts)}
        if strange := sorted(named - set(SUITES)):
            raise ValueError(f"{strange[0]}: no such suite; there are {', '.join(SUITES)}")
        return self


def load_grid(path: Path) -> GridConfig:
    """Return the grid of a YAML; paths are relative to it. Raises ConfigError: missing, or wrong; names the key."""
    with checking(path, "grid", error=ConfigError):
        grid = GridConfig.model_validate(read_yaml(path, "cannot be read"))
    folder = path.parent
    suites = {
        name: GridSuite(pairs=folder / suite.pairs, audio=None if suite.audio is None else folder / suite.audio)
        for name, suite in grid.suites.items()
    }
    setups = {
        name: setup.model_copy(update={"verdicts": {suite: folder / file for suite, file in setup.verdicts.items()}})
        for name, setup in grid.setups.items()
    }
    return GridConfig(suites=suites, setups=setups)


@dataclass(frozen=True)
class GridCell:
    """One setup on one suite: its figures as `bench detect` has them, or None with why there are none."""

    figures: dict[str, Any] | None
    why_none: str = ""

    @property
    def accuracy(self) -> float | None:
        """The share of right verdicts, None without any."""
        return None if self.figures is None else self.figures["accuracy"]["value"]


@dataclass(frozen=True)
class GridReport:
    """Cells by setup and suite, the mean over suites by setup, and the error if a budget ended the judging."""

    cells: dict[str, dict[str, GridCell]]
    averages: dict[str, float | None]
    stopped: BudgetError | None

    def to_json(self) -> dict[str, Any]:
        """Return the cells and averages, shares from 0 to 1."""
        cells = {name: {suite: asdict(cell) for suite, cell in row.items()} for name, row in self.cells.items()}
        return {"cells": cells, "averages": self.averages, "stopped": str(self.stopped) if self.stopped else None}


def run_grid(path: Path, out: Path, console: Console, quiet: bool) -> GridReport:
    """Judge the cells whose verdicts are not recorded, suite by suite, and report on all; write grid.json.

    Verdicts made now are kept in `out`, a file a cell. A budget that ends is the end of the judging, and what was judged stays.

    Raises:
        ConfigError: a grid that is not as expected. DataError: pairs or verdicts that are not. StorageError: as `bench detect`.
    """
    grid = load_grid(path)
    by_suite: dict[str, dict[str, GridCell]] = {}
    stopped: BudgetError | None = None
    for name, suite in grid.suites.items():
        files, missing = {}, {}
        for number, (setup_name, setup) in enumerate(grid.setups.items()):
            if setup.judge is None:
                if name in setup.verdicts:
                    files[setup_name] = setup.verdicts[name]
                else:
                    missing[setup_name] = "no verdicts recorded on this suite"
                continue
            file = out / name / f"{number}.jsonl"
            if stopped is None:
                stopped = _judge(name, suite, setup, file, console, quiet)
            if file.is_file():
                files[setup_name] = file
            else:
                missing[setup_name] = str(stopped)
        by_suite[name] = _cells(name, suite, files) | {setup: GridCell(None, why) for setup, why in missing.items()}
    cells = {setup: {suite: by_suite[suite][setup] for suite in grid.suites} for setup in grid.setups}
    report = GridReport(cells, {name: average(row) for name, row in cells.items()}, stopped)
    write_json(out / "grid.json", report.to_json())
    return report


def _judge(name: str, suite: GridSuite, setup: GridSetup, file: Path, console: Console, quiet: bool) -> BudgetError | None:
    """Judge one cell into its file; return the error if the budget ended first."""
    try:
        return run_detection(_options(name, suite, setup, file), console, quiet).stopped
    except BudgetError as error:
        return error


def _options(name: str, suite: GridSuite, setup: GridSetup, file: Path | None) -> DetectionOptions:
    return DetectionOptions(name, suite.pairs, suite.audio, setup.judge, out=file, overrides=dict(setup.settings))


def _cells(name: str, suite: GridSuite, files: Mapping[str, Path]) -> dict[str, GridCell]:
    """Return the cells of one suite; the first setup that has verdicts on it is the baseline of the others."""
    if not files:
        return {}
    of_suite = SUITES[name]
    rows = {setup: load_rows(file, of_suite) for setup, file in files.items()}
    report = detection_report(of_suite, load_pairs(suite.pairs, of_suite), rows)
    return {setup: GridCell(figures) for setup, figures in report["judges"].items()}


def average(row: Mapping[str, GridCell]) -> float | None:
    """Return the mean over suites, equally weighted; None if a suite has no figure."""
    values = [cell.accuracy for cell in row.values()]
    known = [value for value in values if value is not None]
    return sum(known) / len(known) if known and len(known) == len(values) else None


def estimate_grid(path: Path, console: Console, quiet: bool) -> dict[str, PairsEstimate]:
    """Return by setup what its cells can cost, without a call. Raises ConfigError: a wrong grid, or no setup asks a judge."""
    grid = load_grid(path)
    estimates = {}
    for setup_name, setup in grid.setups.items():
        if setup.judge is None:
            continue
        costs = [estimate_detection(_options(name, suite, setup, None), console, quiet) for name, suite in grid.suites.items()]
        bill = sum((cost.bill for cost in costs), Bill())
        unscored, pairs = (sum(getattr(cost, name) for cost in costs) for name in ("unscored", "n_pairs"))
        estimates[setup_name] = PairsEstimate(costs[-1].model, bill, unscored, pairs)
    if not estimates:
        raise ConfigError(f"{path}: --estimate: every setup has recorded verdicts, which cost nothing")
    return estimates


def show_grid(console: Console, report: GridReport) -> None:
    """Print accuracies in per cent with the stars of a test against the first setup, the mean, and why cells are empty."""
    suites = list(next(iter(report.cells.values())))
    rows = [
        (name, *(_shown(row[suite]) for suite in suites), number_text(report.averages[name], 1, scale=100.0, none="none"))
        for name, row in report.cells.items()
    ]
    Table(("setup", *suites, "average"), rows).show(console)
    console.print("Accuracy %, a tie half; stars: better than the first setup, p < 0.05, 0.01, 0.001.")
    for name, row in report.cells.items():
        for suite, cell in row.items():
            if cell.figures is None:
                console.print(f"{name}, {suite}: {cell.why_none}")
            elif cell.figures["unscored"]:
                count = sum(cell.figures["unscored"].values())
                console.print(f"{name}, {suite}: {count} pairs unscored")


def _shown(cell: GridCell) -> str:
    if cell.figures is None or cell.accuracy is None:
        return "none"
    tested = cell.figures["against_baseline"]
    return f"{100 * cell.accuracy:.1f}{tested['stars'] if tested else ''}"
