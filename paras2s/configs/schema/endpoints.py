"""Settings of OpenAI-compatible endpoints and of the extractors of a blueprint."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Literal

from pydantic import Field, field_validator, model_validator

from paras2s.configs.schema.base import Section, load_section
from paras2s.utils.addresses import endpoint_url, is_private, llm_url

# Fields of a request that are set already; several replies to one request, or a streamed one, could not be read.
OWN_FIELDS = frozenset(
    ("model", "messages", "temperature", "top_p", "seed", "max_completion_tokens", "reasoning_effort", "response_format")
) | {"max_tokens", "logprobs", "top_logprobs", "n", "stream"}
LimitField = Literal["max_tokens", "max_completion_tokens"]
# Defaults of a server on this machine or in a private network: it serves one or two calls at once, and slowly.
PRIVATE_CONCURRENCY, PRIVATE_TIMEOUT_S = 2, 900.0
# The token that a reward server asks for, and that its clients send.
REWARD_TOKEN = "PARAS2S_REWARD_TOKEN"


class ExtractorConfig(Section):
    """One extractor of the blueprint, by name, with its own options (a model, a batch size)."""

    name: str
    options: dict[str, str | int | float] = Field({})


def _with_private_defaults(values: Any, key: str) -> Any:
    """Return settings with the defaults of a private address, if theirs is one."""
    url = values.get(key) if isinstance(values, dict) else None
    if not isinstance(url, str) or not is_private(url if "://" in url else f"http://{url}"):
        return values
    return {"concurrency": PRIVATE_CONCURRENCY, "timeout_s": PRIVATE_TIMEOUT_S, **values}


class EndpointConfig(Section):
    """An OpenAI-compatible endpoint and its limits. The key itself is only ever in the environment."""

    base_url: str = Field(
        "https://api.openai.com/v1",
        description="address of the endpoint: OpenAI, Gemini's compatible endpoint, a vLLM server ...",
    )
    model: str = Field("gpt-4o", min_length=1)
    api_key_env: str | None = Field(
        "OPENAI_API_KEY",
        pattern=r"^[A-Za-z_]\w{0,40}$",
        description="environment variable with the key; null, or unset for a private address: no key is sent",
    )
    concurrency: int = Field(16, ge=1, description="calls at once; at a private address the default is 2")
    requests_per_minute: float | None = Field(None, gt=0)
    timeout_s: float = Field(120.0, gt=0, description="longest wait for a reply; at a private address the default is 900")
    max_attempts: int = Field(8, ge=1, description="attempts of one call, the first included")
    backoff_s: float = Field(0.5, ge=0, description="longest wait before the second attempt; doubles each time, up to a minute")
    budget_usd: float | None = Field(
        None, gt=0, description="budget of one command, or of one worker's reward; calls that could exceed it are not made"
    )
    prices: Path | None = Field(None, description="price table (YAML) in place of the shipped one")

    @model_validator(mode="before")
    @classmethod
    def _private_defaults(cls, values: Any) -> Any:
        return _with_private_defaults(values, "base_url")

    @field_validator("base_url")
    @classmethod
    def _usual_form(cls, base_url: str) -> str:
        return endpoint_url(base_url)


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
    limit_field: LimitField | None = Field(
        None, description="field of max_output_tokens; null: max_tokens, or max_completion_tokens for OpenAI and Azure"
    )

    @field_validator("base_url")
    @classmethod
    def _with_path(cls, base_url: str) -> str:
        return llm_url(base_url)

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


class HttpRewardConfig(EndpointConfig):
    """A reward server that speaks our protocol (docs/reward-protocol.schema.json)."""

    base_url: str = Field(alias="url", description="address of the server, without /score")
    model: str = Field("reward", min_length=1, description="name of the server in messages")
    api_key_env: str | None = Field(
        REWARD_TOKEN,
        pattern=r"^[A-Za-z_]\w{0,40}$",
        description="environment variable with the server's token; null: none is sent",
    )
    max_attempts: int = Field(3, ge=1, description="attempts of one call, the first included")
    batch_size: int = Field(16, ge=1, description="answers of one call; a group is never divided")
    audio: Literal["wav", "path", "none"] = Field(
        "wav",
        description="clips as WAV; path: the question's as its path, for a server that shares the disk; none: words alone",
    )
    usd_per_answer: float | None = Field(None, gt=0, description="the most that the server charges for an answer")
    judges: bool = Field(True, description="false: it measures (loudness, length) and is not audited as a judge")

    @model_validator(mode="before")
    @classmethod
    def _private_defaults(cls, values: Any) -> Any:
        return _with_private_defaults(values, "url")

    @field_validator("base_url")
    @classmethod
    def _usual_form(cls, base_url: str) -> str:
        return endpoint_url(base_url).rstrip("/").removesuffix("/score")

    @model_validator(mode="after")
    def _budget_has_a_price(self) -> HttpRewardConfig:
        if self.budget_usd is not None and self.usd_per_answer is None:
            raise ValueError("budget_usd needs usd_per_answer, the most that the server charges for an answer")
        return self


def load_audio_chat(path: Path) -> AudioChatConfig:
    """Load the settings of a model to bench from YAML.

    Raises:
        ConfigError: missing file, bad YAML, unknown key, bad value.
    """
    return load_section(path, None, AudioChatConfig)
