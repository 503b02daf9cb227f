"""The plot of a ranking: whose verdicts it shows and what its intervals are, and that no name covers another."""

from __future__ import annotations

import json
from collections.abc import Iterable
from itertools import pairwise
from pathlib import Path
from xml.etree import ElementTree

from outside import ARENA, VERDICTS

from paras2s.bench.ranking.arena import load_arena, rank_arena
from paras2s.bench.ranking.arena_report import scatter
from paras2s.bench.ranking.data import COLUMNS, load_people, load_recorded
from paras2s.bench.ranking.metrics import rank_systems
from paras2s.bench.ranking.report import scatter_svg
from paras2s.bench.ranking.run import RankOptions, judge_of, run_rank
from paras2s.reward.judges.audio_judge.ensemble_rules import ENSEMBLE, find_ensemble

TABLE_8 = Path(__file__).resolve().parents[3] / "benchmarks/audiojudge_table8.csv"
SVG = "{http://www.w3.org/2000/svg}"


def names_of(plot: str, systems: Iterable[str]) -> list[float]:
    """The heights of the systems' names in a plot, in pixels from its top."""
    found = [one for one in ElementTree.fromstring(plot).iter(f"{SVG}text") if one.text in set(systems)]
    return [float(one.get("y")) for one in found]


def test_the_plot_of_the_paper_names_its_verdicts_and_intervals() -> None:
    found = rank_systems(load_recorded(VERDICTS), find_ensemble(), [ENSEMBLE], load_people(TABLE_8, {}))
    plot = scatter_svg(found, found.people, "judge: gpt-4o & co")
    texts = [one.text for one in ElementTree.fromstring(plot).iter(f"{SVG}text")]
    assert texts[-3:] == [
        "judge: gpt-4o & co",
        "bars and brackets: 95 % intervals, bootstrap over the judge's 81 instructions",
        "people's scores have no intervals; dashed: least squares",
    ]
    (title,) = (text for text in texts if text.startswith("ensemble: Spearman 0.809 [0.7"))
    assert title.endswith("], 13 systems")
    assert "the judge's win rate % against gpt4o-audio" in texts
    assert plot.count('class="dot"') == plot.count('class="name"') == 13


def test_no_name_of_twenty_systems_covers_another() -> None:
    found = rank_arena(load_arena(ARENA), resamples=200)
    name, one = next(iter(found.aspects.items()))
    heights = sorted(names_of(scatter(name, one, ARENA.name), one.systems))
    assert len(heights) == len(one.systems) == 20
    # Letters of 9 pixels.
    assert all(below - above >= 9 for above, below in pairwise(heights))


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
