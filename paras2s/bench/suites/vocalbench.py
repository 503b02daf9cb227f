"""VocalBench (arXiv 2505.15727): nine sets of spoken chat, each by its own rule, and their sum of at most 100.

Items are `json/SET.json`, sounds `audio/SET/`, prompts `prompts/`. The recognised words of an answer are scored. A reply of the
judge that cannot be read, which the makers count as 1, has no score here, and emotion2vec's shares are those of the five
emotions that the items rate.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from paras2s.audio.asr import normalise_words
from paras2s.bench.ranking.answers import SystemAnswer
from paras2s.bench.suites.base import (
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
)
from paras2s.bench.suites.download import Download, read_any
from paras2s.bench.suites.measures import emotions, utmos, word_errors
from paras2s.bench.suites.replies import BRACKET, read_number, read_word
from paras2s.configs.schema.endpoints import LLMConfig
from paras2s.errors import JudgeError
from paras2s.statistics.intervals import Share
from paras2s.types import Unscored

# The makers' file of each set.
SETS = {
    "emotion": "emotion", "single_round": "single_round", "multi_round": "multi_round", "instruction": "instruction_following",
    "knowledge": "knowledge", "reasoning": "reasoning", "creativity": "creativity", "safety": "safety", "robust": "robust",
}  # fmt: skip
EMOTIONS = ("angry", "happy", "neutral", "sad", "surprised")
HARDEST = (
    "background_noise/snr_-5", "white_noise/snr_-5", "reverberation/rt60_30", "packet_loss/dropping_70",
    "farfield/filter_400hz", "distortion/clipping_0.0001",
)  # fmt: skip
JUDGED, ACOUSTIC, NATURAL, ERRORS, FOLLOWED, KNOWN = "judged", "emotion, acoustic", "utmos", "word errors", "followed", "known"
# Instructions of this many items at the front are to repeat a sentence: as it is, in an emotion, at a speed, or both.
REPEATED, PLAIN, EMOTIONAL, PACED = 200, 50, 100, 150
MOST_ERRORS, FEWEST_SHARE = 0.2, 0.5
# How long an answer is of the question's, at twice and at half the speed.
LENGTHS = {"twice": (0.25, 0.75), "half": (1.5, 2.5)}


class VocalBench(Suite):
    """VocalBench."""

    name, title = "vocalbench", "VocalBench"
    source = "the repository SJTU-OmniAgent/VocalBench; sounds in the data set VocalNet/VocalBench"
    judge = LLMConfig(
        base_url="https://dashscope.aliyuncs.com/compatible-mode/v1", model="qwen-max-2025-01-25", api_key_env="QWEN_API_KEY",
        temperature=0.0, structured="never",
    )  # fmt: skip
    by_judge = (JUDGED,)
    measured = (ACOUSTIC, NATURAL, ERRORS, FOLLOWED, KNOWN)

    def items(self, data: Download) -> Iterator[Item]:
        """Yield the items of the existing sets."""
        sounds = data.look_for("audio") or data.folder
        for name, path in data.present({name: f"json/{file}.json" for name, file in SETS.items()}).items():

            def make(row: dict[str, Any], _: int, name: str = name) -> Item:
                subset = f"{name}/{row['Category']}/{row['Level']}" if name == "robust" else name
                return Item(f"{name}/{row['Qid']}", subset, (UserTurn(data.sound(sounds, row["Audio"]), row["Question"]),), row)

            yield from data.made(path, make)

    def answer_names(self, item: Item, turn: int) -> Sequence[str]:
        """Return our name, and the makers' in wav/SET."""
        name, qid = item.subset.partition("/")[0], str(item.values["Qid"])
        number = qid.rpartition("-")[2]
        short = [f"wav/{name}/{number}", f"wav/{name}/{int(number)}_pred"] if number.isdigit() and name != "robust" else []
        return [item.id, qid, f"wav/{name}/{qid}", *short]

    def listed(self, answers: Path) -> Mapping[str, Listed]:
        """Return the texts of the makers' json/SET.json."""
        paths = [path for path in sorted(answers.glob("json/*.json")) if path.stem in (*SETS, *SETS.values())]
        rows = [row for path in paths for _, row in read_any(path, [])]
        return {
            str(row["question_id"]): Listed(text=str(row.get("prediction", "")).strip()) for row in rows if "question_id" in row
        }

    def metrics(self, item: Item) -> Sequence[str]:
        """Return the measures of the item's set."""
        name = item.subset.partition("/")[0]
        if name == "instruction":
            return (FOLLOWED,) if PLAIN <= _number(item) < REPEATED else (JUDGED,)
        more = {"emotion": (ACOUSTIC,), "single_round": (NATURAL, ERRORS)}
        return (KNOWN,) if name == "knowledge" else (JUDGED, *more.get(name, ()))

    def scoring(self, item: Item, metric: str, answers: Sequence[SystemAnswer], data: Download) -> Question | Parts | Unscored:
        """Ask the set's question, or compute its rule."""
        if metric == NATURAL:
            return utmos(data.sound_of(answers[0]))
        if metric == ACOUSTIC:
            shares = emotions(data.sound_of(answers[0]))
            total = sum(shares[name] for name in EMOTIONS)
            rated = zip(EMOTIONS, item.values["Score"], strict=True)
            return {"score": sum(shares[name] / total * score for name, score in rated)}
        words = data.words(answers[0])
        if metric == ERRORS:
            if not answers[0].response.text:
                raise JudgeError("no text stream to compare the sound with")
            return {"score": 100 * word_errors(answers[0].response.text, words)}
        if metric == KNOWN:
            return {"score": float(normalise_words(item.values["Answer"]) in normalise_words(words))}
        if metric == FOLLOWED:
            return {"score": float(_repeats(item, words) and _as_instructed(item, answers[0], data))}
        return self._question(item, words, data)

    def _question(self, item: Item, words: str, data: Download) -> Question | Parts:
        name, row = item.subset.partition("/")[0], item.values
        if name == "instruction" and _number(item) < PLAIN and not _repeats(item, words):
            return {"score": 0.0}
        category = str(row.get("Category", "")).lower()
        if name == "instruction" and category in ("content", "style"):
            category += f"_{row['Sub-category'].lower()}"
        file = f"{name}/{category.replace(' ', '_')}" if name in ("creativity", "instruction") else name
        parts = {"Context": f"\n {_context(row)}\n"} if name == "multi_round" else {}
        parts |= {"Question": row["Question"]}
        parts |= {"Question Emotion": row["Question_emo"]} if name == "emotion" else {}
        parts |= {"Standard Answer": row["Answer"]} if name in ("reasoning", "multi_round") else {}
        text = "\n\n  ".join(f"{key}: {value}" for key, value in {**parts, "Response": words}.items())
        prompt = data.prompt(f"prompts/{file}.txt")
        read = read_number(BRACKET, 0, 5)
        if name == "safety":
            read = read_word(("[Succeed Refusal]", 1.0), ("[Failed Refusal]", 0.0))
        if name == "instruction":
            read = read_word(("[Yes]", 1.0), ("[No]", 0.0))
        return Question(question_of(text, system=prompt.text), read, prompt.hash)

    def columns(self, rows: Sequence[SuiteRow]) -> dict[str, Share]:
        """Return the makers' scores of each set, and their sum where all are there."""
        judged = {name: mean_of(_set(of_metric(rows, JUDGED), name)) for name in SETS}
        followed = [row for row in _set(rows, "instruction") if row.metric in (JUDGED, FOLLOWED)]
        columns = {
            "knowledge": mean_of(of_metric(rows, KNOWN), 100), "reasoning": judged["reasoning"],
            "creativity": judged["creativity"], "UTMOS": mean_of(of_metric(rows, NATURAL)),
            "word errors, %": mean_of(of_metric(rows, ERRORS)), "single-round": judged["single_round"],
            "multi-round": judged["multi_round"], "instruction, %": mean_of(followed, 100),
            "emotion, words": judged["emotion"], "emotion, voice": mean_of(of_metric(rows, ACOUSTIC)),
            "safety": judged["safety"], "robustness": _robustness(rows, judged["single_round"]),
        }  # fmt: skip
        present = {name: figure for name, figure in columns.items() if figure.n_asked}
        return {OVERALL: _total(columns), **present}


def _number(item: Item) -> int:
    return int(str(item.values["Qid"]).rpartition("-")[2])


def _set(rows: Sequence[SuiteRow], name: str) -> list[SuiteRow]:
    return [row for row in rows if row.subset.partition("/")[0] == name]


def _context(row: Mapping[str, Any]) -> str:
    names = {"user": "User", "assistant": "Model"}
    return "\n".join(f"{names[turn['from']]}: {turn['value']}" for turn in row["Context"] if turn["from"] in names)


def _repeats(item: Item, words: str) -> bool:
    """Return whether an answer repeats the sentence behind the instruction."""
    return word_errors(item.values["Question"].partition(".")[2], words) < MOST_ERRORS


def _as_instructed(item: Item, answer: SystemAnswer, data: Download) -> bool:
    """Return whether a sentence is repeated in the emotion, and at the speed, that the instruction names."""
    number, (instruction, _, sentence) = _number(item), item.values["Question"].partition(".")
    sound, fits = data.sound_of(answer), True
    if number < EMOTIONAL or number >= PACED:
        named = next((name for name in EMOTIONS if name in item.values["Question"].lower()), "unknown")
        fits = emotions(sound)[named] > FEWEST_SHARE
    if number >= EMOTIONAL:
        low, high = next((ends for word, ends in LENGTHS.items() if word in instruction.lower()), (0.0, 0.0))
        words = [len(text.split()) for text in (sentence, item.values["Question"])]
        question_s = data.clip(item.turns[0].clip).duration_s * words[0] / words[1]
        fits = fits and low * question_s < sound.duration_s < high * question_s
    return fits


def _robustness(rows: Sequence[SuiteRow], clean: Share) -> Share:
    """Return the sum over the hardest noises of what is left of the clean score, 2.5 each."""
    noisy = _set(of_metric(rows, JUDGED), "robust")
    means = [mean_of([row for row in noisy if row.subset == f"robust/{name}"]).value for name in HARDEST]
    kept = [2.5 * min(1.0, mean / clean.value) for mean in means if mean is not None and clean.value]
    counts = sum(row.score is not None for row in noisy), len(noisy)
    return Share(sum(kept) if len(kept) == len(HARDEST) else None, None, None, *counts)


def _total(columns: Mapping[str, Share]) -> Share:
    """Return the makers' sum of all scores; not defined where one is missing."""
    counts = sum(figure.n for figure in columns.values()), sum(figure.n_asked for figure in columns.values())
    if any(figure.value is None for figure in columns.values()):
        return Share(None, None, None, *counts)
    value = {name: figure.value or 0.0 for name, figure in columns.items()}
    clear = max(1.0, 10.0 - value["word errors, %"] // 2)
    total = (
        (value["knowledge"] + value["instruction, %"]) / 10
        + clear
        + value["UTMOS"]
        + value["robustness"]
        + 10 * value["safety"]
    )
    total += 2 * (value["reasoning"] + value["creativity"] + value["single-round"])
    return Share(total + value["emotion, words"] + value["emotion, voice"], None, None, *counts)
