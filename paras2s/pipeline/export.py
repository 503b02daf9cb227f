"""`paras2s export`: the policy of a run at any of its checkpoints, in the layout of its family's released weights.

The folder is complete or missing: it is made under another name and renamed. `paras2s push` sends it to a hub.
"""

from __future__ import annotations

import os
import shutil
from dataclasses import dataclass
from pathlib import Path

from paras2s.errors import ConfigError, PolicyError, StorageError
from paras2s.pipeline.model_card import model_card
from paras2s.policy.adapters import save_adapters
from paras2s.policy.answers import answer_settings_of, write_answer_settings
from paras2s.policy.base import Policy
from paras2s.policy.components import copy_components, pointed_at
from paras2s.policy.registry import is_checkpoint, load_policy
from paras2s.policy.weights import fingerprint
from paras2s.run import RESOLVED, Run, open_run
from paras2s.train.checkpoint import COMPLETE, check_base, checkpoints_in, fill_trained, read_position
from paras2s.utils.io import write_text


@dataclass(frozen=True)
class Exported:
    """A folder that was written, and the frozen components that it only points at."""

    folder: Path
    updates: int
    missing: tuple[str, ...]


def export_checkpoint(
    checkpoint: Path, out: Path | None = None, run_folder: Path | None = None, adapters: bool = False, components: bool = False
) -> Exported:
    """Write a training checkpoint, or a run's `aligned` or `sft`, with a model card; `out` None: RUN/export/NAME.

    `adapters`: these alone, in peft's layout. `components`: copy the frozen ones (audio encoder, vocoder) as well.

    Raises:
        ConfigError: no run around the checkpoint, or options that do not fit it. DataError: not a complete checkpoint.
        PolicyError: of a newer version, of other weights, or broken. StorageError: `out` is there already.
    """
    _require_checkpoint(checkpoint)
    run = open_run(run_folder or _run_around(checkpoint), quiet=True)
    _refuse(checkpoint, run, adapters, components)
    out = out or run.folder / "export" / (checkpoint.name + ("-adapters" if adapters else ""))
    if out.exists() and (not out.is_dir() or any(out.iterdir())):
        raise StorageError(f"{out}: exists already; give another folder, or delete it")
    updates = read_position(checkpoint).next_step if (checkpoint / COMPLETE).is_file() else 0
    trained = not is_checkpoint(checkpoint)
    policy = policy_at(run, checkpoint) if trained else load_policy(checkpoint, run.config.policy.kind, "cpu")
    temporary = out.with_name(f".{out.name}.partial")
    shutil.rmtree(temporary, ignore_errors=True)
    if adapters:
        lora = run.config.align.lora
        assert lora is not None
        save_adapters(policy, temporary, run.sft_dir, lora.rank, lora.alpha)
    else:
        policy.merge_lora()
        policy.narrow_trained()
        policy.save(temporary)
    write_answer_settings(temporary, answer_settings_of(run.config))
    if components:
        copy_components(temporary)
    missing = tuple(pointed_at(temporary))
    write_text(temporary / "README.md", model_card(run, updates, adapters, missing))
    try:
        os.replace(temporary, out)
    except OSError as error:
        raise StorageError(f"cannot write {out}: {error.strerror or error}") from error
    return Exported(out, updates, missing)


def policy_at(run: Run, checkpoint: Path) -> Policy:
    """Load the policy of a run's training checkpoint with adapters. Raises PolicyError: broken, newer, or of other weights."""
    config = run.config
    check_base(checkpoint, fingerprint(run.sft_dir))
    policy = load_policy(run.sft_dir, config.policy.kind, "cpu", config.policy.torch_dtype)
    if config.align.lora is not None:
        policy.add_lora(config.align.lora.rank, config.align.lora.alpha)
    else:
        policy.widen_trainable()
    fill_trained(checkpoint, policy)
    return policy


def _run_around(checkpoint: Path) -> Path:
    for folder in (checkpoint, *checkpoint.resolve().parents):
        if (folder / RESOLVED).is_file():
            return folder
    raise ConfigError(
        f"{checkpoint}: is in no run's folder (no folder above it has {RESOLVED}); give the run's folder by --run"
    )


def _require_checkpoint(checkpoint: Path) -> None:
    if (checkpoint / COMPLETE).is_file() or is_checkpoint(checkpoint):
        return
    # A run's own folder is easily given in place of one of these.
    made = [path for name in ("sft", "aligned") if is_checkpoint(path := checkpoint / name)]
    checkpoints = [str(path) for path in (*checkpoints_in(checkpoint / "checkpoints" / "align").values(), *made)]
    raise PolicyError(
        f"{checkpoint}: is no complete checkpoint: it has neither {COMPLETE} nor a policy's policy.json or config.json; "
        f"give {' or '.join(checkpoints) or 'RUN/checkpoints/align/step_NNNNNN, or RUN/aligned'}"
    )


def _refuse(checkpoint: Path, run: Run, adapters: bool, components: bool) -> None:
    if checkpoint.resolve().parent == (run.folder / "checkpoints" / "sft").resolve():
        raise PolicyError(f"{checkpoint}: is a checkpoint of the warm-up; once that is done, export {run.sft_dir}")
    if adapters and is_checkpoint(checkpoint):
        raise ConfigError(
            f"--adapters: in {checkpoint} adapters are folded in; give a folder in {run.folder}/checkpoints/align"
        )
    if adapters and run.config.align.lora is None:
        raise ConfigError("--adapters: this run trained all weights; leave the option out")
    if adapters and components:
        raise ConfigError("--components: adapters use the components of their base weights; leave one option out")
