"""VStyle (arXiv 2509.09716): speaking in a requested style, in English and Chinese, scored 1 to 5 by a model that hears it.

Items are `LANG/metadata.jsonl` with the sounds beside it, prompts `lalm_eval/eval_prompts/LANG/CATEGORY.txt`. Answers may come
with the makers' `metadata.jsonl`. Each category weighs a quarter; composite properties are half of the acoustic attributes.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from paras2s.bench.ranking.answers import SystemAnswer
from paras2s.bench.suites.base import (
    GEMINI,
    OVERALL,
    RECORDED,
    Item,
    Listed,
    Parts,
    Question,
    Suite,
    SuiteRow,
    UserTurn,
    by_language,
    question_of,
    weighted_mean,
)
from paras2s.bench.suites.download import Download, read_any
from paras2s.bench.suites.replies import BRACKETS, in_range, read_number
from paras2s.configs.schema.endpoints import LLMConfig
from paras2s.errors import JudgeError
from paras2s.statistics.intervals import Share
from paras2s.types import Unscored

COMPOSITE = "acoustic_attributes/composite_properties"
ABILITIES = {
    "acoustic_attributes": ("age", "speed", "gender", "emotion", "pitch", "volume", "composite_properties"),
    "instruction": ("emotion", "variation", "style"),
    "role_play": ("character", "scenario"),
    "empathy": ("anger", "sadness_disappointment", "anxiety_fear", "joy_excitement"),
}
SOUND_KEYS = ("instruct_audio_path", "instruction_audio_path", "file_name", "audio_path", "audio")
# A person's score names no model; the judge's score of the same id does.
UNNAMED = ""


def category_weights(category: str) -> dict[str, float]:
    """Return the weights of a category's abilities."""
    names = [f"{category}/{name}" for name in ABILITIES[category]]
    rest = len(names) - (COMPOSITE in names)
    return {name: 0.5 if name == COMPOSITE else (0.5 if COMPOSITE in names else 1.0) / rest for name in names}


WEIGHTS = {name: weight for category in ABILITIES for name, weight in category_weights(category).items()}


class VStyle(Suite):
    """VStyle."""

    name, title = "vstyle", "VStyle"
    source = "the data set zhanjun/VStyle; prompts in the repository alibaba/vstyle"
    judge = LLMConfig(
        base_url=GEMINI, model="gemini-2.5-pro", api_key_env="GEMINI_API_KEY", temperature=None, structured="never",
        max_output_tokens=16_384,
    )  # fmt: skip
    by_judge = ("style",)

    def items(self, data: Download) -> Iterator[Item]:
        """Yield the instructions of both languages, as far as they are there."""
        for language, path in data.present({name: f"{name}/metadata.jsonl" for name in ("en", "zh")}).items():

            def make(row: dict[str, Any], _: int, language: str = language, folder: Path = path.parent) -> Item:
                category, _, ability = row["ability"].partition("/")
                if ability not in ABILITIES.get(category, ()):
                    raise ValueError(f"ability: {row['ability']!r} is unknown")
                number = row.get("instruct_id", row.get("id"))
                name = next((row[key] for key in SOUND_KEYS if row.get(key)), f"wav/{number}.wav")
                sound = data.sound(folder if "/" in name else folder / "wav", name)
                return Item(f"{language}/{number}", f"{language}/{row['ability']}", (UserTurn(sound, row["instruct_text"]),))

            yield from data.made(path, make)

    def listed(self, answers: Path) -> Mapping[str, Listed]:
        """Return the answers of the makers' metadata.jsonl, in the folder or in one a language."""
        listed = {}
        for folder in (folder for name in ("", "en", "zh") if ((folder := answers / name) / "metadata.jsonl").is_file()):
            for _, row in read_any(folder / "metadata.jsonl", []):
                sounds = [folder / part / str(row.get("response_audio_path")) for part in ("", "wav")]
                sound = next((path.relative_to(answers).as_posix() for path in sounds if path.is_file()), "")
                name = f"{language_of(str(row.get('instruct_text', '')))}/{row.get('instruct_id')}"
                listed[name] = Listed(sound, str(row.get("response_text", "")).strip())
        return listed

    def scoring(self, item: Item, metric: str, answers: Sequence[SystemAnswer], data: Download) -> Question | Parts | Unscored:
        """Ask for the score of the answer's sound, by the category's prompt."""
        language, _, ability = item.subset.partition("/")
        prompt = data.prompt(f"lalm_eval/eval_prompts/{language}/{ability.partition('/')[0]}.txt")
        text = prompt.fill(instruction_type=ability, input_instruction=item.turns[0].words)
        read = read_number(BRACKETS, 1, 5, last=True)
        return Question(question_of(text, data.audio(data.sound_of(answers[0]))), read, prompt.hash)

    def recorded(self, row: Mapping[str, Any], path: Path) -> SuiteRow | None:
        """Return a judge's score (`gemini_score`) or a person's (`mos`), whose name is the file's."""
        key = next((name for name in ("gemini_score", "mos") if name in row), None)
        if key is None:
            return None
        by = "gemini" if key == "gemini_score" else path.stem
        language = language_of(str(row.get("instruct_text", ""))) if row.get("instruct_text") else path.parent.name[:2]
        values: dict[str, Any] = {}
        try:
            score = in_range(key, float(row[key]), 1, 5)
            values = {"score": score, "parts": {"score": score}}
        except (TypeError, ValueError, JudgeError) as error:
            values = {"unscored": str(error) if isinstance(error, JudgeError) else f"{key}: {row[key]!r}"}
        system = str(row.get("model_name") or UNNAMED)
        return SuiteRow(
            self.name, system, f"{row['id']}_{row['instruct_id']}", f"{language}/{row['ability']}", "style", by, RECORDED,
            cluster=f"{language}/{row['instruct_id']}", **values,
        )  # fmt: skip

    def columns(self, rows: Sequence[SuiteRow]) -> dict[str, Share]:
        """Return the weighted means of the makers' table; a mean over fewer abilities would not compare, and is left out."""
        return by_language(rows, _columns)


def _columns(rows: Sequence[SuiteRow]) -> dict[str, Share]:
    def ability(row: SuiteRow) -> str:
        return row.subset.partition("/")[2]

    columns = {name: weighted_mean(rows, ability, category_weights(name)) for name in ABILITIES}
    return {OVERALL: weighted_mean(rows, ability, WEIGHTS), **columns}


def language_of(text: str) -> str:
    """Return "zh" for a text with Chinese characters, "en" for others."""
    return "zh" if re.search(r"[一-鿿]", text) else "en"
