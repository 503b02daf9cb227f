"""The two stages of UniSRM's training from the command line."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path
from typing import Any, Literal

from paras2s.configs.schema.unisrm import UniSRMConfig, load_unisrm_config
from paras2s.errors import ConfigError
from paras2s.reward.unisrm.items import read_items
from paras2s.reward.unisrm.tasks import Item
from paras2s.reward.unisrm.thinker import UniSRM


def train_stage(
    stage: Literal["sft", "grpo"], config: str, overrides: dict[str, Any], data: Path, out: Path, seed: int
) -> Path:
    """Trains one stage on its split of the data, and returns the folder with the model.

    Raises:
        ConfigError: a wrong config, one without this stage, or packages that are not here. JudgeError: no model to begin with.
    """
    settings = load_unisrm_config(config, overrides)
    if find_spec("trl") is None:
        raise ConfigError("training needs the package trl; run: pip install 'paras2s[unisrm]'")
    from paras2s.reward.unisrm.train import train_grpo, train_sft

    folder = out / stage
    if (folder / "metrics.jsonl").exists():
        raise ConfigError(f"{folder}: a model was trained there already; give another --out, or delete it")
    if stage == "sft":
        items = read_items(data, ["sft"])
        train_sft(_begin(settings, items, seed), data, items, settings.sft, folder, seed)
    else:
        if settings.grpo is None:
            raise ConfigError(f"{config}: has no stage of GRPO (w/o GRPO)")
        train_grpo(UniSRM.load(out / "sft"), data, read_items(data, ["rl"]), settings.grpo, folder, seed)
    return folder


def _begin(config: UniSRMConfig, items: list[Item], seed: int) -> UniSRM:
    if config.thinker.scratch is None:
        return UniSRM.pretrained(config.thinker)
    from paras2s.reward.unisrm.scratch import thinker_from_scratch

    return thinker_from_scratch(config.thinker, items, seed)
