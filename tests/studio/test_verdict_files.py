"""Files of verdicts in the studio: what each verb writes opens, what is missing is said, and what is hostile does nothing.

Not covered: the sound itself (test_listening.py), and the figures of a verdict (the tests of judges and benchmarks).
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from markupsafe import escape
from starlette.testclient import TestClient
from tiny.studies import bench_run, tone

from paras2s.audio.asr import Transcript, Word
from paras2s.bench.made_from import MadeFrom, clip_names, fusion_of, keep_verdict
from paras2s.errors import AssetError
from paras2s.reward.fusion import find_rule
from paras2s.run import RESOLVED
from paras2s.studio import verdict_files
from paras2s.studio.app import make_app
from paras2s.studio.folders import OutsideError, open_folders
from paras2s.types import Absent, Blueprint, Measured, PairVerdict, Unscored, to_json
from paras2s.utils.io import append_jsonl, read_jsonl, write_jsonl

HOSTILE = "</pre><script>document.title='owned'</script><img src=x onerror=alert(1)>"
LABELS: Any = {"content": "both_good", "voice_quality": "1", "paralinguistics": "2"}
REPLY = '{"content": "both_good"}'
VERDICT = PairVerdict("blueprint:m", "2-abc", "p", LABELS, "because", REPLY, False, 10, 0, 5, 0.25, 1.5, 0.5)


def keep_pair(folder: Path, **changes: Any) -> Path:
    """A judged pair, as `judge pair --out` writes it."""
    clips = {}
    for number, name in enumerate(("question", "answer 1", "answer 2")):
        clips[name] = folder.parent / "given" / f"{name}.wav"
        tone(clips[name], 200 + 50 * number, 0.5)
    fields: dict[str, Any] = {
        "agent_audio_properties.pitch_mean_hz": Measured(220.5, "Hz", 0.9),
        "agent_audio_quality.snr_db": Absent("too short"),
    }
    found = {"verdict": to_json(VERDICT), "overall": "2", "blueprints": {"answer 1": to_json(Blueprint(fields))}}
    fusion = (fusion_of("speakbench", find_rule("speakbench"), LABELS),)
    prompt = "system:\nJudge.\n\nuser:\n[a clip of 0.5 s]"
    made_from = MadeFrom(words="Say it sadly.", style="sad", prompts=(prompt,), fusion=fusion)
    return keep_verdict(folder, "pair", found | changes, made_from, clips)


@pytest.fixture
def client(tmp_path: Path) -> TestClient:
    keep_pair(tmp_path / "runs" / "kept")
    return TestClient(make_app([tmp_path / "runs"]), base_url="http://127.0.0.1:8017")


def page(client: TestClient, row: int = 0, file: str = "kept/verdicts.jsonl", **more: Any) -> str:
    answer = client.get("/verdict", params={"run": "0", "file": file, "row": row, **more})
    assert answer.status_code == 200, answer.text
    return answer.text


def test_a_kept_verdict_has_copies_of_its_clips_and_the_same_clip_once(tmp_path: Path) -> None:
    path = keep_pair(tmp_path / "kept")
    assert keep_pair(tmp_path / "kept") == path
    rows = list(read_jsonl(path))
    assert len(rows) == 2
    assert len(list((tmp_path / "kept/clips").iterdir())) == 3
    assert rows[0]["files"]["answer 1"].endswith("given/answer 1.wav")
    assert rows[0]["made_from"]["clips"]["answer 2"].startswith("clips/")


def test_clips_are_named_from_the_folder_of_the_file(tmp_path: Path) -> None:
    names = clip_names({"a": tmp_path / "x/a.wav", "b": None}, tmp_path / "y")
    assert names == {"a": "../x/a.wav"}


def test_a_judged_pair_shows_everything_that_it_was_made_from(client: TestClient) -> None:
    shown = page(client)
    for part in (
        "<h1>Say it sadly.</h1>",
        "spoken sad",
        "blueprint:m/2-abc",
        "answer 2",
        "because",
        "0.2500 USD",
        "10, 0, 5",
        "do not agree",
        "paralinguistics is the first of content, paralinguistics, voice_quality that names a winner: <b>2</b>",
        "Judge.",
        "[a clip of 0.5 s]",
        escape(REPLY),
        "220.5",
        "Hz",
        "confidence 0.90",
        "too short",
    ):
        assert part in shown, part
    assert shown.count("data-answer") == 2
    assert client.get("/clip", params={"run": "0", "name": next(iter(clips_of(shown)))}).status_code == 200


def clips_of(shown: str) -> list[str]:
    names = [part.split('"')[0] for part in shown.split('data-clip="')[1:]]
    # A button plays an address; the pictures name the file.
    return [name for name in names if not name.startswith("/clip?")]


def test_files_are_listed_by_what_they_are(client: TestClient, tmp_path: Path) -> None:
    run = bench_run(tmp_path / "runs" / "benched")
    (run / RESOLVED).write_text("name: x\n")
    write_jsonl(tmp_path / "runs/metrics.jsonl", [{"step": 0}])
    (tmp_path / "runs/broken.jsonl").write_text("{")
    (tmp_path / "runs/link.jsonl").symlink_to(tmp_path / "runs/kept/verdicts.jsonl")
    shown = client.get("/verdicts").text
    assert "kept/verdicts.jsonl" in shown
    # One line for a run, however many systems and judges it has.
    assert shown.count("/answers?run=0%2Fbenched") == 1
    assert "link.jsonl" not in shown
    assert "broken" not in shown
    assert client.get("/answers?run=0/benched").status_code == 200


def test_a_search_that_stops_says_so(client: TestClient, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(verdict_files, "SEARCHED", 1)
    assert "more folders than are searched" in client.get("/verdicts").text


OTHERS: dict[str, tuple[dict[str, Any], list[str]]] = {
    "probe": (
        {
            "judge": "g",
            "version": "1",
            "task": "quality",
            "about": "pair p1",
            "change": "noise at 20 dB",
            "label": "tie",
            "unscored": None,
            "scores": [3.0, 4.0],
            "cost_usd": None,
            "reason": "alike",
            "reply": "tie",
            "made_from": {"clips": {"answer 1": "../given/answer 1.wav"}, "prompts": []},
        },
        [
            "pair p1",
            "quality: g/1",
            "tie",
            "3, 4",
            "outside the folders",
            "Clips that a probe changes are made again",
            "not known",
            "sent none",
        ],
    ),
    "suite": (
        {"index": 7, "judge": "t", "unscored": HOSTILE, "reply": "Hm."},
        [escape(HOSTILE), "unscored", "The prompt was not kept", "does not say where its clips lie", "not kept"],
    ),
    "styleset": (
        {
            "item": "i1",
            "system": "s",
            "task": "style",
            "judge": "g",
            "score": 4.5,
            "votes": [4.0, 5.0],
            "reason": "r",
            "reply": "x",
            "cost_usd": 0.1,
        },
        ["4.50", "4, 5", "i1, s", "0.1000 USD"],
    ),
    "unisrm": (
        {
            "item": "i1",
            "task": "T1",
            "condition": "swapped",
            "judge": "u",
            "version": "1",
            "better": "A",
            "overall": None,
            "dimensions": {"fluency": 1.0},
            "unscored": None,
            "malformed": "",
            "reply": "<think>",
        },
        ["answer 1", "fluency", escape("<think>")],
    ),
    "rank": (
        {
            "aspect": "lexical",
            "instruction_id": "3",
            "system": "kimi",
            "system_answer": "../given/answer 1.wav",
            "reference_answer": "gone.wav",
            "verdict": to_json(Unscored("g", "two votes of five", "no")),
        },
        ["3, kimi, lexical", "two votes of five", "gone.wav", "is missing"],
    ),
    "detect": (
        {"id": "a-b", "truth": "same", "label": "different", "judge": "g", "reason": "r", "reply": "y", "cost_usd": None},
        ["a-b", "different"],
    ),
}


@pytest.mark.parametrize("name", OTHERS)
def test_rows_of_every_verb_open_and_say_what_they_lack(client: TestClient, tmp_path: Path, name: str) -> None:
    row, parts = OTHERS[name]
    write_jsonl(tmp_path / f"runs/{name}.jsonl", [row])
    assert f"{name}.jsonl" in client.get("/verdicts").text
    listed = client.get("/verdicts", params={"run": "0", "file": f"{name}.jsonl"}).text
    shown = page(client, file=f"{name}.jsonl")
    assert HOSTILE not in shown + listed
    for part in parts:
        assert part in shown, part


def test_values_of_a_wrong_type_are_passed_over(client: TestClient, tmp_path: Path) -> None:
    rows: list[dict[str, Any]] = [
        {"kind": "pair", "made_from": {"clips": {"answer 1": "\0"}}, "verdict": {"score": "5", "labels": [], "votes": 3}},
        {"kind": [], "made_from": {"clips": 3}, "verdicts": {}, "blueprints": {"answer 1": 3}},
        {"kind": "clip", "made_from": {}, "verdicts": {"a": 1}, "cost_usd": True, "unscored": {}},
        {
            "kind": "pair",
            "made_from": {"clips": {"a": "/etc/passwd", "b": "../../../x.wav", "c": "c.txt"}},
            "blueprints": {"a": {"fields": {"x": 1}}},
        },
    ]
    write_jsonl(tmp_path / "runs/odd.jsonl", rows)
    for number in range(len(rows)):
        shown = page(client, number, "odd.jsonl")
        assert "no verdict" in shown
    assert shown.count("This clip cannot be played") == 2
    assert "not a sound file" in shown


@pytest.mark.parametrize(
    "change",
    [
        {"row": "1"},
        {"row": "x"},
        {"with": "9"},
        {"file": "gone.jsonl"},
        {"file": "../x.jsonl"},
        {"file": "kept/clips"},
        {"run": "9"},
    ],
)
def test_verdicts_that_are_not_there(client: TestClient, change: dict[str, str]) -> None:
    answer = client.get("/verdict", params={"run": "0", "file": "kept/verdicts.jsonl", "row": "0", **change})
    assert answer.status_code in (403, 404)
    assert 'role="alert"' in answer.text


def test_a_row_that_is_cut_off_is_left_out_and_a_broken_one_is_named(client: TestClient, tmp_path: Path) -> None:
    path = tmp_path / "runs/kept/verdicts.jsonl"
    with path.open("a") as file:
        file.write('{"kind": "pa')
    assert "1 verdict<" in client.get("/verdicts", params={"run": "0", "file": "kept/verdicts.jsonl"}).text
    path.write_text("{\n{}\n")
    assert "not valid JSON" in client.get("/verdicts", params={"run": "0", "file": "kept/verdicts.jsonl"}).text


def test_rows_are_searched_and_come_in_parts(client: TestClient, tmp_path: Path) -> None:
    for number in range(120):
        append_jsonl(tmp_path / "runs/many.jsonl", {"index": number, "judge": "t", "unscored": f"reason {number % 2}"})
    shown = client.get("/verdicts", params={"run": "0", "file": "many.jsonl", "find": "REASON 1"}).text
    assert "60 verdicts" in shown
    second = client.get("/verdicts", params={"run": "0", "file": "many.jsonl", "part": "1"}).text
    assert "part 2 of 2" in second
    assert "row=119" in second


def test_two_answers_to_one_item_stand_side_by_side(client: TestClient, tmp_path: Path) -> None:
    rows = [
        {
            "kind": "answer",
            "verdict": {"score": score, "judge": "r", "reason": "x"},
            "made_from": {"words": words, "clips": {"answer": "a.wav"}},
        }
        for score, words in ((5.0, "one"), (2.0, "one"), (3.0, "two"))
    ]
    write_jsonl(tmp_path / "runs/answers.jsonl", rows)
    alone = page(client, file="answers.jsonl")
    assert alone.count("data-answer") == 1
    assert "2: r, 2.00" in alone
    assert "3: r, 3.00" not in alone
    beside = page(client, file="answers.jsonl", **{"with": "1"})
    assert beside.count("data-answer") == 2
    assert beside.rindex("5.00") < beside.rindex("2.00")


def test_words_have_places_or_a_reason(client: TestClient, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tone(tmp_path / "runs/w.wav", 220, 0.5)
    timed = Transcript("so it is", (Word(" so", 0.1, 0.2, 0.9), Word(" it", 0.2, 0.9, None)))
    monkeypatch.setattr("paras2s.audio.asr.transcribe", lambda clips, timed=False, words=timed: [words])
    found = client.get("/api/words?run=0&name=w.wav").json()
    assert found == {
        "duration_s": 0.5,
        "words": [
            {"text": "so", "start_s": 0.1, "end_s": 0.2, "p": 0.9},
            {"text": "it", "start_s": 0.2, "end_s": 0.5, "p": None},
        ],
    }

    def missing(clips: object, timed: bool = False) -> None:
        raise AssetError("whisper: not installed")

    monkeypatch.setattr("paras2s.audio.asr.transcribe", missing)
    tone(tmp_path / "runs/v.wav", 330, 0.5)
    answer = client.get("/api/words?run=0&name=v.wav")
    assert (answer.status_code, "not installed" in answer.json()["error"]) == (422, True)


def test_a_file_is_located_in_the_given_folders_alone(tmp_path: Path) -> None:
    for name in ("one", "two"):
        (tmp_path / name).mkdir()
    folders = open_folders([tmp_path / "one", tmp_path / "two"])
    assert folders.locate(tmp_path / "one/../two/x/y.wav") == ("1", "x/y.wav")
    for outside in (tmp_path / "x.wav", Path("/etc/passwd"), tmp_path / "one/../../x", tmp_path / "one" / "a\0b"):
        with pytest.raises(OutsideError):
            folders.locate(outside)
