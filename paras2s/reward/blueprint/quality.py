"""Audio quality by personalised DNSMOS and P.808 (Reddy et al.), the models and windows of the `speechmos` package.

The numbers are speechmos's, to 1e-3. Its mel features, which need librosa there, are written out here.
Not covered: a clip shorter than a window is repeated until it fills one, so the score of a short one says little; one under
half a second has none.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any

import numpy as np

from paras2s.audio.assets import asset_path
from paras2s.audio.clip import Clip
from paras2s.errors import AudioError
from paras2s.reward.blueprint.schema import Fields, measured, require_sound
from paras2s.utils.process_pool import native_threads

SIGNAL = "agent_audio_quality.dnsmos_personalised_signal"
BACKGROUND = "agent_audio_quality.dnsmos_personalised_background"
OVERALL = "agent_audio_quality.dnsmos_personalised_overall"
P808 = "agent_audio_quality.p808_overall"

RATE_HZ = 16_000
WINDOW_S = 9.01
# Shorter than a word; repeated, it would be a buzz.
MIN_S = 0.5
WINDOW = int(WINDOW_S * RATE_HZ)
MEL_BANDS, FFT_SIZE, HOP = 120, 321, 160
# The personalised model makes 900 frames of a window. Its tensors of those and of what their first pooling leaves:
FRAMES = 900
STEM_IN, STEM_OUT = "mos_estimator_logpow/concat:0", "mos_estimator_logpow/conv2d_3/Relu:0_pooling0"
# Four convolutions of 3 frames see 4 frames to each side.
REACH_FRAMES = 4
# 0.1 GB inside the stem; larger blocks gain nothing, the convolutions fill the cores.
BLOCK_FRAMES = 1000
HEAD_BATCH = 8
# Maps the personalised model's raw outputs to MOS, highest power first; from speechmos/dnsmos.py.
POLYNOMIALS = {
    SIGNAL: (-0.01019296, 0.02751166, 1.19576786, -0.24348726),
    BACKGROUND: (-0.04976499, 0.44276479, -0.1644611, 0.96883132),
    OVERALL: (-0.00533021, 0.005101, 1.18058466, -0.11236046),
}


class QualityExtractor:
    """Mean MOS over the windows of a clip: signal, background and overall (personalised), and P.808."""

    name = "quality"
    version = "speechmos-0.0.1.1/quality-3"
    rate_hz = RATE_HZ
    keys = (SIGNAL, BACKGROUND, OVERALL, P808)

    def measure(self, clips: Sequence[Clip]) -> list[Fields]:
        """MOS of each clip. Raises AudioError: a clip is silent, or under half a second."""
        for clip in clips:
            require_sound(clip, "audio quality")
            if clip.duration_s < MIN_S:
                raise AudioError(f"{clip.duration_s:.2f} s is shorter than {MIN_S} s: audio quality cannot be measured")
        if not clips:
            return []
        scores = [_score(clip.samples).mean(axis=0) for clip in clips]
        return [{key: measured(key, float(value)) for key, value in zip(self.keys, row, strict=True)} for row in scores]


def _score(samples: np.ndarray) -> np.ndarray:
    """MOS [W, 4] of the W windows of a clip, in the order of `QualityExtractor.keys`."""
    samples, starts = _windows(samples)
    raw = _personalised(samples, starts)
    mos = [np.polyval(POLYNOMIALS[key], raw[:, i]) for i, key in enumerate((SIGNAL, BACKGROUND, OVERALL))]
    return np.stack([*mos, _p808(samples, starts)], axis=1)


def _windows(samples: np.ndarray) -> tuple[np.ndarray, list[int]]:
    """Return the clip, doubled until it fills a window, and the starts of its windows of 9.01 s, one a second."""
    # The models were made for full scale of 1, which resampling may overshoot.
    samples = samples / max(1.0, float(np.abs(samples).max()))
    while len(samples) < WINDOW:
        samples = np.append(samples, samples)
    count = int(np.floor(len(samples) / RATE_HZ) - WINDOW_S) + 1
    # speechmos rounds each end down in floating point: windows 7 to 23 fall one sample short, and it leaves them out.
    starts = [i * RATE_HZ for i in range(count) if int((i + WINDOW_S) * RATE_HZ) - i * RATE_HZ == WINDOW]
    return samples.astype(np.float32), starts


def _personalised(samples: np.ndarray, starts: list[int]) -> np.ndarray:
    """Raw outputs [W, 3] of the personalised model for windows of one clip.

    Nearly all of its work are four convolutions over frames of 20 ms, and neighbouring windows share eight ninths of their
    frames: those are done once. What differs between windows is the zeros beyond their own edges, so the few frames that
    these reach are done for each window. The result is that of each window alone, to rounding.
    """
    stem, head = _split_session()
    outputs: list[np.ndarray] = []
    for run in _runs(starts):
        frames = _frames(samples[run[0] : run[-1] + WINDOW])
        shared = _stem(stem, frames)
        edge = 2 * REACH_FRAMES
        for batch in (run[at : at + HEAD_BATCH] for at in range(0, len(run), HEAD_BATCH)):
            first = [(start - run[0]) // HOP for start in batch]
            begins = stem.run(None, {STEM_IN: np.stack([frames[at : at + edge] for at in first])})[0]
            ends = stem.run(None, {STEM_IN: np.stack([frames[at + FRAMES - edge : at + FRAMES] for at in first])})[0]
            pooled = np.stack([shared[:, at // 2 : (at + FRAMES) // 2] for at in first])
            edge = REACH_FRAMES // 2
            pooled[:, :, :edge], pooled[:, :, -edge:] = begins[:, :, :edge], ends[:, :, -edge:]
            outputs.append(head.run(None, {STEM_OUT: pooled})[0])
    return np.concatenate(outputs)


def _runs(starts: list[int]) -> list[list[int]]:
    """Group the starts so that in each group one window begins a second after the other."""
    runs: list[list[int]] = []
    for start in starts:
        if runs and start - runs[-1][-1] == RATE_HZ:
            runs[-1].append(start)
        else:
            runs.append([start])
    return runs


def _frames(samples: np.ndarray) -> np.ndarray:
    """Return the frames [T, 320] of samples, one every 160."""
    return np.lib.stride_tricks.sliding_window_view(samples, 2 * HOP)[::HOP]


def _stem(stem: Any, frames: np.ndarray) -> np.ndarray:
    """Return the shared part [32, T / 2, 80] of frames [T, 320], in blocks: an hour needs no more memory than a minute."""
    blocks = []
    for start in range(0, len(frames), BLOCK_FRAMES):
        before = REACH_FRAMES if start else 0
        block = frames[start - before : start + BLOCK_FRAMES + REACH_FRAMES]
        count = min(BLOCK_FRAMES, len(frames) - start)
        blocks.append(stem.run(None, {STEM_IN: block[None]})[0][0][:, before // 2 : (before + count) // 2])
    return np.concatenate(blocks, axis=1)


def _p808(samples: np.ndarray, starts: list[int]) -> np.ndarray:
    """MOS [W] by the P.808 model."""
    session = _session(str(asset_path("dnsmos_p808")))
    outputs = []
    for at in range(0, len(starts), HEAD_BATCH):
        features = [mel_features(samples[start : start + WINDOW - HOP]) for start in starts[at : at + HEAD_BATCH]]
        outputs.append(session.run(None, {"input_1": np.stack(features)})[0][:, 0])
    return np.concatenate(outputs)


@functools.lru_cache(maxsize=1)
def _split_session() -> tuple[Any, Any]:
    """Return the personalised model in two parts: frames to the first pooling, and from there to its outputs."""
    import onnx

    model = onnx.load(str(asset_path("dnsmos_personalised")))
    for name in (STEM_IN, STEM_OUT):
        model.graph.value_info.append(onnx.helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, None))
    extractor = onnx.utils.Extractor(model)
    output = model.graph.output[0].name
    parts = extractor.extract_model([STEM_IN], [STEM_OUT]), extractor.extract_model([STEM_OUT], [output])
    stem, head = (_session(part.SerializeToString()) for part in parts)
    return stem, head


@functools.lru_cache(maxsize=3)
def _session(model: str | bytes) -> Any:
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = native_threads()
    options.add_session_config_entry("session.intra_op.allow_spinning", "0")
    return onnxruntime.InferenceSession(model, options, providers=["CPUExecutionProvider"])


def mel_features(samples: np.ndarray) -> np.ndarray:
    """P.808 input [frames, 120], float32, of samples [n]: mel power in dB under its peak, plus 40, over 40."""
    padded = np.pad(samples, FFT_SIZE // 2)
    frames = np.lib.stride_tricks.sliding_window_view(padded, FFT_SIZE)[::HOP]
    # As a product: 321 is no size for a fast transform, and NumPy's takes twice as long.
    parts = frames.astype(np.float32) @ _windowed_dft()
    power = (parts[:, : FFT_SIZE // 2 + 1] ** 2 + parts[:, FFT_SIZE // 2 + 1 :] ** 2) @ _slaney_weights().T
    level_db = 10 * np.log10(np.maximum(power, 1e-10))
    below_peak_db = np.maximum(level_db - level_db.max(), -80.0)
    return ((below_peak_db + 40) / 40).astype(np.float32)


@functools.lru_cache(maxsize=1)
def _windowed_dft() -> np.ndarray:
    """Hann window and Fourier transform [321, 2 x 161], float32: real parts, then imaginary ones."""
    sample = np.arange(FFT_SIZE)
    hann = 0.5 - 0.5 * np.cos(2 * np.pi * sample / FFT_SIZE)
    angle = 2 * np.pi * np.outer(sample, np.arange(FFT_SIZE // 2 + 1)) / FFT_SIZE
    return np.concatenate([hann[:, None] * np.cos(angle), -hann[:, None] * np.sin(angle)], axis=1).astype(np.float32)


@functools.lru_cache(maxsize=1)
def _slaney_weights() -> np.ndarray:
    """Return the triangles [120, 161] of equal area: 200/3 Hz a mel up to 1 kHz, then 27 mels to each factor of 6.4."""
    top_mel = 15 + 27 * np.log(RATE_HZ / 2 / 1000) / np.log(6.4)
    mels = np.linspace(0, top_mel, MEL_BANDS + 2)
    edges_hz = np.where(mels < 15, mels * 200 / 3, 1000 * 6.4 ** ((mels - 15) / 27))
    low_hz, centre_hz, high_hz = edges_hz[:-2, None], edges_hz[1:-1, None], edges_hz[2:, None]
    axis_hz = np.fft.rfftfreq(FFT_SIZE, 1 / RATE_HZ)
    rising, falling = (axis_hz - low_hz) / (centre_hz - low_hz), (high_hz - axis_hz) / (high_hz - centre_hz)
    return (np.maximum(0, np.minimum(rising, falling)) * 2 / (high_hz - low_hz)).astype(np.float32)
