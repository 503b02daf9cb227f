"""SpeechParaling-Bench (arXiv 2604.20842): a system's voice against a baseline system's, dimension by dimension.

Items are `jsonl_prompt_LANG/FILE.jsonl`, sounds `audio_dataset_LANG/FOLDER/NAME_001.wav`, the baseline's answers
`api_models/BASELINE/output_LANG/FOLDER/`. A verdict has one winner a dimension. A candidate has a point a win and half a tie,
in percent of the module's dimensions; the baseline has 100 % less the candidates' mean, weighted by their own points.
"""

from __future__ import annotations

import functools
import random
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from paras2s.audio.clip import Clip
from paras2s.bench.ranking.answers import SystemAnswer
from paras2s.bench.suites.base import (
    GEMINI,
    OVERALL,
    RECORDED,
    RESAMPLES,
    Item,
    Parts,
    Question,
    Suite,
    SuiteRow,
    Table,
    UserTurn,
    question_of,
    row_values,
)
from paras2s.bench.suites.download import Download
from paras2s.bench.suites.replies import Read, in_range, read_json
from paras2s.configs.schema.endpoints import LLMConfig
from paras2s.errors import DataError
from paras2s.statistics.intervals import Share
from paras2s.statistics.resampling import cluster_rows, percentiles, ratio, resample
from paras2s.types import Unscored

CONTROL, DYNAMIC, SITUATION = "Paralanguage Control", "Dynamic Variation", "Situational Adaptation"
# The makers' file of prompts, folder of sounds, judge's code, and the module: of each part of the suite.
PARTS = (
    ("dyn_var/dyn_var", "dyn_var", "dyn_var/dyn_var", DYNAMIC),
    ("para_con/abs", "para_con/con_abs", "para_con/para_con_abstract", CONTROL),
    ("para_con/long_multi", "para_con/con_long_multi", "para_con/para_con_long_multi", CONTROL),
    ("para_con/long_sin", "para_con/con_long_sin", "para_con/para_con_long_sin", CONTROL),
    ("para_con/short_multi", "para_con/con_short_multi", "para_con/para_con_short_multi", CONTROL),
    ("para_con/short_sin", "para_con/con_short_sin", "para_con/para_con_short_sin", CONTROL),
    ("sit_ada/sit_multi", "sit_ada/sit_multi", "sit_ada/sit_ada_multi", SITUATION),
    ("sit_ada/sit_sin", "sit_ada/sit_sin", "sit_ada/sit_ada_sin", SITUATION),
)
BASELINES = {"en": "gemini", "ch": "doubao"}
MODULES = {"feature_control": CONTROL, "dynamic_adjustment": DYNAMIC, "situational_adaptation": SITUATION}
# Items of a module, and the dimensions that the makers divide by once they are all there. Their English verdicts have 906.
COMPLETE = {CONTROL: (691, 911), DYNAMIC: (120, 120), SITUATION: (190, 280)}


class SpeechParaling(Suite):
    """SpeechParaling-Bench."""

    name, title = "speechparaling", "SpeechParaling-Bench"
    source = "the repository Northern-byte-bit/SpeechParaling-Bench; sounds in the data sets Ruohan2/SpeechParaling-Bench-*"
    judge = LLMConfig(
        base_url=GEMINI, model="gemini-3-pro-preview", api_key_env="GEMINI_API_KEY", temperature=1.0, structured="never",
        max_output_tokens=16_384,
    )  # fmt: skip
    by_judge = ("winner",)

    def items(self, data: Download) -> Iterator[Item]:
        """Yield the items of both languages, as far as they are in the download."""
        files = {(language, *part): f"jsonl_prompt_{language}/{part[0]}.jsonl" for language in BASELINES for part in PARTS}
        for (language, _, folder, code, module), path in data.present(files).items():
            sounds, against = data.find(f"audio_dataset_{language}/{folder}"), BASELINES[language]
            answers = data.look_for(f"api_models/{against}/output_{language}/{folder}")
            values = {"code": f"{code}_{language}.py", "against": against}

            def make(
                row: dict[str, Any], number: int, about: dict[str, Any] = values, sounds: Path = sounds,
                answers: Path | None = answers, prefix: str = f"{language}/{folder}", subset: str = f"{language}/{module}",
            ) -> Item:  # fmt: skip
                name = f"{prefix.rpartition('/')[2]}_{number + 1:03d}"
                baseline = answers and data.sound(answers, f"{name}.wav")
                own = {"dimensions": list(row["dimensions"]), "number": number + 1, "baseline": baseline}
                turn = UserTurn(data.sound(sounds, f"{name}.wav"), row["prompt"])
                return Item(f"{prefix}/{name}", subset, (turn,), about | own)

            yield from data.made(path, make)

    def answer_names(self, item: Item, turn: int) -> Sequence[str]:
        """Return the makers' names: below `output_en`, or below the folder of both languages."""
        language, _, name = item.id.partition("/")
        return [name, f"output_{language}/{name}", item.id]

    def baseline(self, item: Item, metric: str) -> str:
        """Return the baseline system of the item's language."""
        return str(item.values["against"])

    def rival(self, item: Item, data: Download) -> Clip:
        """Return the baseline's answer."""
        return data.clip(item.values["baseline"])

    def part_names(self, item: Item) -> Sequence[str]:
        """Return the dimensions, numbered: one may occur twice."""
        return _names(item.values["dimensions"])

    def scoring(self, item: Item, metric: str, answers: Sequence[SystemAnswer], data: Download) -> Question | Parts | Unscored:
        """Ask for the winner of each dimension; the order is drawn from the item's number, as in the makers' code."""
        candidate, rival = data.audio(data.sound_of(answers[0])), data.audio(self.rival(item, data))
        code = f"judge_data/judge_code/{item.values['code']}"
        system, between = data.prompt(code, "system_prompt_judger"), data.prompt(code, "post_audio_1_message")
        dimensions = item.values["dimensions"]
        demand = system.fill(demand=item.turns[0].words, dims_str="、".join(dimensions), dims=dimensions)
        single = "winner_1" not in system.text

        def question(position: int, exchanged: Question | None = None) -> Question:
            first, second = (candidate, rival) if position == 1 else (rival, candidate)
            messages = question_of(demand, first, between.text, second)
            read = _read_winners(tuple(dimensions), single, position)
            return Question(messages, read, system.hash, position=position, exchanged=exchanged)

        position = 1 if random.Random(item.values["number"]).random() < 0.5 else 2
        return question(position, question(3 - position))

    def recorded(self, row: Mapping[str, Any], path: Path) -> SuiteRow | None:
        """Return a verdict of `judge_data/result_v5`. A verdict that failed has no winner, whatever the file says of it."""
        if "judger_model" not in row:
            return None
        dimensions, position = row["dimensions"], row["candidate_position"]
        winners = [row.get(f"winner_position_{n}", row.get("winner_position")) for n in range(1, len(dimensions) + 1)]
        unscored = None if row["status"] == "Success" and set(winners) <= {0, 1, 2} else f"the judge failed: {row['status']}"
        if position not in (1, 2):
            raise DataError(f"candidate_position: {position!r} is not 1 or 2")
        points = {name: _points(winner, position) for name, winner in zip(_names(dimensions), winners, strict=True)}
        return SuiteRow(
            self.name, row["candidate_name"], row["name"].removesuffix(f"_{row['candidate_name']}_vs_{row['baseline_name']}"),
            f"en/{MODULES[row['category']]}", "winner", row["judger_model"], RECORDED, baseline=row["baseline_name"],
            position=position, size=len(dimensions), **({"unscored": unscored} if unscored else row_values(points)),
        )  # fmt: skip

    def table(self, rows: Sequence[SuiteRow]) -> Table:
        """Return the makers' table of each language: percent of the dimensions, the baseline's weighted."""
        tables: Table = {}
        for language in dict.fromkeys(row.subset.partition("/")[0] for row in rows):
            own = [row for row in rows if row.subset.startswith(f"{language}/")]
            for system, columns in _language_table(own).items():
                named = {name if language == "en" else f"{language} {name}": figure for name, figure in columns.items()}
                tables[system] = tables.get(system, {}) | named
        return tables


def _names(dimensions: Sequence[str]) -> list[str]:
    return [f"{number} {name}" for number, name in enumerate(dimensions, 1)]


def _points(winner: object, position: int) -> float:
    return 0.5 if winner == 0 else float(winner == position)


@functools.cache
def _read_winners(dimensions: tuple[str, ...], single: bool, position: int) -> Read:
    keys = ("winner",) if single else tuple(f"winner_{n}" for n in range(1, len(dimensions) + 1))
    read_keys, names = read_json(keys, 0, 2), _names(dimensions)

    def read(text: str) -> dict[str, float]:
        winners = list(read_keys(text).values()) * (len(dimensions) if single else 1)
        for winner in winners:
            in_range("winner", winner if winner.is_integer() else -1, 0, 2)
        return {name: _points(int(winner), position) for name, winner in zip(names, winners, strict=True)}

    return read


def _language_table(rows: Sequence[SuiteRow]) -> Table:
    """Return the columns of one language's systems, with intervals over items."""
    systems = list(dict.fromkeys(row.system for row in rows))
    modules = [name for name in COMPLETE if any(row.subset.endswith(name) for row in rows)]
    clusters = cluster_rows([row.item for row in rows])
    points = np.zeros((int(clusters.max()) + 1, len(systems), len(modules)))
    for row, cluster in zip(rows, clusters, strict=True):
        if row.score is not None:
            points[cluster, systems.index(row.system), modules.index(row.subset.partition("/")[2])] += sum(row.parts.values())
    sizes = np.array([[_dimensions(rows, system, name) for name in modules] for system in systems], dtype=float)

    def percent(drawn: np.ndarray) -> np.ndarray:
        """Return percent [R, systems and baseline, columns] of points [R, systems, modules]."""
        totals = ratio(drawn.sum(2), np.broadcast_to(sizes.sum(1), drawn.shape[:2]))
        shares = np.concatenate([totals[..., None], ratio(drawn, np.broadcast_to(sizes, drawn.shape))], axis=2)
        rest = 1 - ratio((shares**2).sum(1), shares.sum(1))
        return 100 * np.concatenate([shares, rest[:, None]], axis=1)

    values, drawn = percent(points.sum(0)[None])[0], percent(resample(points, RESAMPLES)) if len(points) > 1 else None
    baseline = next((row.baseline for row in rows if row.baseline), "baseline")
    table: Table = {}
    for index, system in enumerate([*systems, baseline]):
        mine = rows if system == baseline else [row for row in rows if row.system == system]
        table[system] = {}
        for at, column in enumerate([OVERALL, *modules]):
            part = mine if column == OVERALL else [row for row in mine if row.subset.endswith(column)]
            value = float(values[index, at])
            ends = percentiles(None if drawn is None else drawn[:, index, at])
            counts = sum(row.score is not None for row in part), len(part)
            table[system][column] = Share(value, *ends, *counts) if np.isfinite(value) else Share(None, None, None, *counts)
    return table


def _dimensions(rows: Sequence[SuiteRow], system: str, module: str) -> int:
    """Return the number of dimensions: of the makers' verdicts all, so that a failure is no point; of ours those judged."""
    own = [row for row in rows if row.system == system and row.subset.endswith(module)]
    items, published = COMPLETE[module]
    recorded = all(row.version == RECORDED for row in own)
    return published if recorded and len(own) == items else sum(row.size for row in own if recorded or row.score is not None)
