"""The networks of a run on torch's meta device: true classes at true sizes, without weights, for a dry run (`align --meta`).

Sizes come from the checkpoint's own config where its folder is here, else from those that its makers publish
(`configs/released/`).
Left out: policies that `planning/rates.yaml` does not know.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import nn

from paras2s.configs.schema.base import preset_path, read_values
from paras2s.configs.schema.run import OmniConfig, PolicyConfig, RewardSourceConfig
from paras2s.errors import ConfigError, PolicyError
from paras2s.policy.base import Policy
from paras2s.policy.components import find_component
from paras2s.policy.dual_stream.config import SPECIAL_IDS, DualStreamConfig
from paras2s.policy.dual_stream.model import DualStreamLM
from paras2s.policy.weights import shard_files, stored_dtype

RELEASED = "released"
# Kinds of policies that a dry run builds.
COUNTED = ("embedded", "kimi", "qwen_omni", "csm")


@dataclass(frozen=True)
class Skeleton:
    """A policy on the meta device, the frozen networks beside it as they are held, and where their sizes are from."""

    policy: Policy
    encoders: dict[str, nn.Module]
    vocoder: dict[str, nn.Module]
    sizes_from: str


def bytes_of(*modules: nn.Module) -> int:
    """Sum the bytes of the parameters and buffers."""
    return sum(
        value.numel() * value.element_size() for module in modules for value in (*module.parameters(), *module.buffers())
    )


def policy_skeleton(config: PolicyConfig, kind: str) -> Skeleton:
    """Build the policy that a worker of this run opens, without weights. Raises ConfigError: an unknown kind. PolicyError."""
    if kind not in COUNTED:
        raise ConfigError(f"--meta: {kind} is not counted; it knows {', '.join(COUNTED)}")
    builders = {"embedded": _embedded, "kimi": _kimi, "qwen_omni": _qwen_omni, "csm": _csm}
    with torch.device("meta"):
        return builders[kind](config)


def _embedded(config: PolicyConfig) -> Skeleton:
    from paras2s.policy.embedded.codec2 import Codec2Pairs
    from paras2s.policy.embedded.features import FEATURE_DIM
    from paras2s.policy.embedded.policy import EmbeddedPolicy, special_ids

    codec, sizes = Codec2Pairs(), config.model_dump(include=set(DualStreamConfig.model_fields))
    network = DualStreamConfig(
        **sizes,
        text_vocab=config.text_pieces + len(SPECIAL_IDS),
        codebook_sizes=codec.cardinality,
        continuous_dim=FEATURE_DIM,
        mask_invalid_ids=True,
        **special_ids(config.text_pieces),
    )
    nothing: Any = None
    return Skeleton(EmbeddedPolicy(DualStreamLM(network), nothing, codec, nothing), {}, {}, "the run's config")


def _kimi(config: PolicyConfig) -> Skeleton:
    from paras2s.policy.kimi.policy import KimiPolicy, stream_config

    released, ids, dtype, where = _kimi_sizes(config.weights)
    text_only = ids.pop("text_only_id")
    model = DualStreamLM(stream_config(released, ids, where)).to(config.torch_dtype or dtype)
    # Words and folder are read when a prompt is encoded, which needs weights.
    nothing: Any = None
    context = int(released["max_position_embeddings"])
    policy = KimiPolicy(model, nothing, text_only, context, config.weights or Path(where))
    encoders, vocoder = _kimi_components(config.weights, policy)
    return Skeleton(policy, encoders, vocoder, where)


class _Names:
    """A tokenizer that knows the ids of some names, which is all that a policy without prompts asks for."""

    def __init__(self, ids: Mapping[str, int]) -> None:
        self._ids, self._names = ids, {number: name for name, number in ids.items()}

    def __len__(self) -> int:
        return len(self._ids)

    def convert_tokens_to_ids(self, name: str) -> int | None:
        return self._ids.get(name)

    def convert_ids_to_tokens(self, number: int) -> str | None:
        return self._names.get(number)


def _released(config: PolicyConfig, name: str) -> tuple[dict[str, Any], str]:
    """Return the config of a checkpoint, or the published one of its family, and its origin."""
    if config.weights is not None and (config.weights / "config.json").is_file():
        path = config.weights / "config.json"
        return dict(read_values(path)), str(path)
    return dict(read_values(preset_path(name, RELEASED))), f"configs/released/{name}.yaml"


def _stored(config: PolicyConfig, held: Mapping[str, Any]) -> torch.dtype:
    dtype: torch.dtype = getattr(torch, str(held.get("dtype") or held.get("torch_dtype") or "bfloat16"))
    return config.torch_dtype or dtype


def _qwen_omni(config: PolicyConfig) -> Skeleton:
    from transformers import Qwen2_5OmniConfig

    from paras2s.policy.omni import END, START
    from paras2s.policy.qwen_omni import AUDIO_MARKS, SPEAKER, QwenOmniPolicy

    held, where = _released(config, "qwen2.5-omni-7b")
    sizes: Any = Qwen2_5OmniConfig.from_dict({**held, "enable_audio_output": True})
    thinker = sizes.thinker_config
    marks = (thinker.audio_start_token_id, thinker.audio_token_id, thinker.audio_end_token_id)
    ids = dict(zip(AUDIO_MARKS, marks, strict=True)) | {START: 0, END: 1}
    speakers = {SPEAKER: {"bos_token": 0}}
    policy = QwenOmniPolicy(QwenOmniPolicy.empty_model(sizes, _stored(config, held)), _Names(ids), speakers)
    return Skeleton(policy, {}, {}, where)


def _csm(config: PolicyConfig) -> Skeleton:
    from transformers import CsmConfig, CsmForConditionalGeneration

    from paras2s.policy.csm import MARKS, CsmPolicy

    held, where = _released(config, "csm-1b")
    model: Any = CsmForConditionalGeneration(CsmConfig.from_dict(held))
    policy = CsmPolicy(model.to(_stored(config, held)), _Names({mark: number for number, mark in enumerate(MARKS)}))
    return Skeleton(policy, {"Mimi": policy.mimi}, {}, where)


def _kimi_sizes(folder: Path | None) -> tuple[dict[str, Any], dict[str, int], torch.dtype, str]:
    """Return config, special ids and stored precision of a checkpoint, and their origin."""
    from paras2s.policy.kimi.policy import special_ids
    from paras2s.policy.weights import read_config

    if folder is not None and (folder / "config.json").is_file():
        released = read_config(folder / "config.json", ("max_position_embeddings",))
        return released, special_ids(folder), stored_dtype(shard_files(folder)), str(folder / "config.json")
    shipped = dict(read_values(preset_path("kimi", RELEASED)))
    return dict(shipped["config"]), dict(shipped["special_ids"]), getattr(torch, shipped["dtype"]), "configs/released/kimi.yaml"


def _kimi_components(folder: Path | None, policy: Policy) -> tuple[dict[str, nn.Module], dict[str, nn.Module]]:
    """Build the question's encoders and the vocoder, by the checkpoint's config or as published, in their GPU precisions."""
    from transformers import WhisperConfig
    from transformers.models.whisper.modeling_whisper import WhisperEncoder

    from paras2s.policy.kimi.bigvgan import BigVGAN, BigVGANConfig
    from paras2s.policy.kimi.flow_matching import FlowConfig, FlowModel
    from paras2s.policy.kimi.policy import FLOW, TOKENIZER, VOCODER, WHISPER
    from paras2s.policy.speech_tokenizers.whisper_vq import WhisperVQConfig, WhisperVQEncoder

    shipped = dict(read_values(preset_path("kimi", RELEASED)))

    def sizes(name: str, file: str) -> dict[str, Any]:
        try:
            own = find_component(folder, name) / file if folder is not None else None
        except PolicyError:
            own = None
        return dict(read_values(own)) if own is not None and own.is_file() else dict(shipped[name])

    encoders: dict[str, nn.Module] = {
        "Whisper": WhisperEncoder(WhisperConfig.from_dict(sizes(WHISPER, "config.json"))),
        "speech tokenizer": WhisperVQEncoder(WhisperVQConfig.model_validate(sizes(TOKENIZER, "config.json"))),
    }
    vocoder: dict[str, nn.Module] = {
        "flow matching": FlowModel(FlowConfig.from_released(sizes(FLOW, "config.yaml"))).to(
            next(policy.model.parameters()).dtype
        ),
        "vocoder": BigVGAN(BigVGANConfig.from_released(sizes(VOCODER, "config.json"))),
    }
    return encoders, vocoder


def reward_skeletons(sources: tuple[RewardSourceConfig, ...]) -> dict[str, nn.Module]:
    """Build a reward worker's networks by source, none for HTTP or a processor. Raises ConfigError: unknown sizes."""
    networks: dict[str, nn.Module] = {}
    for source in sources:
        if source.kind == "omni" and "base_url" not in source.options:
            networks[source.key] = _thinker(str(source.options.get("model", OmniConfig().model)))
    return networks


def _thinker(name: str) -> nn.Module:
    """Build the thinker of an Omni model by its folder, or by name if its sizes are published here."""
    from transformers import Qwen2_5OmniThinkerConfig, Qwen2_5OmniThinkerForConditionalGeneration

    file = Path(name) / "config.json"
    try:
        path = file if file.is_file() else preset_path(Path(name).name.lower(), RELEASED)
    except ConfigError as error:
        raise ConfigError(f"--meta: the sizes of {name} are unknown; download it and name its folder ({error})") from error
    held = dict(read_values(path))
    dtype = getattr(torch, str(held.get("dtype") or held.get("torch_dtype") or "bfloat16"))
    config = Qwen2_5OmniThinkerConfig.from_dict(held.get("thinker_config", held))
    with torch.device("meta"):
        model: nn.Module = Qwen2_5OmniThinkerForConditionalGeneration(config)
    return model.to(dtype)
