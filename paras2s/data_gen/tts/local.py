"""TTS engines on this machine: Piper through a vocoder, and espeak-ng. Both run as programs, never imported (GPL-3.0)."""

from __future__ import annotations

import shutil
import subprocess
import tempfile
from collections.abc import Sequence
from pathlib import Path

from paras2s.audio.clip import read_clip
from paras2s.audio.synthesis import VERSION as PIPER_VERSION
from paras2s.audio.synthesis import Speaker, Style
from paras2s.configs.schema.endpoints import EndpointConfig
from paras2s.data_gen.tts.base import FailedSpeech, Line, OnClip, SpeechResult
from paras2s.data_gen.tts.piper_world import AGENT_TONES, USER_STYLES
from paras2s.data_gen.tts.render import Take, render
from paras2s.errors import AssetError, AudioError, DataError, one_line

ESPEAK_WPM, ESPEAK_PITCH, ESPEAK_AMPLITUDE = 165, 50, 100
ESPEAK_TIMEOUT_S = 60.0


def shape_of(style: str) -> Style | None:
    """Return the vocoder settings of a style or tone, None if unknown; age and gender, the speaker's, are neutral."""
    return USER_STYLES.get(style) or AGENT_TONES.get(style)


def _unknown(style: str) -> FailedSpeech:
    known = ", ".join(dict.fromkeys((*USER_STYLES, *AGENT_TONES)))
    return FailedSpeech(f"style {style!r} has no shape in this engine; there are {known}")


class PiperTTS:
    """Piper's one voice; the vocoder makes speaker and style. Voice options: f0_factor, formant_warp."""

    version = PIPER_VERSION
    spent_usd = 0.0
    options = frozenset({"f0_factor", "formant_warp"})

    def __init__(self, cache: Path, endpoint: EndpointConfig | None = None) -> None:
        self._cache = cache

    def speak(self, lines: Sequence[Line], on_clip: OnClip) -> None:
        """Synthesise all lines, on all cores."""
        indices, takes = [], []
        for index, line in enumerate(lines):
            shape = shape_of(line.style)
            if shape is None:
                on_clip(index, _unknown(line.style))
                continue
            options = line.voice.options
            speaker = Speaker(line.voice.name, float(options.get("f0_factor", 1.0)), float(options.get("formant_warp", 1.0)))
            indices.append(index)
            takes.append(Take(line.text, speaker, shape, line.take))
        try:
            for index, rendered in zip(indices, render(takes, self._cache), strict=True):
                on_clip(index, rendered.clip)
        except (DataError, AssetError) as error:
            for index in indices:
                on_clip(index, FailedSpeech(str(error)))


class EspeakTTS:
    """espeak-ng, which runs anywhere. Voice options: voice (en-us+f3), pitch (0 to 99)."""

    version = "espeak-ng/1"
    spent_usd = 0.0
    options = frozenset({"voice", "pitch"})

    def __init__(self, cache: Path | None = None, endpoint: EndpointConfig | None = None) -> None:
        pass

    def speak(self, lines: Sequence[Line], on_clip: OnClip) -> None:
        """Synthesise one line after the other: each takes a few milliseconds."""
        program = shutil.which("espeak-ng")
        for index, line in enumerate(lines):
            shape = shape_of(line.style)
            if program is None:
                on_clip(index, FailedSpeech("espeak-ng is not installed (Debian: espeak-ng)"))
            elif shape is None:
                on_clip(index, _unknown(line.style))
            else:
                on_clip(index, self._synthesise(program, line, shape))

    def _synthesise(self, program: str, line: Line, shape: Style) -> SpeechResult:
        pitch = int(line.voice.options.get("pitch", ESPEAK_PITCH))
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder, "line.wav")
            command = [
                program, "-v", str(line.voice.options.get("voice", "en-us")), "-w", str(path),
                "-s", str(round(ESPEAK_WPM * shape.rate)),
                "-p", str(min(99, max(0, round(pitch * shape.f0_level)))),
                "-a", str(min(200, round(ESPEAK_AMPLITUDE * shape.gain))),
                "--", line.text,
            ]  # fmt: skip
            try:
                done = subprocess.run(command, capture_output=True, text=True, timeout=ESPEAK_TIMEOUT_S)
                if done.returncode:
                    return FailedSpeech(f"espeak-ng: {one_line(Exception(done.stderr))[:200]}")
                return read_clip(path)
            except (AudioError, OSError, subprocess.TimeoutExpired) as error:
                return FailedSpeech(f"espeak-ng: {one_line(error)[:200]}")
