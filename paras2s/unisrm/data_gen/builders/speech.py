"""The clips of planned pairs: recordings as they are, and synthetic speech by the configured TTS systems, cached."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import soundfile

from paras2s.audio.clip import read_clip
from paras2s.clients.endpoint import load_prices
from paras2s.configs.schema.curation import SynthesisVoice
from paras2s.configs.schema.endpoints import EndpointConfig
from paras2s.configs.schema.unisrm_data import UniSRMDataConfig, UniSRMVoice
from paras2s.data_gen.curation.cost import Spend
from paras2s.data_gen.curation.llm_calls import stop_if_too_many_failed
from paras2s.data_gen.tts.base import TTS, FailedSpeech, Line, SpeechResult, synthesise_all
from paras2s.data_gen.tts.engines import open_engine, unknown_option
from paras2s.data_gen.tts.remote import SLOW_CHARACTERS_PER_S, speech_usd
from paras2s.errors import AudioError, ConfigError, DataError, one_line
from paras2s.unisrm.data_gen.builders.plans import Recording, Source, Synthetic

# Chinese writes a syllable in one character.
SLOW_HAN_PER_S = 2.5


@dataclass(frozen=True)
class SpeechBill:
    """An upper estimate of a TTS system's work; `at_most_usd` is None if no price is known."""

    lines: int
    seconds: float
    at_most_usd: float | None


class Speech:
    """Clips of sources. Engines are opened when they are first needed; `spends` is by voice."""

    def __init__(self, config: UniSRMDataConfig) -> None:
        """Refuse a voice with an option that its engine does not know (ConfigError)."""
        self.cache, self.max_failed_share = config.cache_dir, config.max_failed_share
        self.spends: dict[str, Spend] = {}
        self._engines: dict[str, TTS] = {}
        for voice in config.voices:
            if strange := unknown_option(voice.engine, voice.options):
                raise ConfigError(f"voices: {voice.name}: {voice.engine} has no option {strange!r}")

    def clips(self, sources: Sequence[Source]) -> list[SpeechResult]:
        """Return each source's clip or why there is none; equal lines share one. Raises BudgetError. JudgeError: most fail."""
        results: dict[int, SpeechResult] = {}
        read: dict[Path, SpeechResult] = {}
        by_voice: dict[str, list[int]] = {}
        for index, source in enumerate(sources):
            if isinstance(source, Recording):
                if source.path not in read:
                    read[source.path] = _read(source.path)
                results[index] = read[source.path]
            else:
                by_voice.setdefault(source.voice.name, []).append(index)
        for name, indices in by_voice.items():
            own = [source for index in indices if isinstance(source := sources[index], Synthetic)]
            spend = self.spends.setdefault(name, Spend())
            spoken = synthesise_all(self._engine(own[0].voice), list(map(line_of, own)), self.cache, spend=spend)
            failed = [result.reason for result in spoken if isinstance(result, FailedSpeech)]
            stop_if_too_many_failed(f"speech by {name}", spend, failed[-1:], self.max_failed_share)
            results.update(zip(indices, spoken, strict=True))
        return [results[index] for index in range(len(sources))]

    def _engine(self, voice: UniSRMVoice) -> TTS:
        if voice.name not in self._engines:
            self._engines[voice.name] = open_engine(voice.engine, self.cache, voice.endpoint or EndpointConfig())
        return self._engines[voice.name]


def line_of(source: Synthetic) -> Line:
    """Return the line that a TTS engine synthesises, with the prompt among the voice's options."""
    voice = source.voice
    copied = {} if source.prompt is None else {"clip": str(source.prompt.path), "text": source.prompt.text}
    own = SynthesisVoice(name=voice.name, engine=voice.engine, options={**voice.options, **copied})
    return Line(source.text, own, source.style, source.manner)


def length_s(source: Source) -> float:
    """Return a recording's length by its header, or an estimate of synthetic speech's. Raises DataError: it is unreadable."""
    if isinstance(source, Recording):
        try:
            return float(soundfile.info(source.path).duration)
        except (soundfile.SoundFileError, OSError) as error:
            raise DataError(f"{source.path}: cannot be read ({one_line(error)})") from error
    return len(source.text) / (SLOW_CHARACTERS_PER_S if source.text.isascii() else SLOW_HAN_PER_S)


def estimate_speech(sources: Iterable[Synthetic]) -> Mapping[str, SpeechBill]:
    """Return the work of each voice, equal lines counted once."""
    lines = {
        (source.voice.name, source.text, source.prompt, source.style, source.manner): source for source in sources
    }  # fmt: skip
    bills: dict[str, SpeechBill] = {}
    for line in lines.values():
        voice, seconds = line.voice, length_s(line)
        usd: float | None = 0.0
        if voice.engine == "openai" and voice.endpoint is not None:
            price = load_prices(voice.endpoint.prices).models.get(voice.endpoint.model)
            usd = speech_usd(price, line_of(line), seconds)
        before = bills.get(voice.name, SpeechBill(0, 0.0, 0.0))
        total = None if usd is None or before.at_most_usd is None else before.at_most_usd + usd
        bills[voice.name] = SpeechBill(before.lines + 1, before.seconds + seconds, total)
    return bills


def _read(path: Path) -> SpeechResult:
    try:
        return read_clip(path)
    except AudioError:
        return FailedSpeech("a recording cannot be read")
