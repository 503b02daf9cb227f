"""Documents print what the code prints: tables and plots whose commands need no key and no audio are made again and compared.

Not covered: results of training, timings, and the tables of probes of a run, whose clips are not in the repository.
"""

from __future__ import annotations

import csv
import re
from collections import defaultdict
from pathlib import Path

import pytest
from outside import ARENA, DETECTION, GEMINI_VERDICTS, HCOT, PROBES, VERDICTS, needs_hcot

from paras2s.bench.bias.recorded import load_recorded as load_probed
from paras2s.bench.bias.recorded import measure
from paras2s.bench.ranking.arena import load_arena, rank_arena
from paras2s.bench.ranking.data import load_people, load_recorded
from paras2s.bench.ranking.metrics import AspectRanking, rank_systems
from paras2s.bench.ranking.run import RankOptions, run_rank
from paras2s.bench.speakbench.data import load_pairs
from paras2s.bench.speakbench.metrics import accuracy, cohen_kappa
from paras2s.experiments.results import rendered
from paras2s.reward.fusion import load_rules
from paras2s.reward.judges.audio_judge.ensemble_rules import ENSEMBLE, find_ensemble
from paras2s.statistics.intervals import Share
from paras2s.statistics.significance import mcnemar
from paras2s.utils.io import read_json

ROOT = Path(__file__).parent.parent
DOCS = ROOT / "docs"
# The page with the figures of judges, below DOCS.
MEASURED = "experiments/judges.md"
TABLE_8 = ROOT / "benchmarks/audiojudge_table8.csv"


def table(page: str, *head: str) -> dict[str, list[str]]:
    """The rows of the only table with these words in its head, by their first cell, without the marks of code."""
    lines = (DOCS / page).read_text().replace("`", "").splitlines()
    (start,) = (n for n, line in enumerate(lines) if line.startswith("|") and all(word in line for word in head))
    rows: dict[str, list[str]] = {}
    for line in lines[start + 2 :]:
        if not line.startswith("|"):
            break
        first, *cells = (cell.strip() for cell in line.strip("|").split("|"))
        rows[first] = cells
    return rows


def test_the_plot_of_a_ranking_is_what_its_command_draws(tmp_path: Path) -> None:
    run_rank(RankOptions(VERDICTS, TABLE_8, aspects=[ENSEMBLE], out=tmp_path))
    # An interval's end may be rounded otherwise on another machine.
    shown, drawn = (re.split(r"(-?\d+\.\d+)", path.read_text()) for path in (DOCS / "rank.svg", tmp_path / "ranking.svg"))
    assert shown[::2] == drawn[::2]
    assert [float(one) for one in shown[1::2]] == pytest.approx([float(one) for one in drawn[1::2]], abs=0.15)


def test_the_tables_of_seeds_are_those_of_the_file_beside_them() -> None:
    for path, text in rendered(read_json(DOCS / "results.json"), DOCS).items():
        assert path.read_text() == text, "renew it: paras2s results --no-run"


def agreement(one: AspectRanking) -> tuple[str, str]:
    """How often both orders agree, with and without its interval, as the pages have it."""
    stable = one.position.stable
    return f"{stable.value:.3f}", f"{stable.value:.3f} ({stable.low:.3f} to {stable.high:.3f})"


def test_rankings_are_those_of_the_recorded_verdicts() -> None:
    people = load_people(TABLE_8, {})
    verdicts = load_recorded(VERDICTS)
    found = rank_systems(verdicts, find_ensemble(), (), people).aspects
    found = {**found, "count": rank_systems(verdicts, find_ensemble("count"), [ENSEMBLE], people).aspects[ENSEMBLE]}
    named = {"standard (overall)": "standard", "ensemble, majority": ENSEMBLE, "ensemble, count": "count"}
    gemini = "ensemble of Gemini-2.5-Flash (speakbench_gemini25_0shot.csv)"
    found[gemini] = rank_systems(load_recorded(GEMINI_VERDICTS), find_ensemble(), [ENSEMBLE], people).aspects[ENSEMBLE]
    rows = table(MEASURED, "aspect", "Spearman, TRACE's labels")
    assert {named.get(name, name) for name in rows} == set(found)
    for name, (agree, spearman, *_) in rows.items():
        one = found[named.get(name, name)]
        assert agree in agreement(one) or (agree, name) == ("", gemini), name
        assert spearman == f"{one.people.spearman.value:.3f}", name


def test_meetings_of_chatbotarena_are_those_of_the_recorded_verdicts() -> None:
    found = rank_arena(load_arena(ARENA), resamples=2).aspects
    rows = table(MEASURED, "judge", "Spearman over 20 systems")
    for (name, (spearman, _, right, stable, sides)), one in zip(rows.items(), found.values(), strict=True):
        place = one.position
        shares = (one.accuracy, place.stable, place.first, place.second)
        percents = [f"{100 * share.value:.1f}" for share in shares]
        assert spearman == f"{one.spearman.value:.3f}", name
        assert (right, stable) == (f"{percents[0]} %", f"{percents[1]} %"), name
        assert sides == f"{percents[2]}, {percents[3]} %", name
        assert one.accuracy.n == 1000 or f"({one.accuracy.n} pairs)" in name


def test_positions_are_those_of_the_recorded_verdicts() -> None:
    tasks = {"speaking rate": "speaking_rate", "SOMOS": "somos", "TMHINT-Q": "tmhintq", "ThaiMOS": "thaimos"}
    recorded = {task: rows for (_, task), rows in load_probed(PROBES).items()}
    rows = table(MEASURED, "0-shot, clips apart")
    assert len(rows) == len(tasks)
    for name, (stable, sides, p) in rows.items():
        suite, pairs = re.fullmatch(r"(.*), (\d+)(?: pairs)?", name).groups()
        part = measure("position", recorded[tasks[suite]]).part("all")
        first, second = (f"{100 * part.shares[one].value:.1f}" for one in ("first", "second"))
        assert int(pairs) == part.shares["stable"].n
        assert (stable, sides) == (f"{100 * part.shares['stable'].value:.1f} %", f"{first}, {second} %"), name
        assert p == ("< 0.001" if part.p_value < 0.001 else f"{part.p_value:.1f}"), name


def p_text(p: float) -> str:
    return "< 0.0001" if p < 1e-4 else "1.0" if round(p, 2) == 1 else f"{p:.2f}" if p >= 0.1 else f"{p:.3f}"


def test_detection_is_that_of_the_recorded_verdicts() -> None:
    suites = {"speaking rate": "speaking_rate", "speaker": "speaker_identity", "TMHINT-Q": "tmhintq"}
    right: dict[str, list[list[bool | None]]] = defaultdict(list)
    for row in csv.DictReader(DETECTION.read_text().splitlines()):
        setups = (row[name] for name in ("baseline", "test-0", "both-4"))
        right[row["suite"]].append([one == row["truth"] if one else None for one in setups])
    rows = table(MEASURED, "suite", "baseline, Test Concat")
    assert {suites.get(name, name.lower()) for name in rows} == set(right)
    for name, (accuracies, p_values, _) in rows.items():
        columns = list(zip(*right[suites.get(name, name.lower())], strict=True))
        known = [[one for one in column if one is not None] for column in columns]
        assert accuracies == f"{', '.join(f'{100 * sum(one) / len(one):.1f}' for one in known)} %", name
        tests = []
        for column in columns[1:]:
            both = [(base, one) for base, one in zip(columns[0], column, strict=True) if None not in (base, one)]
            tests.append(mcnemar(both.count((False, True)), both.count((True, False)), exact=True))
        assert p_values == ", ".join(map(p_text, tests)), name


@needs_hcot
def test_rules_reach_what_the_pages_say_of_peoples_own_labels() -> None:
    pairs = load_pairs(HCOT)
    clusters = [pair.instruction_id for pair in pairs]
    overall = [pair.label.overall for pair in pairs]
    rows = {name.partition(" ")[0]: cells for name, cells in table(MEASURED, "rule", "kappa").items()}
    rules = load_rules()
    assert set(rows) == set(rules)
    for name, (agree, kappa) in rows.items():
        fused = [rules[name].fuse(pair.label.dimensions()) for pair in pairs]
        found: Share = accuracy(overall, fused, clusters)
        assert agree == f"{100 * found.value:.1f} % ({100 * found.low:.1f} to {100 * found.high:.1f})", name
        assert kappa == f"{cohen_kappa(overall, fused).value:.3f}", name


@needs_hcot
def test_a_ranking_against_trace_s_labels_is_what_the_page_says() -> None:
    people = load_people(HCOT, {})
    found = rank_systems(load_recorded(VERDICTS), find_ensemble(), ["lexical", "standard", ENSEMBLE], people).aspects
    rows = table(MEASURED, "aspect", "Spearman, TRACE's labels")
    for name, aspect in (("lexical", "lexical"), ("standard (overall)", "standard"), ("ensemble, majority", ENSEMBLE)):
        assert rows[name][3] == f"{found[aspect].people.spearman.value:.3f}"
