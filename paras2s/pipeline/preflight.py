"""Checks of a run's inputs before minutes are spent: weights, tokenizers, models of a hub, devices, checkpoints.

Files are opened and their headers read; no weights are loaded. What is wrong inside them is found when they are.
"""

from __future__ import annotations

import zipfile
from pathlib import Path

import torch

from paras2s.configs.schema.run import OmniConfig, RunConfig
from paras2s.errors import ConfigError, PolicyError
from paras2s.pipeline.dry_run import devices_here, dry_run
from paras2s.pipeline.skeletons import COUNTED, policy_skeleton
from paras2s.planning.cluster import load_rates
from paras2s.policy.adapters import has_adapters
from paras2s.policy.components import find_component
from paras2s.policy.registry import POLICIES, check_kind, is_checkpoint, kind_of, named
from paras2s.policy.weights import check_state, shapes_of, shard_files, stored_shapes
from paras2s.run import Run
from paras2s.train.checkpoint import latest_checkpoint, read_position
from paras2s.train.fsdp import NO_NCCL


def check_run(run: Run) -> None:
    """Check what every stage of a run on released weights needs.

    Raises:
        ConfigError, PolicyError: the first thing that does not fit, and what to do.
    """
    config = run.config
    if config.policy.weights is not None and not is_checkpoint(run.sft_dir):
        check_weights(config.policy.weights, config.policy.kind)
    if config.policy.decoder is not None:
        named(config.policy.decoder, "policy.decoder")
    check_models(config)


def check_align(run: Run, resume: bool) -> None:
    """Check what GRPO needs besides: GPUs that hold its workers and can meet, and a checkpoint that this version reads.

    Raises:
        ConfigError, PolicyError: the first thing that does not fit, and what to do.
    """
    check_models(run.config)
    check_devices(run.config)
    checkpoint = latest_checkpoint(run.folder / "checkpoints" / "align") if resume else None
    if checkpoint is not None:
        read_position(checkpoint)


def check_weights(folder: Path, kind: str | None) -> None:
    """A released checkpoint: there, of this family, complete, and of the sizes of its own config where those are known.

    Raises:
        PolicyError: it is not; the file is named.
    """
    if not folder.is_dir():
        raise PolicyError(
            f"policy.weights: {folder} is no folder here, and no stage downloads; on a machine with network `hf download NAME "
            f"--local-dir {folder}` fetches the model NAME of a hub"
        )
    check_kind(folder, kind)
    if has_adapters(folder):
        return
    kind = kind or kind_of(folder)
    if kind not in POLICIES:
        return
    shapes = stored_shapes(shard_files(folder))
    if kind == "kimi":
        _check_kimi(folder, shapes)


def _check_kimi(folder: Path, shapes: dict[str, tuple[int, ...]]) -> None:
    from paras2s.configs.schema.run import PolicyConfig
    from paras2s.policy.kimi.policy import COMPONENTS, FLOW, VOCODER, own_name, special_ids
    from paras2s.policy.speech_tokenizers.bpe import KIMI_PATTERN, RankBpe

    name, first = min(special_ids(folder).items(), key=lambda one: one[1])
    words = RankBpe.read(folder / "tiktoken.model", {}, KIMI_PATTERN)
    if words.size > first:
        raise PolicyError(
            f"{folder / 'tiktoken.model'}: has {words.size} words, and {name} is {first}: it is another model's tokenizer; "
            "copy tiktoken.model and tokenizer_config.json from the release again"
        )
    skeleton = policy_skeleton(PolicyConfig(weights=folder), "kimi")
    stored = {ours: shape for name, shape in shapes.items() if (ours := own_name(name)) is not None}
    check_state(shapes_of(skeleton.policy.model.state_dict()), stored, str(folder))
    for name in COMPONENTS:
        component = find_component(folder, name)
        if name not in (FLOW, VOCODER):
            stored_shapes(shard_files(component))
        elif not zipfile.is_zipfile(component / "model.pt"):
            raise PolicyError(f"{component / 'model.pt'}: is missing or cut off; copy the released folder again")


def check_models(config: RunConfig) -> None:
    """Models of a hub by their name: they must be in its cache, since stages are offline.

    Raises:
        ConfigError: one is neither a folder nor there.
    """
    wanted = {}
    if config.distill.omni is not None:
        wanted["distill.omni.model"] = config.distill.omni.model
    for source in config.reward.sources:
        if source.kind == "omni" and "base_url" not in source.options and config.distill.omni is None:
            wanted["reward.sources: omni: model"] = str(source.options.get("model", OmniConfig().model))
    for key, name in wanted.items():
        if not Path(name).is_dir() and not _in_cache(name):
            raise ConfigError(
                f"{key}: {name} is neither a folder nor in the hub's cache, and no stage downloads; on a machine with network "
                f"`hf download {name}`, or name the folder of a copy"
            )


def _in_cache(name: str) -> bool:
    from huggingface_hub import try_to_load_from_cache
    from huggingface_hub.errors import HFValidationError

    try:
        return isinstance(try_to_load_from_cache(name, "config.json"), str)
    except HFValidationError:
        return False


def check_devices(config: RunConfig) -> None:
    """The GPUs of this machine, where a run that is not sent to a cluster wants them.

    Raises:
        ConfigError: they are too small for its workers, or its learner's ranks cannot meet.
    """
    workers = config.align.workers
    if not devices_here() or workers.ray_address is not None or not workers.learner.gpus:
        return
    if (workers.learner.count > 1 or config.align.optimizer.mixed_precision) and not torch.distributed.is_nccl_available():
        raise ConfigError(NO_NCCL)
    kind = config.policy.kind or ("embedded" if config.policy.weights is None else kind_of(config.policy.weights))
    if kind not in COUNTED or config.align.sampling.engine != "native":
        return
    problems = dry_run(config, load_rates()).problems
    if problems:
        raise ConfigError(f"{problems[0]}; `paras2s align CONFIG --meta` has the table")
