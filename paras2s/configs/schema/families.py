"""Settings of a released model's family (`configs/policies/KIND.yaml`), the base of a run on it. Imports no torch."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from paras2s.configs.schema.base import expanded, preset_path, read_values, shipped_presets
from paras2s.errors import ConfigError

# Architecture named by a checkpoint -> kind of policy that reads it.
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
    "MiniMindOmni": "minimind_o",
    "SpokenLm": "spoken_lm",
}
FAMILIES = "policies"


def family_values(kind: str | None) -> dict[str, Any]:
    """Return the settings of a kind of policy, as a run's YAML holds them; {} for a kind that has none."""
    return dict(read_values(preset_path(kind, FAMILIES))) if kind in shipped_presets(FAMILIES) else {}


def with_family(values: dict[str, Any], name: str) -> dict[str, Any]:
    """Fill a run's settings with its released model's family's. Raises ConfigError: an unknown family without lengths."""
    policy = values.get("policy")
    if not isinstance(policy, dict) or policy.get("weights") is None:
        return values
    family = family_values(policy.get("kind") or _kind_in(policy["weights"]))
    merged = merge(family, values)
    if "max_answer_steps" not in merged["policy"]:
        raise ConfigError(
            f"{name}: policy.max_answer_steps: the demo's 52 steps would cut a released model's answers; set it, "
            f"or policy.kind to its family ({', '.join(shipped_presets(FAMILIES))})"
        )
    return merged


def merge(beneath: dict[str, Any], above: dict[str, Any]) -> dict[str, Any]:
    """Merge nested settings; `above` wins where both have a key."""
    merged = dict(beneath)
    for key, value in above.items():
        base = merged.get(key)
        merged[key] = merge(base, value) if isinstance(base, dict) and isinstance(value, dict) else value
    return merged


def _kind_in(folder: Any) -> str | None:
    """Return the kind of a local checkpoint; None if there is none, which its stage reports."""
    for name, key in (("policy.json", "architecture"), ("config.json", "architectures")):
        path = expanded(Path(str(folder))) / name
        if os.path.isfile(path):
            values = read_values(path)
            named = values.get(key) if isinstance(values, dict) else None
            return ARCHITECTURES.get(str(named[0] if isinstance(named, list) and named else named))
    return None
