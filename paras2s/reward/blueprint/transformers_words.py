"""Extracts the transcript by a Whisper of `transformers`: `openai/whisper-large-v3`, as in TRACE, or any other size."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from paras2s.audio import asr
from paras2s.audio.asr import Transcript, Word
from paras2s.audio.clip import Clip
from paras2s.errors import AssetError, one_line
from paras2s.reward.blueprint.schema import Fields, is_silent
from paras2s.reward.blueprint.words import WORD_KEYS, word_fields


@dataclass(frozen=True)
class TransformersWordsExtractor:
    """Transcript and rates; it gives no word probabilities, so the fields have no confidence.

    `model` is a folder or a hub name; `batch` clips are transcribed at once, on a GPU if there is one.
    """

    model: str = "openai/whisper-large-v3"
    batch: int = 8
    name = "transformers_words"
    rate_hz = asr.RATE_HZ
    keys = WORD_KEYS

    @property
    def version(self) -> str:
        """Names the model."""
        return f"transformers/{self.model}+rates-2"

    def measure(self, clips: Sequence[Clip]) -> list[Fields]:
        """Words of all clips; silent ones are not shown to the recogniser, which makes words up for them.

        Raises:
            AssetError: the library or the weights are not here.
        """
        audible = [index for index, clip in enumerate(clips) if not is_silent(clip)]
        recognise = _pipeline(self.model)
        sounds = [{"raw": clips[index].samples, "sampling_rate": self.rate_hz} for index in audible]
        options = {"return_timestamps": "word", "batch_size": self.batch}
        # English-only models refuse a language argument.
        speaks = {"language": "english"} if recognise.model.generation_config.is_multilingual else {}
        found = recognise(sounds, generate_kwargs=speaks, **options) if sounds else []
        transcripts = dict(zip(audible, found, strict=True))
        return [
            word_fields(
                _transcript(transcripts[index], clip.duration_s) if index in transcripts else Transcript(()), clip.duration_s
            )
            for index, clip in enumerate(clips)
        ]


def _transcript(found: dict[str, Any], duration_s: float) -> Transcript:
    """Words of one clip; the last one may have no end, and then ends with the clip."""
    words = []
    for chunk in found.get("chunks") or []:
        start_s, end_s = chunk["timestamp"]
        start_s = 0.0 if start_s is None else float(start_s)
        words.append(Word(chunk["text"].strip(), start_s, duration_s if end_s is None else float(end_s), None))
    return Transcript(tuple(words))


@functools.lru_cache(maxsize=1)
def _pipeline(model: str) -> Any:
    try:
        import torch
        from transformers import AutoModelForSpeechSeq2Seq, AutoProcessor, pipeline
    except ImportError as error:
        raise AssetError(f"'transformers_words' needs the package {error.name}; run: pip install 'paras2s[offline]'") from error
    try:
        processor: Any = AutoProcessor.from_pretrained(model)  # type: ignore[no-untyped-call]
        network = AutoModelForSpeechSeq2Seq.from_pretrained(model)
    except (OSError, ValueError) as error:
        raise AssetError(f"{model}: no such Whisper on this machine or hub ({one_line(error)[:200]})") from error
    return pipeline(
        "automatic-speech-recognition",
        model=network,
        tokenizer=processor.tokenizer,
        feature_extractor=processor.feature_extractor,
        device=0 if torch.cuda.is_available() else -1,
    )
