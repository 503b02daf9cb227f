"""Probes from verdicts that were recorded elsewhere, without a clip and without a call (AudioJudge, Figs. 3 to 6 and 17).

A CSV has a row for each pair and judge. What its columns allow is measured, and the rest is left out:

1. `given` and `turned`, the verdicts on both orders, each as the judge gave it: position.
2. `first_words` and `second_words`, the lengths, where `human` is a tie: length.
3. `first_mos` and `second_mos`, people's mean opinions, with both orders: how far apart the two are.
4. columns such as `20 dB`, the verdicts under noise, and `again`, the clean pair asked a second time, as a control. `noisy`
   says which clip had the noise, 1, 2 or both. Where it is one of them a class is by what the clean verdict was: the noisy clip
   was chosen, or not chosen, or it was a tie (the paper's Fig. 3).
"""

from __future__ import annotations

import csv
import io
import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, model_validator

from paras2s.bench.bias import perturbations
from paras2s.bench.bias.metrics import (
    PROBES,
    ProbeResult,
    TrialOutcome,
    against_control,
    gap_correlation,
    noise_class,
    noise_order,
    place_of,
    tell_parts,
)
from paras2s.bench.bias.perturbations import GIVEN, TURNED, ProbePair, Trial
from paras2s.bench.bias.report import JudgeProbes, ProbeReport, write_probes
from paras2s.errors import ConfigError, DataError, checking
from paras2s.statistics.correlation import Correlation
from paras2s.statistics.resampling import RESAMPLES
from paras2s.types import PairLabel
from paras2s.utils.io import read_csv, read_text, write_jsonl

LEVEL = re.compile(r"\d+(\.\d+)? dB")
MEASURABLE = ("position", "verbosity", "noise", "mos_gap")
NO_VERDICT = "no verdict recorded"


class RecordedRow(BaseModel):
    """One pair's verdicts of one judge on one task. `levels` are those under noise, by level; an empty label is None."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    judge: str = Field(min_length=1)
    id: str = Field(min_length=1)
    given: PairLabel | None = None
    turned: PairLabel | None = None
    again: PairLabel | None = None
    task: str = ""
    cluster: str | None = None
    human: PairLabel | None = None
    noisy: Literal["1", "2", "both"] = "both"
    first_words: int | None = Field(None, ge=0)
    second_words: int | None = Field(None, ge=0)
    first_mos: float | None = Field(None, allow_inf_nan=False)
    second_mos: float | None = Field(None, allow_inf_nan=False)
    levels: dict[str, PairLabel | None] = Field(default_factory=dict)

    @model_validator(mode="after")
    def _check(self) -> RecordedRow:
        for name, other in (("first_words", "second_words"), ("first_mos", "second_mos")):
            if (getattr(self, name) is None) != (getattr(self, other) is None):
                raise ValueError(f"{name} and {other}: give both or neither")
        return self

    def pair(self) -> ProbePair:
        """Return the pair without its clips."""
        mos = None if self.first_mos is None or self.second_mos is None else (self.first_mos, self.second_mos)
        tied_by = perturbations.PEOPLE if self.human == "tie" and self.first_words is not None else None
        none = Path()
        return ProbePair(self.id, none, none, human=self.human, tied_by=tied_by, cluster=self.cluster or self.id, mos=mos)


def holds_recorded(path: Path) -> bool:
    """Return whether the head of a CSV names a judge and a verdict, as no file of pairs does. Raises DataError: unreadable."""
    if path.suffix.lower() != ".csv" or not path.is_file():
        return False
    return {"judge", "given"} <= {name.strip() for name in next(csv.reader(io.StringIO(read_text(path))), [])}


def load_recorded(path: Path) -> dict[tuple[str, str], list[RecordedRow]]:
    """Return the rows of a file by judge and task, in its order. Raises DataError: names file:line and key."""
    verdicts: dict[tuple[str, str], dict[str, RecordedRow]] = {}
    for number, values in _rows(path):
        with checking(f"{path}:{number}"):
            row = RecordedRow.model_validate(values)
        of_judge = verdicts.setdefault((row.judge, row.task), {})
        if row.id in of_judge:
            raise DataError(f"{path}:{number}: id: {row.id!r} occurs more than once for {row.judge} {row.task}")
        of_judge[row.id] = row
    if not verdicts:
        raise DataError(f"{path}: holds no verdicts")
    return {key: list(rows.values()) for key, rows in verdicts.items()}


def _rows(path: Path) -> Iterator[tuple[int, dict[str, Any]]]:
    """Yield rows with their line, columns of levels gathered; an empty cell is left out, an empty level is None."""
    for number, row in read_csv(path):
        levels = {name: value or None for name, value in row.items() if name and LEVEL.fullmatch(name)}
        rest = {name: value for name, value in row.items() if name not in levels and value not in ("", None)}
        yield number, {**rest, "levels": levels}


def measure(name: str, rows: Sequence[RecordedRow], seed: int = 0) -> ProbeResult | None:
    """Return one probe of one judge; None if the file has no columns for it."""
    pairs = [row.pair() for row in rows]
    both_orders = any(row.turned is not None for row in rows)
    if name == "noise":
        return _noise(rows, seed)
    if name == "position" and both_orders:
        return _result(name, perturbations.position(pairs), rows, seed)
    if name == "mos_gap" and both_orders and any(pair.mos for pair in pairs):
        result = _result(name, perturbations.mos_gap(pairs), rows, seed)
        return replace(result, correlation=_gap_link(rows, seed))
    if name == "verbosity" and any(pair.tied_by for pair in pairs):
        words = {row.id: (row.first_words or 0, row.second_words or 0) for row in rows}
        trials = perturbations.verbosity(pairs, words)
        note = "Ties rated by: people."
        if not both_orders:
            trials = [trial for trial in trials if trial.comparisons[0].change == GIVEN]
            note += " Only one order was recorded: a lean to a place is in these shares."
        return replace(_result(name, trials, rows, seed), notes=(note,))
    return None


def _result(name: str, trials: Sequence[Trial], rows: Sequence[RecordedRow], seed: int) -> ProbeResult:
    by_pair = {f"pair {row.id}": row for row in rows}
    outcomes: list[TrialOutcome] = []
    unscored = 0
    for trial in trials:
        about = [(by_pair[comparison.about], comparison.change) for comparison in trial.comparisons]
        labels = [row.given if change == GIVEN else row.turned for row, change in about]
        outcomes += [TrialOutcome(trial.cluster, group, label, about[0][0].id) for group, label in trial.read(labels)]
        unscored += None in labels
    spec = PROBES[name]
    parts = tell_parts(outcomes, spec.labels_of, spec.compared, seed)
    why = {NO_VERDICT: unscored} if unscored else {}
    return ProbeResult(name, "measured", "", len(trials), len(trials) - unscored, why, parts)


def _gap_link(rows: Sequence[RecordedRow], seed: int) -> Correlation:
    known = [row for row in rows if row.given and row.turned and row.first_mos is not None and row.second_mos is not None]
    gaps = [abs((row.first_mos or 0.0) - (row.second_mos or 0.0)) for row in known]
    stable = [place_of(row.given, row.turned) == "stable" for row in known]
    return gap_correlation(gaps, stable, [row.cluster or row.id for row in known], seed)


def _noise(rows: Sequence[RecordedRow], seed: int) -> ProbeResult | None:
    """Compare the verdict under noise with the clean one; the clean pair asked again is the control, an inaudible noise."""
    control = perturbations.level_name(perturbations.CONTROL_DB)
    # A file of several judges has columns that one of them leaves empty all the way down.
    used = {level for row in rows for level, label in row.levels.items() if label}
    verdicts = [(row, level, label) for row in rows for level, label in row.levels.items() if level in used]
    if any(row.again for row in rows):
        verdicts += [(row, control, row.again) for row in rows]
    if not verdicts:
        return None
    outcomes: list[TrialOutcome] = []
    unscored = 0
    for row, level, label in verdicts:
        changed = None if row.given is None or label is None else "unchanged" if label == row.given else "changed"
        groups = [(level,), *([(level, _class_of(row, row.given))] if row.given else [])]
        outcomes += [TrialOutcome(row.cluster or row.id, group, changed, row.id) for group in groups]
        unscored += changed is None
    spec = PROBES["noise"]
    parts = sorted(tell_parts(outcomes, spec.labels_of, spec.compared, seed), key=noise_order)
    notes = []
    if any(row.again for row in rows):
        notes.append(f"{control} is the clean pair asked again, without any noise.")
    if any(row.noisy != "both" for row in rows):
        notes.append("One clip has the noise. chosen: the clip that has it was preferred without; not chosen: the other was.")
    why = {NO_VERDICT: unscored} if unscored else {}
    compared = against_control(parts, outcomes, control, seed)
    return ProbeResult("noise", "measured", "", len(verdicts), len(verdicts) - unscored, why, compared, notes=tuple(notes))


def _class_of(row: RecordedRow, clean: PairLabel) -> str:
    if row.noisy == "both":
        return noise_class(clean, row.human)
    return "tie" if clean == "tie" else "chosen" if clean == row.noisy else "not chosen"


def run_recorded(path: Path, only: Sequence[str], seed: int, out: Path) -> ProbeReport:
    """Probe every judge of a file of verdicts, and write the report. Raises DataError: a wrong file. ConfigError: no clips."""
    if strange := [name for name in only if name not in MEASURABLE]:
        raise ConfigError(f"--only {strange[0]}: needs clips; of recorded verdicts there are {', '.join(MEASURABLE)}")
    names = [name for name in PROBES if name in (only or MEASURABLE)]
    judges = []
    loaded = load_recorded(path)
    for (judge, task), rows in loaded.items():
        results = [result for name in names if (result := measure(name, rows, seed)) is not None]
        if not results:
            raise DataError(f"{path}: {judge} {task}: no column for any of {', '.join(names)}")
        judges.append(JudgeProbes(judge, "", task, False, _count(rows), 0.0, None, tuple(results)))
    pairs = sum(map(len, loaded.values()))
    clusters = {(task, row.cluster or row.id) for (_, task), rows in loaded.items() for row in rows}
    report = ProbeReport(str(path), pairs, pairs, len(clusters), _settings(loaded, seed, names), tuple(judges))
    write_jsonl(out / "comparisons.jsonl", (line for rows in loaded.values() for row in rows for line in _comparisons(row)))
    write_probes(out, report)
    return report


def _comparisons(row: RecordedRow) -> Iterator[dict[str, Any]]:
    """Yield a line for every recorded verdict of a row."""
    changes = {GIVEN: row.given, TURNED: row.turned, "as given, again": row.again}
    changes |= {f"noise at {level}": label for level, label in row.levels.items()}
    for change, label in changes.items():
        if label is not None:
            yield {"judge": row.judge, "task": row.task, "about": f"pair {row.id}", "change": change, "label": label}


def _count(rows: Sequence[RecordedRow]) -> int:
    """Number of verdicts that a judge's rows hold."""
    return sum(label is not None for row in rows for label in (row.given, row.turned, row.again, *row.levels.values()))


def _settings(loaded: Mapping[tuple[str, str], Sequence[RecordedRow]], seed: int, names: Sequence[str]) -> dict[str, Any]:
    levels = Counter(float(level.removesuffix(" dB")) for rows in loaded.values() for row in rows for level in row.levels)
    return {
        "seed": seed, "resamples": RESAMPLES, "snrs_db": sorted(levels), "control_db": perturbations.CONTROL_DB,
        "gain_db": perturbations.GAIN_DB, "min_token_gap": perturbations.MIN_TOKEN_GAP, "probes": list(names),
    }  # fmt: skip
