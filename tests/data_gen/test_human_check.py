"""The human check: outcomes against hand-made tables, a study that follows its dataset, and decisions of a folder of 0.21."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from tiny.studies import click, tone

from paras2s.configs.find import which_config
from paras2s.configs.schema.curation import CurationConfig, load_curation
from paras2s.data_gen.curation.human_check import (
    OLD_DECISIONS,
    STUDY,
    Decision,
    Outcomes,
    items_to_check,
    judge_items,
    load_decisions,
    open_check,
    read_old_decisions,
)
from paras2s.data_gen.dataset import load_manifest, save_tables
from paras2s.errors import ConfigError, DataError, StorageError
from paras2s.studies.clicks import missing
from paras2s.studies.store import ClickRefusedError, StudyStore
from paras2s.types import Candidate, Demonstration, Query
from paras2s.utils.io import write_jsonl


def yes(annotator: str, choice: int | None = None, item: str = "q", note: str = "") -> Decision:
    return Decision(item, annotator, True, choice, note)


def no(annotator: str, item: str = "q", note: str = "") -> Decision:
    return Decision(item, annotator, False, None, note)


# --- outcomes ---


@pytest.mark.parametrize(
    ("votes", "accept", "choice"),
    [
        ([yes("a")], True, None),
        ([no("a")], False, None),
        ([yes("a", 2)], True, 2),
        ([yes("a"), no("b")], False, None),
        ([yes("a"), no("b"), yes("c")], True, None),
        ([no("a"), yes("b", 3), no("c")], False, None),
        ([yes("a"), yes("b"), no("c"), no("d")], False, None),
        # The picked take needs votes like any other.
        ([yes("a"), yes("b", 2), yes("c", 2)], True, 2),
        ([yes("a"), yes("b", 2), yes("c")], True, None),
        # Who rejects does not choose, so of the two others' takes the earlier voter's is used.
        ([yes("a", 4), no("b"), yes("c", 2)], True, 4),
        ([yes("a"), yes("b", 2)], True, None),
        ([yes("b", 2), yes("a")], True, 2),
        ([yes("a", 5), yes("b", 2), yes("c", 0), yes("d", 2), yes("e", 5)], True, 5),
        # 0 is a take, not a missing choice.
        ([yes("a", 0), yes("b", 0), yes("c")], True, 0),
        # The last word of an annotator binds, and only that.
        ([yes("a"), no("a")], False, None),
        ([no("a"), yes("a", 1), yes("a", 2)], True, 2),
        # A changed mind votes when it changed: b is now the earlier voter.
        ([yes("a", 1), yes("b", 2), yes("a", 3)], True, 2),
    ],
)
def test_outcome(votes: list[Decision], accept: bool, choice: int | None) -> None:
    outcome = judge_items(votes)["q"]
    assert isinstance(outcome, Decision)
    assert (outcome.item_id, outcome.accept, outcome.choice) == ("q", accept, choice)


def test_an_outcome_names_its_voters_and_keeps_their_notes() -> None:
    one, two = yes("ann", note="a click"), no("ben", note="too fast")
    assert judge_items([one]) == {"q": one}
    assert judge_items([one, yes("cleo"), two])["q"] == Decision("q", "ann, cleo, ben", True, None, "a click; too fast")


def test_too_few_annotators_is_waiting_and_not_rejected() -> None:
    votes = [yes("a", item="one"), no("a", item="two"), no("a", item="two"), yes("b", item="one"), yes("c", item="one")]
    outcomes = judge_items(votes, annotators_needed=3)
    assert outcomes["two"] == "waiting: 1 of 3 annotators"
    assert isinstance(outcomes["one"], Decision)
    assert list(outcomes) == ["one", "two"]
    assert judge_items([]) == {}
    with pytest.raises(ConfigError, match="annotators_needed: 0"):
        judge_items(votes, annotators_needed=0)


# --- a dataset and its study ---


def dataset(folder: Path, queries: int = 2, takes: int = 3, **check: Any) -> CurationConfig:
    """A curated dataset of test queries, and one demonstrated answer of so many takes, the second of which is picked."""
    (folder / "queries").mkdir(parents=True, exist_ok=True)
    made = []
    for number in range(queries):
        tone(folder / f"queries/t{number}.wav", 200 + 10 * number)
        made.append(
            Query(f"t{number}", "c", "moods", "Food", "test", "m1", f"queries/t{number}.wav", 0.2, "words", "Words.", "sad")
        )
    candidates = [
        Candidate(one.id, "c", "moods", "Food", "test", "sad", "m1", "Words.", "words", 0.0, None, None, None) for one in made
    ]
    rows = []
    for number in range(takes):
        tone(folder / f"answers/d-{number}.wav", 400 + 10 * number)
        rows.append(
            {"clip": f"answers/d-{number}.wav", "transcript": f"said {number}", "word_error_rate": abs(number - 1) / 10}
        )
    answers = [{"query_id": "d", "text": "I am sorry.", "tone": "gentle", "takes": rows, "clearest": 1}]
    write_jsonl(folder / "answers.jsonl", answers)
    save_tables(folder, made, [Demonstration("t0", "I am sorry.", "gentle", "answers/d-1.wav")], candidates)
    values = {"roles": ["test", "demonstration"], "annotators": 1, **check}
    return load_curation(which_config(Path("local"))[0], {"folder": str(folder), "human_check": values})


def decide(store: StudyStore, name: str, number: int, value: str, note: str = "") -> None:
    if value != "reject":
        store.add_click(name, click(number, "play", value))
    if note:
        store.add_click(name, click(number, "comment", "", note))
    store.add_click(name, click(number, "choose", "verdict", value))
    store.add_click(name, click(number, "submit"))


def test_clips_are_items_with_their_words_style_and_takes(tmp_path: Path) -> None:
    first, _, answer = items_to_check(dataset(tmp_path))
    assert (first.question_text, first.context.splitlines()[0], first.picked) == ("Words.", "question, sad", 0)
    assert "word errors: 0 %" in first.context
    assert ([take.clip for take in answer.answers], answer.picked) == ([f"answers/d-{n}.wav" for n in range(3)], 1)
    assert (answer.id, answer.context.splitlines()) == (
        "d-1", ["answer, gentle", "question: d", "take 1: said 0", "take 2: said 1", "take 3: said 2"],
    )  # fmt: skip


def test_decisions_are_stored_at_once_and_the_check_goes_on_where_it_stopped(tmp_path: Path) -> None:
    config = dataset(tmp_path)
    assert load_decisions(tmp_path) == []
    store, ann = open_check(config, "ann")
    items = store.study.items
    decide(store, "ann", 0, "1")
    decide(store, "ann", 2, "3", "take 3 is calmer ")
    again, same = open_check(config, "ann")
    assert (same, again.progress("ann").item(0).closed) == (ann, True)
    assert load_decisions(tmp_path) == [yes("ann", item=items[0].id), yes("ann", 2, "d-1", "take 3 is calmer")]
    # Another person begins at the beginning.
    other, _ = open_check(config, "ben")
    assert other.progress("ben").items == {}
    decide(other, "ben", 0, "reject")
    assert judge_items(load_decisions(tmp_path), 2)[items[0].id] == Decision(items[0].id, "ann, ben", False)


def test_the_picked_take_is_no_other_take_and_the_last_decision_binds(tmp_path: Path) -> None:
    store, _ = open_check(dataset(tmp_path), "ann")
    decide(store, "ann", 2, "2")
    decide(store, "ann", 0, "1")
    assert load_decisions(tmp_path)[0] == yes("ann", item="d-1")
    for _ in range(4):
        store.add_click("ann", click(0, "undo"))
    assert load_decisions(tmp_path) == []
    decide(store, "ann", 0, "reject", "too fast")
    decide(store, "ann", 2, "1")
    first = store.study.items[0].id
    assert load_decisions(tmp_path) == [no("ann", first, "too fast"), yes("ann", 0, "d-1")]
    assert Outcomes.load(dataset(tmp_path)).judge(load_manifest(tmp_path).candidates[0]).rejected == "by ann: too fast"


def test_an_item_that_cannot_be_judged_has_no_decision(tmp_path: Path) -> None:
    store, _ = open_check(dataset(tmp_path), "ann")
    store.add_click("ann", click(0, "skip", "", "silence"))
    assert load_decisions(tmp_path) == []


def test_what_is_accepted_must_be_heard_and_must_be_a_take(tmp_path: Path) -> None:
    store, _ = open_check(dataset(tmp_path), "ann")
    with pytest.raises(ClickRefusedError, match="no such answer"):
        store.add_click("ann", click(0, "choose", "verdict", "2"))
    with pytest.raises(ClickRefusedError, match="no such clip"):
        store.add_click("ann", click(0, "play", "2"))
    store.add_click("ann", click(2, "play", "1"))
    store.add_click("ann", click(2, "choose", "verdict", "3"))
    with pytest.raises(ClickRefusedError, match="listen to the take that you accept"):
        store.add_click("ann", click(2, "submit"))
    store.add_click("ann", click(2, "choose", "verdict", "reject"))
    assert missing(store.form_of(2), store.progress("ann").item(2)) == []


def test_items_come_in_the_order_of_the_dataset_with_a_key_for_each_take(tmp_path: Path) -> None:
    store, ann = open_check(dataset(tmp_path, takes=11), "ann")
    assert [(place.item, place.flipped) for place in store.order(ann)] == [(0, False), (1, False), (2, False)]
    choices = store.form.questions[0].choices
    assert [choice.key for choice in choices] == [*"1234567890", None, "r"]
    assert store.form_of(0).questions[0].values == ("1", "reject")


def test_the_study_follows_the_dataset(tmp_path: Path) -> None:
    store, _ = open_check(dataset(tmp_path), "ann")
    decide(store, "ann", 0, "1")
    decide(store, "ann", 2, "3")
    assert store.is_current()
    # A query came, and the answer has lost a take: old decisions on it are about other clips.
    again, _ = open_check(dataset(tmp_path, queries=3, takes=2), "ann")
    assert [(item.id[:2], item.retired) for item in again.study.items] == [
        ("t0", False), ("t1", False), ("d-", True), ("t2", False), ("d-", False),
    ]  # fmt: skip
    assert not store.is_current()
    assert again.is_current()
    assert [decision.item_id[:2] for decision in load_decisions(tmp_path)] == ["t0"]
    # What came back keeps its decision.
    back, _ = open_check(dataset(tmp_path), "ann")
    assert [item.retired for item in back.study.items] == [False, False, False, True, True]
    assert [decision.item_id[:2] for decision in load_decisions(tmp_path)] == ["t0", "d-"]


def test_a_check_without_clips_or_with_a_bad_name_is_refused(tmp_path: Path) -> None:
    config = dataset(tmp_path, roles=["validation"])
    with pytest.raises(DataError, match="nothing to check for the roles validation"):
        open_check(config, "ann")
    for name in ("", "a" * 41, "two words", "../up", "line\n", "a,b", "<b>"):
        with pytest.raises(ConfigError, match="annotator"):
            open_check(dataset(tmp_path), name)
    for name in ("a" * 40, "Zoë_2", "j.doe-1"):
        assert open_check(dataset(tmp_path), name)[1].name == name


def test_a_disk_that_refuses_stores_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store, _ = open_check(dataset(tmp_path), "ann")

    def refuse(*_: object) -> None:
        raise OSError("no space left on device")

    monkeypatch.setattr("paras2s.studies.store.shutil.copyfile", refuse)
    with pytest.raises(StorageError, match="no space left"):
        open_check(dataset(tmp_path, queries=3), "ann")
    assert StudyStore(store.folder).study == store.study


# --- a folder of 0.21 ---


def old_rows(folder: Path, *rows: dict[str, Any]) -> Path:
    path = folder / OLD_DECISIONS
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def test_a_folder_of_0_21_is_read_as_it_stands_and_its_decisions_become_clicks(tmp_path: Path) -> None:
    config = dataset(tmp_path, annotators=2)
    first, second, answer = (item.id for item in items_to_check(config))
    rows = [
        {"item_id": answer, "annotator": "ben", "accept": True, "choice": 2, "note": ""},
        {"item_id": first, "annotator": ".ann", "accept": True, "choice": None, "note": ""},
        {"item_id": first, "annotator": ".ann", "accept": False, "choice": None, "note": "sounds bored"},
        {"item_id": first, "annotator": "ben", "accept": False, "choice": None, "note": ""},
        {"item_id": answer, "annotator": ".ann", "accept": True, "choice": 0, "note": ""},
        {"item_id": second, "annotator": "ben", "accept": True, "choice": None, "note": ""},
        {"item_id": second, "annotator": "ben", "undo": True},
        {"item_id": "of-an-older-clip", "annotator": "ben", "accept": True, "choice": None, "note": ""},
    ]
    old_rows(tmp_path, *rows)
    before = load_decisions(tmp_path)
    assert before == [
        yes("ben", 2, answer), no(".ann", first, "sounds bored"), no("ben", first), yes(".ann", 0, answer),
        yes("ben", item="of-an-older-clip"),
    ]  # fmt: skip
    outcomes = judge_items(before, 2)
    store, _ = open_check(config, "ben")
    assert {one.name for one in store.annotators()} == {"ben", ".ann"}
    assert judge_items(load_decisions(tmp_path), 2) == outcomes
    assert store.progress("ben").item(0).closed
    assert not store.progress("ben").item(1).closed
    # Opened again, nothing is stored twice; and what is taken back in the study is taken back.
    clicks = store.count_clicks()
    again, _ = open_check(config, "ben")
    assert again.count_clicks() == clicks
    for _ in range(2):
        again.add_click(".ann", click(0, "undo"))
    assert judge_items(load_decisions(tmp_path), 2)[answer] == "waiting: 1 of 2 annotators"
    open_check(config, "ben")
    assert judge_items(load_decisions(tmp_path), 2)[answer] == "waiting: 1 of 2 annotators"


def test_a_file_about_other_takes_is_refused(tmp_path: Path) -> None:
    config = dataset(tmp_path)
    path = old_rows(tmp_path, {"item_id": "d-1", "annotator": "ben", "accept": True, "choice": 4, "note": ""})
    with pytest.raises(DataError, match="take 4 of 'd-1', which has 3") as caught:
        open_check(config, "ann")
    assert str(path) in str(caught.value)
    assert not (tmp_path / STUDY).exists()


def test_a_line_cut_off_by_a_kill_is_passed_over(tmp_path: Path) -> None:
    path = old_rows(tmp_path, {"item_id": "one", "annotator": "ann", "accept": True})
    with path.open("a") as file:
        file.write('{"item_id": "two", "annot')
    assert read_old_decisions(path) == [yes("ann", item="one")]


@pytest.mark.parametrize(
    ("row", "match"),
    [
        ("[1, 2]", "row: "),
        ("{}", "item_id"),
        ('{"item_id": "one", "annotator": "ann"}', "either 'accept' or 'undo'"),
        ('{"item_id": "one", "annotator": "ann", "accept": true, "undo": true}', "either 'accept' or 'undo'"),
        ('{"item_id": "one", "annotator": "ann", "accept": "yes"}', "accept"),
        ('{"item_id": "one", "annotator": "ann", "accept": 1}', "accept"),
        ('{"item_id": "one", "annotator": "ann", "accept": true, "choice": -1}', "choice"),
        ('{"item_id": "one", "annotator": "ann", "accept": true, "choice": true}', "choice"),
        ('{"item_id": "one", "annotator": "ann", "accept": true, "score": 3}', "score"),
        ('{"item_id": "two", "annotator": "ann", "undo": true}', "takes back a decision on 'two'"),
        ("not JSON", "not valid JSON"),
    ],
)
def test_a_bad_row_is_named(tmp_path: Path, row: str, match: str) -> None:
    path = tmp_path / "d.jsonl"
    good = '{"item_id": "one", "annotator": "ann", "accept": true}\n'
    path.write_text(f"{good}{row}\n{good}")
    with pytest.raises(DataError, match=match) as caught:
        read_old_decisions(path)
    assert str(caught.value).startswith(f"{path}:2: ")
    assert "\n" not in str(caught.value)
