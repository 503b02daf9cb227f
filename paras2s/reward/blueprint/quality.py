"""Audio quality by personalised DNSMOS and P.808 (Reddy et al.), the models and windows of the `speechmos` package.

The numbers are speechmos's, to 1e-3. Its mel features, which need librosa there, are written out here.
Not covered: a clip far shorter than a window is repeated until it fills one, so its scores say little.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from paras2s.acoustics.assets import asset_path
from paras2s.audio import Clip
from paras2s.reward.blueprint.schema import Fields, measured, require_sound

SIGNAL = "agent_audio_quality.dnsmos_personalised_signal"
BACKGROUND = "agent_audio_quality.dnsmos_personalised_background"
OVERALL = "agent_audio_quality.dnsmos_personalised_overall"
P808 = "agent_audio_quality.p808_overall"

RATE_HZ = 16_000
WINDOW_S = 9.01
# A window takes 0.2 GB inside the model; larger batches gain nothing on few cores, the convolutions fill them.
BATCH = 2
THREADS = 2
MEL_BANDS, FFT_SIZE, HOP = 120, 321, 160
# Maps the personalised model's raw outputs to MOS, highest power first; from speechmos/dnsmos.py.
POLYNOMIALS = {
    SIGNAL: (-0.01019296, 0.02751166, 1.19576786, -0.24348726),
    BACKGROUND: (-0.04976499, 0.44276479, -0.1644611, 0.96883132),
    OVERALL: (-0.00533021, 0.005101, 1.18058466, -0.11236046),
}


class QualityExtractor:
    """Mean MOS over the windows of a clip: signal, background and overall (personalised), and P.808."""

    name = "quality"
    version = "speechmos-0.0.1.1/quality-1"
    rate_hz = RATE_HZ
    keys = (SIGNAL, BACKGROUND, OVERALL, P808)

    def measure(self, clips: Sequence[Clip]) -> list[Fields]:
        """MOS of each clip.

        Raises:
            AudioError: a clip is silent.
        """
        for clip in clips:
            require_sound(clip, "audio quality")
        if not clips:
            return []
        owners: list[int] = []

        def windows() -> Iterator[np.ndarray]:
            for owner, clip in enumerate(clips):
                for window in _windows(clip.samples):
                    owners.append(owner)
                    yield window

        scores = _score(windows())
        rows = [scores[np.equal(owners, owner)].mean(axis=0) for owner in range(len(clips))]
        return [{key: measured(key, float(value)) for key, value in zip(self.keys, row, strict=True)} for row in rows]


def _windows(samples: np.ndarray) -> Iterator[np.ndarray]:
    """Windows [144160] of 9.01 s, one a second, made one by one; a shorter clip is doubled until it fills one."""
    size = int(WINDOW_S * RATE_HZ)
    # The models were made for full scale of 1, which resampling may overshoot.
    samples = samples / max(1.0, float(np.abs(samples).max()))
    while len(samples) < size:
        samples = np.append(samples, samples)
    count = int(np.floor(len(samples) / RATE_HZ) - WINDOW_S) + 1
    # speechmos rounds each end down in floating point: windows 7 to 23 fall one sample short, and it leaves them out.
    for i in range(count):
        if int((i + WINDOW_S) * RATE_HZ) - i * RATE_HZ == size:
            yield samples[i * RATE_HZ : i * RATE_HZ + size].astype(np.float32)


def _score(windows: Iterator[np.ndarray]) -> np.ndarray:
    """MOS [W, 4] of W windows [144160], in the order of `QualityExtractor.keys`."""
    personalised, p808 = _session("dnsmos_personalised"), _session("dnsmos_p808")
    rows = []
    while held := list(itertools.islice(windows, BATCH)):
        batch = np.stack(held)
        raw = personalised.run(None, {"input_1": batch})[0]
        mos = [np.polyval(POLYNOMIALS[key], raw[:, i]) for i, key in enumerate((SIGNAL, BACKGROUND, OVERALL))]
        features = np.stack([mel_features(window[:-HOP]) for window in batch])
        mos.append(p808.run(None, {"input_1": features})[0][:, 0])
        rows.append(np.stack(mos, axis=1))
    return np.concatenate(rows)


@functools.lru_cache(maxsize=2)
def _session(asset: str) -> Any:
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = THREADS
    options.add_session_config_entry("session.intra_op.allow_spinning", "0")
    return onnxruntime.InferenceSession(str(asset_path(asset)), options, providers=["CPUExecutionProvider"])


def mel_features(samples: np.ndarray) -> np.ndarray:
    """P.808 input [frames, 120], float32, of samples [n]: mel power in dB under its peak, plus 40, over 40."""
    padded = np.pad(samples, FFT_SIZE // 2)
    frames = np.lib.stride_tricks.sliding_window_view(padded, FFT_SIZE)[::HOP]
    hann = 0.5 - 0.5 * np.cos(2 * np.pi * np.arange(FFT_SIZE) / FFT_SIZE)
    power = np.abs(np.fft.rfft(frames * hann, axis=1)) ** 2 @ _slaney_weights().T
    level_db = 10 * np.log10(np.maximum(power, 1e-10))
    below_peak_db = np.maximum(level_db - level_db.max(), -80.0)
    return ((below_peak_db + 40) / 40).astype(np.float32)


@functools.lru_cache(maxsize=1)
def _slaney_weights() -> np.ndarray:
    """Triangles [120, 161] of equal area: 200/3 Hz a mel up to 1 kHz, then 27 mels to each factor of 6.4."""
    top_mel = 15 + 27 * np.log(RATE_HZ / 2 / 1000) / np.log(6.4)
    mels = np.linspace(0, top_mel, MEL_BANDS + 2)
    edges_hz = np.where(mels < 15, mels * 200 / 3, 1000 * 6.4 ** ((mels - 15) / 27))
    low_hz, centre_hz, high_hz = edges_hz[:-2, None], edges_hz[1:-1, None], edges_hz[2:, None]
    axis_hz = np.fft.rfftfreq(FFT_SIZE, 1 / RATE_HZ)
    rising, falling = (axis_hz - low_hz) / (centre_hz - low_hz), (high_hz - axis_hz) / (high_hz - centre_hz)
    return np.maximum(0, np.minimum(rising, falling)) * 2 / (high_hz - low_hz)
