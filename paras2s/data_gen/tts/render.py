"""Rendering of takes into a cache, keyed by everything that shapes them; Piper and the vocoder run on all cores."""

from __future__ import annotations

import functools
import hashlib
import json
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from paras2s.audio.clip import Clip, encode_clip, read_clip
from paras2s.audio.prosody import describe
from paras2s.audio.synthesis import VERSION as SPEECH_VERSION
from paras2s.audio.synthesis import Speaker, Style, analyse, speak_plain, synthesise
from paras2s.policy.embedded.codec2 import Codec2Pairs
from paras2s.policy.embedded.frontend import VERSION as FEATURES_VERSION
from paras2s.policy.embedded.frontend import ClipFeatures, extract_features
from paras2s.utils.io import write_bytes
from paras2s.utils.process_pool import map_chunks

CHUNK_TEXTS = 48
CODED_VERSION = "first-codes/1"


@dataclass(frozen=True)
class Take:
    """A rendering to make. `coded`: passed through the codec, as a policy's own answers are."""

    text: str
    speaker: Speaker
    style: Style
    seed: int
    coded: bool = False

    @property
    def key(self) -> str:
        """Cache key of the take."""
        version = f"{SPEECH_VERSION}+{CODED_VERSION}" if self.coded else SPEECH_VERSION
        shaped = json.dumps([version, FEATURES_VERSION, asdict(self)], sort_keys=True)
        return hashlib.sha256(shaped.encode()).hexdigest()[:32]


@dataclass(frozen=True)
class Rendered:
    """A rendered take: `wav` bytes (16 kHz, or 8 kHz if coded) and its features."""

    wav: bytes
    features: ClipFeatures

    @property
    def clip(self) -> Clip:
        """The decoded clip."""
        return read_clip(self.wav)


def _paths(cache: Path, take: Take) -> tuple[Path, Path]:
    base = cache / "clips" / take.key[:2] / take.key
    return base.with_suffix(".wav"), base.with_suffix(".npz")


def _render_chunk(cache: Path, takes_by_text: Sequence[tuple[str, list[Take]]]) -> list[int]:
    """Render every missing take of some texts, in one worker. Features are written last, to mark a take as complete."""
    codec = Codec2Pairs()
    plain = speak_plain([text for text, _ in takes_by_text])
    for (_, takes), clip in zip(takes_by_text, plain, strict=True):
        voice = analyse(clip)
        for take in takes:
            spoken = synthesise(voice, take.speaker, take.style, take.seed)
            wav, features = _finish(spoken, take.coded, codec)
            wav_path, features_path = _paths(cache, take)
            write_bytes(wav_path, wav)
            write_bytes(features_path, features.to_bytes())
    return [len(takes) for _, takes in takes_by_text]


def _finish(spoken: Clip, coded: bool, codec: Codec2Pairs) -> tuple[bytes, ClipFeatures]:
    """Return bytes and features of a take. A coded one keeps its first codes: coding decoded speech again distorts it."""
    if not coded:
        wav = encode_clip(spoken)
        return wav, extract_features(read_clip(wav), codec)
    codes = codec.encode(spoken)
    wav = encode_clip(codec.decode(codes))
    return wav, ClipFeatures(codes, *describe(read_clip(wav)))


def render(takes: Sequence[Take], cache: Path, on_progress: Callable[[int, int], None] | None = None) -> list[Rendered]:
    """Render what the cache lacks and return all takes in order. Raises DataError: Piper failed. StorageError: the cache."""
    missing: dict[str, list[Take]] = {}
    for take in dict.fromkeys(takes):
        if not _paths(cache, take)[1].is_file():
            missing.setdefault(take.text, []).append(take)
    # Counted in texts: a text's takes are made together, from one reading by Piper.
    map_chunks(functools.partial(_render_chunk, cache), list(missing.items()), CHUNK_TEXTS, on_progress)
    rendered = []
    for take in takes:
        wav_path, features_path = _paths(cache, take)
        features = ClipFeatures.from_bytes(features_path.read_bytes(), str(features_path))
        rendered.append(Rendered(wav_path.read_bytes(), features))
    return rendered
