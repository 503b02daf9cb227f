"""Suites of one characteristic: loaders on small files in the released layouts, and statistics by hand.

Not covered: the releases themselves, which are not here; figures on the authors' recorded results stand in the README.
"""

import csv
import io
import json
import random

import pytest
from outside import LIBRISPEECH
from rich.console import Console

from paras2s.bench.detection.data import (
    SUITES,
    DetectPair,
    DetectRow,
    Loaded,
    RatedClip,
    draw_pairs,
    load_pairs,
    load_rows,
    matched,
    pair_up,
    read_pair_audio,
    row_of,
    row_of_scores,
)
from paras2s.bench.detection.report import accuracy, against, detection_report, mark, show_detection, squared_error, stars
from paras2s.errors import DataError
from paras2s.reward.judges.audio_judge.tasks import TASKS
from paras2s.reward.judges.base import Pair
from paras2s.types import Preference, Unscored, Verdict
from paras2s.utils.io import write_jsonl


def write_table(path, rows, separator=","):
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, list(rows[0]), delimiter=separator)
        writer.writeheader()
        writer.writerows(rows)
    return path


def a_row(**changes):
    return {"audio1_path": "a.wav", "audio2_path": "b.wav", "label": "1"} | changes


def a_pair(number=0, label="1", **more):
    return DetectPair(audio1_path=f"{number}/a.wav", audio2_path=f"{number}/b.wav", label=label, **more)


def a_verdict(number, label, truth="1", **more):
    pair = a_pair(number)
    said = {"unscored": "no reply"} if label is None else {"label": label}
    return DetectRow(id=pair.id, truth=truth, judge="scripted", **said, **more)


def shown(report):
    console = Console(file=io.StringIO(), width=200, markup=False)
    show_detection(console, report)
    return console.file.getvalue()


def score(value):
    return Verdict("scripted", "1", "p", value, "because", "reply", 0.5, 1.0)


# Suites.


def test_six_suites_ask_tasks_that_there_are():
    assert list(SUITES) == ["pronunciation", "speaking_rate", "speaker_identity", "somos", "tmhintq", "thaimos"]
    assert [suite.pairs for suite in SUITES.values()] == [200, 187, 200, 200, 200, 200]
    for suite in SUITES.values():
        assert TASKS[suite.task].kind == suite.kind
        assert suite.paper["random guess"] == 0.5
    assert [suite.paper["baseline, 0-shot"] for suite in SUITES.values()] == [0.46, 0.469, 0.615, 0.705, 0.705, 0.655]
    assert [suite.paper["people"] for suite in SUITES.values()] == [0.695, 0.778, 0.83, 0.71, 0.78, 0.775]


# Pairs.


def test_pairs_as_the_authors_prepare_them(tmp_path):
    entry = {"index": 1, "word": "Mac", "region": "US", "IPAs": ["/mak/"], "OED": None, "gpt4o_correct": "true"}
    rows = [
        entry
        | {"audio1_path": "1/x.wav", "audio2_path": "1/y.wav", "match": "true", "transcript1": "Mac", "transcript2": "Mac"},
        entry | {"audio1_path": "2/x.wav", "audio2_path": "2/y.wav", "match": "false", "transcript1": "a", "transcript2": "a"},
    ]
    (tmp_path / "pronunciation_dataset.json").write_text(json.dumps(rows))
    found = load_pairs(tmp_path / "pronunciation_dataset.json", SUITES["pronunciation"])
    assert [pair.label for pair in found.pairs] == ["same", "different"]
    assert found.pairs[0].transcript1 == "Mac"
    assert found.drawn_from is None


@pytest.mark.parametrize(
    ("suite", "keys"),
    [
        ("somos", ("mos_a", "mos_b")),
        ("tmhintq", ("human_quality_a", "human_quality_b")),
        ("thaimos", ("pronunciation_a", "pronunciation_b")),
        ("somos", ("groundtruth1", "groundtruth2")),
        ("somos", ("mos1", "mos2")),
    ],
)
def test_ratings_are_called_otherwise_in_each_release(tmp_path, suite, keys):
    path = tmp_path / "pairs.json"
    path.write_text(json.dumps([a_row(label=2, **dict(zip(keys, (2.5, 4.0), strict=True)))]))
    pair = load_pairs(path, SUITES[suite]).pairs[0]
    assert (pair.label, pair.mos1, pair.mos2) == ("2", 2.5, 4.0)


def test_a_csv_of_results_holds_the_pairs_as_well(tmp_path):
    row = {"audio1_path": "a", "audio2_path": "b", "ground_truth": "False", "prediction": "True", "reasoning": "two\nlines"}
    path = write_table(tmp_path / "results.csv", [row, row | {"audio1_path": "c", "ground_truth": "True"}])
    assert [pair.label for pair in load_pairs(path, SUITES["speaker_identity"]).pairs] == ["different", "same"]


BAD_PAIRS = [
    ("somos", [a_row(transcirpt1="x")], "pairs.csv:2: transcirpt1: unknown key"),
    ("somos", [a_row(label="tie")], "pairs.csv:2: label: 'tie' is not one of 1, 2"),
    ("somos", [a_row(label="same")], "pairs.csv:2: label: 'same'"),
    ("speaker_identity", [a_row(label="1")], "pairs.csv:2: label: '1' is not one of same, different"),
    ("somos", [a_row(), a_row()], "pairs.csv:3: audio1_path: the pair a.wav | b.wav occurs twice"),
    ("somos", [a_row(), a_row(audio1_path="b.wav", audio2_path="a.wav")], "pairs.csv:3: audio1_path: the pair b.wav | a.wav"),
    ("somos", [a_row(audio2_path="a.wav")], "pairs.csv:2: audio2_path: is audio1_path once more"),
    ("somos", [a_row(audio2_path="")], "pairs.csv:2: audio2_path: Field required"),
    ("somos", [a_row(label="")], "pairs.csv:2: label: Field required"),
    ("somos", [a_row(mos1="5.5", mos2="2")], "pairs.csv:2: mos1: Input should be less than or equal to 5"),
    ("somos", [a_row(mos1="nan", mos2="2")], "pairs.csv:2: mos1: "),
    ("somos", [a_row(mos1="2", mos2="4")], "pairs.csv:2: label: 1, but the ratings are 2 and 4"),
    ("somos", [a_row(mos1="4", mos_a="4")], "pairs.csv:2: mos_a: mos1 is given twice"),
    ("speaker_identity", [a_row(label="same", speaker1="7", speaker2="8")], "label: same, but the speakers are 7 and 8"),
    ("somos", [{"first": "a", "second": "b"}], "pairs.csv:1: no column audio1_path, nor the columns utteranceId, mean"),
]  # fmt: skip


@pytest.mark.parametrize(("suite", "rows", "message"), BAD_PAIRS)
def test_bad_pairs_are_named_with_file_line_and_key(tmp_path, suite, rows, message):
    with pytest.raises(DataError) as error:
        load_pairs(write_table(tmp_path / "pairs.csv", rows), SUITES[suite])
    assert message in str(error.value)


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("pairs.json", "{}", "pairs.json: expected a list"),
        ("pairs.json", "[]", "pairs.json: holds no pairs"),
        ("pairs.json", "[1]", "pairs.json: entry 0: expected an object"),
        ("pairs.json", '[{"audio1_path": "a"}]', "pairs.json: entry 0: audio2_path: Field required"),
        ("pairs.csv", "", "pairs.csv: is empty"),
        ("pairs.csv", "audio1_path,audio2_path,label\n", "pairs.csv: holds no pairs"),
        ("pairs.csv", "audio1_path,audio2_path,label\na,b\n", "pairs.csv:2: not as many values"),
        ("pairs.csv", "audio1_path,audio2_path,label\na,b,1,2\n", "pairs.csv:2: not as many values"),
        ("pairs.csv", "audio1_path,audio1_path,label\na,b,1\n", "pairs.csv:1: a column occurs twice"),
    ],
)
def test_bad_files_are_named(tmp_path, name, text, message):
    (tmp_path / name).write_text(text)
    with pytest.raises(DataError) as error:
        load_pairs(tmp_path / name, SUITES["speaking_rate"])
    assert message in str(error.value)


def test_a_file_that_is_no_text_and_a_seed_for_nothing(tmp_path):
    (tmp_path / "pairs.csv").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(DataError, match="cannot be read"):
        load_pairs(tmp_path / "pairs.csv", SUITES["somos"])
    with pytest.raises(DataError, match="leave the seed out"):
        load_pairs(write_table(tmp_path / "good.csv", [a_row()]), SUITES["somos"], seed=3)


# Clips.


def test_clips_are_read_and_what_is_missing_has_a_reason(tmp_path):
    first, second = (path.name for path in sorted(LIBRISPEECH.glob("*.flac"))[:2])
    named = DetectPair(audio1_path=first, audio2_path=second, label="1", transcript1="one", transcript2="two")
    read = read_pair_audio(named, LIBRISPEECH)
    assert isinstance(read, Pair)
    assert read.words == ("one", "two")
    assert (read.instruction.clip, read.instruction.text) == (None, None)
    half = read_pair_audio(named.model_copy(update={"transcript2": None}), LIBRISPEECH)
    assert isinstance(half, Pair)
    assert half.words is None
    missing = read_pair_audio(named.model_copy(update={"audio2_path": "none.wav"}), LIBRISPEECH)
    assert isinstance(missing, Unscored)
    assert "none.wav: no such file" in missing.reason


@pytest.mark.parametrize("name", ["../a.wav", "/etc/passwd"])
def test_a_path_that_leaves_the_folder_is_refused(tmp_path, name):
    with pytest.raises(DataError, match="leaves the audio folder"):
        read_pair_audio(DetectPair(audio1_path=name, audio2_path="b.wav", label="1"), tmp_path)


# Tables of ratings.


def test_somos_pairs_clips_of_one_sentence_that_differ_by_more_than_one(tmp_path):
    rows = [("LJ1_002.wav", 4.0), ("LJ1_007", 2.5), ("LJ1_110.wav", 3.0), ("LJ2_002.wav", 1.0), ("conv_0001_007.wav", 5.0)]
    path = write_table(tmp_path / "test_mos_list.txt", [{"utteranceId": name, "mean": mean} for name, mean in rows])
    found = load_pairs(path, SUITES["somos"])
    # 4.0 and 3.0 differ by 1.0, which is not more than that.
    assert (found.drawn_from, found.clips, len(found.pairs)) == (1, 5, 1)
    pair = found.pairs[0]
    assert {pair.audio1_path, pair.audio2_path} == {"LJ1_002.wav", "LJ1_007.wav"}
    assert pair.label == ("1" if pair.mos1 == 4.0 else "2")


def test_tmhintq_ratings_are_averaged_and_empty_ones_counted(tmp_path):
    def one(clip, quality):
        row = {"idx": 0, "method": "m", "uttr": 1, "snr": 0, "noise": "pink", "quality_score": quality}
        return row | {"intelligibility_score": 9, "file_name": clip}

    ratings = [("FCN_snr0_pink_TMHINT_b2_26_01", 2), ("FCN_snr0_pink_TMHINT_b2_26_01", 4), ("clean_TMHINT_b2_26_01", 5)]
    ratings += [("clean_TMHINT_g4_26_01", 1), ("KLT_snr5_pink_TMHINT_b2_26_01", "")]
    path = write_table(tmp_path / "raw_data.csv", [one(*rating) for rating in ratings])
    found = load_pairs(path, SUITES["tmhintq"])
    # The other speaker's clip of the same sentence has nobody to meet, and one clip has no rating.
    assert (found.drawn_from, found.clips, found.empty_ratings) == (1, 3, 1)
    pair = found.pairs[0]
    assert {pair.audio1_path: pair.mos1, pair.audio2_path: pair.mos2} == {
        "FCN_snr0_pink_TMHINT_b2_26_01.wav": 3.0,
        "clean_TMHINT_b2_26_01.wav": 5.0,
    }


def test_thaimos_goes_by_pronunciation(tmp_path):
    def one(system, pronunciation, sound):
        row = {"system": system, "file_id": 1, "file_name": "sentence_1.wav", "text": "คุณ", "sound_quality": sound}
        return row | {"silence": 3, "pronunciation": pronunciation, "worker_id": 1}

    path = write_table(tmp_path / "master.tsv", [one("gTTS", 2, 5), one("gTTS", 3, 5), one("cv", 4, 1)], "\t")
    pair = load_pairs(path, SUITES["thaimos"]).pairs[0]
    better = pair.audio1_path if pair.label == "1" else pair.audio2_path
    assert better == "cv/sentence_1.wav"
    assert (pair.transcript1, pair.transcript2) == ("คุณ", "คุณ")
    assert {pair.mos1, pair.mos2} == {2.5, 4.0}


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        ([{"utteranceId": "a_1", "mean": 3, "mood": 1}], "list.csv:1: mood: unknown column"),
        ([{"utteranceId": "a_1", "mean": 6}], "list.csv:2: mean: '6' is no number from 1.0 to 5.0"),
        ([{"utteranceId": "a_1", "mean": "good"}], "list.csv:2: mean: 'good'"),
        ([{"utteranceId": " ", "mean": 3}], "list.csv:2: utteranceId: a clip without a name"),
        ([{"utteranceId": "a_1", "mean": 3}, {"utteranceId": "a_2", "mean": 4}], "no two clips of one sentence differ by"),
    ],
)  # fmt: skip
def test_bad_ratings_are_named(tmp_path, rows, message):
    with pytest.raises(DataError) as error:
        load_pairs(write_table(tmp_path / "list.csv", rows), SUITES["somos"])
    assert message in str(error.value)


def test_a_draw_depends_on_the_seed_alone():
    clips = [RatedClip(f"s{number}_{take}.wav", f"s{number}", 1.0 + take, None) for number in range(60) for take in range(3)]
    shuffled = random.Random(1).sample(clips, len(clips))
    pool = pair_up(clips, 1.0)
    assert len(pool) == 60
    assert pool == pair_up(shuffled, 1.0)
    drawn = draw_pairs(pool, 40, 7)
    assert drawn == draw_pairs(pair_up(shuffled, 1.0), 40, 7)
    assert drawn != draw_pairs(pool, 40, 8)
    assert len({pair.id for pair in drawn}) == 40
    assert {pair.label for pair in drawn} == {"1", "2"}
    assert all((pair.mos1 > pair.mos2) == (pair.label == "1") for pair in drawn)
    assert len(draw_pairs(pool, 100, 7)) == 60


# Recorded verdicts.


def test_verdicts_come_back_as_they_were_written(tmp_path):
    preference = Preference("j", "1", "p", "clip_quality", "2", 0.0, ("2",), (0.0, 1.0), 0.7, None, "noisier", "reply")
    rows = [row_of(a_pair(0), preference), row_of(a_pair(1, "2"), Unscored("j", "said nothing", "hm"))]
    rows.append(row_of_scores(a_pair(2), score(3.0), score(2.0)))
    write_jsonl(tmp_path / "rows.jsonl", (row.model_dump() for row in rows))
    assert list(load_rows(tmp_path / "rows.jsonl", SUITES["somos"]).values()) == rows


@pytest.mark.parametrize(
    ("row", "message"),
    [
        ({"truth": "1", "label": "1"}, "rows.jsonl:1: id: Field required"),
        ({"id": "a", "truth": "1"}, "give either a label or the reason"),
        ({"id": "a", "truth": "1", "label": "1", "unscored": "x"}, "give either a label or the reason"),
        ({"id": "a", "truth": "1", "label": "same"}, "rows.jsonl:1: label: 'same' is not one of 1, 2"),
        ({"id": "a", "truth": "same", "label": "1"}, "rows.jsonl:1: truth: 'same' is not one of 1, 2"),
        ({"id": "a", "truth": "tie", "label": "1"}, "rows.jsonl:1: truth: 'tie'"),
        ({"id": "a", "truth": "1", "label": "1", "scores": [1.0]}, "rows.jsonl:1: scores"),
        ({"id": "a", "truth": "1", "label": "1", "mood": "x"}, "rows.jsonl:1: mood"),
    ],
)
def test_bad_verdicts_are_named(tmp_path, row, message):
    (tmp_path / "rows.jsonl").write_text(json.dumps(row) + "\n")
    with pytest.raises(DataError) as error:
        load_rows(tmp_path / "rows.jsonl", SUITES["somos"])
    assert message in str(error.value)


def test_a_pair_judged_twice_and_no_verdicts_at_all_are_refused(tmp_path):
    row = a_verdict(0, "1").model_dump_json() + "\n"
    (tmp_path / "rows.jsonl").write_text(row + row)
    with pytest.raises(DataError, match=r"rows.jsonl:2: id: .* is judged twice"):
        load_rows(tmp_path / "rows.jsonl", SUITES["somos"])
    (tmp_path / "rows.jsonl").write_text("")
    with pytest.raises(DataError, match="holds no verdicts"):
        load_rows(tmp_path / "rows.jsonl", SUITES["somos"])


def test_a_match_has_no_tie(tmp_path):
    row = {"id": "a", "truth": "same", "label": "tie"}
    (tmp_path / "rows.jsonl").write_text(json.dumps(row) + "\n")
    with pytest.raises(DataError, match="label: 'tie' is not one of same, different"):
        load_rows(tmp_path / "rows.jsonl", SUITES["pronunciation"])


def test_the_authors_results_are_verdicts_too(tmp_path):
    def one(number, truth, said, *scores):
        row = {"audio1_path": f"{number}/a.wav", "audio2_path": f"{number}/b.wav", "ground_truth": truth, "prediction": said}
        return row | dict(zip(("score1", "score2"), scores or ("", ""), strict=True)) | {"groundtruth1": "", "correct": "x"}

    rows = [one(0, 1, 1, 4, 3), one(1, 2, "tie", 4, 4), one(2, 1, "", 4, 4), one(3, 2, 2, 0, 5)]
    found = load_rows(write_table(tmp_path / "cot.csv", rows), SUITES["somos"])
    said = [(row.label, row.unscored, row.scores) for row in found.values()]
    assert said[:2] == [("1", None, (4.0, 3.0)), ("tie", None, (4.0, 4.0))]
    assert said[2][:2] == (None, "the file records no prediction")
    assert said[3][1] == "scores 0 and 5: one is not from 1 to 5"
    assert {row.judge for row in found.values()} == {"cot"}
    with pytest.raises(DataError, match=r"cot.csv:2: prediction: '3' is not one of 1, 2"):
        load_rows(write_table(tmp_path / "cot.csv", [one(0, 1, 3, 1, 1)]), SUITES["somos"])
    with pytest.raises(DataError, match="no column prediction"):
        load_rows(write_table(tmp_path / "cot.csv", [a_row(ground_truth="1")]), SUITES["somos"])


def test_verdicts_about_other_pairs_or_labels_are_refused():
    rows = {row.id: row for row in [a_verdict(0, "1")]}
    assert matched([a_pair(0), a_pair(1)], rows, "x")[1] is None
    with pytest.raises(DataError, match="no verdict on any of these pairs; its first one is 0/a"):
        matched([a_pair(5)], rows, "x")
    with pytest.raises(DataError, match="no verdict on any of these pairs, but 1 on them in the other order; its first"):
        matched([DetectPair(audio1_path="0/b.wav", audio2_path="0/a.wav", label="2")], rows, "x")
    with pytest.raises(DataError, match="people's label is 1 there, and 2 here"):
        matched([a_pair(0, "2")], rows, "x")


# Statistics.


def test_accuracy_by_hand_a_tie_is_half_and_an_unscored_pair_is_none():
    marks = [mark(a_verdict(n, label)) for n, label in enumerate(["1", "2", "tie", "1", None])] + [mark(None)]
    assert marks == [1.0, 0.0, 0.5, 1.0, None, None]
    found = accuracy(marks)
    assert found.value == pytest.approx(2.5 / 4)
    assert (found.n, found.n_asked) == (4, 6)
    assert 0 <= found.low < found.value < found.high <= 1


def test_accuracy_at_its_ends():
    right = accuracy([1.0] * 9)
    # Wilson's lower end at n of n: n / (n + 1.96 ** 2).
    assert (right.value, right.low, right.high) == (1.0, pytest.approx(9 / (9 + 3.8415), abs=1e-4), 1.0)
    wrong = accuracy([0.0] * 9)
    assert (wrong.value, wrong.low, wrong.high) == (0.0, 0.0, pytest.approx(3.8415 / (9 + 3.8415), abs=1e-4))
    none = accuracy([None, None])
    assert (none.value, none.low, none.high, none.n, none.n_asked) == (None, None, None, 0, 2)


def test_one_pair_alone_has_no_interval():
    found = accuracy([1.0, None])
    assert (found.value, found.low, found.high, found.n, found.n_asked) == (1.0, None, None, 1, 2)
    one = a_pair(0, "1", mos1=4.0, mos2=2.0)
    error = squared_error([one], [row_of_scores(one, score(5.0), score(2.0))])
    assert (error.value, error.low, error.high) == (0.5, None, None)
    text = shown(detection_report(SUITES["somos"], Loaded((one,)), {"x": {one.id: a_verdict(0, "1")}}))
    assert "no interval" in text


def test_majority_answers_and_place_stand_beside_every_figure():
    # People: 124 times 2, 76 times 1. The judge says 1 of 170 pairs, of which 76 are right, and 2 of 30.
    pairs = tuple(a_pair(n, "1" if n < 76 else "2") for n in range(200))
    rows = {pair.id: a_verdict(n, "1" if n < 170 else "2", pair.label) for n, pair in enumerate(pairs)}
    report = detection_report(SUITES["somos"], Loaded(pairs), {"x": rows})
    assert report["majority"] == {"label": "2", "accuracy": 0.62}
    found = report["judges"]["x"]
    assert (found["accuracy"]["value"], found["said"]) == (pytest.approx(0.53), {"1": 170, "2": 30})
    assert found["first"] == {"judge": 0.85, "people": 0.38, "n": 200}
    text = shown(report)
    for words in ("always 2 (majority)", "62.0", "1: 170, 2: 30", "85.0 (38.0)"):
        assert words in text
    matches = detection_report(
        SUITES["speaker_identity"], Loaded((pair := a_pair(0, "same"),)), {"x": {pair.id: a_verdict(0, "same", "same")}}
    )
    assert (matches["judges"]["x"]["first"], matches["judges"]["x"]["said"]) == (None, {"same": 1})


def test_the_interval_is_near_the_binomial_one():
    # 120 of 200: 0.6 with a standard error of sqrt(0.6 * 0.4 / 200) = 0.0346.
    found = accuracy([1.0] * 120 + [0.0] * 80)
    assert found.low == pytest.approx(0.6 - 1.96 * 0.0346, abs=0.01)
    assert found.high == pytest.approx(0.6 + 1.96 * 0.0346, abs=0.01)


@pytest.mark.parametrize(
    ("better", "worse", "p_value", "sign"),
    [
        (0, 0, 1.0, ""),
        (1, 1, 1.0, ""),
        (5, 0, 2 / 2**5, ""),
        (6, 0, 2 / 2**6, "*"),
        (8, 1, 2 * (1 + 9) / 2**9, "*"),
        (8, 0, 2 / 2**8, "**"),
        (11, 0, 2 / 2**11, "***"),
        (0, 11, 2 / 2**11, ""),
    ],
)
def test_mcnemar_by_hand(better, worse, p_value, sign):
    marks = [1.0] * better + [0.0] * worse + [1.0] * 7
    baseline = [0.0] * better + [1.0] * worse + [1.0] * 7
    found = against([*marks, None, 1.0], [*baseline, 1.0, None])
    assert (found.better, found.worse, found.test, found.stars) == (better, worse, "McNemar, exact", sign)
    assert found.p_value == pytest.approx(p_value)
    assert found.difference.value == pytest.approx((better - worse) / (better + worse + 7))
    assert (found.difference.n, found.difference.n_asked) == (better + worse + 7, better + worse + 9)


def test_with_ties_pairs_get_random_signs():
    found = against([1.0] * 30 + [0.5] * 10, [0.0] * 30 + [0.5] * 10)
    assert (found.test, found.better, found.worse, found.stars) == ("sign flips", 30, 0, "***")
    assert found.difference.value == pytest.approx(0.75)
    assert 0 < found.p_value < 0.001
    even = against([1.0, 0.0] * 10 + [0.5], [0.0, 1.0] * 10 + [0.5])
    assert even.p_value > 0.5
    assert even.stars == ""


@pytest.mark.parametrize(
    ("gains", "p_value", "sign"),
    [
        ([0.5], 1.0, ""),
        ([0.5, 0.5], 2 / 4, ""),
        ([0.5, 1.0, 0.5], 2 / 8, ""),
        # Of the sums of signed 2, 1, 1, -1 half-points four of sixteen are as far from 0 as 3: 5, 3 in three ways, and back.
        ([1.0, 0.5, 0.5, -0.5], 8 / 16, ""),
        ([0.5] * 6, 2 / 2**6, "*"),
        ([-0.5] * 6, 2 / 2**6, ""),
    ],
)
def test_sign_flips_by_hand(gains, p_value, sign):
    found = against([0.5 + gain if abs(gain) == 0.5 else 1.0 for gain in gains], [0.5 if abs(g) == 0.5 else 0.0 for g in gains])
    assert (found.test, found.stars) == ("sign flips", sign)
    assert found.p_value == pytest.approx(p_value, abs=0.015)


def test_judges_without_a_common_pair_are_not_tested():
    found = against([1.0, None, 0.5], [None, 1.0, None])
    assert (found.p_value, found.test, found.stars, found.why_none) == (None, None, "", "no pair has a verdict of both judges")
    assert (found.difference.value, found.difference.n, found.difference.n_asked) == (None, 0, 3)
    pairs = (a_pair(0), a_pair(1))
    judges = {name: {pairs[n].id: a_verdict(n, "1")} for n, name in enumerate(("base", "other"))}
    report = detection_report(SUITES["somos"], Loaded(pairs), judges)
    assert report["judges"]["other"]["against_baseline"]["p_value"] is None
    assert "other: not tested: no pair has a verdict of both judges" in shown(report)


def test_verdicts_on_other_pairs_or_in_the_other_order_are_counted():
    exchanged = DetectPair(audio1_path="1/b.wav", audio2_path="1/a.wav", label="2")
    verdicts = [a_verdict(0, "1"), DetectRow(id=exchanged.id, truth="2", label="2"), a_verdict(7, "1"), a_verdict(8, None)]
    rows = {row.id: row for row in verdicts}
    report = detection_report(SUITES["somos"], Loaded((a_pair(0), a_pair(1), a_pair(2))), {"x": rows})
    found = report["judges"]["x"]
    assert found["unscored"] == {"a verdict recorded in the other order alone": 1, "no verdict recorded": 1}
    assert (found["accuracy"]["n"], found["other_pairs"]) == (1, 3)
    assert "x: 3 verdicts unused: on pairs that are not asked here, or not in this order" in shown(report)
    full = detection_report(SUITES["somos"], Loaded((a_pair(0),)), {"x": {a_pair(0).id: a_verdict(0, "1")}})
    assert full["judges"]["x"]["other_pairs"] == 0
    assert "unused" not in shown(full)


def test_sign_flips_agree_with_mcnemar_where_both_apply():
    marks, baseline = [1.0] * 40 + [0.0] * 20 + [1.0] * 40, [0.0] * 40 + [1.0] * 20 + [1.0] * 40
    exact = against(marks, baseline)
    resampled = against([*marks, 0.5], [*baseline, 0.5])
    assert resampled.test != exact.test
    assert resampled.p_value == pytest.approx(exact.p_value, abs=0.01)


def test_stars_are_for_judges_above_the_baseline():
    assert [stars(p, 0.1) for p in (0.05, 0.049, 0.01, 0.009, 0.001, 0.0009)] == ["", "*", "*", "**", "**", "***"]
    assert stars(0.0001, -0.1) == ""
    assert stars(0.0001, None) == ""


def test_scores_become_preferences_and_their_error_is_by_hand():
    pairs = [
        a_pair(0, "1", mos1=4.0, mos2=2.0),
        a_pair(1, "2", mos1=1.0, mos2=3.0),
        a_pair(2, "1"),
        a_pair(3, "2", mos1=1, mos2=5),
    ]
    rows = [
        row_of_scores(pairs[0], score(5.0), score(2.0)),
        row_of_scores(pairs[1], score(3.0), score(3.0)),
        row_of_scores(pairs[2], score(1.0), score(2.0)),
        row_of_scores(pairs[3], score(1.0), Unscored("scripted", "no score")),
    ]
    assert [row.label for row in rows] == ["1", "tie", "2", None]
    assert [mark(row) for row in rows] == [1.0, 0.5, 0.0, None]
    assert rows[0].cost_usd == 1.0
    # (1 + 0) + (4 + 0) over four clips: the third pair has no ratings, the fourth no scores.
    found = squared_error(pairs, rows)
    assert found.value == pytest.approx(5 / 4)
    assert (found.n, found.n_asked) == (2, 4)
    assert squared_error(pairs, [None] * 4) is None


def test_a_shuffled_file_gives_the_same_figures():
    rng = random.Random(0)
    pairs = [a_pair(number, rng.choice("12")) for number in range(60)]
    judges = {
        name: {
            pair.id: DetectRow(id=pair.id, truth=pair.label, label=rng.choice(["1", "2", "tie"]))
            for pair in pairs[: 60 - skipped]
        }
        for name, skipped in (("base", 0), ("other", 5))
    }
    report = detection_report(SUITES["somos"], Loaded(tuple(pairs)), judges)
    shuffled = tuple(rng.sample(pairs, len(pairs)))
    turned = {name: dict(rng.sample(list(rows.items()), len(rows))) for name, rows in judges.items()}
    assert detection_report(SUITES["somos"], Loaded(shuffled), turned) == report
    assert report["judges"]["other"]["unscored"] == {"no verdict recorded": 5}
    assert report["judges"]["base"]["against_baseline"] is None
    assert report["judges"]["other"]["against_baseline"]["test"] == "sign flips"
