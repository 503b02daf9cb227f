"""Labels of a run: they are kept as a file, shown, searched and archived by, and a broken file hides nothing."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from starlette.testclient import TestClient
from studio.world import HOSTILE, make_run

from paras2s.studio.app import app_of, make_app
from paras2s.studio.export.requests import InProcess
from paras2s.studio.folders import open_folders
from paras2s.studio.web import Export, Studio, make_templates
from paras2s.utils.io import read_json, write_text

BASE = "http://127.0.0.1:8017"


@pytest.fixture
def runs(tmp_path: Path) -> Path:
    for name in ("one", "two"):
        make_run(tmp_path / name, steps=1)
    return tmp_path


@pytest.fixture
def client(runs: Path) -> TestClient:
    return TestClient(make_app([runs]), base_url=BASE, headers={"Origin": BASE})


def keep(client: TestClient, status: int = 200, run: str = "0/one", **labels: Any) -> str:
    found = client.post("/api/labels", params={"run": run}, json=labels)
    assert found.status_code == status, found.text
    return str(found.json().get("error", ""))


def test_labels_are_a_file_and_are_shown_and_searched(client: TestClient, runs: Path) -> None:
    keep(client, title="The best", tags=["paper", "<b>"], notes=f"first line\n{HOSTILE}")
    assert read_json(runs / "one/labels.json")["title"] == "The best"
    page, listed = client.get("/run?run=0/one").text, client.get("/?find=PAPER").text
    for text in (page, listed):
        assert "The best" in text
        assert "&lt;b&gt;" in text
        assert HOSTILE not in text
    assert "first line" in page
    assert 'href="/run?run=0%2Ftwo"' not in listed
    assert 'href="/run?run=0%2Fone"' in client.get("/?find=best").text


def test_an_archived_run_leaves_the_list_and_stays_on_the_disk(client: TestClient, runs: Path) -> None:
    before = sorted(path for path in runs.rglob("*"))
    keep(client, archived=True)
    assert sorted({*before, runs / "one/labels.json"}) == sorted(runs.rglob("*"))
    listed, archived = client.get("/").text, client.get("/?archived=yes").text
    assert 'href="/run?run=0%2Fone"' not in listed
    assert "1 archived" in listed
    assert 'href="/run?run=0%2Fone"' in archived
    assert 'href="/run?run=0%2Ftwo"' not in archived
    assert "archived" in client.get("/run?run=0/one").text
    keep(client, archived=False)
    assert 'href="/run?run=0%2Fone"' in client.get("/").text


@pytest.mark.parametrize(
    ("run", "labels", "status", "message"),
    [
        ("0/one", {"title": "x" * 121}, 400, "title: String should have at most 120 characters"),
        ("0/one", {"tags": [""]}, 400, "tags.0: String should have at least 1 character"),
        ("0/one", {"colour": "red"}, 400, "colour: Extra inputs are not permitted"),
        ("0", {}, 404, "'0': is no run"),
        ("0/../..", {}, 403, "'../..': not a path inside the folder"),
    ],
)
def test_what_cannot_be_kept_is_refused(
    client: TestClient, run: str, labels: dict[str, Any], status: int, message: str
) -> None:
    assert keep(client, status, run, **labels) == message


def test_a_broken_file_hides_nothing_and_a_full_disk_is_said(client: TestClient, runs: Path) -> None:
    write_text(runs / "one/labels.json", '{"title": 5}')
    assert "labels.json: title: Input should be a valid string; save the labels again" in client.get("/run?run=0/one").text
    assert 'href="/run?run=0%2Fone"' in client.get("/").text
    (runs / "two/labels.json").mkdir()
    assert "labels.json" in client.get("/run?run=0/two").text
    assert "cannot write" in keep(client, 507, "0/two")


def test_an_export_has_titles_and_no_notes(client: TestClient, runs: Path) -> None:
    keep(client, title="The best", tags=["paper"], notes="between us", archived=True)
    studio = Studio(open_folders([runs]), make_templates(), Export("now", lambda kept: list(kept)))
    with InProcess(app_of(studio)) as requests:
        listed, page = (requests.get(address).body.decode() for address in ("/", "/run?run=0/one"))
    assert listed.count('class="open"') == 2
    for text in (listed, page):
        assert "The best" in text
        assert "between us" not in text
