"""Voices of a curation: the engines they need, and which voice speaks a script in which style."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from paras2s.configs.schema.curation import CurationConfig, SynthesisVoice, VoiceConfig
from paras2s.data_gen.candidates import prompt_name
from paras2s.data_gen.curation.categories import QueryCategory
from paras2s.data_gen.curation.cost import Spend
from paras2s.data_gen.curation.llm_calls import CurationLLM
from paras2s.data_gen.curation.scheduler import SPLIT_OF_ROLE
from paras2s.data_gen.tts.base import TTS, Line
from paras2s.data_gen.tts.engines import open_engine, unknown_option
from paras2s.errors import ConfigError, JudgeError
from paras2s.types import Role, Script
from paras2s.utils.seeds import seed_of

# Styles that belong to the speaker, and the kinds of voice that have them; any adult can speak every other style.
KINDS_OF_STYLE: dict[str, tuple[str, ...]] = {"child": ("child",), "male": ("male",), "female": ("female",)}
ADULTS = ("male", "female")
MANNERS_PER_STYLE = 4


@dataclass
class Engines:
    """TTS engines by name, opened when a voice first needs one."""

    config: CurationConfig
    spend: Spend = field(default_factory=Spend)
    _open: dict[str, TTS] = field(default_factory=dict)

    def of(self, voice: SynthesisVoice) -> TTS:
        """Return the engine of a voice."""
        if voice.engine not in self._open:
            endpoint = self.config.cosyvoice if voice.engine == "cosyvoice" else self.config.openai
            self._open[voice.engine] = open_engine(voice.engine, self.config.cache_dir, endpoint)
        return self._open[voice.engine]


def engine_of(config: CurationConfig, categories: Mapping[str, QueryCategory], category: str) -> str:
    """Return the engine of a category; for a corpus without audio, the engine that takes instructions in words."""
    own = categories[category].engine if category in categories else "openai"
    return config.speak_with or own


def voices_for(config: CurationConfig, engine: str, split: str, style: str) -> list[VoiceConfig]:
    """Return the voices of an engine and a split that can speak this style."""
    kinds = KINDS_OF_STYLE.get(style, ADULTS)
    return [voice for voice in config.voices if (voice.engine, voice.split) == (engine, split) and voice.kind in kinds]


def check_voices(config: CurationConfig, categories: Mapping[str, QueryCategory]) -> None:
    """Refuse voices that cannot speak the categories, before anything is paid. Raises ConfigError: names the style or voice."""
    names = [voice.name for voice in config.voices]
    if len(set(names)) < len(names):
        raise ConfigError(f"voices: {max(names, key=names.count)!r} is given twice; a voice belongs to one split")
    owner: dict[tuple[str, str], VoiceConfig] = {}
    for voice in config.voices:
        # Two names for one sound would put a speaker on both sides of the split.
        twin = owner.setdefault((voice.engine, repr(sorted(voice.options.items()))), voice)
        if twin.split != voice.split:
            raise ConfigError(f"voices: {twin.name} and {voice.name} are one voice in two splits")
    for voice in (*config.voices, config.agent):
        if strange := unknown_option(voice.engine, voice.options):
            raise ConfigError(f"voices: {voice.name}: {voice.engine} has no option {strange!r}")
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
                raise ConfigError(f"categories: {name} has no topics for {split}, but contrasts of it are requested")
            for style in {style for pair in category.styles for style in pair}:
                engine = engine_of(config, categories, name)
                if not voices_for(config, engine, split, style):
                    kinds = " or ".join(KINDS_OF_STYLE.get(style, ADULTS))
                    raise ConfigError(f"voices: {name} needs a {kinds} voice of engine {engine} for {split}")


def pick_voices(config: CurationConfig, engine: str, script: Script) -> dict[str, VoiceConfig]:
    """Pick a voice for each spoken style; one voice for both where it can speak both, so that only delivery differs."""
    rng = np.random.default_rng([config.seed, seed_of(script.id)])
    spoken = script.styles[: script.spoken_styles]
    shared = [voice for voice in voices_for(config, engine, script.split, spoken[0]) if _fits_all(voice, spoken)]
    if shared:
        return dict.fromkeys(spoken, shared[int(rng.integers(len(shared)))])
    options = {style: voices_for(config, engine, script.split, style) for style in spoken}
    return {style: voices[int(rng.integers(len(voices)))] for style, voices in options.items()}


def _fits_all(voice: VoiceConfig, styles: Sequence[str]) -> bool:
    # Age and gender belong to the speaker, so their two styles are two voices.
    delivery = all(style not in KINDS_OF_STYLE and style != "adult" for style in styles)
    return delivery and all(voice.kind in KINDS_OF_STYLE.get(style, ADULTS) for style in styles)


def describe_styles(llm: CurationLLM, styles: Sequence[str]) -> dict[str, list[str]]:
    """Let the writer describe styles for a TTS that takes words (ParaS2S, section 3.1, step 3). Raises JudgeError: no text."""
    plain = {"count": str(MANNERS_PER_STYLE)}
    prompt = llm.prompt("write_system", "manner")
    lists = llm.write_lists("manners", [(prompt, plain | {"style": style}) for style in styles], MANNERS_PER_STYLE)
    manners = {}
    for style, reply in zip(styles, lists, strict=True):
        if isinstance(reply, JudgeError):
            raise JudgeError(f"style {style!r}: no instruction for the synthesiser ({reply}); run again")
        manners[style] = list(reply.items)
    return manners


def query_line(config: CurationConfig, script: Script, style: str, voice: VoiceConfig, manners: Mapping[str, Any]) -> Line:
    """Return the TTS line of a query."""
    instructions = manners.get(style, [""]) if voice.engine == "openai" else [""]
    number = seed_of(config.seed, script.id, style)
    return Line(script.text, voice, style, instructions[number % len(instructions)], number % 1000)


def query_name(role: Role, script_id: str, style: str) -> str:
    """Return the name of a query; prompts for RL have no labels, and their name must not reveal them either."""
    plain = f"{script_id}-{style}"
    return prompt_name(plain, 2) if role == "rl" else plain
