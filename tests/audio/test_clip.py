"""Covers reading and writing clips: what is refused, with one clear line that names the file, and what is accepted.

Not covered: every format libsndfile knows, and a cut in those whose header has no length.
"""

import io
import struct
from pathlib import Path

import numpy as np
import pytest
import soundfile

from paras2s.audio.clip import (
    Clip,
    _wav_sizes,
    encode_clip,
    make_clip,
    mend_wav,
    read_clip,
    read_written_clip,
    write_clip,
)
from paras2s.errors import AudioError


def wav(samples: np.ndarray, rate_hz: int = 16_000) -> bytes:
    buffer = io.BytesIO()
    soundfile.write(buffer, samples, rate_hz, format="WAV", subtype="FLOAT")
    return buffer.getvalue()


def tone(duration_s: float = 0.5, rate_hz: int = 16_000, level: float = 0.5) -> np.ndarray:
    return (level * np.sin(2 * np.pi * 440 * np.arange(int(duration_s * rate_hz)) / rate_hz)).astype(np.float32)


NOISE = 0.1 * np.random.default_rng(0).standard_normal(16_000).astype(np.float32)
BAD = {
    "zero bytes": (b"", "cannot be decoded"),
    "no samples": (wav(np.zeros(0)), "too short"),
    "one sample": (wav(np.zeros(1)), "too short"),
    "49 ms": (wav(tone(0.049)), "too short"),
    "121 s": (wav(np.zeros(8 * 121), rate_hz=8), "too long"),
    "NaN": (wav(np.append(tone(), np.nan)), "NaN"),
    "infinite": (wav(np.append(tone(), np.inf)), "infinite"),
    "on another scale": (wav(tone(level=32_767.0)), "samples reach 3.28e.04, where 1 is full scale"),
    "huge": (wav(tone(level=1e30)), "samples reach 1e.30"),
    "cut in the middle": (encode_clip(Clip(tone(), 16_000))[: 44 + 2 * 4000], r"its header says 0.50 s, the file has 0.25 s"),
    "FLAC cut in the middle": (encode_clip(Clip(NOISE, 16_000), "FLAC")[:8000], "cut off|cannot be decoded"),
    "too many samples": (wav(np.zeros((60_000, 1000)), rate_hz=48_000), "1000 channels of 1 s at 48000 Hz are too much"),
    "cut in the header": (wav(tone())[:30], "cannot be decoded"),
    "cut at the first sample": (encode_clip(Clip(tone(), 16_000))[:44], "too short"),
    "text": (b"This is not audio.\n" * 100, "cannot be decoded"),
    "zeros": (bytes(4096), "cannot be decoded"),
}


@pytest.mark.parametrize(("content", "complaint"), BAD.values(), ids=BAD.keys())
def test_bad_file_gives_one_line_that_names_it(tmp_path: Path, content: bytes, complaint: str) -> None:
    path = tmp_path / "answer.wav"
    path.write_bytes(content)
    with pytest.raises(AudioError, match=complaint) as caught:
        read_clip(path)
    assert str(caught.value).startswith(f"{path}: ")
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("name", "complaint"), [("missing.wav", "no such file"), (".", "a folder"), ("/dev/zero", "not a regular file")]
)
def test_what_is_no_file_is_named(tmp_path: Path, name: str, complaint: str) -> None:
    with pytest.raises(AudioError, match=complaint) as caught:
        read_clip(tmp_path / name)
    assert str(tmp_path / name) in str(caught.value)


def test_bytes_are_read_and_refused_like_files() -> None:
    assert read_clip(wav(tone())).duration_s == 0.5
    with pytest.raises(AudioError, match="clip of bytes: cannot be decoded"):
        read_clip(b"nothing")


def test_eight_channels_are_averaged(tmp_path: Path) -> None:
    levels = np.arange(1, 9) / 10
    path = tmp_path / "eight.wav"
    path.write_bytes(wav(np.tile(levels, (8000, 1))))
    clip = read_clip(path)
    assert clip.samples.shape == (8000,)
    np.testing.assert_allclose(clip.samples, 0.45, rtol=1e-6)


def test_a_silent_channel_does_not_halve_the_other(tmp_path: Path) -> None:
    path = tmp_path / "left.wav"
    path.write_bytes(wav(np.tile([0.4, 0.0], (8000, 1))))
    np.testing.assert_allclose(read_clip(path).samples, 0.4, atol=1e-4)
    path.write_bytes(wav(np.zeros((8000, 2))))
    assert not read_clip(path).samples.any()


def test_opposite_channels_are_not_silence_and_all_channels_are_held() -> None:
    left = tone(level=0.4)
    clip = make_clip(np.stack([left, -left], axis=1), 16_000)
    np.testing.assert_array_equal(clip.samples, left)
    assert clip.channels is not None
    np.testing.assert_array_equal(clip.channels[:, 1], -left)
    assert make_clip(left[:, None], 16_000).channels is None
    # Two that differ in phase by a quarter lose half their power, and are averaged.
    right = np.roll(left, 9)
    np.testing.assert_allclose(make_clip(np.stack([left, right], axis=1), 16_000).samples, (left + right) / 2, atol=1e-6)


def test_three_hours_are_refused_by_the_header_before_they_are_in_memory(tmp_path: Path) -> None:
    import tracemalloc

    path = tmp_path / "long.flac"
    with soundfile.SoundFile(path, "w", 8000, 1) as file:
        for _ in range(180):
            file.write(np.zeros(60 * 8000, dtype=np.float32))
    tracemalloc.start()
    with pytest.raises(AudioError, match="10800 s is too long; cut it to at most 600 s"):
        read_clip(path, max_duration_s=600.0)
    peak_bytes = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak_bytes < 2**20


def test_192_khz_is_resampled(tmp_path: Path) -> None:
    path = tmp_path / "high.wav"
    path.write_bytes(wav(tone(0.5, 192_000), 192_000))
    clip = read_clip(path, 16_000)
    assert (clip.sample_rate_hz, clip.samples.dtype) == (16_000, np.float32)
    assert clip.duration_s == pytest.approx(0.5, abs=1e-3)
    np.testing.assert_allclose(clip.samples[1000:-1000], tone()[1000:-1000], atol=2e-3)


def test_a_wav_that_lacks_a_few_samples_is_read() -> None:
    assert len(read_clip(encode_clip(Clip(tone(), 16_000))[:-100]).samples) == 7950


@pytest.mark.parametrize("shape", [(), (2, 100, 2)])
def test_samples_must_be_one_or_two_dimensional(shape: tuple[int, ...]) -> None:
    with pytest.raises(AudioError, match="shape"):
        make_clip(np.zeros(shape), 16_000)


@pytest.mark.parametrize("format", ["WAV", "FLAC", "OGG"])
def test_encoded_clip_is_read_back(format: str) -> None:
    back = read_clip(encode_clip(Clip(tone(), 16_000), format))
    assert back.sample_rate_hz == 16_000
    assert back.duration_s == pytest.approx(0.5, abs=0.01)
    assert np.sqrt((back.samples**2).mean()) == pytest.approx(0.5 / np.sqrt(2), rel=0.02)


def test_peaks_over_full_scale_are_scaled_not_wrapped(tmp_path: Path) -> None:
    path = tmp_path / "deep" / "loud.wav"
    write_clip(path, Clip(tone(level=2.0), 16_000))
    back = read_clip(path)
    np.testing.assert_allclose(back.samples, tone(level=1.0), atol=1e-3)


@pytest.mark.parametrize("format", ["WAV", "FLAC", "OGG"])
def test_a_long_clip_can_be_encoded(format: str) -> None:
    """In one write, libsndfile's Vorbis encoder ended the process."""
    samples = np.tile(tone(), 100 * 16_000 // len(tone()))
    again = read_clip(encode_clip(Clip(samples, 16_000), format))
    assert again.sample_rate_hz == 16_000
    assert len(again.samples) == len(samples)


@pytest.mark.parametrize("size", [0xFFFFFFFF, 0])
def test_a_wav_whose_length_was_not_known_when_it_was_begun_is_read_in_full(size: int, tmp_path: Path) -> None:
    clip = Clip(np.linspace(-0.5, 0.5, 8_000, dtype=np.float32), 8_000)
    data = bytearray(encode_clip(clip))
    place = data.index(b"data") + 4
    data[place : place + 4] = struct.pack("<I", size)
    data[4:8] = struct.pack("<I", 0xFFFFFFFF)
    np.testing.assert_allclose(read_clip(bytes(data)).samples, clip.samples, atol=1e-4)
    (tmp_path / "stream.wav").write_bytes(data)
    np.testing.assert_allclose(read_clip(tmp_path / "stream.wav").samples, clip.samples, atol=1e-4)
    with pytest.raises(AudioError, match="1 s is too long"):
        read_clip(tmp_path / "stream.wav", max_duration_s=0.4)
    full = encode_clip(clip)
    assert mend_wav(full) == full
    assert mend_wav(b"{}") == b"{}"


def test_the_digest_tells_samples_and_sample_rates_apart():
    clip = Clip(tone(), 16_000)
    assert clip.digest == Clip(tone(), 16_000).digest
    assert len({clip.digest, Clip(tone(), 8_000).digest, Clip(tone(level=0.4), 16_000).digest}) == 3
    assert clip.samples_digest == Clip(tone(), 8_000).samples_digest
    # Both stand in stored keys and seeds: they must not change.
    short = Clip(np.array([0.0, 0.5, -0.25], dtype=np.float32), 16_000)
    assert short.digest.startswith("e9629b58a549c4c9")
    assert short.samples_digest.startswith("aefc94c0059375ff")


def test_a_small_flac_of_many_samples_is_refused_before_it_is_decoded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "silence.flac"
    with soundfile.SoundFile(path, "w", 192_000, 8, "PCM_16") as file:
        for _ in range(38):
            file.write(np.zeros((192_000, 8), dtype=np.int16))
    assert path.stat().st_size < 4_000_000

    def decodes(*_: object, **__: object) -> None:
        raise AssertionError("decoded")

    monkeypatch.setattr(soundfile.SoundFile, "read", decodes)
    with pytest.raises(AudioError, match="8 channels of 38 s at 192000 Hz are too much to decode"):
        read_clip(path)


@pytest.mark.parametrize("format", ["WAV", "WAVEX", "RF64", "W64", "AIFF", "AU", "MP3"])
def test_half_a_file_is_said_so_whatever_its_kind(format: str) -> None:
    buffer = io.BytesIO()
    soundfile.write(buffer, np.tile(NOISE, 2), 16_000, format=format, subtype="MPEG_LAYER_III" if format == "MP3" else "PCM_16")
    data = buffer.getvalue()
    assert read_clip(data).duration_s == pytest.approx(2.0)
    with pytest.raises(AudioError, match=r"cut off: its header says 2\.00 s, the file has (1\.00|0\.9\d) s"):
        read_clip(data[: len(data) // 2])


def test_half_a_wav_behind_a_long_chunk_is_said_so(tmp_path: Path) -> None:
    """Pictures and titles stand before the samples in some files: 100 kB of them, which a look at the beginning misses."""
    data = encode_clip(Clip(tone(), 16_000))
    place = data.index(b"data")
    path = tmp_path / "cover.wav"
    path.write_bytes(data[:place] + b"JUNK" + struct.pack("<I", 100_000) + bytes(100_000) + data[place:])
    assert read_clip(path).duration_s == 0.5
    path.write_bytes(path.read_bytes()[:-8000])
    with pytest.raises(AudioError, match=r"its header says 0\.50 s, the file has 0\.25 s"):
        read_clip(path)


@pytest.mark.parametrize("riff_size", [0, 0xFFFFFFFF])
def test_titles_behind_no_samples_are_not_sound(riff_size: int) -> None:
    """A size of 0 may be true: then other chunks follow, which once were read as 0.1 s of noise."""
    data = encode_clip(Clip(tone(), 16_000))
    head = data[: data.index(b"data")]
    titles = b"LIST" + struct.pack("<I", 4000) + b"INFO" + np.random.default_rng(0).bytes(3996)
    empty = head[:4] + struct.pack("<I", riff_size) + head[8:] + b"data" + bytes(4) + titles
    with pytest.raises(AudioError, match="0 samples"):
        read_clip(empty)
    # The same header before samples is one whose size was not known.
    assert read_clip(empty[: len(head) + 8] + data[len(head) + 8 :]).duration_s == 0.5


def test_streamed_silence_has_its_length() -> None:
    """Silence is zeros, and zeros are no chunks: it was once read as 0 samples."""
    data = encode_clip(Clip(np.zeros(8000, dtype=np.float32), 16_000))
    place = data.index(b"data") + 4
    assert read_clip(data[:place] + bytes(4) + data[place + 4 :]).duration_s == 0.5


class CountedReads(io.BytesIO):
    """A file that counts how often it is read."""

    reads = 0

    def read(self, size: int | None = -1, /) -> bytes:
        self.reads += 1
        return super().read(size)


@pytest.mark.parametrize("head", [b"", b"data" + bytes(4)], ids=["no chunks", "no size"])
def test_zeros_are_not_walked_over(head: bytes) -> None:
    data = b"RIFF" + bytes(4) + b"WAVE" + head + bytes(100_000)
    file = CountedReads(data)
    _wav_sizes(file, len(data))
    assert file.reads <= 4
    with pytest.raises(AudioError):
        read_clip(data)


# libsndfile seeks to -1 in an AIFF without samples; soundfile warns of it.
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
@pytest.mark.parametrize("format", ["WAV", "RF64", "W64", "AIFF", "AU"])
def test_a_file_that_ends_in_or_behind_its_header_is_refused(format: str) -> None:
    buffer = io.BytesIO()
    soundfile.write(buffer, NOISE, 16_000, format=format, subtype="PCM_16")
    for length in range(4, 160, 4):
        with pytest.raises(AudioError):
            read_clip(buffer.getvalue()[:length])


def test_a_written_answer_of_a_hundredth_of_a_second_is_read_again(tmp_path: Path) -> None:
    """`read_clip` refuses it, as it should of a user's; a policy's answer may be that short."""
    clip = Clip(np.array([0.5, -0.25, 0.0, 0.125], dtype=np.float32), 8_000)
    write_clip(tmp_path / "a.wav", clip)
    with pytest.raises(AudioError, match="too short"):
        read_clip(tmp_path / "a.wav")
    again = read_written_clip(tmp_path / "a.wav")
    np.testing.assert_allclose(again.samples, clip.samples, atol=2**-15)
    assert again.sample_rate_hz == 8_000
    (tmp_path / "a.wav").write_bytes(b"RIFF")
    with pytest.raises(AudioError, match="delete it and run again"):
        read_written_clip(tmp_path / "a.wav")
