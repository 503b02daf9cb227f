"""Opens a TTS engine by name."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

from paras2s.configs.schema.endpoints import EndpointConfig
from paras2s.data_gen.tts.base import TTS

Engine = Literal["openai", "cosyvoice", "piper", "espeak"]
# The options of a voice that each engine knows.
OPTIONS: dict[str, set[str]] = {
    "openai": {"voice"},
    "cosyvoice": {"clip", "text", "sample_rate_hz"},
    "piper": {"f0_factor", "formant_warp"},
    "espeak": {"voice", "pitch"},
}


def open_engine(name: Engine, cache: Path, endpoint: EndpointConfig) -> TTS:
    """Opens an engine; those on this machine use `cache`, the others the endpoint."""
    from paras2s.data_gen.tts.local import EspeakTTS, PiperTTS
    from paras2s.data_gen.tts.remote import CosyVoiceTTS, OpenAITTS

    if name == "openai":
        return OpenAITTS(endpoint)
    if name == "cosyvoice":
        return CosyVoiceTTS(endpoint)
    return PiperTTS(cache) if name == "piper" else EspeakTTS()
