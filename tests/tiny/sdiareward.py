"""A tiny SDiaReward in its makers' layout, and dialogues to score.

`sdiareward_golden.json`: config and shapes of a tiny checkpoint as `QwenOmniThinkerReward` of MM-Speech/SDiaReward (commit
98d59b6, Apache-2.0) writes it with transformers 4.57.3, and its rewards for the dialogues, whose inputs were made by
`SDiaRewardJudge.inputs`. No code and no weights of theirs are in it.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
from safetensors.numpy import save_file

from paras2s.reward.judges.base import Utterance
from tiny.moshi import tone
from tiny.qwen_omni import tiny_tokenizer

GOLDEN = Path(__file__).with_name("sdiareward_golden.json")
# Of one turn and of three, with words, with sound, and with both.
DIALOGUES: list[list[tuple[str, Utterance]]] = [
    [("user", Utterance(tone(0.5, 16_000, 200), "Hi there")), ("assistant", Utterance(tone(0.7, 24_000, 300), "Ho<|im_end|>"))],
    [("user", Utterance(tone(0.5, 16_000, 200), "Hi there")), ("assistant", Utterance(tone(0.4, 24_000, 150)))],
    [("user", Utterance(text="How are you?")), ("assistant", Utterance(text="Fine."))],
    [
        ("user", Utterance(tone(0.3, 16_000, 220))), ("assistant", Utterance(text="What?")),
        ("user", Utterance(tone(0.6, 8_000, 120), "again")), ("assistant", Utterance(tone(0.2, 24_000, 440), "Oh")),
    ],
]  # fmt: skip


def golden() -> dict[str, Any]:
    """Config, tensors' shapes and rewards of the makers' class."""
    return dict(json.loads(GOLDEN.read_text()))


def write_sdiareward(folder: Path) -> Path:
    """The checkpoint behind the golden rewards: tensor n of the sorted names holds a wave."""
    folder.mkdir(parents=True, exist_ok=True)
    held, tensors = golden(), {}
    for number, (name, shape) in enumerate(held["shapes"].items()):
        wave = np.sin(0.5 + 1.3 * number + 0.731 * np.arange(int(np.prod(shape)))).reshape(shape)
        tensors[name] = (1 + 0.1 * wave if "norm" in name or "ln_" in name else 0.2 * wave).astype(np.float32)
    save_file(tensors, str(folder / "model.safetensors"), metadata={"format": "pt"})
    (folder / "config.json").write_text(json.dumps(held["config"]))
    tiny_tokenizer().save_pretrained(str(folder))
    return folder
