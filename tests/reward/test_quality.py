"""Shared work between overlapping windows against speechmos, which does every window from the start.

Not covered: whether the numbers agree with listeners.
"""

import numpy as np
import pytest
from outside import LIBRISPEECH

from paras2s.audio.clip import Clip, read_clip
from paras2s.reward.blueprint.quality import (
    BACKGROUND,
    OVERALL,
    P808,
    RATE_HZ,
    SIGNAL,
    WINDOW,
    QualityExtractor,
    _runs,
    _windows,
)

THEIR_KEYS = {SIGNAL: "sig_mos", BACKGROUND: "bak_mos", OVERALL: "ovrl_mos", P808: "p808_mos"}


def speech(duration_s: float) -> Clip:
    clips = [read_clip(path, RATE_HZ).samples for path in sorted(LIBRISPEECH.glob("*.flac"))]
    return Clip(np.concatenate(clips)[: int(duration_s * RATE_HZ)], RATE_HZ)


@pytest.mark.parametrize("duration_s", [1.7, 9.01, 10.3, 26.0, 35.4])
def test_every_mos_is_that_of_speechmos(duration_s: float) -> None:
    """From one window, over several that share their frames, to lengths at which speechmos leaves windows out."""
    from speechmos import dnsmos

    clip = speech(duration_s)
    theirs = dnsmos.run(clip.samples, RATE_HZ, model_type="dnsmos_personalized")
    ours = QualityExtractor().measure([clip])[0]
    for key, name in THEIR_KEYS.items():
        assert ours[key].value == pytest.approx(float(theirs[name]), abs=1e-3), name


def test_a_clip_does_not_depend_on_its_neighbours() -> None:
    rng = np.random.default_rng(0)
    clips = [Clip((0.1 * rng.standard_normal(count)).astype(np.float32), RATE_HZ) for count in (20_000, 180_000)]
    together = QualityExtractor().measure(clips)
    assert together == [QualityExtractor().measure([clip])[0] for clip in clips]


def test_windows_are_grouped_where_one_follows_the_other() -> None:
    _, starts = _windows(np.zeros(RATE_HZ * 60))
    seconds = [start // RATE_HZ for start in starts]
    assert seconds[:7] == list(range(7))
    assert seconds[7] == 24
    assert [len(run) for run in _runs(starts)] == [7, len(seconds) - 7]
    # One second is doubled four times: 16 s hold seven windows.
    samples, starts = _windows(np.ones(RATE_HZ))
    assert (len(samples), len(starts)) == (16 * RATE_HZ, 7)
    assert max(starts) + WINDOW <= len(samples)
