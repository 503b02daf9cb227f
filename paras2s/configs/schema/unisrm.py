"""Settings of UniSRM's training; the defaults are the paper's (appendix D, Table 10) where given."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Literal

from pydantic import Field, model_validator

from paras2s.configs.schema.base import Section, load_section, preset_path
from paras2s.configs.schema.endpoints import LLMConfig

WARMUP = "share of the updates over which the learning rate rises"
CHECKPOINT_EVERY = "updates between checkpoints, from which a stopped stage continues; null: it begins again"


class ScratchConfig(Section):
    """Size of a thinker with random initial weights, for machines without released ones.

    It reads no English yet, so its instruction is the name of the task, unless `prompts` is set.
    """

    vocabulary: int = Field(1024, ge=300, description="size of a BPE vocabulary, trained on the format's texts")
    hidden_size: int = Field(128, ge=32, multiple_of=32)
    layers: int = Field(3, ge=1)
    audio_size: int = Field(96, ge=16, multiple_of=16)
    audio_layers: int = Field(2, ge=1)
    audio_pretraining_updates: int = Field(
        0, ge=0, description="first updates, in which the audio tower learns letters and traits of the data's clips"
    )
    description_updates: int = Field(0, ge=0, description="next updates, in which the full model learns to describe each clip")


class ThinkerConfig(Section):
    """The Qwen2.5-Omni thinker and its inputs. The paper does not say whether it trains adapters or all weights."""

    model: str = Field("Qwen/Qwen2.5-Omni-7B", description="folder or hub name")
    scratch: ScratchConfig | None = Field(None, description="random initial weights of this size, in place of `model`")
    trains: Literal["adapters", "language_model", "all"] = Field(
        "language_model", description="trained weights: LoRA, the language model, or its audio tower as well"
    )
    lora_rank: int = Field(16, ge=1)
    lora_alpha: int = Field(32, ge=1)
    max_audio_s: float = Field(300.0, gt=0, description="longest clip; the thinker's own features end at 300 s")
    too_long: Literal["refuse", "cut"] = Field("refuse", description="a longer clip is an error, or cut with a warning")
    reasoning: bool = Field(True, description="write scores and reasons before the answer")
    prompts: Path | None = Field(None, description="folder with your own T1.md, T2.md, T3.md, T4.md")


class SftConfig(Section):
    """Supervised fine-tuning on full replies (section 4.1)."""

    lr: float = Field(1e-5, gt=0)
    batch_size: int = Field(64, ge=1, description="items an update, over all devices")
    micro_batch_size: int = Field(1, ge=1, description="items a device at once")
    epochs: float = Field(1.0, gt=0)
    warmup: float = Field(0.0, ge=0, lt=1, description=WARMUP)
    silent_share: float = Field(0.0, ge=0, le=1, description="share of items learned once more with silence as clips")
    described_share: float = Field(
        0.0, ge=0, le=1, description="share of more examples, which describe how an item's clips sound, from how they were made"
    )
    max_grad_norm: float = Field(1.0, gt=0)
    checkpoint_every: int | None = Field(None, ge=1, description=CHECKPOINT_EVERY)


class RewardWeights(Section):
    """Weights of the reward's three terms (equation 7)."""

    format: float = Field(1.0, ge=0)
    accuracy: float = Field(1.0, ge=0)
    consistency: float = Field(1.0, ge=0, description="reasoning-consistent reward; 0 is the paper's w/o RCR")


class UniSRMGrpoConfig(Section):
    """GRPO on the reward of equation 7."""

    trains: Literal["language_model", "all"] | None = Field(
        None, description="trained weights of this stage, unless adapters; null: as `thinker.trains`"
    )
    lr: float = Field(1e-6, gt=0)
    warmup: float = Field(0.0, ge=0, lt=1, description=WARMUP)
    batch_size: int = Field(16, ge=2, description="completions an update, over all devices")
    micro_batch_size: int = Field(1, ge=1, description="completions a device at once")
    group_size: int = Field(8, ge=2, description="completions an item, G")
    epochs: float = Field(1.0, gt=0)
    max_steps: int | None = Field(None, ge=1, description="most updates; null: by `epochs`")
    kl_weight: float = Field(0.04, ge=0, description="beta, toward the model after supervised fine-tuning")
    clip: float = Field(0.2, gt=0, lt=1, description="epsilon of the ratio; the paper gives none")
    ratio_level: Literal["token", "sequence"] = Field("token", description="one ratio a token, or a completion's masked mean")
    temperature: float = Field(1.0, gt=0)
    max_completion_tokens: int = Field(1024, ge=1)
    max_grad_norm: float = Field(1.0, gt=0)
    checkpoint_every: int | None = Field(None, ge=1, description=CHECKPOINT_EVERY)
    weights: RewardWeights = RewardWeights()

    @model_validator(mode="after")
    def _check(self) -> UniSRMGrpoConfig:
        if self.batch_size % self.group_size:
            raise ValueError(f"batch_size: {self.batch_size} completions are no multiple of group_size {self.group_size}")
        return self


class UniSRMConfig(Section):
    """Both stages of UniSRM; without `grpo` only the first (w/o GRPO)."""

    kind: Literal["unisrm"] = "unisrm"
    name: str = "unisrm"
    data: Literal["ci", "small", "medium", "full"] = Field("full", description="size of the data that `unisrm run` makes")
    thinker: ThinkerConfig = ThinkerConfig()
    sft: SftConfig = SftConfig()
    grpo: UniSRMGrpoConfig | None = UniSRMGrpoConfig()

    @model_validator(mode="after")
    def _check(self) -> UniSRMConfig:
        if self.grpo and self.grpo.weights.consistency and not self.thinker.reasoning:
            raise ValueError("grpo.weights.consistency: needs thinker.reasoning; set it to 0")
        if self.grpo and self.grpo.trains and self.thinker.trains == "adapters":
            raise ValueError("grpo.trains: both stages train the adapters; leave it out")
        return self


def load_unisrm_config(name: str | Path, overrides: dict[str, Any] | None = None) -> UniSRMConfig:
    """Load a config by the name of a shipped one, or from a YAML file. Raises ConfigError: no such config, key or value."""
    path = Path(name)
    return load_section(path if path.suffix in (".yaml", ".yml") else preset_path(str(name), "unisrm"), overrides, UniSRMConfig)


class ServedUniSRMConfig(Section):
    """A UniSRM behind an OpenAI-compatible endpoint; `paras2s unisrm export` writes these settings."""

    llm: LLMConfig = LLMConfig(base_url="http://127.0.0.1:8000/v1", model="unisrm", max_output_tokens=1024, concurrency=16)
    settings: Path | None = Field(
        None, description="unisrm.json of the exported model, with its instructions and limits; null: those of a new thinker"
    )
    audio_format: Literal["wav", "flac", "mp3", "ogg"] = Field("wav", description="format of the sent clips")
    cache_dir: Path = Path("runs/cache")


class UniSRMJudgeConfig(Section):
    """A trained UniSRM as a judge: `checkpoint` in this process, or `served` by an endpoint."""

    kind: Literal["unisrm"] = "unisrm"
    checkpoint: Path | None = Field(None, description="folder of a trained model: all weights, or adapters")
    served: ServedUniSRMConfig | None = None
    max_reply_tokens: int = Field(
        1024,
        ge=1,
        description="longest reply of a checkpoint; longer ones are cut and give no verdict (served: llm.max_output_tokens)",
    )
    batch_size: int = Field(8, ge=1, description="replies at once, of a checkpoint")
    both_orders: bool = Field(True, description="judge each pair twice, with the clips exchanged")

    @model_validator(mode="after")
    def _check(self) -> UniSRMJudgeConfig:
        if (self.checkpoint is None) == (self.served is None):
            raise ValueError("give either checkpoint (a folder) or served (an endpoint)")
        return self
