"""Settings of UniSRM's data from published corpora: sizes, voices, LLMs that write and judge, people's verification."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Literal

from pydantic import Field, model_validator

from paras2s.configs.schema.audio_judge import AudioInputConfig
from paras2s.configs.schema.base import MAX_SEED, Section, load_section, preset_path
from paras2s.configs.schema.curation import TTS_ENGINES, SynthesisVoice
from paras2s.configs.schema.endpoints import EndpointConfig, LLMConfig

Language = Literal["en", "zh"]
SplitName = Literal["sft", "rl", "bench"]
PairTask = Literal["T1", "T3", "T4"]
# The columns of Table 9: T3 is built in two languages.
DataSet = Literal["T1", "T2", "T3-en", "T3-zh", "T4"]


class UniSRMVoice(SynthesisVoice):
    """A TTS system. A voice that copies the prompt (cosyvoice without a clip) serves all splits; any other serves one."""

    endpoint: EndpointConfig | None = Field(None, description="endpoint of openai and cosyvoice")
    split: SplitName | None = Field(None, description="split of its items; null: all, for a voice that copies the prompt")
    languages: tuple[Language, ...] = ("en",)

    @property
    def copies(self) -> bool:
        """Whether it speaks in the voice of a prompt."""
        return self.engine == "cosyvoice" and "clip" not in self.options

    @model_validator(mode="after")
    def _check(self) -> UniSRMVoice:
        if self.engine in TTS_ENGINES and (self.endpoint is None) != (self.engine in ("piper", "espeak")):
            raise ValueError(f"endpoint: {self.engine} needs {'one' if self.endpoint is None else 'none'}")
        if self.copies and self.split is not None:
            raise ValueError("split: a voice that copies the prompt belongs to none; leave it out")
        if not self.copies and self.split is None:
            raise ValueError("split: a voice of its own belongs to one of sft, rl, bench, or splits would share a speaker")
        return self


class DimensionJudgeConfig(Section):
    """An audio model that scores both clips of a pair dimension by dimension."""

    llm: LLMConfig
    audio: AudioInputConfig = AudioInputConfig()
    prompts: Path | None = Field(None, description="folder with your own T1.md, T3.md, T4.md")


class DimensionBenchConfig(DimensionJudgeConfig):
    """A dimension judge for `bench unisrm`."""

    kind: Literal["dimensions"] = "dimensions"
    cache_dir: Path = Path("runs/cache")


class JudgesConfig(Section):
    """Judges of the pairwise tasks (section 3)."""

    T1: DimensionJudgeConfig
    T3: DimensionJudgeConfig
    T4: DimensionJudgeConfig

    def of(self, task: PairTask) -> DimensionJudgeConfig:
        """Return the judge of a task."""
        return {"T1": self.T1, "T3": self.T3, "T4": self.T4}[task]


class SplitSizes(Section):
    """Number of requested items in each split."""

    sft: int = Field(ge=0)
    rl: int = Field(ge=0)
    bench: int = Field(ge=0)


class VerificationConfig(Section):
    """People's verification of a split's labels (appendix G.2); the paper gives no limits for excluding a rater."""

    tasks: tuple[PairTask, ...] = Field(("T1",), description="tasks whose items are verified; the paper describes T1 alone")
    splits: tuple[SplitName, ...] = ("rl", "bench")
    raters: int = Field(3, ge=1, description="raters needed for each pair")
    min_valid: int = Field(2, ge=1, description="raters needed that do not call the pair invalid")
    min_agree: int = Field(2, ge=1, description="raters needed that prefer the same clip; more than half of `raters`")
    min_gold_share: float = Field(0.75, ge=0, le=1, description="share of the gold items that a rater must get right")
    min_median_s: float = Field(2.0, ge=0, description="least median time an item; faster raters are excluded")
    max_left_share: float = Field(0.95, gt=0.5, le=1, description="largest share of left clips; raters above it are excluded")
    min_left_items: int = Field(10, ge=1, description="least choices for which max_left_share applies")

    @model_validator(mode="after")
    def _check(self) -> VerificationConfig:
        if not self.raters / 2 < self.min_agree <= self.raters:
            raise ValueError(f"min_agree: {self.min_agree} of {self.raters} is no majority")
        if self.min_valid > self.raters:
            raise ValueError(f"min_valid: {self.min_valid} is more than raters ({self.raters})")
        return self


class UniSRMDataConfig(Section):
    """Settings of UniSRM-Data from published corpora (UniSRM, section 3, appendices E and G)."""

    kind: Literal["unisrm_data"]
    name: str
    cache_dir: Path = Path("runs/cache")
    seed: int = Field(0, ge=0, le=MAX_SEED)
    sizes: dict[DataSet, SplitSizes] = Field(description="requested items (Table 9)")
    max_tries: float = Field(1.5, ge=1, description="most pairs made for each requested item; the judge drops some")
    max_failed_share: float = Field(0.5, gt=0, le=1, description="largest share of failures in a stage; more stop the build")
    voices: tuple[UniSRMVoice, ...] = Field(description="TTS systems")
    writer: LLMConfig = Field(description="LLM that writes scenes (T3), and sentences and turns that do not fit (T3, T4)")
    judges: JudgesConfig
    prompts: Path | None = Field(None, description="folder with your own prompts of the writer")
    prompt_corpus: Path | None = Field(None, description="LibriTTS-R, for the voices of T3's synthetic negatives; null: ESD's")
    synthetic_positives: float = Field(0.5, ge=0, le=1, description="share of T4's synthetic positives; the paper has a subset")
    verification: VerificationConfig = VerificationConfig()

    @model_validator(mode="after")
    def _check(self) -> UniSRMDataConfig:
        names = [voice.name for voice in self.voices]
        if len(set(names)) < len(names):
            raise ValueError(f"voices: {max(names, key=names.count)!r} is given twice")
        return self


def load_unisrm_data(name: str | Path, overrides: dict[str, Any] | None = None) -> UniSRMDataConfig:
    """Load a config by the name of a shipped one, or from a YAML file. Raises ConfigError: no such config, key or value."""
    path = Path(name)
    own = path.suffix in (".yaml", ".yml")
    return load_section(path if own else preset_path(str(name), "unisrm/data"), overrides, UniSRMDataConfig)
