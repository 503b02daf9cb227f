"""`paras2s bench curve`: over the steps of an alignment, what reward model, teacher and independent judge give its answers.

The answers are those to validation queries that the loop samples anyway, kept as clips. Where the reward model's score rises
and the judges' do not follow, the policy has learned the reward model and not the task (over-optimisation; Gao et al., 2023).
"""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from markupsafe import Markup

from paras2s.audio.clip import Clip, read_clip, write_clip
from paras2s.bench.charts import draw_curves, standalone_svg
from paras2s.bench.paras2s.judges import IndependentAnswerJudge, Judgement, RunJudge
from paras2s.bench.paras2s.metrics import cell
from paras2s.bench.stats import Estimate, clustered_mean, mean_of_means
from paras2s.bench.systems import Response, question_of_query
from paras2s.data_gen.dataset import Dataset
from paras2s.errors import DataError
from paras2s.reward.judges.independent.judge import IndependentJudge
from paras2s.reward.reward_model.model import RewardModel
from paras2s.run import Run
from paras2s.types import Query, Reward, Rollout, Unscored
from paras2s.utils.io import read_json, read_jsonl, write_json, write_jsonl, write_text

FOLDER, STORED = "validation", "curve.json"
# In the order of the plot.
LINES = ("reward model", "teacher", "independent judge")


def save_answers(folder: Path, rollouts: Sequence[Rollout], rewards: Sequence[Sequence[Reward | Unscored]]) -> None:
    """Keeps the first answer to each query: its clip, its text, and what it was paid.

    Raises:
        StorageError: the disk refused.
    """
    rows = []
    for rollout, (reward, *_) in zip(rollouts, rewards, strict=True):
        paid = {"reward": reward.value} if isinstance(reward, Reward) else {"unscored": reward.reason}
        rows.append({"query_id": rollout.query_id, "text": rollout.texts[0], **paid})
        # A policy that ended its answer before it began has no clip to keep.
        if len(rollout.waves[0]):
            write_clip(folder / f"{rollout.query_id}.wav", Clip(rollout.waves[0], rollout.sample_rate_hz))
    # Last, so that a folder that has it is whole.
    write_jsonl(folder / "answers.jsonl", rows)


def steps_kept(run: Run) -> dict[int, Path]:
    """The folders of kept answers by step, in order."""
    found = {int(path.parent.name.removeprefix("step_")): path.parent for path in run.folder.glob(f"{FOLDER}/*/answers.jsonl")}
    return dict(sorted(found.items()))


def step_folder(run: Run, step: int) -> Path:
    """The folder of one step's answers."""
    return run.folder / FOLDER / f"step_{step:06d}"


def discard_from(run: Run, step: int) -> None:
    """Removes the answers of steps that are about to be done again."""
    for number, folder in steps_kept(run).items():
        if number >= step:
            shutil.rmtree(folder, ignore_errors=True)


@dataclass(frozen=True)
class CurvePoint:
    """Scores of one step's answers, 1 to 5, each the mean of its categories; `paid` is the mean of the run's own reward.

    `kl` is the step's KL to the warm-up. None is what was not measured.
    """

    step: int
    kl: float | None
    paid: float | None
    scores: dict[str, Estimate]
    answers: int

    def to_json(self) -> dict[str, Any]:
        """The point as plain JSON."""
        return asdict(self)


def judge_curve(run: Run, dataset: Dataset, model: RewardModel) -> list[CurvePoint]:
    """Judges the kept answers of all steps; a curve that is stored is read where it is of these answers and judges.

    Raises:
        DataError: the run kept no answers, or answers to queries that the dataset does not have.
    """
    kept = steps_kept(run)
    if not kept:
        raise DataError(f"{run.folder / FOLDER}: no answers are kept; `paras2s align` keeps them at every evaluation")
    queries = {query.id: query for query in dataset.of_role("validation")}
    answers = {step: list(read_jsonl(folder / "answers.jsonl")) for step, folder in kept.items()}
    judges = (RunJudge(dataset, list(queries.values()), model), IndependentAnswerJudge(IndependentJudge()))
    state = {"judges": [judge.name for judge in judges], "answers": {str(step): rows for step, rows in answers.items()}}
    stored = run.folder / FOLDER / STORED
    if stored.is_file() and (found := read_json(stored)).get("of") == state:
        return [point_of(values) for values in found["points"]]
    requests = []
    for step, rows in answers.items():
        for row in rows:
            if row["query_id"] not in queries:
                raise DataError(f"{kept[step]}: {row['query_id']} is no validation query of {dataset.folder}")
            path = kept[step] / f"{row['query_id']}.wav"
            response = Response(row["text"], read_clip(path)) if path.is_file() else Response(failed="the answer is empty")
            requests.append((question_of_query(queries[row["query_id"]], dataset.folder), response))
    judged = []
    for judge in judges:
        with run.bar(f"curve, {judge.name.split('/')[0]}", len(requests)) as bar:
            judged.append(judge.judge_all(requests, bar.at))
    kl_of = {row["step"]: row.get("kl") for row in run.metrics()}
    points, start = [], 0
    for step, rows in answers.items():
        part = slice(start, start := start + len(rows))
        own = [queries[row["query_id"]] for row in rows]
        paid = [row["reward"] for row in rows if "reward" in row]
        points.append(
            CurvePoint(
                step, kl_of.get(step), sum(paid) / len(paid) if paid else None, _scores(own, judged[0][part], judged[1][part]),
                len(rows),
            )
        )  # fmt: skip
    write_json(stored, {"of": state, "points": [point.to_json() for point in points]})
    return points


def point_of(values: dict[str, Any]) -> CurvePoint:
    """Reads a point back from its JSON."""
    return CurvePoint(**{**values, "scores": {name: Estimate(**one) for name, one in values["scores"].items()}})


def _scores(queries: Sequence[Query], teacher: Sequence[Judgement], other: Sequence[Judgement]) -> dict[str, Estimate]:
    columns = ([one.model_score for one in teacher], [one.score for one in teacher], [one.score for one in other])
    return {name: _mean(queries, column) for name, column in zip(LINES, columns, strict=True)}


def _mean(queries: Sequence[Query], scores: Sequence[float | None]) -> Estimate:
    """The mean of category means, clustered by contrast; answers without a score are left out."""
    means = []
    for category in dict.fromkeys(query.category for query in queries):
        rows = [
            (score, query.contrast_id)
            for query, score in zip(queries, scores, strict=True)
            if query.category == category and score is not None
        ]
        means.append(clustered_mean([score for score, _ in rows], [contrast for _, contrast in rows]))
    return mean_of_means(means)


def draw_curve(points: Sequence[CurvePoint], title: str) -> Markup:
    """The three scores over the steps; the band is the standard error of the reward model's."""
    lines = [[point.scores[name].mean for point in points] for name in LINES]
    spread = [point.scores[LINES[0]].standard_error for point in points]
    return draw_curves([point.step for point in points], lines, spread, f"{title}: {', '.join(LINES)} over steps")


def write_curve(run: Run, points: Sequence[CurvePoint]) -> Path:
    """Writes the plot beside the kept answers."""
    path = run.folder / FOLDER / "curve.svg"
    write_text(path, standalone_svg(draw_curve(points, run.config.name), LINES, "step of GRPO"))
    return path


def describe_curve(run: Run, points: Sequence[CurvePoint]) -> None:
    """Prints a row a step, and whether the policy learned the reward model instead of the task."""
    from rich.table import Table

    table = Table("after step", "KL", "paid", *LINES, "answers")
    for point in points:
        kl, paid = ("-" if one is None else f"{one:.3f}" for one in (point.kl, point.paid))
        scores = [cell({**asdict(one), "n_asked": one.n, "n_scored": one.n}) for one in point.scores.values()]
        table.add_row(str(point.step), kl, paid, *scores, str(point.answers))
    run.console.print(table)
    if over_optimised(points):
        run.say("  WARNING: the reward model's score rose and the independent judge's fell: the policy has learned the reward")


def over_optimised(points: Sequence[CurvePoint]) -> bool:
    """Whether the reward model's score is higher in the last step than in the first, and the independent judge's lower."""
    first, last = points[0].scores, points[-1].scores
    model, other = ((first[name].mean, last[name].mean) for name in (LINES[0], LINES[2]))
    known = [value for value in (*model, *other) if value is not None]
    return len(known) == 4 and known[1] > known[0] and known[3] < known[2]
