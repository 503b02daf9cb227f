"""Sound of every kind that libsndfile decodes, and names that a file may have: measured, or an error of its own."""

from __future__ import annotations

import io
import os
from pathlib import Path

import numpy as np
import pytest
import soundfile

from paras2s.audio.clip import encode_clip, make_clip, read_clip
from paras2s.errors import AudioError

RATE_HZ = 8_000
TONE = (0.3 * np.sin(2 * np.pi * 300 * np.arange(RATE_HZ) / RATE_HZ)).astype(np.float32)
# Telephone formats and Fast Tracker's instruments, in which nothing can be searched; and others of a few bits.
FORMATS = [
    ("WAV", "GSM610"), ("AIFF", "GSM610"), ("W64", "GSM610"), ("AU", "G721_32"), ("AU", "G723_24"), ("AU", "G723_40"),
    ("XI", "DPCM_16"), ("XI", "DPCM_8"), ("WAV", "IMA_ADPCM"), ("WAV", "MS_ADPCM"), ("WAV", "ULAW"), ("AU", "ALAW"),
]  # fmt: skip


@pytest.mark.parametrize(("container", "subtype"), FORMATS)
def test_telephone_formats_are_read_to_their_end(container: str, subtype: str) -> None:
    buffer = io.BytesIO()
    soundfile.write(buffer, TONE, RATE_HZ, format=container, subtype=subtype)
    clip = read_clip(buffer.getvalue())
    # An instrument has a rate of its own. A block is filled to its end.
    samples = clip.samples[: len(TONE)]
    assert 0 <= len(clip.samples) - len(TONE) < 1_024
    assert np.corrcoef(samples, TONE[: len(samples)])[0, 1] > 0.9


def named(folder: bytes, name: bytes) -> Path:
    """Return the path of a file by the bytes of its name."""
    return Path(os.fsdecode(folder + b"/" + name))


@pytest.mark.parametrize("name", [b"b\xfcro.wav", b"\xff\xfe.wav", b"a\nb.wav", b"[red].wav", b" .wav"])
def test_a_clip_may_have_any_name(tmp_path: Path, name: bytes) -> None:
    path = named(os.fsencode(tmp_path), name)
    path.write_bytes(encode_clip(make_clip(TONE[:, None], RATE_HZ, "tone", 10.0)))
    assert len(read_clip(path).samples) == len(TONE)
    path.write_bytes(b"no sound")
    with pytest.raises(AudioError):
        read_clip(path)


@pytest.mark.parametrize("name", ["a\0b.wav", "a" * 300 + ".wav", "\ud83d.wav", ".", ""])
def test_a_name_that_no_file_has_is_an_error_of_its_clip(tmp_path: Path, name: str) -> None:
    with pytest.raises(AudioError):
        read_clip(f"{tmp_path}/{name}")
