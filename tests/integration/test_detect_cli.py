"""`bench detect` end to end: real clips on disk, the real audio judge over HTTP to a scripted endpoint that measures noise.

Not covered: a real audio model; the scripted one compares the level of the quietest stretch of what it is sent.
"""

import base64
import csv
import io
import json
import re
from pathlib import Path
from typing import get_args

import numpy as np
import pytest
import soundfile
import typer
from outside import LIBRISPEECH
from tiny.endpoint import Fail, Say, ScriptedEndpoint
from typer.testing import CliRunner

from paras2s.bench.detection import run as detect_stage
from paras2s.bench.detection.data import SUITES, load_pairs, load_rows
from paras2s.cli.bench_detection import DetectName, bench_detect
from paras2s.errors import BudgetError, ConfigError, DataError, ParaS2SError, StorageError
from paras2s.reward.judges.base import Judge
from paras2s.types import Preference

RATE_HZ = 16_000
# Ratings of a clip by its signal-to-noise ratio.
MOS_OF = {None: 5.0, 10: 3.0, 0: 1.0}


@pytest.fixture(scope="module")
def clips(tmp_path_factory):
    """Four clips without their first second, two seconds each: clean, with noise 10 dB under them, and as loud as they are."""
    folder, rng = tmp_path_factory.mktemp("clips"), np.random.default_rng(0)
    for number, path in enumerate(sorted(LIBRISPEECH.glob("*.flac"))[:4]):
        samples = soundfile.read(path)[0][RATE_HZ : 3 * RATE_HZ]
        for snr_db in MOS_OF:
            noise = rng.standard_normal(len(samples)) * np.sqrt((samples**2).mean())
            mixed = samples if snr_db is None else samples + noise * 10 ** (-snr_db / 20)
            soundfile.write(folder / f"s{number}_{snr_db}.wav", mixed / 4, RATE_HZ)
    return folder


@pytest.fixture(scope="module")
def dnsmos(tmp_path_factory):
    """The words for the baseline DNSMOS, which measures each of the clips once for all tests."""
    return ("--baseline", "dnsmos", "-s", f"cache_dir={tmp_path_factory.mktemp('measured')}")


@pytest.fixture
def suite(tmp_path, clips, monkeypatch):
    """Five pairs of a clean clip and a noisy one; the last label is wrong, and the fifth pair has no audio."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("OPENAI_API_KEY", "none")
    rows = []
    for number, (first, second, label) in enumerate([(None, 0, 1), (0, None, 2), (10, 0, 1), (None, 10, 2)]):
        rows.append({"audio1_path": f"s{number}_{first}.wav", "audio2_path": f"s{number}_{second}.wav", "label": label})
    rows.append({"audio1_path": "none.wav", "audio2_path": "s0_0.wav", "label": 1})
    write_pairs(tmp_path, rows)
    return tmp_path


def write_pairs(folder, rows):
    with (folder / "pairs.csv").open("w", newline="") as file:
        writer = csv.DictWriter(file, list(rows[0]))
        writer.writeheader()
        writer.writerows(rows)


def detect(*words, fails=None):
    """The JSON, or the error's message."""
    app = typer.Typer()
    app.command()(bench_detect)
    done = CliRunner().invoke(app, [str(word) for word in (*words, *([] if fails else ["--json"]))])
    if fails:
        assert isinstance(done.exception, fails), done.output
        return str(done.exception)
    if done.exception and not isinstance(done.exception, SystemExit):
        raise done.exception
    report = json.loads(done.stdout)
    if "--verdicts" not in words and "--estimate" not in words:
        # 1 where a pair that was to be judged has no verdict.
        assert done.exit_code == any(judge["unscored"] for judge in report["judges"].values())
    return report


def quality(suite_clips, *words, name="somos", fails=None):
    return detect(name, "pairs.csv", "--audio", suite_clips, *words, fails=fails)


def floors(sent):
    """The level of the quietest tenth of a second of each recording in the last message, over that of the whole."""
    content = sent["messages"][-1]["content"]
    parts = [part["input_audio"]["data"] for part in content if part["type"] == "input_audio"]
    found = []
    for part in parts:
        samples = soundfile.read(io.BytesIO(base64.b64decode(part)))[0]
        frames = samples[: len(samples) // 1600 * 1600].reshape(-1, 1600)
        found.append(float(np.sqrt((frames**2).mean(1)).min() / np.sqrt((frames**2).mean())))
    return found


def encodes_noise(sent, _):
    found = floors(sent)
    if len(found) == 2:
        return Say(json.dumps({"reasoning": "the quieter floor", "label": "1" if found[0] < found[1] else "2"}))
    return Say(json.dumps({"reasoning": "its floor", "score": 5 if found[0] < 0.2 else 2}))


def asking(server, *more):
    return ("-s", f"llm.base_url={server.base_url}", "-s", "strategy=none", "-s", "llm.backoff_s=0.01", *more)


def only(report):
    (one,) = report["judges"].values()
    return one


def test_a_judge_that_receives_noise_is_right_wherever_the_label_is(suite, clips):
    with ScriptedEndpoint(encodes_noise) as server:
        report = quality(clips, *asking(server))
        assert len(server.requests) == 4
        again = quality(clips, *asking(server))
        assert len(server.requests) == 4
    assert again == report
    found = only(report)
    # Right on three of the four pairs that could be heard, the fourth of which is labelled wrongly.
    assert found["accuracy"]["value"] == pytest.approx(3 / 4)
    assert (found["accuracy"]["n"], found["accuracy"]["n_asked"]) == (4, 5)
    assert [(count, "none.wav: no such file" in reason) for reason, count in found["unscored"].items()] == [(1, True)]
    assert report["labels"] == {"1": 3, "2": 2}
    assert report["paper"]["accuracy"]["people"] == 0.71
    (path,) = report["judges"]
    row = json.loads(Path(path).read_text().splitlines()[0])
    assert (row["id"], row["truth"], row["label"]) == ("s0_None.wav | s0_0.wav", "1", "1")
    assert row["judge"].endswith(":gpt-audio")
    assert path == f"runs/detect/somos/{re.sub('[:/]', '-', row['judge'] + '-' + row['version'])}.jsonl"
    recorded = detect("somos", "pairs.csv", "--verdicts", path)
    assert recorded == report


def test_verdicts_on_pairs_that_are_not_requested_now_are_not_replaced(suite, clips, dnsmos):
    run = (*dnsmos, "--out", "own.jsonl")
    assert quality(clips, *run, "--limit", 2)["n_pairs"] == 2
    # More pairs, the old ones among them.
    quality(clips, *run, "--limit", 4)
    before = (suite / "own.jsonl").read_bytes()
    assert len(before.splitlines()) == 4
    said = quality(clips, *run, "--limit", 3, fails=StorageError)
    assert "own.jsonl holds verdicts on 4 pairs; 1 of them are not asked now (the first: s3_None.wav | s3_10.wav)" in said
    assert "give another --out" in said
    rows = list(csv.DictReader((suite / "pairs.csv").open()))
    turned = [{"audio1_path": row["audio2_path"], "audio2_path": row["audio1_path"], "label": 1} for row in rows]
    write_pairs(suite, turned)
    assert "on 4 pairs; 4 of them are not asked now" in quality(clips, *run, fails=StorageError)
    assert (suite / "own.jsonl").read_bytes() == before


def test_a_budget_that_ends_before_the_first_verdict_reports_no_older_file(suite, clips):
    with ScriptedEndpoint(encodes_noise) as server:
        quality(clips, *asking(server, "--out", "own.jsonl"))
        before = (suite / "own.jsonl").read_bytes()
        poor = ("--out", "own.jsonl", "-s", "cache_dir=other", "-s", "llm.budget_usd=1e-9")
        app = typer.Typer()
        app.command()(bench_detect)
        words = ("somos", "pairs.csv", "--audio", str(clips), *asking(server, *poor), "--json")
        done = CliRunner().invoke(app, words)
        assert isinstance(done.exception, BudgetError)
        assert done.stdout == ""
        assert len(server.requests) == 4
    assert (suite / "own.jsonl").read_bytes() == before


def test_the_first_verdicts_are_the_baseline_of_a_judge(suite, clips):
    with ScriptedEndpoint(lambda sent, _: Say('{"reasoning": "always", "label": "2"}')) as server:
        quality(clips, *asking(server, "--out", "poor.jsonl"))
    with ScriptedEndpoint(encodes_noise) as server:
        more = ("-s", "cache_dir=other", "--verdicts", "poor.jsonl", "--judge", "detection", "--out", "good.jsonl")
        report = quality(clips, *asking(server, *more))
    assert list(report["judges"]) == ["poor.jsonl", "good.jsonl"]
    assert report["judges"]["poor.jsonl"]["accuracy"]["value"] == pytest.approx(2 / 4)
    against = report["judges"]["good.jsonl"]["against_baseline"]
    # The last pair is lost, two of the others won, where the poor judge always said 2.
    assert (against["better"], against["worse"], against["p_value"], against["test"]) == (2, 1, 1.0, "McNemar, exact")
    assert against["difference"]["value"] == pytest.approx(1 / 4)


def test_pointwise_scores_give_ties_and_an_error(suite, clips, dnsmos):
    (suite / "list.csv").write_text(
        "utteranceId,mean\n" + "".join(f"s{n}_{snr},{mos}\n" for n in range(4) for snr, mos in MOS_OF.items())
    )
    with ScriptedEndpoint(encodes_noise) as server:
        report = detect("somos", "list.csv", "--audio", clips, "--pointwise", *asking(server))
    # Three pairs a sentence: clean against 10 dB, clean against 0 dB, 10 dB against 0 dB, which both score 2.
    assert (report["n_pairs"], report["drawn_from"]) == (12, 12)
    found = only(report)
    assert found["ties"] == 4
    assert found["accuracy"]["value"] == pytest.approx((8 + 4 * 0.5) / 12)
    # By hand, of each sentence: (0 + 1), (0 + 1) and (1 + 1) over six clips.
    assert found["squared_error"]["value"] == pytest.approx(4 / 6)
    assert report["paper"]["squared_error"]["pointwise, 0-shot"] == 3.31
    assert next(iter(report["judges"])).endswith("-pointwise.jsonl")
    again = detect("somos", "list.csv", "--audio", clips, *dnsmos, "--seed", 5, "--limit", 3)
    assert again["n_pairs"] == 3


def test_dnsmos_receives_the_noise_itself(suite, clips, dnsmos):
    report = quality(clips, *dnsmos, name="tmhintq")
    assert only(report)["accuracy"]["value"] == pytest.approx(3 / 4)
    assert only(report)["accuracy"]["n"] == 4
    pointwise = quality(clips, *dnsmos, "--pointwise", name="tmhintq")
    assert only(pointwise)["accuracy"] == only(report)["accuracy"]
    assert only(pointwise)["squared_error"] is None


def test_an_estimate_makes_no_call_and_a_budget_stops_and_goes_on(suite, clips):
    with ScriptedEndpoint(encodes_noise) as server:
        found = quality(clips, *asking(server, "--estimate"))
        assert (found["calls"], found["unscored"], server.requests) == (4, 1, [])
        single = quality(clips, *asking(server, "--estimate", "--pointwise"))
        assert (single["calls"], single["unscored"]) == (8, 1)
        # The budget holds one call as dear as it may get, and the change of a few short ones.
        some = ("-s", f"llm.budget_usd={1.03 * found['at_most_usd'] / 4}", "-s", "llm.concurrency=1")
        assert "the budget of" in quality(clips, *asking(server, *some), fails=BudgetError)
        paid = len(server.requests)
        assert 0 < paid < 4
        assert only(quality(clips, *asking(server)))["accuracy"]["n"] == 4
        assert len(server.requests) == 4


class ScriptedJudge(Judge):
    """Always says 1, and tells of every pair."""

    name = "scripted"

    def compare_batch(self, pairs, on_progress=None):
        for place in range(len(pairs)):
            on_progress(place + 1, len(pairs))
        return [Preference("scripted", "1", "", "clip_quality", "1", 1.0, ("1",), (1.0,), None, None, "", "")] * len(pairs)


def test_chunks_tell_how_many_pairs_are_done(suite, clips, monkeypatch):
    monkeypatch.setattr(detect_stage, "CHUNK_PAIRS", 2)
    pairs, given = load_pairs(Path("pairs.csv"), SUITES["somos"]).pairs, []
    detect_stage.judge_pairs(ScriptedJudge(), pairs, clips, Path("rows.jsonl"), lambda *now: given.append(now))
    assert given == [(1, 5), (2, 5), (2, 5), (3, 5), (4, 5), (4, 5), (5, 5)]
    rows = load_rows(Path("rows.jsonl"), SUITES["somos"])
    assert [rows[pair.id].label for pair in pairs] == ["1", "1", "1", "1", None]
    assert rows[pairs[4].id].judge == "scripted"


def test_a_reply_without_a_label_is_unscored_with_its_reason(suite, clips):
    with ScriptedEndpoint(lambda sent, n: Say("I cannot say") if n else Fail(400, "too loud")) as server:
        found = only(quality(clips, *asking(server, "-s", "llm.concurrency=1")))
    assert (found["accuracy"]["value"], found["accuracy"]["n"]) == (None, 0)
    assert sum(found["unscored"].values()) == 5
    assert any("too loud" in reason for reason in found["unscored"])


def test_the_command_line_names_every_suite():
    assert list(get_args(DetectName)) == list(SUITES)


def test_the_authors_results_need_no_audio(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for name, said in (("zero", "TTFFTFTFTF"), ("four", "TTTTTTTTTF")):
        with (tmp_path / f"{name}.csv").open("w", newline="") as file:
            writer = csv.writer(file)
            writer.writerow(["audio1_path", "audio2_path", "ground_truth", "prediction", "reasoning", "correct", "n_shots"])
            for number, one in enumerate(said):
                writer.writerow([f"{number}/a.wav", f"{number}/b.wav", "True", one == "T", "made up", one == "T", 0])
    report = detect("pronunciation", "zero.csv", "--verdicts", "zero.csv", "--verdicts", "four.csv")
    assert [one["accuracy"]["value"] for one in report["judges"].values()] == [0.5, 0.9]
    against = report["judges"]["four.csv"]["against_baseline"]
    assert (against["better"], against["worse"], against["p_value"]) == (4, 0, 2 / 2**4)


def test_the_table_names_the_papers_figures_and_what_was_not_scored(suite, clips, dnsmos):
    app = typer.Typer()
    app.command()(bench_detect)
    words = ["somos", "pairs.csv", "--audio", str(clips), *dnsmos, "--out", "dnsmos.jsonl"]
    text = CliRunner().invoke(app, words).stdout
    assert "somos: 5 pairs (3 times 1, 2 times 2); the paper's are 200" in text
    assert "4 of 5" in text
    assert "paper: MOSANET+" in text
    assert "85.0" in text
    assert "dnsmos.jsonl: 1 pairs unscored" in text


@pytest.mark.parametrize(
    ("words", "kind", "message"),
    [
        (("--judge", "detection", "--baseline", "dnsmos"), ConfigError, "--judge and --baseline: give one"),
        (("--baseline", "syllables"), ConfigError, "--baseline syllables: is not for somos"),
        (("--baseline", "dnsmos", "--estimate"), ConfigError, "--estimate: a baseline makes no call"),
        (("--baseline", "dnsmos", "--seed", 1), DataError, "leave the seed out"),
        (("--verdicts", "a.jsonl", "--pointwise"), ConfigError, "--verdicts alone makes no call"),
        (("--verdicts", "a.jsonl", "--verdicts", "a.jsonl"), ConfigError, "--verdicts: a file occurs twice"),
        (("--verdicts", "none.jsonl"), DataError, "none.jsonl: no such file"),
        (("--judge", "nobody"), ConfigError, "nobody"),
    ],
)
def test_what_does_not_go_together_is_refused(suite, clips, words, kind, message):
    assert message in quality(clips, *words, fails=kind)


def test_what_is_missing_or_of_another_is_refused(suite, clips):
    assert "--audio: give the folder" in detect("somos", "pairs.csv", "--baseline", "dnsmos", fails=ConfigError)
    assert "--pointwise: speaking_rate asks" in quality(clips, "--pointwise", name="speaking_rate", fails=ConfigError)
    single = ("--pointwise", "--baseline", "syllables")
    assert "gives single clips no score" in quality(clips, *single, name="speaking_rate", fails=ConfigError)
    (suite / "else.jsonl").write_text('{"id": "x", "truth": "1", "label": "1", "judge": "else:1"}\n')
    taken = ("--baseline", "dnsmos", "--out", "else.jsonl")
    assert "else.jsonl holds verdicts of else:1//" in quality(clips, *taken, fails=StorageError)
    write_pairs(suite, [{"audio1_path": "../a.wav", "audio2_path": "b.wav", "label": 1}])
    assert "leaves the audio folder" in quality(clips, "--baseline", "dnsmos", fails=ParaS2SError)
