"""The interface of TTS engines. An engine returns a clip or the reason of a failure, never silence."""

from __future__ import annotations

import hashlib
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import numpy as np

from paras2s.audio.clip import Clip, encode_clip, read_clip
from paras2s.configs.schema.curation import SynthesisVoice
from paras2s.data_gen.curation.cost import Spend
from paras2s.errors import AudioError
from paras2s.utils.cache import key_of
from paras2s.utils.io import write_bytes

# A clip with a lower peak is inaudible.
SILENT_PEAK = 1e-3


@dataclass(frozen=True)
class Line:
    """A line to synthesise: words, voice, style (a label), and the style described in words ("" without a description).

    Another `take` is another rendering of the same line.
    """

    text: str
    voice: SynthesisVoice
    style: str
    manner: str = ""
    take: int = 0


@dataclass(frozen=True)
class FailedSpeech:
    """The reason why a line has no clip."""

    reason: str


SpeechResult = Clip | FailedSpeech
OnClip = Callable[[int, SpeechResult], None]


class TTS(Protocol):
    """A TTS engine, made from `endpoint` (an `EndpointConfig`) and `cache` (a folder).

    `version` changes whenever the same line would sound different. A class may name its voices' options in `options`.
    """

    @property
    def version(self) -> str:
        """Names the engine and its model."""

    @property
    def spent_usd(self) -> float | None:
        """Cost of this instance's calls so far; None if no price is known."""

    def speak(self, lines: Sequence[Line], on_clip: OnClip) -> None:
        """Synthesise lines; `on_clip` gets a line's index and its clip or failure as soon as it is made. Raises BudgetError."""


def line_key(version: str, line: Line) -> str:
    """Return a hash of everything that shapes a rendering; a reference clip enters by its content, not its name."""
    voice = line.voice.model_dump(mode="json", include={"engine", "options"})
    clip = voice["options"].get("clip")
    if clip is not None:
        voice["options"]["clip"] = hashlib.sha256(Path(str(clip)).read_bytes()).hexdigest()
    return key_of([version, line.text, voice, line.style, line.manner, line.take])


def reject_silence(clip: Clip) -> SpeechResult:
    """Return the clip, or a failure where it is silent."""
    peak = float(np.abs(clip.samples).max(initial=0.0))
    return clip if peak > SILENT_PEAK else FailedSpeech(f"the engine gave {clip.duration_s:.1f} s of silence")


def synthesise_all(
    tts: TTS,
    lines: Sequence[Line],
    cache: Path,
    on_progress: Callable[[int, int], None] = lambda done, total: None,
    spend: Spend | None = None,
) -> list[SpeechResult]:
    """Synthesise lines and return results in order; equal lines once, clips from `cache` if present, failures never cached.

    Raises:
        StorageError: the cache cannot be written. BudgetError: the engine's budget ended; earlier clips stay cached.
    """
    started, spend = time.perf_counter(), spend or Spend()
    results: list[SpeechResult | None] = [None] * len(lines)
    indices_of: dict[Path, list[int]] = {}
    for index, line in enumerate(lines):
        try:
            key = line_key(tts.version, line)
        except OSError as error:
            results[index] = FailedSpeech(f"voice {line.voice.name}: {error.filename}: {error.strerror}")
            continue
        indices_of.setdefault(cache / "tts" / key[:2] / f"{key}.wav", []).append(index)
    missing = []
    for path, indices in indices_of.items():
        try:
            cached = read_clip(path) if path.is_file() else None
        except AudioError:
            # Damaged: synthesised again.
            cached = None
        if cached is None:
            missing.append(path)
        for index in indices:
            results[index] = cached
    done = len(lines) - sum(len(indices_of[path]) for path in missing)
    spend.requests += len(indices_of)
    spend.cached += len(indices_of) - len(missing)
    before_usd = tts.spent_usd

    def on_clip(number: int, result: SpeechResult) -> None:
        nonlocal done
        path = missing[number]
        if isinstance(result, Clip):
            result = reject_silence(result)
            if isinstance(result, Clip):
                data = encode_clip(result)
                write_bytes(path, data)
                # This run uses the same samples that a later run reads from the cache.
                result = read_clip(data)
        spend.failed += isinstance(result, FailedSpeech)
        for index in indices_of[path]:
            results[index] = result
        done += len(indices_of[path])
        on_progress(done, len(lines))

    try:
        if missing:
            tts.speak([lines[indices_of[path][0]] for path in missing], on_clip)
    finally:
        after_usd = tts.spent_usd
        spend.pay(None if before_usd is None or after_usd is None else after_usd - before_usd)
        spend.seconds += time.perf_counter() - started
    lost = FailedSpeech("the engine gave neither a clip nor a reason")
    return [result if result is not None else lost for result in results]
