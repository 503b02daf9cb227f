"""The audit of a judge: shares by hand, what each line says, its estimate, a dataset in a run's place, and a map's fit."""

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from test_second_judge import row
from tiny.world import invoke

from paras2s.audio.clip import make_clip, write_clip
from paras2s.bench.audit import FEWEST_CONTRASTS, Audit, Compared, audit_warnings, contrasts_of, shares_of
from paras2s.bench.paras2s.audit import HACKS, JudgeAudit, demonstrated_rows, load_answers, off_topic_rows, position_of
from paras2s.bench.results import save_rows
from paras2s.data_gen.dataset import Manifest
from paras2s.errors import ConfigError, DataError
from paras2s.reward.judges.base import Judge, preference_of
from paras2s.types import Demonstration, Query, Unscored, Verdict
from paras2s.utils.io import write_json

CONTRASTS, STYLES = [f"c{number}" for number in range(6)], ("sarcastic", "sincere")
LEVELS = {"topline": 0.1, "bad": 0.2, "flat": 0.3}


def write_run(folder: Path) -> Path:
    """Answers to six contrasts of two styles: gold ones (5), wrong ones (1) and gold words in a neutral voice (4)."""
    for name, level in {"q": 0.4, **LEVELS}.items():
        write_clip(folder / f"{name}.wav", make_clip(level * np.ones(1600, dtype=np.float32), 16_000))
    for system, score in (("topline", 5), ("bad", 1), ("flat", 4)):
        rows = [
            replace(row(score, 0, system, contrast), query_id=f"{contrast}-{style}", style=style, answer_clip=f"{system}.wav")
            for contrast in CONTRASTS
            for style in STYLES
        ]
        save_rows(folder / "bench" / f"{system}.jsonl", rows)
    return folder


class Fixed(Judge):
    """Scores by a table of style and the system that a clip is of; what is of none, such as a hack, gets 5."""

    name, version, needs_question_audio = "fixed", "1", False

    def __init__(self, table):
        self.table = table

    def system(self, clip):
        return next((name for name, level in LEVELS.items() if abs(np.median(clip.samples) - level) < 0.01), "hack")

    def score_batch(self, exchanges, on_progress=None):
        found = []
        for exchange in exchanges:
            score = self.table.get((exchange.question.style, self.system(exchange.answer)), 5.0)
            reason = f"{score - 3:+.2f} nats for the question's style"
            found.append(Verdict("fixed", "1", "", score, reason, "", 0.01, 0.5) if score else Unscored("fixed", "no words"))
        return found


class First(Fixed):
    """Compares, and prefers what it hears first."""

    def compare_batch(self, pairs, on_progress=None):
        return [preference_of("first", "1", "", "overall", "1", "it came first") for _ in pairs]


def audit(run, table, limit=None, kind=Fixed):
    judge = kind({(style, system): value for style, row in table.items() for system, value in row.items()})
    return JudgeAudit(judge, run, limit).run(lambda done, total: None)


GOOD = {"topline": 5.0, "bad": 1.0, "flat": 5.0}
THANKS = {"topline": 1.0, "bad": 4.0, "flat": 1.0}


def test_a_judge_that_is_wrong_in_one_style_is_found_out(tmp_path):
    found, judged = audit(write_run(tmp_path), {"sincere": GOOD, "sarcastic": THANKS})
    shares = {style: (share.value, share.n, share.n_asked) for style, share in found.wrong_kind.items()}
    assert shares == {"sarcastic": (0.0, 6, 6), "sincere": (1.0, 6, 6), "all": (0.5, 12, 12)}
    # Equal scores are half a win.
    assert {share.value for share in found.wrong_tone.values()} == {0.5}
    assert (found.at_chance, found.refused) == (["sarcastic"], True)
    sarcastic = "sarcastic (0.00 (0.00 to 0.39), 6 of 6)"
    assert found.sentence == f"fixed/1/ is not told from chance in: {sarcastic}. Nothing should be trained on it there."
    assert (found.n_scored, found.n_answers, len(judged)) == (36, 36, 36)
    assert (found.commonest[0], found.commonest[1].value) == (1, 0.5)
    expected = np.corrcoef([5, 4, 1] * 12, [5, 5, 1] * 6 + [1, 1, 4] * 6)[0, 1]
    assert found.agreement.value == pytest.approx(expected)
    assert json.loads(json.dumps(found.to_json()))["sentence"] == found.sentence


def test_hacks_repetition_seconds_and_cost_have_their_lines(tmp_path):
    found, _ = audit(write_run(tmp_path), {"sincere": GOOD, "sarcastic": GOOD})
    # Of six probed answers, whose scores are 5; hacks get as much.
    assert {kind: (share.value, share.n) for kind, share in found.hacks.items()} == dict.fromkeys(HACKS, (1.0, 6))
    assert (found.repeated.value, found.seconds.value, found.cost_usd.value) == (1.0, 0.5, pytest.approx(0.01))
    assert found.position is None
    lines = "\n".join(found.lines())
    assert "same score when asked again: 1.00 (0.61 to 1.00), 6 of 6" in lines
    assert "seconds a verdict: 0.50 (0.50 to 0.50)\nUSD a verdict: 0.01000 (0.01000 to 0.01000)" in lines


def test_a_judge_that_prefers_what_it_hears_first_is_found_out(tmp_path):
    found, _ = audit(write_run(tmp_path), {"sincere": GOOD, "sarcastic": GOOD}, kind=First)
    assert (found.position.first.value, found.position.consistent.value) == (1.0, 0.0)
    fair = position_of([1.0, 1.0, None], [0.0, 0.0, 1.0], ["a", "b", "c"])
    assert (fair.first.value, fair.consistent.value, fair.first.n) == (0.5, 1.0, 2)


def test_a_good_judge_a_constant_one_and_one_that_scores_nothing_have_their_sentences(tmp_path):
    run = write_run(tmp_path)
    assert "in every style" in audit(run, {"sincere": GOOD, "sarcastic": GOOD})[0].sentence
    same = dict.fromkeys(GOOD, 4.0)
    constant, _ = audit(run, {"sincere": same, "sarcastic": same})
    assert "says 4 to 100% of all answers: it tells nothing" in constant.sentence
    assert constant.at_chance == ["sarcastic", "sincere"]
    nothing, _ = audit(run, dict.fromkeys(STYLES, dict.fromkeys(GOOD, 0.0)))
    assert nothing.sentence == "fixed/1/ scored none of 36 answers: no words."
    assert (nothing.wrong_kind["all"].value, nothing.refused) == (None, True)
    assert nothing.unscored == {"no words": 36}
    assert len(audit(run, {"sincere": GOOD, "sarcastic": GOOD}, 4)[1]) == 12


@pytest.mark.parametrize(("contrasts", "unknown", "refused"), [(3, ["happy"], False), (FEWEST_CONTRASTS, [], False)])
def test_a_style_of_few_contrasts_is_unknown_and_of_enough_it_is_above_chance(contrasts, unknown, refused):
    pairs = [Compared("happy", (f"c{number}",), 1.0) for number in range(contrasts)]
    found = Audit("j", "a", shares_of(pairs), contrasts_of(pairs), contrasts, contrasts)
    assert (found.unknown, found.refused) == (unknown, refused)
    assert ("too few contrasts to tell in: happy" in found.sentence) == bool(unknown)


@pytest.mark.parametrize(
    ("points", "at_chance", "unknown"),
    [
        # One contrast wrong: of 4 or 5 it tells nothing, of 12 the judge is above chance; half of them wrong is chance.
        ([1, 1, 1, 0], [], ["sad"]),
        ([1, 1, 1, 1, 0], [], ["sad"]),
        ([1] * 11 + [0], [], []),
        ([1, 1, 0, 0], ["sad"], []),
        ([0, 0, 0, 0], ["sad"], []),
        ([1] * 7 + [0] * 5, ["sad"], []),
    ],
)
def test_a_good_share_of_few_contrasts_is_unknown_and_a_poor_one_is_refused(points, at_chance, unknown):
    compared = [Compared("sad", (f"c{number}",), float(value)) for number, value in enumerate(points)]
    n = len(points)
    found = Audit("j", "answers", shares_of(compared), contrasts_of(compared), n_scored=n, n_answers=n)
    assert (found.at_chance, found.unknown, found.refused) == (at_chance, unknown, bool(at_chance))


def test_pairs_of_few_answers_are_as_uncertain_as_the_answers_are():
    # Twenty questions, but two wrong answers: one is always below the gold ones, one always above.
    pairs = [
        Compared("happy", (f"q{question}", f"g{gold}", f"w{wrong}"), float(wrong == 0))
        for question in range(20)
        for gold in range(4)
        for wrong in range(2)
    ]
    share = shares_of(pairs)["happy"]
    assert (share.value, share.low, share.high, share.n) == (0.5, 0.0, 1.0, 160)
    assert contrasts_of(pairs) == {"happy": 2}


def test_demonstrations_are_gold_and_those_of_the_other_style_wrong():
    def query(contrast, style, category="sarcasm"):
        name = f"{contrast}-{style}"
        return Query(name, contrast, category, "t", "demonstration", "m1", f"queries/{name}.wav", 1.0, "x", "x", style)

    queries = [query("a", "sincere"), query("a", "sarcastic"), query("b", "sarcastic"), query("c", "happy", "emotion")]
    shown = tuple(Demonstration(query.id, "w", "calm", f"answers/{query.id}.wav") for query in queries)
    rows = demonstrated_rows(Manifest(Path(), tuple(queries), shown, ()))
    assert [(row.query_id, row.answer_clip) for row in rows["bad"]] == [
        ("a-sincere", "answers/a-sarcastic.wav"),
        ("a-sarcastic", "answers/a-sincere.wav"),
        ("b-sarcastic", "answers/a-sincere.wav"),
    ]
    assert [row.answer_clip for row in rows["topline"]] == [f"answers/{row.query_id}.wav" for row in rows["bad"]]
    assert {row.contrast_id for row in demonstrated_rows(Manifest(Path(), tuple(queries), shown, ()), 1)["bad"]} == {"a"}
    assert off_topic_rows(rows["topline"]) == []
    of_gender = [
        replace(row, query_id=f"g{n}", category="gender", style=("male", "female")[n % 2], answer_clip=f"g{n}.wav")
        for n, row in enumerate([*rows["topline"], *rows["topline"]])
    ]
    off = off_topic_rows([*rows["topline"], *of_gender])
    # Styles alternate, and still each meets both of the other category.
    assert [(row.style, row.answer_clip) for row in off] == [
        ("sincere", "g0.wav"), ("sarcastic", "g0.wav"), ("sarcastic", "g1.wav"),
        ("male", "answers/a-sincere.wav"), ("female", "answers/a-sincere.wav"),
        ("male", "answers/a-sarcastic.wav"), ("female", "answers/a-sarcastic.wav"),
        ("male", "answers/b-sarcastic.wav"), ("female", "answers/b-sarcastic.wav"),
    ]  # fmt: skip
    assert {row.system for row in off} == {"off_topic"}


def test_reports_warn_of_what_was_refused_alone(tmp_path):
    assert audit_warnings(tmp_path) == []
    said = {"teacher": {"refused": False, "sentence": "fine"}, "reward model": {"refused": True, "sentence": "at chance."}}
    write_json(tmp_path / "audit.json", said)
    assert audit_warnings(tmp_path) == ["The audit refused its reward model: at chance."]


def test_the_verb_prints_it_and_refuses_a_map_of_another_judge(tmp_path, monkeypatch):
    run = write_run(tmp_path)
    monkeypatch.setitem(globals(), "Opened", lambda: Fixed({(style, name): GOOD[name] for style in STYLES for name in GOOD}))
    printed = invoke("judge", "audit", "test_audit:Opened", run).stdout
    assert "1.00 (0.61 to 1.00), 6 of 6" in printed
    assert "36 of 36 scored" in printed
    assert "0 calls, at most 0.0000 USD" in invoke("judge", "audit", "test_audit:Opened", run, "--estimate").stdout
    report = json.loads(invoke("judge", "audit", "test_audit:Opened", run, "--json").stdout)
    assert report["at_chance"] == []
    with pytest.raises(ConfigError, match="--map: it is fitted for a contrast judge"):
        invoke("judge", "audit", "test_audit:Opened", run, "--map", tmp_path / "map.json")
    with pytest.raises(DataError, match="no topline and bad answers; run paras2s bench contrasts"):
        load_answers(tmp_path / "nowhere")
