"""A run folder that version 0.21 wrote (`paras2s demo --preset quick`, cut to a few rows) is read as it was.

`expected.json` holds figures that 0.21 itself computed from these files.
"""

from __future__ import annotations

import shutil
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from paras2s.bench.paras2s.metrics import summary
from paras2s.bench.results import load_rows
from paras2s.data_gen.dataset import load_dataset
from paras2s.rollout.store import read_answers, read_index, read_tokens, step_path
from paras2s.run import open_run
from paras2s.utils.io import read_json, read_jsonl

RECORDED = Path(__file__).parent / "recorded" / "run_0_21"
EXPECTED = read_json(RECORDED / "expected.json")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """The recorded folder; its clips, which nothing here reads, are empty files."""
    copied = Path(shutil.copytree(RECORDED, tmp_path / "quick"))
    for table in (copied / "data" / name for name in ("queries.parquet", "demonstrations.parquet")):
        for row in pq.read_table(table).to_pylist():
            clip = copied / "data" / row["clip"]
            clip.parent.mkdir(parents=True, exist_ok=True)
            clip.touch()
    return copied


def test_settings_and_logs_are_read(folder: Path) -> None:
    run = open_run(str(folder))
    assert (run.config.name, run.config.seed, run.config.align.steps) == ("quick", 0, 60)
    assert [row["step"] for row in run.metrics()] == [0, 1, 2]
    assert run.timings().keys() == {"data", "warmup", "distill", "align", "bench"}


@pytest.mark.parametrize("judge", ["bench", "bench/independent"])
def test_judged_answers_give_the_same_scores(folder: Path, judge: str) -> None:
    rows = {name: load_rows(folder / judge / f"{name}.jsonl") for name in ("sft", "aligned")}
    table = summary(rows)
    for name, figures in EXPECTED[judge].items():
        for figure, value in figures.items():
            assert table[name][figure] == value, (name, figure)


def test_the_data_set_and_its_classifiers_are_read(folder: Path) -> None:
    dataset = load_dataset(folder / "data")
    assert {role: len(dataset.of_role(role)) for role in EXPECTED["roles"]} == EXPECTED["roles"]
    assert dataset.agent_tone.report["accuracy"] == EXPECTED["agent_tone_accuracy"]


def test_kept_rollouts_are_read(folder: Path) -> None:
    path = step_path(folder / "rollouts", 0)
    answers = read_answers(path)
    assert len(answers) == EXPECTED["rollouts"]["answers"]
    first = answers[0]
    assert [first.query_id, first.text, first.reward, first.advantage] == EXPECTED["rollouts"]["first"]
    tokens = read_tokens(path, first.group, first.answer)
    assert sum(len(block) for block in tokens.tokens) == EXPECTED["rollouts"]["first_tokens"]
    assert list(read_index(folder / "rollouts")) == [0]


def test_the_timeline_is_read(folder: Path) -> None:
    steps = list(read_jsonl(folder / "timeline.jsonl"))
    assert [step["step"] for step in steps] == [0, 1]
    assert {"worker", "work", "start_s", "end_s"} == steps[0]["spans"][0].keys()
