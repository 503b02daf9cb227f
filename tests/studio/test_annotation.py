"""Clicks, order, undo and the store of a study: hand-made histories, and a real process that is killed.

Not covered: a disk that lies about flushing, and power that fails.
"""

from __future__ import annotations

import json
import os
import signal
import sqlite3
import subprocess
import sys
from pathlib import Path

import pytest
from tiny.studies import answer_pair, bench_run, click, make, pair_items, single_items, tone

from paras2s.errors import ConfigError, DataError, StorageError
from paras2s.studies.clicks import (
    Progress,
    clock_ms,
    label_of_scores,
    missing,
    order_of,
    other_side,
    refusal,
    replay,
)
from paras2s.studies.forms import KINDS, load_forms
from paras2s.studies.store import ClickRefusedError, StudyStore
from paras2s.studies.study import Answer, StudyItem, as_study, read_items
from paras2s.studio.annotation.run_items import items_of_run

PAIR = load_forms()["pair"]


def history(*clicks: tuple[str, ...]) -> Progress:
    return replay([click(int(item), action, *more) for item, action, *more in clicks])  # type: ignore[arg-type]


def test_every_kind_has_a_form_with_a_key_for_each_choice() -> None:
    forms = load_forms()
    assert tuple(forms) == KINDS
    for form in forms.values():
        for question in form.questions:
            keys = [choice.key for choice in question.choices]
            assert len(set(keys)) == len(keys)
            # Keys of the page itself: clips, undo, skip, comment and dark or light.
            assert not set(keys) & set("qasuxcd?")
    assert [question.is_score for question in forms["role_play"].questions] == [True, True]
    assert not PAIR.questions[0].is_score


# --- order and sides ---


def test_the_order_is_a_permutation_with_half_of_the_sides_exchanged() -> None:
    order = order_of(5, 21, True)
    assert sorted(place.item for place in order) == list(range(21))
    assert sum(place.flipped for place in order) == 10
    assert order == order_of(5, 21, True)
    assert order != order_of(6, 21, True)


def test_scores_of_one_answer_have_no_sides() -> None:
    """Else 1 and 2 on a scale of 5 would be exchanged."""
    assert not any(place.flipped for place in order_of(5, 21, False))


def test_the_order_of_a_seed_is_what_it_was() -> None:
    """A golden value: links that are out must show the same sides after an update."""
    assert [(place.item, place.flipped) for place in order_of(1, 5, True)] == GOLDEN_ORDER


GOLDEN_ORDER = [(0, True), (1, True), (3, False), (2, False), (4, False)]


def test_sides_are_exchanged_and_back() -> None:
    for name in ("1", "2", "both_good", "both_bad", "question"):
        assert other_side(other_side(name, True), True) == name
        assert other_side(name, False) == name
    assert (other_side("1", True), other_side("both_good", True)) == ("2", "both_good")


# --- replay ---


def test_undo_takes_back_one_click_at_a_time_and_over_the_end_of_an_item() -> None:
    done = [("0", "choose", "content", "1"), ("0", "choose", "content", "2"), ("0", "submit"), ("1", "choose", "content", "1")]
    assert history(*done).item(0).closed
    once = history(*done, ("1", "undo"))
    assert once.item(1).choices == {}
    assert once.item(0).closed
    twice = history(*done, ("1", "undo"), ("1", "undo"))
    assert not twice.item(0).closed
    assert twice.item(0).choices == {"content": "2"}
    thrice = history(*done, ("1", "undo"), ("1", "undo"), ("0", "undo"))
    assert thrice.item(0).choices == {"content": "1"}
    again = history(*done, ("1", "undo"), ("1", "undo"), ("0", "undo"), ("0", "choose", "content", "both_bad"), ("0", "undo"))
    assert again.item(0).choices == {"content": "1"}
    assert again.can_undo
    assert not history(*done, *[("0", "undo")] * 4).can_undo


def test_plays_and_comments_are_not_undone() -> None:
    state = history(
        ("0", "play", "1"), ("0", "choose", "content", "1"), ("0", "play", "1"), ("0", "comment", "", "noisy"), ("0", "undo")
    )
    assert (state.item(0).plays, state.item(0).comment, state.item(0).choices) == ({"1": 2}, "noisy", {})


def test_a_skipped_item_has_its_reason_and_undo_opens_it() -> None:
    assert history(("0", "skip", "", "silence")).item(0).skipped == "silence"
    opened = history(("0", "skip", "", "silence"), ("0", "undo")).item(0)
    assert (opened.closed, opened.skipped) == (False, None)


def timed(*views: tuple[str, float | None]) -> float | None:
    return replay([click(0, "play", "1", view=view, shown_ms=ms) for view, ms in views]).item(0).time_s


def test_time_is_summed_over_showings_and_a_clock_that_jumps_does_no_harm() -> None:
    assert timed(("a", 1000.0), ("a", 4000.0), ("b", 500.0)) == 4.5
    # It went back, was missing, or leapt over a night.
    assert timed(("a", 4000.0), ("a", 100.0)) == 4.0
    assert timed(("a", None), ("b", 2000.0)) == 2.0
    assert timed(("a", None)) is None
    assert timed(("a", 9e12)) == 3600.0
    assert [clock_ms(value) for value in (-1, float("nan"), float("inf"), "7", None, True, 7)] == [None] * 6 + [7.0]


# --- what is taken ---


@pytest.mark.parametrize(
    ("before", "one", "why"),
    [
        ([], ("9", "play", "1"), "no such item"),
        ([], ("0", "choose", "content", "3"), "no such answer"),
        ([], ("0", "choose", "fitness", "1"), "no such answer"),
        ([], ("0", "choose", "overall", "1"), "Overall comes last; first Content, Voice quality, Paralinguistics"),
        ([("0", "choose", "content", "1")], ("0", "choose", "overall", "1"), "first Voice quality, Paralinguistics"),
        ([], ("0", "submit"), "still to do: listen to both answers, Content, Voice quality"),
        ([], ("0", "skip", "", "  "), "say why"),
        ([], ("0", "undo"), "nothing to undo"),
        ([], ("0", "play", "3"), "no such clip"),
        ([], ("0", "comment", "", "x" * 2001), "2000 characters"),
        ([("0", "skip", "", "silence")], ("0", "choose", "content", "1"), "done already"),
        ([("0", "skip", "", "silence")], ("0", "submit"), "done already"),
    ],
)
def test_clicks_that_are_refused(before: list[tuple[str, ...]], one: tuple[str, ...], why: str) -> None:
    item, action, *more = one
    assert why in (refusal(PAIR, 1, history(*before), click(int(item), action, *more)) or "")  # type: ignore[arg-type]


def test_what_is_missing() -> None:
    form = load_forms()["single"]
    assert missing(form, history().item(0)) == ["listen to the recording", "Quality of the speech", "Fit to the request"]
    full = history(("0", "play", "1"), ("0", "choose", "mos", "3"), ("0", "choose", "fitness", "4"))
    assert missing(form, full.item(0)) == []


@pytest.mark.parametrize(
    ("scores", "label"),
    [
        ((4, 4), "both_good"),
        ((5, 4), "1"),
        ((4, 5), "2"),
        ((4, 3.9), "1"),
        ((1, 4), "2"),
        ((3, 1), "both_bad"),
        ((1, 1), "both_bad"),
    ],
)
def test_two_scores_as_a_typed_label(scores: tuple[float, float], label: str) -> None:
    assert label_of_scores(*scores, acceptable_from=4.0) == label


# --- the store ---


def test_clips_have_names_that_tell_no_system(tmp_path: Path) -> None:
    store = make(tmp_path, "pair", pair_items(tmp_path, 2), "ann")
    names = [name for item in store.study.items for name in item.clips().values()]
    assert all(name.startswith("clips/") and "ours" not in name and "-a" not in name for name in names)
    assert (store.folder / names[1]).read_bytes() == (tmp_path / "0-a.wav").read_bytes()
    # The study stands alone.
    (tmp_path / "0-a.wav").unlink()
    assert StudyStore(store.folder).study == store.study


def test_annotators_have_links_and_orders_of_their_own(tmp_path: Path) -> None:
    store = make(tmp_path, "pair", pair_items(tmp_path, 8), "ann", "bob")
    ann, bob = store.annotators()
    assert (ann.name, bob.name) == ("ann", "bob")
    assert len(ann.token) >= 32
    assert store.order(ann) != store.order(bob)
    assert store.find(bob.token) == bob
    assert store.find("x") is None
    with pytest.raises(ConfigError, match="there already"):
        store.add_annotator("ann")
    with pytest.raises(ConfigError, match="letters"):
        store.add_annotator("../ann")


def test_a_click_sent_twice_counts_once_and_a_refused_one_leaves_no_trace(tmp_path: Path) -> None:
    store = make(tmp_path, "pair", pair_items(tmp_path, 1), "ann")
    for _ in range(2):
        state = store.add_click("ann", click(0, "play", "1", id="same"))
    assert state.item(0).plays == {"1": 1}
    with pytest.raises(ClickRefusedError, match="comes last"):
        store.add_click("ann", click(0, "choose", "overall", "1"))
    assert [one.id for one in store.clicks("ann")] == ["same"]


def test_two_annotators_on_one_item_do_not_touch_each_other(tmp_path: Path) -> None:
    store = make(tmp_path, "pair", pair_items(tmp_path, 1), "ann", "bob")
    answer_pair(store, "ann", 0, "1")
    # The same name of a click, from another page.
    store.add_click("bob", click(0, "play", "1", id=store.clicks("ann")[0].id))
    assert store.progress("ann").item(0).closed
    assert not store.progress("bob").item(0).closed
    assert store.progress("bob").item(0).plays == {"1": 1}


KILLED = """
import os, signal, sys
from pathlib import Path
from paras2s.studies.clicks import Click
from paras2s.studies.store import StudyStore
store = StudyStore(Path(sys.argv[1]))
for number in range(5):
    store.add_click("ann", Click(f"k{number}", 0, "play", "1"))
os.kill(os.getpid(), signal.SIGKILL)
"""


def test_clicks_of_a_killed_process_are_there(tmp_path: Path) -> None:
    store = make(tmp_path, "pair", pair_items(tmp_path, 1), "ann")
    done = subprocess.run([sys.executable, "-c", KILLED, str(store.folder)], env={**os.environ}, check=False, timeout=60)
    assert done.returncode == -signal.SIGKILL
    assert [one.id for one in store.clicks("ann")] == [f"k{number}" for number in range(5)]
    assert store.add_click("ann", click(0, "play", "1")).item(0).plays == {"1": 6}


@pytest.mark.skipif(os.geteuid() == 0, reason="root writes where nobody may")
def test_a_folder_that_cannot_be_written_is_read(tmp_path: Path) -> None:
    store = make(tmp_path, "pair", pair_items(tmp_path, 1), "ann")
    store.folder.chmod(0o555)
    try:
        assert [one.name for one in StudyStore(store.folder).annotators()] == ["ann"]
        with pytest.raises(StorageError, match="nothing was stored"):
            store.add_click("ann", click(0, "play", "1"))
    finally:
        store.folder.chmod(0o755)


def test_a_study_of_a_newer_version_and_a_damaged_one_are_named(tmp_path: Path) -> None:
    store = make(tmp_path, "pair", pair_items(tmp_path, 1))
    with sqlite3.connect(store.folder / "study.sqlite") as db:
        db.execute("UPDATE study SET version = 2")
    with pytest.raises(DataError, match="version 2"):
        StudyStore(store.folder)
    (tmp_path / "bad").mkdir()
    (tmp_path / "bad" / "study.sqlite").write_bytes(b"not a database" * 100)
    with pytest.raises(DataError, match="cannot be read"):
        StudyStore(tmp_path / "bad")
    with pytest.raises(DataError, match="no study"):
        StudyStore(tmp_path)


# --- making one ---


def test_items_of_a_file(tmp_path: Path) -> None:
    rows = [item.model_dump() for item in pair_items(tmp_path, 2)]
    path = tmp_path / "items.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    items, folder = read_items(path)
    assert (len(items), folder) == (2, tmp_path)
    path.write_text(json.dumps(rows[0]) + "\n" + json.dumps({**rows[1], "colour": "red"}) + "\n")
    with pytest.raises(DataError, match=r"items.jsonl:2: colour"):
        read_items(path)


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ({"gold": {"content": "3"}}, "gold: content"),
        ({"gold": {"colour": "1"}}, "gold: colour"),
        ({"answers": (Answer(system="ours", clip="0-a.wav"),)}, "has 1 answers"),
        ({"id": "i0"}, "occurs twice"),
    ],
)
def test_items_that_are_wrong(tmp_path: Path, change: dict[str, object], why: str) -> None:
    first, second = pair_items(tmp_path, 2)
    with pytest.raises(DataError, match=why):
        as_study("pair", "A study", 0, [first, second.model_copy(update=change)])


@pytest.mark.parametrize("clip", ["../outside.wav", "missing.wav", "0-a.txt"])
def test_a_clip_that_cannot_be_copied_leaves_no_study(tmp_path: Path, clip: str) -> None:
    tone(tmp_path / "outside.wav", 100)
    folder = tmp_path / "inside"
    items = pair_items(folder, 1)
    (folder / "0-a.txt").write_text("text")
    broken = StudyItem(id="x", answers=(Answer(system="ours", clip=clip), items[0].answers[1]))
    with pytest.raises(DataError):
        make(folder, "pair", [broken])
    assert not [path for path in folder.iterdir() if path.is_dir()]


def test_pairs_of_a_run_are_what_both_systems_answered(tmp_path: Path) -> None:
    items = items_of_run(bench_run(tmp_path), "pair", ["a", "b"], None, 0)
    assert [item.key for item in items] == [("q1-0", "a", "b"), ("q2-0", "a", "b")]
    assert items[0].answers[0].scores == {"rubric/1/x": 5.0, "other/1/y": 3.0}
    assert items[1].answers[1].scores == {"rubric/1/x": "no words"}
    assert items[0].cluster == "q1"
    # Written words would tell what a bad recording hides.
    assert items[0].question_text == ""


def test_single_answers_of_a_run_and_a_draw(tmp_path: Path) -> None:
    run = bench_run(tmp_path)
    assert len(items_of_run(run, "single", ["a", "b"], None, 0)) == 5
    drawn = items_of_run(run, "single", ["a", "b"], 2, 3)
    assert len(drawn) == 2
    assert drawn == items_of_run(run, "single", ["a", "b"], 2, 3)


@pytest.mark.parametrize(
    ("kind", "systems", "why"),
    [
        ("pair", ["a"], "two systems"),
        ("single", [], "at least one"),
        ("role_play", ["a"], "JSONL"),
        ("single", ["c"], "not benched"),
    ],
)
def test_systems_that_make_no_study(tmp_path: Path, kind: str, systems: list[str], why: str) -> None:
    with pytest.raises((ConfigError, DataError), match=why):
        items_of_run(bench_run(tmp_path), kind, systems, None, 0)  # type: ignore[arg-type]


def test_a_study_is_not_made_over_another(tmp_path: Path) -> None:
    make(tmp_path, "single", single_items(tmp_path, [1.0]))
    with pytest.raises(ConfigError, match="there already"):
        make(tmp_path, "single", single_items(tmp_path, [1.0]))
