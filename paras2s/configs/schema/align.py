"""Settings of GRPO (ParaS2S, section 4.3 and appendix D), in groups: sampling, objective, optimizer, workers."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Literal

from pydantic import Field, field_validator, model_validator

from paras2s.configs.schema.base import Section
from paras2s.configs.schema.families import merge

# The most answers that every policy takes through its layers in one pass.
LAYERED_ROWS = 32
ALGORITHMS = Path(__file__).parents[2] / "train" / "algorithms"


class LoraConfig(Section):
    """Low-rank adapters on every projection of the policy's decoder layers, both branches; the rest is frozen."""

    rank: int = Field(16, ge=1)
    alpha: int = Field(32, ge=1)


class AugmentConfig(Section):
    """Random masking and noise on training questions, so that the policy does not memorise clips."""

    words_dropped: float = Field(0.4, ge=0, le=1, description="share of prompts whose words are hidden")
    text_dropped: float = Field(0.0, ge=0, le=1, description="share of other prompts that keep only the sentence embedding")
    codes_dropped: float = Field(0.5, ge=0, le=1, description="share of prompts whose codes are hidden")
    prosody_noise: float = Field(0.3, ge=0, description="noise on the prosody features, in standard deviations")
    words_noise: float = Field(0.8, ge=0, description="noise on the sentence embedding, in its own standard deviations")


class ResampleConfig(Section):
    """Dynamic sampling (DAPO, section 3.2): replace queries with flat groups before the update."""

    rounds: int = Field(3, ge=1, description="most times that a step samples again; groups still flat are kept")


class CurriculumConfig(Section):
    """Prompts by their rewards: a prompt that the policy has learned, or cannot answer yet, gives its place to another.

    A prompt's reward is the mean of its newest group. Outside the band it is passed over until it is forgotten.
    """

    low: float = Field(1.5, ge=1, le=5, description="lowest mean reward of a prompt that is asked again")
    high: float = Field(4.5, ge=1, le=5, description="highest mean reward of a prompt that is asked again")
    memory: int = Field(30, ge=1, description="steps after which a reward is forgotten, so that its prompt is asked again")

    @model_validator(mode="after")
    def _is_a_band(self) -> CurriculumConfig:
        if self.low >= self.high:
            raise ValueError(f"low {self.low:g} must be below high {self.high:g}")
        return self


class SamplingConfig(Section):
    """Sampling of groups of answers (ParaS2S: B queries, G answers each)."""

    queries_per_step: int = Field(32, ge=1, description="B: queries sampled and rewarded in a step")
    group_size: int = Field(8, ge=2, description="G: answers to each query")
    temperature: float = Field(1.0, gt=0, description="temperature of both streams, or of the text stream alone")
    audio_temperature: float | None = Field(None, gt=0, description="temperature of the audio stream; None: as `temperature`")
    flat_std: float = Field(
        0.02, ge=0, description="highest standard deviation of a flat group's rewards (a judge's noise): it teaches nothing"
    )
    resample: ResampleConfig | None = Field(None, description="replacement of queries with flat groups; None: keep them")
    curriculum: CurriculumConfig | None = Field(None, description="prompts by a band of rewards; null: each once an epoch")
    entropy_weight: float = Field(
        0.0, ge=0, description="weight in the loss of the entropy of what is sampled, nats a unit of tokens; 0: no bonus"
    )
    engine: Literal["native", "vllm"] = Field("native", description="vllm: for single-stream policies, see `make vllm-env`")
    engine_python: Path | None = Field(None, description="Python interpreter of vLLM; None: .venv-vllm/bin/python")
    tensor_parallel: int = Field(1, ge=1, description="GPUs over which each worker's vLLM splits the model")

    @property
    def temperatures(self) -> tuple[float, float]:
        """Temperatures of text and audio."""
        return self.temperature, self.temperature if self.audio_temperature is None else self.audio_temperature


def algorithm_names() -> list[str]:
    """Return the RL algorithms by the names of their files, which settings do not import."""
    return sorted(path.stem for path in ALGORITHMS.glob("[a-z]*.py"))


class AdaptiveConfig(Section):
    """The shares of policy gradient and SFT by what the rewards of a step tell (WavAlign, Chen et al., 2026).

    A group's share of the policy gradient is `largest` x sigmoid(`slope` x (its best reward - `threshold`)) x (the variance of
    its rewards / 4, at most 1); a step's is the mean over its groups, smoothed over updates. The rest of 1 is the anchor's.
    """

    largest: float = Field(0.8, gt=0, le=1, description="largest share of the policy gradient")
    slope: float = Field(5.0, gt=0, description="steepness of the gate by the best reward of a group")
    threshold: float = Field(3.0, description="best reward of a group at which that gate is half open")
    smoothing: float = Field(0.9, ge=0, lt=1, description="share of the last update's value in the new value")


class AnchorConfig(Section):
    """An SFT loss on the warm-up's demonstrations, added to the policy gradient of the same update.

    Without it, reinforcement of the words may lose the sound: answers are right in their text and garbled in their voice.
    A warm-up that has memorised its demonstrations leaves the audio loss a small gradient. Where audio tokens are rewarded as
    well (`audio_weight` above 0), the policy gradient outweighs it: raise `weight`, or reward the words alone, as `quick` does.
    """

    weight: float = Field(1.0, ge=0, description="weight of the SFT loss beside the policy gradient; 0: off")
    streams: Literal["audio", "text", "both"] = Field("audio", description="streams whose likelihood the loss raises")
    text_weight: float | None = Field(None, gt=0, description="with `streams: both`, the text stream's weight; None: `weight`")
    every: int = Field(1, ge=1, description="add the loss to every n-th update")
    demonstrations: int = Field(16, ge=1, description="demonstrations in an update")
    adaptive: AdaptiveConfig | None = Field(
        None, description="weigh policy gradient and anchor by the rewards of the step, {}: as published; null: as given"
    )

    @model_validator(mode="after")
    def _adapts_in_every_update(self) -> AnchorConfig:
        if self.adaptive is not None and self.every > 1:
            raise ValueError("adaptive shares out every update; leave `every` at 1, or adaptive at null")
        return self

    @model_validator(mode="after")
    def _weighs_two_streams(self) -> AnchorConfig:
        if self.text_weight is not None and self.streams != "both":
            raise ValueError(f"text_weight is for `streams: both`; set it to null for `streams: {self.streams}`")
        return self

    @property
    def weights(self) -> tuple[float, float]:
        """Weights of the text loss and the audio loss."""
        text = self.weight if self.text_weight is None or not self.weight else self.text_weight
        return text * (self.streams != "audio"), self.weight * (self.streams != "text")

    def times(self, share: float) -> AnchorConfig:
        """Return the anchor with a share of its weights."""
        text = None if self.text_weight is None else self.text_weight * share
        return self.model_copy(update={"weight": self.weight * share, "text_weight": text})


class SelfDistillConfig(Section):
    """Self-distillation: the teacher is the policy, told the question's style in words; the student only hears."""

    weight: float = Field(1.0, gt=0, description="weight beside the policy gradient, or alone")
    divergence: Literal["forward", "reverse", "js"] = Field(
        "reverse", description="KL of teacher to student (forward), of student to teacher (reverse), or Jensen-Shannon"
    )
    max_nats: float = Field(5.0, gt=0, description="largest log-ratio of teacher and student that counts, by unit of tokens")
    average: float | None = Field(
        None, gt=0, lt=1, description="share of the teacher that an update keeps, the rest is the student; null: frozen"
    )


# Named objectives: the words alone are rewarded and the sound is anchored, with a fixed weight or with WavAlign's.
NAMED_OBJECTIVES: dict[str, dict[str, Any]] = {
    "anchored": {"average": "per_stream", "audio_weight": 0.0, "anchor": {"weight": 3.0}},
    "adaptive": {"average": "per_stream", "audio_weight": 0.0, "anchor": {"weight": 1.0, "adaptive": {}}},
}


class ObjectiveConfig(Section):
    """The algorithm and its loss; each key is described beside its formula in train/losses.py."""

    loss_type: str = Field("grpo", description="the algorithm: the name of a file in train/algorithms")
    scale_rewards: Literal["group", "none", "sources"] = Field(
        "none", description="group: divide advantages by their std (the paper); sources: each source by its own (GDPO)"
    )
    groups_per_update: int = Field(16, ge=1, description="groups of a step to learn from: those with the highest reward spread")
    ratio_level: Literal["token", "step", "sequence"] = Field("step", description="step: ParaS2S's joint ratio")
    average: Literal["joint", "per_stream"] = Field(
        "per_stream", description="mean over tokens: joint (the paper), or per stream"
    )
    text_weight: float = Field(1.0, ge=0, description="weight of the text stream, for average per_stream")
    audio_weight: float = Field(0.3, ge=0, description="weight of the audio stream, for average per_stream")
    clip_low: float = Field(0.2, ge=0)
    clip_high: float = Field(0.2, ge=0)
    ratio_cap: float | None = Field(None, gt=0, description="two-sided clipping: upper bound of the unclipped ratio")
    tis_cap: float | None = Field(
        None,
        gt=0,
        description="truncated importance sampling: cap of exp(learner - sampler log-prob) by token; None: no correction",
    )
    max_logprob_gap: float = Field(
        0.1, gt=0, description="largest gap of sampler and learner on policy, nats a token; more stop the run"
    )
    kl_weight: float = Field(0.2, ge=0, description="beta, as in the paper")
    kl_form: Literal["sum", "joint"] = Field("sum", description="sum of each token's k3, or k3 of the step's joint log-prob")
    kl_bias_correction: bool = False
    anchor: AnchorConfig | None = Field(None, description="SFT loss on demonstrations in the same update; null: off")

    @model_validator(mode="before")
    @classmethod
    def _with_named(cls, values: Any) -> Any:
        if not isinstance(values, dict) or "named" not in values:
            return values
        given = {key: value for key, value in values.items() if key != "named"}
        if (named := values["named"]) not in tuple(NAMED_OBJECTIVES):
            raise ValueError(f"no objective is named {named!r}; there are {', '.join(NAMED_OBJECTIVES)}")
        return merge(NAMED_OBJECTIVES[named], given)

    @field_validator("loss_type")
    @classmethod
    def _is_an_algorithm(cls, value: str) -> str:
        if value not in (names := algorithm_names()):
            raise ValueError(f"no such algorithm; there are {', '.join(map(repr, names))}")
        return value

    @property
    def weights(self) -> tuple[float, float]:
        """Weights of the text stream and the audio stream."""
        return (1.0, 1.0) if self.average == "joint" else (self.text_weight, self.audio_weight)


class PreferencesConfig(Section):
    """Recorded preferences to learn from in place of sampled answers, by DPO or KTO (`paras2s align --preferences FILE`).

    A step takes `sampling.queries_per_step` rows of the file. `objective.average` and its weights count the streams of an
    answer, and `objective.anchor` may be added; nothing else of the objective is read.
    """

    file: Path = Field(description="JSONL file of preferences; its clips are relative to it")
    loss: Literal["dpo", "kto"] | None = Field(
        None, description="dpo: pairs; kto: single answers with a label, and pairs as two; null: dpo if all rows are pairs"
    )
    beta: float = Field(0.1, gt=0, description="strength of the pull to the reference; lower lets the policy move further")
    desirable_weight: float = Field(1.0, ge=0, description="weight of good answers, for kto")
    undesirable_weight: float = Field(1.0, ge=0, description="weight of bad answers, for kto")


class OptimizerConfig(Section):
    """AdamW, its schedule, and the size of micro-batches."""

    lr: float = Field(1e-4, ge=0, description="learning rate after warm-up; it falls to a tenth over the run")
    adaptor_lr: float = Field(1e-3, ge=0, description="learning rate of the input features' adaptor, above the decoder's")
    warmup_steps: int = Field(10, ge=1, description="steps over which the learning rate rises; Adam's first steps vary most")
    max_grad_norm: float = Field(1.0, gt=0)
    micro_batch_size: int | None = Field(
        None, ge=1, description="answers in one pass; None: all of a step, split over the cores"
    )
    gradient_checkpointing: bool = Field(False, description="recompute activations: less memory, a third more time")
    mixed_precision: bool = Field(False, description="train in bfloat16, with float32 master weights")


class RoleConfig(Section):
    """Number of workers of a role, and Ray's reservation for each."""

    count: int = Field(1, ge=1)
    cpus: float = Field(1.0, ge=0)
    gpus: float = Field(0.0, ge=0, description="GPUs of a worker; 0.5: two workers share one")
    resources: dict[str, float] = Field({}, description="custom resources, by the names in `ray start --resources`")
    threads: int | None = Field(None, ge=1, description="threads of a worker; None: the machine's cores divided by workers")

    @property
    def bundle(self) -> dict[str, float]:
        """Reservation in Ray's names."""
        named = {"CPU": self.cpus, "GPU": self.gpus, **self.resources}
        return {name: amount for name, amount in named.items() if amount}

    @model_validator(mode="after")
    def _reserves_something(self) -> RoleConfig:
        if not self.bundle:
            raise ValueError("a worker that reserves nothing cannot be scheduled; give it cpus or gpus")
        return self


class RolloutRoleConfig(RoleConfig):
    """Rollout workers, whose number may grow as machines join."""

    max_count: int | None = Field(None, ge=1, description="most workers as machines join; None: `count`")


class LearnerRoleConfig(RoleConfig):
    """Ranks of the learner, which share its weights (FSDP2)."""

    gather: Literal["step", "layer"] = Field(
        "step",
        description="gathering of weights: all for a step's passes, or layer by layer (ZeRO-3, less memory, more exchange)",
    )


class WorkersConfig(Section):
    """Ray actors of a run, by role."""

    rollout: RolloutRoleConfig = RolloutRoleConfig()
    reward: RoleConfig = RoleConfig()
    learner: LearnerRoleConfig = LearnerRoleConfig()
    speak: RoleConfig | None = Field(
        None,
        description="workers that decode answers while others are sampled; None: rollout workers do, after the last answer",
    )
    ray_address: str | None = Field(None, description="address of a running cluster; None: start Ray on this machine")

    @property
    def by_role(self) -> dict[str, RoleConfig]:
        """Roles of this run."""
        roles = {"rollout": self.rollout, "reward": self.reward, "learner": self.learner}
        return roles if self.speak is None else roles | {"speak": self.speak}


class AlignConfig(Section):
    """GRPO on both streams (ParaS2S, section 4.3 and appendix D)."""

    steps: int = Field(90, ge=1)
    only_categories: tuple[str, ...] = Field((), description="categories of RL prompts, by the ledger (Table 7); (): all")
    augment: AugmentConfig = AugmentConfig(words_dropped=0.1, text_dropped=0.7, codes_dropped=0.75, words_noise=2.5)
    lora: LoraConfig | None = Field(None, description="train adapters alone; None: train all weights, beside a frozen copy")
    max_staleness: int = Field(0, ge=0, description="most updates between sampling weights and learner; 0: synchronous")
    max_unscored_share: float = Field(
        0.5, gt=0, le=1, description="largest share of unscored answers a step; more stop the run"
    )
    evaluate_every: int = Field(10, ge=1, description="steps between evaluations on validation queries, by the run's reward")
    checkpoint_every: int = Field(10, ge=1)
    keep_checkpoints: int | None = Field(2, ge=1, description="newest checkpoints to keep, besides the best one; None: all")
    keep_rollouts_every: int = Field(1, ge=0, description="keep the answers of every n-th step in RUN/rollouts; 0: none")
    preferences: PreferencesConfig | None = Field(None, description="learn from a file of preferences; null: sample answers")
    sampling: SamplingConfig = SamplingConfig()
    objective: ObjectiveConfig = ObjectiveConfig()
    self_distill: SelfDistillConfig | None = Field(
        None, description="learn from the frozen policy that is given the style in words, beside loss_type; null: off"
    )
    optimizer: OptimizerConfig = OptimizerConfig()
    workers: WorkersConfig = WorkersConfig()

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

    @model_validator(mode="after")
    def _preferences_are_all_it_learns_from(self) -> AlignConfig:
        if self.preferences is not None and self.sampling.resample is not None:
            raise ValueError("preferences: nothing is sampled, so nothing can be sampled again; set sampling.resample to null")
        anchor = self.objective.anchor
        if self.preferences is not None and anchor is not None and anchor.adaptive is not None:
            raise ValueError("preferences: an adaptive anchor reads rewards, and there are none; set anchor.adaptive to null")
        if self.preferences is not None and (self.sampling.curriculum is not None or self.sampling.entropy_weight):
            raise ValueError("preferences: nothing is sampled; leave sampling.curriculum and sampling.entropy_weight out")
        return self

    @model_validator(mode="after")
    def _teacher_and_curriculum_have_what_they_need(self) -> AlignConfig:
        if self.sampling.curriculum is not None and self.keep_rollouts_every != 1:
            raise ValueError("sampling.curriculum reads the rewards of every step that is kept; set keep_rollouts_every to 1")
        if self.self_distill is not None and self.self_distill.average is not None and self.workers.learner.count > 1:
            raise ValueError("self_distill.average: ranks keep no average of their weights; or give one learner")
        return self

    @property
    def distilled(self) -> SelfDistillConfig | None:
        """Self-distillation of an update: as given, or the defaults where it is the algorithm; None: off."""
        return self.self_distill or (SelfDistillConfig() if self.objective.loss_type == "self_distill" else None)

    def evaluates_after(self, step: int) -> bool:
        """Return whether validation queries are sampled after this step."""
        return step % self.evaluate_every == 0 or step + 1 == self.steps

    @property
    def most_checkpoints(self) -> int:
        """The most checkpoints on disk at once: those kept, the best, and the new one."""
        due = sum((step + 1) % self.checkpoint_every == 0 or self.evaluates_after(step) for step in range(self.steps))
        return due if self.keep_checkpoints is None else min(due, self.keep_checkpoints + 2)

    @field_validator("max_staleness", mode="before")
    @classmethod
    def _null_was_synchronous(cls, value: Any) -> Any:
        if value is None:
            raise ValueError("null was the synchronous driver; it is 0 now")
        return value
