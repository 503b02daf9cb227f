"""The table of policies. One is added here, or by an entry point in the group `paras2s.policies` of another package."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from paras2s.configs.schema.families import ARCHITECTURES
from paras2s.errors import DataError, PolicyError
from paras2s.policy.adapters import has_adapters, read_adapters
from paras2s.policy.answers import read_answer_settings
from paras2s.utils.device import found_device
from paras2s.utils.io import read_json
from paras2s.utils.plugins import find_part, import_part

if TYPE_CHECKING:
    import torch

    from paras2s.policy.base import Policy
    from paras2s.policy.types import Speaker

# Name in a config -> where its class is.
POLICIES = {
    "embedded": "paras2s.policy.embedded.policy:EmbeddedPolicy",
    "kimi": "paras2s.policy.kimi.policy:KimiPolicy",
    "glm4_voice": "paras2s.policy.interleaved.glm4_voice:Glm4VoicePolicy",
    "step_audio2": "paras2s.policy.interleaved.step_audio2:StepAudio2Policy",
    "moshi": "paras2s.policy.moshi:MoshiPolicy",
    "qwen_omni": "paras2s.policy.qwen_omni:QwenOmniPolicy",
    "qwen3_omni": "paras2s.policy.qwen3_omni:Qwen3OmniPolicy",
    "minimind_o": "paras2s.policy.minimind_o:MiniMindPolicy",
    "csm": "paras2s.policy.csm:CsmPolicy",
    "spoken_lm": "paras2s.policy.spoken_lm.policy:SpokenLmPolicy",
}
GROUP = "paras2s.policies"
# The kind that a run without released weights trains from random weights.
NEW_POLICY = "embedded"


def policy_class(name: str) -> type[Policy]:
    """Return a policy class by name, entry point or `module:Class`. Raises PolicyError: no such policy, or no `Policy`."""
    policy_type = find_part("policy", GROUP, name, POLICIES, PolicyError)
    from paras2s.policy.base import Policy

    if not (isinstance(policy_type, type) and issubclass(policy_type, Policy)):
        raise PolicyError(f"policy {name!r}: {policy_type!r} is not a subclass of paras2s.policy.base.Policy")
    return policy_type


def kind_of(folder: Path) -> str:
    """Return the kind of policy of a checkpoint, from its config. Raises PolicyError: none, or an unknown architecture."""
    if has_adapters(folder):
        folder = read_adapters(folder).base
    for name, key in (("policy.json", "architecture"), ("config.json", "architectures")):
        if (folder / name).is_file():
            described = read_json(folder / name)
            called = described.get(key) if isinstance(described, dict) else None
            architecture = called[0] if isinstance(called, list) and called else called
            if architecture not in ARCHITECTURES:
                raise PolicyError(f"{folder / name}: {key} is {called!r}; name the policy itself: {', '.join(POLICIES)}")
            return ARCHITECTURES[str(architecture)]
    raise PolicyError(
        f"{folder}: neither policy.json nor config.json; give the folder of a checkpoint, such as runs/demo/aligned"
    )


def check_kind(folder: Path, kind: str | None) -> None:
    """Compare the kind that a run names with the checkpoint's own, if it says one. Raises PolicyError: another family."""
    try:
        own = kind_of(folder)
    except (PolicyError, DataError):
        return
    if kind in POLICIES and kind != own:
        raise PolicyError(
            f"{folder}: holds weights of {own}, and policy.kind is {kind}; set policy.kind: {own} (or leave it out), or name "
            f"the folder of a {kind}"
        )


def is_checkpoint(folder: Path) -> bool:
    """Return whether a complete policy is in the folder: its description is written last."""
    return has_adapters(folder) or any((folder / name).is_file() for name in ("policy.json", "config.json"))


def load_policy(
    folder: Path,
    kind: str | None = None,
    device: str = "auto",
    dtype: torch.dtype | None = None,
    decoder: str | None = None,
    speaks: bool = True,
) -> Policy:
    """Load a policy; `kind` None: what its checkpoint calls itself; `device` "auto": a GPU if there is one.

    A folder of adapters alone gives the policy that they were trained on, with the adapters folded in.
    It answers as the checkpoint says (see `answers.py`), and with its decoder where none is given; `speaks` False: without
    a decoder, for a process that makes no sound.
    """
    device = found_device(device)
    adapters = read_adapters(folder) if has_adapters(folder) else None
    weights = folder if adapters is None else adapters.base
    check_kind(weights, kind)
    kind = kind or kind_of(weights)
    policy = policy_class(kind).load(weights, device, dtype)
    if adapters is not None:
        adapters.merge_into(policy)
    if (settings := read_answer_settings(folder, kind)) is not None:
        policy.sampling, decoder = settings.sampling, decoder or settings.decoder
        if settings.transcript_in_prompt:
            policy.use_transcript()
    if decoder is not None and speaks:
        if not hasattr(policy, "decoder"):
            raise PolicyError(f"policy.decoder: {type(policy).__name__} has a decoder of its own; leave it out")
        policy.decoder = import_part(decoder, "policy.decoder", PolicyError)(weights)
    return policy


def load_speaker(folder: Path, kind: str | None = None, device: str = "auto", decoder: str | None = None) -> Speaker:
    """Open what makes the sound of a checkpoint's answers, without its network. Raises PolicyError: it has no such decoder."""
    weights = read_adapters(folder).base if has_adapters(folder) else folder
    kind = kind or kind_of(weights)
    settings = read_answer_settings(folder, kind)
    decoder = decoder or (settings.decoder if settings is not None else None)
    made = None if decoder is None else import_part(decoder, "policy.decoder", PolicyError)(weights)
    return policy_class(kind).load_speaker(weights, found_device(device), made)
