"""What every engine is asked and gives. An engine says a line or says why it could not; it never gives silence instead."""

from __future__ import annotations

import hashlib
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import numpy as np

from paras2s.audio.clip import Clip, encode_clip, read_clip
from paras2s.configs.schema.run import VoiceConfig
from paras2s.data_gen.curation.cost import Spend
from paras2s.errors import AudioError
from paras2s.utils.cache import key_of
from paras2s.utils.io import write_bytes

# Below this peak a clip holds nothing that anybody could hear.
SILENT_PEAK = 1e-3


@dataclass(frozen=True)
class Line:
    """Something to say: in which voice, in which style (a label), and how that sounds in words ("" where nobody described it).

    Another `take` asks for another rendering of the same.
    """

    text: str
    voice: VoiceConfig
    style: str
    manner: str = ""
    take: int = 0


@dataclass(frozen=True)
class Unspoken:
    """No clip, and why."""

    reason: str


Spoken = Clip | Unspoken
Keep = Callable[[int, Spoken], None]


class TTS(Protocol):
    """An engine. `version` changes whenever the same line would sound different."""

    @property
    def version(self) -> str:
        """Names the engine and its model."""

    @property
    def spent_usd(self) -> float | None:
        """Paid by this instance so far; None where no price is known."""

    def speak(self, lines: Sequence[Line], keep: Keep) -> None:
        """Say every line, and hand each clip or failure to `keep` with the line's place as soon as it is there.

        Raises:
            BudgetError: the budget ended before the lines did.
        """


def line_key(version: str, line: Line) -> str:
    """A hash of everything that shapes a rendering; of a reference clip its content counts, not its name."""
    voice = line.voice.model_dump(mode="json", include={"engine", "options"})
    clip = voice["options"].get("clip")
    if clip is not None:
        voice["options"]["clip"] = hashlib.sha256(Path(str(clip)).read_bytes()).hexdigest()
    return key_of([version, line.text, voice, line.style, line.manner, line.take])


def heard(clip: Clip) -> Spoken:
    """The clip, unless there is no sound in it."""
    peak = float(np.abs(clip.samples).max(initial=0.0))
    return clip if peak > SILENT_PEAK else Unspoken(f"the engine gave {clip.duration_s:.1f} s of silence")


def speak_all(
    tts: TTS,
    lines: Sequence[Line],
    cache: Path,
    on_progress: Callable[[int, int], None] = lambda done, total: None,
    spend: Spend | None = None,
) -> list[Spoken]:
    """Clips in order, equal lines said once. What was said before comes from `cache`; a failure is not kept: it is tried again.

    Raises:
        StorageError: the cache cannot be written. BudgetError: the engine's budget ended; what was said is kept.
    """
    started, spend = time.perf_counter(), spend or Spend()
    found: list[Spoken | None] = [None] * len(lines)
    places: dict[Path, list[int]] = {}
    for place, line in enumerate(lines):
        try:
            key = line_key(tts.version, line)
        except OSError as error:
            found[place] = Unspoken(f"voice {line.voice.name}: {error.filename}: {error.strerror}")
            continue
        places.setdefault(cache / "tts" / key[:2] / f"{key}.wav", []).append(place)
    missing = []
    for path, same in places.items():
        try:
            kept = read_clip(path) if path.is_file() else None
        except AudioError:
            # Not ours, or damaged: said again.
            kept = None
        if kept is None:
            missing.append(path)
        for place in same:
            found[place] = kept
    done = len(lines) - sum(len(places[path]) for path in missing)
    spend.requests += len(places)
    spend.cached += len(places) - len(missing)
    before_usd = tts.spent_usd

    def keep(number: int, spoken: Spoken) -> None:
        nonlocal done
        path = missing[number]
        if isinstance(spoken, Clip):
            spoken = heard(spoken)
            if isinstance(spoken, Clip):
                data = encode_clip(spoken)
                write_bytes(path, data)
                # What a later run reads from the cache is what this one goes on with.
                spoken = read_clip(data)
        spend.failed += isinstance(spoken, Unspoken)
        for place in places[path]:
            found[place] = spoken
        done += len(places[path])
        on_progress(done, len(lines))

    try:
        if missing:
            tts.speak([lines[places[path][0]] for path in missing], keep)
    finally:
        after_usd = tts.spent_usd
        spend.pay(None if before_usd is None or after_usd is None else after_usd - before_usd)
        spend.seconds += time.perf_counter() - started
    return [one if one is not None else Unspoken("the engine gave neither a clip nor a reason") for one in found]
