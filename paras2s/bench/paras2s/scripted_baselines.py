"""The baselines of the embedded world: scripted answers, spoken in the voice, vocoder and codec of the demonstrations.

They bound what a score can mean. The cascade knows the words, and what kind of remark it answers, which the words give away.
The constant answer knows nothing. The style-deaf oracle knows which two styles a contrast has and what the rubric pays, and
hears nothing: whoever does not beat it need not have measured anything. The prosody baseline knows the category and takes the
style from a linear classifier on the question's prosody. The linear baseline knows nothing and has what the policy has: a
linear classifier of all styles reads the recognised words and hears the prosody. The topline knows the true style. Two know it
and make less of it, as in the paper's Table 1: the flat one says the topline's words neutrally, the bad one answers the other
style, and a judge that does not put it last is no judge. One take each: no best is picked.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np

from paras2s.bench.systems import CASCADE, TOPLINE, Progress, Response, SpokenQuestion
from paras2s.data_gen.dataset import Dataset
from paras2s.data_gen.policy_inputs import CODEC
from paras2s.data_gen.scripted.scripts import load_cascade, load_families
from paras2s.data_gen.tts.piper_world import AGENT, AGENT_TONES
from paras2s.data_gen.tts.render import Take, render
from paras2s.reward.judges.rubric_rules import Rubric, load_rubric
from paras2s.reward.tone_classifier import ToneClassifier
from paras2s.types import Category, Query

BAD, CONSTANT, STYLE_DEAF, PROSODY, LINEAR, FLAT = "bad", "constant", "style_deaf", "prosody", "linear", "flat"
SCRIPTED = (BAD, CONSTANT, CASCADE, STYLE_DEAF, LINEAR, PROSODY, FLAT, TOPLINE)


# Returns, for a question, the sentences that a baseline takes in turn, all as good to it, and their tone.
Chooser = Callable[[SpokenQuestion], tuple[tuple[str, ...], str]]


@dataclass(frozen=True)
class ScriptedBaseline:
    """Speaks what a baseline chooses; questions that get the same sentences get them in turn."""

    chooser: Chooser
    cache: Path

    def answer(self, questions: Sequence[SpokenQuestion], count: int, on_progress: Progress) -> list[list[Response]]:
        """`count` answers to each question."""
        takes = []
        for number, question in enumerate(questions):
            sentences, tone = self.chooser(question)
            texts = [sentences[(number + n) % len(sentences)] for n in range(count)]
            takes += [_take(text, tone) for text in texts]
        responses = [Response(take.text, sound.clip) for take, sound in zip(takes, render(takes, self.cache), strict=True)]
        on_progress(len(questions), len(questions))
        return [responses[start : start + count] for start in range(0, len(responses), count)]


def _take(text: str, tone: str) -> Take:
    return Take(text, AGENT, AGENT_TONES[tone], 0, coded=True)


def baseline_takes(styles: Sequence[str], categories: Sequence[Category]) -> list[Take]:
    """Return all that the baselines may say to questions of these styles; the constant baseline may say more."""
    own = [_of_style(style) for style in styles]
    takes = [_take(text, said) for sentences, tone in own for text in sentences for said in (tone, "neutral")]
    return takes + [_take(text, "neutral") for category in categories for text in load_cascade()[category]]


def _of_style(style: str | None) -> tuple[tuple[str, ...], str]:
    family = load_families()[style or ""]
    return family.answers, family.tone


def best_kind(rubric: Rubric, styles: Sequence[str]) -> str:
    """Return the kind of answer with the highest mean score of its words over styles, of those that have scripted sentences.

    Its own tone takes nothing away. Of equal kinds it is the first of the styles' own, then the first in the rubric.
    """
    kinds = list(dict.fromkeys((*styles, *(kind for kind in rubric.families if kind in load_families()))))
    return max(kinds, key=lambda kind: sum(rubric.content_score(style, kind) for style in styles))


def missing_for(name: str, dataset: Dataset, queries: Sequence[Query]) -> str | None:
    """Return why a dataset cannot have a baseline, or None. A user's dataset may have few labels, or other styles."""
    styles = {query.style or "" for query in queries}
    if unknown := sorted(styles - load_families().keys()):
        return f"there is no scripted answer for style {unknown[0]!r}"
    labelled = _labelled(dataset)
    lonely = [contrast for contrast, styles in _styles_of_contrasts(queries).items() if len(set(styles)) < 2]
    if name == BAD and lonely:
        return f"contrast {lonely[0]} has no other style"
    if name == CONSTANT and not labelled:
        return "no training query has a label"
    if name == LINEAR and (count := len({query.style for query in labelled})) < 2:
        return f"labelled training queries of two known styles are needed, there are {count}"
    if name == PROSODY:
        for category in dict.fromkeys(query.category for query in queries):
            if (count := len({query.style for query in labelled if query.category == category})) < 2:
                return f"{category}: labelled training queries of two known styles are needed, there are {count}"
    return None


def open_baseline(name: str, dataset: Dataset, queries: Sequence[Query], cache: Path) -> ScriptedBaseline:
    """Return a baseline by name, for some queries of a dataset; what it learns, it learns from labelled training queries."""
    return ScriptedBaseline(_chooser(name, dataset, queries), cache)


def _chooser(name: str, dataset: Dataset, queries: Sequence[Query]) -> Chooser:
    rubric, _ = load_rubric()
    labelled = _labelled(dataset)
    if name == CONSTANT:
        said = _of_style(best_kind(rubric, [query.style or "" for query in labelled]))
        return lambda question: said
    if name in (PROSODY, LINEAR):
        kinds = (_kinds_by_prosody if name == PROSODY else _kinds_by_words_and_prosody)(dataset, labelled, queries)
        return lambda question: _of_style(kinds[question.id])
    pairs = _styles_of_contrasts(queries)
    styles = {query.id: tuple(sorted(pairs[query.contrast_id])) for query in queries}
    rest: dict[str, Chooser] = {
        STYLE_DEAF: lambda question: _of_style(best_kind(rubric, styles[question.id])),
        BAD: lambda question: _of_style(next(style for style in styles[question.id] if style != question.style)),
        CASCADE: lambda question: (load_cascade()[question.category or ""], "neutral"),
        FLAT: lambda question: (_of_style(question.style)[0], "neutral"),
        TOPLINE: lambda question: _of_style(question.style),
    }
    return rest[name]


def _kinds_by_prosody(dataset: Dataset, labelled: Sequence[Query], queries: Sequence[Query]) -> dict[str, str]:
    """Return the style of each query, by id, among those of its category."""
    kinds: dict[str, str] = {}
    for category in dict.fromkeys(query.category for query in queries):
        own = [query for query in queries if query.category == category]
        kinds |= _predicted([query for query in labelled if query.category == category], own, partial(_prosody, dataset))
    return kinds


def _kinds_by_words_and_prosody(dataset: Dataset, labelled: Sequence[Query], queries: Sequence[Query]) -> dict[str, str]:
    """Return the style of each query, by id, among all."""
    from paras2s.audio.text_embedding import embed_sentences

    def features(query: Query) -> np.ndarray:
        return np.concatenate([embed_sentences([query.transcript])[0], _prosody(dataset, query)])

    return _predicted(labelled, queries, features)


def _predicted(labelled: Sequence[Query], queries: Sequence[Query], features: Callable[[Query], np.ndarray]) -> dict[str, str]:
    known, new = (np.stack([features(query) for query in rows]) for rows in (labelled, queries))
    styles, speakers = [query.style or "" for query in labelled], [query.speaker for query in labelled]
    predicted = ToneClassifier.fit(known, styles, speakers, ()).predict(new)
    return dict(zip([query.id for query in queries], predicted, strict=True))


def _styles_of_contrasts(queries: Sequence[Query]) -> dict[str, list[str]]:
    pairs: dict[str, list[str]] = {}
    for query in queries:
        pairs.setdefault(query.contrast_id, []).append(query.style or "")
    return pairs


def _labelled(dataset: Dataset) -> list[Query]:
    """Return the labelled training queries; those of a style without scripted answers are passed over."""
    labelled = (query for role in ("demonstration", "preference") for query in dataset.of_role(role))
    return [query for query in labelled if query.style in load_families()]


def _prosody(dataset: Dataset, query: Query) -> np.ndarray:
    return dataset.clip_features(query.clip, CODEC).utterance
