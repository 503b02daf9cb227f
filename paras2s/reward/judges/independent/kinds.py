"""Kinds of answers by n-grams of words and letters: a linear classifier on sentences that the rubric does not know.

The rubric compares embeddings of a sentence model, which the policy and the data's filters use as well.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from importlib import resources
from typing import Any

import yaml

from paras2s.audio.asr import normalise_words
from paras2s.utils.cache import key_of


class KindClassifier:
    """Fitted on sentences by kind; recognises the kind of a transcript with a probability."""

    def __init__(self, sentences: Mapping[str, Sequence[str]]) -> None:
        from sklearn.feature_extraction.text import TfidfVectorizer
        from sklearn.linear_model import LogisticRegression
        from sklearn.pipeline import make_pipeline, make_union

        self.version = f"ngrams/1-{key_of({kind: list(rows) for kind, rows in sentences.items()})[:8]}"
        texts = [normalise_words(text) for rows in sentences.values() for text in rows]
        kinds = [kind for kind, rows in sentences.items() for _ in rows]
        # Letters within words forgive what a recogniser spells in another way.
        words = TfidfVectorizer(ngram_range=(1, 2), sublinear_tf=True, token_pattern=r"[a-z']+")
        letters = TfidfVectorizer(analyzer="char_wb", ngram_range=(3, 5), sublinear_tf=True)
        linear = LogisticRegression(C=20.0, max_iter=2000, class_weight="balanced")
        self._model: Any = make_pipeline(make_union(words, letters), linear).fit(texts, kinds)

    def recognise(self, transcript: str) -> tuple[str, float]:
        """Return the most probable kind of an answer, and its probability."""
        shares = self._model.predict_proba([normalise_words(transcript)])[0]
        best = int(shares.argmax())
        return str(self._model.classes_[best]), float(shares[best])


@functools.lru_cache(maxsize=1)
def load_sentences() -> dict[str, tuple[str, ...]]:
    """Return the shipped sentences by kind."""
    text = resources.files("paras2s.reward.judges.independent").joinpath("kinds.yaml").read_text(encoding="utf-8")
    return {kind: tuple(rows) for kind, rows in yaml.safe_load(text).items()}


@functools.lru_cache(maxsize=1)
def load_kinds() -> KindClassifier:
    """Return the classifier on the shipped sentences; fitting takes a fraction of a second and gives the same every time."""
    return KindClassifier(load_sentences())
