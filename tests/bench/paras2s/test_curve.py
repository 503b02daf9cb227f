"""The answers kept at a run's evaluations, judged afterwards: by hand where judges are scripted.

Not covered: that the loop keeps them (tests/integration/test_ray_actors.py), and the judges themselves.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from rich.console import Console

from paras2s.audio.clip import read_clip
from paras2s.bench.paras2s import curve
from paras2s.bench.paras2s.curve import (
    LINES,
    CurvePoint,
    curves_of,
    curves_svg,
    judge_curve,
    over_optimised,
    paid_line,
    point_of,
)  # fmt: skip
from paras2s.bench.paras2s.judges import Answer, JudgedAnswer
from paras2s.bench.systems import Progress
from paras2s.configs.schema.run import RunConfig
from paras2s.errors import AudioError, DataError
from paras2s.policy.embedded.codec2 import Codec2Pairs
from paras2s.reward.judges.registry import WEIGHTS
from paras2s.rollout.validation_answers import discard_from, kept_evaluations, save_answers, step_folder
from paras2s.run import Run
from paras2s.statistics.means import Estimate
from paras2s.types import Query, Reward, Rollout, Unscored, Verdict
from paras2s.utils.io import append_jsonl, read_jsonl, write_bytes, write_jsonl
from paras2s.utils.progress import open_console


def query(name: str, category: str, contrast: str) -> Query:
    return Query(name, contrast, category, "t", "validation", "m", f"{name}.wav", 1.0, "w", "w", "happy")  # type: ignore[arg-type]


QUERIES = [query("a", "age", "c1"), query("b", "age", "c2"), query("c", "gender", "c3")]


@dataclass
class Validation:
    """Stands for a dataset of three validation queries."""

    folder: Path
    agent_tone: Any = field(default_factory=lambda: SimpleNamespace(version="tone-1"))

    def of_role(self, role: str) -> list[Query]:
        return QUERIES if role == "validation" else []


class LevelJudge:
    """Scores an answer by its level, and the reward model's score by twice of it; asked `calls` times."""

    calls = 0

    def __init__(self, *_: object) -> None:
        self.name = "level/1"

    def judge_all(self, answers: Sequence[Answer], on_progress: Progress) -> list[JudgedAnswer]:
        LevelJudge.calls += 1
        found = []
        for _, one in answers:
            if one.clip is None:
                found.append(JudgedAnswer(Unscored("level", one.failed or "")))
            else:
                level = round(10 * float(np.abs(one.clip.samples).max()))
                family = "happy" if level > 1 else None
                verdict = Verdict(
                    "level", "1", "", float(level), "", "", None, 0.0, family=family, parts={"kind": float(level)}
                )
                found.append(JudgedAnswer(verdict, model_score=level / 2))
        return found


@pytest.fixture
def run(tmp_path: Path) -> Run:
    found = Run(RunConfig(name="r", run_dir=tmp_path / "run"), Console(quiet=True), quiet=True)
    write_bytes(found.reward_dir / WEIGHTS, b"weights")
    return found


def rollouts(*levels: float) -> list[Rollout]:
    """An answer to each query with a wave of some level; level 0 is an empty answer."""
    waves = [np.full(800 if level else 0, level, dtype=np.float32) for level in levels]
    return [
        Rollout(query.id, 0, (), ("eos",), (0,), (f"text {query.id}",), (), (wave,), 8000, "")
        for query, wave in zip(QUERIES, waves, strict=True)
    ]


def paid(*values: float | None) -> list[list[Reward | Unscored]]:
    return [[Unscored("j", "no") if value is None else Reward(value, {})] for value in values]


@pytest.fixture(autouse=True)
def scripted_judges(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(curve, "RunJudge", LevelJudge)
    monkeypatch.setattr(curve, "AnswerJudge", LevelJudge)
    monkeypatch.setattr(curve, "IndependentJudge", lambda: None)
    LevelJudge.calls = 0


def test_points_by_hand_and_judged_once(run: Run, tmp_path: Path) -> None:
    save_answers(step_folder(run.folder, 0), rollouts(0.1, 0.3, 0.4), paid(1.0, 2.0, None))
    save_answers(step_folder(run.folder, 10), rollouts(0.5, 0, 0.5), paid(4.0, 5.0, 6.0))
    append_jsonl(run.metrics_path, {"step": 0, "kl": 0.0})
    append_jsonl(run.metrics_path, {"step": 10, "kl": 0.25})
    first, last = judge_curve(run, Validation(tmp_path), None)  # type: ignore[arg-type]
    # Age (1 + 3) / 2 = 2, gender 4: the mean of categories is 3, and the reward model's half of it.
    assert (first.scores["teacher"].mean, first.scores["independent judge"].mean) == (pytest.approx(3), pytest.approx(3))
    assert first.scores["reward model"].mean == pytest.approx(1.5)
    # "Text a" says nothing; levels 1, 3 and 4 are its sound, of which the first is no kind of answer.
    assert (first.kind_text, first.kind_sound, first.garbled) == (1.0, pytest.approx(8 / 3), pytest.approx(1 / 3))
    assert (first.step, first.kl, first.paid, first.answers) == (0, 0.0, 1.5, 3)
    # The empty answer is no 0: its category has one answer left.
    assert (last.scores["teacher"].mean, last.scores["teacher"].n) == (pytest.approx(5), 2)
    assert (last.step, last.kl, last.paid) == (10, 0.25, 5.0)
    assert LevelJudge.calls == 2
    assert judge_curve(run, Validation(tmp_path), None) == [first, last]  # type: ignore[arg-type]
    assert LevelJudge.calls == 2
    # A reward model that was trained anew scores anew.
    write_bytes(run.reward_dir / WEIGHTS, b"others")
    judge_curve(run, Validation(tmp_path), None)  # type: ignore[arg-type]
    assert LevelJudge.calls == 4
    save_answers(step_folder(run.folder, 10), rollouts(0.5, 0.1, 0.5), paid(4.0, 4.0, 6.0))
    assert judge_curve(run, Validation(tmp_path), None)[1].scores["teacher"].n == 3  # type: ignore[arg-type]


def test_answers_that_come_as_codes_are_kept_as_sound(run: Run, tmp_path: Path) -> None:
    codec = Codec2Pairs()
    codes = (np.zeros((12, codec.num_codebooks), dtype=np.int64), np.zeros((0, codec.num_codebooks), dtype=np.int64))
    none = np.zeros(0, dtype=np.float32)
    coded = [
        Rollout(query.id, 0, (), (), (0,), ("t",), (one,), (none,), 8000, codec.version)
        for query, one in zip(QUERIES, codes, strict=False)
    ]
    save_answers(step_folder(run.folder, 0), coded, paid(1.0, 1.0))
    assert [path.name for path in step_folder(run.folder, 0).glob("*.wav")] == ["a.wav"]
    assert read_clip(step_folder(run.folder, 0) / "a.wav").duration_s == pytest.approx(12 * 0.08)
    (step_folder(run.folder, 0) / "a.wav").unlink()
    # A clip that is lost is no empty answer.
    with pytest.raises(AudioError, match=r"a\.wav"):
        judge_curve(run, Validation(tmp_path), None)  # type: ignore[arg-type]


def test_a_curve_of_nothing_is_an_error(run: Run, tmp_path: Path) -> None:
    save_answers(step_folder(run.folder, 0), rollouts(0, 0, 0), paid(1.0, 1.0, 1.0))
    with pytest.raises(DataError, match="the answer is empty"):
        judge_curve(run, Validation(tmp_path), None)  # type: ignore[arg-type]


def test_steps_that_are_done_again_are_discarded_and_half_a_step_is_none(run: Run, tmp_path: Path) -> None:
    for step in (0, 10, 20):
        save_answers(step_folder(run.folder, step), rollouts(0.1, 0.1, 0.1), paid(1.0, 1.0, 1.0))
    discard_from(run.folder, 10)
    assert list(kept_evaluations(run.folder)) == [0]
    (step_folder(run.folder, 0) / "answers.jsonl").unlink()
    with pytest.raises(DataError, match="no answers are kept"):
        judge_curve(run, Validation(tmp_path), None)  # type: ignore[arg-type]


@pytest.mark.parametrize(("queries", "kept"), [(128, 128), (129, 65), (1000, 125)])
def test_a_step_keeps_no_more_than_it_may(queries: int, kept: int, tmp_path: Path) -> None:
    wave = np.zeros(0, dtype=np.float32)
    many = [Rollout(f"q{n}", 0, (), (), (0,), ("",), (), (wave,), 8000, "") for n in range(queries)]
    save_answers(tmp_path, many, [[Reward(1.0, {})]] * queries)
    names = [row["query_id"] for row in read_jsonl(tmp_path / "answers.jsonl")]
    assert (len(names), names[0], names[1]) == (kept, "q0", f"q{-(-queries // 128)}")


def test_answers_to_other_queries_are_refused(run: Run, tmp_path: Path) -> None:
    write_jsonl(step_folder(run.folder, 0) / "answers.jsonl", [{"query_id": "z", "text": "t", "empty": True, "reward": 1.0}])
    with pytest.raises(DataError, match="z is no validation query"):
        judge_curve(run, Validation(tmp_path), None)  # type: ignore[arg-type]


def point(step: int, model: float | None, teacher: float, independent: float | None) -> CurvePoint:
    scores = [Estimate(value, 0.1, 4, 2) for value in (model, teacher, independent)]
    return CurvePoint(step, 0.1, 3.0, dict(zip(LINES, scores, strict=True)), 4)


@pytest.mark.parametrize(
    ("first", "last", "flagged"),
    [
        ((3.0, 3.0, 3.0), (4.0, 3.5, 2.5), True),
        ((3.0, 3.0, 3.0), (4.0, 2.0, 3.5), False),
        ((3.0, 3.0, 3.0), (2.0, 2.0, 2.0), False),
        ((None, 3.0, 3.0), (4.0, 3.0, 2.0), False),
        # Errors of 0.1 each: 1.96 x 0.141 = 0.277.
        ((3.0, 3.0, 3.0), (3.27, 3.0, 2.0), False),
        ((3.0, 3.0, 3.0), (3.29, 3.0, 2.71), True),
        ((3.0, 3.0, 3.0), (4.0, 3.0, 2.73), False),
    ],
)
def test_a_reward_that_rises_where_the_judge_falls_is_flagged(first: tuple, last: tuple, flagged: bool) -> None:
    assert over_optimised([point(0, *first), point(10, *last)], LINES[0]) is flagged


def test_a_rubric_that_pays_is_the_line_that_is_looked_at() -> None:
    points = [point(0, None, 3.0, 3.0), point(10, None, 3.5, 2.5)]
    assert over_optimised(points, LINES[1])
    assert not over_optimised(points, LINES[0])


@pytest.mark.parametrize(("kind", "paid"), [("reward_model", LINES[0]), ("rubric", LINES[1]), ("length", None)])
def test_the_line_that_paid_follows_from_the_sources_of_reward(tmp_path: Path, kind: str, paid: str | None) -> None:
    config = RunConfig.model_validate({"run_dir": str(tmp_path / "run"), "reward": {"sources": [{"kind": kind}]}})
    assert paid_line(Run(config, open_console(), quiet=True)) == paid


def test_panels_stand_side_by_side_under_their_titles() -> None:
    points = [point(0, 3.0, 3.0, 3.0), point(10, 4.0, 3.5, None)]
    assert [point_of(one.to_json()) for one in points] == points
    svg = curves_svg([curves_of(points, name) for name in ("a <b>", "b", "c")])
    assert svg.count('class="line"') == 9
    # In the description and above the panel.
    assert svg.count("a &lt;b&gt;") == 2
    assert svg.count("step of GRPO") == 3
    assert 'viewBox="0 0 840 ' in svg
    assert svg.count("<svg") == 1
