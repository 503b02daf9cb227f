"""Every run's settings. Imports no torch; unknown keys fail; the defaults are the vetted run (`paras2s demo`)."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Literal

import yaml
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from paras2s.errors import ConfigError


class Section(BaseModel):
    """Base of all sections: frozen, and a key that nothing reads is an error."""

    model_config = ConfigDict(extra="forbid", frozen=True)


class DataConfig(Section):
    """Scripts, speech, filters and splits. Counts are contrasts (two styles each) per category."""

    demonstration_contrasts: int = Field(16, ge=1, description="a category; 16 x 4 = 64 contrasts to demonstrate")
    preference_contrasts: int = Field(20, ge=1, description="a category; labelled queries for the reward model")
    rl_contrasts: int = Field(44, ge=1, description="a category; prompts without labels")
    test_contrasts: int = Field(12, ge=1, description="a category, from topics and speakers never trained on")
    demonstration_speakers: int = Field(1, ge=1, le=3, description="voices that speak each demonstration query")
    answers_per_query: int = Field(2, ge=1, le=4, description="good answers demonstrated for each (query, style)")
    max_word_error_rate: float = Field(0.25, ge=0, le=1, description="a clip above it is rejected")
    min_style_probability: float = Field(0.5, ge=0, le=1, description="the right one of the two styles; below: rejected")


class PolicyConfig(Section):
    """Sizes of the embedded dual-stream policy (reference: Kimi-Audio, 28 layers, tap 21, delay 6)."""

    hidden_size: int = 256
    intermediate_size: int = 640
    num_layers: int = Field(5, description="of the text path: shared + text branch")
    tap_layer: int = Field(2, description="the audio branch starts from the state after this layer (0-based)")
    num_heads: int = 4
    num_kv_heads: int = 4
    audio_delay_steps: int = Field(1, ge=0, description="steps by which the text runs ahead of the audio")
    text_pieces: int = Field(3000, description="word pieces of the text vocabulary")
    max_answer_steps: int = Field(52, description="4.2 s at 12.5 steps a second")


class WarmupConfig(Section):
    """Supervised warm-up on both streams."""

    steps: int = Field(260, ge=1)
    batch_size: int = Field(24, ge=1)
    learning_rate: float = 1.5e-3
    weight_decay: float = 0.05
    words_dropped: float = Field(0.15, ge=0, le=1, description="share of prompts whose words are hidden")
    features_dropped: float = Field(0.1, ge=0, le=1, description="share of prompts whose continuous features are hidden")
    text_weight: float = Field(1.0, description="of the text loss beside the audio loss")
    first_token_weight: float = Field(4.0, description="of the first text token, which picks the answer")


class DistillConfig(Section):
    """Preference set and reward model."""

    answers_per_query: int = Field(6, ge=2, description="K sampled answers a query")
    temperature: float = 1.2
    steps: int = 300
    batch_size: int = 64
    learning_rate: float = 6e-4
    hidden_size: int = 128
    layers: int = 3


class RewardConfig(Section):
    """Weights of the reward's parts; a part with weight 0 is not computed."""

    model_weight: float = Field(1.0, ge=0, description="of the distilled reward model")
    judge_weight: float = Field(0.0, ge=0, description="of the judge itself, slower")


class AlignConfig(Section):
    """GRPO (ParaS2S, section 4.3 and appendix D)."""

    steps: int = Field(40, ge=1)
    queries_per_step: int = Field(12, ge=1)
    group_size: int = Field(8, ge=2)
    learning_rate: float = 1.5e-4
    temperature: float = 1.0
    clip_low: float = 0.2
    clip_high: float = 0.2
    kl_weight: float = Field(0.04, description="beta")
    kl_form: Literal["sum", "joint"] = Field("sum", description="k3 of each stream added up, or k3 of the joint log-prob")
    ratio_level: Literal["token", "step", "sequence"] = Field("step", description="step: ParaS2S's joint ratio")
    loss_type: Literal["grpo", "bnpo", "dr_grpo"] = "grpo"
    text_weight: float = Field(1.0, ge=0, description="of the text stream in a per-stream average")
    audio_weight: float = Field(1.0, ge=0, description="of the audio stream in a per-stream average")
    average: Literal["joint", "per_stream"] = Field("joint", description="joint: the paper; per_stream: averaged apart")
    max_grad_norm: float = 1.0
    rollout_workers: int = Field(1, ge=1)
    reward_workers: int = Field(1, ge=1)
    checkpoint_every: int = Field(10, ge=1)
    max_unscored_share: float = Field(0.5, description="a step with more unscored answers stops the run")


class BenchConfig(Section):
    """The benchmark: how often each held-out query is asked, and at which temperature."""

    answers_per_query: int = Field(2, ge=1)
    temperature: float = 1.0
    systems: tuple[str, ...] = ("words_only", "sft", "aligned", "topline")


class RunConfig(Section):
    """One whole run."""

    name: str = "demo"
    seed: int = 0
    run_dir: Path = Path("runs/demo")
    cache_dir: Path = Path("runs/cache")
    data: DataConfig = DataConfig()
    policy: PolicyConfig = PolicyConfig()
    warmup: WarmupConfig = WarmupConfig()
    distill: DistillConfig = DistillConfig()
    reward: RewardConfig = RewardConfig()
    align: AlignConfig = AlignConfig()
    bench: BenchConfig = BenchConfig()


def parse_config(values: Any, name: str) -> RunConfig:
    """Validate a mapping.

    Raises:
        ConfigError: names every wrong key in one line each.
    """
    if not isinstance(values, dict):
        raise ConfigError(f"{name}: expected a mapping of sections, got {type(values).__name__}")
    try:
        return RunConfig(**values)
    except ValidationError as error:
        lines = [f"{name}: {'.'.join(map(str, item['loc']))}: {_say(item)}" for item in error.errors()]
        raise ConfigError("\n".join(lines)) from error


def _say(item: Any) -> str:
    if item["type"] == "extra_forbidden":
        return "unknown key; see `paras2s config --show` for the keys there are"
    return f"{item['msg'][0].lower()}{item['msg'][1:]} (got {item['input']!r})"


def load_config(path: Path, overrides: dict[str, Any] | None = None) -> RunConfig:
    """Read a YAML config and lay dotted overrides (`align.steps`: 3) over it.

    Raises:
        ConfigError: missing file, bad YAML, unknown key, bad value.
    """
    try:
        values = yaml.safe_load(path.read_text()) or {}
    except FileNotFoundError as error:
        raise ConfigError(f"{path}: no such config; the shipped ones are in configs/") from error
    except yaml.YAMLError as error:
        raise ConfigError(f"{path}: not valid YAML ({error})") from error
    for dotted, value in (overrides or {}).items():
        *parents, key = dotted.split(".")
        place = values
        for parent in parents:
            place = place.setdefault(parent, {})
            if not isinstance(place, dict):
                raise ConfigError(f"{dotted}: '{parent}' is a value, not a section")
        place[key] = value
    return parse_config(values, str(path))


def dump_config(config: RunConfig) -> str:
    """The resolved config as YAML."""
    return yaml.safe_dump(config.model_dump(mode="json"), sort_keys=False)
