"""Descriptions of an item's clips, which a thinker with random weights learns to write before it compares.

Not covered: how much better it compares for that; docs/experiments/unisrm.md has the figures of the embedded edition.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from rich.console import Console
from tiny.unisrm import short_prompts, tiny_items, tiny_unisrm

pytest.importorskip("trl", reason="training is with trl==1.16.0")

from paras2s.configs.schema.unisrm import SftConfig, UniSRMConfig
from paras2s.errors import ConfigError
from paras2s.unisrm.pipeline.train import DESCRIBED, DESCRIPTION_PROBE, _begin, is_trained
from paras2s.unisrm.reward.descriptions import describe, measure_descriptions, read_descriptions
from paras2s.unisrm.reward.items import TAKES, write_items
from paras2s.unisrm.reward.tasks import Item
from paras2s.unisrm.reward.thinker import ItemEncoder, UniSRM
from paras2s.unisrm.reward.train import Kind, SftCollator, sft_examples, train_descriptions
from paras2s.utils.io import read_json, read_jsonl, write_jsonl

SFT = SftConfig(lr=3e-3, batch_size=2, micro_batch_size=2)


def written(folder: Path, items: list[Item], without: str = "") -> Path:
    """What each clip sounds like; `without` names one that nothing is said of."""
    clips = sorted({clip for item in items for clip in item.clips.values()})
    manners = ("happy", "sad")
    rows = [
        {"clip": clip, "split": "sft", "text": "x", "traits": {"pitch": 0.0}}
        | {"in_words": None if clip == without else f"{manners[number % 2]}, male, clean"}
        for number, clip in enumerate(clips)
    ]
    write_jsonl(folder / TAKES, rows)
    return folder


def test_a_description_has_a_line_for_each_clip_in_the_order_of_the_prompt(tmp_path: Path) -> None:
    item = tiny_items(tmp_path)[3]
    sounds = {
        "c6.wav": "sad, male, clean",
        "c7.wav": "calm, female, coded",
        "c8.wav": "happy, child, noisy",
        "c9.wav": "flat, male, clean",
    }
    assert describe(item, sounds) == (
        "[Turn 1] sad, male, clean\n[Turn 2] calm, female, coded\n[Speech A] happy, child, noisy\n[Speech B] flat, male, clean"
    )
    assert describe(item, sounds | {"c7.wav": None}) is None
    assert describe(item, {}) is None


def test_items_with_a_clip_that_nothing_is_said_of_are_left_out_and_none_at_all_is_an_error(tmp_path: Path) -> None:
    items = tiny_items(tmp_path)
    assert read_descriptions(written(tmp_path, items, without="c3.wav"), items).keys() == {"1", "3", "4"}
    with pytest.raises(ConfigError, match=r"takes\.jsonl: describes the clips of no item"):
        read_descriptions(tmp_path, [items[1]])
    with pytest.raises(ConfigError, match="paras2s unisrm data"):
        read_descriptions(tmp_path / "empty", items)


def test_the_prompt_asks_for_a_description_and_the_labels_are_one(tmp_path: Path) -> None:
    items = tiny_items(tmp_path)
    wanted = read_descriptions(written(tmp_path, items), items)
    model = tiny_unisrm(prompts=short_prompts(tmp_path))
    batch = SftCollator(model, tmp_path, items, wanted)([{"number": 3, "kind": Kind.DESCRIPTION}])
    labels = batch["labels"][0]
    assert model.text_of(labels[labels != -100].tolist()) == wanted["4"]
    prompt = model.tokenizer.decode(batch["input_ids"][0][labels == -100])
    assert prompt.startswith(f"<|im_start|>system\n{model.systems['T4']} describe<|im_end|>")
    assert not model.tokenizer.decode(ItemEncoder(model, tmp_path, items)[3].ids).startswith(prompt[:-1])


def test_a_share_of_what_can_be_described_is_described_beside_the_replies() -> None:
    chosen = sft_examples(40, 0.1, seed=0, described=range(10, 40), described_share=0.5)
    assert chosen["kind"] == [Kind.REPLY] * 40 + [Kind.SILENT] * 4 + [Kind.DESCRIPTION] * 20
    assert len(set(chosen["number"][44:])) == 20
    assert min(chosen["number"][44:]) >= 10
    assert sft_examples(40, 0.1, seed=0, described=[3], described_share=0.5)["number"][44:] == [3]


@pytest.mark.parametrize(
    ("change", "shares"),
    [
        (lambda text: text, (1.0, 1.0, 1.0)),
        (lambda text: text.replace("happy", "sad"), (0.5, 1.0, 1.0)),
        (lambda text: text.splitlines()[0], (0.25, 0.25, 0.25)),
        (lambda text: text.replace(", clean", ""), (1.0, 1.0, 0.0)),
        (lambda text: "?", (0.0, 0.0, 0.0)),
    ],
)
def test_each_part_is_right_by_itself_and_a_missing_line_is_wrong(tmp_path, monkeypatch, change, shares) -> None:
    items = tiny_items(tmp_path)[3:]
    (wanted,) = read_descriptions(written(tmp_path, items), items).values()
    monkeypatch.setattr(UniSRM, "reply", lambda *_, **__: [change(wanted)])
    found = measure_descriptions(tiny_unisrm(prompts=short_prompts(tmp_path)), tmp_path, items)
    assert (found.manner, found.voice, found.signal) == shares


def test_descriptions_are_learned_and_the_model_is_stored(tmp_path: Path) -> None:
    items = tiny_items(tmp_path)
    written(tmp_path, items)
    model = tiny_unisrm(prompts=short_prompts(tmp_path))
    train_descriptions(model, tmp_path, items, 20, SFT, tmp_path / "described")
    losses = [row["loss"] for row in read_jsonl(tmp_path / "described" / "metrics.jsonl") if "loss" in row]
    assert len(losses) == 20
    assert losses[-1] < 0.7 * losses[0]
    assert is_trained(tmp_path / "described")


def test_training_begins_with_the_model_that_describes_where_there_is_one(tmp_path: Path) -> None:
    items = [replace(item, split="rl") if item.id == "1" else item for item in tiny_items(tmp_path)]
    write_items(written(tmp_path, items), items)
    scratch = {"vocabulary": 320, "hidden_size": 32, "layers": 1, "audio_size": 16, "audio_layers": 1}
    config = UniSRMConfig.model_validate(
        {
            "thinker": {"trains": "all", "scratch": scratch | {"description_updates": 2}},
            "sft": {"batch_size": 2, "micro_batch_size": 2},
        }
    )
    taught = _begin(config, tmp_path, items[1:], tmp_path / "sft", 0, Console(), quiet=True)
    (tmp_path / "sft" / DESCRIPTION_PROBE).unlink()  # As where a run was killed before it was written.
    again = _begin(config, tmp_path, items[1:], tmp_path / "sft", 1, Console(), quiet=True)
    assert again.config == taught.config == config.thinker
    assert all((one == other).all() for one, other in zip(taught.thinker.parameters(), again.thinker.parameters(), strict=True))
    assert (tmp_path / "sft" / DESCRIBED / "metrics.jsonl").is_file()
    # Two updates describe nothing rightly, and that is measured.
    assert read_json(tmp_path / "sft" / DESCRIPTION_PROBE) == {"manner": 0.0, "voice": 0.0, "signal": 0.0}
