"""SD-Eval (arXiv 2406.13340): text answers to speech with an emotion, accent, age or background sound, rated 1 to 10.

Items are `data/test-{emo,acc,age,env}.json`, sounds `audio_data/...` from eight corpora, prompts the makers' `prompts.py`. An
answer may be a JSON of {utt_id: text}, as the makers take it, or sound, whose words are recognised.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from paras2s.bench.ranking.answers import SystemAnswer
from paras2s.bench.suites.base import Item, Listed, Parts, Question, Suite, UserTurn, question_of
from paras2s.bench.suites.download import Download
from paras2s.bench.suites.replies import read_number
from paras2s.configs.schema.endpoints import LLMConfig
from paras2s.types import Unscored

# The makers' names of a test set and of its prompts.
SETS = {"test-emo": "emotion", "test-acc": "accent", "test-age": "age", "test-env": "env"}
RATING = r"\[+\s*(-?\d+(?:\.\d+)?)\s*\]+"


class SDEval(Suite):
    """SD-Eval."""

    name, title = "sdeval", "SD-Eval"
    source = "the repository amphionspace/SD-Eval; sounds from the corpora that its README names"
    judge = LLMConfig(model="gpt-4o", temperature=0.0, seed=1337)
    by_judge = ("rating",)
    from_text = True

    def items(self, data: Download) -> Iterator[Item]:
        """Yield the utterances of the existing test sets."""
        sounds = data.look_for("audio_data") or data.folder
        for name, path in data.present({name: f"data/{name}.json" for name in SETS}).items():

            def make(row: dict[str, Any], _: int, name: str = name) -> Item:
                turn = UserTurn(data.sound(sounds, row["wav_path"]), row["transcript"])
                return Item(f"{name}/{row['utt_id']}", name, (turn,), {"info": str(row["info"])})

            yield from data.made(path, make)

    def listed(self, answers: Path) -> Mapping[str, Listed]:
        """Return the texts of the makers' JSON, {utt_id: text}: one file a test set, or one for all."""
        listed: dict[str, Listed] = {}
        for path in sorted(answers.glob("*.json")):
            texts = json.loads(path.read_text(encoding="utf-8"))
            prefix = f"{path.stem}/" if path.stem in SETS else ""
            listed |= {f"{prefix}{name}": Listed(text=str(text)) for name, text in texts.items()}
        return listed

    def scoring(self, item: Item, metric: str, answers: Sequence[SystemAnswer], data: Download) -> Question | Parts | Unscored:
        """Ask for the rating of the answer's words."""
        kind = SETS[item.subset]
        system, user = data.prompt("prompts.py", f"{kind}_sys"), data.prompt("prompts.py", f"{kind}_user_input")
        response = answers[0].response.text or data.words(answers[0])
        text = user.fill(statement=item.turns[0].words, info=item.values["info"].title(), response=response)
        return Question(question_of(text, system=system.text), read_number(RATING, 1, 10), system.hash)
