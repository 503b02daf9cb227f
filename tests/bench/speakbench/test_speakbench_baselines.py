"""TRACE's Table 1 by `bench speakbench --baselines`: both judges over a scripted endpoint, and numbers worked out by hand.

Not covered: the paper's figures, which want its judges; what a recogniser makes of the clips, whose words are set here.
"""

from __future__ import annotations

import json

import numpy as np
import pytest
import soundfile
import typer
from tiny.endpoint import Say, ScriptedEndpoint, said
from typer.testing import CliRunner

from paras2s.audio.clip import Clip
from paras2s.bench.speakbench.baselines import BaselineRow, baseline_table, load_rows
from paras2s.cli.bench_speakbench import bench_app
from paras2s.errors import BudgetError, ConfigError, DataError, StorageError
from paras2s.reward.blueprint.words import WordsExtractor
from paras2s.reward.judges.audio_judge.tasks import TASKS
from paras2s.reward.judges.base import Pair, Utterance
from paras2s.reward.judges.overall_judge import OverallJudge
from paras2s.reward.judges.registry import open_judge, open_llm_judge
from paras2s.types import Measured, Preference, Unscored

# The fifth pair has no original label.
ORIGINAL = ("1", "2", "tie", "1", "")
FIRST, SECOND = "the first words", "the second words"


@pytest.fixture
def suite(tmp_path, monkeypatch):
    rows = []
    for index in range(len(ORIGINAL)):
        (tmp_path / f"audio/{index}").mkdir(parents=True)
        for name, level in (("a", 0.1), ("b", 0.2)):
            soundfile.write(tmp_path / f"audio/{index}/{name}.wav", np.full(1600 + index, level), 16_000)
        clips = {"instruction_path": "none", "audio1_path": f"{index}/a.wav", "audio2_path": f"{index}/b.wav"}
        label = dict.fromkeys(("content", "voice_quality", "paralinguistics", "overall"), "both_bad")
        rows.append({"index": index, **clips, "instruction_text": f"item {index}", "model_a": "x", "model_b": "y"})
        rows[-1] |= {"label": label, "instruction_id": index}
    (tmp_path / "labels.json").write_text(json.dumps(rows))
    (tmp_path / "original.csv").write_text("index,label\n" + "".join(f"{i},{one}\n" for i, one in enumerate(ORIGINAL)))
    monkeypatch.chdir(tmp_path)

    def measure(self, clips):
        words = [Measured(FIRST if clip.samples.max() < 0.15 else SECOND) for clip in clips]
        return [{key: one for key in self.keys} for one in words]

    monkeypatch.setattr(WordsExtractor, "measure", measure)
    return tmp_path


def run(*words):
    app = typer.Typer()
    app.add_typer(bench_app, name="bench")
    return CliRunner().invoke(app, ["bench", "speakbench", "--labels", "labels.json", "--audio", "audio", *map(str, words)])


def bench(server, *words):
    return run("--baselines", "original.csv", "-s", f"llm.base_url={server.base_url}", *words)


def has_sound(request):
    return any(part["type"] == "input_audio" for part in request["messages"][-1]["content"] if isinstance(part, dict))


def verdict(label):
    return Say(json.dumps({"reasoning": "as told", "label": label}))


def answer(request, number):
    """By sound always the first; by the words what the original label is, but of the fourth pair nothing readable."""
    if has_sound(request):
        return verdict("1")
    index = next(i for i in range(5) if f"item {i}" in said(request))
    return Say("Hm.") if index == 3 else verdict(ORIGINAL[index])


def test_one_command_gives_table_1_with_the_papers_figures(suite):
    with ScriptedEndpoint(answer) as server:
        done = bench(server, "--json")
        assert done.exit_code == 1, done.output
        found = json.loads(done.stdout)
        # Four pairs by each judge: the fifth has no label to be set against.
        assert sum(map(has_sound, server.requests)) == 4
        assert len({said(one) for one in server.requests if not has_sound(one)}) == 4
        assert SECOND in said(next(one for one in server.requests if not has_sound(one)))
        first = len(server.requests)
        # Only what has no label is judged again.
        server.answer = lambda request, number: verdict("2")
        again = json.loads(bench(server, "--json").stdout)
        assert len(server.requests) == first + 1
        text = bench(server).stdout
        assert len(server.requests) == first + 1
    assert (found["n_pairs"], found["unlabelled"], found["majority"]) == (4, 1, ["1", 0.5])
    assert found["random_guess"] == pytest.approx(1 / 3)
    audio, llm = found["judges"]["audio judge"], found["judges"]["LLM judge"]
    assert (audio["accuracy"]["value"], audio["accuracy"]["n"], audio["said"]) == (0.5, 4, {"1": 4, "2": 0, "tie": 0})
    # Right on all three that it could be read on: Wilson's 3 / (3 + 1.96^2) = 0.4385.
    assert (llm["accuracy"]["value"], llm["accuracy"]["n"], llm["accuracy"]["n_asked"]) == (1.0, 3, 4)
    assert llm["accuracy"]["low"] == pytest.approx(0.4385, abs=1e-4)
    assert list(llm["unscored"].values()) == [1]
    # Of three in both, the second and the third are right by the words alone: 2 of 2 by chance in 0.5 of cases.
    comparison = found["comparison"]
    assert (comparison["first_only"], comparison["second_only"], comparison["p_value"]) == (2, 0, 0.5)
    assert comparison["difference"]["value"] == pytest.approx(2 / 3)
    assert found["paper"]["LLM judge"] == [59.8, 55.8, 64.6]
    # The fourth is a 1, and was called a 2.
    assert again["judges"]["LLM judge"]["accuracy"]["value"] == 0.75
    assert again["judges"]["LLM judge"]["unscored"] == {}
    flat = " ".join(text.split())
    assert "51.4 % (47.6 to 56.6)" in flat
    assert "33.3 %" in flat
    assert "LLM judge less audio judge" in flat
    rows = [json.loads(line) for line in (suite / llm["file"]).read_text().splitlines()]
    assert [row["index"] for row in rows] == [0, 1, 2, 3]
    assert FIRST in rows[0]["made_from"]["prompts"][0]
    assert rows[0]["made_from"]["clips"]["answer 1"] == "../../audio/0/a.wav"


def test_an_estimate_is_of_both_judges_and_makes_no_call(suite):
    with ScriptedEndpoint(answer) as server:
        assert json.loads(bench(server, "--estimate", "--json").stdout)["calls"] == 8
        assert json.loads(bench(server, "--estimate", "--json", "--both-orders").stdout)["calls"] == 16
        assert server.requests == []


def test_a_budget_that_ends_is_an_error_and_pays_for_nothing(suite):
    with ScriptedEndpoint(answer) as server:
        assert isinstance(bench(server, "-s", "llm.budget_usd=1e-9").exception, BudgetError)
        assert server.requests == []


def test_a_missing_clip_is_unscored_by_both(suite):
    (suite / "audio/0/b.wav").unlink()
    with ScriptedEndpoint(answer) as server:
        found = json.loads(bench(server, "--json", "--limit", "2").stdout)
    for one in found["judges"].values():
        assert one["accuracy"]["n"] == 1
        assert "no such file" in next(iter(one["unscored"]))


def test_labels_that_force_a_winner_are_guessed_half_of_the_time():
    rows = {"audio judge": {0: BaselineRow(index=0, judge="j", label="tie"), 1: BaselineRow(index=1, judge="j", label="2")}}
    table = baseline_table("s2sarena", {0: "1", 1: "2"}, {0: "a", 1: "b"}, rows, {})
    assert (table.random_guess, table.comparison) == (0.5, None)
    # A tie is wrong where people had to name a winner.
    assert table.judges["audio judge"].accuracy.value == 0.5


@pytest.mark.parametrize(
    "words", [("--oracle",), ("--judge", "audio"), ("--out", "x.jsonl"), ("--retry-unscored",), ("--against", "a.csv")]
)
def test_what_does_not_go_with_the_baselines_is_refused(suite, words):
    with ScriptedEndpoint(answer) as server:
        error = bench(server, *words).exception
    assert isinstance(error, ConfigError)
    assert "--baselines" in str(error)


def test_a_file_of_other_labels_is_not_gone_on_with(suite):
    with ScriptedEndpoint(answer) as server:
        found = json.loads(bench(server, "--json", "--limit", "1").stdout)
        path = suite / found["judges"]["audio judge"]["file"]
        path.write_text(json.dumps(json.loads(path.read_text()) | {"prompt_hash": "other"}))
        assert isinstance(bench(server, "--limit", "1").exception, StorageError)
    (suite / "bad.jsonl").write_text(json.dumps({"index": 0, "judge": "j", "label": "both_good"}))
    with pytest.raises(DataError, match=r"bad\.jsonl:1: label"):
        load_rows(suite / "bad.jsonl")


# The judge.


def pair():
    first, second = (Clip(np.full(1600, level, dtype=np.float32), 16_000) for level in (0.1, 0.2))
    return Pair(Utterance(text="Say it."), first, second)


@pytest.mark.parametrize(
    ("replies", "label", "consistent"),
    [(("1", "2"), "1", True), (("1", "1"), "tie", False), (("tie", "2"), "1", False), (("tie", "tie"), "tie", True)],
)
def test_two_orders_become_one_label(suite, replies, label, consistent):
    """In the second order "2" is the pair's first; points of 1 and 0.5 have a mean of 0.75, which is a 1."""

    def in_order(request, number):
        text = said(request)
        return verdict(replies[text.index(FIRST) > text.index(SECOND)])

    with ScriptedEndpoint(in_order) as server:
        judge = open_judge("transcript_overall", {"llm.base_url": server.base_url, "cache_dir": str(suite)}, both_orders=True)
        (found,) = judge.compare_batch([pair()])
    assert isinstance(found, Preference)
    assert (found.label, found.consistent, found.order_labels) == (label, consistent, replies)


@pytest.mark.parametrize(
    "text", ["1", '{"label": "3"}', '{"label": "1"} or {"label": "2"}', '{"label": true}', '{"label": "both_good"}']
)
def test_what_is_none_of_three_labels_is_unscored(suite, text):
    with ScriptedEndpoint(lambda request, number: Say(text)) as server:
        judge = open_judge("transcript_overall", {"llm.base_url": server.base_url, "cache_dir": str(suite)})
        (found,) = judge.compare_batch([pair()])
    assert isinstance(found, Unscored)
    assert found.reply == text


def test_a_judge_of_one_label_labels_no_dimensions_and_reads_no_blueprint(suite):
    judge = open_llm_judge("audio_overall", {"cache_dir": str(suite)}, calls=False)
    assert isinstance(judge, OverallJudge)
    assert judge.pair_schema == TASKS["standard"].schema
    with pytest.raises(ConfigError, match="--baselines"):
        judge.label_pairs([pair()])
    with pytest.raises(ConfigError, match="asks: overall is for reads transcript or audio"):
        open_llm_judge("trace", {"judge.asks": "overall"}, calls=False)
    assert "--baselines measures such judges" in str(run("--judge", "transcript_overall", "--estimate").exception)
