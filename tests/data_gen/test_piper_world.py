"""Real Piper and WORLD on one sentence: what speaker, rate and gain do, same seed same samples, words stay words.

Not covered: whether a style sounds like its name; the tone classifier's report and the hearing check of a run do that.
"""

from __future__ import annotations

import numpy as np
import pytest

from paras2s.audio.asr import transcribe, word_error_rate
from paras2s.audio.clip import Clip
from paras2s.audio.pitch import track_pitch
from paras2s.audio.synthesis import RATE_HZ, Speaker, Style, Voice, analyse, speak_plain, synthesise
from paras2s.data_gen.tts.piper_world import AGENT, AGENT_TONES, SPEAKERS, USER_STYLES

TEXT = "The train to the north leaves at noon."


@pytest.fixture(scope="module")
def plain() -> Clip:
    return speak_plain([TEXT])[0]


@pytest.fixture(scope="module")
def voice(plain: Clip) -> Voice:
    return analyse(plain)


def pitch_hz(clip: Clip) -> float:
    """Geometric mean over voiced frames."""
    f0_hz = track_pitch(clip).f0_hz
    return float(np.exp(np.log(f0_hz[f0_hz > 0]).mean()))


def level(clip: Clip) -> float:
    return float(np.sqrt(np.mean(clip.samples**2)))


@pytest.mark.parametrize("factor", [0.85, 1.3, 1.7, 2.3])
def test_the_speakers_factor_raises_the_pitch_by_itself(voice: Voice, factor: float) -> None:
    low, high = (synthesise(voice, Speaker("x", f, 1.0), Style(), seed=4) for f in (1.0, factor))
    assert pitch_hz(high) / pitch_hz(low) == pytest.approx(factor, rel=0.06)
    assert len(high.samples) == len(low.samples)


def test_a_styles_level_raises_the_pitch_too_and_its_range_widens_it(voice: Voice) -> None:
    usual, raised, wide = (synthesise(voice, AGENT, style, 4) for style in (Style(), Style(1.4), Style(1.0, 1.8)))
    assert pitch_hz(raised) / pitch_hz(usual) == pytest.approx(1.4, rel=0.06)
    spread = [float(np.log(f0[f0 > 0]).std()) for f0 in (track_pitch(one).f0_hz for one in (usual, wide))]
    assert spread[1] > 1.3 * spread[0]


@pytest.mark.parametrize("rate", [0.72, 1.2])
def test_rate_changes_the_duration_and_not_the_pitch(voice: Voice, rate: float) -> None:
    usual, other = (synthesise(voice, AGENT, Style(rate=r), seed=4) for r in (1.0, rate))
    assert usual.duration_s / other.duration_s == pytest.approx(rate, rel=0.02)
    assert pitch_hz(other) / pitch_hz(usual) == pytest.approx(1.0, rel=0.06)


@pytest.mark.parametrize("gain", [0.5, 1.6])
def test_gain_changes_the_level(voice: Voice, gain: float) -> None:
    usual, other = (synthesise(voice, AGENT, Style(gain=g), seed=4) for g in (1.0, gain))
    assert level(other) / level(usual) == pytest.approx(gain, rel=0.02)


def test_speakers_are_equally_loud(voice: Voice) -> None:
    levels = [level(synthesise(voice, speaker, Style(), 4)) for speaker in (AGENT, SPEAKERS["train"]["child"][0])]
    assert levels[1] == pytest.approx(levels[0], rel=0.02)


def test_same_seed_same_samples(voice: Voice) -> None:
    first, again, other = (synthesise(voice, AGENT, AGENT_TONES["cheerful"], seed) for seed in (1, 1, 2))
    np.testing.assert_array_equal(first.samples, again.samples)
    assert len(first.samples) != len(other.samples) or not np.array_equal(first.samples, other.samples)


def test_piper_reads_the_same_text_the_same_way_in_the_order_of_the_lines(plain: Clip) -> None:
    first, second = speak_plain(["Bring the blue chair in from the porch, will you please?", TEXT])
    np.testing.assert_array_equal(second.samples, plain.samples)
    assert len(first.samples) > len(second.samples)


@pytest.mark.parametrize("style", ["sad", "fear", "sarcastic"])
def test_samples_are_valid_speech_of_the_right_rate(voice: Voice, style: str) -> None:
    clip = synthesise(voice, SPEAKERS["train"]["female"][0], USER_STYLES[style], 0)
    assert clip.sample_rate_hz == RATE_HZ
    assert clip.samples.dtype == np.float32
    assert np.isfinite(clip.samples).all()
    assert np.abs(clip.samples).max() < 1


@pytest.mark.parametrize(
    ("speaker", "style"),
    [
        (AGENT, AGENT_TONES["gentle"]),
        (SPEAKERS["train"]["male"][0], USER_STYLES["angry"]),
        (SPEAKERS["train"]["child"][0], USER_STYLES["child"]),
    ],
    ids=["agent, gentle", "man, angry", "child"],
)
def test_the_words_stay_words(voice: Voice, speaker: Speaker, style: Style) -> None:
    """Each clip alone: in a shared window Whisper may merge three equal sentences into one."""
    transcript = transcribe([synthesise(voice, speaker, style, 0)])[0].text
    assert word_error_rate(TEXT, transcript) <= 0.3, transcript
