"""Covers the tone classifier: numpy against sklearn, held-out speakers, the report by hand, files, silence.

Not covered: how well tones of real or coded speech are told apart; the run's own report says that.
"""

import json
from pathlib import Path

import numpy as np
import pytest
from sklearn.linear_model import LogisticRegression
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from paras2s.audio.clip import Clip
from paras2s.audio.prosody import UTTERANCE_DIM
from paras2s.errors import AudioError, DataError
from paras2s.reward.tone_classifier import ToneClassifier

TONES = ("amazed", "calm", "gentle", "neutral")


def clusters(tones: tuple[str, ...] = TONES, per_tone: int = 30) -> tuple[np.ndarray, list[str], list[str]]:
    """Overlapping Gaussian features [n, 45] around one centre a tone, shared out among three speakers."""
    rng = np.random.default_rng(0)
    centres = rng.normal(size=(len(tones), UTTERANCE_DIM)) * 0.3
    features = (centres.repeat(per_tone, axis=0) + rng.normal(size=(len(tones) * per_tone, UTTERANCE_DIM))) * 7 + 3
    labels = [tone for tone in tones for _ in range(per_tone)]
    return features, labels, [f"s{i % 3}" for i in range(len(labels))]


@pytest.mark.parametrize("tones", [TONES, TONES[:2]], ids=["four tones", "two tones"])
def test_probabilities_equal_sklearns(tones: tuple[str, ...]) -> None:
    features, labels, speakers = clusters(tones)
    train = np.array([speaker != "s2" for speaker in speakers])
    pipeline = make_pipeline(StandardScaler(), LogisticRegression(C=0.3, max_iter=3000))
    pipeline.fit(features[train], np.array(labels)[train])
    classifier = ToneClassifier.fit(features, labels, speakers, held_out=["s2"])
    assert classifier.labels == tuple(pipeline.classes_)
    np.testing.assert_allclose(classifier.probabilities(features), pipeline.predict_proba(features), atol=1e-9)
    assert classifier.predict(features) == pipeline.predict(features).tolist()


def test_report_is_of_the_held_out_speakers_only() -> None:
    features, labels, speakers = clusters()
    report = ToneClassifier.fit(features, labels, speakers, held_out=["s1", "s2"]).report
    assert report["speakers"] == ["s1", "s2"]
    assert report["n"] == 80
    assert np.sum(report["confusion"], axis=1).tolist() == [20] * 4
    assert report["accuracy"] == np.trace(report["confusion"]) / 80


def test_nobody_held_out_gives_no_accuracy() -> None:
    report = ToneClassifier.fit(*clusters(), held_out=[]).report
    assert (report["n"], report["accuracy"], report["speakers"]) == (0, None, [])


def sign_classifier() -> ToneClassifier:
    """Tone "up" where the first feature is positive, with the log-odds equal to that feature."""
    coef = np.zeros((2, UTTERANCE_DIM))
    coef[1, 0] = 1.0
    ones = np.ones(UTTERANCE_DIM)
    return ToneClassifier(("down", "up"), 0 * ones, ones, coef, np.zeros(2), report={})


def test_evaluate_by_hand() -> None:
    features = np.zeros((5, UTTERANCE_DIM))
    features[:, 0] = [-1, 2, 3, -4, 5]
    report = sign_classifier().evaluate(features, ["down", "down", "up", "up", "up"], ["b", "a", "a", "b", "b"])
    assert report == {
        "accuracy": 0.6,
        "labels": ["down", "up"],
        "confusion": [[1, 1], [1, 2]],
        "n": 5,
        "speakers": ["a", "b"],
    }


def test_probability_by_hand_and_without_overflow() -> None:
    features = np.zeros((2, UTTERANCE_DIM))
    features[:, 0] = [np.log(3), 1e4]
    np.testing.assert_allclose(sign_classifier().probabilities(features), [[0.25, 0.75], [0.0, 1.0]])


def test_unknown_label_is_refused() -> None:
    with pytest.raises(DataError, match="sideways"):
        sign_classifier().evaluate(np.zeros((1, UTTERANCE_DIM)), ["sideways"], ["a"])


def test_bad_training_sets_are_refused() -> None:
    features, labels, speakers = clusters()
    with pytest.raises(DataError, match="120 features, 119 labels"):
        ToneClassifier.fit(features, labels[1:], speakers, held_out=[])
    with pytest.raises(DataError, match="without a clip: s9"):
        ToneClassifier.fit(features, labels, speakers, held_out=["s9"])
    with pytest.raises(DataError, match="two tones"):
        ToneClassifier.fit(features, labels, speakers, held_out=["s0", "s1", "s2"])


def test_saved_classifier_is_the_same(tmp_path: Path) -> None:
    features, labels, speakers = clusters()
    classifier = ToneClassifier.fit(features, labels, speakers, held_out=["s2"])
    classifier.save(tmp_path / "tone.json")
    loaded = ToneClassifier.load(tmp_path / "tone.json")
    np.testing.assert_array_equal(loaded.probabilities(features), classifier.probabilities(features))
    assert (loaded.labels, loaded.report, loaded.version) == (classifier.labels, classifier.report, classifier.version)


def test_version_follows_the_fit() -> None:
    features, labels, speakers = clusters()
    versions = {ToneClassifier.fit(features, labels, speakers, held_out=[name]).version for name in ("s0", "s1")}
    assert len(versions) == 2


@pytest.mark.parametrize(
    ("change", "complaint"),
    [
        ({"features": "prosody/0"}, "fitted on features prosody/0"),
        ({"labels": ["down"]}, "do not fit"),
        ({"mean": [0.0]}, "do not fit"),
        ({"coef": "text"}, "not a tone classifier"),
        ({"report": None}, "not a tone classifier"),
    ],
)
def test_wrong_file_is_named(tmp_path: Path, change: dict[str, object], complaint: str) -> None:
    path = tmp_path / "tone.json"
    sign_classifier().save(path)
    path.write_text(json.dumps({**json.loads(path.read_text()), **change}))
    with pytest.raises(DataError, match=complaint) as caught:
        ToneClassifier.load(path)
    assert str(caught.value).startswith(f"{path}: ")


@pytest.mark.parametrize("content", ["[1, 2]", "{}", "3", "null", "nonsense"])
def test_other_json_is_not_a_classifier(tmp_path: Path, content: str) -> None:
    path = tmp_path / "other.json"
    path.write_text(content)
    with pytest.raises(DataError, match=r"other\.json: not"):
        ToneClassifier.load(path)


def test_scores_of_a_clip_sum_to_1_and_silence_has_none() -> None:
    noise = (0.1 * np.random.default_rng(0).normal(size=24_000)).astype(np.float32)
    scores = sign_classifier().scores(Clip(noise, 24_000))
    assert list(scores) == ["down", "up"]
    assert sum(scores.values()) == pytest.approx(1.0)
    with pytest.raises(AudioError, match="silent"):
        sign_classifier().scores(Clip(np.zeros(24_000, dtype=np.float32), 24_000))
