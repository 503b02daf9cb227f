"""Settings of LLM judges, and the judge of a name: its kind and its YAML, read once."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from pydantic import Field, model_validator

from paras2s.configs.schema.audio_judge import AudioJudgeConfig
from paras2s.configs.schema.base import Config, Section, parse_config, preset_path, read_values, shipped_presets, with_overrides
from paras2s.configs.schema.endpoints import ExtractorConfig, LLMConfig
from paras2s.errors import ConfigError
from paras2s.utils.plugins import require_part

RUBRIC, INDEPENDENT, REWARD_MODEL, UNISRM = "rubric", "independent", "reward_model", "unisrm"
UNISRM_SETTINGS = "unisrm.json"
# Entry points of other packages' judges.
JUDGE_GROUP = "paras2s.judges"
# Every kind of judge in words.
KINDS = {
    "llm": "an LLM judge",
    "contrast": "a contrast judge, for answers",
    "audio": "an audio judge, for `judge pair`, `judge clip`, `bench systems` and `probe`",
    "unisrm": "a UniSRM",
    "dimensions": "a judge of dimensions, which needs the texts and clips of a UniSRM item, for `bench unisrm`",
    "rubric": "a rubric, which makes no call",
    "independent": "the independent judge, which makes no call",
    "reward_model": "a reward model, which makes no call",
}
# Those that a YAML may name.
FILE_KINDS = ("llm", "contrast", "audio", "unisrm", "dimensions", "rubric", "sdiareward")

# Default sample rate of clips that a judge hears.
AUDIO_RATE_HZ = 16_000


class JudgeConfig(Section):
    """An LLM as judge: its inputs and its questions (TRACE, 3.3 and appendix D)."""

    reads: Literal["blueprint", "transcript", "audio"] = Field(
        "blueprint", description="input of the judge: TRACE's blueprint, or one of its two baselines"
    )
    asks: Literal["dimensions", "overall"] = Field(
        "dimensions", description="labels of a pair: three, or one of 1, 2, tie (Table 9)"
    )
    read: Literal["reply", "expected"] = Field(
        "reply", description="score of an answer, or one label of a pair: as replied, or the mean by the tokens' probabilities"
    )
    left_out: tuple[str, ...] = Field((), description="blueprint groups to leave out: agent_emotion and so on (Table 12)")
    describe_user: bool = Field(False, description="show a blueprint of the user's clip as well")
    sample_rate_hz: int = Field(AUDIO_RATE_HZ, ge=8000, le=48_000, description="sample rate for a judge that reads audio")
    both_orders: bool = Field(False, description="ask each pair twice, with the answers exchanged")
    prompts: Path | None = Field(None, description="folder of your own prompts; shipped prompts replace missing files")
    fusion: str = Field("speakbench", description="rule that makes the overall label")
    fusion_rules: Path | None = Field(None, description="YAML with rules of your own")

    @model_validator(mode="after")
    def _check(self) -> JudgeConfig:
        if self.reads != "audio" and self.sample_rate_hz != AUDIO_RATE_HZ:
            raise ValueError(f"sample_rate_hz: a judge that reads a {self.reads} hears no clips; leave it out")
        if self.asks == "overall" and self.reads == "blueprint":
            raise ValueError("asks: overall is for reads transcript or audio; with blueprint leave it out")
        return self


class JudgingConfig(Section):
    """A judge with its extractors, prompts and endpoint."""

    kind: Literal["llm"] = "llm"
    name: str = "trace"
    cache_dir: Path = Path("runs/cache")
    extractors: tuple[ExtractorConfig, ...] = tuple(
        ExtractorConfig(name=name) for name in ("words", "quality", "pitch", "loudness", "voicing")
    )
    judge: JudgeConfig = JudgeConfig()
    llm: LLMConfig = LLMConfig()


class ContrastConfig(Section):
    """A judge by likelihood ratios: the answer's words under the question's style against other styles."""

    kind: Literal["contrast"] = "contrast"
    name: str = "contrast"
    cache_dir: Path = Path("runs/cache")
    extractors: tuple[ExtractorConfig, ...] = (ExtractorConfig(name="words"),)
    engine: Literal["local", "completions"] = Field(
        "local", description="a model of this machine, or an endpoint whose /completions echo log-probabilities (vLLM, SGLang)"
    )
    model: Path | None = Field(None, description="local: folder of a transformers model, or a GGUF file")
    device: str = Field("cpu", description="local: cpu, cuda ...")
    dtype: Literal["float32", "bfloat16", "float16"] = Field("float32", description="local: type of the weights")
    batch_size: int = Field(8, ge=1, description="local: answers read at once after one prompt")
    llm: LLMConfig = LLMConfig(base_url="http://127.0.0.1:8000/v1", model="Qwen/Qwen2.5-1.5B-Instruct", concurrency=16)
    chat_template: Path | None = Field(
        None, description="Jinja file of the model's chat; null: the local tokenizer's own, or ChatML for an endpoint"
    )
    styles: dict[str, dict[str, str]] = Field({}, description="categories, each with its styles and their words")
    tones: dict[str, str] = Field(
        {}, description="tones of the extractor tone, each with a word that is read before an answer's words; {}: words alone"
    )
    against: Literal["others", "none"] = Field(
        "others", description="denominator of the ratio: all other styles of the category, or no style named"
    )
    score_map: Path | None = Field(None, description="file of a monotone map of ratios to 1 to 5; null: a sigmoid")
    sigmoid_nats: float = Field(2.0, gt=0, description="width of the sigmoid")
    prompts: Path | None = Field(None, description="folder with your own contrast.md and contrast_question.md")

    @model_validator(mode="after")
    def _measures_tones(self) -> ContrastConfig:
        if self.tones and not any(extractor.name == "tone" for extractor in self.extractors):
            raise ValueError("tones: add {name: tone} to extractors, which measures them")
        return self


class OmniServedConfig(Section):
    """The Omni reward model behind a vLLM server."""

    llm: LLMConfig = LLMConfig(base_url="http://127.0.0.1:8000/v1", model="Qwen/Qwen2.5-Omni-7B", concurrency=16)
    digit_ids: tuple[int, ...] = Field(
        (16, 17, 18, 19, 20), min_length=5, max_length=5, description="tokens of the digits 1 to 5"
    )
    max_audio_s: float = Field(60.0, gt=0, description="longest clip")
    prompts: Path | None = Field(None, description="folder with your own omni.md")


class OwnJudgeConfig(Section):
    """A judge of another package or of your own code. `options` are the arguments of its class."""

    kind: str
    options: dict[str, Any] = Field({}, description="arguments of the class")


@dataclass(frozen=True)
class NamedJudge:
    """A judge as it was named: its kind, and the values of its YAML, which is read once.

    `kind` is one of `KINDS`, the name of an entry point, or `module:Class`. `source` is the YAML or the folder, if any.
    """

    name: str
    kind: str
    source: Path | None = None
    values: Mapping[str, Any] = field(default_factory=dict)

    @property
    def is_own(self) -> bool:
        """Whether its class is of another package or of the user's code."""
        return self.kind not in KINDS

    @property
    def has_config(self) -> bool:
        """Whether overrides can change its settings."""
        return self.is_own or (self.kind in FILE_KINDS and self.kind != "rubric")

    def config(self, schema: type[Config], overrides: Mapping[str, Any] | None = None) -> Config:
        """Return the settings as a schema, with dotted overrides laid over them.

        Raises:
            ConfigError: the judge is of another kind than the schema, or has an unknown key or a bad value.
        """
        needed = schema.model_fields["kind"].default
        if needed in KINDS and self.kind != needed:
            is_a = KINDS.get(self.kind, f"a judge of kind {self.kind}")
            raise ConfigError(f"{self.name}: this is {is_a}; {KINDS[needed]} is needed (kind: {needed})")
        values = with_overrides(copy.deepcopy(dict(self.values)), dict(overrides or {}))
        return parse_config({"kind": self.kind, **values}, str(self.source or self.name), schema, overrides or ())


def find_judge(name: str | Path | NamedJudge) -> NamedJudge:
    """Return a judge by name, YAML, folder or `module:Class`; its YAML is read here and nowhere else.

    Raises:
        ConfigError: no judge has this name, or its YAML cannot be read or names an unknown kind.
    """
    if isinstance(name, NamedJudge):
        return name
    text, path = str(name), Path(name)
    if text in (RUBRIC, INDEPENDENT):
        return NamedJudge(text, text)
    shipped = shipped_presets("judges")
    if text in shipped:
        # A shipped name is not looked up on disk: a folder may be called "audio".
        return _read(text, preset_path(text, "judges"))
    if text == REWARD_MODEL or path.is_dir():
        if not (path / UNISRM_SETTINGS).is_file():
            return NamedJudge(text, REWARD_MODEL, path)
        preset = preset_path("unisrm", "judges")
        return NamedJudge(text, "unisrm", preset, {**read_values(preset), "checkpoint": text})
    if path.suffix in (".yaml", ".yml"):
        return _read(text, path)
    try:
        return NamedJudge(text, require_part("judge", JUDGE_GROUP, text, (*shipped, RUBRIC, INDEPENDENT)))
    except ValueError as error:
        raise ConfigError(f"{error}; a YAML file, or the folder of a run, is a judge as well") from error


def _read(name: str, path: Path) -> NamedJudge:
    values = read_values(path)
    if not isinstance(values, dict):
        raise ConfigError(f"{path}: expected a mapping of settings, got {type(values).__name__}")
    kind = str(values.get("kind") or _inferred_kind(values))
    try:
        return NamedJudge(name, require_part("kind of judge", JUDGE_GROUP, kind, FILE_KINDS), path, values)
    except ValueError as error:
        raise ConfigError(f"{path}: kind: {error}") from error


def _inferred_kind(values: Mapping[str, Any]) -> str:
    """Return the kind of a YAML that does not name it, by its keys.

    Files of 0.21 and before have no kind, nor has the shipped rubric, whose text names recorded verdicts.
    """
    if "families" in values:
        return RUBRIC
    of_audio = set(AudioJudgeConfig.model_fields) - set(JudgingConfig.model_fields)
    return "audio" if of_audio & set(values) else "llm"
