"""paras2s: teach a speech-to-speech model to hear how something is said, and to answer fittingly.

The public names, each loaded when it is first used, so that importing the package costs nothing:

- clips: `read_clip`, `write_clip`, `Clip`;
- what is measured on a clip: `blueprint`, `Blueprint`;
- judges: `open_judge`, `Judge`, `Verdict`, `Preference`, `Unscored`;
- policies: `open_policy`, `Policy`, `Answer`;
- a policy of your own: `PolicySpec`, `SlotSpec`, `Turn`, `Prompt`, `SampleRequest`, `Sampling`, `Block`, `Generation`,
  `walk_methods`, `check_policy`, `PolicyError`;
- rewards: `combine`, `Reward`, `group_advantages`;
- runs and data: `open_run`, `Run`, `load_dataset`, `import_dataset`, `read_table`;
- a few steps of training in this process: `grpo_steps`;
- a benchmark of your own: `Suite`;
- errors: `ParaS2SError`, the base of all.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from paras2s.api import blueprint, check_policy, grpo_steps, open_policy, read_table
    from paras2s.audio.clip import Clip, read_clip, write_clip
    from paras2s.bench.suites.base import Suite
    from paras2s.data_gen.dataset import load_dataset
    from paras2s.data_gen.import_audio import import_dataset
    from paras2s.errors import ParaS2SError, PolicyError
    from paras2s.policy.base import Policy
    from paras2s.policy.first_steps import walk_methods
    from paras2s.policy.types import Answer, Generation, PolicySpec, Prompt, SampleRequest, Sampling, SlotSpec, Turn
    from paras2s.reward.judges.base import Judge
    from paras2s.reward.judges.registry import open_judge
    from paras2s.reward.sources.composite import combine
    from paras2s.run import Run, open_run
    from paras2s.train.advantages import group_advantages
    from paras2s.types import Block, Blueprint, Preference, Reward, Unscored, Verdict

__version__ = "0.35.0"

_MODULES = {
    "Answer": "policy.types",
    "Block": "types",
    "Blueprint": "types",
    "Clip": "audio.clip",
    "Generation": "policy.types",
    "Judge": "reward.judges.base",
    "ParaS2SError": "errors",
    "Policy": "policy.base",
    "PolicyError": "errors",
    "PolicySpec": "policy.types",
    "Preference": "types",
    "Prompt": "policy.types",
    "Reward": "types",
    "Run": "run",
    "SampleRequest": "policy.types",
    "Sampling": "policy.types",
    "SlotSpec": "policy.types",
    "Suite": "bench.suites.base",
    "Turn": "policy.types",
    "Unscored": "types",
    "Verdict": "types",
    "blueprint": "api",
    "check_policy": "api",
    "combine": "reward.sources.composite",
    "group_advantages": "train.advantages",
    "grpo_steps": "api",
    "import_dataset": "data_gen.import_audio",
    "load_dataset": "data_gen.dataset",
    "open_judge": "reward.judges.registry",
    "open_policy": "api",
    "open_run": "run",
    "read_clip": "audio.clip",
    "read_table": "api",
    "walk_methods": "policy.first_steps",
    "write_clip": "audio.clip",
}

__all__ = [
    "Answer",
    "Block",
    "Blueprint",
    "Clip",
    "Generation",
    "Judge",
    "ParaS2SError",
    "Policy",
    "PolicyError",
    "PolicySpec",
    "Preference",
    "Prompt",
    "Reward",
    "Run",
    "SampleRequest",
    "Sampling",
    "SlotSpec",
    "Suite",
    "Turn",
    "Unscored",
    "Verdict",
    "blueprint",
    "check_policy",
    "combine",
    "group_advantages",
    "grpo_steps",
    "import_dataset",
    "load_dataset",
    "open_judge",
    "open_policy",
    "open_run",
    "read_clip",
    "read_table",
    "walk_methods",
    "write_clip",
]


def __getattr__(name: str) -> Any:
    if name not in _MODULES:
        raise AttributeError(f"module 'paras2s' has no attribute {name!r}; its names are {', '.join(__all__)}")
    value = getattr(importlib.import_module(f"paras2s.{_MODULES[name]}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return [*__all__, "__version__"]
