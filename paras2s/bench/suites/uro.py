"""URO-Bench (arXiv 2502.17810): 40 sets of spoken dialogue in two languages, of one and of several turns, in percent.

Items are `{basic,pro}/SET/test.jsonl` with their sounds, prompts in the makers' `metrics/mark_gpt.py` and `mark_gemini.py`. A
score of 1 to 5 counts 20 each. Repeat counts the words that are right where at least half are; GenEmotion emotion2vec's share
of the emotion, times the words that are right. A reply that cannot be read, and silence, have no score; the makers count a 0.
"""

from __future__ import annotations

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
    mean_columns,
    mean_of,
    of_metric,
    question_of,
)
from paras2s.bench.suites.download import Download, read_any
from paras2s.bench.suites.measures import emotions, utmos, word_errors
from paras2s.bench.suites.replies import BARE, read_number, read_word
from paras2s.configs.schema.endpoints import LLMConfig
from paras2s.statistics.intervals import Share
from paras2s.types import Unscored

# The makers' rule of each set; its name ends in "-zh" where it is Chinese.
MODES = {
    "open": "AlpacaEval CommonEval WildchatEval AlpacaEval-zh Claude-zh Wildchat-zh",
    "semi_open": "Summary StoralEval TruthfulEval LCSTS-zh CodeSwitching-en CodeSwitching-zh",
    "qa": "GaokaoEval Gsm8kEval MLC HSK5-zh SQuAD-zh APE-zh MLC-zh OpenbookQA-zh ClothoEval-en MuChoEval-en MLCpro-en "
    "MLCpro-zh",
    "wer": "Repeat Repeat-zh",
    "ue": "UnderEmotion-en UnderEmotion-zh",
    "ge": "GenEmotion-en GenEmotion-zh",
    "gs": "GenStyle-en GenStyle-zh",
    "sf": "Safety-en Safety-zh",
    "srt": "SRT-en SRT-zh",
    "ml": "Multilingual",
    "multi": "MtBenchEval-en",
    "sa": "SpeakerAware-en SpeakerAware-zh",
}
MODE_OF = {name: mode for mode, names in MODES.items() for name in names.split()}
# What users of speech for style look at first.
FIRST = ("UnderEmotion", "GenEmotion", "GenStyle", "SRT", "SpeakerAware")
JUDGED, SUNG, COMPUTED, NATURAL = "judged", "sung", "computed", "utmos"
POINTS = 20.0


class UROBench(Suite):
    """URO-Bench."""

    name, title = "uro", "URO-Bench"
    source = "the data set Honggao/URO-Bench; prompts in the repository Ruiqi-Yan/URO-Bench"
    judge = LLMConfig(model="gpt-4o-mini", temperature=0.5, top_p=0.95, max_output_tokens=1024)
    other_judges: Mapping[str, LLMConfig] = {
        SUNG: LLMConfig(base_url=GEMINI, model="gemini-2.0-flash", api_key_env="GEMINI_API_KEY", structured="never")
    }
    by_judge = (JUDGED, SUNG)
    measured = (COMPUTED, NATURAL)

    def items(self, data: Download) -> Iterator[Item]:
        """Yield the items of the existing sets, those of style first."""
        names = sorted(MODE_OF, key=lambda name: (not name.startswith(FIRST), name))
        files = {f"{level}/{name}": f"{level}/{name}/test.jsonl" for name in names for level in ("basic", "pro")}
        for subset, path in data.present(files).items():

            def make(row: dict[str, Any], number: int, subset: str = subset, folder: Path = path.parent) -> Item:
                rounds = row.get("dialogue", [row])
                turns = tuple(UserTurn(data.sound(folder, side["source_wav"]), str(side["source_text"])) for side in rounds)
                values: dict[str, Any] = {key: str(row[key]) for key in ("emotion", "style", "language") if key in row}
                answers = [side.get("target_text", "") for side in rounds]
                values["references"] = [text if isinstance(text, str) else "\n".join(map(str, text)) for text in answers]
                values["rounds"] = [side.get("round", turn) for turn, side in enumerate(rounds)]
                name = row["id"] if "dialogue" in row else f"{number:04d}"
                return Item(f"{subset}/{name}", subset, turns, values)

            yield from data.made(path, make)

    def answer_names(self, item: Item, turn: int) -> Sequence[str]:
        """Return our name, and the makers': audio/0000, or ID/chat_ROUND of several turns."""
        name = item.id.rpartition("/")[2]
        if len(item.turns) > 1:
            return [item.turn_name(turn), f"{item.id}/chat_{item.values['rounds'][turn]}"]
        return [item.id, f"{item.subset}/audio/{name}"]

    def listed(self, answers: Path) -> Mapping[str, Listed]:
        """Return the texts of the makers' pred_text.jsonl and output_with_text.jsonl."""
        texts: dict[str, Any] = {}
        for path in sorted(answers.glob("*/*/*.jsonl")):
            subset = path.parent.relative_to(answers).as_posix()
            for _, row in read_any(path, []):
                if path.name == "pred_text.jsonl":
                    texts |= {f"{subset}/{name}": text for name, text in row.items()}
                elif path.name == "output_with_text.jsonl":
                    texts |= {f"{subset}/{row['id']}/chat_{side['round']}": side["output_text"] for side in row["dialogue"]}
        return {name: Listed(text=str(text).strip()) for name, text in texts.items()}

    def metrics(self, item: Item) -> Sequence[str]:
        """Return the measure of the item's set, and UTMOS of a single answer."""
        mode = MODE_OF[item.subset.partition("/")[2]]
        own = COMPUTED if mode in ("wer", "ge") else SUNG if mode == "srt" else JUDGED
        return (own,) if len(item.turns) > 1 else (own, NATURAL)

    def scoring(self, item: Item, metric: str, answers: Sequence[SystemAnswer], data: Download) -> Question | Parts | Unscored:
        """Ask the set's question, or compute its rule."""
        name = item.subset.partition("/")[2]
        mode, language = MODE_OF[name], "zh" if name.endswith("-zh") else "en"
        references, words = item.values["references"], [turn.words for turn in item.turns]
        if metric == NATURAL:
            return utmos(data.sound_of(answers[0]))
        if mode == "srt":
            prompt = data.prompt("metrics/mark_gemini.py", "template")
            sound = data.audio(data.sound_of(answers[0]))
            return Question(
                question_of(prompt.fill(question=words[0]), sound), read_number(BARE, 1, 5, scale=POINTS), prompt.hash
            )
        # The words of a language that is not recognised here are those of the model's text stream.
        spoken = [data.words(answer, "other" if mode == "ml" else language) for answer in answers]
        if metric == COMPUTED:
            right = 1 - word_errors(references[0], spoken[0], language)
            if mode == "ge":
                return {"score": 100 * right * emotions(data.sound_of(answers[0]))[item.values["emotion"]]}
            return {"score": 100 * right * (right >= 0.5)}
        several = f"prompt_multi{len(words)}" if mode == "multi" else f"prompt_{mode}"
        prompt = data.prompt("metrics/mark_gpt.py", several)
        numbers = [""] if len(words) == 1 else [str(n) for n in range(1, len(words) + 1)]
        values = {f"question{n}": text for n, text in zip(numbers, words, strict=True)}
        values |= {f"answer{n}": text for n, text in zip(numbers, spoken, strict=True)}
        values |= {f"reference{n}": text for n, text in zip(numbers, references, strict=True)}
        values |= {key: item.values[key] for key in ("emotion", "style", "language") if key in item.values}
        read = read_word(("Yes", 100.0), ("No", 0.0)) if mode == "qa" else read_number(BARE, 1, 5, scale=POINTS)
        messages = question_of(prompt.fill(**values), system="You are a helpful assistant.")
        return Question(messages, read, prompt.hash, samples=3)

    def columns(self, rows: Sequence[SuiteRow]) -> dict[str, Share]:
        """Return every set's mean, overall the mean of the sets' means as in the makers' table, and UTMOS."""
        columns = mean_columns([row for row in rows if row.metric != NATURAL], lambda row: row.subset.partition("/")[2])
        natural = of_metric(rows, NATURAL)
        return {OVERALL: columns.pop(OVERALL), **columns, **({"UTMOS": mean_of(natural)} if natural else {})}
