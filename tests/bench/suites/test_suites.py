"""Outside suites on made folders of their layouts: from items to a table by hand, other judges, bad input, kill and resume.

Not covered: the makers' own prompts and sounds, which are theirs, and what a real judge says of them.
"""

from __future__ import annotations

import base64
import csv
import io
import json
import re
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar

import pytest
from outside import locate
from rich.console import Console
from starlette.testclient import TestClient
from tiny import suites as made
from tiny.endpoint import Fail, Raw, Say, ScriptedEndpoint, said
from typer.testing import CliRunner

from paras2s.audio.asr import Transcript
from paras2s.bench.ranking import answers as answer_files
from paras2s.bench.suites import SUITES, download, judging
from paras2s.bench.suites import answers as suite_answers
from paras2s.bench.suites.agreement import by_position
from paras2s.bench.suites.base import SuiteRow
from paras2s.bench.suites.run import SuiteOptions, estimate_suite, find_suite, read_verdicts, rescored, run_suite
from paras2s.cli.app import app
from paras2s.errors import BudgetError, ConfigError, DataError, StorageError
from paras2s.reward.judges.base import Judge
from paras2s.studio.app import make_app
from paras2s.types import Verdict
from paras2s.utils.io import read_jsonl

QUIET = Console(quiet=True)
RECORDED = locate("speechparaling/verdicts_en.jsonl.gz")


def judge_at(folder: Path, server: ScriptedEndpoint, name: str = "judge", **llm: Any) -> str:
    """A judge's YAML for the scripted endpoint."""
    settings = {"base_url": server.base_url, "model": name, "backoff_s": 0.001, "max_attempts": 1, "structured": "never", **llm}
    return str(made.text(folder / f"{name}.yaml", json.dumps({"kind": "llm", "llm": settings})))


def options(name: str, tmp_path: Path, judge: str | None, **more: Any) -> SuiteOptions:
    values = {"data": tmp_path / "data", "systems": {"mine": str(tmp_path / "mine")}, **more}
    return SuiteOptions(name, tmp_path / "run", tmp_path / "cache", judge=judge, **values)


def figures(result: Any, system: str = "mine") -> dict[str, float | None]:
    """The columns of the only table."""
    (systems,) = result.report["tables"].values()
    return {name: figure["value"] for name, figure in systems[system].items()}


def winners(sent: dict[str, Any], _: int) -> Say:
    """The first recording wins dynamic variation; of two dimensions the first wins one, and one is a tie."""
    return Say('{"winner": 1}' if '"winner" }' in said(sent) else '{"winner_1": 1, "winner_2": 0}')


# The recorded table.


def test_the_recorded_table_is_equal_cell_by_cell_but_for_one_failed_verdict_that_it_counts_as_won(tmp_path: Path) -> None:
    suite, problems, started = find_suite("speechparaling"), list[str](), time.thread_time()
    rows = read_verdicts(suite, RECORDED, problems)
    assert time.thread_time() - started < 2
    published = list(csv.reader(io.StringIO((RECORDED.parent / "final_scores_en.csv").read_text())))
    columns = ["overall", *published[0][2:]]
    expected = {row[0]: dict(zip(columns, map(float, row[1:]), strict=True)) for row in published[1:]}

    def table(given: list[SuiteRow]) -> dict[str, dict[str, float]]:
        return {
            name: {column: round(share.value or 0, 2) for column, share in cells.items()}
            for name, cells in suite.table(given).items()
        }

    ours = table(rows)
    differ = {
        (name, column): ours[name][column]
        for name in expected
        for column in columns
        if ours[name][column] != expected[name][column]
    }
    # The cell itself, and the two that are made of it.
    assert differ == {
        ("qwen-omni-realtime", "Dynamic Variation"): 4.17,
        ("qwen-omni-realtime", "overall"): 15.45,
        ("gemini", "Dynamic Variation"): 61.3,
    }
    failed = next(row for row in rows if row.item == "dyn_var_096" and row.system == "qwen-omni-realtime")
    assert failed.unscored == "the judge failed: Error"
    counted = [
        SuiteRow(**{**vars(failed), "unscored": None, "score": 1.0, "parts": {"1": 1.0}}) if row is failed else row
        for row in rows
    ]
    assert table(counted) == expected
    assert len(rows) == 4004
    assert problems == []
    assert sum(row.unscored is not None for row in rows) == 24
    first = by_position(rows)
    assert first is not None
    assert first["first_wins"].n == 4826


# One suite through everything.


@pytest.fixture
def paraling(tmp_path: Path) -> Path:
    made.speechparaling(tmp_path / "data")
    made.paraling_answers(tmp_path / "mine")
    return tmp_path


def test_pairs_are_scored_by_hand_and_resumed_without_a_call(paraling: Path) -> None:
    with ScriptedEndpoint(winners) as server:
        result = run_suite(options("speechparaling", paraling, judge_at(paraling, server)), QUIET, True)
        # The makers draw the order from the item's number: the system comes first in item 1, second in item 2.
        assert [row.position for row in result.rows] == [1, 2, 1, 2]
        assert [row.parts for row in result.rows] == [
            {"1 Pitch": 1.0},
            {"1 Pitch": 0.0},
            {"1 Age": 1.0, "2 Age": 0.5},
            {"1 Age": 0.0, "2 Age": 0.5},
        ]
        assert figures(result) == {"overall": 50.0, "Dynamic Variation": 50.0, "Situational Adaptation": 50.0}
        assert figures(result, "gemini") == {"overall": 50.0, "Dynamic Variation": 50.0, "Situational Adaptation": 50.0}
        assert len(server.requests) == 4
        again = run_suite(options("speechparaling", paraling, judge_at(paraling, server)), QUIET, True)
        assert again.report == result.report
        assert len(server.requests) == 4
        both = run_suite(
            options("speechparaling", paraling, judge_at(paraling, server, "both"), both_orders=True, subset="en/Dyn*"),
            QUIET,
            True,
        )
    judged = [row for row in both.rows if row.judge == "both"]
    # A judge that prefers what it hears first contradicts itself when the order changes.
    assert [(row.parts, row.consistent) for row in judged] == [({"1 Pitch": 0.5}, False)] * 2
    parts = [part for part in server.requests[0]["messages"][-1]["content"] if part["type"] == "text"]
    assert parts[0]["text"] == 'Of say 0 by Pitch: { "winner" }'


def test_a_changed_answer_is_judged_again_and_its_old_verdict_stands_for_nothing(paraling: Path) -> None:
    with ScriptedEndpoint(winners) as server:
        opts = options("speechparaling", paraling, judge_at(paraling, server), limit=1)
        run_suite(opts, QUIET, True)
        made.sound(paraling / "mine/dyn_var/dyn_var_001.wav", silent=True)
        result = run_suite(opts, QUIET, True)
    assert [row.unscored for row in result.rows] == ["the answer is silent"]
    assert result.unscored == 1
    assert figures(result)["overall"] is None


def test_rescoring_puts_both_judges_side_by_side_and_says_who_changes_places(paraling: Path) -> None:
    made.paraling_answers(paraling / "other")
    for path in (paraling / "other").rglob("*.wav"):
        made.sound(path, 0.45)
    systems = {"mine": str(paraling / "mine"), "other": str(paraling / "other")}

    def by_length(first: int) -> Callable[[dict[str, Any], int], Say]:
        def answer(sent: dict[str, Any], _: int) -> Say:
            sizes = [
                len(part["input_audio"]["data"]) for part in sent["messages"][-1]["content"] if part["type"] == "input_audio"
            ]
            # The baseline's sounds last 0.5 s: one judge prefers 0.45 s to it, the other 0.4 s.
            best = min(range(2), key=lambda place: abs(sizes[place] - 4 / 3 * 2 * 16_000 * first / 100))
            return Say(json.dumps(dict.fromkeys(("winner", "winner_1", "winner_2"), best + 1)))

        return answer

    with ScriptedEndpoint(by_length(44)) as server:
        run_suite(options("speechparaling", paraling, judge_at(paraling, server, "one"), systems=systems), QUIET, True)
    with ScriptedEndpoint(by_length(46)) as server:
        again = rescored(
            SuiteOptions("speechparaling", Path("x"), paraling / "cache", judge=judge_at(paraling, server, "two")),
            paraling / "run",
        )
        result = run_suite(again, QUIET, True)
    assert len(result.report["tables"]) == 2
    (compared,) = result.report["agreement"]
    assert [name.partition("/")[0] for name in compared["judges"]] == ["one", "two"]
    assert compared["measures"]["winner"]["statistic"] == "kappa"
    assert compared["measures"]["winner"]["n"] == 12
    assert all(re.fullmatch(r"(one|two)/1-\w{8}", label) for label in result.report["tables"])
    with pytest.raises(ConfigError, match="is no run of vstyle"):
        rescored(SuiteOptions("vstyle", Path("x"), Path("y")), paraling / "run")


def test_an_ended_budget_keeps_what_was_judged_and_goes_on(paraling: Path) -> None:
    prices = made.text(
        paraling / "prices.yaml",
        "as_of: 2026-01-01\nmodels: {judge: {text_in: 1000, text_out: 1000, audio_in: 0, audio_tokens_per_s: 1}}",
    )
    with ScriptedEndpoint(winners) as server:
        dear = judge_at(paraling, server, budget_usd=0.4, prices=str(prices), max_output_tokens=100, concurrency=1)
        first = run_suite(options("speechparaling", paraling, dear), QUIET, True)
        assert isinstance(first.stopped, BudgetError)
        done = len(server.requests)
        assert 0 < done < 4
        enough = judge_at(paraling, server, budget_usd=9, prices=str(prices), max_output_tokens=100, concurrency=1)
        assert run_suite(options("speechparaling", paraling, enough), QUIET, True).stopped is None
        assert len(server.requests) == 4


def test_hundreds_of_items_survive_a_kill_without_a_call_paid_twice(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # All sounds of this test are alike: they are read once.
    clip, data = made.read(made.sound(tmp_path / "tone.wav", 0.1)), (tmp_path / "tone.wav").read_bytes()
    for module in (suite_answers, download):
        monkeypatch.setattr(module, "read_clip", lambda *_, **__: clip)
    monkeypatch.setattr(download, "encode_clip", lambda _: data)
    made.speechparaling(tmp_path / "data", 400)
    made.paraling_answers(tmp_path / "mine", 400)
    with ScriptedEndpoint(winners) as server:
        opts = options("speechparaling", tmp_path, judge_at(tmp_path, server, concurrency=64))

        fold = judging._folded
        with pytest.MonkeyPatch.context() as patch:
            calls: list[int] = []

            def dies(replies: Any) -> Any:
                calls.append(1)
                if len(calls) > 120:
                    raise KeyboardInterrupt
                return fold(replies)

            patch.setattr(judging, "_folded", dies)
            with pytest.raises(KeyboardInterrupt):
                run_suite(opts, QUIET, True)
        before = len(server.requests)
        verdicts = tmp_path / "run/verdicts.jsonl"
        # A kill leaves half a line.
        verdicts.write_text(verdicts.read_text() + '{"suite": "speechpar')
        result = run_suite(opts, QUIET, True)
        assert 120 <= before < 400
        assert len(server.requests) == 400
    assert result.unscored == 0
    assert len(list(read_jsonl(verdicts))) == 400


def test_an_estimate_prices_sound_as_tokens_and_calls_nothing(paraling: Path) -> None:
    prices = made.text(
        paraling / "prices.yaml",
        "as_of: 2026-01-01\nmodels: {judge: {text_in: 0, text_out: 0, audio_in: 1000000, audio_tokens_per_s: 10}}",
    )
    with ScriptedEndpoint(winners) as server:
        bill = estimate_suite(options("speechparaling", paraling, judge_at(paraling, server, prices=str(prices))), QUIET)
        assert server.requests == []
    # Four pairs of 0.4 and 0.5 s, 9 tokens each.
    assert (bill["calls"], bill["sound_s"], bill["audio_in_tokens"]) == (4, 3.6, 36)
    assert bill["at_most_usd"] == pytest.approx(36.0)


# Bad input.

FIRST = "dyn_var/dyn_var_001.wav"
BROKEN: dict[str, tuple[Callable[[Path], object], str]] = {
    "one answer missing": (lambda p: (p / "mine" / FIRST).unlink(), f"no answer: {FIRST} is missing"),
    "one twice": (lambda p: made.sound(p / "mine/dyn_var/dyn_var_001.flac"), "2 answers, dyn_var_001.wav and dyn_var_001.flac"),
    "silent": (lambda p: made.sound(p / "mine" / FIRST, silent=True), "the answer is silent"),
    "no sound at all": (lambda p: (p / "mine" / FIRST).write_bytes(b"RIFF"), "dyn_var_001.wav"),
    "a transcript without audio": (
        lambda p: [(p / "mine" / FIRST).unlink(), made.text(p / "mine/dyn_var/dyn_var_001.txt", "yes")],
        f"a transcript without audio: {FIRST} is missing",
    ),
    "the baseline's missing": (lambda p: (p / "data/api_models/gemini/output_en" / FIRST).unlink(), "lacks the item's sound"),
}


@pytest.mark.parametrize("name", BROKEN)
def test_a_bad_answer_is_one_line_counted_and_never_a_zero(paraling: Path, name: str) -> None:
    spoil, reason = BROKEN[name]
    spoil(paraling)
    with ScriptedEndpoint(winners) as server:
        result = run_suite(options("speechparaling", paraling, judge_at(paraling, server)), QUIET, True)
        assert len(server.requests) == 3
    (unscored,) = result.report["unscored"]
    assert reason in unscored["reason"]
    assert (unscored["count"], result.unscored) == (1, 1)
    # Of dynamic variation item 2 alone is left, which was lost.
    assert figures(result)["Dynamic Variation"] == 0.0
    assert result.report["tables"].popitem()[1]["mine"]["Dynamic Variation"]["n"] == 1


@pytest.mark.parametrize(
    ("reply", "reason"),
    [
        ('{"winner": 3, "winner_1": 3, "winner_2": 0}', "is not between 0 and 2"),
        ('{"winner": "first", "winner_1": "a", "winner_2": 0}', "is no number"),
        ('{"winner": 1.5, "winner_1": 1.5, "winner_2": 0}', "is not between"),
        ("The first one.", "holds no JSON object"),
        ('{"winner": 1} no, {"winner": 2} {"winner_1": 1, "winner_2": 1} {"winner_1": 2, "winner_2": 1}', "differ"),
    ],
)
def test_a_label_outside_its_range_is_no_verdict_and_is_asked_again(paraling: Path, reply: str, reason: str) -> None:
    with ScriptedEndpoint(lambda sent, number: Say(reply)) as server:
        opts = options("speechparaling", paraling, judge_at(paraling, server))
        result = run_suite(opts, QUIET, True)
        assert result.unscored == 4
        assert all(reason in (row.unscored or "") for row in result.rows)
        server.answer = winners
        assert run_suite(opts, QUIET, True).unscored == 0
        assert len(server.requests) == 8


def test_what_is_wrong_with_a_download_is_said_and_the_rest_is_judged(paraling: Path) -> None:
    path = paraling / "data/jsonl_prompt_en/dyn_var/dyn_var.jsonl"
    # The makers name sounds by the line: what is behind a broken one keeps its name.
    path.write_text('{"prompt": "cut\n' + path.read_text().partition("\n")[2])
    (paraling / "data/audio_dataset_en/sit_ada/sit_multi/sit_multi_002.wav").unlink()
    with ScriptedEndpoint(winners) as server:
        result = run_suite(options("speechparaling", paraling, judge_at(paraling, server)), QUIET, True)
        assert any("dyn_var.jsonl:1: not valid JSON" in one for one in result.report["problems"])
        assert any("sit_multi_002.wav: no such sound" in one for one in result.report["problems"])
        assert result.rows[0].item == "en/dyn_var/dyn_var_002"
        assert len(server.requests) == 3
        (paraling / "data/judge_data/judge_code/dyn_var/dyn_var_en.py").unlink()
        with pytest.raises(
            DataError, match=r"judge_code/dyn_var/dyn_var_en\.py: missing; the makers have it in the repository"
        ):
            run_suite(options("speechparaling", paraling, judge_at(paraling, server, "x")), QUIET, True)
        with pytest.raises(ConfigError, match=r"holds no answer to any item; expected files such as dyn_var/dyn_var_002\.wav"):
            run_suite(
                options("speechparaling", paraling, judge_at(paraling, server), systems={"mine": str(paraling)}), QUIET, True
            )
        with pytest.raises(DataError, match="holds no item to judge; subsets: en/Dynamic Variation, en/Situational Adaptation"):
            run_suite(options("speechparaling", paraling, judge_at(paraling, server), subset="ch/*"), QUIET, True)
    for name in SUITES:
        empty = paraling / "empty"
        empty.mkdir(exist_ok=True)
        with pytest.raises(DataError, match="missing; the makers have it in"):
            run_suite(options(name, paraling, None, data=empty), QUIET, True)


def test_verdicts_of_another_suite_and_broken_lines_are_counted_and_left_out(tmp_path: Path) -> None:
    suite, problems = find_suite("vstyle"), list[str]()
    path = made.rows(
        tmp_path / "v.jsonl",
        {"suite": "sdeval", "metric": "rating", "system": "s", "item": "i", "subset": "x", "judge": "j", "score": 3.0},
        {"judger_model": "g", "nothing": 1},
        {
            "suite": "vstyle",
            "metric": "style",
            "system": "s",
            "item": "i",
            "subset": "en/empathy/anger",
            "judge": "j",
            "score": 3.0,
        },
        {
            "suite": "vstyle",
            "metric": "style",
            "system": "s",
            "item": "i",
            "subset": "en/empathy/anger",
            "judge": "j",
            "score": 4.0,
        },
        {"suite": "vstyle", "metric": "style", "system": "s", "item": "k", "subset": "x", "judge": "j", "score": "high"},
    )
    path.write_text(path.read_text() + '{"suite": "vst')
    rows = read_verdicts(suite, path, problems)
    assert [row.score for row in rows] == [3.0]
    said_of = "\n".join(problems)
    for part in (
        ":1: no verdict of VStyle, but of sdeval",
        ":2: no verdict",
        ":4: s, i is judged twice",
        ":5: no verdict",
        ":6: not valid",
    ):
        assert part in said_of
    assert len(problems) == 5


def test_the_verb_prints_one_json_and_exits_with_1_for_what_has_no_score(paraling: Path) -> None:
    (paraling / "mine/dyn_var/dyn_var_001.wav").unlink()
    with ScriptedEndpoint(winners) as server:
        words = [
            "bench",
            "suite",
            "speechparaling",
            "--data",
            paraling / "data",
            "--answers",
            paraling / "mine",
            "--judge",
            judge_at(paraling, server),
        ]
        words += ["--out", paraling / "run", "--cache-dir", paraling / "cache"]
        done = CliRunner().invoke(app, [*map(str, words), "--json"])
        shown = CliRunner().invoke(app, [*map(str, words)])
        priced = CliRunner().invoke(app, [*map(str, words), "--estimate"])
    assert done.exit_code == shown.exit_code == 1, done.exception
    assert json.loads(done.stdout)["suite"] == "speechparaling"
    assert "SpeechParaling-Bench, judged by judge/" in shown.stdout
    # Everything that can be judged is.
    assert "judging: at most 0.0000 USD" in priced.stdout
    assert (paraling / "run/table.md").read_text().startswith("# SpeechParaling-Bench")


def test_a_missing_key_is_noticed_before_a_system_is_asked(paraling: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("GEMINI_API_KEY", raising=False)
    with ScriptedEndpoint(lambda sent, _: spoken(sent, 0.4)) as server:
        spec = made.text(paraling / "chat.yaml", json.dumps({"base_url": server.base_url, "model": "speaks"}))
        with pytest.raises(ConfigError, match="set GEMINI_API_KEY in the environment"):
            run_suite(options("speechparaling", paraling, None, systems={"live": str(spec)}), QUIET, True)
        assert server.requests == []


def test_a_failing_endpoint_is_a_reason_and_no_score(paraling: Path) -> None:
    with ScriptedEndpoint(lambda sent, number: Fail(400, "no")) as server:
        result = run_suite(options("speechparaling", paraling, judge_at(paraling, server)), QUIET, True)
    assert {row.score for row in result.rows} == {None}
    assert all("HTTP 400" in (row.unscored or "") for row in result.rows)


# Systems that are asked, and judges with questions of their own.


def spoken(sent: dict[str, Any], seconds: float) -> Raw:
    """The answer of a speech-to-speech model, as long as its dialogue has messages, and its words."""
    data = base64.b64encode(made.tone(seconds, 200.0, "WAV")).decode()
    audio = {"id": "a", "data": data, "transcript": f"yes {len(sent['messages'])}", "expires_at": 0}
    choice = {"index": 0, "message": {"role": "assistant", "content": None, "audio": audio}, "finish_reason": "stop"}
    return Raw(json.dumps({"id": "x", "object": "chat.completion", "created": 0, "model": "m", "choices": [choice]}).encode())


class Shorter(Judge):
    """Prefers the shorter answer, and scores 5 less its seconds."""

    name, version, reads_history = "shorter", "7", True
    questions: ClassVar[list[Any]] = []

    def score_batch(self, exchanges: Any, on_progress: Any = None) -> list[Any]:
        self.questions.extend(exchange.question for exchange in exchanges)
        return [Verdict(self.name, self.version, "", 5 - one.answer.duration_s, "", "", 0.0, 0.0) for one in exchanges]


def test_an_endpoint_answers_once_in_dialogues_as_well_and_a_judge_of_ones_own_compares(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(answer_files, "transcribe", lambda clips: [Transcript("say") for _ in clips])
    made.speechparaling(tmp_path / "data")
    rows = [{"type": "sem", "number": "1", "turn": f"turn{n}", "source": "question", "audio_path": f"{n}.wav"} for n in (1, 2)]
    made.rows(tmp_path / "mtalk/records.jsonl", *({**row, "rubric_prompt_general": "general"} for row in rows))
    for n in (1, 2):
        made.sound(tmp_path / f"mtalk/{n}.wav")
    with ScriptedEndpoint(lambda sent, _: spoken(sent, 0.4)) as server:
        chat = {"base_url": server.base_url, "model": "speaks", "max_attempts": 1}
        spec = str(made.text(tmp_path / "chat.yaml", json.dumps(chat)))
        opts = options("speechparaling", tmp_path, f"{__name__}:Shorter", systems={"live": spec})
        bill = estimate_suite(opts, QUIET)
        assert server.requests == []
        assert bill["systems"]["live"]["to_answer"] == 4
        result = run_suite(opts, QUIET, True)
        # Its 0.4 s are shorter than the baseline's 0.5 s.
        assert figures(result, "live")["overall"] == 100.0
        assert {(row.judge, row.version, row.metric) for row in result.rows} == {("shorter", "7", "winner")}
        run_suite(opts, QUIET, True)
        assert len(server.requests) == 4
        talk = options("mtalk", tmp_path, f"{__name__}:Shorter", systems={"live": spec}, data=tmp_path / "mtalk")
        run_suite(replace(talk, out=tmp_path / "talk"), QUIET, True)
        run_suite(replace(talk, out=tmp_path / "talk"), QUIET, True)
        dialogue = server.requests[4:]
        assert [len(sent["messages"]) for sent in dialogue] == [1, 3]
        assert dialogue[1]["messages"][1] == {"role": "assistant", "content": "yes 1"}
        # Its own questions are asked behind the turns so far.
        before = [[(speaker, said.text, said.clip is not None) for speaker, said in q.history] for q in Shorter.questions]
        assert before[-1] == [("user", None, True), ("assistant", "yes 1", True)]
    made.sound(tmp_path / "duplex/candor_pause_handling/1/input.wav")
    with pytest.raises(ConfigError, match="times answers against the question"):
        run_suite(replace(talk, suite="fullduplex", data=tmp_path / "duplex", out=tmp_path / "duplex-run"), QUIET, True)
    with pytest.raises(StorageError, match="holds verdicts of speechparaling; give another --out"):
        run_suite(talk, QUIET, True)


def test_the_studio_shows_a_leaderboard_with_every_judge_and_warns_of_two(paraling: Path) -> None:
    with ScriptedEndpoint(winners) as server:
        for name in ("one", "two"):
            run_suite(options("speechparaling", paraling, judge_at(paraling, server, name)), QUIET, True)
    client = TestClient(make_app([paraling]), base_url="http://127.0.0.1:8017")
    page = client.get("/leaderboard").text
    assert "only rows of one judge compare" in page
    assert all(re.search(rf"<td>{name}/1-\w{{8}}</td>", page) for name in ("one", "two"))
    assert "50.00 (" in page
    assert "an outside suite" in client.get("/verdicts").text
    verdict = client.get("/verdict", params={"run": "0", "file": "run/verdicts.jsonl", "row": 0}).text
    assert "Of say 0 by Pitch" in verdict
    assert "dyn_var_001.wav" in verdict
