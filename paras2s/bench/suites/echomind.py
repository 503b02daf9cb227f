"""EchoMind (arXiv 2510.22758): answers to the same words in three deliveries, scored 1 to 5 in words and in voice.

Items are `data_TYPE/script_info_TYPE.json` with `audio/` beside it (TYPE: synthesis, human), prompts in the makers'
`src/eval-result/evaluation_metric.py`. They publish the voice prompt's system message alone: the line under it, which names the
speaker's state, is ours. NISQA and the measures that need reference answers are left out.
"""

from __future__ import annotations

import functools
import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from paras2s.bench.ranking.answers import SystemAnswer
from paras2s.bench.suites.base import (
    GEMINI,
    OVERALL,
    Item,
    Listed,
    Parts,
    Question,
    Suite,
    SuiteRow,
    UserTurn,
    mean_of,
    of_metric,
    question_of,
    with_part,
)
from paras2s.bench.suites.download import Download
from paras2s.bench.suites.replies import read_json
from paras2s.configs.schema.endpoints import LLMConfig
from paras2s.errors import JudgeError
from paras2s.statistics.intervals import Share
from paras2s.statistics.resampling import mean_by_cluster
from paras2s.types import Unscored

DELIVERIES = ("target", "neutral", "alternative")
WORDS, VOICE = "words", "voice"
RELEVANCE = "speech_information_relevance"
PARTS = ("context_fit", "response_naturalness", "colloquialism_degree", RELEVANCE)
FITTING = 4.0
CODE = "src/eval-result/evaluation_metric.py"
# Names of the speaker's words in the makers' rows.
SPOKEN = ("speak_A", "speaker_A", "speak_a", "script", "utterance", "text")


class EchoMind(Suite):
    """EchoMind."""

    name, title = "echomind", "EchoMind"
    source = "the data set and the repository hlt-cuhksz/EchoMind"
    judge = LLMConfig(model="gpt-4o")
    by_judge = (WORDS, VOICE)
    other_judges: Mapping[str, LLMConfig] = {
        VOICE: LLMConfig(
            base_url=GEMINI, model="gemini-2.5-pro", api_key_env="GEMINI_API_KEY", structured="never", max_output_tokens=16_384
        )
    }

    def items(self, data: Download) -> Iterator[Item]:
        """Yield every delivery of every script."""
        files = {
            f"{kind}{folder}": f"{folder}data_{kind}/script_info_{kind}.json"
            for folder in ("", "dataset/")
            for kind in ("synthesis", "human")
        }
        for name, path in data.present(files).items():
            for items in data.made(path, functools.partial(_deliveries, data, path, name.partition("dataset/")[0])):
                yield from items

    def answer_names(self, item: Item, turn: int) -> Sequence[str]:
        """Return our name, and the makers' keys of their list of answers."""
        return [item.id, item.id.partition("/")[2]]

    def listed(self, answers: Path) -> Mapping[str, Listed]:
        """Return the answers of the makers' *_output_responses.json."""
        listed = {}
        for path in sorted(answers.glob("*_output_responses.json")):
            for row in json.loads(path.read_text(encoding="utf-8")):
                for delivery, said in row.get("output_content", {}).items():
                    info = row.get(f"{delivery}_audio_info", {}).get(f"{delivery}_input_audio_file", "")
                    sound = f"{info.partition('/')[0]}/{said['file']}" if said.get("file") else ""
                    text = said.get("response_text") or said.get("response_audio_transcript") or ""
                    listed[f"{row['case_id']}_{delivery}"] = Listed(sound, text)
        return listed

    def scoring(self, item: Item, metric: str, answers: Sequence[SystemAnswer], data: Download) -> Question | Parts | Unscored:
        """Ask for four scores of the words, or for the empathy of the voice."""
        said = {key: item.values[key] for key in ("spoken_info", "topic")}
        if metric == VOICE:
            system = data.prompt(CODE, "system_prompt")
            state = f"The speaker's state: {said['spoken_info']}. The response speech:"
            messages = question_of(state, data.audio(data.sound_of(answers[0])), system=system.text)
            return Question(messages, read_json(("VES_score",), 1, 5), system.hash)
        if not item.turns[0].words:
            raise JudgeError("the download does not say what the speaker says")
        prompt = data.prompt(CODE, "prompt_template")
        words = data.words(answers[0])
        text = prompt.fill(**said, speak_a=item.turns[0].words, response_transcript=words)
        return Question(question_of(text), read_json(tuple(f"{name}_score" for name in PARTS), 1, 5, PARTS), prompt.hash)

    def columns(self, rows: Sequence[SuiteRow]) -> dict[str, Share]:
        """Return the means over all deliveries, relevance and voice by delivery, and the share of contrasts told apart."""
        words, voice = of_metric(rows, WORDS), of_metric(rows, VOICE)
        own = any(row.score is not None and RELEVANCE not in row.parts for row in words)
        columns = {OVERALL: mean_of(words)} if own else {name: mean_of(with_part(words, name)) for name in PARTS}
        relevance = words if own else with_part(words, RELEVANCE)
        for delivery in DELIVERIES:
            columns[f"{RELEVANCE}, {delivery}"] = mean_of([row for row in relevance if row.subset.endswith(delivery)])
        if voice:
            columns["vocal empathy"] = mean_of(voice)
        fitting: dict[str, float | None] = {}
        for row in relevance:
            before = fitting.get(row.cluster, 1.0)
            fitting[row.cluster] = None if row.score is None or before is None else min(before, float(row.score >= FITTING))
        columns["contrasts told apart"] = mean_by_cluster(list(fitting.values()), list(fitting))
        return columns


def _deliveries(data: Download, path: Path, kind: str, row: dict[str, Any], _: int) -> list[Item]:
    """Return the items of a script; speakers' ages and sexes have no neutral delivery."""
    words = next((str(row[key]) for key in SPOKEN if row.get(key)), "")
    case, items = f"{kind}/{row['case_id']}", []
    for delivery in DELIVERIES:
        info = row.get(f"{delivery}_audio_info") or {}
        if delivery == "target" or info:
            name = info[f"{delivery}_input_audio_file"]
            state = info.get(f"{delivery}_spoken_info") or (row["spoken_info"] if delivery == "target" else delivery)
            values = {"spoken_info": str(state), "topic": str(row.get("topic", ""))}
            turn = UserTurn(data.sound(path.parent / "audio", name), words)
            items.append(Item(f"{case}_{delivery}", f"{kind}/{delivery}", (turn,), values, case))
    return items
