"""Extracts the transcript by a Whisper of `transformers`: `openai/whisper-large-v3`, as in TRACE, or any other size."""

from __future__ import annotations

import functools
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

from paras2s.audio import asr
from paras2s.audio.asr import Transcript, Word
from paras2s.audio.clip import Clip
from paras2s.errors import AssetError
from paras2s.reward.blueprint.schema import Fields, is_silent
from paras2s.reward.blueprint.words import WORD_KEYS, word_fields
from paras2s.utils.io import reading


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
        """Names the model and how it is used."""
        return f"transformers/{self.model}/alone-1+rates-4"

    def measure(self, clips: Sequence[Clip]) -> list[Fields]:
        """Return the words of all clips; silent ones are not shown, as it makes words up for them. Raises AssetError."""
        audible = [index for index, clip in enumerate(clips) if not is_silent(clip)]
        recognise = _pipeline(self.model)
        transcripts: dict[int, Transcript] = {}
        for places, size_s in asr.batches([clips[index].duration_s for index in audible]):
            part = [audible[position] for position in places]
            with _window(recognise, size_s):
                short = self._recognise(recognise, [clips[index] for index in part])
            transcripts |= {n: words for n, words in zip(part, short, strict=True) if not _doubtful(words, clips[n])}
        # Whisper's own window: clips that are too long for a short one, and those that failed a check in it.
        rest = [index for index in audible if index not in transcripts]
        full = self._recognise(recognise, [clips[index] for index in rest])
        transcripts |= {index: replace(transcript, full_window=True) for index, transcript in zip(rest, full, strict=True)}
        return [word_fields(transcripts.get(index, Transcript("")), clip) for index, clip in enumerate(clips)]

    def _recognise(self, recognise: Any, clips: Sequence[Clip]) -> list[Transcript]:
        sounds = [{"raw": clip.samples, "sampling_rate": self.rate_hz} for clip in clips]
        # English-only models refuse a language argument.
        speaks = {"language": "english"} if recognise.model.generation_config.is_multilingual else {}
        options = {"return_timestamps": "word", "batch_size": self.batch}
        results = recognise(sounds, generate_kwargs=speaks, **options) if sounds else []
        return [_transcript(result, clip.duration_s) for result, clip in zip(results, clips, strict=True)]


def _doubtful(transcript: Transcript, clip: Clip) -> bool:
    """Return whether a short window's transcript fails a check; of its limit transformers says nothing."""
    ends_s = max((word.end_s for word in transcript.words), default=0.0)
    return asr.doubt([transcript.text], ends_s, asr.end_of_sound_s(clip.samples), cut_off=False) is not None


@contextmanager
def _window(recognise: Any, size_s: float) -> Iterator[None]:
    """Inside, the pipeline pads to `size_s` and not to 30 s, and the encoder has that many positions."""
    features, encoder, config = recognise.feature_extractor, recognise.model.model.encoder, recognise.model.config
    full, positions = (features.n_samples, features.nb_max_frames, config.max_source_positions), encoder.embed_positions
    features.n_samples = int(size_s * features.sampling_rate)
    features.nb_max_frames = features.n_samples // features.hop_length
    config.max_source_positions = features.nb_max_frames // 2
    encoder.embed_positions = _first_positions(positions, config.max_source_positions)
    try:
        yield
    finally:
        features.n_samples, features.nb_max_frames, config.max_source_positions = full
        encoder.embed_positions = positions


def _first_positions(positions: Any, count: int) -> Any:
    """Return the first `count` of an embedding's rows, as an embedding."""
    import torch

    return torch.nn.Embedding(count, positions.embedding_dim, _weight=positions.weight[:count])


def _transcript(result: dict[str, Any], duration_s: float) -> Transcript:
    """Return the words of one clip; the last one may have no end, and then ends with the clip."""
    words = []
    for chunk in result.get("chunks") or []:
        start_s, end_s = chunk["timestamp"]
        start_s = 0.0 if start_s is None else float(start_s)
        words.append(Word(chunk["text"].strip(), start_s, duration_s if end_s is None else float(end_s), None))
    return Transcript(" ".join(word.text for word in words), tuple(words))


@functools.lru_cache(maxsize=1)
def _pipeline(model: str) -> Any:
    try:
        import torch
        from transformers import AutoModelForSpeechSeq2Seq, AutoProcessor, pipeline
    except ImportError as error:
        raise AssetError(f"'transformers_words' needs the package {error.name}; run: pip install 'paras2s[offline]'") from error
    with reading(model, "no such Whisper on this machine or hub", kind=AssetError):
        processor: Any = AutoProcessor.from_pretrained(model)  # type: ignore[no-untyped-call]
        network = AutoModelForSpeechSeq2Seq.from_pretrained(model)
    return pipeline(
        "automatic-speech-recognition",
        model=network,
        tokenizer=processor.tokenizer,
        feature_extractor=processor.feature_extractor,
        device=0 if torch.cuda.is_available() else -1,
    )
