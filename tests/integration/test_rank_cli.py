"""`paras2s rank` as a program: verdicts in, tables, JSON and a plot out.

Not covered: that the figures are right, which is test_ranking.py's.
"""

import json
import random
import resource
import subprocess
import sys
from pathlib import Path
from xml.etree import ElementTree

import pytest
import typer
from outside import HCOT, VERDICTS, needs_hcot
from tiny.program import program
from typer.testing import CliRunner

from paras2s.cli import rank as rank_verb
from paras2s.errors import ParaS2SError

PROGRAM = Path(sys.executable).parent / "paras2s"
HEAD = "aspect,instruction_id,system,reference,system_first,system_second\n"
ASPECTS = ("lexical", "paralinguistic", "speech_quality")
LABELS = {"good": ("1", "2"), "even": ("1", "1"), "bad": ("2", "1"), "ref": ("tie", "tie")}


def process(*words, cwd):
    return subprocess.run([PROGRAM, *map(str, words)], cwd=cwd, capture_output=True, text=True, timeout=120)


def rank(*words, cwd, status=0, run=program):
    done = run("rank", *words, cwd=cwd)
    assert done.returncode == status, done.stderr
    return done


@pytest.fixture
def folder(tmp_path):
    rows = [
        f"{aspect},{n},{system},ref,{','.join(LABELS[system])}\n" for aspect in ASPECTS for n in range(4) for system in LABELS
    ]
    (tmp_path / "verdicts.csv").write_text(HEAD + "".join(rows) + "lexical,4,good,ref,,2\n")
    (tmp_path / "people.csv").write_text("system,score\nGood,4.5\nEven,3\nbad,1\nelse,2\n")
    (tmp_path / "names.yaml").write_text("Good: good\n")
    return tmp_path


def test_tables_for_people_to_read(folder):
    said = rank("verdicts.csv", cwd=folder).stdout
    for words in ("100.00", "4 of 5", "exactly 50.00", "Position", "missing order (1): line 50: system_first of good, lexical"):
        assert words in said
    assert "Judge and people" not in said


def test_one_json_object_and_a_folder_of_reports(folder):
    words = ("--human", "people.csv", "--names", "names.yaml", "--alias", "Even=even", "--out", "out", "--json")
    found = json.loads(rank("verdicts.csv", *words, cwd=folder).stdout)
    assert json.loads((folder / "out/ranking.json").read_text()) == found
    assert list(found["aspects"]) == [*ASPECTS, "ensemble"]
    for one in found["aspects"].values():
        rates = {name: standing["win_rate"]["value"] for name, standing in one["systems"].items()}
        assert rates == {"good": 1.0, "even": 0.5, "ref": 0.5, "bad": 0.0}
        assert (one["people"]["n_systems"], one["people"]["spearman"]["value"]) == (3, pytest.approx(1.0))
    assert (found["people"]["only_judge"], found["people"]["only_people"]) == (["ref"], ["else"])
    assert found["problems"]["missing order"]["count"] == 1
    assert "| good | 100.00" in (folder / "out/ranking.md").read_text()
    ElementTree.parse(folder / "out/ranking.svg")


def test_one_aspect_and_a_rule_of_ones_own(folder):
    (folder / "rules.yaml").write_text("sound:\n  says: the sound alone\n  aspects: [speech_quality]\n  decide: vote\n")
    words = (
        "--rules",
        "rules.yaml",
        "--rule",
        "sound",
        "--aspect",
        "ensemble",
        "--aspect",
        "lexical",
        "--json",
        "--out",
        "out",
    )
    found = json.loads(rank("verdicts.csv", *words, cwd=folder).stdout)
    assert (list(found["aspects"]), found["rule"]) == (["ensemble", "lexical"], "sound: the sound alone")
    assert not (folder / "out/ranking.svg").exists()


def test_the_rule_is_named_where_the_ensemble_is_ranked(folder):
    full = json.loads(rank("verdicts.csv", "--json", cwd=folder).stdout)
    assert full["rule"].startswith("majority: ")
    alone = json.loads(rank("verdicts.csv", "--aspect", "lexical", "--json", "--out", "out", cwd=folder).stdout)
    assert (list(alone["aspects"]), alone["rule"]) == (["lexical"], None)
    assert "rule" not in (folder / "out/ranking.md").read_text()
    (folder / "one.csv").write_text(HEAD + "lexical,1,good,ref,1,2\nlexical,2,good,ref,1,2\n")
    lacking = json.loads(rank("one.csv", "--json", cwd=folder).stdout)
    assert (list(lacking["aspects"]), lacking["rule"], "no ensemble" in lacking["problems"]) == (["lexical"], None, True)


def test_a_thousand_verdicts_take_less_than_five_seconds_of_the_processor(tmp_path):
    rng = random.Random(0)
    rows = [
        f"{aspect},{n},system-{system},system-0,{rng.choice(('1', '2', 'tie'))},{rng.choice(('1', '2', 'tie'))}\n"
        for aspect in (*ASPECTS, "standard")
        for n in range(25)
        for system in range(10)
    ]
    (tmp_path / "verdicts.csv").write_text(HEAD + "".join(rows))
    before = resource.getrusage(resource.RUSAGE_CHILDREN).ru_utime
    found = json.loads(rank("verdicts.csv", "--json", cwd=tmp_path, run=process).stdout)
    assert resource.getrusage(resource.RUSAGE_CHILDREN).ru_utime - before < 5
    assert (found["n_rows"], len(found["aspects"])) == (1000, 5)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("none.csv",), "none.csv: cannot be read"),
        (("people.csv",), "people.csv: needs the column aspect once"),
        (("verdicts.csv", "--aspect", "manner"), "no verdicts of the aspect 'manner'"),
        (("verdicts.csv", "--rule", "none"), "unknown ensemble rule 'none'"),
        (("verdicts.csv", "--aspect", "lexical", "--rule", "majority"), "not ranked: add --aspect ensemble"),
        (("verdicts.csv", "--rules", "names.yaml"), "--rules names.yaml: say which of its rules makes the ensemble"),
        (("verdicts.csv", "--alias", "a=b"), "give --human as well"),
        (("verdicts.csv", "--human", "people.csv", "--alias", "a"), "--alias a: expected OLD=NEW"),
        (("verdicts.csv", "--human", "people.csv", "--alias", "Bad=bad"), "'Bad' is to be renamed, but is not in people.csv"),
        (
            ("verdicts.csv", "--human", "people.csv", "--names", "names.yaml", "--alias", "Good=x"),
            "--alias Good=x: 'Good' is renamed already, to 'good'",
        ),
        (("verdicts.csv", "--human", "people.csv", "--names", "people.csv"), "--names people.csv: expected lines such as"),
        (("verdicts.csv", "--human", "people.csv", "--names", "none.yaml"), "none.yaml: cannot be read as --names"),
        (("verdicts.csv", "--human", "verdicts.csv"), "verdicts.csv: needs the column score once"),
    ],
)
def test_what_is_wrong_is_said(folder, monkeypatch, words, said):
    monkeypatch.chdir(folder)
    app = typer.Typer()
    app.command()(rank_verb.rank)
    found = CliRunner().invoke(app, words).exception
    assert isinstance(found, ParaS2SError)
    assert said in str(found)


def test_an_error_is_one_line(folder):
    done = rank("verdicts.csv", "--aspect", "manner", "--json", cwd=folder, status=2)
    assert (done.stdout, done.stderr.count("\n")) == ("", 1)


@needs_hcot
def test_the_papers_verdicts_against_labelled_pairs(tmp_path):
    found = json.loads(rank(VERDICTS, "--human", HCOT, "--json", "--out", "out", cwd=tmp_path).stdout)
    assert (found["n_rows"], found["n_instructions"]) == (4210, 81)
    assert found["problems"]["no row"]["count"] == 2
    assert found["aspects"]["standard"]["position"]["stable"]["value"] == pytest.approx(0.742, abs=5e-4)
    assert len(found["people"]["scores"]) == 13
    groups = ElementTree.parse(tmp_path / "out/ranking.svg").iter("{http://www.w3.org/2000/svg}g")
    assert [group.get("class") for group in groups].count("dot") == 5 * 13
