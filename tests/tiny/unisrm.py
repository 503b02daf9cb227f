"""A tiny random thinker of the true class with a tokenizer of bytes, and items with clips of noise and tones."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import torch

from paras2s.audio.clip import Clip, write_clip
from paras2s.configs.schema.unisrm import ThinkerConfig
from paras2s.unisrm.reward.items import write_items
from paras2s.unisrm.reward.tasks import Item, PairRecord, QualityRecord, SideScores
from paras2s.unisrm.reward.thinker import UniSRM
from tiny.qwen_omni import noise_clip, tiny_config, tiny_tokenizer


def tiny_unisrm(seed: int = 0, **settings: Any) -> UniSRM:
    from transformers import Qwen2_5OmniThinkerForConditionalGeneration

    tokenizer = tiny_tokenizer()
    torch.manual_seed(seed)
    thinker = Qwen2_5OmniThinkerForConditionalGeneration(tiny_config(tokenizer).thinker_config)
    for parameter in thinker.parameters():
        parameter.data += 0.1 * torch.randn_like(parameter)
    return UniSRM(thinker.eval(), tokenizer, ThinkerConfig(**{"model": "tiny", "trains": "all"} | settings))


def short_prompts(folder: Path) -> Path:
    """Prompts of a few bytes."""
    for task in ("T1", "T2", "T3", "T4"):
        (folder / f"{task}.md").write_text("{{format}}")
    return folder


def tone_clip(hz: float, duration_s: float) -> Clip:
    time_s = np.arange(int(16_000 * duration_s)) / 16_000
    return Clip((0.3 * np.sin(2 * np.pi * hz * time_s)).astype(np.float32), 16_000)


def pair_record(better: str, first: tuple[float, ...], second: tuple[float, ...]) -> PairRecord:
    sides = (SideScores(first, ("x",) * len(first)), SideScores(second, ("x",) * len(second)))
    return PairRecord("A" if better == "A" else "B", sides, "z")


def tiny_items(folder: Path) -> list[Item]:
    """One item of each task; all clips are noise of 0.3 s."""
    names = [f"c{number}.wav" for number in range(10)]
    for number, name in enumerate(names):
        write_clip(folder / name, noise_clip(number, 0.3))
    scene = {"scenario_description": "s", "paragraph_context": "p", "target_emotion": "sad", "target_text": "t"}
    items = [
        Item("1", "T1", "sft", "a", ("x",), {"reference_text": "one"},
             {"prompt_speech": names[0], "speech_a": names[1], "speech_b": names[2]},
             pair_record("A", (9, 5, 7, 6), (4, 5, 8, 2))),
        Item("2", "T2", "sft", "b", ("x",), {}, {"speech": names[3]},
             QualityRecord((2, 5, 4.5, 5, 4, 4, 3.5), ("a", "b", "c", "d"), "e")),
        Item("3", "T3", "sft", "c", ("x",), scene, {"speech_a": names[4], "speech_b": names[5]},
             pair_record("B", (3, 2, 9), (9, 9, 8))),
        Item("4", "T4", "sft", "d", ("x", "y"), {},
             {"history_1": names[6], "history_2": names[7], "speech_a": names[8], "speech_b": names[9]},
             pair_record("B", (1, 5, 1, 5, 7), (9, 5, 9, 6, 7))),
    ]  # fmt: skip
    write_items(folder, items)
    return items
