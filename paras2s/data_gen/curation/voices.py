"""Which voice says a script in which style, and the engines that voices have."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from paras2s.configs.schema.run import CurationConfig, VoiceConfig
from paras2s.data_gen.curation.categories import QueryCategory
from paras2s.data_gen.curation.cost import Spend
from paras2s.data_gen.curation.llm_calls import CurationLLM
from paras2s.data_gen.curation.scheduler import SPLIT_OF_ROLE
from paras2s.data_gen.tts.base import TTS, Line
from paras2s.errors import ConfigError, JudgeError
from paras2s.types import Role, Script

# Styles that are the speaker's, and the kinds of voice that have them; every other style is delivery, by any adult.
KINDS_OF_STYLE: dict[str, tuple[str, ...]] = {"child": ("child",), "male": ("male",), "female": ("female",)}
ADULTS = ("male", "female")
OPTIONS: dict[str, set[str]] = {
    "openai": {"voice"},
    "cosyvoice": {"clip", "text", "sample_rate_hz"},
    "piper": {"f0_factor", "formant_warp"},
    "espeak": {"voice", "pitch"},
}
MANNERS_PER_STYLE = 4


def seed_of(*parts: object) -> int:
    """A seed from names."""
    return int.from_bytes(hashlib.sha256(repr(parts).encode()).digest()[:4], "big")


@dataclass
class Engines:
    """Engines by name, made when a voice first needs one."""

    config: CurationConfig
    spend: Spend = field(default_factory=Spend)
    _made: dict[str, TTS] = field(default_factory=dict)

    def of(self, voice: VoiceConfig) -> TTS:
        """The engine of a voice."""
        if voice.engine not in self._made:
            self._made[voice.engine] = self._make(voice.engine)
        return self._made[voice.engine]

    def _make(self, name: str) -> TTS:
        from paras2s.data_gen.tts.local import EspeakTTS, PiperTTS
        from paras2s.data_gen.tts.remote import CosyVoiceTTS, OpenAITTS

        if name == "openai":
            return OpenAITTS(self.config.openai)
        if name == "cosyvoice":
            return CosyVoiceTTS(self.config.cosyvoice)
        return PiperTTS(self.config.cache_dir) if name == "piper" else EspeakTTS()


def engine_of(config: CurationConfig, categories: Mapping[str, QueryCategory], category: str) -> str:
    """The engine that speaks a category; of a corpus without sound, the one that is told in words how to speak."""
    own = categories[category].engine if category in categories else "openai"
    return config.speak_with or own


def voices_for(config: CurationConfig, engine: str, split: str, style: str) -> list[VoiceConfig]:
    """Voices of an engine and a split that can have this style."""
    kinds = KINDS_OF_STYLE.get(style, ADULTS)
    return [one for one in config.voices if (one.engine, one.split) == (engine, split) and one.kind in kinds]


def check_voices(config: CurationConfig, categories: Mapping[str, QueryCategory]) -> None:
    """Refuse a config that could not speak what it asks for, before anything is paid.

    Raises:
        ConfigError: a style has no voice in some split, a voice stands twice, or a voice to copy has no clip.
    """
    names = [voice.name for voice in config.voices]
    if len(set(names)) < len(names):
        raise ConfigError(f"voices: {max(names, key=names.count)!r} stands twice; a voice belongs to one split")
    owner: dict[tuple[str, str], VoiceConfig] = {}
    for voice in config.voices:
        # Two names for one sound would put a speaker on both sides of the split.
        twin = owner.setdefault((voice.engine, repr(sorted(voice.options.items()))), voice)
        if twin.split != voice.split:
            raise ConfigError(f"voices: {twin.name} and {voice.name} are one voice in two splits")
    for voice in (*config.voices, config.agent):
        if strange := sorted(set(voice.options) - OPTIONS[voice.engine]):
            raise ConfigError(f"voices: {voice.name}: {voice.engine} has no option {strange[0]!r}")
        if voice.engine == "cosyvoice" and not {"clip", "text"} <= voice.options.keys():
            raise ConfigError(f"voices: {voice.name}: cosyvoice copies a voice; give options clip and text")
    if config.agent.engine in ("piper", "espeak") and not config.agent_tones:
        raise ConfigError(f"agent_tones: {config.agent.engine} knows few tones; name those that answers may have")
    if "styletalk" in config.corpora:
        engine = engine_of(config, categories, "styletalk")
        for split in ("train", "test"):
            if not voices_for(config, engine, split, "neutral"):
                raise ConfigError(f"voices: styletalk has no sound of its own, and no {engine} voice for {split}")
    splits = sorted({SPLIT_OF_ROLE[role] for role, count in config.contrasts.items() if count})
    for name in config.categories:
        category = categories[name]
        for split in splits:
            if not category.topics.get(split):
                raise ConfigError(f"categories: {name} has no topics for {split}, and contrasts of it are asked for")
            for style in {style for pair in category.styles for style in pair}:
                engine = engine_of(config, categories, name)
                if not voices_for(config, engine, split, style):
                    kinds = " or ".join(KINDS_OF_STYLE.get(style, ADULTS))
                    raise ConfigError(f"voices: {name} needs a {kinds} voice of engine {engine} for {split}")


def pick_voices(config: CurationConfig, engine: str, script: Script) -> dict[str, VoiceConfig]:
    """A voice for each style that is spoken; where both can have the same one, they have it: only delivery differs."""
    rng = np.random.default_rng([config.seed, seed_of(script.id)])
    spoken = script.styles[: script.spoken_styles]
    shared = [v for v in voices_for(config, engine, script.split, spoken[0]) if _fits_all(v, spoken)]
    if shared:
        return dict.fromkeys(spoken, shared[int(rng.integers(len(shared)))])
    options = {style: voices_for(config, engine, script.split, style) for style in spoken}
    return {style: found[int(rng.integers(len(found)))] for style, found in options.items()}


def _fits_all(voice: VoiceConfig, styles: Sequence[str]) -> bool:
    # Age and gender are heard in who speaks, so their two styles are two people.
    delivery = all(style not in KINDS_OF_STYLE and style != "adult" for style in styles)
    return delivery and all(voice.kind in KINDS_OF_STYLE.get(style, ADULTS) for style in styles)


def describe_styles(asker: CurationLLM, styles: Sequence[str]) -> dict[str, list[str]]:
    """Instructions for a synthesiser that is told in words how to speak, several a style (ParaS2S, section 3.1, step 3).

    Raises:
        JudgeError: none could be had for a style; without them all styles would sound alike.
    """
    plain = {"count": str(MANNERS_PER_STYLE)}
    prompt = asker.prompt("write_system", "manner")
    found = asker.write("manners", [(prompt, plain | {"style": style}) for style in styles], MANNERS_PER_STYLE)
    manners = {}
    for style, one in zip(styles, found, strict=True):
        if isinstance(one, JudgeError):
            raise JudgeError(f"style {style!r}: no instruction for the synthesiser ({one}); run again")
        manners[style] = list(one.items)
    return manners


def query_line(config: CurationConfig, script: Script, style: str, voice: VoiceConfig, manners: Mapping[str, Any]) -> Line:
    """The line of one query."""
    told = manners.get(style, [""]) if voice.engine == "openai" else [""]
    number = seed_of(config.seed, script.id, style)
    return Line(script.text, voice, style, told[number % len(told)], number % 1000)


def query_name(role: Role, script_id: str, style: str) -> str:
    """Names a query; prompts for RL have no labels, and their name must not tell them either."""
    plain = f"{script_id}-{style}"
    return f"rl-{seed_of(plain):08x}{seed_of(plain, 1):08x}" if role == "rl" else plain
