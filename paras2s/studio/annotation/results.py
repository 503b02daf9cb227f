"""Results of a study: who did what, how far people agree with each other, and with each judge, by question.

Gold items check the annotators, and count nowhere else. An item that was skipped has no values: it is counted, with its reason.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from itertools import combinations
from pathlib import Path
from statistics import fmean, median
from typing import Any, cast

from paras2s.bench.results import FITTING_SCORE
from paras2s.bench.speakbench.metrics import accuracy, cohen_kappa
from paras2s.bench.speakbench.verdicts import load_verdicts
from paras2s.errors import DataError
from paras2s.reward.fusion import find_rule
from paras2s.statistics.annotators import (
    Agreement,
    fleiss_kappa,
    krippendorff,
    majority,
    observed_agreement,
    split_half_labels,
    split_half_scores,
)
from paras2s.statistics.correlation import Correlation, correlations
from paras2s.statistics.intervals import Share
from paras2s.studies.clicks import label_of_scores
from paras2s.studies.forms import FormQuestion
from paras2s.studies.store import StudyStore
from paras2s.studies.study import Study, StudyItem
from paras2s.types import DIMENSIONS, Label

OVERALL, FITNESS = "overall", "fitness"


@dataclass(frozen=True)
class Annotation:
    """One item as one annotator left it, done or skipped; `values` by question, () of a skipped one."""

    annotator: str
    number: int
    values: dict[str, str]
    skipped: str | None
    plays: dict[str, int]
    time_s: float | None
    comment: str


@dataclass(frozen=True)
class AnnotatorSummary:
    """One annotator: items done and skipped of all, gold values right of given, and the median time and plays of an item."""

    name: str
    done: int
    skipped: int
    n_items: int
    gold_right: int
    gold_given: int
    median_time_s: float | None
    mean_plays: float | None


@dataclass(frozen=True)
class QuestionAgreement:
    """The agreement of people on one question. `fleiss` and `cohen` are of labels, `pearson` of scores; those two by pair."""

    name: str
    title: str
    observed: Agreement
    alpha: Agreement
    fleiss: Agreement | None
    split_half: Agreement
    cohen: dict[str, Share]
    pearson: dict[str, Correlation]


@dataclass(frozen=True)
class JudgeAgreement:
    """One judge against people's majority label (share and kappa), or against their mean score (correlations)."""

    judge: str
    question: str
    accuracy: Share | None
    kappa: Share | None
    pearson: Correlation | None
    spearman: Correlation | None
    n: int
    unscored: int


@dataclass(frozen=True)
class Results:
    """All results of a study so far. `skipped` holds item, annotator and reason."""

    title: str
    kind: str
    n_items: int
    n_gold: int
    annotators: tuple[AnnotatorSummary, ...]
    questions: tuple[QuestionAgreement, ...]
    judges: tuple[JudgeAgreement, ...]
    skipped: tuple[tuple[str, str, str], ...]

    def to_json(self) -> dict[str, Any]:
        """Return the results as plain JSON."""
        return asdict(self)


def list_annotations(store: StudyStore) -> list[Annotation]:
    """Return all items that are done or skipped, by annotator in the order they were added, by the item's number."""
    return [
        Annotation(annotator.name, number, choices, state.skipped, dict(state.plays), state.time_s, state.comment)
        for annotator in store.annotators()
        for number, state in sorted(store.progress(annotator.name).items.items())
        if state.closed
        for choices in [dict(state.choices) if state.skipped is None else {}]
    ]


def summaries(store: StudyStore) -> tuple[AnnotatorSummary, ...]:
    """Return the summary of every annotator."""
    annotations = list_annotations(store)
    return tuple(_summary(annotator.name, store.study, annotations) for annotator in store.annotators())


def results(store: StudyStore, verdicts: Mapping[str, Path] | None = None) -> Results:
    """Return the results so far; `verdicts` names files of `bench speakbench` by judge. Raises DataError: they do not fit."""
    study, annotations = store.study, list_annotations(store)
    counted = [annotation for annotation in annotations if not study.items[annotation.number].gold]
    judged = dict(_judges_of_items(study))
    if verdicts:
        if study.kind != "pair":
            raise DataError(f"{store.folder}: verdicts on pairs do not fit a study of kind {study.kind}")
        for name, path in verdicts.items():
            judged |= _judge_of_file(name, path)
    skipped = [
        (_name(study.items[annotation.number]), annotation.annotator, annotation.skipped)
        for annotation in annotations
        if annotation.skipped is not None
    ]
    return Results(
        study.title,
        study.kind,
        len(study.items),
        sum(bool(item.gold) for item in study.items),
        summaries(store),
        tuple(_agreement(question, study, counted) for question in store.form.questions),
        tuple(_with_judge(judge, name, values, study, counted) for (judge, name), values in judged.items()),
        tuple(skipped),
    )


def _name(item: StudyItem) -> str:
    return f"{item.id} ({' and '.join(item.key[1:])})"


def _summary(name: str, study: Study, annotations: Iterable[Annotation]) -> AnnotatorSummary:
    mine = [annotation for annotation in annotations if annotation.annotator == name]
    gold = [
        annotation.values.get(question) == value
        for annotation in mine
        if annotation.skipped is None
        for question, value in study.items[annotation.number].gold.items()
    ]
    times = [annotation.time_s for annotation in mine if annotation.time_s is not None]
    plays = [sum(annotation.plays.values()) for annotation in mine]
    return AnnotatorSummary(
        name,
        sum(annotation.skipped is None for annotation in mine),
        sum(annotation.skipped is not None for annotation in mine),
        len(study.items),
        sum(gold),
        len(gold),
        median(times) if times else None,
        fmean(plays) if plays else None,
    )


def _units(question: str, annotations: Iterable[Annotation]) -> dict[int, dict[str, str]]:
    """Return values by annotator, by item."""
    units: dict[int, dict[str, str]] = {}
    for annotation in annotations:
        if question in annotation.values:
            units.setdefault(annotation.number, {})[annotation.annotator] = annotation.values[question]
    return dict(sorted(units.items()))


def _agreement(question: FormQuestion, study: Study, annotations: Sequence[Annotation]) -> QuestionAgreement:
    units = _units(question.name, annotations)
    values, clusters = list(units.values()), [study.items[number].cluster for number in units]
    names = list(dict.fromkeys(annotation.annotator for annotation in annotations))
    cohen: dict[str, Share] = {}
    pearson: dict[str, Correlation] = {}
    for a, b in combinations(names, 2):
        both = [(unit[a], unit[b], name) for unit, name in zip(values, clusters, strict=True) if a in unit and b in unit]
        first, second, groups = ([row[column] for row in both] for column in range(3))
        if question.is_score:
            pearson[f"{a}, {b}"] = correlations([(float(x), float(y)) for x, y in zip(first, second, strict=True)], groups)[0]
        elif both and study.kind == "pair":
            cohen[f"{a}, {b}"] = cohen_kappa(cast(list[Label], first), cast(list[Label | None], second), groups)
    return QuestionAgreement(
        question.name,
        question.title,
        observed_agreement(values, clusters),
        krippendorff(values, clusters, "interval" if question.is_score else "nominal"),
        None if question.is_score else fleiss_kappa(values, clusters),
        (split_half_scores if question.is_score else split_half_labels)(values, clusters),
        cohen,
        pearson,
    )


# A judge's values of one question by item: a label, a score, or None if it has none.
Judged = dict[tuple[str, str], dict[int, str | float | None]]


def _judges_of_items(study: Study) -> Judged:
    """Return judges' scores that came with the items: of pairs as typed labels, of single answers as they are."""
    judged: Judged = {}
    names = dict.fromkeys(name for item in study.items for answer in item.answers for name in answer.scores)
    for name in names:
        for number, item in enumerate(study.items):
            scores = [answer.scores.get(name) for answer in item.answers]
            known = [score for score in scores if isinstance(score, float)]
            if study.kind == "single":
                judged.setdefault((name, FITNESS), {})[number] = known[0] if known else None
            elif study.kind == "pair":
                label = label_of_scores(known[0], known[1], FITTING_SCORE) if len(known) == 2 else None
                judged.setdefault((name, OVERALL), {})[number] = label
    return judged


def _judge_of_file(name: str, path: Path) -> Judged:
    judged: Judged = {(name, dimension): {} for dimension in (*DIMENSIONS, OVERALL)}
    rule = find_rule("speakbench")
    for number, row in load_verdicts(path).items():
        for dimension in DIMENSIONS:
            judged[name, dimension][number] = None if row.labels is None else row.labels[dimension]
        judged[name, OVERALL][number] = None if row.labels is None else rule.fuse(row.labels)
    return judged


def _with_judge(
    judge: str, question: str, values: Mapping[int, str | float | None], study: Study, annotations: Sequence[Annotation]
) -> JudgeAgreement:
    units = _units(question, annotations)
    numbers = list(units)
    clusters = [study.items[number].cluster for number in numbers]
    given = [values.get(number) for number in numbers]
    unscored = given.count(None)
    if study.kind == "pair":
        # An item without a majority has no label to agree with.
        labels = [majority(list(unit.values())) for unit in units.values()]
        known = [row for row in zip(labels, given, clusters, strict=True) if row[0] is not None]
        people, guess, groups = ([row[column] for row in known] for column in range(3))
        if not known:
            return JudgeAgreement(judge, question, None, None, None, None, 0, unscored)
        pair = (cast(list[Label], people), cast(list[Label | None], guess), cast(list[str], groups))
        return JudgeAgreement(judge, question, accuracy(*pair), cohen_kappa(*pair), None, None, len(known), unscored)
    both = [
        ((float(value), fmean(map(float, units[number].values()))), name)
        for number, value, name in zip(numbers, given, clusters, strict=True)
        if value is not None
    ]
    pearson, spearman = correlations([pair for pair, _ in both], [name for _, name in both])
    return JudgeAgreement(judge, question, None, None, pearson, spearman, len(both), unscored)
