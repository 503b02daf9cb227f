"""A run folder of version 0.5 under the present names: config keys by hand, and a folder that is converted twice.

Not covered: that a run stopped before and resumed after has the same weights; that takes the version before
(`paras2s demo --preset ci` with it, its newest checkpoints removed, `paras2s convert`, `paras2s align --resume`).
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import yaml

from paras2s.configs.schema.base import dump_config, preset_path
from paras2s.configs.schema.renamed import RENAMED_KEYS
from paras2s.configs.schema.run import RunConfig, load_config
from paras2s.errors import ConfigError
from paras2s.pipeline.convert import convert_run, renamed
from paras2s.pipeline.shared_stages import stage_keys
from paras2s.run import MAY_CHANGE, claim_folder, flatten, open_run

OLD: dict[str, Any] = {
    "name": "mine",
    "warmup": {"learning_rate": 0.002, "examples_at_once": 3, "steps": 7},
    "distill": {"learning_rate": 0.001, "omni": {"learning_rate": 1e-5, "steps": 4}},
    "align": {
        "steps": 5, "queries_per_step": 4, "learned_queries": 2, "hearing_learning_rate": 0.5, "learning_rate": 0.25,
        "importance_cap": 2.0, "max_drift": 0.3, "answers_at_once": 6, "checkpoint_layers": True, "max_staleness": None,
        "rollout_workers": 3, "rollout_workers_max": 4, "rollout": {"cpus": 2.0, "gpus": 0.0, "resources": {}, "threads": None},
        "learner_workers": 2, "kl_weight": 0.1, "ray_address": "127.0.0.1:6379", "augment": {"words_dropped": 0.5},
    },
}  # fmt: skip


def test_every_setting_has_its_present_name() -> None:
    config = RunConfig.model_validate(renamed(OLD))
    align = config.align
    assert (config.warmup.lr, config.warmup.micro_batch_size, config.warmup.steps) == (0.002, 3, 7)
    assert config.distill.omni is not None
    assert (config.distill.lr, config.distill.omni.lr, config.distill.omni.steps) == (0.001, 1e-5, 4)
    assert (align.steps, align.max_staleness, align.augment.words_dropped) == (5, 0, 0.5)
    assert (align.sampling.queries_per_step, align.objective.groups_per_update) == (4, 2)
    assert (align.objective.tis_cap, align.objective.max_logprob_gap, align.objective.kl_weight) == (2.0, 0.3, 0.1)
    assert (align.optimizer.lr, align.optimizer.adaptor_lr) == (0.25, 0.5)
    assert (align.optimizer.micro_batch_size, align.optimizer.gradient_checkpointing) == (6, True)
    workers = align.workers
    assert (workers.rollout.count, workers.rollout.max_count, workers.rollout.cpus) == (3, 4, 2.0)
    assert (workers.learner.count, workers.ray_address) == (2, "127.0.0.1:6379")


def test_a_present_config_is_left_as_it_is() -> None:
    values = yaml.safe_load(dump_config(RunConfig()))
    assert flatten(renamed(values)) == flatten(values)


def test_no_new_name_is_an_old_one() -> None:
    """Else a folder that is converted twice would lose what the first time gave it."""
    assert not set(RENAMED_KEYS) & set(RENAMED_KEYS.values())
    for new in RENAMED_KEYS.values():
        assert not any(new == old or new.startswith(f"{old}.") for old in RENAMED_KEYS)


def old_folder(folder: Path) -> Path:
    (folder / "bench").mkdir(parents=True)
    (folder / "config.resolved.yaml").write_text(yaml.safe_dump(OLD))
    (folder / "bench" / "words_only.jsonl").write_text('{"system": "words_only", "score": 3.0}\n')
    (folder / "bench" / "summary.json").write_text('{"words_only": {"overall": 1}, "sft": {"overall": 2}}')
    return folder


def test_an_old_folder_is_refused_by_name_until_it_is_converted(tmp_path: Path) -> None:
    folder = old_folder(tmp_path / "run")
    resolved = dump_config(RunConfig.model_validate(renamed(OLD)))
    with pytest.raises(ConfigError, match=f"`paras2s convert {folder}`"):
        claim_folder(folder, resolved)
    with pytest.raises(ConfigError, match=f"`paras2s convert {folder}`"):
        open_run(folder)
    assert convert_run(folder) == ["bench/cascade.jsonl", "config.resolved.yaml"]
    assert open_run(folder).config.align.objective.groups_per_update == 2
    claim_folder(folder, resolved)
    assert json.loads((folder / "bench" / "cascade.jsonl").read_text()) == {"system": "cascade", "score": 3.0}
    assert set(json.loads((folder / "bench" / "summary.json").read_text())) == {"cascade", "sft"}
    assert convert_run(folder) == []


def test_a_folder_may_go_on_with_other_workers_and_with_nothing_else(tmp_path: Path) -> None:
    alone, on_eight = RunConfig(), {"rollout": {"count": 8, "gpus": 1}}
    claim_folder(tmp_path, dump_config(alone), MAY_CHANGE)
    claim_folder(tmp_path, dump_config(RunConfig.model_validate({"distill": on_eight})), MAY_CHANGE)
    claim_folder(tmp_path, dump_config(RunConfig.model_validate({"warmup": {"learner": {"count": 2}}})), MAY_CHANGE)
    with pytest.raises(ConfigError, match=r"other settings \(distill\.answers_per_query: 3\)"):
        claim_folder(tmp_path, dump_config(RunConfig.model_validate({"distill": {"answers_per_query": 4}})), MAY_CHANGE)


def test_resources_of_a_node_keep_their_names() -> None:
    old = {"align": {"rollout": {"cpus": 1.0, "resources": {"node:10.0.0.5": 0.01}}, "rollout_workers": 2}}
    rollout = RunConfig.model_validate(renamed(old)).align.workers.rollout
    assert (rollout.count, rollout.resources) == (2, {"node:10.0.0.5": 0.01})


def test_a_folder_of_runs_is_converted_run_by_run(tmp_path: Path) -> None:
    for name in ("a", "b"):
        old_folder(tmp_path / "grid" / "seed0" / name)
    changed = convert_run(tmp_path / "grid")
    assert changed == [f"seed0/{name}/{file}" for name in "ab" for file in ("bench/cascade.jsonl", "config.resolved.yaml")]


def test_stages_of_other_splits_are_not_found_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """Version 0.5 gave the warm-up of the preset demo the key d444d9bf; its prompts were labelled for the reward model."""
    keys = stage_keys(load_config(preset_path("demo")))
    assert not keys["sft"].startswith("d444d9bf")
    monkeypatch.setattr("paras2s.pipeline.shared_stages.SPLITS_VERSION", 99)
    other = stage_keys(load_config(preset_path("demo")))
    assert not set(keys.values()) & set(other.values())


def test_another_rubric_makes_another_reward_model_and_the_same_warm_up(monkeypatch: pytest.MonkeyPatch) -> None:
    keys = stage_keys(load_config(preset_path("demo")))
    monkeypatch.setattr("paras2s.pipeline.shared_stages.load_rubric", lambda: (None, "another"))
    other = stage_keys(load_config(preset_path("demo")))
    assert {stage: keys[stage] == other[stage] for stage in keys} == {"data": True, "sft": True, "reward": False}


def test_what_is_no_run_folder_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"config\.resolved\.yaml: no such file; give the folder of a run, or of"):
        convert_run(tmp_path)
