"""MTalk-Bench (arXiv 2508.18240): spoken dialogues of several turns, by rubrics and in an arena.

Items are the data set's records, exported to `records.jsonl` (type, number, turn, source, transcription, audio_path, and of
questions rubric_prompt_general, rubric_prompt_specific, arena_prompt). A judge hears the dialogue as one recording, with the
makers' announcements where `asset/` is there. A rubric's score is the share of its criteria that the reply marks as met; the
arena compares with a system of the data, `ARENA_AGAINST`, else the first.
"""

from __future__ import annotations

import functools
import json
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from paras2s.audio.clip import Clip
from paras2s.bench.ranking.answers import SystemAnswer
from paras2s.bench.suites.base import (
    OVERALL,
    Item,
    Parts,
    Question,
    Suite,
    SuiteRow,
    UserTurn,
    mean_columns,
    mean_of,
    of_metric,
    question_of,
)
from paras2s.bench.suites.download import JUDGED_RATE_HZ, Download
from paras2s.bench.suites.replies import Read
from paras2s.configs.schema.endpoints import LLMConfig
from paras2s.errors import JudgeError
from paras2s.reward.judges.parsing import OPENING, agreed, verdict_objects
from paras2s.statistics.intervals import Share
from paras2s.types import Unscored

KINDS = {"sem": "Semantic information", "para": "Paralinguistic information", "amb": "Ambient sound"}
GENERAL, SPECIFIC, ARENA = "rubric, general", "rubric, specific", "arena"
PROMPTS = {GENERAL: "rubric_prompt_general", SPECIFIC: "rubric_prompt_specific", ARENA: "arena_prompt"}
ARENA_AGAINST = "GPT-4o"
SILENCE_S = 1.0
MET = {"yes": 1.0, "met": 1.0, "true": 1.0, "no": 0.0, "not met": 0.0, "unmet": 0.0, "false": 0.0}
WINNERS = {"Model A": 1.0, "Model B": 0.0}


class MTalkBench(Suite):
    """MTalk-Bench."""

    name, title = "mtalk", "MTalk-Bench"
    source = "the data set FreedomIntelligence/MTalk-Bench; code and announcements in the repository of that name"
    judge = LLMConfig(model="gpt-4o-audio-preview", temperature=0.1, structured="never")
    by_judge = (GENERAL, SPECIFIC, ARENA)

    def items(self, data: Download) -> Iterator[Item]:
        """Yield the dialogues, each of the records of its type and number."""
        records = data.made(
            data.find("records.jsonl"), lambda row, _: (str(row["type"]), str(row["number"]), row["source"], row)
        )
        dialogues: dict[tuple[str, str], dict[int, dict[str, Any]]] = {}
        for kind, number, source, row in records:
            turns = dialogues.setdefault((kind, number), {})
            turns.setdefault(int("".join(filter(str.isdigit, str(row.get("turn", 0))))), {})[source] = row
        for (kind, number), turns in dialogues.items():
            sides = [turns[turn] for turn in sorted(turns)]
            if not all("question" in side for side in sides):
                data.problems.append(f"{kind}/{number}: a turn has no question")
                continue
            questions = [side["question"] for side in sides]
            spoken = tuple(
                UserTurn(data.sound(data.folder, str(row.get("audio_path"))), row.get("transcription", "")) for row in questions
            )
            names = [name for name in sides[0] if name != "question" and all(name in side for side in sides)]
            against = ARENA_AGAINST if ARENA_AGAINST in names else next(iter(names), "")
            clips = [data.sound(data.folder, str(side[against].get("audio_path"))) for side in sides] if against else []
            prompts = {key: next((row[key] for row in questions if row.get(key)), "") for key in PROMPTS.values()}
            yield Item(f"{kind}/{number}", KINDS.get(kind, kind), spoken, {**prompts, "against": against, "clips": clips})

    def answer_names(self, item: Item, turn: int) -> Sequence[str]:
        """Return our name, and the makers'."""
        kind, _, number = item.id.partition("/")
        return [item.turn_name(turn), f"{kind}/{number}-turn{turn + 1}", f"{number}-turn{turn + 1}_{kind}_answer"]

    def metrics(self, item: Item) -> Sequence[str]:
        """Return the measures whose prompts the download has; the arena where there is another system's dialogue."""
        return [name for name, key in PROMPTS.items() if item.values[key] and (name != ARENA or item.values["clips"])]

    def baseline(self, item: Item, metric: str) -> str:
        """Return the system that the arena compares with."""
        return str(item.values["against"]) if metric == ARENA else ""

    def scoring(self, item: Item, metric: str, answers: Sequence[SystemAnswer], data: Download) -> Question | Parts | Unscored:
        """Ask by a rubric about the dialogue, or for the better one of two."""
        text = str(item.values[PROMPTS[metric]])
        own = self._dialogue(item, [data.sound_of(answer) for answer in answers], data)
        if metric != ARENA:
            return Question(question_of(text, data.audio(joined(own))), read_rubric)
        other = self._dialogue(item, [data.clip(path) for path in item.values["clips"]], data)

        def question(position: int, exchanged: Question | None = None) -> Question:
            sides = (own, other) if position == 1 else (other, own)
            parts = [[*_hint(data, f"dialogue_with_model_{letter}"), *side] for letter, side in zip("ab", sides, strict=True)]
            recording = data.audio(joined([clip for part in parts for clip in part]))
            return Question(question_of(text, recording), _read_winner(position), position=position, exchanged=exchanged)

        # By the item, so that an item's order is the same in every run.
        position = 1 + sum(map(ord, item.id)) % 2
        return question(position, question(3 - position))

    def _dialogue(self, item: Item, answers: Sequence[Clip], data: Download) -> list[Clip]:
        clips = list[Clip]()
        for number, (turn, answer) in enumerate(zip(item.turns, answers, strict=True), 1):
            clips += [*_hint(data, f"turn_{number}"), data.clip(turn.clip), *_hint(data, "models_response"), answer]
        return clips

    def columns(self, rows: Sequence[SuiteRow]) -> dict[str, Share]:
        """Return one system's rubrics and battles."""
        rubrics = [row for row in rows if row.metric != ARENA]
        columns = mean_columns(rubrics) if rubrics else {}
        columns = {OVERALL: columns.pop(OVERALL), **columns} if columns else {}
        return {**columns, **({"battles won": mean_of(of_metric(rows, ARENA))} if of_metric(rows, ARENA) else {})}


def _hint(data: Download, name: str) -> list[Clip]:
    path = data.look_for(f"asset/{name}.wav")
    return [] if path is None else [data.clip(path)]


def joined(clips: Sequence[Clip]) -> Clip:
    """Return clips one after the other, a second of silence behind each."""
    silence = np.zeros(round(SILENCE_S * JUDGED_RATE_HZ), dtype=np.float32)
    return Clip(np.concatenate([part for clip in clips for part in (clip.at(JUDGED_RATE_HZ).samples, silence)]), JUDGED_RATE_HZ)


def read_rubric(text: str) -> dict[str, float]:
    """Read the share of a rubric's criteria that are met from a JSON object of marks (yes, true, 1). Raises JudgeError."""
    for opening in OPENING.finditer(text):
        try:
            value, _ = json.JSONDecoder().raw_decode(text, opening.start())
        except ValueError:
            continue
        marks = list(_marks(value))
        if marks:
            return {"score": sum(marks) / len(marks)}
    raise JudgeError("the reply holds no JSON object with marks of criteria")


def _marks(value: Any) -> Iterator[float]:
    if isinstance(value, dict | list):
        for mark in value.values() if isinstance(value, dict) else value:
            yield from _marks(mark)
    elif isinstance(value, bool | int | float):
        if value not in (0, 1):
            raise JudgeError(f"a criterion's mark of {value} is neither 0 nor 1")
        yield float(value)
    elif isinstance(value, str) and value.strip().lower() in MET:
        yield MET[value.strip().lower()]


@functools.cache
def _read_winner(position: int) -> Read:
    def read(text: str) -> dict[str, float]:
        winner = agreed([verdict["winner"] for verdict in verdict_objects(text, ("winner",)) if "winner" in verdict])
        if winner not in WINNERS:
            raise JudgeError(f"winner: {winner!r} is neither Model A nor Model B")
        return {"score": WINNERS[winner] if position == 1 else 1 - WINNERS[winner]}

    return read
