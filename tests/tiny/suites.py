"""Folders in the layouts of outside suites, made of tones, and a scripted judge. No text of a suite is in them."""

from __future__ import annotations

import functools
import json
from pathlib import Path
from typing import Any

import numpy as np

from paras2s.audio.clip import Clip, encode_clip, make_clip, read_clip


@functools.cache
def tone(seconds: float, hz: float, kind: str) -> bytes:
    wave = 0.3 * np.sin(2 * np.pi * hz * np.arange(round(16_000 * seconds)) / 16_000)
    return encode_clip(make_clip(wave.astype(np.float32), 16_000), kind)


def sound(path: Path, seconds: float = 0.3, hz: float = 200.0, silent: bool = False) -> Path:
    """A tone, in the format of the file's suffix."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(tone(seconds, 0.0 if silent else hz, path.suffix[1:].upper()))
    return path


def read(path: Path) -> Clip:
    return read_clip(path)


def text(path: Path, content: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(content, encoding="utf-8")
    return path


def rows(path: Path, *values: Any) -> Path:
    return text(path, "".join(json.dumps(value, ensure_ascii=False) + "\n" for value in values))


def table(path: Path, value: Any) -> Path:
    return text(path, json.dumps(value, ensure_ascii=False))


def python(path: Path, **variables: str) -> Path:
    """A file of Python in which functions make the prompts, as the makers' do."""
    lines = [f"    {name} = {value}" for name, value in variables.items()]
    return text(path, "import nothing_of_this_name\n\n\ndef build(demand, dims_str, dims):\n" + "\n".join(lines) + "\n")


def speechparaling(data: Path, items: int = 4, words: str = "say {n}") -> Path:
    """English dynamic variation (one dimension) and situational adaptation of two dimensions, two items of each by default."""
    halves = (
        ("dyn_var/dyn_var", "dyn_var", "dyn_var/dyn_var", ["Pitch"]),
        ("sit_ada/sit_multi", "sit_ada/sit_multi", "sit_ada/sit_ada_multi", ["Age", "Age"]),
    )
    for part, (prompts, folder, code, dimensions) in enumerate(halves):
        count = items // 2
        rows(
            data / f"jsonl_prompt_en/{prompts}.jsonl",
            *({"prompt": words.format(n=n), "dimensions": dimensions} for n in range(count)),
        )
        for number in range(1, count + 1):
            name = f"{folder}/{folder.rpartition('/')[2]}_{number:03d}.wav"
            sound(data / "audio_dataset_en" / name)
            sound(data / "api_models/gemini/output_en" / name, 0.5)
        winner = '"winner"' if part == 0 else '"winner_1" "winner_2"'
        prompt = f'(f"""Of {{demand}} by {{dims_str}}: {{{{ {winner} }}}}""")'
        python(data / f"judge_data/judge_code/{code}_en.py", system_prompt_judger=prompt, post_audio_1_message='" Now it "')
    return data


def paraling_answers(folder: Path, items: int = 4) -> Path:
    for name in ("dyn_var/dyn_var", "sit_ada/sit_multi/sit_multi"):
        for number in range(1, items // 2 + 1):
            sound(folder / f"{name}_{number:03d}.wav", 0.4)
    return folder
