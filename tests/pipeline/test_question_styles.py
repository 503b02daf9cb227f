"""The style that a judge is told of a question: by hand, and for real sentences in real voices.

Not covered: how often the guess is right in the presets' data (CHANGELOG has it for three).
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest

from paras2s.data_gen.scripted.scripts import load_contrasts
from paras2s.data_gen.scripted.tones import load_tones
from paras2s.data_gen.tts.piper_world import SPEAKERS, USER_STYLES
from paras2s.data_gen.tts.render import Take, render
from paras2s.pipeline.question_styles import StyleGuesses, likeliest
from paras2s.types import Query

STYLES = ("female", "male", "sarcastic", "sincere")
OF = {"gender": {"female", "male"}, "sarcasm": {"sarcastic", "sincere"}}


@pytest.mark.parametrize(
    ("by_sound", "words", "style"),
    [
        # A woman's sarcasm: of the classifier's own order it is female.
        ([0.6, 0.0, 0.3, 0.1], [0.1, 0.9], "sarcastic"),
        ([0.6, 0.0, 0.3, 0.1], [0.9, 0.1], "female"),
        # Words in doubt: 0.5 x 0.6 / 0.6 against 0.5 x 0.3 / 0.4.
        ([0.6, 0.0, 0.3, 0.1], [0.5, 0.5], "female"),
        # What is likely of another category says nothing about this one.
        ([0.98, 0.0, 0.005, 0.015], [0.2, 0.8], "sincere"),
        ([1.0, 0.0, 0.0, 0.0], [0.9, 0.1], "female"),
    ],
)
def test_words_choose_the_category_and_sound_the_style(by_sound: list[float], words: list[float], style: str) -> None:
    assert likeliest(np.array([by_sound]), STYLES, np.array([words]), OF) == [style]


@dataclass
class Data:
    """Spoken questions of a dataset, without a folder."""

    queries: list[Query]
    voices: dict[str, Any]
    user_tone: Any = field(default_factory=lambda: load_tones()[0])

    def clip_features(self, name: str, codec: Any) -> Any:
        return self.voices[name].features


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Data:
    """Twelve labelled contrasts of two categories, and four others, each of whose two questions is said by a woman."""
    contrasts = [
        contrast
        for category in ("sarcasm", "emotion")
        for contrast in [each for each in load_contrasts() if each.category == category][:8]
    ]
    takes, queries = [], []
    for number, contrast in enumerate(contrasts):
        role = "preference" if number % 8 < 6 else "rl"
        for style in contrast.styles:
            takes.append(Take(contrast.text, SPEAKERS["train"]["female"][number % 3], USER_STYLES[style], number))
            queries.append(
                Query(f"{number}{style}", contrast.id, contrast.category, "", role, "", str(len(queries)), 1.0, contrast.text,
                      contrast.text, style)
            )  # fmt: skip
    return Data(queries, dict(zip(map(str, range(len(takes))), render(takes, tmp_path_factory.mktemp("voices")), strict=True)))


def test_guesses_read_no_label_of_the_question_itself_and_mostly_agree_with_it(data: Data) -> None:
    given = [query for query in data.queries if query.role == "rl"]
    hidden = [Query(**{**vars(query), "style": None, "category": None}) for query in given]
    guesses = StyleGuesses(data)  # type: ignore[arg-type]
    guessed = list(map(guesses.of, hidden))
    right = [guess == query.style for guess, query in zip(guessed, given, strict=True)]
    assert np.mean(right) >= 0.75
    assert list(map(guesses.of, given)) == guessed
    among_all = data.user_tone.predict(np.stack([data.clip_features(query.clip, None).utterance for query in given]))
    assert np.mean([guess == query.style for guess, query in zip(among_all, given, strict=True)]) < np.mean(right)


def test_without_labelled_questions_each_style_is_possible(data: Data) -> None:
    given = [query for query in data.queries if query.role == "rl"]
    unlabelled = Data(given, data.voices)
    among_all = data.user_tone.predict(np.stack([data.clip_features(query.clip, None).utterance for query in given]))
    assert list(map(StyleGuesses(unlabelled).of, given)) == among_all  # type: ignore[arg-type]


def test_one_category_needs_no_words(data: Data, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(texts: Any) -> Any:
        raise AssertionError("words were read")

    monkeypatch.setattr("paras2s.pipeline.question_styles.embed_sentences", refuse)
    own = [query for query in data.queries if query.category == "sarcasm"]
    guessed = list(map(StyleGuesses(Data(own, data.voices)).of, own))  # type: ignore[arg-type]
    assert np.mean([guess == query.style for guess, query in zip(guessed, own, strict=True)]) > 0.9
