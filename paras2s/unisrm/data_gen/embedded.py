"""The embedded edition of UniSRM's data: a few hundred items of each task, with labels from construction and measurement.

T1: a fault of words, voice, melody or signal in one of two takes. T2: six aspects varied independently, and the overall score
made of them. T3: the scene's emotion against another one, other words, or a fault. T4: the right answer against other words,
another voice or tone, or both. Missing words and melody are measured, all else is known by construction. A pair whose totals
are equal, or disagree with its construction, is dropped and counted. For SFT each clip serves many pairs, which are drawn from
a few sessions of a sentence and a speaker: to memorise a clip does not help. In pairs the reason before a score of voice
or manner also names it, so that it is written before the score. takes.jsonl has how each clip was made.
Splits share no text and no speaker. All speech is synthetic, so nothing is learned about real speech; of the engines (WORLD,
the codec) the second is always the worse.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from importlib import resources
from pathlib import Path
from typing import Any, Literal, TypeVar

import numpy as np
import yaml

from paras2s.audio.asr import word_error_rate
from paras2s.audio.clip import Clip, write_clip
from paras2s.audio.synthesis import Speaker, Style
from paras2s.data_gen.scripted.scripts import Contrast, load_contrasts, load_families
from paras2s.data_gen.tts.piper_world import AGENT_TONES, SPEAKERS, USER_STYLES
from paras2s.errors import ConfigError
from paras2s.unisrm.data_gen.takes import (
    CLEAR_ECHO_S,
    EMOTIONS,
    FAST_RATE,
    GROUPS,
    MANNERS,
    MUFFLED_DB_OCTAVE,
    SLOW_RATE,
    Faults,
    Studio,
    Take,
    f0_spread,
    in_words,
    speak_once,
    traits,
)
from paras2s.unisrm.reward.items import TAKES, write_items
from paras2s.unisrm.reward.tasks import TASK_IDS, TASKS, Item, PairRecord, QualityRecord, SideScores, TaskId
from paras2s.utils.io import write_jsonl
from paras2s.utils.process_pool import map_chunks

Chosen = TypeVar("Chosen")
Split = Literal["sft", "rl", "bench"]
SPLITS: tuple[Split, ...] = ("sft", "rl", "bench")


@dataclass(frozen=True)
class Size:
    """Items of each task in each split. Pairs of `sft` are drawn from `sessions`, and T2 has `sft_clips` in it."""

    sft: int
    sft_clips: int
    sessions: int
    rl: int
    bench: int

    def items(self, split: Split, task: TaskId) -> int:
        """Return the items of a task in a split."""
        return self.sft_clips if (split, task) == ("sft", "T2") else int(getattr(self, split))


SIZES = {
    "ci": Size(sft=16, sft_clips=32, sessions=6, rl=4, bench=4),
    "small": Size(sft=128, sft_clips=64, sessions=16, rl=8, bench=24),
    "medium": Size(sft=1600, sft_clips=2000, sessions=120, rl=160, bench=240),
    "full": Size(sft=3200, sft_clips=3200, sessions=200, rl=320, bench=240),
}
VOICES: dict[Split, str] = {"sft": "train", "rl": "validation", "bench": "test"}
# Shares of the scripted sentences; the agent's four answers to a style are split alike.
TEXT_SHARES: dict[Split, tuple[float, float]] = {"sft": (0.0, 0.6), "rl": (0.6, 0.8), "bench": (0.8, 1.0)}
ANSWERS: dict[Split, tuple[int, ...]] = {"sft": (0, 1), "rl": (2,), "bench": (3,)}
# Settings of the scores 5 to 1 of T2's aspects.
NOISE_DB = (None, 34.0, 26.0, 18.0, 10.0)
DRIVE_DB = (0.0, 8.0, 14.0, 20.0, 28.0)
RATES = ((1.0, 1.0), (1.25, 0.8), (1.5, 0.66), (1.8, 0.56), (2.1, 0.48))
GAPS = (0, 1, 2, 4, 7)
TILTS_DB_OCTAVE = (0.0, -2.0, -4.0, -6.0, -8.0)
ECHOES_S = (0.0, 0.12, 0.25, 0.6, 1.4)
# Scores of 10 for the same speaker, a near one (same group), and another one.
SAME_VOICE, NEAR_VOICE, OTHER_VOICE = 10, 6, 2
FITS, MISSES = 9, 2
# Faults of a take in a pair, with the score of its quality; a take without one has FITS. By construction, not by listening.
SIGNAL_FAULTS = (
    (Faults(snr_db=15.0), 6),
    (Faults(snr_db=6.0), 3),
    (Faults(drive_db=18.0), 6),
    (Faults(drive_db=26.0), 4),
    (Faults(gaps=3), 5),
    (Faults(coded=True), 3),
)


@dataclass(frozen=True)
class BuildReport:
    """The number of items by task and split, and of pairs dropped by task and reason."""

    items: Mapping[tuple[TaskId, str], int]
    dropped: Mapping[tuple[TaskId, str], int]


@dataclass(frozen=True)
class _Candidate:
    """A candidate before it is measured: its take, the scores and reasons known by construction, `sounds` for a later score."""

    take: Take
    sounds: Mapping[str, str]
    scores: Mapping[str, int]
    reasons: Mapping[str, str]


@dataclass(frozen=True)
class _Session:
    """A sentence and its speaker, with the other speaker and the faults of its pairs in T1 and T3."""

    contrast: Contrast
    speaker: Speaker
    group: str
    other: Speaker
    resemblance: int
    fault: Faults
    f0_range: float


@lru_cache(maxsize=1)
def load_scenes() -> dict[str, Any]:
    """Load the scenes of T3 and the openers of T4."""
    scenes: dict[str, Any] = yaml.safe_load(
        resources.files("paras2s.unisrm.data_gen").joinpath("scenes.yaml").read_text(encoding="utf-8")
    )
    return scenes


def sentences(split: Split) -> list[Contrast]:
    """Return the scripted sentences of a split; every sentence belongs to one split alone."""
    contrasts = load_contrasts()
    order = np.random.default_rng(18).permutation(len(contrasts))
    first, last = (round(share * len(order)) for share in TEXT_SHARES[split])
    return [contrasts[number] for number in order[first:last]]


def speakers(split: Split) -> dict[str, tuple[Speaker, ...]]:
    """Return the speakers of a split by group."""
    return SPEAKERS[VOICES[split]]


def build_embedded(
    folder: Path, size: str = "full", seed: int = 0, tasks: Sequence[TaskId] = ("T1", "T2", "T3", "T4"),
    on_progress: Callable[[int, int], None] | None = None,
) -> BuildReport:  # fmt: skip
    """Make clips and items.jsonl of the embedded edition in `folder`; the same seed gives the same items.

    `on_progress` is given the number of parts that are made, a task of a split each, and of all.

    Raises:
        ConfigError: there is no such size. DataError: Piper failed.
    """
    if size not in SIZES:
        raise ConfigError(f"size: there is no {size!r}; there are {', '.join(SIZES)}")
    sizes = SIZES[size]
    texts = {split: _SplitTexts.load(split, sizes.sessions if split == "sft" else sizes.items(split, "T1")) for split in SPLITS}
    plain = speak_once([text for split in texts.values() for text in split.all_texts])
    parts = [
        _Part(folder, split, task, sizes.items(split, task), sizes.sessions if split == "sft" else 0, texts[split], own, seed)
        for split in SPLITS
        if (own := {text: plain[text] for text in texts[split].all_texts})
        for task in tasks
    ]
    built = map_chunks(_build_parts, parts, 1, on_progress)
    write_items(folder, [item for part in built for item in part.items])
    write_jsonl(folder / TAKES, [row for part in built for row in part.takes])
    dropped: Counter[tuple[TaskId, str]] = Counter()
    for part in built:
        dropped.update(part.dropped)
    return BuildReport(Counter((item.task, item.split) for part in built for item in part.items), dropped)


@dataclass(frozen=True)
class _SplitTexts:
    """All that may be spoken in a split: sentences, the agent's answers by the user's style and to any, and its openers."""

    contrasts: tuple[Contrast, ...]
    answers: Mapping[str, tuple[str, ...]]
    acknowledgements: tuple[str, ...]
    openers: tuple[str, ...]

    @classmethod
    def load(cls, split: Split, count: int) -> _SplitTexts:
        """Load the texts for `count` items of each task: as many sentences that differ by emotion, and as many others."""
        families, emotional = (
            load_families(),
            [contrast for contrast in sentences(split) if contrast.styles[0] in EMOTIONS][:count],
        )
        spoken = [*emotional, *[contrast for contrast in sentences(split) if contrast.styles[0] not in EMOTIONS][:count]]
        styles = sorted({style for contrast in emotional for style in contrast.styles})
        answers = {style: tuple(families[style].answers[n] for n in ANSWERS[split]) for style in styles}
        shown = load_scenes()
        return cls(tuple(spoken), answers, tuple(shown["acknowledgements"][split]), tuple(shown["openers"][split]))

    @property
    def emotional(self) -> list[Contrast]:
        """The sentences that differ by emotion."""
        return [contrast for contrast in self.contrasts if contrast.styles[0] in EMOTIONS]

    @property
    def all_texts(self) -> list[str]:
        """Each text, and each sentence shortened."""
        answers = [text for texts in self.answers.values() for text in texts]
        sentences = [text for contrast in self.contrasts for text in (contrast.text, _shortened(contrast.text))]
        return [*sentences, *answers, *self.acknowledgements, *self.openers]


@dataclass(frozen=True)
class _Part:
    """A task of a split: what a process makes at once. `plain` has Piper's clip of every text of the split.

    With `sessions` all pairs are drawn from that many; else each has a session and clips of its own.
    """

    folder: Path
    split: Split
    task: TaskId
    count: int
    sessions: int
    texts: _SplitTexts
    plain: Mapping[str, Clip]
    seed: int


@dataclass(frozen=True)
class _Built:
    """The items of a part, the takes of their clips as rows, and how many pairs were dropped on the way, by reason."""

    items: list[Item]
    takes: list[dict[str, Any]]
    dropped: Counter[tuple[TaskId, str]]


def _build_parts(parts: Sequence[_Part]) -> list[_Built]:
    return [_Builder(part).build(part.count) for part in parts]


class _Builder:
    """Maker of the items of one part."""

    def __init__(self, part: _Part) -> None:
        self.folder, self.split, self.task, self.studio = part.folder, part.split, part.task, Studio(part.plain)
        self.rng = np.random.default_rng([part.seed, 18, SPLITS.index(part.split), TASK_IDS.index(part.task)])
        self.contrasts, self.emotional = part.texts.contrasts, part.texts.emotional
        self.texts, self.families = part.texts, load_families()
        self.paths: dict[Take, str] = {}
        self.spreads: dict[str, float] = {}
        self.sessions = [self._new_session() for _ in range(part.sessions)]

    def build(self, count: int) -> _Built:
        """Make `count` items of the task."""
        makers: dict[TaskId, Callable[[str], Item | str]] = {"T1": self._t1, "T2": self._t2, "T3": self._t3, "T4": self._t4}
        items: list[Item] = []
        dropped: Counter[tuple[TaskId, str]] = Counter()
        while len(items) < count:
            made = makers[self.task](f"{self.task}-{self.split}-{len(items):04d}")
            if isinstance(made, Item):
                items.append(made)
            else:
                dropped[self.task, made] += 1
                if sum(dropped.values()) > 4 * count + 20:
                    raise ConfigError(
                        f"{self.task}: of {len(items) + sum(dropped.values())} pairs only {len(items)} were usable"
                    )
        used = {path for item in items for path in item.clips.values()}
        for path in self.paths.values():
            if path not in used:
                (self.folder / path).unlink()
        takes = [
            {"clip": path, "split": self.split, "text": take.text, "traits": traits(take), "in_words": in_words(take)}
            for take, path in self.paths.items()
            if path in used
        ]
        return _Built(items, takes, dropped)

    # Choices.

    def _pick(self, options: Sequence[Chosen]) -> Chosen:
        return options[int(self.rng.integers(len(options)))]

    def _session(self) -> _Session:
        return self._pick(self.sessions) if self.sessions else self._new_session()

    def _new_session(self) -> _Session:
        contrast = self._pick(self.contrasts if self.task == "T1" else self.emotional)
        speaker, group = self._speaker()
        other, resemblance = self._other_speaker(speaker, group)
        fault = self._pick([fault for fault, _ in SIGNAL_FAULTS])
        return _Session(contrast, speaker, group, other, resemblance, fault, float(self._pick([0.0, 0.2])))

    def _other_text(self, session: _Session) -> str:
        """Return another sentence, from sessions with the same speaker if there are any."""
        own = [
            other.contrast for other in self.sessions if other.speaker == session.speaker and other.contrast != session.contrast
        ]
        return self._pick(own or [contrast for contrast in self.contrasts if contrast != session.contrast]).text

    def _speaker(self, besides: Speaker | None = None) -> tuple[Speaker, str]:
        """Return a speaker and the group."""
        group = self._pick(sorted(speakers(self.split)))
        return self._pick([option for option in speakers(self.split)[group] if option != besides]), group

    def _other_speaker(self, speaker: Speaker, group: str) -> tuple[Speaker, int]:
        """Return another speaker and the score of the resemblance."""
        groups = speakers(self.split)
        others = [(other, NEAR_VOICE if name == group else OTHER_VOICE) for name in sorted(groups) for other in groups[name]]
        return self._pick([(other, score) for other, score in others if other != speaker])

    def _take(self, text: str, speaker: Speaker, style: Style, faults: Faults = Faults()) -> Take:  # noqa: B008
        # In sessions what is said once more is the same clip; elsewhere no two clips are equal.
        return Take(text, speaker, style, faults, 0 if self.sessions else int(self.rng.integers(2**31)))

    def _again(self, take: Take) -> Take:
        return take if self.sessions else replace(take, seed=take.seed + 1)

    def _path(self, take: Take) -> str:
        """Return the take's clip, made on first use."""
        if take not in self.paths:
            path = f"clips/{self.task}-{self.split}-{len(self.paths):05d}.wav"
            clip = self.studio.render(take)
            write_clip(self.folder / path, clip)
            # Melody is a dimension of T1 alone.
            self.spreads[path] = f0_spread(clip) if self.task == "T1" else 1.0
            self.paths[take] = path
        return self.paths[take]

    # Tasks.

    def _t1(self, name: str) -> Item | str:
        session = self._session()
        contrast, speaker = session.contrast, session.speaker
        good = self._take(contrast.text, speaker, Style())
        kind = self._pick(["words", "voice", "melody", "signal"])
        bad, voice = self._again(good), SAME_VOICE
        if kind == "words":
            bad = replace(bad, text=_shortened(contrast.text))
        elif kind == "voice":
            bad, voice = replace(bad, speaker=session.other), session.resemblance
        elif kind == "melody":
            bad = replace(bad, style=Style(f0_range=session.f0_range))
        else:
            bad = replace(bad, faults=session.fault)
        prompt = self._take(self._other_text(session), speaker, Style())
        candidates = [
            _Candidate(
                take,
                {"text_fidelity": _voice_after(take.speaker, speaker)},
                {"speaker_similarity": score},
                {"speaker_similarity": _voice_words(score)},
            )
            for take, score in ((good, SAME_VOICE), (bad, voice))
        ]
        texts = {"reference_text": contrast.text}
        factors = {"fault": kind, "spoken_prompt": prompt.text}
        return self._pair(name, contrast, texts, {"prompt_speech": self._path(prompt)}, candidates, factors)

    def _t2(self, name: str) -> Item | str:
        contrast, (speaker, _) = self._pick(self.contrasts), self._speaker()
        levels = [int(level) for level in self.rng.integers(0, 5, 6)]
        noise, distortion, speed, continuity, naturalness, effort = levels
        style = Style(rate=RATES[speed][int(self.rng.integers(2))], tilt_db_octave=TILTS_DB_OCTAVE[naturalness])
        faults = Faults(snr_db=NOISE_DB[noise], drive_db=DRIVE_DB[distortion], gaps=GAPS[continuity], echo_s=ECHOES_S[effort])
        take = self._take(contrast.text, speaker, style, faults)
        path = self._path(take)
        scores = [5 - level for level in levels]
        # A rule of our own: twice as far from 3 as the mean of the others, which alone would nearly always round to 3.
        overall = min(5, max(1, int(2 * sum(scores) / len(scores) - 3 + 0.5)))
        words = ("none", "slight", "some", "strong", "very strong")
        voice = "echoing" if faults.echo_s > CLEAR_ECHO_S else "clear"
        tone = "muffled" if style.tilt_db_octave < MUFFLED_DB_OCTAVE else "bright"
        descriptions = (
            f"{words[noise]} noise", f"{words[distortion]} distortion", f"{GAPS[continuity]} breaks", f"{voice}, {tone}"
        )  # fmt: skip
        pace = "too fast" if style.rate > FAST_RATE else "too slow" if style.rate < SLOW_RATE else "fitting"
        record = QualityRecord((*map(float, scores), float(overall)), descriptions, f"The pace is {pace}.")
        factors = {"spoken": contrast.text, "engine": "world"}
        return Item(name, "T2", self.split, contrast.id, (speaker.name,), {}, {"speech": path}, record, factors)

    def _t3(self, name: str) -> Item | str:
        session = self._session()
        contrast = session.contrast
        emotion = self._pick([style for style in contrast.styles if style in EMOTIONS])
        good = self._take(contrast.text, session.speaker, USER_STYLES[emotion])
        kind = self._pick(["emotion", "emotion", "words", "words and emotion", "signal"])
        other = self._pick([option for option in EMOTIONS if option != emotion])
        bad, match = self._again(good), FITS
        if "emotion" in kind:
            bad, match = replace(bad, style=USER_STYLES[other]), MISSES
        if "words" in kind:
            bad = replace(bad, text=self._other_text(session))
        if kind == "signal":
            bad = replace(bad, faults=session.fault)
        candidates = [
            _Candidate(
                take,
                {"text_fidelity": f"{sound} where {emotion} is wanted"},
                {"scenario_match": score},
                {"scenario_match": f"sounds {sound}"},
            )
            for take, score, sound in ((good, FITS, emotion), (bad, match, other if match == MISSES else emotion))
        ]
        # The few scenes of SFT tell their emotion, and the target need not be read: half of its pairs have a scene without it.
        shown = load_scenes()
        plain = self.split == "sft" and self.rng.integers(2)
        scene = self._pick(shown["plain_scenes"] if plain else shown["scenes"][emotion][self.split])
        texts = {
            "scenario_description": scene, "paragraph_context": "Then one of them speaks.", "target_emotion": emotion,
            "target_text": contrast.text,
        }  # fmt: skip
        return self._pair(name, contrast, texts, {}, candidates, {"fault": kind, "emotion": emotion})

    def _t4(self, name: str) -> Item | str:
        session = self._session()
        contrast, user = session.contrast, session.speaker
        style = self._pick(contrast.styles)
        tone, (agent, group) = self.families[style].tone, self._speaker(besides=user)
        # Half of the dialogues begin with the user, whose answer cannot be told by its voice; half of the pairs are coded, as
        # the demo's policy speaks.
        begins, coded = bool(self.rng.integers(2)), bool(self.rng.integers(2))
        kind = self._pick(["text", "tone", "tone"] if begins else ["text", "voice", "tone", "text and voice"])
        # The words of a scripted answer tell its tone: a dozen answers are soon memorised.
        fitting = self.texts.answers[style] if "text" in kind or self.rng.integers(2) else self.texts.acknowledgements
        good = self._take(self._pick(fitting), agent, AGENT_TONES[tone], Faults(coded=coded))
        bad, voice = self._again(good), SAME_VOICE
        if "text" in kind:
            others = [answer for other, answers in self.texts.answers.items() if other != style for answer in answers]
            bad = replace(bad, text=self._pick([answer for answer in others if answer != good.text]))
        if "voice" in kind:
            other, voice = self._other_speaker(agent, group)
            bad = replace(bad, speaker=other)
        if kind == "tone":
            bad = replace(bad, style=AGENT_TONES[self._pick([option for option in AGENT_TONES if option != tone])])
        candidates = [
            _answer_of(take, None if begins else agent, style, take.text == good.text, score, take.style == good.style)
            for take, score in ((good, SAME_VOICE), (bad, voice))
        ]
        opener = self._pick(self.texts.openers)
        question = self._take(contrast.text, user, USER_STYLES[style])
        history = (question,) if begins else (self._take(opener, agent, Style()), question)
        clips = {f"history_{n}": self._path(take) for n, take in enumerate(history, 1)}
        factors = {"fault": kind, "history": " | ".join(take.text for take in history)}
        return self._pair(name, contrast, {}, clips, candidates, factors, (user.name,))

    def _pair(
        self, name: str, contrast: Contrast, texts: Mapping[str, str], clips: Mapping[str, str],
        candidates: Sequence[_Candidate], factors: Mapping[str, str], others: Sequence[str] = (),
    ) -> Item | str:  # fmt: skip
        """Return the item of a good and a bad candidate in a random order, or the reason why it is dropped."""
        swap = bool(self.rng.integers(2))
        ordered = candidates[::-1] if swap else candidates
        paths = [self._path(candidate.take) for candidate in ordered]
        spreads = [self.spreads[path] for path in paths]
        widest = max(spreads)
        sides = [
            _scored(self.task, candidate, contrast.text, spread / widest if widest else 1.0)
            for candidate, spread in zip(ordered, spreads, strict=True)
        ]
        first, second = sides
        if first.total == second.total:
            return "equal totals"
        better: Literal["A", "B"] = "A" if first.total > second.total else "B"
        if better != ("B" if swap else "A"):
            return "totals against construction"
        record = PairRecord(better, (first, second), _summary(self.task, better, first, second))
        known = dict(factors) | {
            f"{key}_{letter}": value
            for letter, candidate in zip("ab", ordered, strict=True)
            for key, value in (
                ("spoken", candidate.take.text),
                ("engine", "codec2" if candidate.take.faults.coded else "world"),
            )
        }
        voices = tuple(sorted({*(candidate.take.speaker.name for candidate in candidates), *others}))
        written = dict(zip(TASKS[self.task].candidates, paths, strict=True))
        return Item(name, self.task, self.split, contrast.id, voices, texts, {**clips, **written}, record, known)


def _answer_of(take: Take, earlier: Speaker | None, style: str, right_words: bool, voice: int, right_tone: bool) -> _Candidate:
    """Return an answer of T4 to a question in a style; `earlier` spoke the agent's previous turn, if there is one."""
    manner = f"{MANNERS[take.style]} after {style}"
    sounds = {"intent": _voice_after(take.speaker, earlier), "context": manner}
    text, tone = FITS if right_words else MISSES, FITS if right_tone else MISSES
    reasons = {
        "intent": "answers" if right_words else "misses the point", "speaker_consistency": _voice_words(voice),
        "context": "agrees" if right_words else "does not follow", "emotion": manner,
    }  # fmt: skip
    scores = {"intent": text, "speaker_consistency": voice, "context": text, "emotion": tone}
    return _Candidate(take, sounds, scores, reasons)


def _voice_after(speaker: Speaker, earlier: Speaker | None) -> str:
    """Return the kind of a candidate's voice, after that of the voice it is compared with, if any."""
    return f"a {GROUPS[speaker]} voice" + ("" if earlier is None else f" after {GROUPS[earlier]}")


def _voice_words(score: int) -> str:
    return {SAME_VOICE: "same voice", NEAR_VOICE: "a similar voice"}.get(score, "another voice")


def _shortened(text: str) -> str:
    """Return the sentence without its middle third, at least two words."""
    words = text.split()
    cut = max(2, len(words) // 3)
    start = (len(words) - cut) // 2
    return " ".join([*words[:start], *words[start + cut :]])


def _scored(task_id: TaskId, candidate: _Candidate, requested: str, f0_share: float) -> SideScores:
    """Score by construction, and by measurement of words and of melody, as a share of the pair's wider spread of F0."""
    scores, reasons = dict(candidate.scores), dict(candidate.reasons)
    errors = min(1.0, word_error_rate(requested, candidate.take.text))
    scores["text_fidelity"] = round(10 * (1 - errors))
    reasons["text_fidelity"] = "all words" if not errors else "wrong words" if errors > 0.6 else "words are missing"
    # Below nine tenths: a take's own variation is a few percent.
    scores["prosody"] = FITS if f0_share > 0.9 else round(FITS * f0_share)
    reasons["prosody"] = "lively" if f0_share > 0.75 else "flat"
    scores["naturalness"] = dict(SIGNAL_FAULTS).get(candidate.take.faults, FITS)
    reasons["naturalness"] = "clean" if scores["naturalness"] == FITS else "impaired"
    keys = TASKS[task_id].keys
    explanations = [f"{reasons[key]}, {candidate.sounds[key]}" if key in candidate.sounds else reasons[key] for key in keys]
    return SideScores(tuple(float(scores[key]) for key in keys), tuple(explanations))


def _summary(task_id: TaskId, better: str, first: SideScores, second: SideScores) -> str:
    gaps = [abs(a - b) for a, b in zip(first.scores, second.scores, strict=True)]
    title = TASKS[task_id].dimensions[int(np.argmax(gaps))].title
    return f"They differ most in {title}. Speech {better} is better."
