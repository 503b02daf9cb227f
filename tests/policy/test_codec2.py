"""Codec 2 in pairs: ranges, packing, pitch by hand, and that real speech keeps its words through it.

Not covered: how good it sounds, and other builds of the C library than the wheel's.
"""

from __future__ import annotations

import numpy as np
import pytest
from outside import LIBRISPEECH

from paras2s.audio.asr import transcribe, word_error_rate
from paras2s.audio.clip import Clip, read_clip
from paras2s.policy.embedded.codec2 import Codec, Codec2Pairs, pitch_index

SENTENCE = (
    "they are nearly as large as we and relatively much lighter in weight all the periods of physical growth are "
    "correspondingly decreased children walk four or five weeks after birth"
)


def hum(duration_s: float, f0_hz: float = 150.0) -> Clip:
    """A buzz with harmonics, at 16 kHz."""
    time = np.arange(int(duration_s * 16_000)) / 16_000
    wave = sum(np.sin(2 * np.pi * f0_hz * k * time) / k for k in range(1, 12))
    return Clip((0.2 * wave).astype(np.float32), 16_000)


def test_it_is_a_codec() -> None:
    codec = Codec2Pairs()
    assert isinstance(codec, Codec)
    assert len(codec.cardinality) == codec.num_codebooks == 8
    assert codec.sample_rate_hz / codec.frame_rate_hz == 640


@pytest.mark.parametrize(("duration_s", "steps"), [(0.08, 1), (0.5, 7), (0.56, 7), (1.0, 13)])
def test_codes_are_in_range_and_the_tail_fills_a_step(duration_s: float, steps: int) -> None:
    codec = Codec2Pairs()
    codes = codec.encode(hum(duration_s))
    assert codes.shape == (steps, 8)
    assert codes.dtype == np.int64
    assert (codes >= 0).all()
    assert (codes < np.array(codec.cardinality)).all()
    np.testing.assert_array_equal(codec.encode(hum(duration_s)), codes)


@pytest.mark.parametrize("rate_hz", [8_000, 16_000, 22_050, 24_000, 44_100])
def test_steps_are_counted_without_making_codes(rate_hz: int) -> None:
    """Around the ends of the first steps, where a sample more or less decides."""
    codec = Codec2Pairs()
    ends = [round(step * rate_hz / codec.frame_rate_hz) for step in (1, 2, 7)]
    for samples in [100, *(end + more for end in ends for more in (-2, -1, 0, 1, 2))]:
        assert codec.steps_of(samples, rate_hz) == len(codec.encode(Clip(np.zeros(samples, dtype=np.float32), rate_hz)))
    assert codec.steps_of(0, rate_hz) == 0


def test_a_hum_keeps_its_pitch() -> None:
    codes = Codec2Pairs().encode(hum(1.0)).reshape(-1, 4)
    # 64 ln 3 / ln 8 = 33.8; a step of the index is 3 %.
    assert np.median(codes[2:-2, 3]) == pytest.approx(34, abs=1)


def test_code_vectors_add_up_to_what_a_step_sounds_like() -> None:
    """A hum of 150 Hz: log2(150 / 109.05) = 0.46 octaves, 2.45 of 0.1875; and twice the amplitude is 6 dB more energy."""
    codec = Codec2Pairs()
    first = np.array([0, *np.cumsum(codec.cardinality)[:-1]])
    soft, loud = (codec.code_vectors[codec.encode(Clip(hum(1.0).samples * gain, 16_000)) + first].sum(1) for gain in (0.5, 1.0))
    assert loud.shape == (13, 46)
    for frame in (loud[3:10, :23], loud[3:10, 23:]):
        assert (frame[:, 21] == 1).all()
        assert np.median(frame[:, 22]) == pytest.approx(2.45, abs=0.26)
    assert np.median(10 * (loud - soft)[3:10, 20]) == pytest.approx(6.0, abs=2.5)
    # A spectrum that falls with frequency, as 1 / k does.
    levels = loud[3:10, :20].mean(0)
    assert levels[:5].mean() > levels[5:10].mean() > levels[10:15].mean()
    silence = codec.code_vectors[codec.encode(Clip(np.zeros(8000, dtype=np.float32), 16_000)) + first].sum(1)
    assert not silence[:, [21, 22, 44, 45]].any()


def test_silence_is_unvoiced() -> None:
    codes = Codec2Pairs().encode(Clip(np.zeros(8000, dtype=np.float32), 16_000))
    assert codes.shape == (7, 8)
    assert not codes[:, [3, 7]].any()


@pytest.mark.parametrize(
    ("f0_hz", "index"),
    [(0.0, 0), (40.0, 1), (50.0, 1), (100.0, 21), (141.42135, 32), (200.0, 43), (399.0, 63), (400.0, 63), (900.0, 63)],
    ids=["unvoiced", "below", "lowest", "64/3", "middle", "128/3", "last", "held", "far above"],
)
def test_pitch_index_by_hand(f0_hz: float, index: int) -> None:
    assert pitch_index(np.array([f0_hz])).tolist() == [index]


def test_packed_by_hand() -> None:
    """9 + 9 + 4 + 6 bits, most significant first, and 4 bits of nothing."""
    codec = Codec2Pairs()
    assert codec._pack(np.array([1, 2, 3, 4])) == bytes([0b00000000, 0b10000000, 0b10001100, 0b01000000])
    assert codec._pack(np.array([511, 511, 15, 63])) == b"\xff\xff\xff\xf0"


def test_packing_is_undone_by_unpacking() -> None:
    codec = Codec2Pairs()
    sizes = codec.cardinality[:4]
    rng = np.random.default_rng(0)
    extremes = [[(size - 1) * (column == field) for column, size in enumerate(sizes)] for field in range(4)]
    for frame in [*rng.integers(sizes, size=(200, 4)).tolist(), *extremes]:
        assert codec._unpack(codec._pack(np.array(frame))) == frame


def test_real_speech_keeps_its_words() -> None:
    codec = Codec2Pairs()
    clip = read_clip(LIBRISPEECH / "librispeech_1263-139804-0001.flac")
    codes = codec.encode(clip)
    assert len(codes) == -(-round(clip.duration_s * 8000) // 640)
    assert (codes < np.array(codec.cardinality)).all()
    decoded = codec.decode(codes)
    assert 0 <= decoded.duration_s - clip.duration_s < 0.08
    (transcript,) = transcribe([decoded])
    assert word_error_rate(SENTENCE, transcript.text) < 0.35
