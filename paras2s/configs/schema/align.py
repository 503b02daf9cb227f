"""Settings of GRPO (ParaS2S, section 4.3 and appendix D), in groups: sampling, objective, optimizer, workers."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Literal

from pydantic import Field, field_validator, model_validator

from paras2s.configs.schema.base import Section

# The most answers of which every policy makes one pass over its layers.
LAYERED_ROWS = 32


class LoraConfig(Section):
    """Low-rank adapters on every projection of the policy's decoder layers, both branches; the rest is frozen."""

    rank: int = Field(16, ge=1)
    alpha: int = Field(32, ge=1)


class AugmentConfig(Section):
    """Random masking and noise on questions while the policy learns, so that it does not learn clips by heart."""

    words_dropped: float = Field(0.4, ge=0, le=1, description="share of prompts whose words are hidden")
    text_dropped: float = Field(0.0, ge=0, le=1, description="of the rest, share that keep the sentence's meaning alone")
    codes_dropped: float = Field(0.5, ge=0, le=1, description="share of prompts whose codes are hidden")
    prosody_noise: float = Field(0.3, ge=0, description="noise on the prosody features, in standard deviations")
    words_noise: float = Field(0.8, ge=0, description="noise on the sentence embedding, in its own standard deviations")


class ResampleConfig(Section):
    """Dynamic sampling (DAPO, section 3.2): queries whose groups are flat are replaced by others before the update."""

    rounds: int = Field(3, ge=1, description="times that a step samples again; groups that are flat then stay")
    max_std: float = Field(0.0, ge=0, description="of a group's rewards, up to which it is flat; 0: all equal")


class SamplingConfig(Section):
    """Sampling of groups of answers (ParaS2S: B queries, G answers each)."""

    queries_per_step: int = Field(32, ge=1, description="B: queries sampled and rewarded in a step")
    group_size: int = Field(8, ge=2, description="G: answers to each query")
    temperature: float = Field(1.0, gt=0, description="of both streams, or of the text stream alone")
    audio_temperature: float | None = Field(None, gt=0, description="None: as `temperature`")
    resample: ResampleConfig | None = Field(None, description="replace queries whose groups are flat; None: they stay")
    engine: Literal["native", "vllm"] = Field("native", description="vllm: for single-stream policies; see `make vllm-env`")
    engine_python: Path | None = Field(None, description="vLLM's own interpreter; None: .venv-vllm/bin/python")
    tensor_parallel: int = Field(1, ge=1, description="GPUs over which each worker's vLLM splits the model")

    @property
    def temperatures(self) -> tuple[float, float]:
        """The temperatures of text and audio."""
        return self.temperature, self.temperature if self.audio_temperature is None else self.audio_temperature


class AnchorConfig(Section):
    """An SFT loss on the warm-up's demonstrations beside the policy gradient, in the same step of the optimiser.

    Reinforcement of the words otherwise lets the sound go, and answers are right and cannot be understood.
    A warm-up that knows its demonstrations by heart leaves the audio's loss a small gradient: that of `quick` is a hundredth of
    the policy gradient's at weight 1, and of its size at 30.
    """

    weight: float = Field(1.0, ge=0, description="of the anchor beside the policy gradient; 0: none")
    streams: Literal["audio", "text", "both"] = Field("audio", description="whose likelihood is held up")
    every: int = Field(1, ge=1, description="updates from one with the anchor to the next")
    demonstrations: int = Field(16, ge=1, description="that such an update learns from")

    @property
    def weights(self) -> tuple[float, float]:
        """The weights of the losses of text and audio."""
        return self.weight * (self.streams != "audio"), self.weight * (self.streams != "text")


class ObjectiveConfig(Section):
    """The GRPO loss; each key is described beside its formula in train/losses.py."""

    loss_type: Literal["grpo", "bnpo", "dr_grpo", "cispo", "sapo", "rft", "dpo"] = Field(
        "grpo", description="rft: likelihood of each group's best answer; dpo: its best against its worst, beta is kl_weight"
    )
    scale_rewards: Literal["group", "none", "sources"] = Field(
        "none", description="group: divide advantages by their std (the paper); sources: each source by its own (GDPO)"
    )
    groups_per_update: int = Field(16, ge=1, description="of a step's groups, learned from: those whose rewards differ most")
    ratio_level: Literal["token", "step", "sequence"] = Field("step", description="step: ParaS2S's joint ratio")
    average: Literal["joint", "per_stream"] = Field("per_stream", description="joint: the paper; per_stream: each stream apart")
    text_weight: float = Field(1.0, ge=0, description="of the text stream where averages are per stream")
    audio_weight: float = Field(0.3, ge=0, description="of the audio stream where averages are per stream")
    clip_low: float = Field(0.2, ge=0)
    clip_high: float = Field(0.2, ge=0)
    ratio_cap: float | None = Field(None, description="two-sided clipping: upper bound of the unclipped ratio")
    tis_cap: float | None = Field(
        None, description="truncated importance sampling: cap of exp(learner - sampler log-prob) by token; None: no correction"
    )
    max_logprob_gap: float = Field(
        0.1, gt=0, description="nats a token between sampler and learner, on policy; more stops the run"
    )
    kl_weight: float = Field(0.2, ge=0, description="beta, as in the paper")
    kl_form: Literal["sum", "joint"] = Field("sum", description="k3 of each token added up, or k3 of the step's joint log-prob")
    kl_bias_correction: bool = False
    anchor: AnchorConfig | None = Field(None, description="SFT on demonstrations beside it, which keeps the sound; None: none")

    @model_validator(mode="after")
    def _fit(self) -> ObjectiveConfig:
        if self.loss_type == "dpo" and not self.kl_weight:
            raise ValueError("loss_type dpo: kl_weight is its beta and must be above 0")
        if self.loss_type in ("rft", "dpo") and self.tis_cap is not None:
            raise ValueError(f"loss_type {self.loss_type}: tis_cap corrects policy gradients, which this is not; leave it out")
        return self


class OptimizerConfig(Section):
    """AdamW, its schedule, and how much of a batch goes through in one pass."""

    lr: float = Field(1e-4, ge=0, description="after its warm-up; it falls to a tenth over the run")
    adaptor_lr: float = Field(1e-3, ge=0, description="of the adaptor of input features; the decoder must not change as fast")
    warmup_steps: int = Field(10, ge=1, description="over which the learning rate rises: Adam's first steps are its wildest")
    max_grad_norm: float = Field(1.0, gt=0)
    micro_batch_size: int | None = Field(
        None, ge=1, description="answers in one pass of the learner; None: all of a step's, shared out over a processor's cores"
    )
    gradient_checkpointing: bool = Field(False, description="recompute activations: less memory, a third more time")
    mixed_precision: bool = Field(False, description="learn in bfloat16, with float32 master weights")


class RoleConfig(Section):
    """The number of workers of a role, and what Ray reserves for each of them."""

    count: int = Field(1, ge=1)
    cpus: float = Field(1.0, ge=0)
    gpus: float = Field(0.0, ge=0, description="0.5: two workers share one")
    resources: dict[str, float] = Field({}, description="of the names given to `ray start --resources`")
    threads: int | None = Field(None, ge=1, description="of a worker; None: this machine's cores by the number of workers")

    @property
    def bundle(self) -> dict[str, float]:
        """The reservation as Ray names it."""
        named = {"CPU": self.cpus, "GPU": self.gpus, **self.resources}
        return {name: amount for name, amount in named.items() if amount}

    @model_validator(mode="after")
    def _reserves_something(self) -> RoleConfig:
        if not self.bundle:
            raise ValueError("a worker that reserves nothing has no place; give it cpus or gpus")
        return self


class RolloutRoleConfig(RoleConfig):
    """The rollout workers, of which there may be more as machines join."""

    max_count: int | None = Field(None, ge=1, description="workers as machines join; None: no more than `count`")


class LearnerRoleConfig(RoleConfig):
    """The ranks of the learner, which share its weights (FSDP2)."""

    gather: Literal["step", "layer"] = Field(
        "step", description="of the weights: all for a step's passes, or layer by layer (ZeRO-3): less memory, more exchange"
    )


class WorkersConfig(Section):
    """The Ray actors of a run, by role."""

    rollout: RolloutRoleConfig = RolloutRoleConfig()
    reward: RoleConfig = RoleConfig()
    learner: LearnerRoleConfig = LearnerRoleConfig()
    speak: RoleConfig | None = Field(
        None, description="make answers' sound while others are still sampled; None: rollout workers do, behind the last answer"
    )
    ray_address: str | None = Field(None, description="of a running cluster; None starts Ray on this machine")

    @property
    def by_role(self) -> dict[str, RoleConfig]:
        """The roles that this run has."""
        roles = {"rollout": self.rollout, "reward": self.reward, "learner": self.learner}
        return roles if self.speak is None else roles | {"speak": self.speak}


class AlignConfig(Section):
    """GRPO on both streams (ParaS2S, section 4.3 and appendix D)."""

    steps: int = Field(90, ge=1)
    only_categories: tuple[str, ...] = Field((), description="RL prompts of these alone, by the ledger (Table 7); (): all")
    augment: AugmentConfig = AugmentConfig(words_dropped=0.1, text_dropped=0.7, codes_dropped=0.75, words_noise=2.5)
    lora: LoraConfig | None = Field(None, description="train adapters alone; None: all weights, beside a frozen copy")
    max_staleness: int = Field(0, ge=0, description="updates by which the weights that sampled may be behind; 0: synchronous")
    max_unscored_share: float = Field(0.5, gt=0, le=1, description="a step with more unscored answers stops the run")
    evaluate_every: int = Field(10, ge=1, description="steps between evaluations on validation queries, by the run's reward")
    checkpoint_every: int = Field(10, ge=1)
    keep_checkpoints: int | None = Field(
        2, ge=1, description="the newest that stay, beside the best by validation, which has one of its own; None: all"
    )
    keep_rollouts_every: int = Field(1, ge=0, description="steps between those whose answers RUN/rollouts keeps; 0: none")
    sampling: SamplingConfig = SamplingConfig()
    objective: ObjectiveConfig = ObjectiveConfig()
    optimizer: OptimizerConfig = OptimizerConfig()
    workers: WorkersConfig = WorkersConfig()

    @model_validator(mode="after")
    def _pairs_stay_together(self) -> AlignConfig:
        if self.objective.loss_type == "dpo" and self.optimizer.micro_batch_size == 1:
            raise ValueError("objective.loss_type dpo: both answers of a pair go through together; set micro_batch_size to 2")
        return self

    @model_validator(mode="after")
    def _engines_have_their_devices(self) -> AlignConfig:
        over, gpus = self.sampling.tensor_parallel, self.workers.rollout.gpus
        if over > 1 and self.sampling.engine != "vllm":
            raise ValueError("sampling.tensor_parallel: only vLLM splits a model; set sampling.engine to vllm, or leave it out")
        if over > 1 and gpus not in (0, over):
            raise ValueError(
                f"sampling.tensor_parallel {over}: a worker needs {over} whole GPUs and reserves {gpus:g}; "
                f"set workers.rollout.gpus to {over}"
            )
        return self

    @model_validator(mode="after")
    def _ranks_stay_in_step(self) -> AlignConfig:
        if self.workers.learner.gather != "layer":
            return self
        if self.workers.learner.count == 1:
            raise ValueError("workers.learner.gather layer: one rank has nothing to gather; leave it out, or raise its count")
        rows = self.optimizer.micro_batch_size
        if rows is None or rows > LAYERED_ROWS:
            raise ValueError(
                "workers.learner.gather layer: ranks meet at every layer, so their passes must be alike; "
                f"set optimizer.micro_batch_size to at most {LAYERED_ROWS}"
            )
        return self

    def evaluates_after(self, step: int) -> bool:
        """Whether validation queries are sampled after this step."""
        return step % self.evaluate_every == 0 or step + 1 == self.steps

    @property
    def most_checkpoints(self) -> int:
        """The most checkpoints that lie on the disk at once: those kept, the best, and the one that is being written."""
        due = sum((step + 1) % self.checkpoint_every == 0 or self.evaluates_after(step) for step in range(self.steps))
        return due if self.keep_checkpoints is None else min(due, self.keep_checkpoints + 2)

    @field_validator("max_staleness", mode="before")
    @classmethod
    def _null_was_synchronous(cls, value: Any) -> Any:
        if value is None:
            raise ValueError("null was the synchronous driver; it is 0 now")
        return value
