"""Settings of LLM judges."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Literal

from pydantic import Field, model_validator

from paras2s.configs.schema.base import Section, load_section
from paras2s.configs.schema.endpoints import ExtractorConfig, LLMConfig

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

    name: str = "trace"
    cache_dir: Path = Path("runs/cache")
    extractors: tuple[ExtractorConfig, ...] = tuple(
        ExtractorConfig(name=name) for name in ("words", "quality", "pitch", "loudness", "voicing")
    )
    judge: JudgeConfig = JudgeConfig()
    llm: LLMConfig = LLMConfig()


class OmniServedConfig(Section):
    """The Omni reward model behind a vLLM server."""

    llm: LLMConfig = LLMConfig(base_url="http://127.0.0.1:8000/v1", model="Qwen/Qwen2.5-Omni-7B")
    digit_ids: tuple[int, ...] = Field(
        (16, 17, 18, 19, 20), min_length=5, max_length=5, description="tokens of the digits 1 to 5"
    )
    max_audio_s: float = Field(60.0, gt=0, description="longest clip")
    prompts: Path | None = Field(None, description="folder with your own omni.md")


def load_judging_config(path: Path, overrides: dict[str, Any] | None = None) -> JudgingConfig:
    """Load a judge's settings from YAML with dotted overrides.

    Raises:
        ConfigError: missing file, bad YAML, unknown key, bad value.
    """
    return load_section(path, overrides, JudgingConfig)
