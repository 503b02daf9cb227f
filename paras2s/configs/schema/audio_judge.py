"""Settings of audio judges: tasks, and how clips are joined and sent (AudioJudge, StyleSet)."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

from pydantic import Field, field_validator, model_validator

from paras2s.configs.schema.base import Section
from paras2s.configs.schema.endpoints import LLMConfig

MP3_RATES_HZ = (8000, 11_025, 12_000, 16_000, 22_050, 24_000, 32_000, 44_100, 48_000)
Strategy = Literal["none", "pair_example", "examples", "test", "examples_and_test"]


class AudioInputConfig(Section):
    """Audio format and limits of an endpoint."""

    format: Literal["wav", "mp3", "flac", "ogg"] = Field("wav", description="audio format; OpenAI takes wav and mp3")
    sample_rate_hz: int = Field(16_000, ge=8000, le=48_000, description="sample rate to which every clip is converted, once")
    max_file_mb: float | None = Field(20.0, gt=0, description="limit of one file as sent (base64); null: the endpoint's own")
    max_request_mb: float | None = Field(None, gt=0, description="limit of all files of a call; null: the endpoint's own")
    max_audio_s: float | None = Field(None, gt=0, description="limit of the audio of a call; null: the endpoint's own")

    @model_validator(mode="after")
    def _check(self) -> AudioInputConfig:
        if self.format == "mp3" and self.sample_rate_hz not in MP3_RATES_HZ:
            raise ValueError(f"sample_rate_hz: mp3 has {', '.join(map(str, MP3_RATES_HZ))} Hz")
        return self


class AudioJudgeConfig(Section):
    """An audio judge, which hears the clips themselves. Several tasks are an ensemble of judges."""

    kind: Literal["audio"] = "audio"
    cache_dir: Path = Path("runs/cache")
    tasks: tuple[str, ...] = Field(
        ("lexical", "paralinguistic", "speech_quality"),
        min_length=1,
        description="tasks, one verdict each; see reward/judges/tasks",
    )
    ensemble: str = Field("majority", description="rule that combines the tasks' verdicts on a pair")
    ensemble_rules: Path | None = Field(None, description="YAML with rules of your own")
    both_orders: bool = Field(True, description="judge each pair twice, with the clips exchanged")
    samples: int = Field(1, ge=1, description="replies to each question; their votes are averaged (StyleSet: 5)")
    strategy: Strategy = Field("none", description="clips that are joined into one (AudioJudge, 3.2)")
    signals: Literal["spoken", "tone", "none"] = Field("spoken", description="signal before each clip of a joined file")
    silence_s: float = Field(0.5, ge=0, le=30, allow_inf_nan=False, description="silence between parts of a joined file")
    examples: Path | None = Field(None, description="labelled examples (JSONL) to show first, in context")
    shots: int | None = Field(None, ge=1, description="number of examples to show; null: all")
    transcripts: Literal["none", "asr", "given"] = Field("none", description="transcripts sent with the audio (3.3)")
    audio: AudioInputConfig = AudioInputConfig()
    prompts: Path | None = Field(None, description="folder of your own prompts; shipped prompts replace missing files")
    llm: LLMConfig = LLMConfig(model="gpt-audio", structured="never")

    @field_validator("tasks")
    @classmethod
    def _once(cls, tasks: tuple[str, ...]) -> tuple[str, ...]:
        if len(set(tasks)) < len(tasks):
            raise ValueError("a task is given twice")
        return tasks

    @model_validator(mode="after")
    def _check(self) -> AudioJudgeConfig:
        if self.strategy in ("pair_example", "examples") and self.examples is None:
            raise ValueError(f"strategy: {self.strategy} joins examples; give 'examples'")
        if self.shots is not None and self.examples is None:
            raise ValueError("shots: needs 'examples'")
        if self.samples > 1 and self.llm.temperature == 0:
            raise ValueError("samples: temperature 0 gives equal replies; raise llm.temperature (StyleSet: 1.0)")
        return self
