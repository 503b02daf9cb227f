"""What the baselines of the embedded world say: choices by hand from the rubric's table, and when a dataset has none.

Not covered: how the answers sound; `bench contrasts` speaks and judges them in tests/integration/test_contrasts_cli.py.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import pytest

from paras2s.audio.prosody import UTTERANCE_DIM
from paras2s.bench.paras2s import scripted_baselines
from paras2s.bench.paras2s.scripted_baselines import (
    BAD,
    CONSTANT,
    FLAT,
    LINEAR,
    PROSODY,
    STYLE_DEAF,
    best_kind,
    missing_for,
    open_baseline,
)  # fmt: skip
from paras2s.bench.systems import CASCADE, TOPLINE, SpokenQuestion
from paras2s.configs.schema.run import DataConfig
from paras2s.data_gen.scripted.scripts import load_cascade, load_contrasts, load_families
from paras2s.data_gen.tts.render import Take
from paras2s.pipeline.data import takes_of_later_stages
from paras2s.reward.judges.rubric_rules import load_rubric
from paras2s.types import Query, Role

RUBRIC, _ = load_rubric()


def query(name: str, style: str, role: Role = "test", category: str = "emotion", contrast: str = "c0") -> Query:
    return Query(name, contrast, category, "t", role, "m1", f"{name}.wav", 1.0, "words", "words", style)  # type: ignore[arg-type]


@dataclass
class Features:
    utterance: np.ndarray


class Labelled:
    """Stands for a dataset: its queries by role, and features in which happy questions are high and sad ones low.

    The silent ones all have the same features.
    """

    def __init__(self, queries: list[Query], silent: Sequence[Query] = (), high: Collection[str] = ("happy",)) -> None:
        self.queries, self.silent, self.high = queries, [one.clip for one in silent], high

    def of_role(self, role: str) -> list[Query]:
        return [one for one in self.queries if one.role == role]

    def clip_features(self, clip: str, codec: object) -> Features:
        if clip in self.silent:
            return Features(np.zeros(UTTERANCE_DIM))
        high = next(one.style for one in self.queries if one.clip == clip) in self.high
        return Features(np.full(UTTERANCE_DIM, 1.0 if high else -1.0) + 0.01 * len(clip))


@pytest.mark.parametrize(
    ("styles", "kind"),
    [
        # 5 + 1, 1 + 5: the first of the contrast's own where kinds are equal.
        (("happy", "sad"), "happy"),
        (("sad", "happy"), "sad"),
        # Surprise pays 5 for itself and 3 to the happy; happiness 5 and 3.
        (("happy", "surprised"), "happy"),
        # Anger pays 2 to the surprised, surprise 1 to the angry.
        (("angry", "surprised"), "angry"),
        (("sincere", "sarcastic"), "sincere"),
        (("adult", "child"), "adult"),
    ],
)
def test_the_best_kind_for_two_styles(styles: tuple[str, str], kind: str) -> None:
    assert best_kind(RUBRIC, styles) == kind


def test_the_deaf_oracles_mean_over_all_scripts() -> None:
    means = [
        np.mean([RUBRIC.content_score(style, best_kind(RUBRIC, contrast.styles)) for style in contrast.styles])
        for contrast in load_contrasts()
    ]
    # By hand: surprised with sad, angry or disgust is 5 + 2 over 2 (60 contrasts), every other pair 5 + 1 over 2.
    assert np.mean(means) == pytest.approx((60 * 3.5 + (len(means) - 60) * 3.0) / len(means))


def test_the_deaf_oracle_says_one_thing_to_both_styles_and_the_topline_does_not() -> None:
    pair = [query("a", "sad"), query("b", "happy")]
    deaf, topline = (open_baseline(name, Labelled(pair), pair, Path()).chooser for name in (STYLE_DEAF, TOPLINE))  # type: ignore[arg-type]
    questions = [SpokenQuestion(one.id, Path(), "", "", one.style, "emotion") for one in pair]
    assert deaf(questions[0]) == deaf(questions[1])
    assert [topline(one)[1] for one in questions] == ["gentle", "cheerful"]


def test_a_constant_answer_is_the_best_over_the_training_labels() -> None:
    labelled = [query("d", "child", "demonstration"), query("e", "child", "preference"), query("f", "male", "demonstration")]
    constant = open_baseline(CONSTANT, Labelled(labelled), [query("a", "male")], Path()).chooser  # type: ignore[arg-type]
    assert constant(SpokenQuestion("a", Path(), ""))[0] == load_families()["child"].answers


@pytest.mark.parametrize("name", [PROSODY, LINEAR])
def test_a_linear_model_hears_what_it_learned_from_labels(name: str) -> None:
    train = [query(f"d{n}", style, "demonstration") for n, style in enumerate(["happy", "sad"] * 3)]
    test = [query("aa", "sad"), query("bb", "happy")]
    questions = [SpokenQuestion(one.id, Path(), "", category="emotion") for one in test]
    listening = open_baseline(name, Labelled([*train, *test]), test, Path()).chooser  # type: ignore[arg-type]
    assert [listening(one)[0] for one in questions] == [load_families()[style].answers for style in ("sad", "happy")]
    # Without hearing it cannot: questions that sound alike get one answer.
    deaf = open_baseline(name, Labelled([*train, *test], silent=test), test, Path()).chooser  # type: ignore[arg-type]
    assert len({deaf(one) for one in questions}) == 1


def test_the_linear_model_reads_the_category_that_prosody_is_given() -> None:
    """Two categories whose styles sound alike: only the words tell which is which."""
    said = {"emotion": "I feel something about my holiday.", "age": "Which toy or pension should I buy?"}
    rows = [
        replace(query(f"{role}{n}{style}", style, role, category, contrast=f"{n}{category}"), transcript=said[category])
        for n in range(4) for category, styles in (("emotion", ("happy", "sad")), ("age", ("child", "adult")))
        for style in styles for role in ("demonstration", "test")
    ]  # fmt: skip
    test = [one for one in rows if one.role == "test"]
    chooser = open_baseline(LINEAR, Labelled(rows, high=("happy", "child")), test, Path()).chooser  # type: ignore[arg-type]
    chosen = [chooser(SpokenQuestion(one.id, Path(), "")) for one in test]
    assert [answers for answers, _ in chosen] == [load_families()[one.style or ""].answers for one in test]


@pytest.mark.parametrize(
    ("name", "queries", "reason"),
    [
        (CONSTANT, [query("a", "happy")], "no training query has a label"),
        (PROSODY, [query("a", "happy"), query("d", "happy", "demonstration")], "two known styles are needed, there are 1"),
        (LINEAR, [query("a", "happy"), query("d", "happy", "demonstration")], "two known styles are needed, there are 1"),
        (LINEAR, [query("a", "happy"), query("d", "happy", "demonstration"), query("e", "bored", "preference")], "there are 1"),
        (LINEAR, [query("a", "happy"), query("d", "child", "demonstration"), query("e", "sad", "preference")], None),
        (PROSODY, [query("a", "happy"), query("d", "sad", "demonstration", "age")], "there are 0"),
        (CASCADE, [query("a", "bored")], "no scripted answer for style 'bored'"),
        (STYLE_DEAF, [query("a", "happy")], None),
        (CONSTANT, [query("a", "happy"), query("d", "sad", "preference")], None),
    ],
)
def test_a_dataset_that_cannot_have_a_baseline_says_why(name: str, queries: list[Query], reason: str | None) -> None:
    found = missing_for(name, Labelled(queries), [one for one in queries if one.role == "test"])  # type: ignore[arg-type]
    assert (found is None) if reason is None else reason in (found or "")


def test_sentences_are_taken_in_turn(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    said = []

    def speak(takes: list, cache: Path) -> list:
        said.extend(take.text for take in takes)
        return [type("One", (), {"clip": None})() for _ in takes]

    monkeypatch.setattr(scripted_baselines, "render", speak)
    questions = [SpokenQuestion(str(n), Path(), "", category="age") for n in range(2)]
    cascade = open_baseline(CASCADE, Labelled([]), [], tmp_path)  # type: ignore[arg-type]
    answers = cascade.answer(questions, 2, lambda *_: None)
    first, second = load_cascade()["age"]
    assert said == [first, second, second, first]
    assert [[one.text for one in row] for row in answers] == [[first, second], [second, first]]


def test_all_that_baselines_say_is_spoken_with_the_data(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """But for the constant one, which may say what is no style's of these categories."""
    spoken = set(takes_of_later_stages(DataConfig(categories=("sarcasm", "gender"))))

    def speak(takes: list[Take], cache: Path) -> list[object]:
        assert not {take for take in takes if take not in spoken}
        return [type("One", (), {"clip": None})() for _ in takes]

    monkeypatch.setattr(scripted_baselines, "render", speak)
    contrasts = [one for one in load_contrasts() if one.category in ("sarcasm", "gender")]
    test = [query(f"{one.id}{style}", style, "test", one.category, one.id) for one in contrasts for style in one.styles]
    questions = [SpokenQuestion(one.id, Path(), "", "", one.style, one.category) for one in test]
    for name in (BAD, CASCADE, STYLE_DEAF, FLAT, TOPLINE):
        system = open_baseline(name, Labelled(test), test, tmp_path)  # type: ignore[arg-type]
        assert len(system.answer(questions, 2, lambda *_: None)) == len(test)
    # It is no matter of course: another category's answers are not among them.
    assert not {take.text for take in spoken} & set(load_families()["happy"].answers)
