"""Ranking by hand on tiny tables, against scipy and plain loops, and on the recorded verdicts of the papers' data.

Not covered: whether intervals hold their level on few instructions, which is the percentile bootstrap's own property.
"""

import json
import random
import re
from xml.etree import ElementTree

import numpy as np
import pytest
from outside import GEMINI_VERDICTS, HCOT, VERDICTS, needs_hcot
from scipy import optimize, stats

from paras2s.bench.bias.metrics import PLACES, place_of
from paras2s.bench.ranking.data import COLUMNS, Game, People, PeopleGame, Problem, load_people, load_recorded, points_table
from paras2s.bench.ranking.metrics import (
    WinRates,
    correlate,
    fuse_games,
    outcome_table,
    points_of,
    position,
    rank_systems,
    rates_of,
    split_half,
)
from paras2s.bench.ranking.report import gathered, markdown, notes_of, ranking_json, scatter_svg, tables_of
from paras2s.errors import ConfigError, DataError
from paras2s.reward.judges.audio_judge.ensemble_rules import ENSEMBLE, EnsembleRule, find_ensemble
from paras2s.statistics.bradley_terry import PRIOR_GAMES, chance, strengths
from paras2s.statistics.correlation import row_correlations
from paras2s.statistics.resampling import draw

# AudioJudge, Table 8: people's win rates in per cent.
TABLE_8 = {
    "gpt4o-audio": 80.25, "gemini2-flash-exp": 75.66, "gpt4o-audio+asr+tts": 67.31, "gemini2-flash-text+tts": 59.48,
    "gpt4o-text+tts": 57.69, "gemini2-flash-exp+asr+tts": 56.63, "asr+llama3+tts": 56.35, "diva+tts": 54.73,
    "qwen2-audio+tts": 47.22, "llama-omni": 36.76, "typhoon2-audio+tts": 32.94, "typhoon2-audio": 20.59, "moshi": 11.90,
}  # fmt: skip
MEAN = EnsembleRule(says="mean", aspects=("lexical", "paralinguistic", "speech_quality"), decide="vote")
WORDS = EnsembleRule(says="words alone", aspects=("words",), decide="vote")
# Aspect, instruction, system, label with the system first, label with the reference first.
TINY = [
    ("words", "1", "a", "1", "2"),
    ("words", "2", "a", "1", "1"),
    ("words", "1", "b", "tie", "2"),
    ("words", "2", "b", "2", "2"),
    ("words", "1", "ref", "tie", "tie"),
    ("words", "2", "ref", "1", "1"),
]


def write(folder, rows, name="verdicts.csv"):
    lines = [",".join(COLUMNS), *(",".join((*row[:3], "ref", *row[3:])) for row in rows)]
    (folder / name).write_text("\n".join(lines) + "\n")
    return folder / name


def write_text(folder, text):
    (folder / "verdicts.csv").write_text(text)
    return folder / "verdicts.csv"


def positions(games):
    names = sorted({game.instruction for game in games})
    return position(outcome_table(games, names), draw(len(names)), len(games))


def kinds(recorded):
    return {kind: one["count"] for kind, one in gathered(recorded.problems).items()}


@pytest.mark.parametrize(
    ("first", "second", "points", "outcome"),
    [
        ("1", "2", 1.0, "stable"),
        ("2", "1", 0.0, "stable"),
        ("tie", "tie", 0.5, "stable"),
        ("1", "1", 0.5, "first"),
        ("2", "2", 0.5, "second"),
        ("1", "tie", 0.75, "other"),
        ("tie", "2", 0.75, "other"),
        ("tie", "1", 0.25, "other"),
        ("2", "tie", 0.25, "other"),
    ],
)
def test_every_pair_of_labels(first, second, points, outcome) -> None:
    game = Game("words", "1", "a", first, second)
    assert (points_of(game), place_of(first, second)) == (points, outcome)
    assert outcome_table([game], ["1"]).sum() == outcome_table([game], ["1"])[0, PLACES.index(outcome)] == 1


def test_a_tiny_table_by_hand(tmp_path) -> None:
    found = rank_systems(load_recorded(write(tmp_path, TINY)), WORDS)
    assert list(found.aspects) == ["words", ENSEMBLE]
    for one in found.aspects.values():
        assert {name: (s.win_rate.value, s.place) for name, s in one.systems.items()} == {
            "a": (0.75, 1), "b": (0.625, 2), "ref": (0.5, 3)
        }  # fmt: skip
        assert (one.position.n, one.position_of_others.n) == (6, 4)
        both, others = one.position, one.position_of_others
        shares = [share.value for share in (both.stable, both.first, both.second, both.other, both.bias)]
        assert shares == pytest.approx([2 / 6, 2 / 6, 1 / 6, 1 / 6, 1 / 6])
        shares = [share.value for share in (others.stable, others.first, others.second, others.other, others.bias)]
        assert shares == pytest.approx([1 / 4, 1 / 4, 1 / 4, 1 / 4, 0])
        assert one.self_comparison.win_rate == 0.5
        assert (one.self_comparison.n_same, one.self_comparison.outcomes["first"]) == (2, 1)
    assert found.problems == ()
    assert notes_of(found)[-1].startswith("No problems")


def test_two_instructions_at_the_ends_give_the_full_interval() -> None:
    rates = rates_of(points_table([("1", "a", 0.0), ("2", "a", 1.0)], ("1", "2"), ("a",)), draw(2))
    share = rates.share(0, 2, 2)
    assert (share.value, share.low, share.high) == (0.5, 0.0, 1.0)
    assert set(np.unique(rates.drawn)) == {0.0, 0.5, 1.0}


def test_one_instruction_has_no_interval_and_no_p_value(tmp_path) -> None:
    recorded = load_recorded(write(tmp_path, [row for row in TINY if row[1] == "1"] + [("words", "2", "c", "1", "2")]))
    found = rank_systems(recorded, WORDS).aspects["words"]
    assert (found.systems["a"].win_rate.low, found.systems["a"].win_rate.value) == (None, 1.0)
    alone = positions([Game("words", "1", "a", "1", "1")])
    assert (alone.first.value, alone.first.low, alone.p_value) == (1.0, None, None)


def test_intervals_draw_instructions_as_a_plain_loop_does() -> None:
    rng = np.random.default_rng(5)
    games = [
        Game("words", str(place), system, rng.choice(["1", "2", "tie"]), rng.choice(["1", "2", "tie"]))
        for place in range(25)
        for system in "ab"
        if rng.random() < 0.8
    ]
    names = tuple(sorted({game.instruction for game in games}))
    rates = rates_of(
        points_table([(g.instruction, g.system, points_of(g)) for g in games], names, ("a", "b")), draw(len(names))
    )
    by_name = {name: [game for game in games if game.instruction == name] for name in names}
    means, firsts = [], []
    for _ in range(4000):
        drawn = [game for name in rng.choice(names, len(names)) for game in by_name[name]]
        means.append(np.mean([points_of(game) for game in drawn if game.system == "a"]))
        firsts.append(np.mean([place_of(game.system_first, game.system_second) == "first" for game in drawn]))
    share, first = rates.share(0, 0, 0), positions(games).first
    assert [share.low, share.high] == pytest.approx(np.percentile(means, [2.5, 97.5]), abs=0.015)
    assert [first.low, first.high] == pytest.approx(np.percentile(firsts, [2.5, 97.5]), abs=0.015)


@pytest.mark.parametrize("instructions", [2, 3, 5, 9])
@pytest.mark.parametrize("label", ["1", "2"])
def test_few_instructions_that_lean_one_way_prove_little(instructions, label) -> None:
    # All signs alike, of 2**I equally likely draws of them: 2 of those lean as far.
    leaning = positions([Game("w", str(n), name, label, label) for n in range(instructions) for name in "abc"])
    exact = 2 / 2**instructions
    # Four standard errors of a share of 10,000 draws.
    assert leaning.p_value == pytest.approx(exact, abs=4 * (exact * (1 - exact) / 10_000) ** 0.5)
    assert leaning.bias.value == (1.0 if label == "1" else -1.0)


def test_many_instructions_that_lean_one_way_give_the_least_p_value() -> None:
    assert positions([Game("w", str(n), "a", "1", "1") for n in range(60)]).p_value == pytest.approx(1 / 10_001)


def test_a_judge_without_a_direction_has_a_p_value_of_one() -> None:
    games = [Game("w", str(place), name, label, label) for place in range(9) for name, label in (("a", "1"), ("b", "2"))]
    found = positions(games)
    assert (found.bias.value, found.bias.low, found.bias.high, found.p_value) == (0, 0, 0, 1.0)


def test_rows_without_a_usable_order_stay_requested(tmp_path) -> None:
    recorded = load_recorded(write(tmp_path, [*TINY, ("words", "1", "c", "1", ""), ("words", "2", "c", "unscored", "2")]))
    found = rank_systems(recorded, WORDS).aspects["words"]
    # Four systems on two instructions, the reference among them.
    for one, n, n_asked in ((found.position, 6, 8), (found.position_of_others, 4, 6)):
        assert {(share.n, share.n_asked) for share in (one.stable, one.first, one.second, one.other, one.bias)} == {
            (n, n_asked)
        }
    sheet = next(one for one in tables_of(rank_systems(recorded, WORDS)) if one.title == "Position")
    assert [row[2] for row in sheet.rows[:2]] == ["6 of 8", "4 of 6"]


def test_the_ensemble_fuses_each_order_by_itself(tmp_path) -> None:
    rows = [
        ("lexical", "1", "a", "1", "2"), ("paralinguistic", "1", "a", "1", "1"), ("speech_quality", "1", "a", "2", "tie"),
        ("lexical", "2", "a", "2", "1"), ("paralinguistic", "2", "a", "2", "2"), ("speech_quality", "2", "a", "tie", "2"),
        ("lexical", "3", "a", "1", "1"), ("paralinguistic", "3", "a", "1", "1"),
        ("speech_quality", "3", "b", "1", "1"),
    ]  # fmt: skip
    recorded = load_recorded(write(tmp_path, rows))
    games, problems = fuse_games(recorded, MEAN)
    # On instruction 3 the aspects that have a verdict decide, and the report says how many they are.
    assert [(game.system, game.instruction, game.system_first, game.system_second) for game in games] == [
        ("a", "1", "1", "tie"), ("a", "2", "2", "2"), ("a", "3", "1", "1"), ("b", "3", "1", "1")
    ]  # fmt: skip
    assert Problem("ensemble of 2 of 3 aspects", "a, instruction 3: no verdict of speech_quality") in problems
    assert Problem("ensemble of 1 of 3 aspects", "b, instruction 3: no verdict of lexical, paralinguistic") in problems
    assert [one.where for one in problems if one.kind == "no ensemble"] == [
        f"b, instruction {n}: no verdict of lexical, paralinguistic, speech_quality" for n in (1, 2)
    ]
    ensemble = rank_systems(recorded, MEAN).aspects[ENSEMBLE].systems
    # (0.75 + 0.5 + 0.5) / 3.
    assert (ensemble["a"].win_rate.value, ensemble["a"].win_rate.n, ensemble["a"].win_rate.n_asked) == (
        pytest.approx(1.75 / 3), 3, 3
    )  # fmt: skip
    assert (ensemble["b"].win_rate.value, ensemble["b"].win_rate.n) == (0.5, 1)
    with pytest.raises(ConfigError, match=r"needs manner; the verdicts have lexical, paralinguistic, speech_quality"):
        fuse_games(recorded, EnsembleRule(says="x", aspects=("lexical", "manner"), decide="vote"))


def test_without_the_rules_aspects_the_ensemble_is_a_problem_and_requested_an_error(tmp_path) -> None:
    recorded = load_recorded(write(tmp_path, TINY))
    found = rank_systems(recorded, MEAN)
    assert list(found.aspects) == ["words"]
    assert kinds(found) == {"no ensemble": 1}
    for requests, words in (
        (["words", ENSEMBLE], "the ensemble needs lexical"),
        (["manner"], "no verdicts of the aspect 'manner'"),
    ):
        with pytest.raises(ConfigError, match=words):
            rank_systems(recorded, MEAN, requests)


@pytest.mark.parametrize(
    ("row", "kind", "where"),
    [
        (("words", "3", "a", "", "2"), "missing order", "line 8: system_first of a, words"),
        (("words", "3", "a", "1", ""), "missing order", "line 8: system_second of a, words"),
        (("words", "3", "a", "1", "unscored"), "unscored", "line 8: system_second of a, words"),
        (("words", "3", "a", "Tie", "2"), "unknown label", "line 8: system_first: 'Tie' is none of 1, 2, tie"),
        (("words", "3", "a", "both_bad", "2"), "unknown label", "line 8: system_first: 'both_bad' is none of 1, 2, tie"),
        (("words", "", "a", "1", "2"), "no instruction_id", "line 8"),
        (("", "3", "a", "1", "2"), "no aspect", "line 8"),
        (("words", "3", "", "1", "2"), "no system", "line 8"),
        (("words", "3", "a", "1", "2", "more"), "not read", "line 8: 7 values in 6 columns"),
        (("words", "1", "a", "1", "2"), "duplicate that agrees, one kept", "lines 2, 8: words, instruction 1, a"),
        (("words", "1", "a", "1", "1"), "duplicate that disagrees, none kept", "lines 2, 8: words, instruction 1, a"),
    ],
)
def test_every_row_that_cannot_be_used_is_named(tmp_path, row, kind, where) -> None:
    recorded = load_recorded(write(tmp_path, [*TINY, row]))
    assert gathered(recorded.problems)[kind] == {"count": 1, "first": [where]}
    assert recorded.n_rows == 7
    assert len(recorded.games) == (5 if "none kept" in kind else 6)
    standing = rank_systems(recorded, WORDS).aspects["words"].systems["a"].win_rate
    new_instruction = row[1] == "3" and len(row) == 5 and row[0] and row[2]
    assert (standing.n, standing.n_asked) == ((1 if "none kept" in kind else 2), 3 if new_instruction else 2)
    if "none kept" in kind:
        assert standing.value == 0.5


def test_a_copy_without_a_verdict_agrees_with_any(tmp_path) -> None:
    recorded = load_recorded(write(tmp_path, [("words", "1", "a", "", "2"), *TINY]))
    assert len(recorded.games) == 6
    assert kinds(recorded) == {"missing order": 1}


def test_rows_and_systems_that_are_not_there_are_named(tmp_path) -> None:
    rows = [*TINY, ("sound", "1", "a", "1", "2"), ("sound", "1", "c", "", ""), ("words", "1", "c", "", "1")]
    found = gathered(load_recorded(write(tmp_path, rows)).problems)
    # On words c lacks instruction 2; on sound a and c lack it, and b and ref lack both.
    assert found["no row"]["count"] == 7
    assert found["no row"]["first"][:2] == ["b, sound, instruction 1", "ref, sound, instruction 1"]
    assert found["never meets the reference"]["first"] == ["b, in sound", "c, in any aspect", "ref, in sound"]


def test_a_reference_that_never_met_itself_has_half_by_definition(tmp_path) -> None:
    found = rank_systems(load_recorded(write(tmp_path, TINY[:4])), WORDS, (), People({"a": 3.0, "b": 1.0, "ref": 2.0}))
    assert kinds(found) == {"no self-comparison": 1}
    words = found.aspects["words"]
    assert words.self_comparison is None
    assert {name: (one.win_rate.value, one.place, one.by_definition) for name, one in words.systems.items()} == {
        "a": (0.75, 1, False), "b": (0.625, 2, False), "ref": (0.5, 3, True)
    }  # fmt: skip
    of_reference = words.systems["ref"].win_rate
    assert (of_reference.low, of_reference.high, of_reference.n, of_reference.n_asked) == (None, None, 0, 0)
    # Games that were not played count nowhere.
    assert (words.position.n, words.position.stable.n_asked) == (4, 4)
    # Ranks 1, 2, 3 of the judge against 1, 3, 2 of people: 1 - 6 * 2 / (3 * 8).
    assert (words.people.n_systems, words.people.spearman.value) == (3, pytest.approx(0.5))
    assert "by definition" in markdown(found, {})


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "needs the column aspect once"),
        ("aspect,system\n", "needs the column instruction_id once"),
        (",".join([*COLUMNS, "system"]) + "\n", "needs the column system once"),
        (",".join(COLUMNS) + "\n", "holds no row that can be used"),
        (",".join(COLUMNS) + "\nw,1,a,ref,,2\n", "no row that can be used .missing order: line 2"),
        (",".join(COLUMNS) + "\nw,1,a,ref,1,2\nw,1,b,other,1,2\n", r"reference: 'ref' .line 2., 'other' .line 3."),
        (",".join(COLUMNS) + "\nensemble,1,a,ref,1,2\n", ":2: aspect: 'ensemble' is the name"),
        (",".join(COLUMNS) + '\nw,1,"a"b,ref,1,2\n', ":2: "),
    ],
)
def test_a_file_that_is_no_file_of_verdicts(tmp_path, text, words) -> None:
    with pytest.raises(DataError, match=words):
        load_recorded(write_text(tmp_path, text))


def test_a_file_that_is_not_text(tmp_path) -> None:
    (tmp_path / "x.csv").write_bytes(b"\xff\xfe\x00\x80")
    for path in (tmp_path / "x.csv", tmp_path / "none.csv"):
        with pytest.raises(DataError, match="cannot be read"):
            load_recorded(path)


def test_a_spreadsheets_mark_spaces_other_columns_and_blank_lines(tmp_path) -> None:
    head = "\ufeff" + ", ".join([*COLUMNS, "reason"])
    recorded = load_recorded(write_text(tmp_path, f"{head}\n\nwords,1,a, ref,1 , 2,because\n"))
    assert recorded.games == (Game("words", "1", "a", "1", "2"),)
    assert gathered(recorded.problems)["not read"]["first"] == ["line 1: column 'reason' is not read"]


def test_the_order_of_rows_does_not_matter(tmp_path) -> None:
    rng = random.Random(3)
    rows = [
        (aspect, str(place), system, rng.choice(["1", "2", "tie"]), rng.choice(["1", "2", "tie"]))
        for aspect in ("lexical", "paralinguistic", "speech_quality")
        for place in range(8)
        for system in ("a", "b", "c", "ref")
    ]
    people = People({"a": 3.0, "b": 2.0, "c": 2.5, "ref": 1.0})
    found = rank_systems(load_recorded(write(tmp_path, rows)), MEAN, (), people, 500)
    rng.shuffle(rows)
    again = rank_systems(load_recorded(write(tmp_path, rows)), MEAN, (), people, 500)
    assert again == found


def penalised_likelihood(names, results):
    """Log-strengths about 0 of the same model and prior, by scipy."""
    at = {name: place for place, name in enumerate(names)}
    first, second = (np.array([at[row[side]] for row in results]) for side in (0, 1))
    points = np.array([row[2] for row in results])

    def loss(logs):
        apart = logs[first] - logs[second]
        games = points * np.logaddexp(0, -apart) + (1 - points) * np.logaddexp(0, apart)
        return games.sum() + PRIOR_GAMES / 2 * (np.logaddexp(0, -logs) + np.logaddexp(0, logs)).sum()

    logs = optimize.minimize(loss, np.zeros(len(names)), method="BFGS", options={"gtol": 1e-6}).x
    return dict(zip(names, logs - logs.mean(), strict=True))


def test_strengths_are_those_of_a_second_implementation() -> None:
    rng = np.random.default_rng(1)
    names = list("abcde")
    results = [(*rng.choice(names, 2, replace=False), rng.choice([0.0, 0.5, 1.0])) for _ in range(200)]
    found, other = strengths(results), penalised_likelihood(names, results)
    assert [chance(found[name]) for name in names] == pytest.approx([chance(other[name]) for name in names], abs=1e-4)
    star = [(name, "ref", float(rng.random() < odds)) for name, odds in zip("abcd", (0.1, 0.4, 0.6, 0.9), strict=True)
            for _ in range(80)]  # fmt: skip
    found, other = strengths(star), penalised_likelihood([*"abcd", "ref"], star)
    for name in "abcd":
        assert chance(found[name], found["ref"]) == pytest.approx(chance(other[name], other["ref"]), abs=1e-4)
        # Against one opponent the model says nothing else than the win rate, but for its prior.
        won = np.mean([row[2] for row in star if row[0] == name])
        assert chance(found[name], found["ref"]) == pytest.approx(won, abs=0.01)


def test_strengths_are_shared_by_equals_and_empty_of_nothing() -> None:
    assert strengths([("a", "b", 0.5), ("b", "c", 0.5)]) == pytest.approx({"a": 0, "b": 0, "c": 0})
    assert strengths([]) == {}
    assert (chance(0.0), chance(np.log(3))) == (0.5, pytest.approx(0.75))


def test_correlations_of_rows_are_scipys() -> None:
    rng = np.random.default_rng(2)
    first, second = rng.integers(0, 5, (40, 9)).astype(float), rng.integers(0, 5, (40, 9)).astype(float)
    first[0] = 3.0
    first[1, 4] = np.nan
    spearman, pearson = row_correlations(first, second)
    assert np.isnan([spearman[0], pearson[0], spearman[1], pearson[1]]).all()
    for row in range(2, 40):
        assert spearman[row] == pytest.approx(stats.spearmanr(first[row], second[row]).statistic)
        assert pearson[row] == pytest.approx(stats.pearsonr(first[row], second[row]).statistic)


def test_correlation_with_people_is_scipys_and_its_interval_a_plain_loops() -> None:
    rng = np.random.default_rng(4)
    table = np.stack([rng.choice([0, 0.25, 0.5, 1], (30, 6)), np.ones((30, 6))], axis=-1)
    table[..., 0] = np.clip(table[..., 0] + np.linspace(-0.4, 0.4, 6), 0, 1)
    people = np.array([1.0, 3.0, 2.0, 4.0, 4.0, np.nan])
    spearman, pearson = correlate(rates_of(table, draw(30)), WinRates(people))
    means = table[..., 0].mean(0)[:5]
    assert spearman.value == pytest.approx(stats.spearmanr(means, people[:5]).statistic)
    assert (pearson.value, pearson.p_value) == pytest.approx(tuple(stats.pearsonr(means, people[:5])))
    loop = []
    for _ in range(3000):
        drawn = table[rng.integers(0, 30, 30), :5, 0].mean(0)
        loop.append(stats.pearsonr(drawn, people[:5]).statistic)
    assert [pearson.low, pearson.high] == pytest.approx(np.percentile(loop, [2.5, 97.5]), abs=0.05)


@pytest.mark.parametrize(
    ("judge", "people", "why"),
    [
        ([0.1, 0.2, np.nan], [1.0, 2.0, 3.0], "2 systems in both are too few"),
        ([0.1, 0.1, 0.1], [1.0, 2.0, 3.0], "the judge's scores are all the same"),
        ([0.1, 0.2, 0.3], [2.0, 2.0, 2.0], "people's scores are all the same"),
    ],
)
def test_a_correlation_that_is_not_defined_says_why(judge, people, why) -> None:
    for found in correlate(WinRates(np.array(judge)), WinRates(np.array(people))):
        assert (found.value, found.low, found.why_none) == (None, None, why)


def test_split_half() -> None:
    same = np.ones((10, 4, 2))
    same[..., 0] = [0.1, 0.4, 0.2, 0.9]
    found = split_half(same)
    assert [found.spearman, found.pearson, found.spearman_corrected] == pytest.approx([1, 1, 1])
    assert found.n_halves == 1000
    # Four instructions have three splits.
    table = np.ones((4, 3, 2))
    table[..., 0] = [[0, 0.5, 1], [0, 1, 0.5], [1, 0.25, 0], [0.25, 0.5, 1]]
    splits = [((0, 1), (2, 3)), ((0, 2), (1, 3)), ((0, 3), (1, 2))]
    by_hand = [stats.pearsonr(*(table[list(half), :, 0].mean(0) for half in split)).statistic for split in splits]
    found = split_half(table, 6000)
    assert found.pearson == pytest.approx(np.mean(by_hand), abs=0.03)
    assert found.pearson_corrected == pytest.approx(2 * found.pearson / (1 + found.pearson))
    for few in (table[:1], table[:, :2]):
        assert (split_half(few).spearman, split_half(few).n_halves) == (None, 0)


def people_file(folder, text, name="people.csv"):
    (folder / name).write_text(text)
    return folder / name


def pair(index, first, second, overall, instruction=1):
    label = dict.fromkeys(("content", "voice_quality", "paralinguistics"), "1") | {"overall": overall}
    paths = {"instruction_path": "i.wav", "audio1_path": "a.wav", "audio2_path": "b.wav", "instruction_text": "say"}
    return paths | {"index": index, "model_a": first, "model_b": second, "label": label, "instruction_id": instruction}


def test_people_as_scores_and_as_comparisons(tmp_path) -> None:
    path = people_file(tmp_path, "system,score\nA, 3\nb,-1.5\n")
    assert load_people(path, {"A": "a"}) == People({"a": 3.0, "b": -1.5})
    rows = [pair(0, "A", "b", "1"), pair(1, "b", "A", "both_good", 2), pair(2, "A", "c", "both_bad"), pair(3, "b", "c", "2")]
    found = load_people(people_file(tmp_path, json.dumps(rows), "people.json"), {"A": "a"})
    assert found.scores == pytest.approx({"a": 2 / 3, "b": 1 / 6, "c": 0.75})
    assert found.games[1] == PeopleGame("2", "b", "a", 0.5)
    assert found.table(["c", "none"]).sum(0).tolist() == [[1.5, 2], [0, 0]]


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("system\na\n", "needs the column score once"),
        ("system,score\n", "holds no rows"),
        ("system,score\na,good\n", ":2: score: 'good' is not a number"),
        ("system,score\na,\n", ":2: score: '' is not a number"),
        ("system,score\na,nan\n", ":2: score: 'nan' is not finite"),
        ("system,score\na,1\na,2\n", ":3: system: 'a' occurs more than once"),
        ("system,score\n,1\n", ":2: system: '' is no name"),
        ("system,score\na,1,2\n", ":2: 3 values in 2 columns"),
        ("system,score,n\na,1,2\n", ":1: column 'n' is not read"),
    ],
)
def test_people_that_cannot_be_read(tmp_path, text, words) -> None:
    with pytest.raises(DataError, match=words):
        load_people(people_file(tmp_path, text), {})


def test_names_that_do_nothing_or_fall_together(tmp_path) -> None:
    path = people_file(tmp_path, "system,score\na,1\nb,2\n")
    with pytest.raises(ConfigError, match=r"'c' is to be renamed, but is not in .*; there are a, b"):
        load_people(path, {"c": "d"})
    with pytest.raises(ConfigError, match="both 'a' and 'b' would be called 'b'"):
        load_people(path, {"a": "b"})
    assert load_people(path, {"a": "b", "b": "a"}).scores == {"b": 1.0, "a": 2.0}


def test_systems_on_one_side_are_named_and_left_out(tmp_path) -> None:
    recorded = load_recorded(write(tmp_path, [*TINY, ("words", "1", "c", "2", "1")]))
    found = rank_systems(recorded, WORDS, ["words"], People({"a": 3.0, "b": 2.0, "ref": 1.0, "z": 9.0}))
    assert (found.people.only_judge, found.people.only_people) == (("c",), ("z",))
    assert "need" in found.people.why_no_ceiling
    against = found.aspects["words"].people
    assert (against.n_systems, against.spearman.value, against.strength_spearman) == (3, pytest.approx(1.0), None)


HOSTILE = '<script>alert("x")</script>|[red]'


def hostile_ranking(tmp_path, people):
    rows = [(one[0], one[1], HOSTILE if one[2] == "a" else one[2], *one[3:]) for one in TINY]
    lines = [COLUMNS, *((*row[:3], "ref", *row[3:]) for row in rows), ("words", "1", "d", "ref", "", "")]
    text = "\n".join(",".join('"{}"'.format(cell.replace('"', '""')) for cell in row) for row in lines)
    return rank_systems(load_recorded(write_text(tmp_path, text)), WORDS, (), people)


@pytest.mark.parametrize("compared", [True, False])
def test_reports_escape_names_and_hold_no_nan(tmp_path, compared) -> None:
    scores = {HOSTILE: 1.0, "b": 0.5, "ref": 0.0, "d": 0.2}
    games = tuple(PeopleGame(str(n % 3), one, "ref", 0.5) for n, one in enumerate([HOSTILE, "b", "d"]))
    found = hostile_ranking(tmp_path, People(scores, games if compared else ()))
    report = ranking_json(found, {"verdicts": "x", "human": None})
    assert json.loads(json.dumps(report, allow_nan=False))["aspects"]["words"]["systems"]["d"]["win_rate"]["value"] is None
    page = markdown(found, {"verdicts": HOSTILE, "human": None})
    assert "<script>" not in page
    rows = [line for line in page.splitlines() if "alert" in line and line.startswith("| ")]
    assert len({line.replace("\\|", "").count("|") for line in rows if line.startswith("| 1 ")}) == 1
    svg = ElementTree.fromstring(scatter_svg(found, found.people, HOSTILE))
    space = "{http://www.w3.org/2000/svg}"
    assert [one.get("class") for one in svg.iter(f"{space}g")].count("dot") == 2 * 3
    assert HOSTILE in [one.text for one in svg.iter(f"{space}text")]
    assert not re.search(r"[\s\"ML]nan", scatter_svg(found, found.people, HOSTILE))


def test_recorded_verdicts_of_gpt4o_against_table_8() -> None:
    recorded = load_recorded(VERDICTS)
    assert (recorded.n_rows, len(recorded.games), kinds(recorded)) == (4210, 4210, {"no row": 2})
    found = rank_systems(recorded, MEAN, (), People(TABLE_8))
    stable = {name: one.position.stable.value for name, one in found.aspects.items()}
    assert stable == pytest.approx(
        {"lexical": 0.734, "paralinguistic": 0.715, "speech_quality": 0.585, "standard": 0.742, "ensemble": 0.666}, abs=5e-4
    )
    others = found.aspects["standard"].position_of_others, found.aspects["speech_quality"].position_of_others
    assert [one.stable.value for one in others] == pytest.approx([0.748, 0.604], abs=5e-4)
    assert (found.aspects["standard"].position.n, found.aspects["standard"].position.stable.n_asked) == (1051, 1053)
    for one in found.aspects.values():
        assert one.self_comparison.win_rate == one.systems["gpt4o-audio"].win_rate.value == 0.5
        assert one.self_comparison.n_same == one.self_comparison.n == 81
    assert found.aspects["standard"].systems["diva+tts"].win_rate.n == 80
    # The paper's 0.731, of a zero-shot GPT-4o under the overall prompt (Table 3).
    against = {name: one.people.spearman for name, one in found.aspects.items()}
    assert against["standard"].value == pytest.approx(0.731, abs=5e-4)
    assert {name: round(one.value, 3) for name, one in against.items()} == {
        "lexical": 0.751, "paralinguistic": 0.709, "speech_quality": 0.864, "standard": 0.731, "ensemble": 0.809
    }  # fmt: skip
    assert all(one.low < one.value < one.high for one in against.values())


# AudioJudge, Table 8: Gemini's win rates in per cent.
TABLE_8_GEMINI = {
    "gpt4o-audio": 50.00, "gemini2-flash-exp": 48.77, "gpt4o-audio+asr+tts": 41.05, "gemini2-flash-text+tts": 42.59,
    "gpt4o-text+tts": 41.98, "gemini2-flash-exp+asr+tts": 37.65, "asr+llama3+tts": 42.90, "diva+tts": 25.00,
    "qwen2-audio+tts": 19.75, "llama-omni": 10.80, "typhoon2-audio+tts": 21.30, "typhoon2-audio": 3.70, "moshi": 0.31,
}  # fmt: skip


@pytest.mark.parametrize("met_itself", [True, False])
def test_recorded_verdicts_of_gemini_give_table_8(tmp_path, met_itself) -> None:
    lines = GEMINI_VERDICTS.read_text().splitlines()
    kept = [line for line in lines if met_itself or ",gpt4o-audio,gpt4o-audio," not in line]
    recorded = load_recorded(write_text(tmp_path, "\n".join(kept) + "\n"))
    found = rank_systems(recorded, find_ensemble(), [ENSEMBLE], People(TABLE_8))
    systems = found.aspects[ENSEMBLE].systems
    assert {name: round(100 * one.win_rate.value, 2) for name, one in systems.items()} == TABLE_8_GEMINI
    assert {one.win_rate.n for name, one in systems.items() if name != "gpt4o-audio"} == {81}
    # One of the eight is of the reference with itself.
    assert kinds(found)["ensemble of 2 of 3 aspects"] == (8 if met_itself else 7)
    against = found.aspects[ENSEMBLE].people
    assert (against.n_systems, round(against.spearman.value, 3)) == (13, 0.912)


@needs_hcot
def test_recorded_verdicts_against_the_release_of_labelled_pairs() -> None:
    people = load_people(HCOT, {})
    assert people.scores["gpt4o-audio"] == pytest.approx(70.5 / 81)
    found = rank_systems(load_recorded(VERDICTS), MEAN, (), people)
    assert {name: round(one.people.spearman.value, 3) for name, one in found.aspects.items()} == {
        "lexical": 0.517, "paralinguistic": 0.538, "speech_quality": 0.856, "standard": 0.533, "ensemble": 0.680
    }  # fmt: skip
    assert found.people.ceiling.spearman < found.people.ceiling.spearman_corrected < 1
    both = [(name, people.scores[name]) for name in TABLE_8]
    assert stats.spearmanr([TABLE_8[name] for name, _ in both], [one for _, one in both]).statistic == pytest.approx(
        0.912, abs=5e-4
    )
    other = penalised_likelihood(sorted(people.scores), [game[1:] for game in people.games])
    assert found.people.bradley_terry == pytest.approx({name: chance(other[name]) for name in other}, abs=1e-4)
    assert [sheet.title for sheet in tables_of(found)][-2:] == ["People", "Judge and people"]
