"""Training an audio tower with random weights, on tones whose pitch and level are its traits.

Not covered: how much of speech it hears; docs/experiments/unisrm.md has that of the embedded data.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from tiny.unisrm import tiny_unisrm, tone_clip

from paras2s.audio.clip import Clip, write_clip
from paras2s.errors import ConfigError
from paras2s.unisrm.reward.audio_pretraining import LETTERS, collapsed, pretrain_tower
from paras2s.unisrm.reward.items import TAKES
from paras2s.unisrm.reward.scratch import fit_frontend
from paras2s.unisrm.reward.thinker import UniSRM
from paras2s.utils.io import write_jsonl


def write_tones(folder: Path, count: int, shuffled: bool = False) -> None:
    """Clips of 0.5 s, every fourth of the split `rl`; with `shuffled` another clip's traits stand beside each."""
    rng = np.random.default_rng(0)
    octaves, level_db = rng.uniform(-1, 1, count), rng.uniform(-20, 0, count)
    order = rng.permutation(count) if shuffled else np.arange(count)
    rows = []
    for number in range(count):
        sound = tone_clip(400 * 2 ** octaves[number], 0.5).samples * 10 ** (level_db[number] / 20)
        write_clip(folder / f"{number}.wav", Clip(sound.astype(np.float32), 16_000))
        traits = {"level": float(level_db[order[number]]), "pitch": float(octaves[order[number]]), "coded": 0.0}
        split = "rl" if number % 4 == 0 else "sft"
        rows.append({"clip": f"{number}.wav", "split": split, "text": "A word, said.", "traits": traits})
    write_jsonl(folder / TAKES, rows)


def model_for(folder: Path) -> UniSRM:
    model = tiny_unisrm()
    tones = [model.features_of("tone", tone_clip(hz, 0.5)) for hz in (250.0, 400.0, 700.0)]
    fit_frontend(model.thinker.model.audio_tower, torch.cat(tones, 1))
    return model


def test_a_trained_tower_has_the_traits_of_new_clips_and_none_those_of_another_clip(tmp_path: Path) -> None:
    (tmp_path / "shuffled").mkdir()
    write_tones(tmp_path, 160)
    write_tones(tmp_path / "shuffled", 160, shuffled=True)
    model = model_for(tmp_path)
    before = {name: value.clone() for name, value in model.thinker.state_dict().items()}
    untaught = pretrain_tower(model_for(tmp_path), tmp_path, 0, 0)
    found = pretrain_tower(model, tmp_path, 120, 0)
    # A trait that does not vary has no share that is explained.
    assert set(found.traits) == {"level", "pitch"}
    assert min(found.traits.values()) > 0.8
    assert max(untaught.traits.values()) < 0.3
    assert max(pretrain_tower(model_for(tmp_path), tmp_path / "shuffled", 120, 0).traits.values()) < 0.3
    # One text alone is soon known by heart.
    assert found.letter_errors < untaught.letter_errors
    moved = {name for name, value in model.thinker.state_dict().items() if not torch.equal(value, before[name])}
    assert moved
    assert all("audio_tower" in name for name in moved)


def test_repeated_letters_are_one_unless_a_blank_stands_between() -> None:
    a, b = LETTERS.index("a"), LETTERS.index("b")
    assert collapsed([0, a, a, 0, a, b, b, 0]) == [a, a, b]
    assert collapsed([a, b, a]) == [a, b, a]
    assert collapsed([0, 0]) == []


def test_data_that_does_not_say_what_it_was_made_with_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"takes\.jsonl: missing"):
        pretrain_tower(tiny_unisrm(), tmp_path, 1, 0)
