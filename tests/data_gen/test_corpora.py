"""Four corpora in small folders of their published form, counted by hand, and StyleTalk's real tables.

Not covered: the real files of IEMOCAP and MELD, which are not here, and what their clips sound like.
"""

from __future__ import annotations

import csv
import json
import shlex
from collections import Counter, defaultdict
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import soundfile
from outside import STYLETALK

from paras2s.audio.clip import read_clip
from paras2s.configs.schema.curation import CurationConfig
from paras2s.data_gen.corpora import (
    CORPORA,
    DAILYTALK_SPLITS,
    MELD_COLUMNS,
    CorpusTurn,
    LeftOut,
    load_dailytalk,
    load_iemocap,
    load_meld,
    load_styletalk,
)
from paras2s.data_gen.curation.pipeline import Pipeline, script_of_turn
from paras2s.errors import DataError
from paras2s.types import PastTurn, Query
from paras2s.utils.seeds import seed_of


def clip(path: Path, duration_s: float = 0.1, level: float = 0.1) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    samples = level * np.sin(np.arange(int(8_000 * duration_s)))
    soundfile.write(path, samples, 8_000, format=path.suffix[1:].upper())
    return path


def write(path: Path, text: str | bytes) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    return path


def reasons(left: list[LeftOut]) -> dict[str, str]:
    assert len({one.id for one in left}) == len(left)
    return {one.id: one.reason for one in left}


def test_every_corpus_has_its_loader() -> None:
    loaders = {"iemocap": load_iemocap, "meld": load_meld, "styletalk": load_styletalk, "dailytalk": load_dailytalk}
    assert loaders == CORPORA


@pytest.mark.parametrize("name", sorted(CORPORA))
def test_a_wrong_folder_is_refused_with_the_expected_layout(name: str, tmp_path: Path) -> None:
    for root in (tmp_path, tmp_path / "missing"):
        with pytest.raises(DataError, match="expected") as caught:
            CORPORA[name](root)
        assert str(root) in str(caught.value)


# DailyTalk


def dailytalk(root: Path) -> Path:
    """Two dialogues of four turns, in one of which a turn has no sound; and one that lacks its second turn."""
    labels = ("happiness", "no emotion", "anger", "surprise")
    metadata: dict[str, dict[str, dict[str, str]]] = {}
    for dialogue, silent in (("0", None), ("7", 2), ("12", None)):
        metadata[dialogue] = {str(number): {"emotion": label} for number, label in enumerate(labels)}
        for number in range(4):
            stem = root / "data" / dialogue / f"{number}_{number % 2}_d{dialogue}"
            clip(stem.with_suffix(".wav"), level=0.0 if number == silent else 0.1)
            words = "No." if number == 3 else f"turn {number} of dialogue {dialogue}\n"
            write(stem.with_suffix(".txt"), words)
    (root / "data/12/1_1_d12.wav").unlink()
    write(root / "metadata.json", json.dumps(metadata))
    return root


def test_dailytalk_gives_turns_behind_their_dialogue(tmp_path: Path) -> None:
    turns, left = load_dailytalk(dailytalk(tmp_path))
    sounds = [str(tmp_path / f"data/0/{number}_{number % 2}_d0.wav") for number in range(3)]
    split = turns[0].split
    assert turns[:2] == [
        CorpusTurn("d0_t0", "dailytalk", split, "turn 0 of dialogue 0", "happy", "dailytalk:0", "d0", Path(sounds[0])),
        CorpusTurn(
            "d0_t2", "dailytalk", split, "turn 2 of dialogue 0", "angry", "dailytalk:0", "d0", Path(sounds[2]),
            history=(
                PastTurn("user", "turn 0 of dialogue 0", sounds[0]), PastTurn("assistant", "turn 1 of dialogue 0", sounds[1])
            ),
        ),
    ]  # fmt: skip
    assert [turn.id for turn in turns] == ["d0_t0", "d0_t2", "d7_t0"]
    missing = reasons(left)
    assert missing["d12"] == "a turn is missing"
    assert missing["d0_t1"].startswith("label 'no emotion' is not one of happiness")
    assert missing["d0_t3"] == "1 words, fewer than 5"
    assert missing["d7_t2"].startswith("clip is silent: ")
    # Behind the silent clip, too.
    full = reasons(load_dailytalk(tmp_path, 1)[1])
    assert full["d7_t3"] == full["d7_t2"]


def test_dailytalk_splits_by_dialogue() -> None:
    splits = Counter(DAILYTALK_SPLITS[seed_of("dailytalk", str(number)) % 10] for number in range(2541))
    assert splits["test"] > 200
    assert splits["validation"] > 200
    assert splits["train"] > 1900


def test_the_turns_before_a_corpus_turn_become_the_history_of_its_query(tmp_path: Path) -> None:
    turn = load_dailytalk(dailytalk(tmp_path / "corpus"))[0][1]
    script = script_of_turn(turn)
    pipeline = Pipeline.__new__(Pipeline)
    pipeline.config = CurationConfig.model_validate({"kind": "curation", "name": "x", "folder": str(tmp_path / "out")})
    pipeline.histories = {script.id: turn.history[-1:]}
    query = Query("rl-1", "", None, None, "rl", "", "queries/rl-1.wav", 0.1, "turn 2", None, None)
    behind = pipeline._with_history(query, script)
    assert behind.history == (PastTurn("assistant", "turn 1 of dialogue 0", "queries/rl-1-0.wav"),)
    assert read_clip(tmp_path / "out/queries/rl-1-0.wav").duration_s == pytest.approx(0.1)
    assert pipeline._with_history(query, replace(script, id="other")) == query


# IEMOCAP

LABELS = """% [START_TIME - END_TIME] TURN_NAME EMOTION [V, A, D]

[6.2901 - 8.2357]\tSes01F_impro01_F000\thap\t[2.5000, 2.5000, 2.5000]
C-E2:\tHappiness;\t()
A-E3:\tval 3; act 2; dom  2;\t(calm)
C-F1:\tExcited;\t(said [quietly])

[10.0 - 12.0]\tSes01F_impro01_M000\tang\t[1.5000, 4.0000, 4.5000]
[13.0 - 14.0]\tSes01F_impro01_F001\tneu\t[2.5000, 2.5000, 2.5000]
[15.0 - 16.0]\tSes01F_impro01_F002\texc\t[2.5000, 2.5000, 2.5000]
[17.0 - 18.0]\tSes01F_impro01_F003\txxx\t[2.5000, 2.5000, 2.5000]
[19.0 - 20.0]\tSes01F_impro01_M001\tsad\t[2.5000, 2.5000, 2.5000]
[21.0 - 22.0]\tSes01F_impro01_M002\tsur\t[2.5000, 2.5000, 2.5000]
[23.0 - 24.0]\tSes01F_impro01_M003\tfea\t[2.5000, 2.5000, 2.5000]
[25.0 - 26.0]\tSes01F_impro01_M004\tdis\t[2.5000, 2.5000, 2.5000]
[27.0 - 28.0]\tSes01F_impro01_M005\tdis\t[2.5000, 2.5000, 2.5000]
[29.0 - 30.0]\tSes01F_impro01_M006\tfea\t[2.5000, 2.5000, 2.5000]
"""
# A line without a name, one without times, one of a turn that nobody labelled; Windows' apostrophe, a dash that is no word.
WORDS = b"""Ses01F_impro01_F000 [006.2901-008.2357]: I don\x92t - [LAUGHTER] believe it at all\x85
M: Yeah.
Ses01F_impro01_M000: Where are all your forms, madam?
Ses01F_impro01_F001 [013.0000-014.0000]: One two three four five six.
Ses01F_impro01_F002 [015.0000-016.0000]: We are going to be married!
Ses01F_impro01_F003 [017.0000-018.0000]: One two three four five six.
Ses01F_impro01_M001 [019.0000-020.0000]: [BREATHING] Oh - no, not again. [LAUGHTER]
Ses01F_impro01_MXX0 [020.0000-020.5000]: Well.
Ses01F_impro01_M002 [021.0000-022.0000]: This clip is not on disk.
Ses01F_impro01_M003 [023.0000-024.0000]: This clip is a folder somehow.
Ses01F_impro01_M004 [025.0000-026.0000]: This clip holds no sound at all.
Ses01F_impro01_M005 [027.0000-028.0000]: This clip is no audio file.
"""
NAME = "Ses01F_impro01"


def dialogue(root: Path, name: str, labels: str | bytes, words: str | bytes) -> None:
    session = root / f"Session{int(name[3:5])}"
    write(session / f"dialog/EmoEvaluation/{name}.txt", labels)
    write(session / f"dialog/transcriptions/{name}.txt", words)


def wav(root: Path, turn: str) -> Path:
    name = turn.rsplit("_", 1)[0]
    return root / f"Session{int(name[3:5])}" / "sentences/wav" / name / f"{turn}.wav"


@pytest.fixture
def iemocap(tmp_path: Path) -> Path:
    """Sessions 1 and 5, one dialogue each; the actor who does not wear the markers speaks in both."""
    root = tmp_path / "IEMOCAP_full_release"
    dialogue(root, NAME, LABELS, WORDS)
    dialogue(
        root,
        "Ses05M_script01_1b",
        "[1.0 - 2.0]\tSes05M_script01_1b_FXX0\tsad\t[2.5, 2.5, 2.5]\r\n",
        "Ses05M_script01_1b_FXX0 [001.0000-002.0000]: Where are all your forms, madam?\r\n",
    )
    for turn in ("F000", "M000", "F001", "F002", "F003", "M001"):
        clip(wav(root, f"{NAME}_{turn}"))
    clip(wav(root, "Ses05M_script01_1b_FXX0"))
    wav(root, f"{NAME}_M003").mkdir()
    clip(wav(root, f"{NAME}_M004"), level=0.0)
    write(wav(root, f"{NAME}_M005"), b"RIFF, or not")
    # As archives made on a Mac have them, and one rater's own labels: none of these is read.
    write(root / f"Session1/dialog/EmoEvaluation/._{NAME}.txt", b"\x00\x05\x16\x07\n[\xff]\n")
    write(root / f"Session1/dialog/transcriptions/._{NAME}.txt", b"\x00\x05\x16\x07Ses01F_impro01_F000\xff")
    write(root / f"Session1/dialog/EmoEvaluation/Categorical/{NAME}_e2_cat.txt", f"{NAME}_F000 :Neutral state; ()")
    return root


def test_iemocap_turns(iemocap: Path) -> None:
    turns, _ = load_iemocap(iemocap)
    first, second, other = f"{NAME}_F000", f"{NAME}_M000", "Ses05M_script01_1b_FXX0"
    words = "Where are all your forms, madam?"
    assert turns == [
        CorpusTurn(first, "iemocap", "test", "I don't - believe it at all…", "happy", "ses01_F", NAME, wav(iemocap, first)),
        CorpusTurn(second, "iemocap", "test", words, "angry", "ses01_M", NAME, wav(iemocap, second)),
        CorpusTurn(other, "iemocap", "train", words, "sad", "ses05_F", "Ses05M_script01_1b", wav(iemocap, other)),
    ]


def test_iemocap_says_why_each_of_the_others_is_none(iemocap: Path) -> None:
    found = reasons(load_iemocap(iemocap)[1])
    expected = {
        "Session2": "no label files in ",
        "Session3": "no label files in ",
        "Session4": "no label files in ",
        f"{NAME}_line2": "a transcribed line without a turn's name",
        f"{NAME}_MXX0": "transcribed, but without a label",
        f"{NAME}_F001": "label 'neu' is not one of hap, sur, sad, ang, fea, dis",
        f"{NAME}_F002": "label 'exc' is not one of ",
        f"{NAME}_F003": "label 'xxx' is not one of ",
        f"{NAME}_M001": "4 words, fewer than 5",
        f"{NAME}_M002": "clip missing: ",
        f"{NAME}_M003": "clip is not a file: ",
        f"{NAME}_M004": "clip is silent: ",
        f"{NAME}_M005": "clip cannot be used: ",
        f"{NAME}_M006": "labelled, but without a transcription",
    }
    assert found.keys() == expected.keys()
    for name, reason in expected.items():
        assert found[name].startswith(reason), name


def test_iemocap_of_excited_and_of_four_words_on_request(iemocap: Path) -> None:
    happy = {turn.id for turn in load_iemocap(iemocap, excited_is_happy=True)[0] if turn.style == "happy"}
    assert happy == {f"{NAME}_F000", f"{NAME}_F002"}
    assert next(turn.text for turn in load_iemocap(iemocap, 4)[0] if turn.style == "sad") == "Oh - no, not again."


def test_iemocap_splits_are_sessions(tmp_path: Path) -> None:
    for session in range(1, 6):
        for letter in "FM":
            name = f"Ses0{session}{letter}_impro01"
            turns = [f"{name}_F000", f"{name}_M000"]
            dialogue(
                tmp_path,
                name,
                "".join(f"[1.0 - 2.0]\t{turn}\tsur\t[2.5, 2.5, 2.5]\n" for turn in turns),
                "".join(f"{turn} [001.0-002.0]: One two three four five.\n" for turn in turns),
            )
            for turn in turns:
                clip(wav(tmp_path, turn))
    turns, left = load_iemocap(tmp_path)
    assert left == []
    assert Counter(turn.split for turn in turns) == {"test": 8, "train": 12}
    speakers, dialogues = defaultdict(set), defaultdict(set)
    for turn in turns:
        speakers[turn.split].add(turn.speaker)
        dialogues[turn.split].add(turn.dialogue)
    assert speakers["test"] == {"ses01_F", "ses01_M", "ses02_F", "ses02_M"}
    assert len(speakers["train"]) == 6
    assert not speakers["test"] & speakers["train"]
    assert not dialogues["test"] & dialogues["train"]


LABEL = "[1.0 - 2.0]\tSes01F_impro01_F000\thap\t[2.5, 2.5, 2.5]\n"
SAID = "Ses01F_impro01_F000 [001.0-002.0]: One two three four five.\n"


@pytest.mark.parametrize(
    ("labels", "words", "place", "message"),
    [
        (LABEL + "[1.0 - 2.0]\tSes01F_impro01_F001\thap", SAID, "EmoEvaluation/Ses01F_impro01.txt:2", "not of the form"),
        (LABEL + "\n[1.0 - 2.0]\tF001\thap\t[1, 1, 1]", SAID, "EmoEvaluation/Ses01F_impro01.txt:3", "not of the form"),
        ("Ses01F_impro01_F000\thap\n", SAID, "EmoEvaluation/Ses01F_impro01.txt:1", "not of the form"),
        (LABEL + LABEL, SAID, "EmoEvaluation/Ses01F_impro01.txt:2", "labelled more than once"),
        (LABEL, SAID + "Ses01F_impro01_F001 and no colon", "transcriptions/Ses01F_impro01.txt:2", "not of the form"),
        (LABEL, SAID + "Ses01F_impro01: Words.", "transcriptions/Ses01F_impro01.txt:2", "not of the form"),
        (LABEL, SAID + SAID.replace("five", "six"), "transcriptions/Ses01F_impro01.txt:2", "transcribed more than once"),
        (LABEL, b"\xff\xfeS\x00e\x00s\x00", "", "no transcriptions of IEMOCAP"),
    ],
)
def test_iemocap_broken_lines_are_named(labels: str, words: str | bytes, place: str, message: str, tmp_path: Path) -> None:
    dialogue(tmp_path, NAME, labels, words)
    clip(wav(tmp_path, f"{NAME}_F000"))
    with pytest.raises(DataError, match=message) as caught:
        load_iemocap(tmp_path)
    assert place in str(caught.value)


def test_iemocap_the_same_words_twice_are_one_turn(tmp_path: Path) -> None:
    dialogue(tmp_path, NAME, LABEL, SAID + SAID)
    clip(wav(tmp_path, f"{NAME}_F000"))
    assert len(load_iemocap(tmp_path)[0]) == 1


def test_iemocap_labels_alone_are_no_corpus(tmp_path: Path) -> None:
    write(tmp_path / f"Session1/dialog/EmoEvaluation/{NAME}.txt", LABEL)
    with pytest.raises(DataError, match=r"no transcriptions of IEMOCAP; expected .*transcriptions/Ses01F_impro01\.txt"):
        load_iemocap(tmp_path)


def test_iemocap_without_any_clip_is_refused(tmp_path: Path) -> None:
    dialogue(tmp_path, NAME, LABEL, SAID)
    with pytest.raises(DataError, match=r"not one of 1 clips .*Ses01F_impro01_F000: clip missing"):
        load_iemocap(tmp_path)


# MELD

COLUMNS = [
    *("Sr No.", "Utterance", "Speaker", "Emotion", "Sentiment", "Dialogue_ID", "Utterance_ID"),
    *("Season", "Episode", "StartTime", "EndTime"),
]


def meld_row(text: str, speaker: str, emotion: str, dia: int | str, utt: int | str) -> list[str]:
    return ["1", text, speaker, emotion, "any", str(dia), str(utt), "4", "7", "00:20:57,256", "00:21:00,049"]


def table(path: Path, columns: list[str], rows: list[list[str]], encoding: str = "utf-8") -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w", encoding=encoding, newline="") as file:
        csv.writer(file).writerows([columns, *rows])
    return path


FIVE = "One two three four five."


@pytest.fixture
def meld(tmp_path: Path) -> Path:
    """Three tables that all begin with dialogue 0, each encoded in another way, and clips in each of the places."""
    root = tmp_path / "MELD.Raw"
    train = [
        meld_row("I\x92m so, \x93so\x94 happy\x85 for\xa0you!", "Joey", "joy", 0, 0),
        meld_row(FIVE, "Joey", "neutral", 0, 1),
        meld_row("That's a big bar. (She's holding one of those huge", "Ross", "surprise", 0, 2),
        meld_row(FIVE, "Ross", "anger", 10, 11),
        meld_row(FIVE, " ", "anger", 10, 12),
        meld_row(FIVE, "Ross", "Sadness ", 10, 13),
        meld_row("Line one\nand line two.", "Ross", "fear", 10, 14),
    ]
    table(root / "train/train_sent_emo.csv", COLUMNS, train)
    table(root / "dev_sent_emo.csv", COLUMNS, [meld_row("Oh, he’s lost it – totally.", "Phoebe", "disgust", 0, 0)], "cp1252")
    test = [meld_row("[flicks him] " + FIVE, "Monica", "fear", 0, utterance) for utterance in range(4)]
    table(root / "test_sent_emo.csv", COLUMNS, [*test, meld_row(FIVE, "Monica", "fear", 220, 0)], "utf-8-sig")
    clip(root / "train_splits/dia0_utt0.wav")
    write(root / "train/train_splits/dia10_utt11.mp4", b"video")
    clip(root / "train/train_splits/dia10_utt14.flac")
    clip(root / "dev_splits_complete/dia0_utt0.flac")
    clip(root / "audio/test/dia0_utt0.wav")
    clip(root / "audio/test/dia0_utt1.wav")
    clip(root / "output_repeated_splits_test/final_videos_testdia0_utt1.wav")
    write(root / "output_repeated_splits_test/dia0_utt2.mp4", b"the wrong scene")
    write(root / "output_repeated_splits_test/final_videos_testdia0_utt2.mp4", b"the right one")
    (root / "audio/test/dia0_utt3.wav").mkdir()
    clip(root / "audio/test/dia220_utt0.wav", duration_s=121.0)
    return root


def test_meld_turns(meld: Path) -> None:
    def turn(name: str, split: str, text: str, style: str, speaker: str, path: str) -> CorpusTurn:
        return CorpusTurn(name, "meld", split, text, style, speaker, name.rsplit("_", 1)[0], meld / path)

    final = "output_repeated_splits_test/final_videos_testdia0_utt1.wav"
    assert load_meld(meld)[0] == [
        turn("train_dia0_utt0", "train", "I'm so, \"so\" happy… for you!", "happy", "Joey", "train_splits/dia0_utt0.wav"),
        turn("train_dia10_utt14", "train", "Line one and line two.", "fear", "Ross", "train/train_splits/dia10_utt14.flac"),
        turn("dev_dia0_utt0", "validation", "Oh, he's lost it – totally.", "disgust", "Phoebe",
             "dev_splits_complete/dia0_utt0.flac"),
        turn("test_dia0_utt0", "test", FIVE, "fear", "Monica", "audio/test/dia0_utt0.wav"),
        turn("test_dia0_utt1", "test", FIVE, "fear", "Monica", final),
    ]  # fmt: skip


def test_meld_says_why_each_of_the_others_is_none(meld: Path) -> None:
    found = reasons(load_meld(meld)[1])
    expected = {
        "train_dia0_utt1": "label 'neutral' is not one of joy, surprise, sadness, anger, fear, disgust",
        "train_dia0_utt2": "4 words, fewer than 5",
        "train_dia10_utt11": "only a video, which is not decoded here; run: ffmpeg -i ",
        "train_dia10_utt12": "no speaker",
        "train_dia10_utt13": "clip missing: no dia10_utt13.wav, .flac or .mp4 in ",
        "test_dia0_utt2": "only a video, which is not decoded here; run: ffmpeg -i ",
        "test_dia0_utt3": "clip is not a file: ",
        "test_dia220_utt0": "clip cannot be used: ",
    }
    assert found.keys() == expected.keys()
    for name, reason in expected.items():
        assert found[name].startswith(reason), name
    assert "121 s is too long" in found["test_dia220_utt0"]


def test_meld_the_command_makes_the_clip_that_is_then_found(meld: Path) -> None:
    """The test's mended video goes to the plain name, since the other one is of another scene."""
    command = shlex.split(reasons(load_meld(meld)[1])["test_dia0_utt2"].split("run: ")[1])
    folder = meld / "output_repeated_splits_test"
    assert command == [
        *("ffmpeg", "-i", str(folder / "final_videos_testdia0_utt2.mp4"), "-vn", "-ac", "1", str(folder / "dia0_utt2.wav"))
    ]
    clip(Path(command[-1]))
    assert "test_dia0_utt2" in {turn.id for turn in load_meld(meld)[0]}


def test_meld_one_table_is_enough_and_the_others_are_named(meld: Path) -> None:
    (meld / "train/train_sent_emo.csv").unlink()
    (meld / "dev_sent_emo.csv").unlink()
    turns, left = load_meld(meld)
    assert {turn.split for turn in turns} == {"test"}
    assert [one.id for one in left[:2]] == ["train_sent_emo.csv", "dev_sent_emo.csv"]
    (meld / "test_sent_emo.csv").unlink()
    with pytest.raises(DataError, match="no table of MELD"):
        load_meld(meld)


@pytest.mark.parametrize(
    ("row", "message"),
    [
        (meld_row(FIVE, "Joey", "joy", "0.5", 1), r"csv:3: Dialogue_ID and Utterance_ID must be whole numbers"),
        (meld_row(FIVE, "Joey", "joy", "..", 1), r"csv:3: Dialogue_ID and Utterance_ID must be whole numbers"),
        (meld_row(FIVE, "Joey", "joy", 0, 0), r"csv:3: dia0_utt0 occurs more than once"),
        (meld_row(FIVE, "Joey", "joy", 0, 1)[:-1], r"csv:3: expected 11 cells"),
        ([*meld_row(FIVE, "Joey", "joy", 0, 1), "more"], r"csv:3: expected 11 cells"),
    ],
)
def test_meld_broken_rows_are_named(row: list[str], message: str, tmp_path: Path) -> None:
    table(tmp_path / "dev_sent_emo.csv", COLUMNS, [meld_row(FIVE, "Joey", "joy", 0, 0), row])
    clip(tmp_path / "dev_splits_complete/dia0_utt0.wav")
    with pytest.raises(DataError, match=message):
        load_meld(tmp_path)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("Utterance,Speaker,Emotion\na,b,c\n", r"dev_sent_emo\.csv:1: no column Dialogue_ID, Utterance_ID"),
        ("", r"dev_sent_emo\.csv:1: no column Utterance"),
        ('Utterance,Speaker,Emotion,Dialogue_ID,Utterance_ID\n"One,b,joy,0,0\n', r"csv:2: not a row of CSV"),
    ],
)
def test_meld_broken_tables_are_named(text: str, message: str, tmp_path: Path) -> None:
    write(tmp_path / "dev_sent_emo.csv", text)
    with pytest.raises(DataError, match=message):
        load_meld(tmp_path)


def test_meld_a_byte_order_mark_is_no_part_of_the_first_column(tmp_path: Path) -> None:
    table(tmp_path / "test_sent_emo.csv", list(MELD_COLUMNS), [[FIVE, "Joey", "joy", "0", "0"]], "utf-8-sig")
    clip(tmp_path / "audio/test/dia0_utt0.flac")
    assert [turn.id for turn in load_meld(tmp_path)[0]] == ["test_dia0_utt0"]


def test_meld_of_videos_alone_is_refused_with_the_command(tmp_path: Path) -> None:
    table(tmp_path / "dev_sent_emo.csv", COLUMNS, [meld_row(FIVE, "Joey", "joy", 0, utterance) for utterance in range(3)])
    write(tmp_path / "dev_splits_complete/dia0_utt0.mp4", b"video")
    with pytest.raises(DataError, match=r"not one of 3 clips .*dev_dia0_utt0: only a video.*ffmpeg -i "):
        load_meld(tmp_path)


# StyleTalk

STYLETALK_COLUMNS = [
    *("diag_id", "context", "curr_audio_id", "res_audio_id", "curr_text", "res_text"),
    *("curr_emotion", "curr_speed", "curr_volume", "res_emotion", "res_speed", "res_volume"),
]


def styletalk_row(dia: str, number: int, text: str, emotion: str, answer: str = "  Good for you! ") -> list[str]:
    sounds = [f"{dia}/c_{number}.wav", f"{dia}/r_{number}.wav"]
    return [dia, "A : It’s  late.", *sounds, text, answer, emotion, "slow", "quiet", "cheerful", "fast", "normal"]


@pytest.fixture
def styletalk(tmp_path: Path) -> Path:
    table(
        tmp_path / "eval.csv",
        STYLETALK_COLUMNS,
        [
            styletalk_row("book_7", 0, "B: I think I’ll go home now.  ", "sad"),
            styletalk_row("book_7", 2, "B: I think I’ll go home now.  ", "cheerful", " "),
            styletalk_row("work_1", 1, "A: Sounds like a plan.  ", "neutral"),
            styletalk_row("work_2", 1, "A: Sounds like a good plan.  ", " "),
        ],
    )
    table(tmp_path / "train.csv", STYLETALK_COLUMNS, [styletalk_row("food_3", 0, "A: " + FIVE, "friendly")])
    return tmp_path


def test_styletalk_turns_come_with_answers_and_without_sound(styletalk: Path) -> None:
    turns, left = load_styletalk(styletalk)
    text, good = "I think I'll go home now.", "Good for you!"

    def turn(name: str, split: str, text: str, style: str, speaker: str, answer: str | None) -> CorpusTurn:
        dialogue = name.rsplit("_c_", 1)[0]
        return CorpusTurn(name, "styletalk", split, text, style, speaker, dialogue, None, answer, "cheerful", "A : It's late.")

    assert turns == [
        turn("food_3_c_0", "train", FIVE, "friendly", "A", good),
        turn("book_7_c_0", "test", text, "sad", "B", good),
        turn("book_7_c_2", "test", text, "cheerful", "B", None),
    ]
    assert reasons(left) == {"work_1_c_1": "4 words, fewer than 5", "work_2_c_1": "no emotion"}


def test_styletalk_sound_is_used_where_it_is(styletalk: Path) -> None:
    path = clip(styletalk / "audio/book_7/c_0.wav")
    write(styletalk / "audio/book_7/c_2.wav", b"no audio")
    turns, left = load_styletalk(styletalk)
    assert {turn.id: turn.clip for turn in turns} == {"food_3_c_0": None, "book_7_c_0": path}
    assert reasons(left)["book_7_c_2"].startswith("clip cannot be used: ")


def test_styletalk_one_table_is_enough_and_the_other_is_named(styletalk: Path) -> None:
    (styletalk / "train.csv").unlink()
    turns, left = load_styletalk(styletalk)
    assert {turn.split for turn in turns} == {"test"}
    assert "no such table" in reasons(left)["train.csv"]


def with_sound(sound: str) -> list[str]:
    row = styletalk_row("book_8", 0, "B: " + FIVE, "sad")
    row[STYLETALK_COLUMNS.index("curr_audio_id")] = sound
    return row


@pytest.mark.parametrize(
    ("row", "message"),
    [
        (styletalk_row("book_8", 0, FIVE, "sad"), r"eval\.csv:3: curr_text does not begin with 'A: ' or 'B: '"),
        (styletalk_row("book_7", 0, "B: " + FIVE, "sad"), r"eval\.csv:3: book_7/c_0\.wav occurs more than once"),
        (with_sound("../../c_0.wav"), r"eval\.csv:3: curr_audio_id '\.\./\.\./c_0\.wav' is not of the form book_8/c_0\.wav"),
        (with_sound("book_9/c_0.wav"), r"eval\.csv:3: curr_audio_id 'book_9/c_0\.wav' is not of the form"),
        (with_sound("book_8/c_0.wav")[:-1], r"eval\.csv:3: expected 12 cells"),
    ],
)
def test_styletalk_broken_rows_are_named(row: list[str], message: str, tmp_path: Path) -> None:
    table(tmp_path / "eval.csv", STYLETALK_COLUMNS, [styletalk_row("book_7", 0, "B: " + FIVE, "sad"), row])
    with pytest.raises(DataError, match=message):
        load_styletalk(tmp_path)


@pytest.mark.parametrize("load", [load_meld, load_iemocap])
def test_a_table_or_label_file_that_cannot_be_read_is_named(load: Callable, tmp_path: Path) -> None:
    """A folder by the name of a label file stands for whatever the disk refuses; one by that of a table is no table."""
    (tmp_path / f"Session1/dialog/EmoEvaluation/{NAME}.txt").mkdir(parents=True)
    (tmp_path / "dev_sent_emo.csv").mkdir()
    with pytest.raises(DataError, match="cannot be read" if load is load_iemocap else "no table of MELD"):
        load(tmp_path)


def test_styletalk_as_published() -> None:
    """The figures in the module's header."""
    turns, left = load_styletalk(STYLETALK)
    assert Counter(turn.split for turn in turns) == {"train": 1827, "test": 855}
    # 1,838 and 858 rows; all that is left out has four words.
    assert Counter(one.reason for one in left) == {"4 words, fewer than 5": 14}
    assert len({turn.id for turn in turns}) == len(turns)
    assert all(turn.clip is None and turn.answer and turn.answer_style and turn.context for turn in turns)
    assert not any("’" in turn.text for turn in turns)
    test, train = ([turn for turn in turns if turn.split == split] for split in ("test", "train"))
    assert Counter(turn.style for turn in test) == {
        "neutral": 375,
        "friendly": 274,
        "unfriendly": 124,
        "cheerful": 44,
        "sad": 38,
    }
    for what, shared in (("dialogue", 0), ("context", 0), ("text", 26)):
        assert len({getattr(turn, what) for turn in test} & {getattr(turn, what) for turn in train}) == shared
    for part, dialogues, contrasts in ((train, 1745, 82), (test, 478, 358)):
        styles = defaultdict(set)
        for turn in part:
            styles[turn.dialogue, turn.text].add(turn.style)
        assert len(styles) == len({turn.dialogue for turn in part}) == dialogues
        assert sum(len(found) > 1 for found in styles.values()) == contrasts
