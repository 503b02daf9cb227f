"""The two stages of UniSRM's training from the command line."""

from __future__ import annotations

from dataclasses import asdict
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Literal

from rich.console import Console

from paras2s.configs.schema.unisrm import UniSRMConfig, UniSRMGrpoConfig, load_unisrm_config
from paras2s.errors import ConfigError
from paras2s.unisrm.reward.items import read_items
from paras2s.unisrm.reward.tasks import Item
from paras2s.unisrm.reward.thinker import SETTINGS, UniSRM
from paras2s.utils.io import write_json
from paras2s.utils.progress import progress_bar

# Where weights began at random: what two heads read from the audio tower before anything else, and the model that has learned
# to describe clips, with the shares of right descriptions.
TOWER_PROBE = "tower_probe.json"
DESCRIBED, DESCRIPTION_PROBE = "described", "description_probe.json"


def train_stage(
    stage: Literal["sft", "grpo"], config: str, overrides: dict[str, Any], data: Path, out: Path, seed: int, console: Console
) -> Path:
    """Train one stage on its split; return the model's folder. Raises ConfigError: a wrong config, or no packages."""
    settings = load_unisrm_config(config, overrides)
    folder = out / stage
    if is_trained(folder):
        raise ConfigError(f"{folder}: a model was trained there already; give another --out, or delete it")
    if stage == "sft":
        run_sft(settings, data, folder, seed, console)
    else:
        if settings.grpo is None:
            raise ConfigError(f"{config}: has no stage of GRPO (w/o GRPO)")
        run_grpo(settings.grpo, out / "sft", data, folder, seed, console)
    return folder


def is_trained(folder: Path) -> bool:
    """Return whether a stage is finished: its settings are written last."""
    return (folder / SETTINGS).is_file()


def run_sft(settings: UniSRMConfig, data: Path, folder: Path, seed: int, console: Console, quiet: bool = False) -> None:
    """Train the first stage on the split `sft`, from its last checkpoint. Raises ConfigError: no packages. JudgeError."""
    _require_trl()
    from paras2s.unisrm.reward.train import train_sft

    items = read_items(data, ["sft"])
    model = _begin(settings, data, items, folder, seed, console, quiet)
    with progress_bar(console, "SFT, updates", None, quiet) as bar:
        train_sft(model, data, items, settings.sft, folder, seed, bar.at)


def run_grpo(
    settings: UniSRMGrpoConfig, begin: Path, data: Path, folder: Path, seed: int, console: Console, quiet: bool = False
) -> None:
    """Train a model of the first stage on the split `rl`, from its last checkpoint. Raises ConfigError. JudgeError."""
    _require_trl()
    from paras2s.unisrm.reward.train import train_grpo

    with progress_bar(console, f"{folder.name}, updates", None, quiet) as bar:
        train_grpo(UniSRM.load(begin), data, read_items(data, ["rl"]), settings, folder, seed, bar.at)


def _require_trl() -> None:
    if find_spec("trl") is None:
        raise ConfigError("training needs the package trl; run: pip install 'paras2s[unisrm]'")


def _begin(
    config: UniSRMConfig, data: Path, items: list[Item], folder: Path, seed: int, console: Console, quiet: bool
) -> UniSRM:
    scratch = config.thinker.scratch
    if scratch is None:
        return UniSRM.pretrained(config.thinker)
    described = folder / DESCRIBED
    if is_trained(described):
        model = UniSRM.load(described)
        model.config = config.thinker
    else:
        model = _from_scratch(config, data, items, folder, seed, console, quiet)
    others = read_items(data, ["rl"])
    if scratch.description_updates and others and not (folder / DESCRIPTION_PROBE).is_file():
        from paras2s.unisrm.reward.descriptions import measure_descriptions

        write_json(folder / DESCRIPTION_PROBE, asdict(measure_descriptions(model, data, others)))
    return model


def _from_scratch(
    config: UniSRMConfig, data: Path, items: list[Item], folder: Path, seed: int, console: Console, quiet: bool
) -> UniSRM:
    """Make a model with random weights, its tower pretrained and taught to describe, as the config says."""
    from paras2s.unisrm.reward.scratch import thinker_from_scratch

    scratch = config.thinker.scratch
    assert scratch is not None
    model = thinker_from_scratch(config.thinker, data, items, seed)
    if scratch.audio_pretraining_updates:
        from paras2s.unisrm.reward.audio_pretraining import pretrain_tower

        with progress_bar(console, "audio tower, updates", scratch.audio_pretraining_updates, quiet) as bar:
            probe = pretrain_tower(model, data, scratch.audio_pretraining_updates, seed, bar.at)
        write_json(folder / TOWER_PROBE, asdict(probe))
    if scratch.description_updates:
        from paras2s.unisrm.reward.train import train_descriptions

        with progress_bar(console, "descriptions, updates", scratch.description_updates, quiet) as bar:
            train_descriptions(model, data, items, scratch.description_updates, config.sft, folder / DESCRIBED, seed, bar.at)
    return model
