"""Checks of a run's inputs before minutes are spent: weights, tokenizers, models of a hub, devices, checkpoints.

Files are opened and their headers read; no weights are loaded. What is wrong inside them is found when they are.
"""

from __future__ import annotations

import zipfile
from collections.abc import Mapping, Sequence
from pathlib import Path

import torch

from paras2s.configs.schema.align import RoleConfig
from paras2s.configs.schema.run import OmniConfig, RunConfig
from paras2s.configs.schema.styles import words_of
from paras2s.errors import ConfigError, PolicyError
from paras2s.pipeline.dry_run import devices_here, dry_run
from paras2s.pipeline.skeletons import COUNTED, policy_skeleton
from paras2s.planning.cluster import load_rates
from paras2s.policy.adapters import has_adapters, read_adapters
from paras2s.policy.answers import read_answer_settings
from paras2s.policy.base import Policy
from paras2s.policy.components import find_component
from paras2s.policy.interleaved.base import InterleavedPolicy
from paras2s.policy.registry import POLICIES, check_kind, is_checkpoint, kind_of, policy_class
from paras2s.policy.weights import check_state, read_config, shapes_of, shard_files, stored_shapes
from paras2s.run import Run
from paras2s.train.checkpoint import latest_checkpoint, read_position
from paras2s.train.fsdp import NO_NCCL
from paras2s.utils.plugins import import_part


def check_run(run: Run) -> None:
    """Check what every stage of a run on released weights needs. Raises ConfigError, PolicyError: says what to do."""
    config = run.config
    if config.policy.weights is not None and not is_checkpoint(run.sft_dir):
        check_weights(config.policy.weights, config.policy.kind)
        if config.warmup.steps:
            check_warmup(config.policy.weights, config.policy.kind)
    if config.policy.decoder is not None:
        import_part(config.policy.decoder, "policy.decoder", PolicyError)
    if config.warmup.learner is not None:
        check_shares(config, {"warmup.learner": config.warmup.learner})
    check_samplers(config)
    check_models(config)


def check_align(run: Run, resume: bool) -> None:
    """Check what GRPO needs besides: GPUs for its workers and a readable checkpoint. Raises ConfigError, PolicyError."""
    check_models(run.config)
    check_decoder(run)
    check_devices(run.config)
    checkpoint = latest_checkpoint(run.folder / "checkpoints" / "align") if resume else None
    if checkpoint is not None:
        read_position(checkpoint)


def check_weights(folder: Path, kind: str | None) -> None:
    """Check that a released checkpoint is complete and of its family and sizes. Raises PolicyError: names the file."""
    if not folder.is_dir():
        advice = f"on a machine with network `hf download NAME --local-dir {folder}` fetches the model NAME of a hub"
        if kind == "spoken_lm":
            advice = f"`make spoken-lm` makes models/spoken_lm, and `python tools/make_spoken_lm.py MODEL {folder}` another one"
        raise PolicyError(f"policy.weights: {folder} is no folder here, and no stage downloads; {advice}")
    check_kind(folder, kind)
    if has_adapters(folder):
        return
    kind = kind or kind_of(folder)
    if kind not in POLICIES:
        return
    policy_class(kind).check_folder(folder)
    if kind == "kimi":
        _check_kimi(folder)


def check_warmup(folder: Path, kind: str | None) -> None:
    """Check what a released checkpoint's warm-up needs besides it. Raises PolicyError: no decoder, or no warm-up."""
    base = read_adapters(folder).base if has_adapters(folder) else folder
    policy_class(kind or kind_of(base)).check_warmup(base)


def check_style_in_words(config: RunConfig, kind: type[Policy], styles: Sequence[str], key: str) -> None:
    """Check that a policy can be told each of the styles that questions may have, for the setting `key`.

    Raises:
        ConfigError: a style has no words, or the demo's policy never learned them. PolicyError: its prompts have no text.
    """
    if kind.with_style is Policy.with_style:
        raise PolicyError(f"{key}: {kind.__name__} cannot be told a question's style: its prompts have no text; leave it out")
    for style in styles:
        words_of(style, config.policy.style_words)
    if config.policy.weights is None and not config.warmup.style_share:
        raise ConfigError(
            f"{key}: a policy that was trained from random weights understands a style in words only if its warm-up gave it; "
            "set warmup.style_share, 0.5 for example, and warm up again"
        )


def check_decoder(run: Run) -> None:
    """Check that a run with a decoder of the user's own can sample answers. Raises PolicyError: it names none."""
    config, folder = run.config.policy, run.sft_dir if is_checkpoint(run.sft_dir) else run.config.policy.weights
    if folder is None or config.decoder is not None:
        return
    kind = config.kind or kind_of(folder)
    policy, settings = policy_class(kind), read_answer_settings(folder, kind)
    if issubclass(policy, InterleavedPolicy) and (settings is None or settings.decoder is None):
        policy.load_speaker(folder)


def _check_kimi(folder: Path) -> None:
    from paras2s.configs.schema.run import PolicyConfig
    from paras2s.policy.kimi.policy import COMPONENTS, FLOW, TOKENIZER, VOCODER, own_name, special_ids
    from paras2s.policy.speech_tokenizers.bpe import KIMI_PATTERN, RankBpe
    from paras2s.policy.speech_tokenizers.whisper_vq import check_tokenizer

    path = folder / "tiktoken.model"
    RankBpe.read(path, {}, KIMI_PATTERN).check_below(special_ids(folder), path)
    skeleton = policy_skeleton(PolicyConfig(weights=folder), "kimi")
    check_state(shapes_of(skeleton.policy.model.state_dict()), stored_shapes(shard_files(folder), own_name), str(folder))
    sizes = read_config(folder / "config.json", ("vocab_size", "kimia_token_offset"))
    check_tokenizer(find_component(folder, TOKENIZER), int(str(sizes["vocab_size"])) - int(str(sizes["kimia_token_offset"])))
    for name in COMPONENTS:
        component = find_component(folder, name)
        if name not in (FLOW, VOCODER):
            stored_shapes(shard_files(component))
        elif not zipfile.is_zipfile(component / "model.pt"):
            raise PolicyError(f"{component / 'model.pt'}: is missing or cut off; copy the released folder again")


def check_models(config: RunConfig) -> None:
    """Check that a hub's models are in the local cache, as stages are offline. Raises ConfigError: one is missing."""
    names = {}
    if config.distill.omni is not None:
        names["distill.omni.model"] = config.distill.omni.model
    for source in config.reward.sources:
        if source.kind == "omni" and "base_url" not in source.options and config.distill.omni is None:
            names["reward.sources: omni: model"] = str(source.options.get("model", OmniConfig().model))
    for key, name in names.items():
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


def check_shares(config: RunConfig, roles: Mapping[str, RoleConfig]) -> None:
    """Check that workers which hold the policy, by their key, have a share of a GPU. Raises ConfigError: one has none."""
    device = config.policy.device
    if not roles or not device.startswith("cuda"):
        return
    if device != "cuda":
        raise ConfigError(
            f"policy.device is {device}: a worker sees its own GPUs alone, from 0 on; set it to cuda, and choose among a "
            "machine's GPUs by CUDA_VISIBLE_DEVICES"
        )
    for key, role in roles.items():
        if not role.gpus:
            raise ConfigError(
                f"{key}.gpus: policy.device is {device}, and a worker without a share of a GPU sees none; set it, to 0.4 for "
                "instance where roles share one"
            )


def check_samplers(config: RunConfig) -> None:
    """Check the workers that sample for the reward model, if there are any. Raises ConfigError: one has no GPU."""
    if config.distill.rollout is not None:
        check_shares(config, {"distill.rollout": config.distill.rollout})


def check_devices(config: RunConfig) -> None:
    """Check the GPUs that a run outside a cluster requests. Raises ConfigError: too small, or ranks that cannot meet."""
    workers = config.align.workers
    holding = ("rollout", "learner", *(["speak"] if workers.speak is not None else []))
    check_shares(config, {f"align.workers.{name}": workers.by_role[name] for name in holding})
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
