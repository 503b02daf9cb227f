"""`paras2s bench curve`: over the steps of an alignment, what reward model, teacher and independent judge give its answers.

The answers are those to validation queries that the loop samples anyway, kept as clips. Where the reward model's score rises
and the judges' do not follow, the policy has learned the reward model and not the task (over-optimisation; Gao et al., 2023).
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from paras2s.audio.clip import read_clip
from paras2s.bench.paras2s.judges import AnswerJudge, JudgedAnswer, RunJudge
from paras2s.bench.paras2s.metrics import KindRow, cell, spoken_kinds
from paras2s.bench.plots.base import svg_of
from paras2s.bench.plots.curves import Curves
from paras2s.bench.systems import Response, question_of_query
from paras2s.data_gen.dataset import Dataset
from paras2s.errors import DataError
from paras2s.reward.judges.independent.judge import IndependentJudge
from paras2s.reward.judges.registry import WEIGHTS
from paras2s.reward.judges.rubric import RubricJudge
from paras2s.reward.reward_model.model import RewardModel
from paras2s.rollout.validation_answers import FOLDER, kept_evaluations
from paras2s.run import Run
from paras2s.statistics.means import CERTAIN_FROM, Estimate, clustered_mean, mean_of_means
from paras2s.types import Query, Verdict
from paras2s.utils.io import read_json, read_jsonl, write_json, write_text
from paras2s.utils.tables import Table, number_text, percent

STORED = "curve.json"
# In the order of the plot.
LINES = ("reward model", "teacher", "independent judge")


@dataclass(frozen=True)
class CurvePoint:
    """Scores of one step's answers, 1 to 5, each the mean of its categories; `paid` is the mean of the run's own reward.

    `kl` is the step's KL to the warm-up. `kind_text` is the kind of answers by their text streams, `kind_sound` by
    their sound, `garbled` the share in which the teacher recognised none. None is what was not measured.
    """

    step: int
    kl: float | None
    paid: float | None
    scores: dict[str, Estimate]
    answers: int
    kind_text: float | None = None
    kind_sound: float | None = None
    garbled: float | None = None

    def to_json(self) -> dict[str, Any]:
        """Return the point as plain JSON."""
        return asdict(self)


def judge_curve(run: Run, dataset: Dataset, model: RewardModel | None) -> list[CurvePoint]:
    """Judge the kept answers of all steps; a stored curve is read if it is of these answers and judges.

    A run without a reward model has no scores by it.

    Raises:
        DataError: the run kept no answers, answers to queries that the dataset does not have, or none that can be scored.
        AudioError: a kept clip is missing or broken.
    """
    kept = kept_evaluations(run.folder)
    if not kept:
        raise DataError(f"{run.folder / FOLDER}: no answers are kept; `paras2s align` keeps them at every evaluation")
    queries = {query.id: query for query in dataset.of_role("validation")}
    answers = {step: list(read_jsonl(folder / "answers.jsonl")) for step, folder in kept.items()}
    judges = (RunJudge(dataset, list(queries.values()), model), AnswerJudge(IndependentJudge()))
    # A reward model trained again, and a tone classifier fitted again, give other scores under the same names.
    weights = run.reward_dir / WEIGHTS
    versions = [hashlib.sha256(weights.read_bytes() if weights.is_file() else b"").hexdigest(), dataset.agent_tone.version]
    names = [*(judge.name for judge in judges), *versions]
    state = {"judges": names, "answers": {str(step): rows for step, rows in answers.items()}}
    stored = run.folder / FOLDER / STORED
    if stored.is_file() and (curve := read_json(stored)).get("of") == state:
        return [point_of(values) for values in curve["points"]]
    requests = []
    for step, rows in answers.items():
        for row in rows:
            if row["query_id"] not in queries:
                raise DataError(f"{kept[step]}: {row['query_id']} is no validation query of {dataset.folder}")
            clip = None if row["empty"] else read_clip(kept[step] / f"{row['query_id']}.wav")
            response = Response(row["text"], clip, "the answer is empty" if clip is None else None)
            requests.append((question_of_query(queries[row["query_id"]], dataset.folder), response))
    judged = []
    for judge in judges:
        with run.bar(f"curve, {judge.name.split('/')[0]}", len(requests)) as bar:
            judged.append(judge.judge_all(requests, bar.at))
        if all(answer.score is None for answer in judged[-1]):
            raise DataError(f"{run.folder / FOLDER}: {judge.name} scored no answer ({judged[-1][0].verdict.reason})")
    kl_of = {row["step"]: row.get("kl") for row in run.metrics()}
    points, start = [], 0
    for step, rows in answers.items():
        part = slice(start, start := start + len(rows))
        own = [queries[row["query_id"]] for row in rows]
        paid = [row["reward"] for row in rows if "reward" in row]
        points.append(
            CurvePoint(
                step, kl_of.get(step), sum(paid) / len(paid) if paid else None, _scores(own, judged[0][part], judged[1][part]),
                len(rows), *_spoken_kinds(own, rows, judged[0][part]),
            )
        )  # fmt: skip
    write_json(stored, {"of": state, "points": [point.to_json() for point in points]})
    return points


def _spoken_kinds(
    queries: Sequence[Query], rows: Sequence[dict[str, Any]], teacher: Sequence[JudgedAnswer]
) -> tuple[float | None, float | None, float | None]:
    """Return the kind of answers in their text and in their sound, and the share that is garbled."""
    answers = [
        KindRow(query.text or "", query.style or "", row["text"], verdict.parts, verdict.family, query.contrast_id)
        for query, row, judged in zip(queries, rows, teacher, strict=True)
        if isinstance(verdict := judged.verdict, Verdict)
    ]
    kinds = spoken_kinds(answers, RubricJudge())
    return kinds.text.estimate.mean, kinds.sound.estimate.mean, kinds.garbled.estimate.mean


def point_of(values: dict[str, Any]) -> CurvePoint:
    """Read a point back from its JSON."""
    return CurvePoint(**{**values, "scores": {name: Estimate(**estimate) for name, estimate in values["scores"].items()}})


def _scores(queries: Sequence[Query], teacher: Sequence[JudgedAnswer], other: Sequence[JudgedAnswer]) -> dict[str, Estimate]:
    columns = ([row.model_score for row in teacher], [row.score for row in teacher], [row.score for row in other])
    return {name: _mean(queries, column) for name, column in zip(LINES, columns, strict=True)}


def _mean(queries: Sequence[Query], scores: Sequence[float | None]) -> Estimate:
    """Return the mean of category means, clustered by contrast; answers without a score are left out."""
    means = []
    for category in dict.fromkeys(query.category for query in queries):
        rows = [
            (score, query.contrast_id)
            for query, score in zip(queries, scores, strict=True)
            if query.category == category and score is not None
        ]
        means.append(clustered_mean([score for score, _ in rows], [contrast for _, contrast in rows]))
    return mean_of_means(means)


def curves_of(points: Sequence[CurvePoint], title: str) -> Curves:
    """Return the three scores over the steps; the band is the standard error of the reward model's."""
    lines = [[point.scores[name].mean for point in points] for name in LINES]
    spread = [point.scores[LINES[0]].standard_error for point in points]
    return Curves([point.step for point in points], lines, spread, LINES, "step of GRPO", title)


def curves_svg(plots: Sequence[Curves]) -> str:
    """Return plots of the three scores as one SVG."""
    return svg_of(plots, f"{'; '.join(plot.title for plot in plots)}: {', '.join(LINES)} over steps")


def write_curve(run: Run, points: Sequence[CurvePoint]) -> Path:
    """Write the plot beside the kept answers."""
    path = run.folder / FOLDER / "curve.svg"
    write_text(path, curves_svg([curves_of(points, run.config.name)]))
    return path


def describe_curve(run: Run, points: Sequence[CurvePoint]) -> None:
    """Print a row a step, and whether the policy learned the reward model instead of the task."""
    rows = []
    for point in points:
        scores = [cell({**asdict(score), "n_asked": point.answers, "n_scored": score.n}) for score in point.scores.values()]
        kinds = number_text(point.kind_text), number_text(point.kind_sound), percent(point.garbled, 0)
        rows.append((point.step, number_text(point.kl, 3), number_text(point.paid, 3), *scores, *kinds, point.answers))
    head = ("after step", "KL", "paid", *LINES, "kind, text", "kind, sound", "garbled", "answers")
    Table(head, rows).show(run.console)
    paid = paid_line(run)
    if paid is not None and over_optimised(points, paid):
        run.say("  WARNING: the paid score rose and the independent judge's fell: the policy has learned the reward")


def paid_line(run: Run) -> str | None:
    """Return which of `LINES` the run paid for: the reward model's, or the rubric's; None: neither."""
    if run.reward_setup().needs(RewardModel.name):
        return LINES[0]
    return LINES[1] if any(source.kind == "rubric" for source in run.config.reward.sources) else None


def over_optimised(points: Sequence[CurvePoint], paid: str) -> bool:
    """Return whether, from first to last step, the paid score rose and the independent judge's fell, beyond chance.

    Both errors are taken as independent, though the queries are the same: it warns too late rather than too early.
    """
    first, last = points[0].scores, points[-1].scores
    return _is_above(last[paid], first[paid]) and _is_above(first[LINES[2]], last[LINES[2]])


def _is_above(first: Estimate, other: Estimate) -> bool:
    if first.mean is None or other.mean is None or first.standard_error is None or other.standard_error is None:
        return False
    return first.mean - other.mean > CERTAIN_FROM * math.hypot(first.standard_error, other.standard_error)
