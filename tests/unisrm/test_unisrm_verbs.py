"""The verbs `unisrm data` and `unisrm train`, on a thinker with a few thousand random weights.

Not covered: the speech of the embedded data (tests/data_gen/test_unisrm_data.py), and what training leads to.
"""

import json
from collections import Counter
from dataclasses import replace

import pytest
import torch
from tiny.unisrm import short_prompts, tiny_items
from typer.testing import CliRunner

pytest.importorskip("trl", reason="training is with trl==1.16.0")

from paras2s.cli.app import app
from paras2s.configs.schema.unisrm import ScratchConfig, ThinkerConfig
from paras2s.errors import ConfigError
from paras2s.unisrm.data_gen import embedded
from paras2s.unisrm.reward.items import read_items, write_items
from paras2s.unisrm.reward.scratch import fit_frontend, thinker_from_scratch
from paras2s.unisrm.reward.tasks import TASKS
from paras2s.unisrm.reward.thinker import UniSRM, instructions

SCRATCH = {"vocabulary": 400, "hidden_size": 32, "layers": 1, "audio_size": 16, "audio_layers": 1}


@pytest.fixture(autouse=True)
def one_thread():
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def run(*call):
    return CliRunner().invoke(app, ["unisrm", *map(str, call)])


def test_both_stages_train_from_random_weights(tmp_path):
    items = tiny_items(tmp_path)
    write_items(tmp_path, [*items[:2], *(replace(item, split="rl") for item in items[2:])])
    config = {
        "kind": "unisrm",
        "thinker": {"trains": "all", "scratch": SCRATCH, "prompts": str(short_prompts(tmp_path))},
        "sft": {"batch_size": 2, "micro_batch_size": 2},
        "grpo": {"batch_size": 2, "micro_batch_size": 2, "group_size": 2, "max_steps": 1, "max_completion_tokens": 3},
    }
    path = tmp_path / "mine.yaml"
    path.write_text(json.dumps(config))
    places = ["--data", tmp_path, "--out", tmp_path / "run"]
    for stage in ("sft", "grpo"):
        done = run("train", stage, path, *places)
        assert done.exit_code == 0, done.exception
        rows = [json.loads(line) for line in (tmp_path / "run" / stage / "metrics.jsonl").read_text().splitlines()]
        assert {row["stage"] for row in rows} == {stage}
        assert isinstance(UniSRM.load(tmp_path / "run" / stage), UniSRM)
    again = run("train", "sft", path, *places)
    assert isinstance(again.exception, ConfigError)
    assert "trained there already" in str(again.exception)
    none = run("train", "grpo", "without_grpo", *places[:2], "--out", tmp_path / "other")
    assert "no stage of GRPO" in str(none.exception)


def test_the_tokenizer_gives_texts_back_and_digits_stand_alone(tmp_path):
    items = tiny_items(tmp_path)
    config = ThinkerConfig(scratch=ScratchConfig(**SCRATCH), trains="all")
    model = thinker_from_scratch(config, tmp_path, items)
    text = "<think>\n1) x: score=10/10; = 9+8 = 17\n</think> \u00e9"
    ids = model.tokenizer(text, add_special_tokens=False)["input_ids"]
    assert model.tokenizer.decode(ids) == text
    tokens = model.tokenizer.convert_ids_to_tokens(ids)
    assert not any(len(token) > 1 and any(letter.isdigit() for letter in token) for token in tokens)
    media = model.tokenizer("<|audio_bos|><|AUDIO|><|AUDIO|><|audio_eos|>", add_special_tokens=False)["input_ids"]
    assert len(media) == 4
    with pytest.raises(ConfigError, match=r"set thinker\.trains to all"):
        thinker_from_scratch(ThinkerConfig(scratch=ScratchConfig(**SCRATCH)), tmp_path, items)


def test_the_audio_tower_begins_with_sound_of_one_size_in_every_bin(tmp_path):
    config = ThinkerConfig(scratch=ScratchConfig(**SCRATCH), trains="all")
    tower = thinker_from_scratch(config, tmp_path, tiny_items(tmp_path)).thinker.model.audio_tower
    generator = torch.Generator().manual_seed(0)
    # Bins of another size and place each, as those of speech have.
    size, place = (torch.linspace(0.01, 3, 128)[:, None], torch.linspace(-5, 5, 128)[:, None])
    features = place + size * torch.randn(128, 4000, generator=generator)
    fit_frontend(tower, features)
    with torch.no_grad():
        output = tower.conv1(features[None])[0, :, 1:-1]
        alone = tower.conv1(place[None].expand(1, 128, 9))[0, :, 1:-1]
    assert output.mean(1).abs().max() < 0.1
    assert output.std(1).mean() == pytest.approx(1, abs=0.15)
    # What all clips have in common is left out.
    assert alone.abs().max() < 0.1


def test_random_weights_get_no_instruction_but_the_task(tmp_path):
    scratch = ThinkerConfig(scratch=ScratchConfig(**SCRATCH), trains="all")
    assert instructions(scratch) == {task: task for task in TASKS}
    assert "Reply in exactly this form" in instructions(ThinkerConfig())["T1"]
    own = scratch.model_copy(update={"prompts": short_prompts(tmp_path)})
    assert instructions(own)["T2"].startswith("Reply in exactly this form")


def test_the_data_verb_reports_items_and_shortcuts(tmp_path, monkeypatch):
    def build(folder, size, seed, on_progress):
        items = [
            replace(item, split=split, id=f"{item.id}{split}") for item in tiny_items(folder) for split in ("sft", "bench")
        ]
        write_items(folder, items)
        return embedded.BuildReport(Counter((item.task, item.split) for item in items), {("T1", "equal totals"): 2})

    monkeypatch.setattr(embedded, "build_embedded", build)
    done = run("data", tmp_path, "--json")
    report = json.loads(done.stdout)
    assert report["items"]["T4 bench"] == 1
    assert report["dropped"] == {"T1: equal totals": 2}
    assert {one["name"] for one in report["shortcuts"]} >= {"majority", "length", "loudness"}
    assert len(read_items(tmp_path)) == 8
    assert "T2 by length" in run("data", tmp_path).stdout
