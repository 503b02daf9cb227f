"""Audio that is no answer: what a policy finds when a reward model has never seen it. All must score near 1."""

from __future__ import annotations

import numpy as np

from paras2s.audio.clip import Clip

KINDS = ("silence", "noise", "tone", "clicks", "repeated_word", "cut_off", "three_times")


def degenerate_clip(kind: str, answer: Clip, seed: int) -> Clip:
    """Return a degenerate relative of a good spoken answer, at the answer's rate.

    `silence`, `noise`, `tone` (a sine) and `clicks` keep its length; `repeated_word` loops 0.32 s of it; `cut_off` ends it
    at a loud moment before its half; `three_times` says it thrice.
    """
    rng = np.random.default_rng(seed)
    count, rate_hz = len(answer.samples), answer.sample_rate_hz
    times_s = np.arange(count) / rate_hz
    if kind == "silence":
        samples = np.zeros(count)
    elif kind == "noise":
        samples = rng.uniform(0.02, 0.2) * rng.standard_normal(count)
    elif kind == "tone":
        samples = rng.uniform(0.05, 0.4) * np.sin(2 * np.pi * rng.uniform(100, 1500) * times_s)
    elif kind == "clicks":
        samples = np.zeros(count)
        samples[:: int(rate_hz / rng.uniform(4, 30))] = 0.8
    elif kind == "repeated_word":
        size = int(0.32 * rate_hz)
        start = _loudest(answer, 0.1, 0.7)
        samples = np.resize(answer.samples[start : start + size], count)
    elif kind == "cut_off":
        samples = answer.samples[: _loudest(answer, 0.25, 0.5)]
    elif kind == "three_times":
        samples = np.tile(answer.samples, 3)
    else:
        raise ValueError(f"unknown kind {kind!r}; there are {', '.join(KINDS)}")
    return Clip(np.clip(samples, -1, 1).astype(np.float32), rate_hz)


def _loudest(clip: Clip, low: float, high: float) -> int:
    """Return the sample index, within a share of the clip, at the end of the loudest 40 ms: no sentence ends there."""
    size = int(0.04 * clip.sample_rate_hz)
    starts = np.arange(int(low * len(clip.samples)), max(int(high * len(clip.samples)) - size, 1), size)
    powers = [float(np.mean(clip.samples[start : start + size] ** 2)) for start in starts]
    return int(starts[int(np.argmax(powers))]) + size
