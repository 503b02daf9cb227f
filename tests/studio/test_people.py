"""The pages of studies and their data, over small studies, without a browser.

Not covered: what the pages' scripts do with the data (test_annotating.py).
"""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from starlette.testclient import TestClient
from tiny.studies import QUESTIONS, answer_pair, make, pair_items, single_items

from paras2s.bench.ranking.data import load_people
from paras2s.studies.store import Annotator, StudyStore
from paras2s.studio.annotation.export import export_study
from paras2s.studio.app import make_app
from paras2s.utils.io import read_jsonl

BASE = "http://127.0.0.1:8017"
HOSTILE = "</script><img src=x onerror=alert(1)>"


@pytest.fixture
def store(tmp_path: Path) -> StudyStore:
    return make(tmp_path, "pair", pair_items(tmp_path, 6), "ann", "bob")


@pytest.fixture
def client(store: StudyStore) -> TestClient:
    return TestClient(make_app([store.folder.parent]), base_url=BASE, headers={"Origin": BASE})


Post = Callable[..., Any]


@pytest.fixture
def post(client: TestClient) -> Post:
    counter = iter(range(1_000_000))

    def send(who: Annotator, place: int, action: str, name: str = "", value: str = "", **more: object) -> Any:
        body = {"id": f"p{next(counter)}", "place": place, "action": action, "name": name, "value": value, **more}
        return client.post(f"/api/annotate/{who.token}/click", json=body)

    return send


def annotator(store: StudyStore, name: str) -> Annotator:
    return next(one for one in store.annotators() if one.name == name)


def state(client: TestClient, who: Annotator) -> dict[str, Any]:
    found = client.get(f"/api/annotate/{who.token}")
    assert found.status_code == 200, found.text
    return found.json()["state"]


def finish(post: Post, who: Annotator, place: int, label: str) -> dict[str, Any]:
    for clip in ("1", "2"):
        assert post(who, place, "play", clip).status_code == 200
    for question in QUESTIONS:
        assert post(who, place, "choose", question, label).status_code == 200
    done = post(who, place, "submit")
    assert done.status_code == 200, done.text
    return done.json()["state"]


def test_a_study_that_cannot_be_read_now_is_no_missing_link(tmp_path: Path) -> None:
    """The page of an annotator keeps its clicks and sends them again, unless a reply is about the click itself."""
    (tmp_path / "away").mkdir()
    (tmp_path / "away/study.sqlite").write_bytes(b"no database, for a moment " * 40)
    client = TestClient(make_app([tmp_path]), base_url=BASE, headers={"Origin": BASE})
    assert client.get("/api/annotate/token").status_code == 503
    (tmp_path / "away/study.sqlite").unlink()
    assert client.get("/api/annotate/token").status_code == 404


def test_a_study_made_anew_in_its_place_is_the_one_that_is_shown(tmp_path: Path) -> None:
    old = make(tmp_path, "single", single_items(tmp_path, [1.0] * 4), "ann")
    client = TestClient(make_app([tmp_path]), base_url=BASE, headers={"Origin": BASE})
    former = annotator(old, "ann")
    assert state(client, former)["total"] == 4
    folder = old.folder
    shutil.rmtree(folder)
    new = make(tmp_path, "single", single_items(tmp_path, [1.0] * 6), "ann")
    assert new.folder == folder
    assert state(client, annotator(new, "ann"))["total"] == 6
    assert client.get(f"/api/annotate/{former.token}").status_code == 404


def test_a_study_made_anew_is_seen_where_its_file_has_the_old_ones_inode(tmp_path: Path) -> None:
    """A file system may give a new file the number of a removed one: the bytes of the new study, written in place, have it."""
    old = make(tmp_path, "single", single_items(tmp_path, [1.0] * 4), "ann")
    client = TestClient(make_app([tmp_path]), base_url=BASE, headers={"Origin": BASE})
    assert state(client, annotator(old, "ann"))["total"] == 4
    (tmp_path / "elsewhere").mkdir()
    new = make(tmp_path / "elsewhere", "single", single_items(tmp_path / "elsewhere", [1.0] * 6), "ann")
    (old.folder / "study.sqlite").write_bytes((new.folder / "study.sqlite").read_bytes())
    link = annotator(new, "ann")
    shutil.rmtree(new.folder)
    assert state(client, link)["total"] == 6


def test_sides_are_what_is_heard(client: TestClient, store: StudyStore, post: Post, tmp_path: Path) -> None:
    """Whoever chooses by the sound of "ours", on whatever side it plays, makes it win every pair."""
    ann = annotator(store, "ann")
    ours = {(store.folder / item.answers[0].clip).read_bytes() for item in store.study.items}
    sides = []
    for place in range(6):
        first, second = (client.get(f"/annotate/{ann.token}/clip/{place}/{side}").content for side in "12")
        sides.append("1" if first in ours else "2")
        assert (first in ours) != (second in ours)
        finish(post, ann, place, sides[-1])
    assert sorted(sides) == ["1", "1", "1", "2", "2", "2"]
    export_study(store, tmp_path / "out")
    assert load_people(tmp_path / "out" / "labels.json", {}).scores == {"ours": 1.0, "theirs": 0.0}
    assert state(client, ann)["place"] is None


def test_plays_are_counted_for_the_answer_and_shown_on_its_side(client: TestClient, store: StudyStore, post: Post) -> None:
    ann = annotator(store, "ann")
    flipped = next(at for at, place in enumerate(store.order(ann)) if place.flipped)
    post(ann, flipped, "play", "1")
    assert store.progress("ann").item(store.order(ann)[flipped].item).plays == {"2": 1}
    for place in range(flipped):
        finish(post, ann, place, "both_good")
    assert state(client, ann)["plays"] == {"1": 1}


def test_scores_have_no_sides(tmp_path: Path) -> None:
    one = make(tmp_path, "single", single_items(tmp_path, [1.0] * 4), "ann")
    client = TestClient(make_app([tmp_path]), base_url=BASE, headers={"Origin": BASE})
    ann = annotator(one, "ann")
    for place in range(4):
        body = {"id": f"s{place}", "place": place, "action": "choose", "name": "mos", "value": "1"}
        assert client.post(f"/api/annotate/{ann.token}/click", json=body).status_code == 200
    assert [item.choices for item in one.progress("ann").items.values()] == [{"mos": "1"}] * 4


def test_the_page_goes_on_at_the_item_where_it_was_left(client: TestClient, store: StudyStore, post: Post) -> None:
    ann = annotator(store, "ann")
    finish(post, ann, 0, "both_good")
    post(ann, 1, "choose", "content", "1")
    post(ann, 1, "comment", value=HOSTILE)
    shown = state(client, ann)
    assert (shown["place"], shown["done"], shown["choices"], shown["comment"]) == (1, 1, {"content": "1"}, HOSTILE)
    # A server of another process.
    again = TestClient(make_app([store.folder.parent]), base_url=BASE)
    assert state(again, ann) == shown
    assert state(client, annotator(store, "bob"))["done"] == 0


def test_undo_goes_back_over_the_end_of_an_item(client: TestClient, store: StudyStore, post: Post) -> None:
    ann = annotator(store, "ann")
    finish(post, ann, 0, "1")
    back = post(ann, 1, "undo").json()["state"]
    assert (back["place"], back["choices"]["overall"]) == (0, "1")
    assert post(ann, 0, "choose", "overall", "both_bad").json()["state"]["choices"]["overall"] == "both_bad"


def test_a_refused_click_says_why_and_shows_where_things_stand(client: TestClient, store: StudyStore, post: Post) -> None:
    ann = annotator(store, "ann")
    refused = post(ann, 0, "submit")
    assert refused.status_code == 409
    assert "listen to both answers" in refused.json()["error"]
    finish(post, ann, 0, "1")
    # Another tab that still shows the first item.
    late = post(ann, 0, "choose", "content", "2")
    assert (late.status_code, late.json()["state"]["place"]) == (409, 1)


@pytest.mark.parametrize("shown_ms", [-5, 1e300, "soon", None, [1]])
def test_a_clock_that_makes_no_sense_loses_no_click(store: StudyStore, post: Post, shown_ms: object) -> None:
    assert post(annotator(store, "ann"), 0, "play", "1", view="v", shown_ms=shown_ms).status_code == 200


@pytest.mark.parametrize(
    ("body", "status"),
    [
        (b"no json", 400),
        (b"[]", 400),
        (b'{"id": "a", "place": 99, "action": "play", "name": "1"}', 400),
        (b'{"id": "a", "place": 0, "action": "format"}', 400),
        (b'{"id": "a", "place": 0, "action": "play", "name": "1", "annotator": "bob"}', 400),
        (b'{"id": "a", "place": 0, "action": "comment", "value": "' + b"x" * 70_000 + b'"}', 413),
        (b'{"id": "a", "place": 0, "action": "comment", "value": "' + b"x" * 3_000 + b'"}', 409),
    ],
)
def test_bodies_that_are_refused(client: TestClient, store: StudyStore, body: bytes, status: int) -> None:
    assert client.post(f"/api/annotate/{annotator(store, 'ann').token}/click", content=body).status_code == status
    assert store.clicks("ann") == []


def test_a_click_of_another_site_is_refused(client: TestClient, store: StudyStore) -> None:
    address = f"/api/annotate/{annotator(store, 'ann').token}/click"
    body = {"id": "a", "place": 0, "action": "play", "name": "1"}
    assert client.post(address, json=body, headers={"Origin": "http://attacker.example"}).status_code == 403
    assert store.clicks("ann") == []


def test_the_annotators_page_tells_no_system_and_leads_nowhere_else(client: TestClient, store: StudyStore) -> None:
    ann = annotator(store, "ann")
    page = client.get(f"/annotate/{ann.token}")
    data = client.get(f"/api/annotate/{ann.token}")
    clip = client.get(f"/annotate/{ann.token}/clip/0/1")
    assert clip.headers["content-type"] == "audio/wav"
    for text in (page.text, data.text, str(clip.headers)):
        assert "ours" not in text
        assert "theirs" not in text
        assert str(store.folder) not in text
    assert 'href="/"' not in page.text
    assert "/study" not in page.text


@pytest.mark.parametrize("token", ["x", "..%2f..", "%00", "é", "clip"])
def test_links_that_are_none(client: TestClient, token: str) -> None:
    assert client.get(f"/annotate/{token}").status_code == 404
    assert client.get(f"/api/annotate/{token}").status_code == 404
    assert client.get(f"/annotate/{token}/clip/0/1").status_code == 404


def test_clips_that_are_not_there(client: TestClient, store: StudyStore) -> None:
    ann = annotator(store, "ann")
    for wrong in ("99/1", "0/3", "0/study.sqlite", "0/..%2fstudy.sqlite"):
        assert client.get(f"/annotate/{ann.token}/clip/{wrong}").status_code == 404, wrong
    for path in (store.folder / "clips").iterdir():
        path.unlink()
    gone = client.get(f"/annotate/{ann.token}/clip/0/1")
    assert gone.status_code == 404
    assert "missing" in gone.text


def test_the_overview(client: TestClient, store: StudyStore) -> None:
    answer_pair(store, "ann", 0, "1")
    answer_pair(store, "bob", 0, "1")
    listed = client.get("/studies").text
    assert "2 of 12" in listed
    page = client.get("/study/0/study").text
    assert f"{BASE}/annotate/{annotator(store, 'ann').token}" in page
    assert "100.0 %" in client.get("/study-results/0/study").text
    # Measured anew after another click.
    answer_pair(store, "ann", 1, "1")
    answer_pair(store, "bob", 1, "2")
    assert "50.0 %" in client.get("/study-results/0/study").text
    assert client.get("/study-results/0/nothing").status_code == 404
    assert "1 of 6" in page


def test_a_person_is_added_on_the_overview(client: TestClient, store: StudyStore) -> None:
    assert client.post("/api/study/0/study", json={"name": "eve"}).status_code == 200
    assert [one.name for one in store.annotators()] == ["ann", "bob", "eve"]
    refused = client.post("/api/study/0/study", json={"name": "<b>"})
    assert (refused.status_code, "letters" in refused.json()["error"]) == (400, True)
    assert client.post("/api/study/0/../..", json={"name": "x"}).status_code in (403, 404)


def test_hostile_names_are_text(tmp_path: Path) -> None:
    items = [item.model_copy(update={"id": HOSTILE, "question_text": HOSTILE}) for item in pair_items(tmp_path, 1)]
    bad = make(tmp_path, "pair", items, "ann")
    answer = TestClient(make_app([tmp_path]), base_url=BASE, headers={"Origin": BASE})
    ann = annotator(bad, "ann")
    body = {"id": "k", "place": 0, "action": "skip", "value": HOSTILE}
    assert answer.post(f"/api/annotate/{ann.token}/click", json=body).status_code == 200
    for address in ("/studies", "/study/0/study", "/study-results/0/study", f"/annotate/{ann.token}"):
        page = answer.get(address)
        assert page.status_code == 200
        assert "<img" not in page.text, address
    assert "&lt;img" in answer.get("/study-results/0/study").text


def test_a_damaged_study_stands_beside_the_others(client: TestClient, store: StudyStore) -> None:
    broken = store.folder.parent / "broken"
    broken.mkdir()
    (broken / "study.sqlite").write_bytes(b"not a database" * 100)
    listed = client.get("/studies").text
    assert "cannot be read" in listed
    assert "0 of 12" in listed
    assert client.get("/study/0/broken").status_code == 404
    assert client.get(f"/annotate/{annotator(store, 'ann').token}").status_code == 200


def test_a_folder_without_a_study_says_how_one_is_made(tmp_path: Path) -> None:
    assert "paras2s study new" in TestClient(make_app([tmp_path]), base_url=BASE).get("/studies").text


def test_comments_reach_the_export(client: TestClient, store: StudyStore, post: Post, tmp_path: Path) -> None:
    ann = annotator(store, "ann")
    post(ann, 0, "comment", value="a hum")
    finish(post, ann, 0, "1")
    export_study(store, tmp_path / "out")
    assert [row["comment"] for row in read_jsonl(tmp_path / "out" / "annotations.jsonl")] == ["a hum"]
