"""The folder of questions for another team, and what is said of answers that did not come back."""

from __future__ import annotations

import csv
import io
from pathlib import Path

import numpy as np
import pytest
from rich.console import Console
from tiny.answers import answer
from tiny.world import invoke

from paras2s.audio.clip import Clip, write_clip
from paras2s.bench.paras2s import template
from paras2s.bench.paras2s.judges import JudgedAnswer
from paras2s.bench.paras2s.metrics import table_2
from paras2s.bench.paras2s.run import BenchOptions, BenchReport, Runner, claim_table
from paras2s.bench.paras2s.template import write_template
from paras2s.bench.systems import FolderSystem, SpokenQuestion, blind_name, open_system
from paras2s.cli.options import parse_systems
from paras2s.data_gen.dataset import Manifest
from paras2s.errors import ConfigError
from paras2s.types import Query, Unscored

IDS = ("emotion1-sad-m4", "two words", "いつ")


@pytest.fixture
def data(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / "run/data"
    folder.mkdir(parents=True)
    (folder / "queries.parquet").write_bytes(b"")
    queries = []
    for number, name in enumerate(IDS):
        write_clip(folder / f"q-{name}.wav", Clip(np.full(1_600, 0.1, np.float32), 16_000))
        queries.append(Query(name, "c", "emotion", None, "test", "s", f"q-{name}.wav", 1.0, f"words {number}", "t", "sad"))
    monkeypatch.setattr(template, "load_manifest", lambda where: Manifest(where, queries, [], []))
    return tmp_path / "run"


@pytest.mark.parametrize("answers", [1, 2])
def test_a_template_names_every_answer_and_holds_no_label(answers: int, data: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    assert write_template(data, out, answers=answers) == 3
    rows = list(csv.DictReader((out / "questions.csv").open()))
    assert {row["transcript"]: row["id"] for row in rows} == {f"words {n}": blind_name(name) for n, name in enumerate(IDS)}
    assert [row["id"] for row in rows] == sorted(blind_name(name) for name in IDS for _ in range(answers))
    assert all((out / row["question"]).is_file() for row in rows)
    first = rows[0]["id"]
    assert rows[0]["answer"] == (f"answers/{first}.wav" if answers == 1 else f"answers/{first}-0.wav")
    texts = (out / "questions.csv").read_text() + (out / "README.md").read_text()
    for label in ("sad", "emotion"):
        assert label not in texts
        assert not [path for path in out.rglob("*") if label in path.name]
    # Answers of these names are found.
    for row in rows:
        write_clip(out / row["answer"], Clip(np.full(1_600, 0.1, np.float32), 16_000))
    questions = [SpokenQuestion(name, data, "") for name in IDS]
    found = FolderSystem(out / "answers").answer(questions, answers, lambda *_: None)
    assert [response.missing for row in found for response in row] == [None] * 3 * answers
    with pytest.raises(ConfigError, match="exists already"):
        write_template(data, out)
    with pytest.raises(ConfigError, match="no questions of this role; there are test"):
        write_template(data, tmp_path / "other", role="validation")


class Silent:
    name = "none"

    def judge_all(self, answers: list[object], on_progress: object) -> list[JudgedAnswer]:
        return [JudgedAnswer(Unscored("none", "no judge")) for _ in answers]


def test_a_missing_answer_is_a_line(data: Path, tmp_path: Path) -> None:
    queries = template.load_manifest(data / "data").queries
    mine = tmp_path / "mine"
    mine.mkdir()
    write_clip(mine / f"{IDS[0]}.wav", Clip(np.full(1_600, 0.1, np.float32), 16_000))
    written = io.StringIO()
    console = Console(file=written, width=300)
    runner = Runner(queries, data / "data", 1, Silent(), tmp_path, tmp_path / "rows", Path("samples"), console, True)  # type: ignore[arg-type]
    runner.bench("mine", FolderSystem(mine))
    assert [line.split(": no answer: ")[0] for line in written.getvalue().splitlines()] == ["mine, two words", "mine, いつ"]


def test_a_folder_without_rows_may_be_asked_other_questions(data: Path, tmp_path: Path) -> None:
    manifest, out = template.load_manifest(data / "data"), tmp_path / "table"

    def claim(role: str) -> None:
        options = BenchOptions(data, role, {}, 1, out, None, tmp_path)
        claim_table(options, manifest, manifest.queries, Silent())  # type: ignore[arg-type]

    claim("test")
    claim("validation")
    (out / "mine.jsonl").write_text("")
    with pytest.raises(ConfigError, match="table: holds rows with other questions; give another --out, or delete it"):
        claim("test")


@pytest.mark.parametrize("name", ["my system", "a/b", "", "x" * 61])
def test_a_name_that_is_no_file_name_is_refused(name: str) -> None:
    with pytest.raises(ConfigError, match="the name may have letters, digits"):
        parse_systems([f"{name}=answers"])
    assert parse_systems(["Größe.日本-1=answers"]) == {"Größe.日本-1": "answers"}


def test_a_sentence_says_how_many_answers_have_a_score() -> None:
    def report(*scores: float | None) -> str:
        """Two answers to questions of age, then answers to questions of gender."""
        category = ("age", "age", "gender")
        rows = [answer(score, f"c{number}", category=category[number]) for number, score in enumerate(scores)]
        return BenchReport(table_2({"mine": rows}), None).sentence("mine")

    assert report(3.0, 4.0, 5.0) == "mine scores 4.25 of 5 over 3 answers."
    assert report(3.0, None, 5.0) == "mine scores 4.00 of 5 over 2 answers, of 3 that were due."
    assert report(3.0, 4.0, None) == "mine has no average: 2 answers, of 3 that were due, have a score, and none of gender."
    assert report(None, None, None) == "mine: no answer of 3 has a score."


def test_a_runs_folder_is_its_aligned_policy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "run/aligned").mkdir(parents=True)
    (tmp_path / "run/aligned/policy.json").write_text("{}")
    monkeypatch.setattr("paras2s.policy.registry.load_policy", lambda folder: folder)
    assert open_system(str(tmp_path / "run"), None, tmp_path).policy == tmp_path / "run/aligned"  # type: ignore[attr-defined]


def test_a_misspelt_system_or_dataset_has_its_nearest(data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "")
    (tmp_path / "answers").mkdir()
    with pytest.raises(ConfigError, match=r"nor topline; did you mean .*answers\?"):
        open_system(str(tmp_path / "answer"), None, tmp_path)
    with pytest.raises(ConfigError, match=r"no such folder; did you mean .*run\?"):
        invoke("bench", "paras2s", tmp_path / "rum", "--system", "mine=answers", "--judge", "rubric")
    with pytest.raises(ConfigError, match=r"set OPENAI_API_KEY .*; without a key: --judge rubric, or --judge independent$"):
        invoke("bench", "paras2s", data, "--system", "mine=answers")
