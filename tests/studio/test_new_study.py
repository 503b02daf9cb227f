"""A study made in the browser is the command's, beside its run; what it cannot be made of is refused in words."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from starlette.testclient import TestClient
from studio.world import make_run

from paras2s.bench.results import load_rows, save_rows
from paras2s.studies.store import StudyStore
from paras2s.studio.app import make_app

BASE = "http://127.0.0.1:8017"
PAIR = {"run": "0/one", "kind": "pair", "systems": ["aligned", "sft"], "name": "my study", "limit": 2}


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("runs")
    run = make_run(folder / "one", steps=1)
    rows = load_rows(run / "bench/aligned.jsonl")
    save_rows(run / "bench/sft.jsonl", [replace(row, system="sft") for row in rows])
    return folder


def make(folder: Path, status: int, **values: Any) -> dict[str, Any]:
    client = TestClient(make_app([folder]), base_url=BASE, headers={"Origin": BASE})
    found = client.post("/api/studies", json=PAIR | values)
    assert found.status_code == status, found.text
    return dict(found.json())


def test_a_study_of_a_run_is_made_beside_it(runs: Path) -> None:
    made = make(runs, 200, people=["ann", "bo", "ann"], title="Which?")
    assert made == {"address": "0/my study"}
    store = StudyStore(runs / "my study")
    assert (store.study.title, store.study.kind, len(store.study.items)) == ("Which?", "pair", 2)
    assert [person.name for person in store.annotators()] == ["ann", "bo"]
    client = TestClient(make_app([runs]), base_url=BASE)
    page = client.get("/study/0/my%20study").text
    for person in store.annotators():
        assert f"{BASE}/annotate/{person.token}" in page
    assert "Which?" in client.get("/studies").text
    assert make(runs, 400)["error"] == "name 'my study': is there already; give another"


@pytest.mark.parametrize(
    ("values", "status", "message"),
    [
        ({"systems": ["aligned"]}, 400, "system: a pair needs two systems, and 1 are given"),
        ({"systems": ["aligned", "nosuch"]}, 400, "'nosuch' was not benched; there are aligned, sft"),
        ({"name": "a/b"}, 400, "name 'a/b': give the name of one new folder"),
        ({"name": ".."}, 400, "'..': not a path inside the folder"),
        ({"run": "7/x"}, 400, "'7': no such folder here"),
        ({"people": ["ann", "Bo Li"]}, 400, "annotator 'Bo Li': use 1 to 40 letters"),
        ({"kind": "check"}, 400, "kind: Input should be 'pair' or 'single'"),
    ],
)
def test_what_no_study_is_made_of_is_refused(runs: Path, values: dict[str, Any], status: int, message: str) -> None:
    assert message in make(runs, status, **{"name": "new", **values})["error"]
    assert not (runs / "new").exists()


def test_a_studio_of_the_run_itself_has_no_folder_for_it(runs: Path) -> None:
    assert "start the studio on the folder above" in make(runs / "one", 400, run="0")["error"]
