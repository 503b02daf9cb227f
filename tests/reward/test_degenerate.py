"""The shape of each kind of degenerate answer, on a made-up clip whose loud moments are known.

Not covered: what a judge makes of them (test_rubric.py) or a reward model (its probes, in `paras2s distill`).
"""

from __future__ import annotations

import numpy as np
import pytest

from paras2s.audio.clip import Clip
from paras2s.reward.reward_model.degenerate import KINDS, degenerate_clip

RATE_HZ, COUNT = 8_000, 16_000
# Two seconds of soft noise; loud for 40 ms from 0.62 s on (in the 25-50 % stretch), louder for 80 ms from 1.2 s on.
LOUD = (slice(4_960, 5_280), slice(9_600, 10_240))


def answer() -> Clip:
    samples = 0.02 * np.random.default_rng(0).standard_normal(COUNT)
    for number, place in enumerate(LOUD):
        samples[place] *= 10 + number
    return Clip(samples.astype(np.float32), RATE_HZ)


def made(kind: str, seed: int = 0) -> np.ndarray:
    return degenerate_clip(kind, answer(), seed).samples


@pytest.mark.parametrize("kind", KINDS)
def test_every_kind_is_a_valid_clip_that_depends_on_the_seed_alone(kind: str) -> None:
    clip = degenerate_clip(kind, answer(), 3)
    assert clip.sample_rate_hz == RATE_HZ
    assert clip.samples.dtype == np.float32
    assert np.isfinite(clip.samples).all()
    assert np.abs(clip.samples).max() <= 1
    np.testing.assert_array_equal(clip.samples, made(kind, 3))


@pytest.mark.parametrize("kind", ["silence", "noise", "tone", "clicks", "repeated_word"])
def test_kinds_of_the_answers_length(kind: str) -> None:
    assert len(made(kind)) == COUNT


@pytest.mark.parametrize("kind", ["noise", "tone", "clicks"])
def test_random_kinds_differ_between_seeds(kind: str) -> None:
    assert not np.array_equal(made(kind, 0), made(kind, 1))


def test_silence_is_silent() -> None:
    assert not made("silence").any()


@pytest.mark.parametrize("seed", range(4))
def test_noise_is_flat(seed: int) -> None:
    samples = made("noise", seed)
    assert 0.018 < samples.std() < 0.21
    power = np.abs(np.fft.rfft(samples)) ** 2
    assert power[: len(power) // 2].sum() == pytest.approx(power[len(power) // 2 :].sum(), rel=0.1)


@pytest.mark.parametrize("seed", range(4))
def test_a_tone_has_one_frequency(seed: int) -> None:
    samples = made("tone", seed)
    power = np.abs(np.fft.rfft(samples * np.hanning(COUNT))) ** 2
    peak = int(power.argmax())
    assert 100 <= peak * RATE_HZ / COUNT <= 1500
    assert power[peak - 4 : peak + 5].sum() > 0.999 * power.sum()
    assert 0.05 <= np.abs(samples).max() <= 0.4


@pytest.mark.parametrize("seed", range(4))
def test_clicks_are_single_samples_4_to_30_a_second(seed: int) -> None:
    samples = made("clicks", seed)
    places = np.flatnonzero(samples)
    assert len(set(np.diff(places))) == 1
    assert 4 <= RATE_HZ / np.diff(places)[0] <= 30.2
    assert set(samples[places].round(6)) == {np.float32(0.8)}


def test_a_repeated_word_is_320_ms_of_the_answer_over_and_over() -> None:
    samples, size = made("repeated_word"), int(0.32 * RATE_HZ)
    np.testing.assert_array_equal(samples[size : 2 * size], samples[:size])
    np.testing.assert_array_equal(samples[-size // 2 :], np.resize(samples[:size], COUNT)[-size // 2 :])
    # It starts right after the loudest 40 ms between a tenth and 70 % of the answer: one of the two from 1.2 s on.
    full, places = answer().samples, range(LOUD[1].start, LOUD[1].stop + 1)
    starts = [start for start in places if np.array_equal(full[start : start + size], samples[:size])]
    assert len(starts) == 1
    assert starts[0] > LOUD[1].start


def test_a_cut_off_answer_ends_loud_and_before_its_half() -> None:
    samples = made("cut_off")
    assert COUNT // 4 < len(samples) <= COUNT // 2
    np.testing.assert_array_equal(samples, answer().samples[: len(samples)])
    assert len(samples) == LOUD[0].stop
    assert np.mean(samples[-160:] ** 2) > 4 * np.mean(samples**2)


def test_three_times_is_three_times() -> None:
    np.testing.assert_array_equal(made("three_times").reshape(3, COUNT), np.stack([answer().samples] * 3))


def test_an_unknown_kind_is_refused() -> None:
    with pytest.raises(ValueError, match="unknown kind 'cough'; there are silence, noise"):
        degenerate_clip("cough", answer(), 0)


@pytest.mark.parametrize("kind", KINDS)
def test_short_answers_have_degenerate_relatives_too(kind: str) -> None:
    short = Clip(answer().samples[:2_000], RATE_HZ)
    assert len(degenerate_clip(kind, short, 0).samples) > 0
