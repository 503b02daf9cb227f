"""Settings of the curation pipeline: queries and demonstrations at scale (ParaS2S, section 3.1)."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, Field

from paras2s.configs.schema.base import MAX_SEED, Section, load_section
from paras2s.configs.schema.endpoints import EndpointConfig, ExtractorConfig, LLMConfig
from paras2s.utils.plugins import require_part

# TTS engines of `data_gen/tts/engines.py`; another one is an entry point of the group, or `module:Class`.
TTS_ENGINES = ("openai", "cosyvoice", "piper", "espeak")
TTS_GROUP = "paras2s.tts"


def _known_engine(name: str) -> str:
    return require_part("TTS engine", TTS_GROUP, name, TTS_ENGINES)


Engine = Annotated[str, AfterValidator(_known_engine)]


class SynthesisVoice(Section):
    """A voice of a TTS engine. Its options depend on the engine: see `data_gen/tts`."""

    name: str = Field(pattern=r"^[\w.-]{1,40}$")
    engine: Engine
    options: dict[str, str | int | float] = Field(
        {}, description="options of the engine; openai: voice; cosyvoice: clip and text; espeak: voice ..."
    )


class VoiceConfig(SynthesisVoice):
    """A voice of the curation pipeline."""

    kind: Literal["male", "female", "child"]
    split: Literal["train", "validation", "test"] = "train"


class HumanCheckConfig(Section):
    """People who check the clips that passed the filters (ParaS2S, section 3.1, step 5)."""

    roles: tuple[Literal["demonstration", "preference", "validation", "test"], ...] = Field(
        ("test",), description="roles whose queries are checked; demonstration: answers as well"
    )
    annotators: int = Field(3, ge=1, description="annotators that an item needs; the majority decides")
    required: bool = Field(False, description="true: leave out items that too few people have checked")


class CurationConfig(Section):
    """Queries and demonstrations at scale: an LLM writes and tests, a TTS speaks, filters choose (ParaS2S, section 3.1)."""

    kind: Literal["curation"]
    name: str
    folder: Path = Path("runs/curated")
    cache_dir: Path = Path("runs/cache")
    seed: int = Field(0, ge=0, le=MAX_SEED)
    categories: tuple[str, ...] = ("emotion", "sarcasm", "age", "gender")
    category_file: Path | None = Field(None, description="YAML with categories of your own, beside or in place of the shipped")
    prompts: Path | None = Field(None, description="folder of your own prompts; shipped prompts replace missing files")
    contrasts: dict[Literal["demonstration", "preference", "rl", "validation", "test"], int] = Field(
        {"demonstration": 1250, "preference": 1250, "rl": 12_500, "validation": 50, "test": 300},
        description="contrasts per category; held out two queries each, else one or two (ParaS2S: 10k, 10k, 100k, 300 x 4)",
    )
    writer: LLMConfig = Field(
        LLMConfig(model="gpt-4.1", temperature=1.0, max_output_tokens=8192, concurrency=64),
        description="LLM that writes the lists",
    )
    tester: LLMConfig = Field(
        LLMConfig(model="gpt-4.1", concurrency=64, max_output_tokens=1024), description="LLM of tests and answers"
    )
    list_size: int = Field(100, ge=1, le=200, description="sentences requested in one list")
    max_lists: int = Field(40, ge=1, description="most lists requested for one topic and pair of styles")
    texts_at_once: int = Field(2048, ge=1, description="sentences in memory; their tests run together")
    max_failed_share: float = Field(
        0.5, gt=0, le=1, description="largest share of failed calls a stage and round; more stop the run"
    )
    near_duplicate: float = Field(90.0, gt=0, le=100, description="rapidfuzz's token sort ratio of equal sentences")
    speak_with: Engine | None = Field(None, description="engine for everything, in place of each category's own")
    voices: tuple[VoiceConfig, ...] = ()
    agent: VoiceConfig = VoiceConfig(name="agent", engine="openai", kind="female", options={"voice": "coral"})
    agent_tones: tuple[str, ...] = Field((), description="allowed tones of answers; (): described freely")
    openai: EndpointConfig = EndpointConfig(model="gpt-4o-mini-tts", concurrency=64)
    cosyvoice: EndpointConfig = EndpointConfig(base_url="http://127.0.0.1:50000", model="CosyVoice2-0.5B", concurrency=4)
    answer_takes: int = Field(10, ge=1, description="takes of an answer; the take with the fewest word errors is kept")
    words: ExtractorConfig = ExtractorConfig(name="words")
    max_word_error_rate: float = Field(0.1, ge=0, le=1)
    style_check: Literal["none", "tone", "emotion"] = Field(
        "none", description="tone: a classifier fitted by `paras2s data demo`; emotion: emotion2vec (extra trace)"
    )
    tone: Path | None = Field(None, description="file of the classifier, for style_check: tone")
    min_style_probability: float = Field(
        0.5, ge=0, le=1, description="least probability of the right style, of a contrast's two"
    )
    corpora: dict[Literal["iemocap", "meld", "styletalk", "dailytalk"], Path] = Field(
        {}, description="folders of corpora of real speech"
    )
    corpus_history: int = Field(
        0, ge=0, description="most turns before a turn of dailytalk that become its query's history; 0: no history"
    )
    min_corpus_words: int = Field(5, ge=1)
    human_check: HumanCheckConfig = HumanCheckConfig()


def load_curation(path: Path, overrides: dict[str, Any] | None = None) -> CurationConfig:
    """Load a curation's settings from YAML with dotted overrides.

    Raises:
        ConfigError: missing file, bad YAML, unknown key, bad value.
    """
    return load_section(path, overrides, CurationConfig)
