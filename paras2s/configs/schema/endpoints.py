"""Settings of OpenAI-compatible endpoints and of the extractors of a blueprint."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Literal

from pydantic import Field, field_validator

from paras2s.configs.schema.base import Section, load_section

# Fields of a request that are set already; several replies to one request, or a streamed one, could not be read.
OWN_FIELDS = frozenset(
    ("model", "messages", "temperature", "top_p", "seed", "max_completion_tokens", "reasoning_effort", "response_format")
) | {"logprobs", "n", "stream"}


class ExtractorConfig(Section):
    """One extractor of the blueprint, by name, with its own options (a model, a batch size)."""

    name: str
    options: dict[str, str | int | float] = Field({})


class EndpointConfig(Section):
    """An OpenAI-compatible endpoint and its limits. The key itself is only ever in the environment."""

    base_url: str = Field(
        "https://api.openai.com/v1",
        pattern=r"^https?://[^@?]+$",
        description="address of the endpoint: OpenAI, Gemini's compatible endpoint, a vLLM server ...",
    )
    model: str = Field("gpt-4o", min_length=1)
    api_key_env: str = Field(
        "OPENAI_API_KEY",
        pattern=r"^[A-Za-z_]\w{0,40}$",
        description="environment variable with the key; unset: no key is sent",
    )
    concurrency: int = Field(16, ge=1, description="calls at once")
    requests_per_minute: float | None = Field(None, gt=0)
    timeout_s: float = Field(120.0, gt=0)
    max_attempts: int = Field(8, ge=1, description="attempts of one call, the first included")
    backoff_s: float = Field(0.5, ge=0, description="longest wait before the second attempt; doubles each time, up to a minute")
    budget_usd: float | None = Field(
        None, gt=0, description="budget of one command, or of one worker's reward; calls that could exceed it are not made"
    )
    prices: Path | None = Field(None, description="price table (YAML) in place of the shipped one")


class LLMConfig(EndpointConfig):
    """A language model at an endpoint."""

    temperature: float | None = Field(0.0, ge=0, description="sampling temperature; null: not sent, for models that refuse it")
    top_p: float | None = Field(None, gt=0, le=1, description="nucleus sampling; null: not sent")
    max_output_tokens: int = Field(2048, ge=1, description="longest reply, a thinking model's thoughts included")
    reasoning_effort: str | None = Field(
        None, min_length=1, description="effort of a thinking model: none, minimal, low, medium, high; null: the model's own"
    )
    extra_body: dict[str, Any] = Field({}, description="more fields of each request, by the endpoint's manual")
    seed: int | None = None
    structured: Literal["auto", "never"] = Field("auto", description="auto: ask for a JSON schema until the endpoint refuses")

    @field_validator("extra_body")
    @classmethod
    def _no_second_way(cls, extra_body: dict[str, Any]) -> dict[str, Any]:
        if taken := sorted(OWN_FIELDS & set(extra_body)):
            raise ValueError(f"{taken[0]} is set by a key of its own, or by the judge")
        return extra_body


class AudioChatConfig(EndpointConfig):
    """A speech-to-speech model at an endpoint, to be benched."""

    model: str = Field("gpt-audio", min_length=1)
    voice: str = "alloy"
    system: str = Field("", description="system prompt; empty: none is sent")
    temperature: float = Field(1.0, ge=0)


def load_audio_chat(path: Path) -> AudioChatConfig:
    """Load the settings of a model to bench from YAML.

    Raises:
        ConfigError: missing file, bad YAML, unknown key, bad value.
    """
    return load_section(path, None, AudioChatConfig)
