"""A study's results as text: the cells that the terminal and the studio's page share, and the terminal's tables."""

from __future__ import annotations

from collections.abc import Iterator

from rich.console import Console
from rich.table import Table

from paras2s.statistics.intervals import Interval
from paras2s.studio.annotation.results import JudgeAgreement, QuestionAgreement, Results


def cell(one: Interval | None, is_share: bool = False) -> str:
    """A figure with its interval, or the reason why there is none."""
    if one is None:
        return ""
    if one.value is None:
        return f"none ({getattr(one, 'why_none', None) or 'not defined'})"
    scale, digits, unit = (100.0, 1, " %") if is_share else (1.0, 3, "")
    text = f"{scale * one.value:.{digits}f}{unit}"
    if one.low is None or one.high is None:
        return text
    return f"{text} ({scale * one.low:.{digits}f} to {scale * one.high:.{digits}f})"


def agreement_rows(one: QuestionAgreement) -> Iterator[tuple[str, str, int | str]]:
    """Statistic, figure and number of items of one question."""
    yield "same choice", cell(one.observed, is_share=True), one.observed.n
    yield "Krippendorff's alpha", cell(one.alpha), one.alpha.n
    if one.fleiss is not None:
        yield "Fleiss' kappa", cell(one.fleiss), one.fleiss.n
        yield "split-half ceiling (majorities agree)", cell(one.split_half, is_share=True), one.split_half.n
    else:
        yield "split-half reliability of the mean", cell(one.split_half), one.split_half.n
    for names, share in one.cohen.items():
        yield f"Cohen's kappa: {names}", cell(share), share.n
    for names, r in one.pearson.items():
        yield f"Pearson's r: {names}", cell(r), ""


def judge_cells(one: JudgeAgreement) -> tuple[str, str, str, str]:
    """Judge and question, two figures, and items with both sides beside those the judge left unscored."""
    count = f"{one.n} ({one.unscored} unscored)" if one.unscored else str(one.n)
    if one.accuracy is not None or one.kappa is not None:
        return one.question, f"agrees {cell(one.accuracy, is_share=True)}", f"kappa {cell(one.kappa)}", count
    if one.pearson is not None:
        return one.question, f"Pearson {cell(one.pearson)}", f"Spearman {cell(one.spearman)}", count
    return one.question, "none (no item has a majority)", "", count


def show_results(console: Console, results: Results) -> None:
    """Prints the tables."""
    people = Table("annotator", "done", "skipped", "gold right", "median s", "plays", title=results.title, title_justify="left")
    for one in results.annotators:
        gold = f"{one.gold_right} of {one.gold_given}" if one.gold_given else "-"
        time = "-" if one.median_time_s is None else f"{one.median_time_s:.1f}"
        plays = "-" if one.mean_plays is None else f"{one.mean_plays:.1f}"
        people.add_row(one.name, f"{one.done} of {one.n_items}", str(one.skipped), gold, time, plays)
    console.print(people)
    agreement = Table("question", "people with people", "value (95 %)", "items")
    for question in results.questions:
        for statistic, value, n in agreement_rows(question):
            agreement.add_row(question.title, statistic, value, str(n))
    console.print(agreement)
    if results.judges:
        judges = Table("judge", "question", "with people", "", "items")
        for judge in results.judges:
            judges.add_row(judge.judge, *judge_cells(judge))
        console.print(judges)
    for name, annotator, why in results.skipped:
        console.print(f"skipped by {annotator}: {name}: {why}", highlight=False, markup=False)
