"""Settings of a whole run. Imports no torch; the defaults are the vetted run (`paras2s demo`)."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Literal

from pydantic import Field, PositiveInt, field_validator, model_validator

from paras2s.configs.schema.align import AlignConfig, AugmentConfig, LoraConfig, RoleConfig, RolloutRoleConfig
from paras2s.configs.schema.base import MAX_SEED, Section, parse_config, read_values, with_overrides
from paras2s.configs.schema.families import with_family
from paras2s.utils.plugins import require_part

# Suffixes of files with people's ratings, as a teacher.
PEOPLE_SUFFIXES = (".csv", ".json")
# Reward sources that `reward/sources/composite.py` makes; another one is an entry point of the group, or `module:Class`.
SOURCE_KINDS = (
    "reward_model",
    "omni",
    "unisrm",
    "rubric",
    "llm",
    "pairwise",
    "http",
    "self_contrast",
    "word_errors",
    "quality",
    "length",
    "overlong",
)
SOURCE_GROUP = "paras2s.rewards"
# Highest learning rate for all weights of a released model; ParaS2S's highest is 5e-4.
MAX_FULL_LR = 1e-3


class DataConfig(Section):
    """Scripts, speech, filters and splits. Counts are contrasts (two styles each) per category."""

    curated: Path | None = Field(None, description="folder of a curated dataset, in place of the shipped scripts and counts")

    categories: tuple[Literal["emotion", "sarcasm", "age", "gender"], ...] = Field(
        ("emotion", "sarcasm", "age", "gender"), min_length=1, description="categories of the shipped scripts"
    )
    demonstration_contrasts: int = Field(20, ge=1, description="contrasts per category to demonstrate; 20 x 4 = 80")
    preference_contrasts: int = Field(40, ge=1, description="contrasts per category whose labels train the reward model")
    rl_contrasts: int = Field(
        38, ge=1, description="contrasts per category for RL prompts, in no other role; more than the scripts: of prompts.yaml"
    )
    validation_contrasts: int = Field(
        8, ge=1, description="contrasts per category, of held-out topics and speakers, for settings"
    )
    test_contrasts: int = Field(12, ge=1, description="contrasts per category, of held-out topics and speakers, for the test")
    demonstration_speakers: int = Field(2, ge=1, le=3, description="speakers of each demonstration query")
    rl_speakers: int = Field(1, ge=1, le=3, description="speakers of each RL prompt")
    answers_per_query: int = Field(2, ge=1, le=4, description="answers demonstrated for each (query, style)")
    fitting_share: float = Field(
        1.0, gt=0, le=1, description="share of demonstrated answers that fit; the rest is plain or fits the other style"
    )
    keep_answers: Literal["all", "best"] = Field(
        "all", description="best: demonstrate those that the rubric scores highest of each query (rejection sampling)"
    )
    take_up_topics: bool = Field(
        False,
        description="demonstrate answers that name the topic of the question (sarcasm and gender alone)",
    )
    answer_takes: int = Field(4, ge=1, description="takes of a good answer; the most intelligible take is kept")
    max_word_error_rate: float = Field(0.25, ge=0, le=1, description="clips above it are rejected")
    min_style_probability: float = Field(
        0.5, ge=0, le=1, description="least probability of the right style of an accepted clip"
    )

    @model_validator(mode="after")
    def _topics_are_named(self) -> DataConfig:
        if self.take_up_topics:
            if others := sorted(set(self.categories) - {"sarcasm", "gender"}):
                raise ValueError(
                    f"take_up_topics: questions of {', '.join(others)} have no named topics; take them out of categories"
                )
            if self.fitting_share < 1 or self.answers_per_query > 2:
                raise ValueError(
                    "take_up_topics demonstrates two fitting answers at most: set fitting_share 1, answers_per_query 2"
                )
        return self


class PolicyConfig(Section):
    """The policy: released weights, or an embedded dual-stream policy of these sizes (Kimi-Audio: 28 layers, tap 21)."""

    weights: Path | None = Field(None, description="folder of a released checkpoint; None: an untrained embedded policy")
    kind: str | None = Field(None, description="kimi, glm4_voice ... or module:Class; None: by the checkpoint's architecture")
    decoder: str | None = Field(
        None,
        description="module:function that loads a vocoder without a package from a folder: .decode(codes, seed) -> Clip",
    )
    transcript_in_prompt: bool = Field(
        False,
        description="Kimi-Audio: put the question's transcript in the text stream beside its codes, as in ParaS2S, section 4",
    )
    style_words: dict[str, str] = Field({}, description="styles in words, to tell a teacher, beyond the shipped ones")
    device: str = Field("auto", description="cpu or cuda, cuda:1 where no workers are started; auto: a GPU if available")
    dtype: Literal["float32", "bfloat16"] | None = Field(None, description="precision of the weights; None: as stored")
    hidden_size: int = Field(224, ge=2)
    intermediate_size: int = Field(576, ge=1)
    num_layers: int = Field(4, ge=1, description="layers of the text path: shared + text branch")
    tap_layer: int = Field(1, ge=0, description="layer after which the audio branch starts (0-based)")
    num_heads: int = Field(4, ge=1)
    num_kv_heads: int = Field(4, ge=1)
    audio_delay_steps: int = Field(1, ge=0, description="steps by which the text runs ahead of the audio")
    text_pieces: int = Field(2000, ge=1, description="word pieces of the text vocabulary")
    max_answer_steps: int = Field(52, ge=1, description="longest answer; 52 steps are 4.2 s at 12.5 steps a second")

    @model_validator(mode="after")
    def _sizes_fit(self) -> PolicyConfig:
        if self.hidden_size % (2 * self.num_heads) or self.num_heads % self.num_kv_heads:
            raise ValueError(
                f"hidden_size {self.hidden_size}, num_heads {self.num_heads}, num_kv_heads {self.num_kv_heads}: a head's width "
                "must be whole and even, and num_kv_heads must divide num_heads"
            )
        if self.tap_layer >= self.num_layers:
            raise ValueError(f"tap_layer {self.tap_layer} is outside the {self.num_layers} layers, which count from 0")
        return self

    @property
    def torch_dtype(self) -> Any:
        """Precision as torch's dtype."""
        import torch

        return None if self.dtype is None else getattr(torch, self.dtype)


class WarmupConfig(Section):
    """Supervised warm-up on both streams."""

    demonstration_contrasts: PositiveInt | dict[str, PositiveInt] = Field(
        8, description="demonstrated contrasts per category to learn from, or a number for each category"
    )
    preference_contrasts: int = Field(
        0,
        ge=0,
        description="labelled contrasts of the reward model per category to demonstrate as well (SFT on all labels)",
    )
    steps: int = Field(260, ge=0, description="updates; 0: align released weights without warm-up")
    batch_size: int = Field(24, ge=1)
    lr: float = Field(1.5e-3, ge=0)
    adaptor_lr: float | None = Field(None, ge=0, description="learning rate of the input features' adaptor; None: lr")
    weight_decay: float = Field(0.05, ge=0)
    augment: AugmentConfig = AugmentConfig()
    text_weight: float = Field(1.0, ge=0, description="weight of the text loss beside the audio loss")
    first_token_weight: float = Field(4.0, ge=0, description="weight of the first text token, which decides the answer")
    style_share: float = Field(
        0.0, ge=0, le=1, description="share of demonstrations whose prompts give the style in words, for self-distillation"
    )
    lora: LoraConfig | None = Field(None, description="train adapters alone, and fold them in at the end")
    micro_batch_size: int | None = Field(None, ge=1, description="examples in one pass; None: the batch, split over the cores")
    gradient_checkpointing: bool = Field(False, description="recompute activations for the gradient")
    mixed_precision: bool = Field(False, description="train in bfloat16, with float32 master weights; needs `learner`")
    learner: RoleConfig | None = Field(None, description="FSDP2 ranks, at align.workers.ray_address; None: this process")


class OmniConfig(Section):
    """The Qwen2.5-Omni thinker as reward model; the defaults are the paper's (ParaS2S, appendix D) where it gives them."""

    model: str = Field("Qwen/Qwen2.5-Omni-7B", description="folder or hub name")
    lora_rank: int = Field(16, ge=1)
    lora_alpha: int = Field(32, ge=1)
    lr: float = Field(1e-6, gt=0)
    batch_size: int = Field(10, ge=1)
    steps: int = Field(1000, ge=1)
    micro_batch_size: int | None = Field(None, ge=1, description="pairs in one pass; None: the full batch")
    gradient_checkpointing: bool = Field(False, description="recompute activations for the gradient")
    checkpoint_every: int = Field(500, ge=1, description="steps between checkpoints; a stopped run continues from the newest")
    max_audio_s: float = Field(60.0, gt=0, description="longest clip")
    prompts: Path | None = Field(None, description="folder with your own omni.md")


class DistillConfig(Section):
    """Preference set and reward model."""

    teacher: str = Field(
        "rubric",
        description="source of the scores: rubric, a judge's name or YAML (trace, audio ...), or people's FILE.csv of scores "
        "or FILE.json of pairs, as `study export` writes them; if the file is missing, distill makes the study's items",
    )
    max_unscored_share: float = Field(0.3, gt=0, le=1, description="largest share of unscored answers; more stop the run")
    omni: OmniConfig | None = Field(None, description="train the Qwen2.5-Omni thinker on the same scores as well")
    preference_contrasts: int | None = Field(
        None,
        ge=1,
        description="labelled contrasts per category to learn from (the paper's constrained case); None: all",
    )
    answers_per_query: int = Field(3, ge=2, description="K sampled answers a query")
    degenerate_answers: int = Field(
        96, ge=1, description="answers of each kind (silence, noise, a loop ...) to learn with score 1"
    )
    temperature: float = Field(1.2, gt=0)
    rollout: RolloutRoleConfig | None = Field(None, description="samplers, at align.workers.ray_address; None: this process")
    steps: int = Field(1000, ge=1)
    batch_size: int = Field(48, ge=1)
    lr: float = Field(2e-3, ge=0)
    hidden_size: int = Field(128, ge=1)
    layers: int = Field(2, ge=1)
    refresh_every: int | None = Field(
        None,
        ge=1,
        description="steps of GRPO between trainings of the reward model on the policy's newest answers too; each spends the "
        "style labels of their RL prompts, which are counted. None: never train it again",
    )
    refresh_answers: int | None = Field(
        None,
        ge=8,
        description="newest answers that the teacher scores for each training, a quarter of them to check; None: a step's",
    )

    @model_validator(mode="after")
    def _can_be_refreshed(self) -> DistillConfig:
        if self.refresh_every is None:
            if self.refresh_answers is not None:
                raise ValueError("refresh_answers belongs to refresh_every; set that as well, or leave it out")
            return self
        if Path(self.teacher).suffix.lower() in PEOPLE_SUFFIXES:
            raise ValueError(
                f"refresh_every: people ({self.teacher}) cannot be asked in the middle of a run; leave it out, or let a judge "
                "teach (distill.teacher: rubric, trace ...)"
            )
        if self.omni is not None:
            raise ValueError("refresh_every trains the small reward model again and not distill.omni; leave one of them out")
        return self


class BenchConfig(Section):
    """The benchmark: answers to each held-out query, and sampling by stream."""

    answers_per_query: int = Field(2, ge=1)
    temperature: float = Field(1.0, gt=0, description="temperature of both streams, or of the text stream alone")
    audio_temperature: float | None = Field(None, gt=0, description="None: as `temperature`")
    text_top_k: int | None = Field(None, ge=1, description="text tokens to sample from; 1: greedy; None: all")
    audio_top_k: int | None = Field(None, ge=1, description="audio tokens to sample from; None: all")


class RewardSourceConfig(Section):
    """One source of reward. Every source scores from 1 to 5, so weights compare."""

    kind: str = Field(description="reward_model, llm, pairwise ..., the name of an entry point, or module:Class")
    name: str = Field("", description="name in the stored parts of a reward; needed if two sources are of one kind")
    weight: float = Field(1.0, gt=0)
    required: bool = Field(True, description="false: answers it cannot score are rewarded by the other sources alone")
    scope: Literal["dialogue", "last"] = Field(
        "dialogue", description="dialogue: an answer behind the turns before its question; last: behind its question alone"
    )
    options: dict[str, Any] = Field({}, description="options of this kind; see reward/sources")

    @field_validator("kind")
    @classmethod
    def _known_kind(cls, kind: str) -> str:
        return require_part("reward source", SOURCE_GROUP, kind, SOURCE_KINDS)

    @property
    def key(self) -> str:
        """Key of its scores in a stored reward."""
        return self.name or self.kind


# Sources of reward that `distill` trains.
DISTILLED = ("reward_model", "omni")


class RewardConfig(Section):
    """The reward in GRPO: the weighted mean of its sources."""

    sources: tuple[RewardSourceConfig, ...] = Field((RewardSourceConfig(kind="reward_model"),), min_length=1)

    @property
    def weights(self) -> dict[str, float]:
        """Weight of each source, by its key."""
        return {source.key: source.weight for source in self.sources}

    @property
    def needs_distillation(self) -> bool:
        """Whether a source is a model that `distill` trains."""
        return any(source.kind in DISTILLED for source in self.sources)

    @field_validator("sources")
    @classmethod
    def _once_each(cls, sources: tuple[RewardSourceConfig, ...]) -> tuple[RewardSourceConfig, ...]:
        keys = [source.key for source in sources]
        if len(set(keys)) < len(keys):
            raise ValueError(f"{max(keys, key=keys.count)} is given twice; give each a name, or merge them into one weight")
        return sources


class RunConfig(Section):
    """Settings of a run."""

    name: str = "demo"
    seed: int = Field(0, ge=0, le=MAX_SEED)
    run_dir: Path = Path("runs/demo")
    cache_dir: Path = Path("runs/cache")
    trackers: tuple[Literal["wandb", "trackio", "tensorboard"], ...] = Field(
        (), description="trackers beside the run's own log, for curves and answers to hear; a failing tracker stops nothing"
    )
    data: DataConfig = DataConfig()
    policy: PolicyConfig = PolicyConfig()
    warmup: WarmupConfig = WarmupConfig()
    distill: DistillConfig = DistillConfig()
    reward: RewardConfig = RewardConfig()
    align: AlignConfig = AlignConfig()
    bench: BenchConfig = BenchConfig()

    @model_validator(mode="after")
    def _released_weights_are_not_burnt(self) -> RunConfig:
        if self.policy.weights is None:
            return self
        rates = {"align.optimizer.lr": (self.align.optimizer.lr, self.align.lora, "align.lora")}
        if self.warmup.steps:
            rates["warmup.lr"] = (self.warmup.lr, self.warmup.lora, "warmup.lora")
        for key, (rate, lora, adapters) in rates.items():
            if lora is None and rate > MAX_FULL_LR:
                raise ValueError(
                    f"{key} is {rate:g}, and all weights of a released model are trained; more than {MAX_FULL_LR:g} destroys "
                    f"them, ParaS2S warms up at 1e-05: lower it, or set {adapters}: {{rank: 16, alpha: 32}}"
                )
        return self

    @model_validator(mode="after")
    def _refreshes_find_what_they_need(self) -> RunConfig:
        every, align = self.distill.refresh_every, self.align
        if every is None or not self.refreshes:
            return self
        if every % align.checkpoint_every:
            raise ValueError(
                f"distill.refresh_every {every}: alignment continues from a checkpoint afterwards; make it a multiple of "
                f"align.checkpoint_every ({align.checkpoint_every})"
            )
        if not 0 < align.keep_rollouts_every <= every:
            raise ValueError(
                f"distill.refresh_every {every}: the teacher scores answers that the run keeps, and too few are kept; set "
                f"align.keep_rollouts_every to 1, at most to {every}"
            )
        return self

    @property
    def refreshes(self) -> range:
        """Numbers of updates after which the reward model is trained again; none after the last step.

        None either where no reward model pays: with other sources, or preferences.
        """
        every, align = self.distill.refresh_every, self.align
        paid = align.preferences is None and any(source.kind == "reward_model" for source in self.reward.sources)
        return range(every, align.steps, every) if every and paid else range(0)

    @property
    def refresh_answers(self) -> int:
        """Number of answers that the teacher scores at each refresh, if as many are kept."""
        sampling = self.align.sampling
        return self.distill.refresh_answers or max(8, sampling.queries_per_step * sampling.group_size)


def load_config(path: Path, overrides: dict[str, Any] | None = None) -> RunConfig:
    """Load a run's settings from YAML with dotted overrides (`align.steps`: 3).

    A released model's family sets missing keys (`configs/policies/`).

    Raises:
        ConfigError: missing file, bad YAML, unknown key, bad value.
    """
    values = with_overrides(read_values(path), overrides)
    settings = with_family(values, str(path)) if isinstance(values, dict) else values
    return parse_config(settings, str(path), RunConfig, overrides or ())
