"""Speech recognition by Whisper tiny (int8). Short clips share a 30 s window, since Whisper pads every input to 30 s."""

from __future__ import annotations

import functools
import re
import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from paras2s.audio.clip import Clip
from paras2s.utils.process_pool import native_threads

WINDOW_S = 29.0
GAP_S = 0.6
RATE_HZ = 16_000
EMBEDDED = "tiny"


def version(model: str = EMBEDDED) -> str:
    """Returns the version of a Whisper model as it is run here."""
    return f"whisper-{model}-int8/packed-4"


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
    """Words in order; `text` is "" where nothing was recognised, which is a result, not a failure."""

    words: tuple[Word, ...]

    @property
    def text(self) -> str:
        """The words joined by blanks, as the recogniser wrote them."""
        return " ".join(word.text for word in self.words)


def normalise_words(text: str) -> str:
    """Returns the text in lower case, letters and apostrophes only, the form in which word error rates are counted."""
    return " ".join(re.sub(r"[^a-z' ]+", " ", text.lower().replace("’", "'")).split())


def word_error_rate(reference: str, hypothesis: str) -> float:
    """Computes the word error rate after `normalise_words`.

    Raises:
        ValueError: the reference holds no word.
    """
    import jiwer

    reference, hypothesis = normalise_words(reference), normalise_words(hypothesis)
    if not reference:
        raise ValueError("the reference holds no word")
    return float(jiwer.wer(reference, hypothesis)) if hypothesis else 1.0


@functools.lru_cache(maxsize=2)
def _model(threads: int, model: str) -> Any:
    from faster_whisper import WhisperModel

    from paras2s.audio.assets import asset_path
    from paras2s.errors import AssetError, one_line

    source = str(asset_path("whisper_tiny").parent) if model == EMBEDDED else model
    try:
        return WhisperModel(source, device="cpu", compute_type="int8", cpu_threads=threads)
    except (ValueError, RuntimeError, OSError) as error:
        raise AssetError(
            f"Whisper model {model!r} cannot be loaded ({one_line(error)[:200]}); give 'tiny', a folder of a "
            "CTranslate2 model, or the name of one that is on this machine"
        ) from error


def pack(durations_s: Sequence[float], window_s: float = WINDOW_S, gap_s: float = GAP_S) -> list[list[int]]:
    """Packs clips into windows, first fit in a fixed random order; a clip longer than a window has one of its own.

    The order is random because neighbouring clips often say the same sentence: side by side in one window, Whisper takes
    the second for a repetition and moves or drops its words.
    """
    windows: list[list[int]] = []
    used_s: list[float] = []
    for index in np.random.default_rng(0).permutation(len(durations_s)).tolist():
        need_s = durations_s[index] + gap_s
        for number, filled_s in enumerate(used_s):
            if filled_s + need_s <= window_s:
                windows[number].append(index)
                used_s[number] += need_s
                break
        else:
            windows.append([index])
            used_s.append(need_s)
    return windows


def transcribe(clips: Sequence[Clip], model: str = EMBEDDED) -> list[Transcript]:
    """Transcribes clips, several a window; a word belongs to the clip that holds its middle.

    Raises:
        AssetError: the model is not installed.
    """
    recogniser = _model(native_threads(), model)
    resampled = [clip.at(RATE_HZ) for clip in clips]
    words_of: list[list[Word]] = [[] for _ in clips]
    for window in pack([clip.duration_s for clip in resampled]):
        words = _recognise_window([resampled[index] for index in window], recogniser)
        # One clip of a looped word makes Whisper repeat itself through its neighbours; then each is transcribed alone, and
        # so is a clip that got no word at all.
        runaway = repeats(" ".join(word.text for group in words for word in group))
        for index, group in zip(window, words, strict=True):
            alone = len(window) > 1 and (runaway or not group)
            words_of[index] = _recognise_window([resampled[index]], recogniser)[0] if alone else group
    return [Transcript(tuple(words)) for words in words_of]


def repeats(text: str, limit: float = 2.4) -> bool:
    """Whether a transcript repeats itself: it compresses more than `limit` times, Whisper's own threshold."""
    data = text.encode()
    return len(data) > limit * len(zlib.compress(data))


def _recognise_window(clips: Sequence[Clip], recogniser: Any) -> list[list[Word]]:
    """Recognises clips that share a window; times are relative to each clip."""
    pieces, starts_s, position_s = [], [], 0.0
    for clip in clips:
        starts_s.append(position_s)
        peak = float(np.abs(clip.samples).max(initial=0.0))
        # Quiet clips in a shared window would otherwise be taken for silence.
        pieces.append(clip.samples * (0.5 / peak) if peak > 1e-4 else clip.samples)
        pieces.append(np.zeros(int(GAP_S * RATE_HZ), dtype=np.float32))
        position_s += clip.duration_s + GAP_S
    words_of: list[list[Word]] = [[] for _ in clips]
    for word in _recognise(np.concatenate(pieces), recogniser):
        middle_s = (word.start_s + word.end_s) / 2
        slot = int(np.searchsorted(starts_s, middle_s, side="right")) - 1
        # Whisper may let a word begin or end in the gap beside its clip.
        start_s, end_s = np.clip([word.start_s - starts_s[slot], word.end_s - starts_s[slot]], 0.0, clips[slot].duration_s)
        words_of[slot].append(Word(word.text, float(start_s), float(end_s), word.probability))
    return words_of


def _recognise(samples: np.ndarray, recogniser: Any) -> list[Word]:
    segments, _ = recogniser.transcribe(
        samples,
        language="en",
        beam_size=1,
        temperature=0.0,
        word_timestamps=True,
        condition_on_previous_text=False,
        without_timestamps=False,
        no_speech_threshold=None,
        log_prob_threshold=None,
        compression_ratio_threshold=None,
    )
    return [
        Word(word.word.strip(), float(word.start), float(word.end), float(word.probability))
        for segment in segments
        for word in segment.words or ()
    ]
