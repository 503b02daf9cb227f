"""The studio's pages and data over run folders made by hand, healthy and broken, without a browser.

Not covered: what the pages' scripts do with the data (test_browser.py).
"""

from __future__ import annotations

import csv
import io
import json
import os
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest
import soundfile
from starlette.testclient import TestClient
from studio.world import HOSTILE, make_run, metrics_row
from tiny.world import invoke

from paras2s.errors import ConfigError
from paras2s.rollout.store import INDEX, step_path
from paras2s.studio.answers import read_bench
from paras2s.studio.app import make_app
from paras2s.studio.compare import config_differences
from paras2s.studio.curves import plots_for, quiet_plots, read_log
from paras2s.studio.folders import open_folders
from paras2s.studio.rollouts import evenly
from paras2s.studio.run_state import Interval, read_state
from paras2s.utils.io import write_json, write_jsonl, write_text


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("runs")
    make_run(folder / "one")
    make_run(folder / "two", score=3.0, seed=7)
    return folder


@pytest.fixture(scope="module")
def client(runs: Path) -> TestClient:
    return TestClient(make_app([runs]), base_url="http://127.0.0.1:8017")


def get(client: TestClient, address: str, status: int = 200) -> Any:
    response = client.get(address)
    assert response.status_code == status, response.text
    return response.json() if address.startswith("/api/") else response


# -- security ----------------------------------------------------------------------------------------------------------


def test_every_answer_has_the_headers(client: TestClient) -> None:
    for address in ("/", "/static/studio.js", "/nothing", "/clip?run=0/one&name=../x.wav", "/api/run?run=9"):
        headers = client.get(address).headers
        assert headers["Content-Security-Policy"].startswith("default-src 'self';"), address
        assert "unsafe" not in headers["Content-Security-Policy"]
        assert headers["X-Content-Type-Options"] == "nosniff"


def test_another_host_is_refused(client: TestClient) -> None:
    assert client.get("/", headers={"Host": "attacker.example"}).status_code == 400


@pytest.mark.parametrize("origin", [None, "http://attacker.example", "http://127.0.0.1:1", "null"])
def test_a_change_from_elsewhere_is_refused(client: TestClient, origin: str | None) -> None:
    headers = {} if origin is None else {"Origin": origin}
    assert client.post("/", headers=headers).status_code == 403


@pytest.mark.parametrize(
    "address",
    [
        "/clip?run=0/one&name=../../secret.wav",
        "/clip?run=0/one&name=%2e%2e/%2e%2e/secret.wav",
        "/clip?run=0/one&name=..%252fsecret.wav",
        "/clip?run=0/..&name=secret.wav",
        "/clip?run=0/one&name=/etc/passwd",
        "/clip?run=0/one&name=config.resolved.yaml",
        "/clip?run=0/one&name=out/secret.wav",
        "/clip?run=7&name=secret.wav",
        "/static/../app.py",
        "/static/%2e%2e/app.py",
    ],
)
def test_nothing_outside_and_nothing_but_sound_is_served(tmp_path: Path, address: str) -> None:
    run = tmp_path / "runs/one"
    write_text(tmp_path / "secret.wav", "secret")
    write_text(run / "config.resolved.yaml", "secret: 1\n")
    (run / "out").symlink_to(tmp_path)
    response = TestClient(make_app([tmp_path / "runs"]), base_url="http://127.0.0.1").get(address)
    assert response.status_code in (403, 404)
    assert "secret: 1" not in response.text
    assert response.content != b"secret"


def test_hostile_words_are_text(client: TestClient) -> None:
    pages = ["/", "/run?run=0/one", "/compare?run=0/one&run=0/two", "/run?run=<script>", "/clip?run=0&name=<script>.wav"]
    for address in pages:
        text = client.get(address).text
        assert HOSTILE not in text
        assert "<script>" not in text
        assert "<img" not in text


# -- pages -------------------------------------------------------------------------------------------------------------


def test_the_list_has_the_runs(client: TestClient) -> None:
    text = get(client, "/").text
    for words in ("finished", "aaaaaaa", "1.25 USD", "3 min", "4.25"):
        assert words in text
    rows = {name: get(client, f"/?find={name}").text.count('aria-label="Compare ') for name in ("", "tw", "0/t", "nothing")}
    assert rows == {"": 2, "tw": 1, "0/t": 1, "nothing": 0}


def test_the_state_of_a_run(runs: Path) -> None:
    found = read_state(open_folders([runs]), "0/one", now_s=0.0)
    assert (found.state, found.stage, found.steps_done, found.steps, found.cost_usd) == ("finished", None, 4, 4, 1.25)
    assert (found.preset, found.seed, found.commit, found.minutes, found.problems) == ("quick", 0, "a" * 40, 3.0, ())
    # Scores 4, 4.5, 4, 4.5 of four contrasts: mean 4.25, error sqrt(4 / 3 * 4 * 0.25^2) / 4.
    error = (4 / 3 * 4 * 0.0625) ** 0.5 / 4
    assert found.score == Interval(4.25, pytest.approx(4.25 - 1.96 * error), pytest.approx(4.25 + 1.96 * error))


@pytest.mark.parametrize(("age_s", "state"), [(10.0, "running"), (-10.0, "running"), (4000.0, "stopped"), (-4e9, "stopped")])
def test_a_run_without_an_end_runs_while_its_files_change(tmp_path: Path, age_s: float, state: str) -> None:
    """Whatever the clock does."""
    run = make_run(tmp_path / "one", steps=3, align={"steps": 10})
    for name in ("bench/summary.json", "aligned/trainer.json"):
        (run / name).unlink()
    newest = max(path.stat().st_mtime for path in [run, *run.rglob("*")])
    found = read_state(open_folders([tmp_path]), "0/one", newest + age_s)
    assert (found.state, found.stage) == (state, "align")
    # Three seconds a step, seven steps to go.
    assert found.left_s == (21.0 if state == "running" else None)


@pytest.mark.parametrize(("kind", "stage"), [("reward_model", "distill"), ("omni", "distill"), ("rubric", "align")])
def test_a_run_whose_judge_pays_has_no_reward_model_to_make(tmp_path: Path, kind: str, stage: str) -> None:
    run = make_run(tmp_path / "one", steps=3, reward={"sources": [{"kind": kind}]})
    for name in ("bench/summary.json", "aligned/trainer.json", "reward/reward_model.json"):
        (run / name).unlink(missing_ok=True)
    assert read_state(open_folders([tmp_path]), "0/one", 0.0).stage == stage


def test_a_running_stage_says_what_it_does(tmp_path: Path) -> None:
    run = make_run(tmp_path / "one", steps=3)
    for name in ("bench/summary.json", "aligned/trainer.json", "reward/reward_model.json"):
        (run / name).unlink(missing_ok=True)
    newest = max(path.stat().st_mtime for path in [run, *run.rglob("*")])
    write_json(run / "progress.json", {"name": "answers judged", "done": 3, "total": 8, "left_s": 12.5})
    # Nothing else changed for longer than a stage may be silent.
    os.utime(run / "progress.json", (newest + 1000, newest + 1000))
    found = read_state(open_folders([tmp_path]), "0/one", newest + 1010)
    assert (found.state, found.stage, found.doing, found.left_s) == ("running", "distill", "answers judged 3 of 8", 12.5)
    write_text(run / "progress.json", '{"name": 3}')
    os.utime(run / "progress.json", (newest + 1000, newest + 1000))
    assert read_state(open_folders([tmp_path]), "0/one", newest + 1010).doing is None


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("config.resolved.yaml", "", "is empty or cut off"),
        ("config.resolved.yaml", "a: [", "cannot be read"),
        ("config.resolved.yaml", "name: x\nbrand_new: 1\n", "made by another version: its setting brand_new"),
        ("bench/summary.json", '{"aligned": ', "bench/summary.json: not valid JSON"),
        ("origin.json", "[]", "origin.json: holds no object"),
        ("metrics.jsonl", '{"step": 0, "reward_mean": NaN}\nnot json\n{"step": 1}\n{"st', ""),
        ("metrics.jsonl", '{"step": 0, "reward_mean": 1e999, "kl": 1' + "0" * 400 + "}\n", ""),
        ("config.resolved.yaml", "name: x\nalign: {sampling: [1]}\n", "its setting align.sampling"),
        ("bench/summary.json", '{"aligned": {"overall": {"mean": 3}, "categories": {"age": 3, "tone": {}}}}', ""),
        ("reward/agreement.json", '{"held_out": 3, "held_out_by_category": {"age": [], "tone": {"pearson": "x"}}}', ""),
        ("timings.json", '{"data": "long"}', ""),
        ("data/queries.parquet", "broken", ""),
        ("bench/aligned.jsonl", '{"system": 1}\n', "aligned.jsonl:1"),
    ],
)
def test_what_is_broken_is_a_message_in_its_place(tmp_path: Path, name: str, content: str, message: str) -> None:
    run = make_run(tmp_path / "one")
    make_run(tmp_path / "two")
    write_text(run / name, content)
    client = TestClient(make_app([tmp_path]), base_url="http://127.0.0.1", raise_server_exceptions=True)
    for address in ("/", "/run?run=0/one", "/curves?run=0/one", "/compare?run=0/two&run=0/one", "/rollouts?run=0/one"):
        assert get(client, address).status_code == 200
    assert message in get(client, "/run?run=0/one").text
    assert isinstance(get(client, "/api/metrics?run=0/one")["rows"], list)


def test_the_logs_of_a_run_without_a_bench_are_no_verdicts(tmp_path: Path) -> None:
    run = make_run(tmp_path / "one")
    shutil.rmtree(run / "bench")
    assert read_bench(run).problems == []
    assert read_state(open_folders([tmp_path]), "0/one", 0.0).problems == ()
    # A broken file is named as it lies in the run, wherever that is.
    write_text(run / "bench/aligned.jsonl", '{"system": 1}\n')
    (problem,) = read_bench(run).problems
    assert problem.startswith("bench/aligned.jsonl:1: ")


def test_a_newer_version_is_named(tmp_path: Path) -> None:
    write_text(tmp_path / "one/config.resolved.yaml", "name: x\nbrand_new: 1\n")
    write_text(tmp_path / "one/origin.json", '{"version": "99.0.0", "commit": null}')
    (problem,) = read_state(open_folders([tmp_path]), "0/one", 0.0).problems
    assert problem.startswith("made by version 99.0.0, newer than this one")


def test_a_read_only_folder_is_enough(runs: Path, client: TestClient) -> None:
    before = {path: path.stat().st_mtime_ns for path in runs.rglob("*")}
    for address in ("/", "/run?run=0/one", "/rollouts?run=0/one", "/sound?run=0/one&step=0&group=0&answer=0"):
        get(client, address)
    assert {path: path.stat().st_mtime_ns for path in runs.rglob("*")} == before


# -- curves and comparison ---------------------------------------------------------------------------------------------


def test_a_log_comes_in_parts(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    write_jsonl(path, [metrics_row(0), metrics_row(1)])
    first = read_log(path)
    assert ([row["step"] for row in first.rows], first.anew) == ([0, 1], True)
    with path.open("a") as file:
        file.write('{"step": 2}\n{"step": 3')
    second = read_log(path, first.offset, first.file)
    assert ([row["step"] for row in second.rows], second.anew) == ([2], False)
    with path.open("a") as file:
        file.write("}\n")
    third = read_log(path, second.offset, second.file)
    assert [row["step"] for row in third.rows] == [3]
    # A resumed run replaces the file.
    os.replace(path, tmp_path / "old")
    write_jsonl(path, [metrics_row(0)])
    again = read_log(path, third.offset, third.file)
    assert ([row["step"] for row in again.rows], again.anew) == ([0], True)
    # The file system may give the new log the old one's inode, and the log may be longer: written in place, it has both.
    path.write_text(json.dumps(metrics_row(0) | {"reward_mean": -7.0}) + '\n{"step": 1}\n')
    other = read_log(path, again.offset, again.file)
    assert ([row["step"] for row in other.rows], other.anew) == ([0, 1], True)


def test_sources_and_phases_have_plots() -> None:
    found = {plot.title: plot for plot in plots_for(["step", "reward_mean", "reward/llm", "reward/length", "seconds_update"])}
    assert list(found) == ["Reward", "Reward by source", "Phases of a step"]
    assert found["Reward by source"].lines == (("reward/llm", "llm"), ("reward/length", "length"))
    assert found["Phases of a step"].stacked


def test_panels_without_signal_are_quiet() -> None:
    rows = [
        {
            "step": step,
            "reward_mean": 3.0 + step,
            "reward/model": 3.0 + step,
            "clipped_share": 0.0,
            "parity_text_mean": 1e-7 * step,
        }
        for step in range(3)
    ]
    plots = plots_for(rows[0])
    assert quiet_plots(plots, rows) == {"Reward by source", "Clipped", "Sampler against learner"}
    rows[1] |= {"clipped_share": 0.1, "parity_text_mean": 0.01, "reward/model": 2.0}
    assert quiet_plots(plots, rows) == set()


def test_settings_that_differ() -> None:
    one, other = {"seed": 0, "run_dir": "a", "align": {"lr": 1, "steps": 3}}, {"seed": 0, "run_dir": "b", "align": {"lr": 2}}
    assert config_differences([one, other]) == [("align.lr", ["1", "2"]), ("align.steps", ["3", "not set"])]


def test_a_comparison_is_paired_by_question(client: TestClient) -> None:
    text = get(client, "/compare?run=0/one&run=0/two").text
    # Every question of the second is exactly 1 lower.
    assert '<b>-1.00</b> <span class="soft small">-1.00 to -1.00</span>' in text
    assert "4 of 4" in text
    assert "<code>seed</code>" in text
    assert get(client, "/compare?run=0/one", status=404).text.count("choose 2 to 6") == 1


# -- rollouts ----------------------------------------------------------------------------------------------------------


def test_a_step_of_rollouts(client: TestClient) -> None:
    listed = get(client, "/api/rollouts?run=0/one")
    assert [one["step"] for one in listed["steps"]] == [0, 1, 2, 3]
    # The judge's noise, of the settings.
    assert listed["noise"] == 0.02
    assert (listed["steps"][1]["flat"], listed["steps"][1]["unscored"], listed["steps"][1]["widest"]) == (1, 1, 2.0)
    found = get(client, "/api/rollouts/step?run=0/one&step=3")["groups"]
    assert [group["gain"] for group in found] == [0.0, pytest.approx(0.3), 0.0]
    assert found[1]["question"] == {
        "id": "q1", "text": "question q1", "style": None, "category": None, "clip": "data/queries/q1.wav", "before": [],
    }  # fmt: skip
    assert [answer["advantage"] for answer in found[1]["answers"]] == pytest.approx([-1, 0, 1])
    assert found[2]["answers"][1]["unscored"] == f"llm: {HOSTILE}"
    get(client, "/api/rollouts/step?run=0/one&step=77", status=404)


def test_tokens_of_an_answer(client: TestClient) -> None:
    found = get(client, "/api/rollouts/answer?run=0/one&step=0&group=0&answer=0")
    assert (len(found["steps"]), found["step_s"]) == (6, 0.08)
    assert {token["token"] for step in found["steps"] for token in step["text"]} <= {"a", "b", "##c", HOSTILE}


def test_sound_is_decoded_and_the_same(client: TestClient) -> None:
    address = "/sound?run=0/one&step=0&group=0&answer=1"
    samples, rate_hz = soundfile.read(io.BytesIO(get(client, address).content))
    assert (rate_hz, len(samples)) == (8000, 6 * 640)
    np.testing.assert_array_equal(samples, soundfile.read(io.BytesIO(get(client, address).content))[0])


def test_a_sound_is_sent_again_where_the_step_was_written_again(runs: Path, client: TestClient) -> None:
    address = "/sound?run=0/one&step=0&group=0&answer=1"
    tag = get(client, address).headers["ETag"]
    assert client.get(address, headers={"If-None-Match": tag}).status_code == 304
    path = runs / "one/rollouts/step_000000.parquet"
    stat = path.stat()
    os.utime(path, ns=(stat.st_atime_ns, stat.st_mtime_ns + 1))
    assert client.get(address, headers={"If-None-Match": tag}).status_code == 200


def test_a_folder_whose_name_is_no_text_is_counted(tmp_path: Path) -> None:
    make_run(tmp_path / "one")
    os.rename(tmp_path / "one", os.fsencode(tmp_path) + b"/\xff")
    make_run(tmp_path / "two")
    client = TestClient(make_app([tmp_path]), base_url="http://127.0.0.1")
    text = get(client, "/").text
    assert "1 more, whose names are no text" in text
    assert "0/two" in text


def test_a_query_through_training(client: TestClient) -> None:
    found = get(client, "/api/rollouts/query?run=0/one&query=q1")
    assert [(one["step"], one["group"], len(one["answers"])) for one in found["steps"]] == [(step, 1, 3) for step in range(4)]
    assert get(client, "/api/rollouts/query?run=0/one&query=none")["steps"] == []


def test_a_strip_has_the_first_and_the_last() -> None:
    places = [(step, 0) for step in range(1000)]
    chosen = evenly(places)
    assert (len(chosen), chosen[0], chosen[-1], len(set(chosen))) == (24, (0, 0), (999, 0), 24)


def test_a_broken_step_and_a_broken_index_hide_nothing_else(tmp_path: Path) -> None:
    run = make_run(tmp_path / "one")
    step_path(run / "rollouts", 1).write_bytes(b"broken")
    client = TestClient(make_app([tmp_path]), base_url="http://127.0.0.1")
    assert "cannot be read" in get(client, "/api/rollouts/step?run=0/one&step=1", status=404)["error"]
    assert len(get(client, "/api/rollouts/step?run=0/one&step=2")["groups"]) == 3
    strip = get(client, "/api/rollouts/query?run=0/one&query=q1")["steps"]
    assert ["cannot be read" in (one["problem"] or "") for one in strip] == [False, True, False, False]
    (run / "rollouts" / INDEX).write_text("{}\n")
    listed = get(client, "/api/rollouts?run=0/one")
    assert (len(listed["steps"]), "index.jsonl" in listed["problem"]) == (4, True)


def test_a_run_without_rollouts_says_so(tmp_path: Path) -> None:
    write_text(tmp_path / "one/config.resolved.yaml", "name: x\n")
    client = TestClient(make_app([tmp_path]), base_url="http://127.0.0.1")
    assert "kept no rollouts" in get(client, "/rollouts?run=0/one").text
    assert "kept no rollouts" in get(client, "/api/rollouts?run=0/one", status=404)["error"]


# -- export ------------------------------------------------------------------------------------------------------------


def test_rollouts_are_exported_for_notebooks(runs: Path, tmp_path: Path) -> None:
    invoke("rollouts", runs / "one", "--out", tmp_path / "all.parquet")
    rows = pq.read_table(tmp_path / "all.parquet").to_pylist()
    assert (len(rows), {row["step"] for row in rows}) == (4 * 9, {0, 1, 2, 3})
    last = rows[-1]
    assert (last["question"], last["reward"], last["reward/length"], last["reward/rubric"]) == ("question q2", 5.0, 5.0, None)
    assert len(last["tokens"]) == len(last["logprobs"]) == 6 * 9
    invoke("rollouts", runs / "one", "--step", 2, "--out", tmp_path / "two.csv")
    table = list(csv.DictReader((tmp_path / "two.csv").open()))
    assert ([row["step"] for row in table], table[7]["reward"], table[7]["unscored"]) == (["2"] * 9, "", f"llm: {HOSTILE}")
    listed = json.loads(invoke("rollouts", runs / "one", "--json").stdout)
    assert [(row["step"], row["flat"], row["unscored"]) for row in listed] == [(step, 1, 1) for step in range(4)]


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--step", 9, "--out", "x.csv"], "not kept; the kept steps are 0 to 3"),
        (["--out", "x.txt"], "ends in"),
        (["--step", 9], "not kept"),
    ],
)
def test_an_export_that_cannot_be_is_refused(runs: Path, words: list, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        invoke("rollouts", runs / "one", *words)
