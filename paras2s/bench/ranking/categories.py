"""Win rates of systems by category of instruction (AudioJudge, A.2.2: SpeakBench has four categories, Table 4)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from paras2s.bench.ranking.data import Problem, Recorded
from paras2s.bench.ranking.metrics import AspectRanking, Ranking, rank_systems
from paras2s.errors import DataError
from paras2s.reward.judges.audio_judge.ensemble_rules import EnsembleRule
from paras2s.utils.io import read_csv

COLUMNS = ("instruction_id", "category")


def load_categories(path: Path) -> dict[str, str]:
    """Return the category of each instruction, from a CSV with `COLUMNS`. Raises DataError: names file:line."""
    categories: dict[str, str] = {}
    for number, cells in read_csv(path):
        row = {(name or "").strip(): str(cell or "").strip() for name, cell in cells.items()}
        if missing := [name for name in COLUMNS if not row.get(name)]:
            raise DataError(f"{path}:{number}: {missing[0]}: no such column or value; expected {', '.join(COLUMNS)}")
        instruction, category = (row[name] for name in COLUMNS)
        if categories.setdefault(instruction, category) != category:
            raise DataError(f"{path}:{number}: category: {instruction} is {categories[instruction]!r} above, {category!r} here")
    if not categories:
        raise DataError(f"{path}: holds no row; expected the columns {', '.join(COLUMNS)}")
    return categories


def rank_categories(
    ranking: Ranking, recorded: Recorded, rule: EnsembleRule, categories: Mapping[str, str]
) -> tuple[dict[str, dict[str, AspectRanking]], list[Problem]]:
    """Return a ranking's aspects by category, without people's scores, and what is left out. Raises DataError: no category."""
    names = sorted({categories[instruction] for instruction in recorded.instructions if instruction in categories})
    if not names:
        first = f"{next(iter(categories))!r} there, {recorded.instructions[0]!r} among the verdicts"
        raise DataError(f"--categories: names none of the instructions of the verdicts ({first})")
    problems = [Problem("no category", f"instruction {key}") for key in recorded.instructions if key not in categories]
    known = set(recorded.instructions)
    problems += [Problem("category without verdicts", f"instruction {key}") for key in categories if key not in known]
    aspects_of = {}
    for name in names:
        own = _of(recorded, [instruction for instruction in recorded.instructions if categories.get(instruction) == name])
        played = {game.aspect for game in own.games}
        aspects = [aspect for aspect in ranking.aspects if aspect in played or aspect not in recorded.aspects]
        aspects_of[name] = rank_systems(own, rule, aspects).aspects if played else {}
    return aspects_of, problems


def _of(recorded: Recorded, instructions: Sequence[str]) -> Recorded:
    chosen = set(instructions)
    games = tuple(game for game in recorded.games if game.instruction in chosen)
    return replace(recorded, instructions=tuple(instructions), games=games, problems=())
