"""Open a TTS engine by name."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from paras2s.configs.schema.curation import TTS_GROUP
from paras2s.configs.schema.endpoints import EndpointConfig
from paras2s.data_gen.tts.base import TTS
from paras2s.utils.plugins import find_part

ENGINES = {
    "openai": "paras2s.data_gen.tts.remote:OpenAITTS",
    "cosyvoice": "paras2s.data_gen.tts.remote:CosyVoiceTTS",
    "piper": "paras2s.data_gen.tts.local:PiperTTS",
    "espeak": "paras2s.data_gen.tts.local:EspeakTTS",
}


def open_engine(name: str, cache: Path, endpoint: EndpointConfig) -> TTS:
    """Open an engine: `cache` is for a local one, the endpoint for others. Raises ConfigError: unknown, or not installed."""
    engine: TTS = find_part("TTS engine", TTS_GROUP, name, ENGINES)(endpoint=endpoint, cache=cache)
    return engine


def unknown_option(name: str, options: Mapping[str, Any]) -> str | None:
    """Return an option of a voice that the engine does not have, or None; an engine without `options` takes any."""
    known = getattr(find_part("TTS engine", TTS_GROUP, name, ENGINES), "options", None)
    return None if known is None else next(iter(sorted(set(options) - set(known))), None)
