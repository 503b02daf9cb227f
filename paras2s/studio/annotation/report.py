"""A study's results as text: the cells that the terminal and the studio's page share, and the terminal's tables."""

from __future__ import annotations

from collections.abc import Iterator

from rich.console import Console

from paras2s.statistics.intervals import Interval
from paras2s.studio.annotation.results import JudgeAgreement, QuestionAgreement, Results
from paras2s.utils.tables import Table, number_text, with_interval


def cell(figure: Interval | None, is_share: bool = False) -> str:
    """Return a figure with its interval, or the reason why there is none."""
    if figure is None:
        return ""
    if figure.value is None:
        return f"none ({getattr(figure, 'why_none', None) or 'not defined'})"
    return with_interval(figure, 1, scale=100.0, unit=" %") if is_share else with_interval(figure, 3)


def agreement_rows(agreement: QuestionAgreement) -> Iterator[tuple[str, str, int | str]]:
    """Return statistic, figure and number of items of one question."""
    yield "same choice", cell(agreement.observed, is_share=True), agreement.observed.n
    yield "Krippendorff's alpha", cell(agreement.alpha), agreement.alpha.n
    if agreement.fleiss is not None:
        yield "Fleiss' kappa", cell(agreement.fleiss), agreement.fleiss.n
        yield "split-half ceiling (majorities agree)", cell(agreement.split_half, is_share=True), agreement.split_half.n
    else:
        yield "split-half reliability of the mean", cell(agreement.split_half), agreement.split_half.n
    for names, share in agreement.cohen.items():
        yield f"Cohen's kappa: {names}", cell(share), share.n
    for names, r in agreement.pearson.items():
        yield f"Pearson's r: {names}", cell(r), ""


def judge_cells(judge: JudgeAgreement) -> tuple[str, str, str, str]:
    """Return judge and question, two figures, and items with both sides beside those the judge left unscored."""
    count = f"{judge.n} ({judge.unscored} unscored)" if judge.unscored else str(judge.n)
    if judge.accuracy is not None or judge.kappa is not None:
        return judge.question, f"agrees {cell(judge.accuracy, is_share=True)}", f"kappa {cell(judge.kappa)}", count
    if judge.pearson is not None:
        return judge.question, f"Pearson {cell(judge.pearson)}", f"Spearman {cell(judge.spearman)}", count
    return judge.question, "none (no item has a majority)", "", count


def show_results(console: Console, results: Results) -> None:
    """Print the tables."""
    people = [
        (person.name, f"{person.done} of {person.n_items}", person.skipped,
         f"{person.gold_right} of {person.gold_given}" if person.gold_given else None,
         number_text(person.median_time_s, 1), number_text(person.mean_plays, 1))
        for person in results.annotators
    ]  # fmt: skip
    Table(("annotator", "done", "skipped", "gold right", "median s", "plays"), people, results.title).show(console)
    agreement = [(question.title, *row) for question in results.questions for row in agreement_rows(question)]
    Table(("question", "people with people", "value (95 %)", "items"), agreement).show(console)
    if results.judges:
        judges = [(judge.judge, *judge_cells(judge)) for judge in results.judges]
        Table(("judge", "question", "with people", "", "items"), judges).show(console)
    for name, annotator, why in results.skipped:
        console.print(f"skipped by {annotator}: {name}: {why}")
