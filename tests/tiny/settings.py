"""Settings of GRPO by their last names, since each name stands in one group alone: lr=0.01 is align.optimizer.lr."""

from __future__ import annotations

from typing import Any

from paras2s.configs.schema.align import AlignConfig

GROUPS = ("sampling", "objective", "optimizer")


def grouped(settings: dict[str, Any]) -> dict[str, Any]:
    """Flat settings of `align` as its YAML groups them; what stands in no group stays at the top."""
    values: dict[str, Any] = {}
    for key, value in settings.items():
        group = next((one for one in GROUPS if key in AlignConfig.model_fields[one].annotation.model_fields), None)
        (values if group is None else values.setdefault(group, {}))[key] = value
    return values


def align_config(**settings: Any) -> AlignConfig:
    return AlignConfig(**grouped(settings))
