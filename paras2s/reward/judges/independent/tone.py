"""Tones of voice by cepstrum and YIN, classified by linear discriminants: neither the features nor the voices of the teacher.

The tone classifier of rubric, filters and policy measures pitch with SwiftF0 and levels in bands of its own, and is fitted
on the agent's voice among others. This one has never heard the agent.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from importlib import resources
from pathlib import Path
from typing import Any

import numpy as np

from paras2s.audio.clip import Clip
from paras2s.audio.librosa_loading import load_librosa
from paras2s.errors import AudioError, DataError
from paras2s.utils.cache import key_of
from paras2s.utils.io import read_json, write_json

# Coded speech ends at 4 kHz.
RATE_HZ, WINDOW, HOP = 8_000, 512, 128
COEFFICIENTS, BANDS, LOWEST_HZ, HIGHEST_HZ = 14, 32, 80.0, 3_800.0
F0_RANGE_HZ = (60.0, 500.0)
# Frames below this share of the loudest tell nothing of the voice.
LOUD_SHARE = 0.15
FEATURES = "mfcc-yin/1"
FEATURE_DIM = 3 * COEFFICIENTS - 2 + 10
SHIPPED = Path(str(resources.files("paras2s.reward.judges.independent").joinpath("tones.json")))


def tone_features(clip: Clip) -> np.ndarray:
    """Cepstrum, its spread and movement, pitch, rhythm and level of a clip, float64 [50]. Raises AudioError: silence."""
    librosa = load_librosa()
    raw = clip.at(RATE_HZ).samples.astype(np.float32)
    peak = float(np.abs(raw).max(initial=0.0))
    if peak < 1e-3 or len(raw) < 2 * WINDOW:
        raise AudioError("the clip is silent or under 0.13 s: no tone of voice can be measured")
    samples = raw * np.float32(0.5 / peak)
    frames: dict[str, Any] = {"n_fft": WINDOW, "hop_length": HOP}
    cepstrum = librosa.feature.mfcc(
        y=samples, sr=RATE_HZ, n_mfcc=COEFFICIENTS, n_mels=BANDS, fmin=LOWEST_HZ, fmax=HIGHEST_HZ, **frames
    )
    movement = librosa.feature.delta(cepstrum, width=min(9, cepstrum.shape[1] - 1 + cepstrum.shape[1] % 2), mode="nearest")
    power = librosa.feature.rms(y=samples, frame_length=WINDOW, hop_length=HOP)[0]
    f0_hz = librosa.yin(samples, fmin=F0_RANGE_HZ[0], fmax=F0_RANGE_HZ[1], sr=RATE_HZ, frame_length=WINDOW, hop_length=HOP)
    onsets = librosa.onset.onset_strength(y=samples, sr=RATE_HZ, hop_length=HOP)
    count = min(len(f0_hz), len(power))
    log_f0 = np.log(f0_hz[:count][power[:count] >= LOUD_SHARE * power.max()])
    level_db = 20 * np.log10(np.sqrt(np.mean(raw.astype(np.float64) ** 2)) + 1e-6)
    # The steps between loud frames; a clip of a single sound has no step.
    steps = np.abs(np.diff(log_f0)) if len(log_f0) > 1 else np.zeros(1)
    pitch = [*np.percentile(log_f0, [10, 25, 50, 75, 90]), log_f0.std(), steps.mean()]
    return np.concatenate(
        [cepstrum[1:].mean(1), cepstrum[1:].std(1), movement.std(1), pitch, [onsets.mean(), onsets.std(), level_db]]
    ).astype(np.float64)


@dataclass(frozen=True, eq=False)
class ToneDiscriminant:
    """Linear discriminants over C tones of D features: `coef` [C, D], `intercept` [C], `accuracy` on the agent's voice."""

    labels: tuple[str, ...]
    coef: np.ndarray
    intercept: np.ndarray
    accuracy: float
    clips: int

    @classmethod
    def fit(
        cls, features: np.ndarray, labels: Sequence[str], held_out: np.ndarray, held_out_labels: Sequence[str]
    ) -> ToneDiscriminant:
        """Fit features [n, D] with a shrunken covariance, and measure the accuracy on the held-out rows."""
        from sklearn.discriminant_analysis import LinearDiscriminantAnalysis

        model = LinearDiscriminantAnalysis(solver="lsqr", shrinkage="auto").fit(features, list(labels))
        coef, intercept = np.asarray(model.coef_), np.asarray(model.intercept_)
        if len(coef) == 1:
            # sklearn keeps one row for two classes, which is positive for the second.
            coef, intercept = np.vstack([np.zeros_like(coef), coef]), np.append(0.0, intercept)
        parts = tuple(map(str, model.classes_)), coef, intercept
        predicted = cls(*parts, 0.0, 0).predict(held_out)
        accuracy = float(np.mean([label == other for label, other in zip(predicted, held_out_labels, strict=True)]))
        return cls(*parts, accuracy, len(predicted))

    @property
    def version(self) -> str:
        """Names the features and the fitted numbers."""
        return f"{FEATURES}+{key_of([self.coef.tolist(), self.intercept.tolist()])[:8]}"

    def predict(self, features: np.ndarray) -> list[str]:
        """Return the tone of each row of features [n, D]."""
        return [self.labels[index] for index in (features @ self.coef.T + self.intercept).argmax(axis=1)]

    def save(self, path: Path) -> None:
        """Write as JSON, atomically."""
        arrays = {"coef": self.coef.tolist(), "intercept": self.intercept.tolist()}
        report = {"accuracy": self.accuracy, "clips": self.clips}
        write_json(path, {"features": FEATURES, "labels": list(self.labels), **report, **arrays})

    @classmethod
    def load(cls, path: Path = SHIPPED) -> ToneDiscriminant:
        """Read what `save` wrote. Raises DataError: missing, broken, or fitted on other features than these."""
        stored = read_json(path)
        try:
            features, labels = stored["features"], tuple(stored["labels"])
            coef, intercept = (np.asarray(stored[name], dtype=np.float64) for name in ("coef", "intercept"))
            accuracy, clips = float(stored["accuracy"]), int(stored["clips"])
        except (KeyError, TypeError, ValueError) as error:
            raise DataError(f"{path}: no tone discriminant ({error!r}); run python tools/fit_tones.py") from error
        if features != FEATURES or coef.shape != (len(labels), FEATURE_DIM) or intercept.shape != (len(labels),):
            raise DataError(f"{path}: fitted on other features than {FEATURES}; run python tools/fit_tones.py")
        return cls(labels, coef, intercept, accuracy, clips)
