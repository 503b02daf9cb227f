"""The style of a question as a reward may know it: not by its label, but by its words and its sound.

A question has several styles at once: a woman's sarcastic one is `female` and `sarcastic`, and a classifier of all styles
names either. Which of them counts depends on what is said: praise may be sarcastic, and advice is for a man or a woman. So
the words of labelled questions tell the category, and the sound tells the style among the category's own.
Alphabet: N questions, K categories, C styles.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import Any

import numpy as np

from paras2s.audio.text_embedding import embed_sentences
from paras2s.data_gen.dataset import Dataset
from paras2s.data_gen.policy_inputs import CODEC
from paras2s.data_gen.scripted.demonstrations import LABELLED
from paras2s.types import Query

# Named in audits, so that one of other guesses is made again.
VERSION = "words-and-sound/1"
# Inverse strength of the penalty of the classifier of categories.
WORDS_C = 10.0


class StyleGuesses:
    """The likeliest style of each question by its words and its sound, guessed when it is needed; its label is not read."""

    def __init__(self, dataset: Dataset) -> None:
        self._dataset, self._tone, self._known = dataset, dataset.user_tone, dict[str, str]()
        self._labelled = [query for query in dataset.queries if query.role in LABELLED and query.category and query.style]
        self._styles_of: dict[str, set[str]] = {}
        for query in self._labelled:
            if query.style in self._tone.labels:
                self._styles_of.setdefault(query.category or "", set()).add(query.style or "")

    def of(self, query: Query) -> str:
        """Return the guess of a question, made once."""
        if query.id not in self._known:
            self._known[query.id] = self._guess(query)
        return self._known[query.id]

    def _guess(self, query: Query) -> str:
        by_sound = self._tone.probabilities(self._dataset.clip_features(query.clip, CODEC).utterance[None])
        if not self._styles_of:
            return str(self._tone.labels[by_sound[0].argmax()])
        return likeliest(by_sound, self._tone.labels, self._categories(query.transcript), self._styles_of)[0]

    def _categories(self, words: str) -> np.ndarray:
        """Return the probability [1, K] of each category by a question's words."""
        if len(self._styles_of) == 1:
            return np.ones((1, 1))
        return np.asarray(self._by_words.predict_proba(embed_sentences([words])))

    @cached_property
    def _by_words(self) -> Any:
        from sklearn.linear_model import LogisticRegression

        known = [query for query in self._labelled if query.category in self._styles_of]
        model = LogisticRegression(C=WORDS_C, max_iter=2000)
        return model.fit(embed_sentences([query.transcript for query in known]), [query.category for query in known])


def likeliest(
    by_sound: np.ndarray, styles: Sequence[str], categories: np.ndarray, styles_of: Mapping[str, set[str]]
) -> list[str]:
    """Return the style with the highest probability of its category times its own share among the category's styles.

    `by_sound` [N, C] are probabilities of styles by sound, `categories` [N, K] those of sorted `styles_of` by words.
    """
    joint = np.zeros_like(by_sound)
    for number, (_, own) in enumerate(sorted(styles_of.items())):
        columns = [styles.index(style) for style in sorted(own)]
        among = by_sound[:, columns] / np.maximum(by_sound[:, columns].sum(1, keepdims=True), 1e-12)
        # A style of two categories counts in the likelier one.
        joint[:, columns] = np.maximum(joint[:, columns], categories[:, [number]] * among)
    return [styles[number] for number in joint.argmax(1)]
