"""Items of a study from the benched systems of a run."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from paras2s.bench.results import AnswerRow, load_rows
from paras2s.errors import ConfigError, DataError
from paras2s.studies.forms import Kind
from paras2s.studies.study import Answer, StudyItem
from paras2s.utils.io import path_inside
from paras2s.utils.seeds import seed_of


def items_of_run(run: Path, kind: Kind, systems: Sequence[str], limit: int | None, seed: int) -> list[StudyItem]:
    """Return items from a run's benched systems, `limit` of them at random. Raises ConfigError: systems. DataError: no rows."""
    if kind not in ("pair", "single"):
        raise ConfigError(f"--kind {kind}: a bench has pair and single; give a JSONL file of items")
    if kind == "pair" and len(systems) != 2:
        raise ConfigError(f"--system: a pair needs two systems, and {len(systems)} are given")
    if not systems:
        raise ConfigError("--system: name at least one benched system")
    rows = {name: _rows_of(run, name) for name in systems}
    places: list[tuple[tuple[str, int], tuple[str, ...]]]
    if kind == "pair":
        places = [(key, tuple(systems)) for key in rows[systems[0]] if key in rows[systems[1]]]
    else:
        places = [(key, (name,)) for name in systems for key in rows[name]]
    if not places:
        raise DataError(f"{run}: {' and '.join(systems)} answered no question in common")
    if limit is not None:
        places = sorted(places, key=lambda entry: seed_of(seed, "drawn", entry))[:limit]
    several = any(number for keys in rows.values() for _, number in keys)
    return [_bench_item([rows[name][key] for name in names], several) for key, names in places]


Scored = tuple[AnswerRow, dict[str, float | str]]


def _rows_of(run: Path, system: str) -> dict[tuple[str, int], Scored]:
    """Return a system's rows with a sound by query and number, each with every judge's score."""
    if not (run / "bench").is_dir():
        raise DataError(f"{run}: no bench folder; run `paras2s bench contrasts` on it, or give a JSONL file of items")
    files = [run / "bench" / f"{system}.jsonl", *sorted((run / "bench").glob(f"*/{system}.jsonl"))]
    if path_inside(run / "bench", f"{system}.jsonl") is None or not files[0].is_file():
        existing = sorted(path.stem for path in (run / "bench").glob("*.jsonl"))
        raise DataError(f"{run}: {system!r} was not benched; there are {', '.join(existing) or 'none'}")
    scored: dict[tuple[str, int], Scored] = {}
    for path in files:
        for row in load_rows(path):
            key = (row.query_id, row.answer_index)
            if key not in scored and row.duration_s > 0:
                scored[key] = (row, {})
            if key in scored:
                scored[key][1][row.judge] = row.unscored or "" if row.score is None else row.score
    return scored


def _bench_item(scored: Sequence[Scored], several: bool) -> StudyItem:
    row = scored[0][0]
    return StudyItem(
        # As `bench paras2s --human` names answers.
        id=f"{row.query_id}-{row.answer_index}" if several else row.query_id,
        question=row.question_clip,
        # What was said is heard; its written form would tell the words that a bad recording hides.
        question_text="",
        category=row.category,
        instruction_id=row.contrast_id,
        answers=tuple(Answer(system=answer.system, clip=answer.answer_clip, scores=scores) for answer, scores in scored),
    )
