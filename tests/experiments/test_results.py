"""Results over seeds from run folders with made answers: tables, what failed, what is missing.

Not covered: the runs themselves, which take hours; the demo's own tests and CI's quick run go through its stages.
"""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from tiny.answers import answer
from tiny.world import invoke

from paras2s.bench.paras2s import seeds
from paras2s.bench.results import AnswerRow, save_rows
from paras2s.experiments import results
from paras2s.types import CATEGORIES

SCORES = {"cascade": 2.0, "sft": 3.0, "aligned": 4.0}


def made_run(folder: Path, seed: int, scores: dict[str, float] = SCORES) -> Path:
    """A run folder whose bench is whole: two contrasts a category; the other judge gives half a point less."""
    run = folder / f"seed{seed}"
    for system, score in scores.items():
        rows = [
            answer(score, f"{category}{n}", system=system, category=category, word_error_rate=0.1)
            for category in CATEGORIES
            for n in range(2)
        ]
        for place, lower in ((run / "bench", 0.0), (run / "bench" / "independent", 0.5)):
            place.mkdir(parents=True, exist_ok=True)
            save_rows(place / f"{system}.jsonl", [less(row, lower) for row in rows])
    (run / "bench" / "independent" / "summary.json").write_text("{}")
    (run / "reward").mkdir()
    (run / "reward" / "agreement.json").write_text(json.dumps({"held_out": {"pearson": 0.5}}))
    (run / "timings.json").write_text(json.dumps({"align": 600.0, "bench": 60.0}))
    (run / "origin.json").write_text(json.dumps({"version": "1", "commit": "abcdef0123", "machine": "1 core of a test"}))
    return run


def less(row: AnswerRow, points: float) -> AnswerRow:
    assert row.score is not None
    return replace(row, score=row.score - points, fitting=row.score - points >= 4)


@pytest.fixture(autouse=True)
def _few_resamples(monkeypatch: pytest.MonkeyPatch) -> None:
    """All answers of a run have one score, so the ends of an interval need few resamples."""
    monkeypatch.setattr(seeds, "RESAMPLES", 200)


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """A project's documents with the places for tables."""
    (tmp_path / "docs").mkdir()
    for path, name in ((tmp_path / "docs" / "results.md", "seeds"), (tmp_path / "README.md", "scores")):
        path.write_text(f"Before\n\n{results.BEGIN.format(name=name)}\n{results.END.format(name=name)}\n\nAfter\n")
    return tmp_path


def write(project: Path, *more: str, status: int = 0) -> Any:
    words = ("results", "--no-run", "--folder", project / "runs", "--docs", project / "docs", "--json", *more)
    return json.loads(invoke(*words, status=status).stdout)


def test_tables_of_two_seeds_one_failed_and_one_that_is_missing(project: Path) -> None:
    made_run(project / "runs", 0)
    made_run(project / "runs", 1, SCORES | {"aligned": 5.0})
    (project / "runs" / "seed2").mkdir()
    (project / "runs" / "seed2" / "failed.json").write_text('{"reason": "PolicyError: it diverged"}')
    found = write(project, "--seeds", "0 1 2 3", status=1)
    gain = found["over_seeds"]["teacher"]["gain"]
    # 1 and 2 points, over 3; resamples of two seeds go from the one to the other.
    assert (gain["difference"]["value"], gain["difference"]["low"], gain["difference"]["high"]) == (1.5, 1.0, 2.0)
    assert gain["percent"]["value"] == 50
    assert gain["improvement"]["value"] == 1
    assert found["missing"] == [3]
    page = (project / "docs" / "results.md").read_text()
    assert page.startswith("Before\n")
    assert page.endswith("After\n")
    assert "| 2 | failed: PolicyError: it diverged |" in page
    assert "Not run yet: seeds 3." in page
    assert "commit abcdef0, 1 core of a test; 11 minutes a seed." in page
    assert "| **aligned (GRPO)** | 4.50 (4.00 to 5.00) | 4.00 (3.50 to 4.50) |" in page
    assert "| by the teacher | +1.50 (+1.00 to +2.00) | +50.0 % (+33.3 to +66.7) |" in page
    assert "| 2 of 2 |" in page
    # One seed is still to come.
    assert "aligned" not in (project / "README.md").read_text()
    write(project, "--seeds", "0 1 2", status=1)
    readme = (project / "README.md").read_text()
    assert "| **aligned (GRPO)** | 4.50 | 4.00 | - | 10.0 % |" in readme
    assert "2 seeds, commit abcdef0" in readme


def test_the_page_is_what_the_file_beside_it_says(project: Path) -> None:
    made_run(project / "runs", 0)
    write(project, "--seeds", "0")
    kept = json.loads((project / "docs" / "results.json").read_text())
    for path, text in results.rendered(kept, project / "docs").items():
        assert path.read_text() == text


def test_without_a_whole_seed_the_page_says_so_and_the_readme_stays(project: Path) -> None:
    before = (project / "README.md").read_text()
    found = write(project, "--seeds", "0 1")
    assert found["missing"] == [0, 1]
    assert found["over_seeds"] is None
    assert "Not run yet: seeds 0, 1." in (project / "docs" / "results.md").read_text()
    assert (project / "README.md").read_text() == before


def test_a_seed_without_a_system_that_others_have_does_not_compare(project: Path) -> None:
    made_run(project / "runs", 0)
    made_run(project / "runs", 1, {"sft": 3.0, "aligned": 4.0})
    with pytest.raises(Exception, match="the seeds do not compare: 'cascade'"):
        write(project, "--seeds", "0 1")


@pytest.mark.parametrize("numbers", ["", "0 0", "0,1", "-1"])
def test_wrong_seeds_are_refused(numbers: str, project: Path) -> None:
    with pytest.raises(Exception, match="different numbers"):
        write(project, "--seeds", numbers)


def test_a_document_without_the_places_is_named(project: Path) -> None:
    made_run(project / "runs", 0)
    (project / "docs" / "results.md").write_text("no place")
    with pytest.raises(Exception, match=r"results\.md: <!-- seeds: begin"):
        write(project, "--seeds", "0")


def test_a_dry_run_says_what_is_whole(project: Path) -> None:
    made_run(project / "runs", 0)
    text = invoke("results", "--dry-run", "--seeds", "0 1", "--folder", project / "runs", "--docs", project / "docs").stdout
    assert "seed 0: finished" in text
    assert "seed 1: not finished" in text
