"""Clips whose sound is a code: a tone each for the words, the speaker, the emotion and what made it; and servers that use it.

They stand at the seams that need a key or a GPU: a judge that really listens (to the tones), a writer, and a TTS system that
copies the voice and the emotion of its prompt.
"""

from __future__ import annotations

import base64
import io
import json
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import soundfile

from paras2s.audio.clip import Clip, make_clip, read_clip
from tiny.endpoint import Behaviour, Raw, Say, said

RATE_HZ = 16_000
# The lowest tone of each code, its step, and how many there are.
BANDS = {"words": (300, 15, 120), "speaker": (2200, 50, 24), "emotion": (4000, 100, 8), "system": (5500, 100, 8)}
EMOTIONS = ("Neutral", "Angry", "Happy", "Sad", "Surprise")
_NUMBERS: dict[str, int] = {}
STYLES = ("neutral", "angry", "happy", "sad", "surprised")


@dataclass(frozen=True)
class Codes:
    """The codes in a clip."""

    words: int
    speaker: int
    emotion: int
    system: int


def code_of(text: str) -> int:
    """A text's number: those of one test differ, of so many texts at most."""
    key = "".join(filter(str.isalnum, text.casefold()))
    return _NUMBERS.setdefault(key, len(_NUMBERS) % BANDS["words"][2])


def spoken(words: int, speaker: int = 0, emotion: int = 0, system: int = 0, length_s: float = 0.25) -> Clip:
    time_s = np.arange(int(RATE_HZ * length_s)) / RATE_HZ
    codes = {"words": words, "speaker": speaker, "emotion": emotion, "system": system}
    tones = [np.sin(2 * np.pi * (BANDS[name][0] + BANDS[name][1] * code) * time_s) for name, code in codes.items()]
    return make_clip((0.2 * sum(tones)).astype(np.float32), RATE_HZ)


def listen(clip: Clip) -> Codes:
    samples = clip.at(RATE_HZ).samples
    spectrum = np.abs(np.fft.rfft(samples * np.hanning(len(samples))))
    hz = np.fft.rfftfreq(len(samples), 1 / RATE_HZ)
    codes = {}
    for name, (low, step, count) in BANDS.items():
        places = np.flatnonzero((hz > low - step / 2) & (hz < low + step * (count - 0.5)))
        codes[name] = round((hz[places[np.argmax(spectrum[places])]] - low) / step)
    return Codes(**codes)


def speaks(system: int) -> Callable[[dict[str, Any], int], Behaviour]:
    """A zero-shot TTS server: the words that it is sent, in the voice and with the emotion of the prompt."""

    def answer(sent: dict[str, Any], _: int) -> Behaviour:
        prompt = listen(read_clip(sent["prompt_wav"]))
        clip = spoken(code_of(sent["tts_text"]), prompt.speaker, prompt.emotion, system)
        pcm = (clip.samples * 32767).astype("<i2").tobytes()
        return Raw(pcm, {"X-Custom-Header-sampleRate": str(RATE_HZ)})

    return answer


def clips_sent(sent: dict[str, Any]) -> dict[str, Codes]:
    """What a judge hears, by the label above each clip."""
    found, label = {}, ""
    for part in sent["messages"][-1]["content"]:
        if part["type"] == "text":
            label = part["text"].strip().splitlines()[-1]
        else:
            data, rate_hz = soundfile.read(io.BytesIO(base64.b64decode(part["input_audio"]["data"])), dtype="float32")
            found[label] = listen(Clip(data, rate_hz))
    return found


def scores_reply(keys: tuple[str, ...], first: tuple[int, ...], second: tuple[int, ...], better: str | None = None) -> str:
    """A judge's reply with these scores."""
    sides = [
        {key: {"explanation": f"{key} is {score}", "score": score} for key, score in zip(keys, scores, strict=True)}
        for scores in (first, second)
    ]
    winner = better or ("A" if sum(first) > sum(second) else "B")
    return json.dumps({"speech_a": sides[0], "speech_b": sides[1], "summary": f"{winner} wins.", "better": winner})


def writes(sent: dict[str, Any]) -> Behaviour:
    """A writer of scenes, sentences and turns, in the language that the prompt names."""
    text = said(sent)
    chinese = '"Chinese"' in text
    if "scenario_description" in text:
        scene = ("他们在家里。", "下雨了，门开着。") if chinese else ("They are at home.", "It rains, and the door is open.")
        return Say(json.dumps(dict(zip(("scenario_description", "paragraph_context"), scene, strict=True))))
    return Say(json.dumps({"sentence": "完全不同的一句话" if chinese else "Quite another sentence that nobody expected"}))
