"""Every run's settings. Imports no torch; unknown keys fail; the defaults are the vetted run (`paras2s demo`)."""

from __future__ import annotations

from importlib import resources
from pathlib import Path
from typing import Any, Literal, TypeVar

import yaml
from pydantic import BaseModel, ConfigDict, Field, ValidationError, ValidationInfo, field_validator, model_validator

from paras2s.errors import ConfigError, one_line


class Section(BaseModel):
    """Base of all sections: frozen, and a key that nothing reads is an error."""

    model_config = ConfigDict(extra="forbid", frozen=True)


class DataConfig(Section):
    """Scripts, speech, filters and splits. Counts are contrasts (two styles each) per category."""

    curated: Path | None = Field(None, description="folder of a curated dataset, in place of the shipped scripts and counts")

    demonstration_contrasts: int = Field(20, ge=1, description="a category; 20 x 4 = 80 contrasts to demonstrate")
    rl_contrasts: int = Field(48, ge=1, description="a category, none of them demonstrated; prompts without labels")
    preference_contrasts: int = Field(40, ge=1, description="of the RL contrasts, keep their labels for the reward model")
    validation_contrasts: int = Field(8, ge=1, description="a category, from topics and speakers kept for choosing settings")
    test_contrasts: int = Field(12, ge=1, description="a category, from topics and speakers never trained on")
    demonstration_speakers: int = Field(2, ge=1, le=3, description="voices that speak each demonstration query")
    answers_per_query: int = Field(2, ge=1, le=4, description="good answers demonstrated for each (query, style)")
    answer_takes: int = Field(4, ge=1, description="renderings of a good answer, of which the most intelligible is kept")
    max_word_error_rate: float = Field(0.25, ge=0, le=1, description="a clip above it is rejected")
    min_style_probability: float = Field(0.5, ge=0, le=1, description="the right one of the two styles; below: rejected")


class LoraConfig(Section):
    """Low-rank adapters on every projection of the policy's decoder layers, both branches; the rest is frozen."""

    rank: int = Field(16, ge=1)
    alpha: int = Field(32, ge=1)


class PolicyConfig(Section):
    """Who speaks: released weights, or the embedded dual-stream policy of these sizes (Kimi-Audio: 28 layers, tap 21)."""

    weights: Path | None = Field(None, description="folder of a released checkpoint; None: the embedded policy, from nothing")
    kind: str | None = Field(None, description="kimi, glm4_voice ... or module:Class; None: what the checkpoint calls itself")
    decoder: str | None = Field(
        None,
        description="module:function of a folder, gives .decode(codes, seed) -> Clip: for models whose vocoder is no package",
    )
    device: str = Field("auto", description="cpu, cuda, cuda:1; auto: a GPU where there is one")
    dtype: Literal["float32", "bfloat16"] | None = Field(None, description="None: as the weights are stored")
    hidden_size: int = 224
    intermediate_size: int = 576
    num_layers: int = Field(4, description="of the text path: shared + text branch")
    tap_layer: int = Field(1, description="the audio branch starts from the state after this layer (0-based)")
    num_heads: int = 4
    num_kv_heads: int = 4
    audio_delay_steps: int = Field(1, ge=0, description="steps by which the text runs ahead of the audio")
    text_pieces: int = Field(2000, description="word pieces of the text vocabulary")
    max_answer_steps: int = Field(52, description="4.2 s at 12.5 steps a second")

    @property
    def torch_dtype(self) -> Any:
        """As torch names it."""
        import torch

        return None if self.dtype is None else getattr(torch, self.dtype)


class AugmentConfig(Section):
    """How a question is blurred before the policy hears it, so that it learns to listen and not which clip it is."""

    words_dropped: float = Field(0.4, ge=0, le=1, description="share of prompts whose words are hidden")
    text_dropped: float = Field(0.0, ge=0, le=1, description="of the rest, share that keep the sentence's meaning alone")
    codes_dropped: float = Field(0.5, ge=0, le=1, description="share of prompts whose codes are hidden")
    prosody_noise: float = Field(0.3, ge=0, description="blur of the prosody features, in standard deviations")
    words_noise: float = Field(0.8, ge=0, description="blur of the sentence embedding, in its own standard deviations")


class WarmupConfig(Section):
    """Supervised warm-up on both streams."""

    demonstration_contrasts: int = Field(8, ge=1, description="a category: how many of the demonstrated ones are learned from")
    steps: int = Field(260, ge=0, description="0: released weights are aligned as they are")
    batch_size: int = Field(24, ge=1)
    learning_rate: float = 1.5e-3
    weight_decay: float = 0.05
    augment: AugmentConfig = AugmentConfig()
    text_weight: float = Field(1.0, description="of the text loss beside the audio loss")
    first_token_weight: float = Field(4.0, description="of the first text token, which picks the answer")
    lora: LoraConfig | None = Field(None, description="learn adapters alone, and fold them in at the end")
    examples_at_once: int | None = Field(None, ge=1, description="in one pass; None: the whole batch")
    checkpoint_layers: bool = Field(False, description="make activations anew for the gradient")


class OmniConfig(Section):
    """The Qwen2.5-Omni thinker as reward model; the defaults are the paper's (ParaS2S, appendix D) where it gives them."""

    model: str = Field("Qwen/Qwen2.5-Omni-7B", description="folder or hub name")
    lora_rank: int = Field(16, ge=1)
    lora_alpha: int = Field(32, ge=1)
    learning_rate: float = Field(1e-6, gt=0)
    batch_size: int = Field(10, ge=1)
    steps: int = Field(1000, ge=1)
    max_audio_s: float = Field(60.0, gt=0, description="of a clip")
    prompts: Path | None = Field(None, description="folder with your own omni.md")


class DistillConfig(Section):
    """Preference set and reward model."""

    teacher: str = Field("rubric", description="whose scores are learned: rubric, or a judge's name or YAML (trace, audio ...)")
    max_unscored_share: float = Field(0.3, gt=0, le=1, description="of answers; a teacher that fails on more stops the run")
    omni: OmniConfig | None = Field(None, description="train the Qwen2.5-Omni thinker on the same scores as well")
    answers_per_query: int = Field(3, ge=2, description="K sampled answers a query")
    degenerate_answers: int = Field(96, ge=1, description="of each kind (silence, noise, a looped word ...), worth 1, to learn")
    temperature: float = 1.2
    steps: int = 640
    batch_size: int = 48
    learning_rate: float = 2e-3
    hidden_size: int = 128
    layers: int = 2


class RoleConfig(Section):
    """What Ray reserves for each worker of a role."""

    cpus: float = Field(1.0, ge=0)
    gpus: float = Field(0.0, ge=0, description="0.5: two workers share one")
    resources: dict[str, float] = Field({}, description="of the names given to `ray start --resources`")
    threads: int | None = Field(None, ge=1, description="of a worker; None: this machine's cores by the number of workers")

    @property
    def bundle(self) -> dict[str, float]:
        """As Ray names it."""
        named = {"CPU": self.cpus, "GPU": self.gpus, **self.resources}
        return {name: amount for name, amount in named.items() if amount}

    @model_validator(mode="after")
    def _something(self) -> RoleConfig:
        if not self.bundle:
            raise ValueError("a worker that reserves nothing has no place; give it cpus or gpus")
        return self


class AlignConfig(Section):
    """GRPO (ParaS2S, section 4.3 and appendix D)."""

    steps: int = Field(90, ge=1)
    queries_per_step: int = Field(32, ge=1, description="asked and rewarded in a step")
    learned_queries: int = Field(16, ge=1, description="of these, how many are learned from: those whose rewards differ most")
    only_categories: tuple[str, ...] = Field((), description="RL prompts of these alone, by the ledger (Table 7); (): all")
    group_size: int = Field(8, ge=2)
    learning_rate: float = Field(1e-4, description="after its rise; it falls to a tenth over the run")
    hearing_learning_rate: float = Field(1e-3, description="of the adaptor that hears; who speaks must not change as fast")
    augment: AugmentConfig = AugmentConfig(words_dropped=0.1, text_dropped=0.7, codes_dropped=0.75, words_noise=2.5)
    warmup_steps: int = Field(10, ge=1, description="over which the learning rate rises: Adam's first steps are its wildest")
    temperature: float = Field(1.0, gt=0)
    scale_rewards: Literal["group", "none"] = Field("none", description="group: by its std, the paper; none: see the code")
    loss_type: Literal["grpo", "bnpo", "dr_grpo", "cispo", "sapo"] = "grpo"
    ratio_level: Literal["token", "step", "sequence"] = Field("step", description="step: ParaS2S's joint ratio")
    average: Literal["joint", "per_stream"] = Field("per_stream", description="joint: the paper; per_stream: apart")
    text_weight: float = Field(1.0, ge=0, description="of the text stream where averages are per stream")
    audio_weight: float = Field(0.3, ge=0, description="of the audio stream where averages are per stream")
    clip_low: float = Field(0.2, ge=0)
    clip_high: float = Field(0.2, ge=0)
    ratio_cap: float | None = Field(None, description="two-sided clipping: the free ratio is held below it")
    importance_cap: float | None = Field(
        None, description="weigh each token by exp(learner - sampler log-prob), at most this: for stale or foreign samples"
    )
    max_drift: float = Field(0.1, gt=0, description="nats a token between sampler and learner, on policy; more stops the run")
    lora: LoraConfig | None = Field(None, description="learn adapters alone; None: all weights, beside a frozen copy")
    answers_at_once: int | None = Field(None, ge=1, description="in one pass of the learner; None: all of a step's")
    checkpoint_layers: bool = Field(False, description="make activations anew for the gradient: less memory, a third more time")
    kl_weight: float = Field(0.2, ge=0, description="beta, as in the paper")
    kl_form: Literal["sum", "joint"] = Field("sum", description="k3 of each entry added up, or k3 of the joint log-prob")
    kl_bias_correction: bool = False
    max_grad_norm: float = Field(1.0, gt=0)
    engine: Literal["native", "vllm"] = Field("native", description="vllm: for single-stream policies; see `make vllm-env`")
    engine_python: Path | None = Field(None, description="vLLM's own interpreter; None: .venv-vllm/bin/python")
    max_staleness: int | None = Field(
        None, ge=0, description="updates by which answers may be behind; None: the synchronous driver"
    )
    rollout_workers: int = Field(1, ge=1)
    rollout_workers_max: int | None = Field(None, ge=1, description="as machines join; None: no more than there were")
    reward_workers: int = Field(1, ge=1)
    learner_workers: int = Field(1, ge=1, description="ranks that share the weights (FSDP2)")
    mixed_precision: bool = Field(False, description="learn in bfloat16, with float32 weights behind it")
    rollout: RoleConfig = RoleConfig()
    reward: RoleConfig = RoleConfig()
    learner: RoleConfig = RoleConfig()
    checkpoint_every: int = Field(10, ge=1)
    evaluate_every: int = Field(10, ge=1, description="steps between looks at the validation queries, by the run's reward")
    max_unscored_share: float = Field(0.5, gt=0, le=1, description="a step with more unscored answers stops the run")
    ray_address: str | None = Field(None, description="of a running cluster; None starts Ray on this machine")


class BenchConfig(Section):
    """The benchmark: how often each held-out query is asked, and at which temperature."""

    answers_per_query: int = Field(2, ge=1)
    temperature: float = Field(1.0, gt=0)


class ExtractorConfig(Section):
    """One extractor of the blueprint, by name, with its own options (a model, a batch size)."""

    name: str
    options: dict[str, str | int | float] = {}


class EndpointConfig(Section):
    """An OpenAI-compatible endpoint, and how it may be used. The key itself is only ever in the environment."""

    base_url: str = Field(
        "https://api.openai.com/v1",
        pattern=r"^https?://[^@?]+$",
        description="also Gemini's compatible endpoint or a vLLM server",
    )
    model: str = Field("gpt-4o", min_length=1)
    api_key_env: str = Field(
        "OPENAI_API_KEY",
        pattern=r"^[A-Za-z_]\w{0,40}$",
        description="name of the variable that holds the key; unset: no key is sent",
    )
    concurrency: int = Field(16, ge=1, description="calls under way at once")
    requests_per_minute: float | None = Field(None, gt=0)
    timeout_s: float = Field(120.0, gt=0)
    max_attempts: int = Field(8, ge=1, description="of one call, the first included")
    backoff_s: float = Field(0.5, ge=0, description="wait before the second attempt at most; doubles each time, up to a minute")
    budget_usd: float | None = Field(
        None, gt=0, description="of one command, as a reward of one worker; no call that could exceed it is made"
    )
    prices: Path | None = Field(None, description="another price table (YAML)")


class LLMConfig(EndpointConfig):
    """A language model there."""

    temperature: float | None = Field(0.0, ge=0, description="null: not sent, for models that refuse it")
    top_p: float | None = Field(None, gt=0, le=1, description="nucleus sampling; null: not sent")
    max_output_tokens: int = Field(2048, ge=1)
    seed: int | None = None
    structured: Literal["auto", "never"] = Field("auto", description="auto: ask for a JSON schema until the endpoint refuses")


class AudioChatConfig(EndpointConfig):
    """A model there that hears and speaks, to be benched."""

    model: str = Field("gpt-audio", min_length=1)
    voice: str = "alloy"
    system: str = Field("", description="system prompt; empty: none is sent")
    temperature: float = Field(1.0, ge=0)


class JudgeConfig(Section):
    """An LLM as judge: what it reads of the answers, and how it is asked (TRACE, 3.3 and appendix D)."""

    reads: Literal["blueprint", "transcript", "audio"] = Field("blueprint", description="TRACE, or one of its two baselines")
    left_out: tuple[str, ...] = Field((), description="blueprint groups not shown: agent_emotion and so on (Table 12)")
    describe_user: bool = Field(False, description="show a blueprint of the user's clip as well")
    both_orders: bool = Field(False, description="ask each pair twice, the answers exchanged")
    prompts: Path | None = Field(None, description="folder of your own prompts; a file that is not there is the shipped one")
    fusion: str = Field("speakbench", description="rule that makes the overall label")
    fusion_rules: Path | None = Field(None, description="YAML with rules of your own")


class JudgingConfig(Section):
    """A judge and what it needs: extractors, prompts, endpoint."""

    name: str = "trace"
    cache_dir: Path = Path("runs/cache")
    extractors: tuple[ExtractorConfig, ...] = tuple(
        ExtractorConfig(name=name) for name in ("words", "quality", "pitch", "loudness")
    )
    judge: JudgeConfig = JudgeConfig()
    llm: LLMConfig = LLMConfig()


class OmniServedConfig(Section):
    """The Omni reward model behind a vLLM server."""

    llm: LLMConfig = LLMConfig(base_url="http://127.0.0.1:8000/v1", model="Qwen/Qwen2.5-Omni-7B")
    digit_ids: tuple[int, ...] = Field(
        (16, 17, 18, 19, 20), min_length=5, max_length=5, description="of 1 to 5 in its tokenizer"
    )
    max_audio_s: float = Field(60.0, gt=0, description="of a clip")
    prompts: Path | None = Field(None, description="folder with your own omni.md")


class RewardSourceConfig(Section):
    """One source of reward. Every source speaks on the scale 1 to 5, so weights compare."""

    kind: Literal["reward_model", "omni", "rubric", "llm", "pairwise", "word_errors", "quality", "length"]
    name: str = Field("", description="in the stored parts of a reward; needed where two sources are of one kind")
    weight: float = Field(1.0, gt=0)
    required: bool = Field(True, description="false: an answer it cannot score is rewarded by the others alone")
    options: dict[str, str | int | float] = Field({}, description="of this kind; see reward/sources")

    @property
    def key(self) -> str:
        """What its scores are stored under."""
        return self.name or self.kind


class RewardConfig(Section):
    """What an answer is rewarded for in GRPO: the weighted mean of its sources."""

    sources: tuple[RewardSourceConfig, ...] = Field((RewardSourceConfig(kind="reward_model"),), min_length=1)

    @field_validator("sources")
    @classmethod
    def _once_each(cls, sources: tuple[RewardSourceConfig, ...]) -> tuple[RewardSourceConfig, ...]:
        keys = [source.key for source in sources]
        if len(set(keys)) < len(keys):
            raise ValueError(f"{max(keys, key=keys.count)} stands twice; give each a name, or one of them with one weight")
        return sources


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


class VoiceConfig(Section):
    """A voice that the curation pipeline speaks with. Its options are its engine's: see `data_gen/tts`."""

    name: str = Field(pattern=r"^[\w.-]{1,40}$")
    engine: Literal["openai", "cosyvoice", "piper", "espeak"]
    kind: Literal["male", "female", "child"]
    split: Literal["train", "validation", "test"] = "train"
    options: dict[str, str | int | float] = Field({}, description="openai: voice; cosyvoice: clip and text; espeak: voice ...")


class HumanCheckConfig(Section):
    """People who listen to what the filters kept (ParaS2S, section 3.1, step 5)."""

    roles: tuple[Literal["demonstration", "preference", "validation", "test"], ...] = Field(
        ("test",), description="whose queries are checked; demonstration: its answers as well"
    )
    annotators: int = Field(3, ge=1, description="whose decisions an item needs; the majority decides")
    required: bool = Field(False, description="true: what has not been checked by enough people is left out")


class CurationConfig(Section):
    """Queries and demonstrations at scale: an LLM writes and tests, a TTS speaks, filters choose (ParaS2S, section 3.1)."""

    kind: Literal["curation"]
    name: str
    folder: Path = Path("runs/curated")
    cache_dir: Path = Path("runs/cache")
    seed: int = 0
    categories: tuple[str, ...] = ("emotion", "sarcasm", "age", "gender")
    category_file: Path | None = Field(None, description="YAML with categories of your own, or others in place of the shipped")
    prompts: Path | None = Field(None, description="folder of your own prompts; a file that is not there is the shipped one")
    contrasts: dict[Literal["demonstration", "preference", "rl", "validation", "test"], int] = Field(
        {"demonstration": 1250, "preference": 1250, "rl": 12_500, "validation": 50, "test": 300},
        description="wanted a category; two queries each held out, one or two in training (ParaS2S: 10k, 10k, 100k, 300 x 4)",
    )
    writer: LLMConfig = Field(
        LLMConfig(model="gpt-4.1", temperature=1.0, max_output_tokens=8192, concurrency=64), description="of the lists"
    )
    tester: LLMConfig = Field(
        LLMConfig(model="gpt-4.1", concurrency=64, max_output_tokens=1024), description="of the tests, and of answers"
    )
    list_size: int = Field(100, ge=1, le=200, description="sentences asked for in one list")
    max_lists: int = Field(40, ge=1, description="asked for of one topic and pair of styles, at most")
    texts_at_once: int = Field(2048, ge=1, description="sentences in memory; their tests run together")
    max_failed_share: float = Field(0.5, gt=0, le=1, description="of a stage's calls in one round; more stop the run")
    near_duplicate: float = Field(90.0, gt=0, le=100, description="rapidfuzz's token sort ratio from which two are one")
    speak_with: Literal["openai", "cosyvoice", "piper", "espeak"] | None = Field(
        None, description="one engine for everything, in place of each category's own"
    )
    voices: tuple[VoiceConfig, ...] = ()
    agent: VoiceConfig = VoiceConfig(name="agent", engine="openai", kind="female", options={"voice": "coral"})
    agent_tones: tuple[str, ...] = Field((), description="of which an answer's must be one; (): described freely")
    openai: EndpointConfig = EndpointConfig(model="gpt-4o-mini-tts", concurrency=64)
    cosyvoice: EndpointConfig = EndpointConfig(base_url="http://127.0.0.1:50000", model="CosyVoice2-0.5B", concurrency=4)
    answer_takes: int = Field(10, ge=1, description="renderings of an answer; the one with the fewest word errors is kept")
    words: ExtractorConfig = ExtractorConfig(name="words")
    max_word_error_rate: float = Field(0.1, ge=0, le=1)
    style_check: Literal["none", "tone", "emotion"] = Field(
        "none", description="tone: a classifier fitted by `paras2s data demo`; emotion: emotion2vec (extra trace)"
    )
    tone: Path | None = Field(None, description="its file, for style_check: tone")
    min_style_probability: float = Field(0.5, ge=0, le=1, description="of the right one among a contrast's two")
    corpora: dict[Literal["iemocap", "meld", "styletalk"], Path] = Field({}, description="real speech: where each one lies")
    min_corpus_words: int = Field(5, ge=1)
    human_check: HumanCheckConfig = HumanCheckConfig()


class AblationRow(Section):
    """One run of an ablation: what it changes, where its point stands in the plot, and whether it is aligned at all."""

    name: str = Field(pattern=r"^\w[\w .,+=-]*$", description="also its folder")
    set: dict[str, Any] = Field({}, description="dotted keys laid over the base")
    system: Literal["cascade", "sft", "aligned", "topline"] = Field(
        "aligned", description="whose score counts; only the aligned one is reinforced"
    )
    line: str = Field("", description="rows of one line are joined in the plot")
    x: float | None = Field(None, description="place on the plot's axis; null: not plotted")

    @field_validator("system", mode="before")
    @classmethod
    def _renamed(cls, value: Any) -> Any:
        if value == "words_only":
            raise ValueError("'words_only' is called 'cascade' now")
        return value


class Claim(Section):
    """Something the paper found that the rows of an ablation can bear out or not: one row above another."""

    say: str
    higher: str = Field(description="name of the row that should have more")
    lower: str
    of: Literal["score", "told_apart", "words_understood"] = "score"
    at_least: bool = Field(False, description="the claim is that it has no less, not that it has more")
    leave_out: tuple[str, ...] = Field((), description="categories that do not count: those a row was trained in")


class AblationConfig(Section):
    """A grid of runs that share what they have in common: one table, and a plot where rows have a place on its axis."""

    name: str
    base: str = Field("demo", description="preset or YAML of the run that the rows change")
    queries: Literal["validation", "test"] = Field(
        "validation", description="that score it; test: for a figure, never to choose"
    )
    seeds: tuple[int, ...] = Field((0,), min_length=1)
    run_dir: Path = Path("runs/ablations")
    set: dict[str, Any] = Field({}, description="laid over the base in every row")
    rows: tuple[AblationRow, ...] = Field(min_length=1)
    axis: str = Field("", description="what the plot's axis shows")
    title: str = ""
    plots: tuple[Literal["score", "words_understood"], ...] = ("score",)
    paper: str = Field("", description="what the paper found, in a sentence, to stand beside our table")
    claims: tuple[Claim, ...] = ()
    note: str = Field("", description="what differs from the paper's experiment")

    @field_validator("claims")
    @classmethod
    def _about_rows(cls, claims: tuple[Claim, ...], info: ValidationInfo) -> tuple[Claim, ...]:
        rows = {row.name for row in info.data.get("rows", ())}
        if strange := [name for claim in claims for name in (claim.higher, claim.lower) if rows and name not in rows]:
            raise ValueError(f"no row is called {strange[0]!r}")
        return claims


Config = TypeVar("Config", bound=Section)


def parse_config(values: Any, name: str, kind: type[Config]) -> Config:
    """Validate a mapping as a config of this kind.

    Raises:
        ConfigError: names every wrong key, in one line.
    """
    if not isinstance(values, dict):
        raise ConfigError(f"{name}: expected a mapping of sections, got {type(values).__name__}")
    try:
        return kind.model_validate(values)
    except ValidationError as error:
        lines = [f"{name}: {'.'.join(map(str, item['loc']))}: {_say(item)}" for item in error.errors()]
        raise ConfigError("; ".join(lines)) from error


def _say(item: Any) -> str:
    if item["type"] == "extra_forbidden":
        return "unknown key; `paras2s config` prints the keys there are"
    return f"{item['msg'][0].lower()}{item['msg'][1:]} (got {item['input']!r})"


def load_config(path: Path, overrides: dict[str, Any] | None = None) -> RunConfig:
    """A run's settings, from YAML with dotted overrides (`align.steps`: 3) laid over it.

    Raises:
        ConfigError: missing file, bad YAML, unknown key, bad value.
    """
    return load_section(path, overrides, RunConfig)


def load_judging_config(path: Path, overrides: dict[str, Any] | None = None) -> JudgingConfig:
    """A judge's settings, likewise.

    Raises:
        ConfigError: missing file, bad YAML, unknown key, bad value.
    """
    return load_section(path, overrides, JudgingConfig)


def load_curation(path: Path, overrides: dict[str, Any] | None = None) -> CurationConfig:
    """A curation's settings, likewise.

    Raises:
        ConfigError: missing file, bad YAML, unknown key, bad value.
    """
    return load_section(path, overrides, CurationConfig)


def load_audio_chat(path: Path) -> AudioChatConfig:
    """The settings of a model to be benched, likewise.

    Raises:
        ConfigError: missing file, bad YAML, unknown key, bad value.
    """
    return load_section(path, None, AudioChatConfig)


def load_ablation(path: Path, overrides: dict[str, Any] | None = None) -> AblationConfig:
    """An ablation's rows, likewise.

    Raises:
        ConfigError: missing file, bad YAML, unknown key, bad value.
    """
    return load_section(path, overrides, AblationConfig)


def read_values(path: Path) -> Any:
    """What a YAML config holds, not validated.

    Raises:
        ConfigError: missing file, bad YAML.
    """
    try:
        return yaml.safe_load(path.read_text()) or {}
    except FileNotFoundError as error:
        raise ConfigError(f"{path}: no such config; give a YAML file, or the name of a shipped one") from error
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
        raise ConfigError(f"{path}: not valid YAML ({one_line(error)})") from error


def load_section(path: Path, overrides: dict[str, Any] | None, kind: type[Config]) -> Config:
    """Read a YAML config and lay dotted overrides over it.

    Raises:
        ConfigError: missing file, bad YAML, unknown key, bad value.
    """
    values = read_values(path)
    if not isinstance(values, dict):
        return parse_config(values, str(path), kind)
    for dotted, value in (overrides or {}).items():
        *parents, key = dotted.split(".")
        place = values
        for parent in parents:
            place = place.setdefault(parent, {})
            if not isinstance(place, dict):
                raise ConfigError(f"{dotted}: '{parent}' is a value, not a section")
        place[key] = value
    return parse_config(values, str(path), kind)


def preset_path(name: str, kind: str = "") -> Path:
    """A config shipped with the package; `kind` is "" for runs and "judges" for judges.

    Raises:
        ConfigError: no such preset.
    """
    folder = Path(str(resources.files("paras2s"))) / "configs" / kind
    path = folder / f"{name}.yaml"
    if not path.is_file():
        known = ", ".join(sorted(one.stem for one in folder.glob("*.yaml")))
        raise ConfigError(f"no preset {name!r}; there are {known}")
    return path


def dump_config(config: Section) -> str:
    """The resolved config as YAML."""
    return yaml.safe_dump(config.model_dump(mode="json"), sort_keys=False)
