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
    max_output_tokens: int = Field(2048, ge=1, description="of a reply, a thinking model's thoughts included")
    reasoning_effort: str | None = Field(
        None, min_length=1, description="of a thinking model: none, minimal, low, medium, high; null: not sent, the model's own"
    )
    extra_body: dict[str, Any] = Field({}, description="more fields of each request, as the endpoint's own manual has them")
    seed: int | None = None
    structured: Literal["auto", "never"] = Field("auto", description="auto: ask for a JSON schema until the endpoint refuses")

    @field_validator("extra_body")
    @classmethod
    def _no_second_way(cls, extra_body: dict[str, Any]) -> dict[str, Any]:
        if taken := sorted(OWN_FIELDS & set(extra_body)):
            raise ValueError(f"{taken[0]} is set by a key of its own, or by the judge")
        return extra_body


class AudioChatConfig(EndpointConfig):
    """A model there that hears and speaks, to be benched."""

    model: str = Field("gpt-audio", min_length=1)
    voice: str = "alloy"
    system: str = Field("", description="system prompt; empty: none is sent")
    temperature: float = Field(1.0, ge=0)


def load_audio_chat(path: Path) -> AudioChatConfig:
    """The settings of a model to be benched, likewise.

    Raises:
        ConfigError: missing file, bad YAML, unknown key, bad value.
    """
    return load_section(path, None, AudioChatConfig)
