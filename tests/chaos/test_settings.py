"""Settings that cannot be are refused before anything is written, in one line that names the key; no key is printed."""

from __future__ import annotations

from pathlib import Path

import pytest

from paras2s.configs.schema.base import parse_config, preset_path
from paras2s.configs.schema.endpoints import LLMConfig
from paras2s.configs.schema.run import RunConfig, load_config
from paras2s.errors import ConfigError
from paras2s.run import open_run

REFUSED = {
    "policy.num_heads": (5, 0, -1, 112, 10**30, float("nan")),
    "policy.num_kv_heads": (3, 0),
    "policy.tap_layer": (4, -1),
    "policy.hidden_size": (0, 225),
    "policy.max_answer_steps": (0,),
    "warmup.lr": (float("nan"), float("inf"), -1.0, "fast"),
    "warmup.first_token_weight": (float("nan"), -1.0),
    "warmup.weight_decay": (float("inf"), -0.1),
    "warmup.steps": (10**30, -1),
    "distill.temperature": (0.0, float("nan")),
    "distill.steps": (0, 10**20),
    "distill.lr": (float("nan"), -1.0),
    "distill.layers": (0,),
    "align.optimizer.lr": (float("nan"),),
    "align.objective.kl_weight": (float("inf"),),
    "align.objective.ratio_cap": (0.0, float("nan")),
    "align.objective.tis_cap": (-1.0,),
    "align.sampling.temperature": (float("inf"),),
    "bench.temperature": (float("nan"),),
    "seed": (99999999999999999999, -1, 2**32, 1.5),
}


@pytest.mark.parametrize(("key", "value"), [(key, value) for key, values in REFUSED.items() for value in values])
def test_a_setting_that_cannot_be_names_its_key(key: str, value: object) -> None:
    with pytest.raises(ConfigError) as refused:
        load_config(preset_path("quick"), {key: value})
    assert key.rpartition(".")[2] in str(refused.value)
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize("seed", [-1, 2**32])
def test_the_seed_of_the_command_line_has_the_same_bounds(seed: int) -> None:
    with pytest.raises(ConfigError, match="--seed: seed: "):
        open_run("quick", seed=seed)


def test_paths_may_begin_with_a_tilde_and_hold_variables(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("WHERE", "disk")
    config = load_config(
        preset_path("quick"), {"run_dir": "~/$WHERE/run", "policy.weights": "${WHERE}/w", "policy.kind": "kimi"}
    )
    assert (config.run_dir, config.policy.weights) == (tmp_path / "disk/run", Path("disk/w"))
    assert open_run("quick", run_dir=Path("~/x")).folder == tmp_path / "x"


@pytest.mark.parametrize("key", ["sk-PLANTED0000111122223333", "PLANTED-0123456789abcdef0123456789abcdef"])
def test_a_key_in_the_wrong_field_is_not_printed(key: str) -> None:
    for values in ({"api_key_env": key}, {"concurrency": key}, {"timeout_s": f"Bearer {key}"}):
        with pytest.raises(ConfigError) as refused:
            parse_config(values, "llm", LLMConfig)
        assert "PLANTED" not in str(refused.value)


def test_a_long_value_is_not_printed_whole() -> None:
    with pytest.raises(ConfigError) as refused:
        parse_config({"name": [["x"] * 100_000]}, "a.yaml", RunConfig)
    assert len(str(refused.value)) < 400
