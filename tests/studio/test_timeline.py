"""The timeline of workers: what is recorded, what is kept, and its page over a run made by hand.

Not covered: clocks that differ between machines.
"""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from starlette.testclient import TestClient
from studio.world import HOSTILE, make_run, timeline_row

from paras2s.rollout.timeline import FILE, Span, SpanRecorder, Timeline
from paras2s.studio.app import make_app
from paras2s.studio.timeline import Lane, Piece, lanes_of
from paras2s.utils.io import read_jsonl, write_jsonl, write_text


@pytest.fixture
def client(tmp_path: Path) -> TestClient:
    make_run(tmp_path / "one", steps=6)
    return TestClient(make_app([tmp_path]), base_url="http://127.0.0.1:8017")


def test_a_recorder_gives_each_span_once_and_none_of_a_block_that_failed() -> None:
    recorder = SpanRecorder("rollout")
    with recorder.span("sample"), recorder.span("load weights"):
        pass
    with pytest.raises(ValueError, match="broken"), recorder.span("score"):
        raise ValueError("broken")
    spans = recorder.take()
    assert [one.work for one in spans] == ["load weights", "sample"]
    assert spans[1].start_s <= spans[0].start_s <= spans[0].end_s <= spans[1].end_s
    assert spans[0].worker.startswith("rollout ")
    assert recorder.take() == []


def test_steps_that_are_done_again_replace_their_spans(tmp_path: Path) -> None:
    timeline = Timeline(tmp_path, print)
    for step in range(3):
        timeline.keep(step, [Span("w", "later", 5.0, 6.0), Span("w", "earlier", 1.0, 2.12345)])
    timeline.discard_from(1)
    timeline.keep(1, [])
    rows = list(read_jsonl(tmp_path / FILE))
    assert [row["step"] for row in rows] == [0, 1]
    assert [(one["work"], one["end_s"]) for one in rows[0]["spans"]] == [("earlier", 2.123), ("later", 6.0)]


def test_a_disk_that_refuses_is_named_once_and_ends_nothing(tmp_path: Path) -> None:
    (tmp_path / FILE).mkdir()
    said: list[str] = []
    timeline = Timeline(tmp_path, said.append)
    timeline.keep(0, [])
    timeline.keep(1, [])
    assert len(said) == 1
    assert "is not kept from step 0 on" in said[0]


def test_lanes_by_hand() -> None:
    lanes = lanes_of([timeline_row(0), timeline_row(1)])
    assert [one.name for one in lanes] == ["loop", "learner 1", "rollout 1", "rollout 2", "reward 1"]
    # Two steps of 10 s: waiting is no work.
    assert [one.busy_s for one in lanes] == pytest.approx([1.0, 4.0, 12.0, 12.0, 2.0])
    assert lanes[3].seconds_by_work() == pytest.approx({"load weights": 2.0, "sample": 10.0})
    assert (lanes[1].pieces[0].start_s, lanes[1].pieces[1].end_s) == (7.0, 19.0)


def test_what_overlaps_is_counted_once() -> None:
    assert Lane("a", "a", (Piece("x", 0, 4), Piece("y", 1, 2), Piece("x", 3, 6))).busy_s == 6


@pytest.mark.parametrize("broken", [None, 3, [3], [{"worker": "a"}], [{"worker": "a", "work": "b", "start_s": "x", "end_s": 1}],
                                    [{"worker": "a", "work": "b", "start_s": 2, "end_s": 1}]])  # fmt: skip
def test_spans_that_cannot_be_read_are_left_out(broken: object) -> None:
    assert lanes_of([{"step": 0, "spans": broken}]) == []


def test_the_page_shows_the_last_steps_and_turns_to_earlier_ones(client: TestClient) -> None:
    text = client.get("/timeline?run=0/one").text
    assert "Steps 3 to 5, 29.5 s" in text
    assert len(re.findall("<rect ", text)) == 3 * 8
    # 12 s of work by the first sampler would be two steps; three are shown: 18 of 29.5 s.
    assert re.search(r"rollout 1</th><td class=\"r\">61</td>", text)
    assert HOSTILE not in text
    assert "step=2" in text
    earlier = client.get("/timeline?run=0/one&step=2").text
    assert "Steps 0 to 2, 29.5 s" in earlier
    assert "Earlier steps" not in earlier
    assert "step=5" in earlier
    assert "Steps 5 to 5" not in client.get("/timeline?run=0/one&steps=1").text
    assert "/timeline?run=0%2Fone" in client.get("/run?run=0/one").text


@pytest.mark.parametrize("text", [None, "", '{"step": 0, "spans": []}\n', "not json\n"])
def test_a_run_without_a_timeline_says_so(client: TestClient, tmp_path: Path, text: str | None) -> None:
    (tmp_path / "one" / FILE).unlink()
    if text is not None:
        write_text(tmp_path / "one" / FILE, text)
    assert "keeps no timeline yet" in client.get("/timeline?run=0/one").text


def test_a_half_written_row_hides_no_other(client: TestClient, tmp_path: Path) -> None:
    path = tmp_path / "one" / FILE
    write_jsonl(path, [timeline_row(0)])
    with path.open("a") as file:
        file.write('{"step": 1, "spans": [{"wor')
    assert "Step 0, 9.5 s" in client.get("/timeline?run=0/one").text
