"""The plot of a ranking: whose verdicts it shows and what its intervals are, and that no label covers a dot or an interval."""

from __future__ import annotations

import json
import re
from pathlib import Path
from xml.etree import ElementTree

from outside import ARENA, VERDICTS

from paras2s.bench.ranking.arena import load_arena, rank_arena
from paras2s.bench.ranking.arena_report import scatter
from paras2s.bench.ranking.data import COLUMNS, load_people, load_recorded
from paras2s.bench.ranking.metrics import rank_systems
from paras2s.bench.ranking.report import place_labels, scatter_svg
from paras2s.bench.ranking.run import RankOptions, judge_of, run_rank
from paras2s.reward.judges.audio_judge.ensemble_rules import ENSEMBLE, find_ensemble

TABLE_8 = Path(__file__).resolve().parents[3] / "benchmarks/audiojudge_table8.csv"
FRAME = (56.0, 17.0, 520.0, 356.0)


def test_labels_keep_off_each_other() -> None:
    places = place_labels(["first", "second", "third"], [(200.0, 200.0), (202.0, 200.0), (204.0, 201.0)], [], FRAME)
    heights = sorted(y for _, y in places)
    apart = [abs(x - u) > 30 or abs(y - v) >= 9 for n, (x, y) in enumerate(places) for u, v in places[:n]]
    assert all(apart), heights


def test_labels_keep_off_intervals() -> None:
    # A bar to the right at the height of the dot, from 150 to 300: the label stands above or below it, or on the other side.
    ((_, y),) = place_labels(["first"], [(200.0, 200.0)], [(150.0, 199.0, 300.0, 201.0)], FRAME)
    assert y < 199.0 or y - 9 > 201.0
    # At the lower edge of the frame there is room above alone.
    ((_, y),) = place_labels(["first"], [(200.0, 350.0)], [(150.0, 349.0, 300.0, 351.0)], FRAME)
    assert y < 349.0


SVG = "{http://www.w3.org/2000/svg}"


def covered(plot: str) -> list[tuple[str, str]]:
    """Labels of a plot that lie on a dot, an interval or another label, and on which."""
    boxes: list[tuple[str, tuple[float, float, float, float]]] = []
    labels = []
    for one in ElementTree.fromstring(plot).iter():
        if one.get("class") == "dot":
            x, y = float(one.get("cx")), float(one.get("cy"))
            boxes.append(("dot", (x - 3.5, y - 3.5, x + 3.5, y + 3.5)))
        elif one.get("class") == "bar":
            x, y, u, v = map(float, re.findall(r"[\d.]+", one.get("d")))
            boxes.append(("bar", (min(x, u), min(y, v), max(x, u), max(y, v))))
        elif one.get("class") == "name":
            x, y = float(one.get("x")), float(one.get("y"))
            # Letters of 10 pixels: 7.5 above the line and 2 below it, some 5.3 wide.
            labels.append((one.text, (x, y - 7.5, x + 5.3 * len(one.text), y + 2)))
    assert boxes
    assert labels
    return [
        (name, what)
        for place, (name, (x, y, u, v)) in enumerate(labels)
        for what, (a, b, c, d) in [*boxes, *labels[:place]]
        if x < c and a < u and y < d and b < v
    ]


def test_the_plot_of_the_paper_names_its_verdicts_and_intervals_and_no_label_covers_anything() -> None:
    found = rank_systems(load_recorded(VERDICTS), find_ensemble(), [ENSEMBLE], load_people(TABLE_8, {}))
    plot = scatter_svg(found, found.people, "judge: gpt-4o & co")
    texts = [one.text for one in ElementTree.fromstring(plot).iter(f"{SVG}text")]
    assert texts[-3:] == [
        "judge: gpt-4o & co",
        "bars and brackets: 95 % intervals, bootstrap over the judge's 81 instructions",
        "people's scores have no intervals; dashed: least squares",
    ]
    assert texts[0].startswith("ensemble: Spearman 0.809 [0.7")
    assert texts[0].endswith("], 13 systems")
    assert "the judge's win rate % against gpt4o-audio" in texts
    assert covered(plot) == []
    # A name that is not beside its dot is tied to it by a line.
    assert 0 < plot.count('class="leader"') < 13


def test_no_label_of_twenty_systems_with_wide_intervals_covers_anything() -> None:
    found = rank_arena(load_arena(ARENA), resamples=200)
    name, one = next(iter(found.aspects.items()))
    assert len(one.systems) == 20
    assert covered(scatter(name, one, ARENA.name)) == []


def test_the_judge_of_a_file_stands_beside_it(tmp_path) -> None:
    path = tmp_path / "verdicts.csv"
    games = ("words,1,a,ref,1,2", "words,2,a,ref,1,1", "words,1,b,ref,tie,2", "words,2,b,ref,2,2")
    path.write_text("\n".join((",".join(COLUMNS), *games)) + "\n")
    assert judge_of(path) is None
    rows = [{"verdict": {"judge": "listens:gpt-audio"}}, {"verdict": "none"}, ["else"]]
    path.with_suffix(".jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows * 2))
    assert judge_of(path) == "listens:gpt-audio"
    (tmp_path / "people.csv").write_text("system,score\na,3\nb,2\nref,1\n")
    options = RankOptions(path, tmp_path / "people.csv", aspects=["words"], out=tmp_path / "out")
    assert run_rank(options)[1]["judge"] == "listens:gpt-audio"
    assert "- judge: listens:gpt-audio" in (tmp_path / "out/ranking.md").read_text()
    assert "judge: listens:gpt-audio" in (tmp_path / "out/ranking.svg").read_text()
    path.with_suffix(".jsonl").unlink()
    run_rank(options)
    assert f"verdicts: {path.name}" in (tmp_path / "out/ranking.svg").read_text()
