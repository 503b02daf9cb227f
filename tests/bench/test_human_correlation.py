"""Automatic scores against people's: by hand, against scipy and a plain loop, and on the paper's own tables.

Not covered: whether the percentile interval holds its level on few queries, which is the bootstrap's own property.
"""

from __future__ import annotations

import re
from pathlib import Path
from statistics import fmean

import numpy as np
import pytest
from scipy import stats

from paras2s.bench.human_correlation import AnswerKey, Rating, human_agreement, load_ratings, markdown_tables
from paras2s.errors import DataError
from paras2s.reward.reward_model.train import agreement
from paras2s.statistics.annotators import krippendorff
from paras2s.statistics.correlation import Correlation, correlations, weighted_pearson, weighted_ranks
from paras2s.types import Unscored

HEAD = "id,system,category,rater,score"
# ParaS2S, Table 1: (GPT, human) for age, emotion, gender and sarcasm.
TABLE_1 = {
    "gpt-4o-mini-tts (good)": [(4.420, 4.380), (4.646, 4.654), (4.739, 4.506), (4.790, 4.337)],
    "gpt-4o-mini-tts (bad)": [(1.215, 1.177), (1.159, 1.041), (1.325, 1.590), (1.210, 1.251)],
    "Sesame": [(4.412, 4.216), (4.512, 4.324), (4.701, 4.332), (4.71, 4.182)],
    "CosyVoice": [(4.380, 3.994), (4.417, 4.012), (4.612, 4.201), (4.680, 3.864)],
    "YourTTS": [(4.410, 4.037), (4.302, 3.801), (4.534, 4.230), (4.580, 3.804)],
    "GPT-4o Voice mode": [(2.685, 2.630), (3.711, 2.713), (3.096, 3.682), (2.815, 2.611)],
    "Qwen2.5 Omni": [(2.930, 2.728), (3.680, 2.522), (2.933, 3.493), (2.910, 2.509)],
    "GLM-4-Voice": [(2.570, 2.493), (3.489, 2.384), (2.821, 3.521), (2.720, 2.301)],
}
CATEGORIES = ("age", "emotion", "gender", "sarcasm")


def key(name: str, system: str = "s", category: str = "age") -> AnswerKey:
    return AnswerKey(name, system, category)


def rated(answer: AnswerKey, *given: float) -> list[Rating]:
    return [Rating(**answer._asdict(), rater=f"r{n}", score=score) for n, score in enumerate(given)]


def study(queries: int = 40, seed: int = 0) -> tuple[list[Rating], dict[AnswerKey, float | Unscored]]:
    """Two systems in two categories, three raters who agree up to a point, and a judge with noise."""
    rng = np.random.default_rng(seed)
    ratings: list[Rating] = []
    scores: dict[AnswerKey, float | Unscored] = {}
    for query in range(queries):
        for system in ("a", "b"):
            answer = key(f"q{query}", system, ("age", "emotion")[query % 2])
            score_of = rng.integers(1, 6)
            ratings += rated(answer, *(float(np.clip(score_of + rng.integers(-1, 2), 1, 5)) for _ in range(3)))
            scores[answer] = float(np.clip(score_of + rng.integers(-1, 2), 1, 5))
    return ratings, scores


# What is read.


def test_ratings_are_read_in_their_order_whatever_that_of_the_columns(tmp_path: Path) -> None:
    path = tmp_path / "ratings.csv"
    path.write_text('\ufeffscore,id,system,category,rater\n4,q1,"a, big",age,ann\n\n 3.5 ,q1,"a, big",age,bob\n')
    found = load_ratings(path)
    assert [(one.key, one.rater, one.score) for one in found] == [
        (AnswerKey("q1", "a, big", "age"), "ann", 4.0),
        (AnswerKey("q1", "a, big", "age"), "bob", 3.5),
    ]


@pytest.mark.parametrize(
    ("lines", "why"),
    [
        ([], "holds no rows"),
        ([HEAD], "holds no rows"),
        (["id,system,category,rater", "q,s,age,r"], ":2: score: Field required"),
        ([f"{HEAD},comment", "q,s,age,r,4,nice"], ":2: comment: Extra inputs"),
        ([HEAD, "q,s,age,r,4", "q,s,age"], ":3: rater: Input should be a valid string"),
        ([HEAD, "q,s,age,r,4,5"], ":2: more values than columns: Extra inputs"),
        ([HEAD, "q,s,age,r,6"], ":2: score: Input should be less than or equal to 5"),
        ([HEAD, "q,s,age,r,0"], ":2: score: Input should be greater than or equal to 1"),
        ([HEAD, "q,s,age,r,nan"], ":2: score: Input should be a finite number"),
        ([HEAD, "q,s,age,r,good"], ":2: score: Input should be a valid number"),
        ([HEAD, "q,s,age,r,"], ":2: score: Input should be a valid number"),
        ([HEAD, "q,s,age,r,4", f"{'q' * 200_000},s,age,r,4"], ":3: field larger than field limit"),
        ([HEAD, "q, ,age,r,4"], ":2: system: String should have at least 1 character"),
        ([HEAD, "q,s,age,r,4", "q,s,age,r,3"], ":3: id, system, rater: q, s, r occurs more than once"),
    ],
)
def test_a_wrong_rating_is_named_by_line_and_column(tmp_path: Path, lines: list[str], why: str) -> None:
    path = tmp_path / "ratings.csv"
    path.write_text("".join(f"{line}\n" for line in lines))
    with pytest.raises(DataError, match=re.escape(why)):
        load_ratings(path)
    with pytest.raises(DataError, match="nowhere: cannot be read"):
        load_ratings(tmp_path / "nowhere")


# Correlation.


def test_a_correlation_by_hand() -> None:
    # x 1 2 3 4, mean ratings 1 3 2 5: 6 / sqrt(5 * 8.75); ranks differ by 0 1 1 0, so 1 - 6 * 2 / 60.
    answers = [key(f"q{n}") for n in range(4)]
    ratings = [one for answer, mean in zip(answers, (1, 3, 2, 5), strict=True) for one in rated(answer, mean, mean)]
    found = human_agreement(ratings, {answer: float(n + 1) for n, answer in enumerate(answers)}).groups["all"]
    assert found.pearson.value == pytest.approx(5.5 / (5 * 8.75) ** 0.5)
    assert found.spearman.value == pytest.approx(0.8)
    assert (found.n, found.without_score, found.without_rating, found.discarded) == (4, 0, 0, 0)


def test_two_implementations_agree_with_scipys_p_values() -> None:
    ratings, scores = study()
    found = human_agreement(ratings, scores, discard_disagreement=False)
    human = {answer: fmean(one.score for one in ratings if one.key == answer) for answer in scores}
    for name in ("age", "emotion", "all"):
        mine = [answer for answer in scores if name in ("all", answer.category)]
        theirs = agreement([scores[answer] for answer in mine], [human[answer] for answer in mine])
        group = found.groups[name]
        assert (group.n, group.pearson.value, group.spearman.value) == pytest.approx(
            (theirs["n"], theirs["pearson"], theirs["spearman"])
        )
    automatic, people = [list(map(side.__getitem__, scores)) for side in (scores, human)]
    assert found.groups["all"].pearson.p_value == pytest.approx(stats.pearsonr(automatic, people).pvalue)
    assert found.groups["all"].spearman.p_value == pytest.approx(stats.spearmanr(automatic, people).pvalue)
    assert 0 < found.groups["all"].pearson.p_value < 1e-6


@pytest.mark.parametrize("sign", [1, -1])
def test_a_judge_that_equals_people_scores_1_and_a_reversed_one_minus_1(sign: int) -> None:
    ratings, scores = study()
    given: dict[AnswerKey, list[float]] = {}
    for one in ratings:
        given.setdefault(one.key, []).append(one.score)
    gold = {answer: sign * fmean(given[answer]) for answer in scores}
    found = human_agreement(ratings, gold, resamples=500)
    for group in found.groups.values():
        for one in (group.pearson, group.spearman):
            assert one.value == pytest.approx(sign)
            assert (one.low, one.high) == pytest.approx((sign, sign))
    assert len(found.switched["average"]) == (0 if sign == 1 else 1)


def test_a_constant_side_or_too_few_answers_are_none_with_the_reason_and_never_nan() -> None:
    ratings = [one for n in range(4) for one in rated(key(f"q{n}"), n + 1, n + 1)]
    flat = human_agreement(ratings, {key(f"q{n}"): 3.0 for n in range(4)}).groups["all"]
    assert flat.pearson == flat.spearman == Correlation(why_none="automatic scores are all the same")
    same = [one for n in range(4) for one in rated(key(f"q{n}"), 2, 2)]
    bored = human_agreement(same, {key(f"q{n}"): float(n) for n in range(4)}).groups["all"]
    assert bored.pearson == Correlation(why_none="human scores are all the same")
    assert (bored.alpha, bored.why_no_alpha) == (None, "all values are the same")
    few = human_agreement(ratings, {key("q0"): 1.0, key("q1"): 2.0}).groups["all"]
    assert few.pearson == Correlation(why_none="2 answers with both sides are too few")
    none = human_agreement(ratings, {})
    assert (none.groups["all"].n, none.groups["all"].without_score) == (0, 4)
    assert none.systems["average"]["s"].automatic is None


def test_weighted_correlations_are_those_of_repeated_values() -> None:
    rng = np.random.default_rng(4)
    first, second = rng.integers(1, 6, 30).astype(float), rng.integers(1, 6, 30) + rng.random(30).round(1)
    weights = rng.integers(0, 4, (20, 30)).astype(float)
    pearson = weighted_pearson(weights, first, second)
    spearman = weighted_pearson(weights, weighted_ranks(weights, first), weighted_ranks(weights, second))
    for row, one, other in zip(weights.astype(int), pearson, spearman, strict=True):
        a, b = np.repeat(first, row), np.repeat(second, row)
        assert one == pytest.approx(stats.pearsonr(a, b).statistic)
        assert other == pytest.approx(stats.spearmanr(a, b).statistic)
    ones = np.ones((1, 30))
    assert weighted_ranks(ones, second)[0] == pytest.approx(stats.rankdata(second))
    # A resample that holds one value only has no correlation.
    assert np.isnan(weighted_pearson(np.eye(30)[:1], first, second)[0])
    many = np.full((1, 6000), 1.0)
    assert np.isnan(weighted_pearson(many, weighted_ranks(many, np.full(6000, 2.3)), np.arange(6000.0))[0])


def test_the_interval_agrees_with_a_loop_over_drawn_queries_and_is_wider_than_one_of_answers() -> None:
    # Five answers to each of 30 queries, of one worth and one misjudgement a query.
    rng = np.random.default_rng(5)
    score_of, error = rng.normal(size=30).repeat(5), rng.normal(size=30).repeat(5)
    first, second = score_of + 0.1 * rng.normal(size=150), score_of + error + 0.1 * rng.normal(size=150)
    clusters = [f"q{n // 5}" for n in range(150)]
    pairs = list(zip(first.tolist(), second.tolist(), strict=True))
    pearson, spearman = correlations(pairs, clusters, 4000)
    drawn = [(rng.integers(30, size=30)[:, None] * 5 + np.arange(5)).ravel() for _ in range(4000)]
    for found, statistic in ((pearson, stats.pearsonr), (spearman, stats.spearmanr)):
        theirs = np.percentile([statistic(first[rows], second[rows]).statistic for rows in drawn], [2.5, 97.5])
        assert (found.low, found.high) == pytest.approx(tuple(theirs), abs=0.02)
        assert found.low < found.value < found.high
    plain, _ = correlations(pairs, [str(n) for n in range(150)], 4000)
    assert plain.value == pearson.value
    assert pearson.high - pearson.low > 1.8 * (plain.high - plain.low)
    alone, _ = correlations(pairs, ["q"] * 150, 100)
    assert (alone.value, alone.low, alone.high) == (pearson.value, None, None)


def test_blocks_of_resamples_change_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    ratings, scores = study()
    complete = human_agreement(ratings, scores, resamples=300)
    monkeypatch.setattr("paras2s.statistics.correlation.BLOCK_CELLS", 1000)
    assert human_agreement(ratings, scores, resamples=300) == complete


# What is missing.


def test_a_missing_side_is_counted_and_listed() -> None:
    ratings = [one for n in range(5) for one in rated(key(f"q{n}"), n / 2 + 1, n / 2 + 1)]
    ratings += rated(key("e1", category="emotion"), 3, 3)
    scores: dict[AnswerKey, float | Unscored] = {key(f"q{n}"): float(n) for n in range(3)}
    scores |= {key("q3"): Unscored("llm", "it refused"), key("e9", category="emotion"): 4.0}
    found = human_agreement(ratings, scores)
    assert found.without_score == {
        key("q3"): "it refused",
        key("q4"): "not among the scores",
        key("e1", category="emotion"): "not among the scores",
    }
    assert found.without_rating == (key("e9", category="emotion"),)
    counts = {name: (group.n, group.without_score, group.without_rating) for name, group in found.groups.items()}
    assert counts == {"age": (3, 2, 0), "emotion": (0, 1, 1), "all": (3, 3, 1)}
    assert found.groups["age"].pearson.value == pytest.approx(1.0)
    text = markdown_tables(found)
    assert "Rated, but not scored (3): q3 by s: it refused; q4 by s: not among the scores; e1 by s" in text
    assert "Scored, but not rated (1): e9 by s." in text
    assert "none (0 answers with both sides are too few)" in text


def test_answers_on_which_no_two_of_three_raters_agree_are_discarded_as_in_footnote_14() -> None:
    answers = [key(f"q{n}") for n in range(6)]
    given = [(1, 3, 5), (1, 1, 5), (2, 2, 2), (4, 5), (1, 2, 3), (4, 4, 5)]
    ratings = [one for answer, one_given in zip(answers, given, strict=True) for one in rated(answer, *one_given)]
    scores: dict[AnswerKey, float | Unscored] = {answer: float(n) for n, answer in enumerate(answers)}
    found = human_agreement(ratings, scores)
    assert found.discarded == (answers[0], answers[4])
    assert (found.groups["all"].n, found.groups["all"].discarded) == (4, 2)
    everything = human_agreement(ratings, scores, discard_disagreement=False)
    assert (everything.groups["all"].n, everything.discarded) == (6, ())
    # The raters' own agreement is that of all ratings: to leave the quarrels out would flatter them.
    assert found.groups["all"].alpha == everything.groups["all"].alpha
    # Discarded, and so not also missing.
    del scores[answers[0]]
    assert human_agreement(ratings, scores).without_score == {}
    assert (found.n_ratings, found.n_raters) == (17, 3)


def test_ratings_and_scores_must_be_of_the_same_queries() -> None:
    with pytest.raises(DataError, match="no ratings"):
        human_agreement([], {})
    with pytest.raises(DataError, match="query 'q' is in 'age' and in 'emotion'"):
        human_agreement(rated(key("q"), 1, 2), {key("q", category="emotion"): 3.0})
    with pytest.raises(DataError, match="nan of 'q' by 's' is not finite"):
        human_agreement(rated(key("q"), 1, 2), {key("q"): float("nan")})
    with pytest.raises(DataError, match="'all' is no category's name"):
        human_agreement(rated(key("q", category="all"), 1, 2), {})


# Raters.


@pytest.mark.parametrize(
    ("table", "alpha"),
    [
        # Krippendorff, Computing Krippendorff's Alpha-Reliability (2011): four observers, twelve units.
        (["1233214 12...", "123322412 5.3", ".3332342 251.", "123324412 51."], 0.849),
        # The three coders and fifteen units that Wikipedia's article on the measure works out.
        ([".....341211 33.3", "1.213343.......", "..21344.211 33.4"], 0.811),
    ],
)
def test_alpha_is_that_of_published_examples(table: list[str], alpha: float) -> None:
    columns = zip(*(row.replace(" ", "") for row in table), strict=True)
    found = alpha_of([[float(one) for one in column if one != "."] for column in columns])
    assert found == (pytest.approx(alpha, abs=0.0006), None)


def alpha_of(given: list[list[float]]) -> tuple[float | None, str | None]:
    found = krippendorff([dict(enumerate(scores)) for scores in given], [""] * len(given), "interval")
    return found.value, found.why_none


def test_alpha_by_hand_and_where_it_is_not_defined() -> None:
    # Units 1 1 and 2 4. D_o = 2 * 4 / 4; pairs of 1 1 2 4 differ by 0 1 9 1 9 4, so D_e = 2 * 24 / 12.
    assert alpha_of([[1, 1], [2, 4], [5]])[0] == pytest.approx(1 - 2 / 4)
    assert alpha_of([[1, 1], [5, 5]]) == (1.0, None)
    assert alpha_of([[1], [2]]) == (None, "no item has two annotators")
    assert alpha_of([]) == (None, "no item has two annotators")


# Systems.


def test_table_1_of_the_paper_has_its_ranks_and_its_one_switch() -> None:
    ratings: list[Rating] = []
    scores: dict[AnswerKey, float | Unscored] = {}
    for system, cells in TABLE_1.items():
        for category, (automatic, human) in zip(CATEGORIES, cells, strict=True):
            answer = key(f"q-{category}", system, category)
            scores[answer] = automatic
            ratings += rated(answer, human)
    found = human_agreement(ratings, scores, resamples=100)
    average = found.systems["average"]
    assert average["GPT-4o Voice mode"].automatic == pytest.approx(3.077, abs=0.0006)
    # The paper prints 2.863, which is not the mean of its four categories; the rank is the same.
    assert average["Qwen2.5 Omni"].human == pytest.approx(2.813, abs=0.0006)
    assert {name: (one.automatic_rank, one.human_rank) for name, one in average.items()} == {
        "gpt-4o-mini-tts (good)": (1, 1),
        "gpt-4o-mini-tts (bad)": (8, 8),
        "Sesame": (2, 2),
        "CosyVoice": (3, 3),
        "YourTTS": (4, 4),
        "GPT-4o Voice mode": (6, 5),
        "Qwen2.5 Omni": (5, 6),
        "GLM-4-Voice": (7, 7),
    }
    assert found.switched["average"] == (("GPT-4o Voice mode", "Qwen2.5 Omni"),)
    text = markdown_tables(found)
    assert "| GLM-4-Voice | 2.570 (7) | 2.493 (7) |" in text
    assert "32 ratings by 1 raters." in text
    assert "Pairs of systems that switch ranks, by average (1): GPT-4o Voice mode and Qwen2.5 Omni." in text


def test_system_means_by_hand_with_a_category_missing_and_a_tie() -> None:
    scores: dict[AnswerKey, float | Unscored] = {
        key("q1", "a"): 4.0,
        key("q2", "a"): 2.0,
        key("q1", "b"): 3.0,
        key("e1", "a", "emotion"): 5.0,
    }
    ratings = [one for answer in scores for one in rated(answer, 2, 4)]
    found = human_agreement(ratings, scores).systems
    # Means of categories, not of answers: (3 + 5) / 2.
    assert (found["average"]["a"].automatic, found["average"]["a"].human, found["average"]["a"].n) == (4.0, 3.0, 3)
    assert found["average"]["a"].automatic_rank == 1
    assert (found["average"]["b"].automatic, found["average"]["b"].automatic_rank, found["average"]["b"].n) == (None, None, 1)
    assert (found["age"]["a"].automatic_rank, found["age"]["b"].automatic_rank) == (1, 1)
    assert found["emotion"]["b"].n == 0


def test_the_tables_are_markdown_whatever_the_names() -> None:
    ratings, scores = study()
    renamed = [one.model_copy(update={"system": f"{one.system}|x\ny"}) for one in ratings]
    text = markdown_tables(
        human_agreement(renamed, {answer._replace(system=f"{answer.system}|x\ny"): score for answer, score in scores.items()})
    )
    tables = [block.splitlines() for block in text.split("\n\n")[:2]]
    assert [len(table) for table in tables] == [5, 4]
    for table in tables:
        assert len({len(re.findall(r"(?<!\\)\|", line)) for line in table}) == 1
    assert "a\\|x y" in text
    assert "nan" not in text


def test_a_long_list_is_cut_and_says_so() -> None:
    ratings = [one for n in range(30) for one in rated(key(f"q{n}"), 1, 2)]
    assert "Rated, but not scored (30): q0 by s" in markdown_tables(human_agreement(ratings, {}))
    assert "; and 10 more." in markdown_tables(human_agreement(ratings, {}))
