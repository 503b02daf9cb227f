"""T3 from ESD, in English or in Chinese: a recording with the emotion of a scene against a hard negative (UniSRM, section 3).

The layout of the release: a folder for each speaker, 0001 to 0010 Chinese and 0011 to 0020 English, with SPEAKER.txt (name,
words and emotion, between tabs, in one of four encodings) and folders by emotion, in some releases with train, evaluation and
test below them. A line of words in another form gives no recording, and is counted.

One fault to a negative: a recording of the same speaker with another emotion, other words, or both; or synthetic speech with
another emotion, of the same words or of words that an LLM writes for the scene. A synthetic negative's emotion is that of its
prompt, or of its style for a voice of its own, and is never the target emotion. Splits share no speaker and no sentence.
"""

from __future__ import annotations

import codecs
import random
import re
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Literal, get_args

from paras2s.configs.schema.unisrm_data import Language, SplitName, UniSRMDataConfig
from paras2s.errors import DataError, JudgeError
from paras2s.unisrm.data_gen.builders.plans import (
    ORDER,
    Builder,
    PairPlan,
    Recording,
    Shares,
    Source,
    Synthetic,
    shuffled_pair,
    text_key,
)
from paras2s.unisrm.data_gen.builders.preference import read_readers, split_readers
from paras2s.unisrm.data_gen.builders.writer import Writer
from paras2s.unisrm.data_gen.layouts.entries import Dropped
from paras2s.utils.io import without_mac_files

SPEAKER = re.compile(r"\d{4}")
LAST_CHINESE_SPEAKER = 10
# ESD's emotions, and our styles for voices of their own.
STYLES = {"Neutral": "neutral", "Angry": "angry", "Happy": "happy", "Sad": "sad", "Surprise": "surprised"}
# What a system that takes instructions in words is given at random beside the emotion.
RATES = ("slowly", "at an ordinary pace", "quickly")
ROLES = ("a teacher", "a reporter", "a neighbour", "a shop assistant", "a grandparent")
Fault = Literal["emotion", "words", "words and emotion", "synthetic emotion", "synthetic words"]
FAULTS: tuple[Fault, ...] = get_args(Fault)
LAYOUT = (
    "expected ESD's folders 0001 to 0020, each with SPEAKER.txt and Angry/SPEAKER_000351.wav, Happy, Neutral, Sad, Surprise"
)


def read_esd(root: Path, language: Language) -> tuple[list[Recording], Counter[str]]:
    """Return one language's recordings, sorted, and counts of unusable clips and lines by reason. Raises DataError: none."""
    folders = sorted(folder for folder in root.glob("*") if folder.is_dir() and SPEAKER.fullmatch(folder.name))
    own = [folder for folder in folders if (int(folder.name) <= LAST_CHINESE_SPEAKER) == (language == "zh")]
    if not own:
        raise DataError(f"{root}: no folder of a speaker of {language}; {LAYOUT}")
    recordings: list[Recording] = []
    dropped: Counter[str] = Counter()
    for folder in own:
        words = _words(folder / f"{folder.name}.txt", language, dropped)
        for clip in without_mac_files(folder.rglob("*.wav")):
            emotions = [part for part in clip.relative_to(folder).parts if part in STYLES]
            if not emotions or not words.get(clip.stem):
                dropped["a clip without an emotion's folder" if not emotions else "a clip without words"] += 1
                continue
            recordings.append(Recording(clip, words[clip.stem], f"esd:{folder.name}", emotions[0]))
    if not recordings:
        raise DataError(f"{root}: no clip has its words; {LAYOUT}")
    return recordings, dropped


def _words(path: Path, language: Language, dropped: Counter[str]) -> dict[str, str]:
    """Return the words by the name of a clip."""
    words = {}
    for line in _text(path, language).splitlines():
        parts = [part.strip() for part in line.split("\t")]
        if len(parts) >= 2 and parts[0] and parts[1]:
            words[parts[0]] = parts[1]
        elif line.strip():
            dropped["a line of words that is not NAME, WORDS, EMOTION"] += 1
    return words


def _text(path: Path, language: Language) -> str:
    """Decode a transcript, whose encoding differs by speaker: UTF-16 or UTF-8, else GB 18030 or Latin-1 by language."""
    try:
        data = path.read_bytes()
    except OSError as error:
        raise DataError(f"{path}: cannot be read ({error.strerror}); {LAYOUT}") from error
    if data.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)):
        return data.decode("utf-16", "replace")
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError:
        return data.decode("gb18030" if language == "zh" else "latin-1", "replace")


class ScenarioBuilder(Builder):
    """Planner of T3 in one language."""

    task = "T3"

    def __init__(self, config: UniSRMDataConfig, root: Path, language: Language) -> None:
        """Read the corpus. Raises DataError: it is not laid out as published."""
        self.language, self.corpus = language, f"esd-{language}"
        self.data_set = "T3-en" if language == "en" else "T3-zh"
        super().__init__(config)
        recordings, dropped = read_esd(root, language)
        self.dropped.update({("", reason): count for reason, count in dropped.items()})
        speakers = self.shuffled(sorted({recording.speaker for recording in recordings}), "speakers")
        shares = Shares(self.sizes)
        split_of = {name: shares.allot(1) for name in speakers}
        count = Counter(split_of.values())
        # Each sentence is spoken by every speaker of its split.
        texts = Shares({split: size / max(1, count[split]) for split, size in self.sizes.items()})
        keys = self.shuffled(sorted({text_key(recording.text) for recording in recordings}), "sentences")
        split_of |= {key: texts.allot(1) for key in keys}
        self.recordings: dict[SplitName, list[Recording]] = {
            split: [
                recording
                for recording in recordings
                if split_of[recording.speaker] == split == split_of[text_key(recording.text)]
            ]
            for split in ORDER
        }
        apart = len(recordings) - sum(map(len, self.recordings.values()))
        if apart:
            self.dropped["", "a recording whose speaker and sentence are in different splits"] = apart
        self._prompts = self._read_prompts()

    def _read_prompts(self) -> dict[SplitName, list[Recording]]:
        """Read neutral prompts from LibriTTS-R by split."""
        prompts: dict[SplitName, list[Recording]] = {split: [] for split in ORDER}
        if self.config.prompt_corpus is not None:
            readers = read_readers(self.config.prompt_corpus)
            for name, split in split_readers(self.config, readers).items():
                prompts[split] += [replace(recording, emotion="Neutral") for recording in readers[name]]
        return prompts

    def groups(self, split: SplitName) -> Iterator[list[PairPlan]]:
        """Yield each recording with one fault, then each with another one, as long as there are faults."""
        recordings = self.shuffled(self.recordings[split], "recordings", split)
        faults = FAULTS if self.voices(split, self.language) else FAULTS[:3]
        by_speaker: dict[str, list[Recording]] = defaultdict(list)
        for recording in recordings:
            by_speaker[recording.speaker].append(recording)
        for turn in range(len(faults)):
            for recording in recordings:
                fault = self.shuffled(faults, "faults", recording.path.stem)[turn]
                dice = self.dice(recording.path.stem, fault)
                negative = self._negative(split, recording, fault, by_speaker[recording.speaker], dice)
                if negative is None:
                    self.dropped[split, f"no negative of the kind {fault}"] += 1
                else:
                    yield [self._plan(split, recording, fault, negative, dice)]

    def _negative(
        self, split: SplitName, recording: Recording, fault: Fault, own: Sequence[Recording], dice: random.Random
    ) -> Source | None:
        """Plan a negative for a recording; `own` are its speaker's recordings. None if the split has none."""
        if fault in ("synthetic emotion", "synthetic words"):
            return self._synthetic(split, recording, dice)
        words, emotion = "words" in fault, "emotion" in fault
        able = [
            other for other in own
            if (text_key(other.text) != text_key(recording.text)) == words and (other.emotion != recording.emotion) == emotion
        ]  # fmt: skip
        return dice.choice(able) if able else None

    def _synthetic(self, split: SplitName, recording: Recording, dice: random.Random) -> Source | None:
        voice = dice.choice(self.voices(split, self.language))
        emotion = dice.choice([name for name in STYLES if name != recording.emotion])
        if not voice.copies:
            manner = f"Speak {dice.choice(RATES)}, like {dice.choice(ROLES)}, and sound {STYLES[emotion]}."
            return Synthetic(recording.text, voice, None, STYLES[emotion], manner if voice.engine == "openai" else "")
        able = [other for other in (*self.recordings[split], *self._prompts[split]) if other.emotion == emotion]
        return Synthetic(recording.text, voice, dice.choice(able)) if able else None

    def _plan(self, split: SplitName, recording: Recording, fault: Fault, negative: Source, dice: random.Random) -> PairPlan:
        candidates, better = shuffled_pair(recording, negative, dice)
        emotion = STYLES[recording.emotion]
        factors = {
            "fault": fault, "emotion": emotion, "language": self.language,
            "engine_a": candidates[0].engine, "engine_b": candidates[1].engine,
        }  # fmt: skip
        return PairPlan(
            f"{self.corpus}-{recording.path.stem}-{fault.replace(' ', '-')}", "T3", split, text_key(recording.text), None,
            {"target_emotion": emotion, "target_text": recording.text}, {}, candidates, better, factors,
            "sentence" if fault == "synthetic words" else None,
        )  # fmt: skip

    def complete(self, plans: Sequence[PairPlan], writer: Writer) -> list[PairPlan | Dropped]:
        """Write scenes for all, and other sentences for pairs whose negative has wrong words."""
        values = [{"sentence": plan.texts["target_text"], "emotion": plan.texts["target_emotion"]} for plan in plans]
        made: list[PairPlan | Dropped] = []
        for plan, scene in zip(plans, writer.scenes(values, self.language), strict=True):
            if isinstance(scene, JudgeError):
                made.append(Dropped(plan.id, f"no scene: {scene}"))
            else:
                made.append(replace(plan, texts={**dict(scene), **plan.texts}))
        lacking = [plan for plan in made if isinstance(plan, PairPlan) and plan.writes]
        values = [
            {
                "scene": plan.texts["scenario_description"], "context": plan.texts["paragraph_context"],
                "sentence": plan.texts["target_text"],
            }
            for plan in lacking
        ]  # fmt: skip
        written = dict(zip((plan.id for plan in lacking), writer.sentences(values, self.language), strict=True))
        return [with_words(plan, written[plan.id]) if isinstance(plan, PairPlan) and plan.writes else plan for plan in made]


def with_words(plan: PairPlan, words: str | JudgeError) -> PairPlan | Dropped:
    """Return the pair with the words that an LLM wrote for its worse candidate."""
    if isinstance(words, JudgeError):
        return Dropped(plan.id, f"no wrong words: {words}")
    first, second = (
        replace(source, text=words) if side != plan.better and isinstance(source, Synthetic) else source
        for side, source in zip("AB", plan.candidates, strict=True)
    )
    return replace(plan, candidates=(first, second))
