"""The style of a question as a reward may know it: not by its label, but by its words and its sound.

A question has several styles at once: a woman's sarcastic one is `female` and `sarcastic`, and a classifier of all styles
names either. Which of them counts depends on what is said: praise may be sarcastic, and advice is for a man or a woman. So
the words of labelled questions tell the category, and the sound tells the style among the category's own.
Alphabet: N questions, K categories, C styles.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

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


def guess_styles(dataset: Dataset, queries: Sequence[Query]) -> list[str]:
    """Return the likeliest style of each question by its words and its sound; their own labels are not read."""
    if not queries:
        return []
    tone = dataset.user_tone
    by_sound = tone.probabilities(np.stack([dataset.clip_features(query.clip, CODEC).utterance for query in queries]))
    labelled = [query for query in dataset.queries if query.role in LABELLED and query.category and query.style]
    styles_of: dict[str, set[str]] = {}
    for query in labelled:
        if query.style in tone.labels:
            styles_of.setdefault(query.category or "", set()).add(query.style or "")
    if not styles_of:
        return [tone.labels[number] for number in by_sound.argmax(1)]
    return likeliest(by_sound, tone.labels, _categories(labelled, sorted(styles_of), queries), styles_of)


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


def _categories(labelled: Sequence[Query], categories: Sequence[str], queries: Sequence[Query]) -> np.ndarray:
    """Return probabilities [N, K] of each category by the words of the questions."""
    if len(categories) == 1:
        return np.ones((len(queries), 1))
    from sklearn.linear_model import LogisticRegression

    known = [query for query in labelled if query.category in categories]
    model = LogisticRegression(C=WORDS_C, max_iter=2000)
    model.fit(embed_sentences([query.transcript for query in known]), [query.category for query in known])
    return np.asarray(model.predict_proba(embed_sentences([query.transcript for query in queries])))
