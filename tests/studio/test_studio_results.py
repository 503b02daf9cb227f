"""Results of a study by hand-made answers, and its export as the benchmarks' own readers take it.

Not covered: studies so large that time matters.
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from tiny.studies import answer_pair, answer_single, click, make, pair_items, single_items, tone
from typer.testing import CliRunner

from paras2s.audio.asr import Transcript
from paras2s.bench.human_correlation import human_agreement, load_ratings
from paras2s.bench.paras2s.metrics import automatic_scores
from paras2s.bench.ranking.data import load_people
from paras2s.bench.results import AnswerRow
from paras2s.bench.speakbench.data import load_pairs, read_pair_audio
from paras2s.cli.app import app
from paras2s.data_gen.preference_file import read_preferences
from paras2s.reward.judges.base import Pair
from paras2s.studies.store import StudyStore
from paras2s.studio.annotation.export import export_study
from paras2s.studio.annotation.results import Results, results
from paras2s.types import Unscored
from paras2s.utils.io import read_json, read_jsonl


def pair_study(folder: Path) -> StudyStore:
    """Five pairs, of which the first is gold. Bob is right on the gold; ann and bob agree on items 1 and 2, part on 3."""
    store = make(folder, "pair", pair_items(folder, 5, gold=1), "ann", "bob", "eve")
    answer_pair(store, "ann", 0, "2")
    answer_pair(store, "bob", 0, "1")
    for name, labels in {"ann": ("1", "2", "both_good"), "bob": ("1", "2", "both_bad")}.items():
        for item, label in enumerate(labels, 1):
            answer_pair(store, name, item, label)
    store.add_click("ann", click(4, "skip", value="<b>silence</b>"))
    return store


def by_name(found: Results, name: str) -> object:
    return next(one for one in found.questions if one.name == name)


def test_annotators_and_gold(tmp_path: Path) -> None:
    found = results(pair_study(tmp_path))
    ann, bob, eve = found.annotators
    assert (ann.done, ann.skipped, ann.gold_right, ann.gold_given) == (4, 1, 0, 1)
    assert (bob.done, bob.skipped, bob.gold_right, bob.gold_given) == (4, 0, 1, 1)
    assert (eve.done, eve.gold_given, eve.median_time_s, eve.mean_plays) == (0, 0, None, None)
    assert found.skipped == (("i4 (ours and theirs)", "ann", "<b>silence</b>"),)


def test_agreement_leaves_gold_out(tmp_path: Path) -> None:
    """Two of three items agree. Coincidences: 1-1 and 2-2 twice each, good-bad and bad-good once; n = 6.

    Nominal alpha is 1 - (n - 1) 2 / (36 - (4 + 4 + 1 + 1)) = 1 - 10 / 26. Cohen: p_o = 2/3, p_e = 2/9; kappa = 4/7.
    """
    found = results(pair_study(tmp_path))
    for question in found.questions:
        assert question.observed.value == pytest.approx(2 / 3)
        assert question.alpha.value == pytest.approx(1 - 10 / 26)
        assert question.cohen["ann, bob"].value == pytest.approx(4 / 7)
        assert question.cohen["ann, bob"].n == 3
        assert question.split_half.value == pytest.approx(2 / 3)


def verdict_row(index: int, label: str) -> dict[str, object]:
    return {"index": index, "labels": {"content": label, "voice_quality": label, "paralinguistics": label}}


def test_a_judge_against_the_majority(tmp_path: Path) -> None:
    """Of items 1 to 3 two have a majority; the judge has the first right, and no verdict on the second."""
    store = pair_study(tmp_path)
    path = tmp_path / "verdicts.jsonl"
    rows = [verdict_row(1, "1"), {"index": 2, "unscored": "no reply"}, verdict_row(3, "2")]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    found = {one.question: one for one in results(store, {"mine": path}).judges}
    assert set(found) == {"content", "voice_quality", "paralinguistics", "overall"}
    content = found["content"]
    assert content.accuracy is not None
    assert (content.accuracy.value, content.accuracy.n, content.accuracy.n_asked) == (1.0, 1, 2)
    assert (content.n, content.unscored) == (2, 1)


def single_study(folder: Path) -> StudyStore:
    """Scores 1, 2, 5 and none by the judge; people's means of fitness 1, 2, 4."""
    store = make(folder, "single", single_items(folder, [1.0, 2.0, 5.0, "no words"]), "ann", "bob")
    for item, (ann, bob) in enumerate(((1, 1), (1, 3), (3, 5))):
        answer_single(store, "ann", item, 5, ann)
        answer_single(store, "bob", item, 5, bob)
    answer_single(store, "ann", 3, 5, 2)
    return store


def test_a_judges_scores_against_peoples_means(tmp_path: Path) -> None:
    found = results(single_study(tmp_path))
    (judge,) = found.judges
    assert (judge.judge, judge.question, judge.n, judge.unscored) == ("strict/1", "fitness", 3, 1)
    assert judge.pearson is not None
    assert judge.spearman is not None
    # Deviations -5/3, -2/3, 7/3 and -4/3, -1/3, 5/3 have the products 57/9 over roots of 78/9 and 42/9.
    assert judge.pearson.value == pytest.approx(57 / (78 * 42) ** 0.5)
    assert judge.spearman.value == pytest.approx(1.0)
    mos, fitness = found.questions
    assert mos.alpha.why_none == "all values are the same"
    assert fitness.fleiss is None
    # Ann 1, 1, 3 and bob 1, 3, 5.
    assert fitness.pearson["ann, bob"].value == pytest.approx(0.8660254)


def test_results_on_the_terminal_and_as_json(tmp_path: Path) -> None:
    store = pair_study(tmp_path)
    shown = CliRunner().invoke(app, ["study", "results", str(store.folder)])
    assert shown.exit_code == 0, shown.output
    assert "Krippendorff" in shown.output
    assert "<b>silence</b>" in shown.output
    found = json.loads(CliRunner().invoke(app, ["study", "results", str(store.folder), "--json"]).output)
    assert found["n_items"] == 5
    assert found["questions"][0]["observed"]["n"] == 3


# --- export ---


def test_pairs_are_read_by_speakbench_and_rank(tmp_path: Path) -> None:
    store = pair_study(tmp_path)
    summary = export_study(store, tmp_path / "out")
    pairs = load_pairs(tmp_path / "out" / "labels.json")
    assert [(pair.index, pair.label.overall, pair.instruction_id) for pair in pairs] == [(1, "1", "c0"), (2, "2", "c1")]
    assert summary["files"]["labels.json"] == 2
    assert summary["left_out"] == {
        "i3 ours theirs": "no majority on content, voice_quality, paralinguistics, overall",
        "i4 ours theirs": "no annotator has done it",
        "i4 ours theirs, ann": "skipped: <b>silence</b>",
    }
    audio = read_pair_audio(pairs[0], store.folder)
    assert isinstance(audio, Pair)
    assert audio.instruction.clip is not None
    # A win each.
    assert load_people(tmp_path / "out" / "labels.json", {}).scores == {"ours": 0.5, "theirs": 0.5}
    assert load_people(tmp_path / "out" / "system_scores.csv", {}).scores == {"ours": 0.5, "theirs": 0.5}


def test_the_verbs_take_the_export(tmp_path: Path) -> None:
    store = pair_study(tmp_path)
    out = tmp_path / "out"
    made = CliRunner().invoke(app, ["study", "export", str(store.folder), "--out", str(out), "--json"])
    assert made.exit_code == 0, made.output
    assert json.loads(made.output) == read_json(out / "export.json")
    compared = [
        "bench",
        "speakbench",
        "--labels",
        str(out / "labels-ann.json"),
        "--against",
        str(out / "labels-bob.json"),
        "--json",
    ]
    found = json.loads(CliRunner().invoke(app, compared).output)
    # Items 1 to 3, of which they agree on two; the gold item is none.
    assert found["four_way"]["value"] == pytest.approx(2 / 3)
    assert found["kappa"]["value"] == pytest.approx(4 / 7)
    verdicts = tmp_path / "verdicts.jsonl"
    verdicts.write_text("".join(json.dumps(verdict_row(index, "1")) + "\n" for index in (1, 2)))
    judged = ["bench", "speakbench", "--labels", str(out / "labels.json"), "--verdicts", str(verdicts), "--json"]
    shown = CliRunner().invoke(app, judged)
    assert shown.exit_code == 0, shown.output
    recorded = tmp_path / "recorded.csv"
    rows = [f"overall,{instruction},ours,theirs,1,2" for instruction in ("c0", "c1")]
    rows += [f"overall,{instruction},theirs,theirs,tie,tie" for instruction in ("c0", "c1")]
    recorded.write_text("aspect,instruction_id,system,reference,system_first,system_second\n" + "\n".join(rows) + "\n")
    for people in ("labels.json", "system_scores.csv"):
        ranked = CliRunner().invoke(app, ["rank", str(recorded), "--human", str(out / people), "--json"])
        assert ranked.exit_code == 0, ranked.output


def test_ratings_are_read_by_bench_paras2s(tmp_path: Path) -> None:
    """Raters' means 1, 2, 4 and 2 against the judge's 1, 2, 5 and none."""
    store = single_study(tmp_path)
    export_study(store, tmp_path / "out")
    ratings = load_ratings(tmp_path / "out" / "ratings.csv")
    assert len(ratings) == 7
    rows = [answer_row(number, score) for number, score in enumerate((1.0, 2.0, 5.0, None))]
    found = human_agreement(ratings, automatic_scores({"ours": rows}))
    assert found.groups["all"].pearson.value == pytest.approx(57 / (78 * 42) ** 0.5)
    assert [key.id for key in found.without_score] == ["i3"]
    assert isinstance(automatic_scores({"ours": rows})[next(iter(found.without_score))], Unscored)


def answer_row(number: int, score: float | None) -> AnswerRow:
    return AnswerRow(
        system="ours", query_id=f"i{number}", contrast_id=f"i{number}", category="emotion", style="", question_text="",
        question_clip="", answer_index=0, text_stream="", transcript=None, tone=None, tone_scores={}, score=score,
        unscored=None if score is not None else "no words", reason="", family=None, fitting=(score or 0) >= 4, answer_clip="",
        duration_s=1.0, word_error_rate=None, judge="strict/1", model_score=None,
    )  # fmt: skip


@pytest.fixture
def transcribed(monkeypatch: pytest.MonkeyPatch) -> None:
    """In place of ASR: a clip's words are the number of its samples."""
    monkeypatch.setattr("paras2s.audio.asr.transcribe", lambda clips: [Transcript(f"{len(one.samples)}") for one in clips])


@pytest.mark.usefixtures("transcribed")
def test_preferred_answers_of_pairs_become_rows(tmp_path: Path) -> None:
    """The majority prefers "ours" once and "theirs" once."""
    store, out = pair_study(tmp_path), tmp_path / "deep" / "out"
    assert export_study(store, out, preferences=True)["files"]["preferences.jsonl"] == 2
    rows, pairs = read_preferences(out / "preferences.jsonl"), load_pairs(out / "labels.json")
    for row, pair, better in zip(rows, pairs, (0, 1), strict=True):
        names = (pair.audio1_path, pair.audio2_path)
        assert [(out / answer.clip).resolve() for answer in row.answers] == [
            (store.folder / names[number]).resolve() for number in (better, 1 - better)
        ]
        assert (row.words, row.answers[0].text) == ("3200", "3200")


@pytest.mark.usefixtures("transcribed")
def test_clear_ratings_of_single_answers_become_labels(tmp_path: Path) -> None:
    """Fitness 5, 3 and 1; the last item has no clip of its question."""
    questions = [{"question": tone(tmp_path / "q.wav", 200), "question_text": "hello"}] * 3
    items = [one.model_copy(update=more) for one, more in zip(single_items(tmp_path, [1.0] * 4), [*questions, {}], strict=True)]
    store = make(tmp_path, "single", items, "ann")
    for item, fitness in enumerate((5, 3, 1, 5)):
        answer_single(store, "ann", item, 5, fitness)
    summary = export_study(store, tmp_path / "out", preferences=True)
    rows = read_preferences(tmp_path / "out" / "preferences.jsonl")
    assert [(row.words, row.answers[0].good) for row in rows] == [("hello", True), ("hello", False)]
    assert summary["left_out"] == {
        "preference of i1 ours": "rated between good and bad", "preference of i3 ours": "no clip of the question",
    }  # fmt: skip


def test_everything_stands_in_one_table(tmp_path: Path) -> None:
    store = pair_study(tmp_path)
    export_study(store, tmp_path / "out")
    rows = list(read_jsonl(tmp_path / "out" / "annotations.jsonl"))
    assert len(rows) == 9
    gold = [row for row in rows if row["is_gold"]]
    assert [(row["annotator"], row["values"]["content"]) for row in gold] == [("ann", "2"), ("bob", "1")]
    assert rows[0]["plays"] == {"1": 1, "2": 1}


def test_a_study_without_answers_exports_nothing_but_says_so(tmp_path: Path) -> None:
    store = make(tmp_path, "pair", pair_items(tmp_path, 1), "ann")
    summary = export_study(store, tmp_path / "out")
    assert summary["left_out"] == {"i0 ours theirs": "no annotator has done it"}
    assert not (tmp_path / "out" / "labels.json").exists()
    assert results(store).questions[0].observed.why_none == "no item has two annotators"


# --- the verbs that make one ---


def test_a_study_by_the_command(tmp_path: Path) -> None:
    path = tmp_path / "items.jsonl"
    path.write_text("".join(item.model_dump_json() + "\n" for item in pair_items(tmp_path, 2)))
    make_it = ["study", "new", str(path), "--kind", "pair", "--out", str(tmp_path / "new"), "--annotator", "ann", "--json"]
    made = json.loads(CliRunner().invoke(app, make_it).output)
    assert made["items"] == 2
    assert made["annotators"]["ann"].startswith("/annotate/")
    added = CliRunner().invoke(app, ["study", "annotators", str(tmp_path / "new"), "--add", "bob"])
    assert "bob: /annotate/" in added.output
    assert made["annotators"]["ann"] in added.output
    refused = CliRunner().invoke(app, [*make_it[:-1], "--system", "x"])
    assert "--system and --limit are for a run" in str(refused.exception)
