"""Stages that several runs share: equal data, warm-ups and reward models are made once."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

from paras2s.configs.schema.run import RunConfig
from paras2s.data_gen.scripted.scripts import SPLITS_VERSION
from paras2s.errors import StorageError, one_line
from paras2s.reward.judges.rubric import RubricJudge
from paras2s.reward.judges.rubric_rules import load_rubric
from paras2s.reward.reward_model import VERSION as REWARD_MODEL_VERSION
from paras2s.run import TOOK, Run
from paras2s.utils.cache import key_of
from paras2s.utils.io import read_text

# Sections that decide what a stage makes; a later stage also depends on those before it.
SECTIONS = {"data": ("seed", "data"), "sft": ("policy", "warmup"), "reward": ("distill",)}
# Settings of these that only a later stage reads.
READ_LATER = {"distill": ("refresh_every", "refresh_answers")}


def shared_folder(results: Path) -> Path:
    """Return the one folder for stages shared by the ablations beside a folder of results and its seeds."""
    return results.parent / "ablations" / "shared"


def stage_keys(config: RunConfig) -> dict[str, str]:
    """Hash what each shared stage depends on under this config: equal keys, equal outcome."""
    settings = config.model_dump(mode="json")
    for section, names in READ_LATER.items():
        settings[section] = {name: value for name, value in settings[section].items() if name not in names}
    if config.distill.teacher.endswith((".yaml", ".yml", ".csv", ".json")) and Path(config.distill.teacher).is_file():
        # A judge edited in place is another teacher, and people may have said more.
        settings["distill"]["teacher"] = read_text(Path(config.distill.teacher))
    # Dependencies of the stages outside the settings.
    beside = {"data": SPLITS_VERSION, "reward": [REWARD_MODEL_VERSION, RubricJudge.version, load_rubric()[1]]}
    keys: dict[str, str] = {}
    so_far: list[Any] = []
    for stage, sections in SECTIONS.items():
        so_far += [settings[section] for section in sections]
        so_far.append(beside.get(stage))
        keys[stage] = key_of(so_far)[:12]
    return keys


def share_stages(run: Run, shared: Path) -> None:
    """Link the run's folders of shared stages to one folder for each outcome."""
    run.folder.mkdir(parents=True, exist_ok=True)
    for stage, key in stage_keys(run.config).items():
        shared_stage = (shared / f"{stage}-{key}").resolve()
        shared_stage.mkdir(parents=True, exist_ok=True)
        link = run.folder / stage
        if link.is_symlink() and link.resolve() != shared_stage:
            link.unlink()
        if not link.exists():
            link.symlink_to(shared_stage, target_is_directory=True)


def copy_finished_stages(run: Run, shared: Path) -> None:
    """Copy finished stages that the run would make alike into its folder, which stays whole wherever it is moved."""
    for stage, key in stage_keys(run.config).items():
        shared_stage, own = shared / f"{stage}-{key}", run.folder / stage
        if (shared_stage / TOOK).is_file() and not own.exists():
            _copy(shared_stage, own)


def offer_finished_stages(run: Run, shared: Path) -> None:
    """Copy the run's finished stages to the shared folder, unless another run has begun them there."""
    for stage, key in stage_keys(run.config).items():
        shared_stage, own = shared / f"{stage}-{key}", run.folder / stage
        if (own / TOOK).is_file() and not shared_stage.exists():
            _copy(own, shared_stage)


def _copy(source: Path, target: Path) -> None:
    """Copy a folder, under its name only once it is complete. Raises StorageError: the disk refused."""
    partial = target.with_name(f"{target.name}.partial")
    try:
        shutil.rmtree(partial, ignore_errors=True)
        shutil.copytree(source, partial)
        partial.rename(target)
    except OSError as error:
        raise StorageError(f"cannot copy {source} to {target}: {one_line(error)}; free disk space and run again") from error
