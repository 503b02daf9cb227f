"""In which tone a clip is spoken: logistic regression on utterance prosody, stored as JSON and applied in numpy.

TRACE takes its emotion scores from emotion2vec, whose weights come from a hub only; this small head needs none. It
knows the tones it was fitted on and nothing else: its probabilities always sum to 1, whatever it is given.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from paras2s.audio import prosody
from paras2s.audio.clip import Clip
from paras2s.errors import DataError
from paras2s.utils.io import read_json, write_json

Report = dict[str, Any]


@dataclass(frozen=True, eq=False)
class ToneClassifier:
    """Softmax over C tones of D standardised features (`prosody.describe`, utterance).

    `mean` and `scale` [D], `coef` [C, D], `intercept` [C], all float64; `report` is `evaluate` on held-out speakers.
    """

    labels: tuple[str, ...]
    mean: np.ndarray
    scale: np.ndarray
    coef: np.ndarray
    intercept: np.ndarray
    report: Report

    @classmethod
    def fit(
        cls, features: np.ndarray, labels: Sequence[str], speakers: Sequence[str], held_out: Sequence[str]
    ) -> ToneClassifier:
        """Fit on the rows of features [n, D] whose speaker is not in `held_out`; the others fill the report.

        Raises:
            DataError: lengths differ, fewer than two tones are left to fit on, or a held-out speaker has no row.
        """
        from sklearn.linear_model import LogisticRegression
        from sklearn.preprocessing import StandardScaler

        if not len(features) == len(labels) == len(speakers):
            raise DataError(f"tone: {len(features)} features, {len(labels)} labels, {len(speakers)} speakers")
        unknown = sorted(set(held_out) - set(speakers))
        if unknown:
            raise DataError(f"tone: held-out speakers without a clip: {', '.join(unknown)}")
        tone_of, speaker_of = np.asarray(labels), np.asarray(speakers)
        test = np.isin(speaker_of, list(held_out))
        if len(set(tone_of[~test])) < 2:
            raise DataError(f"tone: needs clips of two tones to fit on, has {sorted(set(tone_of[~test]))}")
        scaler = StandardScaler().fit(features[~test])
        model = LogisticRegression(C=0.3, max_iter=3000).fit(scaler.transform(features[~test]), tone_of[~test])
        coef, intercept = np.asarray(model.coef_), np.asarray(model.intercept_)
        if len(coef) == 1:
            # sklearn keeps one row for two classes: softmax of (0, z) is its sigmoid of z.
            coef, intercept = np.vstack([np.zeros_like(coef), coef]), np.append(0.0, intercept)
        parts = tuple(map(str, model.classes_)), np.asarray(scaler.mean_), np.asarray(scaler.scale_), coef, intercept
        report = cls(*parts, report={}).evaluate(features[test], tone_of[test].tolist(), speaker_of[test].tolist())
        return cls(*parts, report=report)

    @property
    def version(self) -> str:
        """Names the features and the fitted numbers, so that a stored blueprint tells which classifier spoke."""
        numbers = np.concatenate([self.mean, self.scale, self.coef.ravel(), self.intercept])
        return f"{prosody.VERSION}+tone-{hashlib.sha256(numbers.tobytes()).hexdigest()[:8]}"

    def probabilities(self, features: np.ndarray) -> np.ndarray:
        """Probability of each tone [n, C], in the order of `labels`, from features [n, D]."""
        logits = (np.asarray(features, dtype=np.float64) - self.mean) / self.scale @ self.coef.T + self.intercept
        weights = np.exp(logits - logits.max(axis=1, keepdims=True))
        return weights / weights.sum(axis=1, keepdims=True)

    def predict(self, features: np.ndarray) -> list[str]:
        """Most probable tone of each row of features [n, D]."""
        return [self.labels[index] for index in self.probabilities(features).argmax(axis=1)]

    def scores(self, clip: Clip) -> dict[str, float]:
        """Probability of each tone for one clip, any rate. Raises AudioError: silence."""
        row = self.probabilities(prosody.describe(clip)[1][None])[0]
        return dict(zip(self.labels, row.tolist(), strict=True))

    def evaluate(self, features: np.ndarray, labels: Sequence[str], speakers: Sequence[str]) -> Report:
        """Measure the accuracy on features [n, D].

        `confusion[i][j]` counts clips of tone i that were called tone j; `accuracy` is None if n is 0.

        Raises:
            DataError: a label the classifier does not know.
        """
        unknown = sorted(set(labels) - set(self.labels))
        if unknown:
            raise DataError(f"tone: labels unknown to the classifier: {', '.join(unknown)}")
        confusion = np.zeros((len(self.labels), len(self.labels)), dtype=int)
        for truth, guess in zip(labels, self.predict(features) if len(labels) else [], strict=True):
            confusion[self.labels.index(truth), self.labels.index(guess)] += 1
        return {
            "accuracy": float(np.trace(confusion) / len(labels)) if len(labels) else None,
            "labels": list(self.labels),
            "confusion": confusion.tolist(),
            "n": len(labels),
            "speakers": sorted(set(speakers)),
        }

    def save(self, path: Path) -> None:
        """Write as JSON, atomically."""
        arrays = {name: getattr(self, name).tolist() for name in ("mean", "scale", "coef", "intercept")}
        write_json(path, {"features": prosody.VERSION, "labels": list(self.labels), "report": self.report, **arrays})

    @classmethod
    def load(cls, path: Path) -> ToneClassifier:
        """Read what `save` wrote. Raises DataError: missing, not a tone classifier, or fitted on other features."""
        stored = read_json(path)
        try:
            features, labels, report = stored["features"], tuple(stored["labels"]), dict(stored["report"])
            mean, scale, coef, intercept = (
                np.asarray(stored[name], dtype=np.float64) for name in ("mean", "scale", "coef", "intercept")
            )
        except (KeyError, TypeError, ValueError) as error:
            raise DataError(f"{path}: not a tone classifier ({error!r}); fit it again") from error
        if features != prosody.VERSION:
            raise DataError(f"{path}: fitted on features {features}, installed are {prosody.VERSION}; fit it again")
        shapes = mean.shape, scale.shape, coef.shape, intercept.shape
        count, dim = len(labels), prosody.UTTERANCE_DIM
        if shapes != ((dim,), (dim,), (count, dim), (count,)):
            raise DataError(f"{path}: {count} labels do not fit arrays of shape {shapes}; fit it again")
        return cls(labels, mean, scale, coef, intercept, report)
