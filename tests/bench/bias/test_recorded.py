"""Probes of recorded verdicts: by hand on a few rows, and the paper's figures from its authors' verdicts.

Not covered: Fig. 5 and the full Fig. 4 by verdicts: their 7,824 pairs are not in the authors' repository as it can be fetched.
"""

from __future__ import annotations

import json

import pytest
import typer
from outside import PROBES as RECORDED
from typer.testing import CliRunner

from paras2s.bench.bias.recorded import holds_recorded, load_recorded, measure
from paras2s.bench.bias.report import published_figures
from paras2s.cli.probe import probe
from paras2s.errors import ConfigError, DataError

HEAD = "judge,id,given,turned,human,first_words,second_words,first_mos,second_mos,noisy,again,10 dB\n"
ROWS = """J,a,1,2,tie,10,20,,,1,1,1
J,b,1,1,tie,30,20,,,2,1,2
J,c,tie,2,tie,30,27,,,1,tie,tie
J,d,2,,1,1,9,,,1,2,
"""


@pytest.fixture
def tiny(tmp_path):
    (tmp_path / "verdicts.csv").write_text(HEAD + ROWS)
    return tmp_path / "verdicts.csv"


@pytest.fixture(scope="module")
def authors():
    return {task: rows for (_, task), rows in load_recorded(RECORDED).items()}


def shares(part):
    return {name: round(100 * (share.value or 0.0), 1) for name, share in part.shares.items()}


def run(*words):
    app = typer.Typer()
    app.command()(probe)
    return CliRunner().invoke(app, [str(word) for word in words])


def test_every_column_gives_its_probe_and_no_other(tiny):
    rows = load_recorded(tiny)["J", ""]
    place = measure("position", rows)
    # Stable, first twice, a tie in one order; the fourth pair has one order.
    assert shares(place.part("all")) == {"stable": 33.3, "first": 33.3, "second": 0.0, "other": 33.3}
    assert (place.n_asked, place.n_scored, place.unscored) == (4, 3, {"no verdict recorded": 1})
    # Pairs a and b, both orders: shorter twice (a: 1 of 10 against 20 words), then longer, shorter.
    assert shares(measure("verbosity", rows).part("all")) == {"tie": 0.0, "longer": 25.0, "shorter": 75.0}
    noise = measure("noise", rows)
    assert shares(noise.part("10 dB")) == {"unchanged": 66.7, "changed": 33.3}
    assert shares(noise.part("10 dB", "chosen")) == {"unchanged": 100.0, "changed": 0.0}
    assert shares(noise.part("10 dB", "not chosen"))["changed"] == 100.0
    assert shares(noise.part("80 dB"))["unchanged"] == 100.0
    assert measure("mos_gap", rows) is None


@pytest.mark.parametrize(
    ("row", "says"),
    [
        ("J,e,3,2,,,,,,,,", "verdicts.csv:6: given"),
        ("J,a,1,2,,,,,,,,", "'a' occurs more than once for J"),
        ("J,e,1,2,,5,,,,,,", "first_words and second_words"),
        (",e,1,2,,,,,,,,", "judge"),
    ],
)
def test_a_wrong_row_is_refused_by_its_line(tiny, row, says):
    tiny.write_text(HEAD + ROWS + row + "\n")
    with pytest.raises(DataError, match=says):
        load_recorded(tiny)


def test_the_verb_reads_verdicts_and_asks_nobody(tiny, tmp_path):
    (tmp_path / "pairs.csv").write_text("id,first,second\na,a.wav,b.wav\n")
    assert (holds_recorded(tiny), holds_recorded(tmp_path / "pairs.csv")) == (True, False)
    done = run(tiny, "--out", tmp_path / "out", "--json")
    assert done.exit_code == 0, done.output
    (judge,) = json.loads(done.stdout)["judges"]
    assert ([one["name"] for one in judge["probes"]], judge["comparisons"]) == (["position", "verbosity", "noise"], 14)
    assert (tmp_path / "out/probe.html").is_file()
    assert len((tmp_path / "out/comparisons.jsonl").read_text().splitlines()) == 14
    assert "clean pair asked again" in judge["probes"][2]["notes"][0]
    assert isinstance(run(tiny, "--judge", "rubric").exception, ConfigError)
    assert isinstance(run(tiny, "--only", "loudness").exception, ConfigError)


def printed(name):
    return next(one for one in published_figures() if one.figure == f"AudioJudge, {name}")


@pytest.mark.parametrize(("task", "stable"), [("speaking_rate", 49.7), ("somos", 61.5), ("tmhintq", 61.5), ("thaimos", 69.5)])
def test_position_off_the_lexical_tasks_is_that_of_figure_6(authors, task, stable):
    """The paper's text: 49.2 % recency on speaking rate; a lean to the first on SOMOS and TMHINT-Q; ThaiMOS in balance."""
    part = measure("position", authors[task]).part("all")
    (row,) = (one for one in printed("Fig. 6").rows if one.task == task)
    assert shares(part) == {"stable": stable, **row.shares, "other": 0.0}
    assert (part.p_value < 0.01) == (task != "thaimos")


def test_noise_on_one_answer_gives_every_point_of_figure_3(authors):
    found = measure("noise", authors["chatbotarena"])
    rows = printed("Fig. 3").rows
    assert len(rows) == 15
    for row in rows:
        share = found.part(*row.group).shares["unchanged"]
        # The authors count a reply without a verdict as changed; here it is left out.
        assert 100 * share.value * share.n / share.n_asked == pytest.approx(row.shares["unchanged"], abs=0.06), row.group
    assert measure("noise", authors["somos"]) is None
    assert found.part("1 dB", "chosen").shares["unchanged"].n_asked == 422
    assert shares(found.part("1 dB", "chosen"))["unchanged"] == 85.5


def test_the_page_has_what_is_printed_beside_every_share_of_the_same_judge_and_data(tmp_path):
    assert run(RECORDED, "--out", tmp_path).exit_code == 0
    page = (tmp_path / "probe.html").read_text()
    # Two bars of each of four suites (Fig. 6), two of length (Fig. 4), and Fig. 3's points.
    assert page.count('class="mark"') == 4 * 2 + 2 + 15
    assert "49.2 % (41.9 to 56.4), n = 179; printed 49.2" in page
    assert "Hollow: as printed in AudioJudge, Fig. 3: white noise on one of the two answers" in page
    assert "<td>85.5 % (81.9 to 88.8)</td><td>85.3 %</td>" in page
    # Every point of a line has its number below and its interval beside it.
    lines = page[page.index("at 80 the noise is inaudible") :]
    assert lines.count('class="whisker"') == 4 * 5
    assert [line.split('class="')[0].count("<use") for line in lines.split('class="line"')[1:]] == 4 * [5]
    assert lines.count(">421</text>") == 4
    assert "for scale" not in page


def test_a_judge_that_is_not_in_the_paper_has_its_figures_for_scale_alone(tiny, tmp_path):
    assert run(tiny, "--out", tmp_path / "out").exit_code == 0
    page = (tmp_path / "out/probe.html").read_text()
    assert 'class="mark"' not in page
    assert "What is printed of other judges and data, for scale" in page
    assert (
        "<td>AudioJudge, Fig. 6</td><td>gpt-4o-audio</td><td>speakbench</td><td>all</td><td>first 9.8 %, second 12.5 %</td>"
        in page
    )


def test_longer_answers_win_where_people_tied(authors):
    """Fig. 4's sign and significance, on 1,000 of its pairs and in words instead of tokens."""
    found = measure("verbosity", authors["chatbotarena"])
    part = found.part("all")
    assert shares(part) == {"tie": 8.4, "longer": 62.8, "shorter": 28.7}
    assert part.p_value < 0.01
    assert "Only one order" in found.notes[0]


def test_position_binds_where_opinions_are_close(authors):
    """Fig. 17's direction: the wider the gap of mean opinions, the steadier and the more often right."""
    found = measure("mos_gap", authors["somos"])
    narrow, wide = (found.part(name, "order") for name in ("1 to 1.5", "2 and more"))
    assert narrow.shares["stable"].value < wide.shares["stable"].value
    assert found.part("1 to 1.5", "verdict").shares["right"].value < found.part("2 and more", "verdict").shares["right"].value
    assert found.correlation.value > 0
