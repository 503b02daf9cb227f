"""People's verification of labels (appendix G.2): hand-made ratings, what stays, and who is missing.

Not covered: people.
"""

import json

import pytest
from tiny.unisrm import pair_record
from typer.testing import CliRunner

from paras2s.cli.app import app
from paras2s.configs.schema.unisrm_data import VerificationConfig, load_unisrm_data
from paras2s.errors import ConfigError, DataError
from paras2s.unisrm.data_gen.verify import decide, excluded_raters, read_gold, read_ratings, verify
from paras2s.unisrm.reward.items import read_items, write_items
from paras2s.unisrm.reward.tasks import Item

CONFIG = VerificationConfig()
CLIPS = {"prompt_speech": "p.wav", "speech_a": "a.wav", "speech_b": "b.wav"}
SCENE = dict.fromkeys(("scenario_description", "paragraph_context", "target_emotion", "target_text"), "x")


def pair(name, better="A", split="rl", task="T1"):
    scores = ((9, 9, 9, 9), (1, 1, 1, 1)) if task == "T1" else ((9, 9, 9), (1, 1, 1))
    first, second = scores if better == "A" else scores[::-1]
    texts = {"reference_text": name} if task == "T1" else SCENE
    clips = CLIPS if task == "T1" else {key: value for key, value in CLIPS.items() if key != "prompt_speech"}
    return Item(name, task, split, name, ("s",), texts, clips, pair_record(better, first, second), {"corpus": "c"})


@pytest.mark.parametrize(
    ("choices", "reason"),
    [
        ("A A A", None), ("A A B", None), ("A A invalid", None),
        ("B B A", "the majority is against the label"), ("B B invalid", "the majority is against the label"),
        ("A B invalid", "no majority"),
        ("A invalid invalid", "most raters call it invalid"), ("invalid invalid invalid", "most raters call it invalid"),
    ],
)  # fmt: skip
def test_two_of_three_decide_and_must_agree_with_the_label(choices, reason):
    assert decide(pair("x"), choices.split(), CONFIG) == reason
    turned = [{"A": "B", "B": "A"}.get(one, one) for one in choices.split()]
    assert decide(pair("x", "B"), turned, CONFIG) == reason


def write(path, rows, head="item,rater,choice"):
    path.write_text("\n".join([head, *rows]) + "\n")
    return path


def three(item, *choices, raters=("r1", "r2", "r3")):
    return [f"{item},{rater},{choice}" for rater, choice in zip(raters, choices, strict=True)]


def test_what_people_do_not_confirm_is_set_aside_and_looked_at_again(tmp_path):
    items = [pair("yes"), pair("no", "B", "bench"), pair("sft", split="sft"), pair("scene", task="T3")]
    write_items(tmp_path, items)
    rows = [*three("yes", "A", "A", "B"), *three("no", "A", "A", "invalid")]
    report = verify(tmp_path, read_ratings(write(tmp_path / "r.csv", rows)), {}, CONFIG)
    assert (report.verified, report.items, report.unanimous) == (2, {"rl": 1}, 0)
    assert report.dropped == {("bench", "the majority is against the label"): 1}
    assert [item.id for item in read_items(tmp_path)] == ["yes", "sft", "scene"]
    assert read_items(tmp_path)[0].factors == {"corpus": "c", "verified": "A, A, B"}
    rejected = read_items(tmp_path, file="rejected.jsonl")
    assert [(item.id, item.factors["rejected"]) for item in rejected] == [("no", "the majority is against the label")]
    # Ratings that were collected anew.
    rows = [*three("yes", "B", "B", "B"), *three("no", "B", "B", "B")]
    report = verify(tmp_path, read_ratings(write(tmp_path / "r.csv", rows)), {}, CONFIG)
    assert report.unanimous == 2
    assert sorted(item.id for item in read_items(tmp_path)) == ["no", "scene", "sft"]
    assert next(item for item in read_items(tmp_path) if item.id == "no").factors == {"corpus": "c", "verified": "B, B, B"}


def test_a_dry_run_writes_nothing_and_other_tasks_are_by_config(tmp_path):
    write_items(tmp_path, [pair("scene", task="T3"), pair("one")])
    before = (tmp_path / "items.jsonl").read_text()
    ratings = read_ratings(write(tmp_path / "r.csv", three("scene", "B", "B", "B")))
    config = CONFIG.model_copy(update={"tasks": ("T3",)})
    report = verify(tmp_path, ratings, {}, config, dry_run=True)
    assert (report.verified, report.dropped) == (1, {("rl", "the majority is against the label"): 1})
    assert (tmp_path / "items.jsonl").read_text() == before
    assert not (tmp_path / "rejected.jsonl").exists()


def test_missing_raters_are_named(tmp_path):
    write_items(tmp_path, [pair("one"), pair("two"), pair("three")])
    rows = [*three("one", "A", "A", "A"), "two,r1,A", "two,r2,A"]
    with pytest.raises(DataError, match=r"missing for 2 pairs: two \(2 of 3\), three \(0 of 3\); have them rated"):
        verify(tmp_path, read_ratings(write(tmp_path / "r.csv", rows)), {}, CONFIG)
    assert len(read_items(tmp_path)) == 3


def test_a_rater_who_fails_the_gold_items_is_replaced(tmp_path):
    write_items(tmp_path, [pair("one")])
    gold = read_gold(write(tmp_path / "gold.csv", ["g1,A", "g2,B"], "item,choice"))
    rows = [*three("one", "A", "B", "A"), *three("g1", "A", "B", "A"), *three("g2", "B", "A", "B")]
    with pytest.raises(DataError, match=r"one \(2 of 3\); excluded: r2 \(0 of 2 gold items right\)"):
        verify(tmp_path, read_ratings(write(tmp_path / "r.csv", rows)), gold, CONFIG)
    rows += ["one,r4,A", "g1,r4,A", "g2,r4,B"]
    report = verify(tmp_path, read_ratings(write(tmp_path / "r.csv", rows)), gold, CONFIG)
    assert (report.items, report.unanimous, dict(report.excluded)) == ({"rl": 1}, 1, {"r2": "0 of 2 gold items right"})
    # A fourth rater who counts comes too late.
    rows += ["one,r6,B", "g1,r6,A", "g2,r6,B"]
    report = verify(tmp_path, read_ratings(write(tmp_path / "r.csv", rows)), gold, CONFIG)
    assert (report.items, report.unanimous) == ({"rl": 1}, 1)
    with pytest.raises(DataError, match="rater r5: has rated no gold item; have one of g1, g2 rated"):
        verify(tmp_path, read_ratings(write(tmp_path / "r.csv", [*rows, "one,r5,A"])), gold, CONFIG)


def test_hasty_and_one_sided_raters_are_excluded(tmp_path):
    rows = [f"i{n},hasty,A,0.5,A" for n in range(9)] + [f"i{n},left,{'AB'[n % 2]},9,{'AB'[n % 2]}" for n in range(20)]
    rows += [f"i{n},fair,A,9,{'AB'[n % 2]}" for n in range(20)] + [f"i{n},few,A,9,A" for n in range(9)]
    ratings = read_ratings(write(tmp_path / "r.csv", rows, "item,rater,choice,seconds,left"))
    assert excluded_raters(ratings, {}, CONFIG) == {
        "hasty": "a median of 0.5 s an item", "left": "20 of 20 choices are the left clip",
    }  # fmt: skip


@pytest.mark.parametrize(
    ("rows", "head", "message"),
    [
        (["one,r1"], "item,rater", r"r\.csv:1: no column choice"),
        (["one,r1,C"], "item,rater,choice", r"r\.csv:2: choice: "),
        (["one,,A"], "item,rater,choice", r"r\.csv:2: rater: "),
        (["one,r1,A", "one,r1,B"], "item,rater,choice", r"r\.csv:3: r1 has rated one already"),
        (["one,r1,A,-1"], "item,rater,choice,seconds", r"r\.csv:2: seconds: "),
        ([], "item,rater,choice", "holds no rating"),
        (["other,r1,A"], "item,rater,choice", "rating of other by r1: .*has no such item"),
    ],
)
def test_a_wrong_file_is_refused_by_line(tmp_path, rows, head, message):
    write_items(tmp_path, [pair("one")])
    with pytest.raises(DataError, match=message):
        verify(tmp_path, read_ratings(write(tmp_path / "r.csv", rows, head)), {}, CONFIG)


def test_the_verb_verifies_and_a_minority_is_refused(tmp_path):
    write_items(tmp_path, [pair("one"), pair("two", split="bench")])
    path = write(tmp_path / "r.csv", [*three("one", "A", "A", "A"), *three("two", "B", "B", "B")])
    done = CliRunner().invoke(app, ["unisrm", "verify", str(tmp_path), str(path), "--json"])
    assert json.loads(done.stdout) == {
        "verified": 2, "items": {"rl": 1}, "dropped": {"bench: the majority is against the label": 1}, "excluded": {},
        "unanimous": 2,
    }  # fmt: skip
    assert "on 2 of them all raters agree" in CliRunner().invoke(app, ["unisrm", "verify", str(tmp_path), str(path)]).stdout
    with pytest.raises(ConfigError, match="1 of 3 is no majority"):
        load_unisrm_data("paper", {"verification.min_agree": 1})
