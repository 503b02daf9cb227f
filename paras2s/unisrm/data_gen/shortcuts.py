"""Shortcuts of a UniSRM data set: answers that are right without listening as a task requires.

Each is fitted on the split `sft` and counted on `bench`: of pairs the share whose better side it names, of T2 the correlation
with the overall score. Near one half, or near 0, it is no shortcut.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from paras2s.audio.clip import read_clip
from paras2s.unisrm.reward.tasks import TASKS, Item, PairRecord, TaskId


@dataclass(frozen=True)
class Shortcut:
    """A shortcut's value on n items: the accuracy of pairs, or of T2 the size of a correlation; None: no such input."""

    task: TaskId
    name: str
    value: float | None
    error: float | None
    n: int


# An item's factor `engine_a` or `engine_b` if that side is a recording.
RECORDING = "recording"
Feature = Callable[[Item, str], float]


def measure_shortcuts(folder: Path, items: Sequence[Item]) -> list[Shortcut]:
    """Measure the shortcuts of every task: majority, text alone, engine, length, loudness, and which side is a recording."""
    levels: dict[str, tuple[float, float]] = {}

    def sound(item: Item, name: str) -> tuple[float, float]:
        path = item.clips[name]
        if path not in levels:
            clip = read_clip(folder / path)
            levels[path] = (clip.duration_s, float(np.sqrt(np.mean(clip.samples.astype(np.float64) ** 2))))
        return levels[path]

    features: dict[str, Feature] = {
        "engine": lambda item, name: float(item.factors.get(f"engine_{name[-1]}", "") == "codec2"),
        "length": lambda item, name: sound(item, name)[0],
        "loudness": lambda item, name: sound(item, name)[1],
    }
    shortcuts = []
    if any(RECORDING in item.factors.values() for item in items):
        features["recording"] = lambda item, name: float(item.factors.get(f"engine_{name[-1]}", "") == RECORDING)
    for task in TASKS.values():
        own = [item for item in items if item.task == task.id]
        train, test = ([item for item in own if item.split == split] for split in ("sft", "bench"))
        if not train or not test:
            continue
        if not task.pairwise:
            shortcuts += [_correlation(task.id, name, features[name], test) for name in ("length", "loudness")]
            continue
        shortcuts.append(_majority(task.id, train, test))
        shortcuts.append(_text_alone(task.id, train, test))
        shortcuts += [_one_side(task.id, name, feature, train, test) for name, feature in features.items()]
    return shortcuts


def _better(item: Item) -> str:
    assert isinstance(item.record, PairRecord)
    return item.record.better


def _share(task: TaskId, name: str, points: Sequence[float]) -> Shortcut:
    mean = sum(points) / len(points)
    return Shortcut(task, name, mean, math.sqrt(mean * (1 - mean) / len(points)), len(points))


def _majority(task: TaskId, train: Sequence[Item], test: Sequence[Item]) -> Shortcut:
    side = Counter(map(_better, train)).most_common(1)[0][0]
    return _share(task, "majority", [float(_better(item) == side) for item in test])


def _one_side(task: TaskId, name: str, feature: Feature, train: Sequence[Item], test: Sequence[Item]) -> Shortcut:
    """Choose the side with more of a feature, or with less, whichever is more often right in `train`; ties are half right."""

    def points(item: Item) -> float:
        gap = feature(item, "speech_a") - feature(item, "speech_b")
        return 0.5 if not gap else float((gap > 0) == (_better(item) == "A"))

    more = sum(map(points, train)) >= len(train) / 2
    return _share(task, name, [points(item) if more else 1 - points(item) for item in test])


def _text_alone(task: TaskId, train: Sequence[Item], test: Sequence[Item]) -> Shortcut:
    """Fit logistic regression on the prompt's words; None for a task without words, or without both labels."""
    if not TASKS[task].texts or len(set(map(_better, train))) < 2:
        return Shortcut(task, "text alone", None, None, len(test))
    from sklearn.feature_extraction.text import CountVectorizer
    from sklearn.linear_model import LogisticRegression
    from sklearn.pipeline import make_pipeline

    model = make_pipeline(CountVectorizer(), LogisticRegression(max_iter=1000))
    model.fit([" ".join(item.texts.values()) for item in train], [_better(item) for item in train])
    named = model.predict([" ".join(item.texts.values()) for item in test])
    return _share(task, "text alone", [float(side == _better(item)) for side, item in zip(named, test, strict=True)])


def _correlation(task: TaskId, name: str, feature: Feature, test: Sequence[Item]) -> Shortcut:
    values = [feature(item, "speech") for item in test]
    scores = [item.record.scores[-1] for item in test if not isinstance(item.record, PairRecord)]
    if len(test) < 3 or np.std(values) == 0 or np.std(scores) == 0:
        return Shortcut(task, name, None, None, len(test))
    r = abs(float(np.corrcoef(values, scores)[0, 1]))
    return Shortcut(task, name, r, (1 - r * r) / math.sqrt(len(test) - 1), len(test))
