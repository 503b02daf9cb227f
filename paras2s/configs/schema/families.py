"""A run on a released model starts from the settings of its family, `configs/policies/KIND.yaml`. Imports no torch."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from paras2s.configs.schema.base import preset_path, read_values, shipped_presets
from paras2s.errors import ConfigError

# What a checkpoint calls itself -> the kind of policy that reads it.
ARCHITECTURES = {
    "DualStreamLM": "embedded",
    "Moshi": "moshi",
    "MoonshotKimiaForCausalLM": "kimi",
    "ChatGLMModel": "glm4_voice",
    "ChatGLMForConditionalGeneration": "glm4_voice",
    "StepAudio2ForCausalLM": "step_audio2",
    "MoshiForConditionalGeneration": "moshi",
    "Qwen2_5OmniModel": "qwen_omni",
    "Qwen2_5OmniForConditionalGeneration": "qwen_omni",
    "Qwen3OmniMoeForConditionalGeneration": "qwen3_omni",
    "CsmForConditionalGeneration": "csm",
}
FAMILIES = "policies"


def family_values(kind: str | None) -> dict[str, Any]:
    """The settings of a kind of policy, as a run's YAML holds them; {} for one that has none."""
    return dict(read_values(preset_path(kind, FAMILIES))) if kind in shipped_presets(FAMILIES) else {}


def with_family(values: dict[str, Any], where: str) -> dict[str, Any]:
    """A run's settings, with those of its released model's family beneath them.

    Raises:
        ConfigError: a released model of no known family, and a longest answer that would be the demo's.
    """
    policy = values.get("policy")
    if not isinstance(policy, dict) or policy.get("weights") is None:
        return values
    family = family_values(policy.get("kind") or _kind_in(policy["weights"]))
    merged = merge(family, values)
    if "max_answer_steps" not in merged["policy"]:
        raise ConfigError(
            f"{where}: policy.max_answer_steps: 52 steps are for the demo's policy and cut a released model's answers; set it, "
            f"or policy.kind to its family ({', '.join(shipped_presets(FAMILIES))})"
        )
    return merged


def merge(beneath: dict[str, Any], above: dict[str, Any]) -> dict[str, Any]:
    """Nested settings, those of `above` where both have a key."""
    merged = dict(beneath)
    for key, value in above.items():
        there = merged.get(key)
        merged[key] = merge(there, value) if isinstance(there, dict) and isinstance(value, dict) else value
    return merged


def _kind_in(folder: Any) -> str | None:
    """The kind of a checkpoint that is on this machine; None where it is not, which its stage reports."""
    for name, key in (("policy.json", "architecture"), ("config.json", "architectures")):
        path = Path(str(folder)) / name
        if path.is_file():
            described = read_values(path)
            called = described.get(key) if isinstance(described, dict) else None
            return ARCHITECTURES.get(str(called[0] if isinstance(called, list) and called else called))
    return None
