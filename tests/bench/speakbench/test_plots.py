"""Plots of TRACE's probes: by hand on four pairs through the verb, and from people's own labels of SpeakBench.

Not covered: the bars of the paper's Figs. 3, 4, 5 and 9. The verdicts behind them are not released.
"""

from __future__ import annotations

import json
import re
from xml.etree import ElementTree

import pytest
import typer
from outside import HCOT, needs_hcot
from typer.testing import CliRunner

from paras2s.cli.bench_speakbench import bench_app
from paras2s.errors import ConfigError

GROUPS = ("mine", "half", "theirs")
DIMENSIONS = ("content", "voice_quality", "paralinguistics")
# People's overall label, and a judge's three labels; by Alg. 1 the judge says 1, 2, 1, both_good.
PAIRS = [
    ("1", ("1", "2", "both_bad")),
    ("both_bad", ("both_good", "2", "both_good")),
    ("2", ("both_good", "2", "1")),
    ("both_good", ("both_good", "both_good", "both_good")),
]


@pytest.fixture
def suite(tmp_path):
    rows, verdicts = [], []
    for index, (people, judge) in enumerate(PAIRS):
        label = dict(zip((*DIMENSIONS, "overall"), (*judge, people), strict=True))
        clips = {"instruction_path": "i", "audio1_path": "a", "audio2_path": "b", "instruction_text": "?"}
        rows.append({"index": index, **clips, "model_a": "x", "model_b": "y", "label": label, "instruction_id": index})
        verdicts.append({"index": index, "labels": dict(zip(DIMENSIONS, judge, strict=True))})
    (tmp_path / "labels.json").write_text(json.dumps(rows))
    (tmp_path / "mine.jsonl").write_text("".join(json.dumps(row) + "\n" for row in verdicts))
    (tmp_path / "half.jsonl").write_text("".join(json.dumps(row) + "\n" for row in verdicts[:2]))
    return tmp_path


def run(*words):
    app = typer.Typer()
    app.add_typer(bench_app, name="bench")
    return CliRunner().invoke(app, ["bench", *map(str, words)])


def texts(path):
    return [one.text for one in ElementTree.parse(path).iter("{http://www.w3.org/2000/svg}text")]


def after(found, name, count):
    return found[found.index(name) + 1 :][:count]


def test_verdicts_become_the_four_plots_with_a_group_for_each_judge(suite):
    verdicts = ("--verdicts", suite / "mine.jsonl", "--verdicts", suite / "half.jsonl")
    done = run("s2sarena", "--labels", suite / "labels.json", *verdicts, "--rule", "speakbench", "--plots", suite / "plots")
    assert done.exit_code == 0, done.output
    assert f"plots in {suite / 'plots'}" in done.stdout.replace("\n", "")
    winners = texts(suite / "plots/winners.svg")
    # Both bad once, and the judge names a winner; winners twice (1 and 2), and it is right once. Half of the pairs: one winner.
    assert bars(winners, "mine", 2) == {"winner on bad": ("100.0", "1"), "winner slice": ("50.0", "2")}
    assert bars(winners, "half", 2) == {"winner on bad": ("100.0", "1"), "winner slice": ("100.0", "1")}
    assert (
        "printed in TRACE, Fig. 5 (Gemini 2.5 Flash), winner slice: TRACE 73.5 %, audio judge 86.7 %, LLM judge 84.1 %"
        in winners
    )
    assert "s2sarena: 4 pairs, 4 instructions; verdicts fused by speakbench" in winners
    # Content counts as good: pairs 0 and 1 are decided by the voice, 2 by the manner, 3 stays a tie.
    ties = bars(texts(suite / "plots/ties.svg"), "mine", 4)
    assert {name: share for name, (share, _) in ties.items()} == {
        "paralinguistics": "25.0", "voice quality": "50.0", "both good": "25.0", "both bad": "0.0",
    }  # fmt: skip
    # Without content's 1, pair 0 goes from 1 to 2; without the voice pair 1 is a tie; without the manner pair 2 goes to 2.
    flips = bars(texts(suite / "plots/flips.svg"), "mine", 3)
    assert flips == dict.fromkeys(("content", "voice quality", "paralinguistics"), ("25.0", "4"))
    confusion = texts(suite / "plots/confusion.svg")
    # Precision: of two verdicts of 1 one is right, the one of 2 is wrong, that of both_good right, both_bad is never said.
    assert after(confusion, "mine", 1) == ["P 37.5, R 50.0 %, n = 4 of 4"]
    assert after(confusion, "half", 1) == ["P 50.0, R 50.0 %, n = 2 of 4"]


def test_plots_are_of_verdicts_or_labels_alone(suite):
    for words in (("--estimate",), ("--against", suite / "labels.json")):
        found = run("speakbench", "--labels", suite / "labels.json", "--plots", suite / "plots", *words).exception
        assert isinstance(found, ConfigError)
        assert "--plots" in str(found)
    assert not (suite / "plots").exists()


def bars(found, group, count):
    """The share and the n of each bar of a group, by its label. In a plot all words come first, then all names."""
    end = found.index("0 %")
    words, names = found[:end], found[end + 5 :]
    groups = [name for name in names[: names.index(group)] if name in GROUPS]
    begin = names.index(group) - len(groups)
    labels = after(names, group, count)
    shares = (re.match(r"([\d.]+) %.*, n = (\d+)", one) for one in words[begin : begin + count])
    return {label: share.groups() for label, share in zip(labels, shares, strict=True)}


def test_peoples_own_labels_are_drawn_by_rule(suite):
    done = run("speakbench", "--labels", suite / "labels.json", "--oracle", "--plots", suite / "plots")
    assert done.exit_code == 0, done.output
    confusion = texts(suite / "plots/confusion.svg")
    assert after(confusion, "speakbench", 1) == ["P 37.5, R 50.0 %, n = 4 of 4"]
    assert "speakbench: 4 pairs, 4 instructions; people's own labels of the dimensions, fused by each rule" in confusion
    assert {"speakbench_dominant_bad", "majority", "s2sarena", "s2sarena_lenient"} <= set(confusion)
    ties = texts(suite / "plots/ties.svg")
    assert "printed in TRACE, Fig. 3 (about, Gemini 2.5 Flash), voice quality: TRACE 23 %" in ties


@needs_hcot
def test_peoples_own_labels_of_speakbench(tmp_path):
    pairs = json.loads(HCOT.read_text())
    rows = ({"index": one["index"], "labels": {name: one["label"][name] for name in DIMENSIONS}} for one in pairs)
    (tmp_path / "theirs.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    done = run("speakbench", "--labels", HCOT, "--verdicts", tmp_path / "theirs.jsonl", "--plots", tmp_path)
    assert done.exit_code == 0, done.output
    # Recall by people's frequencies is accuracy: 450 of 497 pairs.
    assert "R 90.5 %, n = 497 of 497" in after(texts(tmp_path / "confusion.svg"), "theirs", 1)[0]
    # TRACE, Table 6: 85 pairs are both bad, 366 have a winner.
    assert [n for _, n in bars(texts(tmp_path / "winners.svg"), "theirs", 2).values()] == ["85", "366"]
