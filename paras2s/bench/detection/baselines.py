"""Judges made for one characteristic, as baselines of an audio judge (AudioJudge, 4.3 and appendix C).

Left out: UTMOS, MOSA-Net+ and SALMONN, whose weights come from hubs; Table 2's figures of them are in the report.
DNSMOS stands for a trained model of quality. It was trained on noise suppression, not on synthesis.
"""

from __future__ import annotations

import functools
import re
import shutil
import subprocess
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from pydantic import Field

from paras2s.audio import asr
from paras2s.audio.clip import Clip
from paras2s.bench.detection.data import QUALITY, DetectSuite
from paras2s.configs.schema.base import Section, parse_config
from paras2s.errors import AssetError, AudioError, ConfigError, one_line
from paras2s.reward.blueprint.extract import build_blueprints
from paras2s.reward.blueprint.quality import OVERALL, QualityExtractor
from paras2s.reward.blueprint.schema import RESPONSE, is_silent
from paras2s.reward.blueprint.words import WordsExtractor, count_syllables
from paras2s.reward.judges.base import Exchange, Judge, Pair, Preferred, Progress, Scored
from paras2s.reward.judges.votes import POINTS, prefer
from paras2s.types import MatchLabel, Measured, PairLabel, Preference, Unscored, Verdict
from paras2s.utils.cache import JsonCache
from paras2s.utils.io import reading

RATE_HZ = 16_000
# Of the loudest frame of a clip: quieter than this, at its ends, is silence.
SILENT_DB = 40.0
FRAME_S = 0.02
ESPEAK = "espeak-ng"
ESPEAK_TIMEOUT_S = 60.0


class MeasuringOptions(Section):
    """Options of a baseline that measures clips; a clip of several pairs, or of an earlier run, is measured once."""

    cache_dir: Path = Field(Path("runs/cache"), description="folder of the cache of measured blueprints")

    def open_cache(self) -> JsonCache:
        """Return the judges' cache."""
        return JsonCache(self.cache_dir / "judging.sqlite")


class DnsmosBaseline(Judge):
    """The clip with the higher overall MOS of personalised DNSMOS is the better one."""

    name = "dnsmos-overall"
    version = QualityExtractor.version
    scores_alone = True

    def __init__(self, options: MeasuringOptions) -> None:
        self._extractor, self._cache = QualityExtractor(), options.open_cache()

    def compare_batch(self, pairs: Sequence[Pair], on_progress: Progress | None = None) -> list[Preferred]:
        """Return a preference for each pair, both clips scored alone."""
        scores = []
        for count, pair in enumerate(pairs, 1):
            scores += [self._score(clip) for clip in (pair.first, pair.second)]
            _tell(on_progress, count, len(pairs))
        return higher_wins(self, QUALITY, scores, "MOS")

    def score_batch(self, exchanges: Sequence[Exchange], on_progress: Progress | None = None) -> list[Scored]:
        """Return the MOS of each clip."""
        verdicts: list[Scored] = []
        for count, exchange in enumerate(exchanges, 1):
            score = self._score(exchange.answer)
            if isinstance(score, Unscored):
                verdicts.append(score)
            else:
                verdicts.append(Verdict(self.name, self.version, "", score, f"MOS {score:.3f}", "", 0.0, 0.0))
            _tell(on_progress, count, len(exchanges))
        return verdicts

    def _score(self, clip: Clip) -> float | Unscored:
        field = build_blueprints([clip], [self._extractor], self._cache)[0].fields[OVERALL]
        return float(field.value) if isinstance(field, Measured) else Unscored(self.name, field.reason)


class SyllableOptions(MeasuringOptions):
    """Options of baselines that count in transcripts: the given ones, or those of a recogniser."""

    recogniser: str = Field(asr.EMBEDDED, description="Whisper for clips without a transcript: tiny, or a folder")


class PhonemeOptions(SyllableOptions):
    """Options of the baseline that counts phonemes, which are espeak-ng's."""

    voice: str = Field("en-us", description="espeak-ng's voice, whose language the phonemes are of")


class RateBaseline(Judge):
    """The clip with more units of speech a second is the faster one; the paper's are phonemes over the full length (A.1.2)."""

    def __init__(self, unit: str, count: Callable[[str], int], counter: str, options: SyllableOptions) -> None:
        self.name = f"{unit}-per-s"
        self.unit, self.count, self._cache = unit, count, options.open_cache()
        self._recogniser = WordsExtractor(options.recogniser)
        self.version = f"1/{counter}/{self._recogniser.version}"

    def compare_batch(self, pairs: Sequence[Pair], on_progress: Progress | None = None) -> list[Preferred]:
        """Return a preference for each pair, both clips measured alone."""
        words = self._words(pairs)
        rates = []
        for count, (pair, texts) in enumerate(zip(pairs, words, strict=True), 1):
            rates += [self._rate(*spoken) for spoken in zip((pair.first, pair.second), texts, strict=True)]
            _tell(on_progress, count, len(pairs))
        return higher_wins(self, "speaking_rate", rates, f"{self.unit}/s")

    def _words(self, pairs: Sequence[Pair]) -> list[tuple[str | Unscored, str | Unscored]]:
        """Return the transcripts of both clips of each pair; a reason where one is neither given nor measured."""
        unknown = {clip.digest: clip for pair in pairs if pair.words is None for clip in (pair.first, pair.second)}
        made = build_blueprints(list(unknown.values()), [self._recogniser], self._cache)
        blueprints = dict(zip(unknown, made, strict=True))

        def transcript(clip: Clip) -> str | Unscored:
            blueprint = blueprints[clip.digest]
            text = blueprint.value(RESPONSE)
            return Unscored(self.name, f"no transcript: {blueprint.why_absent(RESPONSE)}") if text is None else str(text)

        return [pair.words or (transcript(pair.first), transcript(pair.second)) for pair in pairs]

    def _rate(self, clip: Clip, words: str | Unscored) -> float | Unscored:
        if isinstance(words, Unscored):
            return words
        if is_silent(clip):
            return Unscored(self.name, "the clip is silent: it has no rate")
        units = self.count(words) if re.search(r"\w", words) else 0
        if not units:
            return Unscored(self.name, f"no {self.unit} in what is said: {words!r}")
        return units / speech_s(clip)


def count_phonemes(text: str, voice: str) -> int:
    """Return the number of phonemes by espeak-ng, run as a program for its licence (GPL-3.0). Raises AssetError: it failed."""
    program = shutil.which(ESPEAK)
    if program is None:
        raise AssetError(f"{ESPEAK} is not installed (Debian: {ESPEAK}); or count syllables: --baseline syllables")
    command = [program, "-q", "--ipa", "--sep=_", "-v", voice, "--stdin"]
    try:
        done = subprocess.run(command, input=text, capture_output=True, text=True, timeout=ESPEAK_TIMEOUT_S)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise AssetError(f"{ESPEAK}: {one_line(error)}") from error
    if done.returncode:
        raise AssetError(f"{ESPEAK} -v {voice}: {one_line(Exception(done.stderr))[:200]}")
    # Where a word is of another language, it says so in brackets.
    spoken = re.sub(r"\([\w-]+\)", " ", done.stdout)
    return len([phoneme for phoneme in re.split(r"[\s_]+", spoken) if re.search(r"\w", phoneme)])


def _count_syllables(text: str) -> int:
    return sum(count_syllables(word) for word in re.findall(r"[\w']+", text))


def _by_phonemes(options: PhonemeOptions) -> RateBaseline:
    count = functools.partial(count_phonemes, voice=options.voice)
    return RateBaseline("phonemes", count, f"{ESPEAK}/{options.voice}", options)


def _by_syllables(options: SyllableOptions) -> RateBaseline:
    return RateBaseline("syllables", _count_syllables, "vowel-groups", options)


def speech_s(clip: Clip) -> float:
    """Length of a clip from its first to its last frame within 40 dB of the loudest one; noise counts as speech."""
    size = max(1, round(FRAME_S * clip.sample_rate_hz))
    padded = np.pad(clip.samples.astype(np.float64), (0, -len(clip.samples) % size))
    level = np.sqrt((padded.reshape(-1, size) ** 2).mean(axis=1))
    loud = np.flatnonzero(level >= level.max() * 10 ** (-SILENT_DB / 20))
    return float((loud[-1] - loud[0] + 1) * size / clip.sample_rate_hz)


class SpeakerOptions(Section):
    """A speaker-verification model of the `transformers` library, and where its two answers part."""

    model: str = Field("microsoft/wavlm-base-plus-sv", description="folder or hub name of a model with an x-vector head")
    threshold: float = Field(
        0.86, ge=-1, le=1, description="cosine from which two clips are one speaker; WavLM's card says 0.86"
    )


class SpeakerBaseline(Judge):
    """Two clips are of one speaker where the cosine of their x-vectors reaches the threshold."""

    name = "x-vectors"

    def __init__(self, options: SpeakerOptions) -> None:
        self.options = options
        self.version = f"2/{options.model}/{options.threshold:g}"

    def compare_batch(self, pairs: Sequence[Pair], on_progress: Progress | None = None) -> list[Preferred]:
        """Compare the pairs, each clip embedded alone, so that no padding changes it."""
        verdicts: list[Preferred] = []
        for count, pair in enumerate(pairs, 1):
            verdicts.append(self._verdict(pair))
            _tell(on_progress, count, len(pairs))
        return verdicts

    def _verdict(self, pair: Pair) -> Preference | Unscored:
        if is_silent(pair.first) or is_silent(pair.second):
            return Unscored(self.name, "a clip is silent: it has no speaker")
        try:
            first, second = (embed_speaker(self.options.model, clip) for clip in (pair.first, pair.second))
        except AudioError as error:
            return Unscored(self.name, str(error))
        match = same_speaker(first, second, self.options.threshold)
        if match is None:
            return Unscored(self.name, "the embedding has no direction")
        label, cosine = match
        return _preference(self, "speaker_identity", label, f"cosine {cosine:.4f}, threshold {self.options.threshold:g}")


def same_speaker(first: np.ndarray, second: np.ndarray, threshold: float) -> tuple[MatchLabel, float] | None:
    """Return whether two embeddings [D] are of one speaker, and their cosine; None if one is zero or not finite."""
    length = float(np.linalg.norm(first) * np.linalg.norm(second))
    if not (np.isfinite(length) and length > 0):
        return None
    cosine = float(first @ second) / length
    return "same" if cosine >= threshold else "different", cosine


def embed_speaker(model: str, clip: Clip) -> np.ndarray:
    """Return a clip's speaker embedding [D]. Raises ConfigError: no such model. AudioError: the clip is too short for it."""
    import torch

    features, network = _speaker_model(model)
    inputs = features(clip.at(RATE_HZ).samples, sampling_rate=RATE_HZ, return_tensors="pt")
    try:
        with torch.inference_mode():
            return np.asarray(network(**inputs).embeddings[0], dtype=np.float64)
    except (RuntimeError, ValueError) as error:
        # A layer that is left with fewer frames than it spans says so in words of its own.
        raise AudioError(f"a clip is too short for the model ({one_line(error)[:200]})") from error


@functools.lru_cache(maxsize=1)
def _speaker_model(model: str) -> tuple[Any, Any]:
    try:
        from transformers import AutoFeatureExtractor, AutoModelForAudioXVector
    except ImportError as error:
        raise ConfigError(f"--baseline speaker needs the package {error.name}; run: pip install 'paras2s[offline]'") from error
    with reading(f"--set model={model}", "no such speaker model on this machine or hub", "; give its folder", ConfigError):
        features: Any = AutoFeatureExtractor.from_pretrained(model)  # type: ignore[no-untyped-call]
        return features, AutoModelForAudioXVector.from_pretrained(model).eval()


def higher_wins(judge: Judge, task: str, scores: Sequence[float | Unscored], unit: str) -> list[Preferred]:
    """Return scores of single clips, two a pair, as preferences; equal ones tie."""
    verdicts: list[Preferred] = []
    for first, second in zip(scores[::2], scores[1::2], strict=True):
        if isinstance(first, Unscored):
            verdicts.append(first)
        elif isinstance(second, Unscored):
            verdicts.append(second)
        else:
            verdicts.append(_preference(judge, task, prefer(first, second), f"{first:.3f} and {second:.3f} {unit}"))
    return verdicts


def _preference(judge: Judge, task: str, label: PairLabel | MatchLabel, reason: str) -> Preference:
    points = POINTS[label]
    return Preference(judge.name, judge.version, "", task, label, points, (label,), (points,), None, None, reason, "")


def _tell(on_progress: Progress | None, done: int, total: int) -> None:
    if on_progress:
        on_progress(done, total)


@dataclass(frozen=True)
class Offer:
    """A baseline by name: the task it is for, its options, and what makes it of them."""

    task: str
    options: type[Section]
    make: Callable[[Any], Judge]


BASELINES: Mapping[str, Offer] = {
    "dnsmos": Offer(QUALITY, MeasuringOptions, DnsmosBaseline),
    "phonemes": Offer("speaking_rate", PhonemeOptions, _by_phonemes),
    "syllables": Offer("speaking_rate", SyllableOptions, _by_syllables),
    "speaker": Offer("speaker_identity", SpeakerOptions, SpeakerBaseline),
}


def open_baseline(name: str, suite: DetectSuite, options: Mapping[str, Any]) -> Judge:
    """Return a baseline for a suite. Raises ConfigError: an unknown name, another suite's, or a wrong option."""
    if name not in BASELINES:
        raise ConfigError(f"--baseline {name}: there are {', '.join(BASELINES)}")
    offer = BASELINES[name]
    if offer.task != suite.task:
        fitting = [name for name, other in BASELINES.items() if other.task == suite.task]
        raise ConfigError(f"--baseline {name}: is not for {suite.name}; for that there is {', '.join(fitting) or 'none'}")
    return offer.make(parse_config(dict(options), "--set", offer.options))
