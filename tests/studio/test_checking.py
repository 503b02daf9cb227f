"""The page of the human check: what it serves without the link's secret (nothing), and the verb that serves it.

Not covered: what the page's script does with the data (test_annotating.py).
"""

from __future__ import annotations

import os
import re
import signal
import socket
import sys
import urllib.request
from pathlib import Path

import pytest
from data_gen.test_human_check import dataset, yes
from starlette.testclient import TestClient
from studio.test_serve import MAIN
from tiny.processes import started

from paras2s.configs.schema.base import dump_config
from paras2s.data_gen.curation.human_check import load_decisions, open_check
from paras2s.studies.store import Annotator, StudyStore
from paras2s.studio.app import make_annotating_app
from paras2s.studio.web import MAX_RECORD_BYTES

BASE = "http://127.0.0.1:8017"
CLICK = {"id": "a", "place": 0, "action": "play", "name": "1"}


@pytest.fixture
def check(tmp_path: Path) -> tuple[StudyStore, Annotator]:
    store, ann = open_check(dataset(tmp_path / "curated"), "ann")
    (store.folder / "secret.txt").write_text("private")
    return store, ann


@pytest.fixture
def client(check: tuple[StudyStore, Annotator]) -> TestClient:
    return TestClient(make_annotating_app(check[0].folder), base_url=BASE, headers={"Origin": BASE})


def test_the_item_and_its_takes(client: TestClient, check: tuple[StudyStore, Annotator]) -> None:
    store, ann = check
    page = client.get(f"/annotate/{ann.token}")
    assert page.status_code == 200
    assert "default-src 'self'" in page.headers["Content-Security-Policy"]
    assert "frame-ancestors 'none'" in page.headers["Content-Security-Policy"]
    # Nothing comes from elsewhere.
    assert "http://" not in page.text
    assert "https://" not in page.text
    answer = client.get(f"/api/annotate/{ann.token}").json()
    assert [choice["title"] for choice in answer["form"]["questions"][0]["choices"]] == [
        "Accept take 1", "Accept take 2", "Accept take 3", "Reject",
    ]  # fmt: skip
    assert (answer["state"]["text"], answer["state"]["clips"], answer["state"]["picked"]) == ("Words.", ["1"], 0)
    for place, item in enumerate(store.study.items):
        for name, clip in item.clips().items():
            assert client.get(f"/annotate/{ann.token}/clip/{place}/{name}").content == (store.folder / clip).read_bytes()


@pytest.mark.parametrize("token", ["wrong", "é", "%00", "..%2f.."])
def test_without_the_secret_of_a_link_nothing_is_shown(
    client: TestClient, check: tuple[StudyStore, Annotator], token: str
) -> None:
    for path in (f"/annotate/{token}", f"/api/annotate/{token}", f"/annotate/{token}/clip/0/1"):
        assert client.get(path).status_code == 404
    assert client.post(f"/api/annotate/{token}/click", json=CLICK).status_code == 404
    assert check[0].count_clicks() == 0


@pytest.mark.parametrize("path", ["/", "/studies", "/study/0", "/study-results/0", "/clip?run=0&name=secret.txt", "/runs"])
def test_the_studios_other_pages_are_not_served(client: TestClient, check: tuple[StudyStore, Annotator], path: str) -> None:
    reply = client.get(path)
    assert reply.status_code == 404
    assert check[1].token not in reply.text
    assert client.post("/api/study/0", json={"name": "eve"}).status_code == 404


@pytest.mark.parametrize("name", ["study.sqlite", "..%2fsecret.txt", "%2e%2e/secret.txt", "4", "-1", "0", "%2fetc%2fpasswd"])
def test_other_files_are_not_served(client: TestClient, check: tuple[StudyStore, Annotator], name: str) -> None:
    for place in ("0", "3", "-1", "000000000000000000000"):
        reply = client.get(f"/annotate/{check[1].token}/clip/{place}/{name}")
        assert reply.status_code == 404
        assert b"private" not in reply.content


@pytest.mark.parametrize(
    "host", ["evil.example", "evil.example:8017", "127.0.0.1.evil.example", "127.0.0.1:8017.evil.example", ""]
)
def test_a_name_that_was_pointed_at_this_machine_is_refused(
    client: TestClient, check: tuple[StudyStore, Annotator], host: str
) -> None:
    store, ann = check
    for path in (f"/annotate/{ann.token}", f"/annotate/{ann.token}/clip/0/1"):
        assert client.get(path, headers={"Host": host}).status_code == 400
    reply = client.post(f"/api/annotate/{ann.token}/click", json=CLICK, headers={"Host": host, "Origin": f"http://{host}"})
    assert reply.status_code == 400
    assert store.count_clicks() == 0


@pytest.mark.parametrize("origin", ["http://evil.example", "http://127.0.0.1:1", "null", None])
def test_a_change_from_another_sites_page_is_refused(check: tuple[StudyStore, Annotator], origin: str | None) -> None:
    store, ann = check
    client = TestClient(make_annotating_app(store.folder), base_url=BASE, headers={} if origin is None else {"Origin": origin})
    assert client.post(f"/api/annotate/{ann.token}/click", json=CLICK).status_code == 403
    assert store.count_clicks() == 0


@pytest.mark.parametrize(
    "body", [b"", b"accept", b"[1]", b"null", b'{"id": ', b"\xff\xfe", b"[" * 16_000], ids=lambda body: repr(body[:8])
)
def test_a_body_that_is_no_click(client: TestClient, check: tuple[StudyStore, Annotator], body: bytes) -> None:
    assert client.post(f"/api/annotate/{check[1].token}/click", content=body).status_code == 400
    assert check[0].count_clicks() == 0


@pytest.mark.parametrize("length", [MAX_RECORD_BYTES + 1, 400_000])
def test_a_body_that_is_too_long(client: TestClient, check: tuple[StudyStore, Annotator], length: int) -> None:
    body = b'{"id": "a", "place": 0, "action": "play", "name": "1"}'.ljust(length)
    assert client.post(f"/api/annotate/{check[1].token}/click", content=body).status_code == 413
    assert check[0].count_clicks() == 0


def test_the_verb_serves_the_page_until_ctrl_c_and_says_how_far_it_is(tmp_path: Path) -> None:
    config = dataset(tmp_path / "curated")
    path = tmp_path / "my.yaml"
    path.write_text(dump_config(config))
    words = [sys.executable, "-c", MAIN, "data", str(path), "--check", "ann", "--port", "0"]
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).resolve().parents[2])}
    with started(words, env=environment) as server:
        assert server.stdout is not None
        found = re.search(r"http://127\.0\.0\.1:(\d+)/annotate/\S+", server.stdout.readline())
        assert found is not None
        with urllib.request.urlopen(found[0], timeout=120) as response:
            assert b"Human check of local" in response.read()
        for action, name, value in (("play", "3", ""), ("choose", "verdict", "3"), ("submit", "", "")):
            body = f'{{"id": "{action}", "place": 2, "action": "{action}", "name": "{name}", "value": "{value}"}}'.encode()
            origin = f"http://127.0.0.1:{found[1]}"
            address = f"{origin}/api{found[0].removeprefix(origin)}/click"
            request = urllib.request.Request(address, body, {"Origin": origin})
            with urllib.request.urlopen(request, timeout=120) as response:
                assert response.status == 200
        server.send_signal(signal.SIGINT)
        said, errors = server.communicate(timeout=120)
    assert (server.returncode, errors) == (0, "")
    assert "1 of 3 decided by ann: 1 accepted (1 with another take), 0 rejected" in said
    assert load_decisions(config.folder) == [yes("ann", 2, "d-1")]
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(("127.0.0.1", int(found[1])), timeout=10)
