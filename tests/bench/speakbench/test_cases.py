"""Saved cases (TRACE, Fig. 6) and the ablation of the blueprint's groups (Table 12), by hand and with scripted judges.

Not covered: the paper's two cases and its Table 12. Neither the clips nor the verdicts behind them are released.
"""

from __future__ import annotations

import json
import re
from types import SimpleNamespace

import numpy as np
import pytest
import soundfile
import typer
from tiny.endpoint import Say, ScriptedEndpoint
from typer.testing import CliRunner

from paras2s.bench.speakbench import run as suite_run
from paras2s.bench.speakbench.cases import differing, write_cases
from paras2s.bench.speakbench.data import load_pairs
from paras2s.bench.speakbench.verdicts import VerdictRow
from paras2s.cli.bench_speakbench import bench_app
from paras2s.clients.chat import Bill, Message, Request
from paras2s.errors import BudgetError, ConfigError
from paras2s.reward.fusion import find_rule
from paras2s.reward.judges.registry import open_llm_judge
from paras2s.types import PairVerdict

DIMENSIONS = ("content", "voice_quality", "paralinguistics")
# People's labels of the three dimensions, which Alg. 1 fuses to 1, both_good and both_bad.
PEOPLE = [("both_good", "1", "1", "1"), ("both_good",) * 4, ("both_bad",) * 4]


@pytest.fixture
def suite(tmp_path):
    rows = []
    for index, labels in enumerate(PEOPLE):
        for name in "ab":
            (tmp_path / f"audio/{index}").mkdir(parents=True, exist_ok=True)
            soundfile.write(tmp_path / f"audio/{index}/{name}.wav", np.full(1600, 0.1), 16_000)
        clips = {"instruction_path": "none", "audio1_path": f"{index}/a.wav", "audio2_path": f"{index}/b.wav"}
        label = dict(zip((*DIMENSIONS, "overall"), labels, strict=True))
        rows.append({"index": index, **clips, "instruction_text": f"Say <{index}>.", "model_a": "x", "model_b": "y"})
        rows[-1] |= {"label": label, "instruction_id": index}
    (tmp_path / "labels.json").write_text(json.dumps(rows))
    return tmp_path


def bench(folder, *words):
    app = typer.Typer()
    app.add_typer(bench_app, name="bench")
    return CliRunner().invoke(app, ["bench", "speakbench", "--labels", str(folder / "labels.json"), *map(str, words)])


def said(*labels):
    return {"labels": dict(zip(DIMENSIONS, labels, strict=True))}


@pytest.mark.parametrize(
    ("people", "judges", "places"),
    [
        (["1", "2"], [["1", "2"]], []),
        (["1", "2"], [["1", None]], []),
        (["1", "2", "1"], [["2", "2", "2"]], [0, 2]),
        # Where one judge is right comes before where all are wrong.
        (["1", "2", "1"], [["2", "2", "2"], ["2", "2", "1"]], [2, 0]),
    ],
)
def test_cases_are_the_pairs_on_which_a_judge_and_people_differ(people, judges, places):
    assert differing(people, judges) == places


def test_recorded_verdicts_become_a_page_with_sound_labels_and_replies(suite):
    rows = [said("2", "both_good", "2") | {"reply": "<b>The second.</b>"}, said(*["both_good"] * 3), {"unscored": "no reply"}]
    (suite / "mine.jsonl").write_text("".join(json.dumps({"index": i} | row) + "\n" for i, row in enumerate(rows)))
    words = ("--verdicts", suite / "mine.jsonl", "--audio", suite / "audio", "--cases", suite / "cases")
    assert bench(suite, *words).exit_code == 0
    (case,) = json.loads((suite / "cases/cases.json").read_text())
    assert (case["index"], case["people"]["overall"], case["judges"][0]["overall"]) == (0, "1", "2")
    page = (suite / "cases/cases.html").read_text()
    assert page.count("<audio") == 2
    assert "&lt;b&gt;The second.&lt;/b&gt;" in page
    assert "<b>" not in page
    assert "1 of 1 pairs whose overall label" in page
    assert "Recorded verdicts do not hold the prompt." in page


def test_a_judge_of_now_shows_its_prompt_and_is_called_no_more(suite):
    reply = json.dumps({"reasoning": "so", "content": "2", "voice_quality": "2", "paralinguistics": "2"})
    with ScriptedEndpoint(lambda sent, n: Say(reply)) as server:
        words = ("--audio", suite / "audio", "--judge", "audio", "-s", f"llm.base_url={server.base_url}")
        words += ("-s", f"cache_dir={suite / 'cache'}", "--out", suite / "v.jsonl", "--cases", suite / "cases")
        done = bench(suite, *words)
        assert done.exit_code == 0, done.output
        assert len(server.requests) == 3
    page = (suite / "cases/cases.html").read_text()
    assert page.count("<summary>The prompt") == 3
    assert page.count("[a clip of 0.1 s]") == 6


def test_what_a_blueprint_says_is_in_the_saved_prompt(suite):
    shown = Request((Message("user", ('{"agent_audio_properties": {"Speech_Rate_WPM": 182}}',)),))
    judge = SimpleNamespace(pair_requests=lambda pairs: [[shown] for _ in pairs])
    verdicts = {"trace": {0: VerdictRow(index=0, **said("2", "2", "2"))}}
    pairs = load_pairs(suite / "labels.json")
    rule = ("speakbench", find_rule("speakbench", None))
    assert write_cases(suite / "cases", "speakbench", pairs, verdicts, rule, suite / "audio", judge) == 1
    assert re.search("Speech_Rate_WPM.*182", (suite / "cases/cases.html").read_text())


class Judge:
    """Says 1 of everything, and of content 2 once a group is left out; counts calls, each of which costs a cent."""

    name, reads, groups = "scripted", "blueprint", ["agent_accent", "agent_emotion"]
    pair_prompt = SimpleNamespace(hash="p")

    def __init__(self, overrides, spent, budget):
        self.left_out, self.spent, self.budget = overrides.get("judge.left_out", []), spent, budget
        self.version = "1-" + "-".join(self.left_out)
        self.config = SimpleNamespace(judge=SimpleNamespace(left_out=self.left_out), llm=SimpleNamespace(model="m"))
        self.client = SimpleNamespace(spending=lambda: "spent", estimate=lambda requests: Bill(calls=len(requests)))

    def label_pairs(self, pairs, on_progress):
        self.spent.append(self.left_out)
        if len(self.spent) > self.budget:
            return [BudgetError("the budget ended")] * len(pairs)
        labels = {name: "1" for name in DIMENSIONS} | ({"content": "2"} if self.left_out else {})
        return [PairVerdict(self.name, self.version, "p", labels, "", "", None, 1, 0, 1, 0.01, 0.0, 0.0)] * len(pairs)

    def pair_requests(self, pairs):
        return [[Request(())] for _ in pairs]


@pytest.fixture
def scripted(suite, monkeypatch):
    """The suite, and what was left out in each batch, with a judge whose budget holds so many batches as it is told."""
    spent, budget = [], [10]
    monkeypatch.setattr(suite_run, "open_llm_judge", lambda name, overrides, **options: Judge(overrides, spent, budget[0]))
    monkeypatch.chdir(suite)
    return suite, spent, budget


def test_one_command_judges_with_all_fields_and_without_each_group(scripted):
    folder, spent, _ = scripted
    words = ("--audio", folder / "audio", "--ablate-features", "--rule", "speakbench")
    done = bench(folder, *words, "--json")
    assert done.exit_code == 0, done.output
    found = json.loads(done.stdout)
    assert spent == [[], ["agent_accent"], ["agent_emotion"]]
    right = {name: report["overall"]["accuracy_4"]["value"] for name, report in found["judges"].items()}
    assert right == {"all fields": pytest.approx(1 / 3), "without agent_accent": 0, "without agent_emotion": 0}
    # Each is tested against all fields, and against no other.
    assert list(found["comparisons"]) == ["all fields - without agent_accent", "all fields - without agent_emotion"]
    assert len(list((folder / "runs/speakbench").glob("*.jsonl"))) == 3
    assert "all fields less without agent_accent" in bench(folder, *words).stdout


def test_an_ablation_is_estimated_in_all_and_ends_with_its_budget(scripted):
    folder, _, budget = scripted
    words = ("--audio", folder / "audio", "--ablate-features")
    assert json.loads(bench(folder, *words, "--estimate", "--json").stdout)["calls"] == 9
    budget[0] = 1
    assert isinstance(bench(folder, *words).exception, BudgetError)


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (("--oracle", "--cases", "c"), "--cases: needs verdicts"),
        (("--oracle", "--ablate-features"), "--ablate-features: writes verdicts of each setup"),
        (("--against", "a.csv", "--ablate-features"), "--against compares two sets"),
        (("--judge", "audio", "--audio", ".", "--ablate-features"), "--ablate-features: audio reads 'audio'"),
    ],
)
def test_what_does_not_go_together_is_refused(suite, words, says):
    error = bench(suite, *words).exception
    assert isinstance(error, ConfigError)
    assert says in str(error)


def test_the_papers_four_groups_are_those_of_trace_paper():
    groups = open_llm_judge("trace_paper", {}, calls=False).groups
    assert {"agent_accent", "agent_audio_properties", "agent_audio_quality", "agent_emotion"} <= set(groups)
