"""Rollouts as rewards hear them, whatever codec the policy speaks with."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from paras2s.audio.clip import Clip
from paras2s.policy.embedded.codec2 import Codec2Pairs
from paras2s.types import Rollout

# The sound of B rollouts, G answers each.
Waves = Sequence[tuple[np.ndarray, ...]]


def with_waves(rollouts: Sequence[Rollout], waves: Waves) -> list[Rollout]:
    """Return rollouts with their sound, which travels separately."""
    return [replace(rollout, waves=own) for rollout, own in zip(rollouts, waves, strict=True)]


def embedded_codes(rollout: Rollout, codec: Codec2Pairs) -> list[np.ndarray]:
    """Return codes [T, K] of the embedded codec for its reward model: the policy's own, or made from its sound."""
    if rollout.code_format == codec.version:
        return list(rollout.codes)
    empty = np.zeros((0, codec.num_codebooks), dtype=np.int64)
    return [codec.encode(Clip(wave, rollout.sample_rate_hz)) if len(wave) else empty for wave in rollout.waves]


def embedded_steps(rollout: Rollout, codec: Codec2Pairs) -> list[int]:
    """Return the lengths T of those codes, without making them: for 31 s of sound that takes half a second of a processor."""
    if rollout.code_format == codec.version:
        return list(map(len, rollout.codes))
    return [codec.steps_of(len(wave), rollout.sample_rate_hz) for wave in rollout.waves]


def sounds(rollout: Rollout, codec: Codec2Pairs) -> list[Clip]:
    """Return the answers' sound: as it came, or from the embedded codec's codes where it did not come."""
    if rollout.code_format == codec.version and not any(map(len, rollout.waves)):
        return [codec.decode(codes) for codes in rollout.codes]
    return [Clip(wave, rollout.sample_rate_hz) for wave in rollout.waves]
