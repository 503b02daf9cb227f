"""`paras2s distill` taught by people: answers become the items of a study, and its export teaches the reward model.

Real policy, sound, study store and export; the clicks are a script's. Not covered: people, and whether the model is any good.
"""

from __future__ import annotations

import csv
import json
import shutil
from itertools import combinations
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml
from tiny.studies import answer_pair, answer_single
from tiny.world import invoke, write_run

from paras2s.audio.clip import Clip, read_clip, write_clip
from paras2s.configs.schema.run import load_config
from paras2s.errors import DataError, JudgeError
from paras2s.pipeline.people import PeopleTeacher, StudyAnswer, answer_key, is_people, read_scores, require_people
from paras2s.pipeline.shared_stages import stage_keys
from paras2s.reward.reward_model.teachers import TeacherRequest
from paras2s.studies.store import StudyStore
from paras2s.types import Unscored
from paras2s.utils.io import read_json, read_jsonl, write_json

SOUND = Clip(np.sin(np.arange(1600) / 5.0).astype(np.float32) / 10, 16_000)


def pupil(tiny_run: Path, folder: Path, file: str, **distill: Any) -> Path:
    """A run of its own on the tiny run's data and warm-up, taught by a file of people's."""
    base = yaml.safe_load((tiny_run / "run.yaml").read_text())["distill"]
    path = write_run(folder, distill={**base, "teacher": str(folder / file), "max_unscored_share": 0.1, **distill})
    (folder / "run").mkdir()
    for part in ("data", "sft"):
        (folder / "run" / part).symlink_to(tiny_run / "run" / part)
    return path


def ask_first(config: Path, folder: Path, kind: str) -> StudyStore:
    """The first distill, which stops, and the study that its message says to make."""
    with pytest.raises(JudgeError, match=r"is missing, so.*items of a listening study are in .*paras2s study new"):
        invoke("distill", config)
    assert not (folder / "run/reward/agreement.json").exists()
    people = ("--annotator", "ada", "--annotator", "ben")
    invoke("study", "new", folder / "run/reward/people/items.jsonl", "--kind", kind, "--out", folder / "study", *people)
    return StudyStore(folder / "study")


def style_scores(folder: Path) -> list[float | None]:
    rows = read_jsonl(folder / "run/reward/preferences.jsonl")
    return [None if row["scores"] is None else row["scores"][row["style"]] for row in rows]


def test_peoples_scores_teach_and_more_of_them_teach_again(tiny_run: Path, tmp_path: Path) -> None:
    config = pupil(tiny_run, tmp_path, "people.csv")
    store = ask_first(config, tmp_path, "single")
    items = store.study.items
    assert len({item.id for item in items}) == len(items) > 8
    # Both what the model learns from and what it is held against, each with its question.
    assert all(item.question is not None and item.id.startswith(f"{item.instruction_id}.") for item in items)
    for number in range(len(items)):
        answer_single(store, "ada", number, 3, 1 + number % 5)
        answer_single(store, "ben", number, 3, min(5, 2 + number % 5))
    invoke("study", "export", tmp_path / "study", "--out", tmp_path / "out")
    shutil.copy(tmp_path / "out/ratings.csv", tmp_path / "people.csv")

    given = invoke("distill", config).output
    report = read_json(tmp_path / "run/reward/agreement.json")
    assert report["teacher"].startswith("people/")
    assert report["preference_unscored"] == report["held_out_unscored"] == 0
    wanted = {(2 * (n % 5) + 3) / 2 if n % 5 < 4 else 5.0 for n in range(len(items))}
    assert set(style_scores(tmp_path)) <= wanted
    by_key = {item.id: (1 + n % 5 + min(5, 2 + n % 5)) / 2 for n, item in enumerate(items)}
    assert read_scores(tmp_path / "people.csv") == by_key
    # Nobody was given degenerate answers: they have no score by people, and the model's is there.
    assert all(row["judge_max"] is None and row["judge_unscored"] == row["n"] for row in report["probes"].values())
    assert "degenerate answers score at most" in " ".join(given.split())

    assert "distill: cached" in invoke("distill", config).output
    with (tmp_path / "people.csv").open("a", newline="") as file:
        csv.writer(file).writerow((items[0].id, "policy", items[0].category, "cem", 5))
    key = stage_keys(load_config(config))["reward"]
    assert "it is trained again" in " ".join(invoke("distill", config).output.split())
    assert read_json(tmp_path / "run/reward/agreement.json")["teacher"] != report["teacher"]
    (tmp_path / "people.csv").write_text((tmp_path / "out/ratings.csv").read_text())
    assert stage_keys(load_config(config))["reward"] != key


def test_peoples_choices_teach_the_share_of_pairs_that_an_answer_won(tiny_run: Path, tmp_path: Path) -> None:
    config = pupil(tiny_run, tmp_path, "people.json")
    store = ask_first(config, tmp_path, "pair")
    for number in range(len(store.study.items)):
        for name in ("ada", "ben"):
            answer_pair(store, name, number, "1" if number % 2 else "both_bad")
    invoke("study", "export", tmp_path / "study", "--out", tmp_path / "out")
    shutil.copy(tmp_path / "out/labels.json", tmp_path / "people.json")
    invoke("distill", config)
    assert read_json(tmp_path / "run/reward/agreement.json")["teacher"].startswith("people/")
    # Two answers a query: the winner has all of its one pair, a tie is the middle.
    assert {5.0, 3.0, 1.0} >= {one for one in style_scores(tmp_path) if one is not None}
    for number, item in enumerate(store.study.items):
        scores = [read_scores(tmp_path / "people.json")[answer.system] for answer in item.answers]
        # Sides are exchanged for annotators, and their labels are stored of the item.
        assert sorted(scores) == ([1.0, 5.0] if number % 2 else [3.0, 3.0])


def test_three_answers_have_the_shares_that_a_hand_computes(tmp_path: Path) -> None:
    label = {"content": "1", "voice_quality": "1", "paralinguistics": "1"}
    rows = [
        {
            "index": n, "instruction_id": "q", "instruction_text": "", "instruction_path": "q.wav", "model_a": a, "model_b": b,
            "audio1_path": "a.wav", "audio2_path": "b.wav", "label": {**label, "overall": overall},
        }
        for n, ((a, b), overall) in enumerate(zip(combinations("abc", 2), ("1", "both_good", "1"), strict=True))
    ]  # fmt: skip
    write_json(tmp_path / "labels.json", rows)
    # a won 1.5 of 2, b 1 of 2, c 0.5 of 2.
    assert read_scores(tmp_path / "labels.json") == {"a": 4.0, "b": 3.0, "c": 2.0}


def test_what_people_were_not_given_has_no_score_and_never_a_number(tmp_path: Path) -> None:
    (tmp_path / "people.csv").write_text("id,system,category,rater,score\nq.1,policy,emotion,ada,4\nq.1,policy,emotion,ben,5\n")
    teacher = PeopleTeacher(tmp_path / "people.csv", 0.3)
    rated = TeacherRequest("words", "sad", None, SOUND, "q.1")
    other, degenerate = TeacherRequest("words", "sad", None, SOUND, "q.2"), TeacherRequest("words", "sad", None, SOUND)
    found = teacher.scores([rated, other, degenerate], lambda done, total: None)
    assert found[0] == {"sad": 4.5}
    assert all(isinstance(one, Unscored) and "people.csv" in one.reason for one in found[1:])


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("p.csv", "id,system,category,rater,score\nq.1,policy,emotion,ada,6\n", "p.csv:2: score"),
        ("p.csv", "id,system,category,rater,score\n", "holds no rows"),
        ("p.json", "[]", "expected a list of pairs"),
        ("p.json", json.dumps([{"index": 1}]), "entry 0"),
    ],
)
def test_a_wrong_file_is_refused_by_its_name(tmp_path: Path, name: str, text: str, message: str) -> None:
    (tmp_path / name).write_text(text)
    with pytest.raises(DataError, match=message):
        PeopleTeacher(tmp_path / name, 0.3)


def answers(folder: Path, *keys: str, clip: Clip = SOUND) -> list[StudyAnswer]:
    write_clip(folder / "question.wav", SOUND)
    return [StudyAnswer(key, key.split(".")[0], "emotion", folder / "question.wav", clip) for key in keys]


def test_only_what_lacks_a_score_becomes_an_item_and_silence_is_none(tmp_path: Path) -> None:
    (tmp_path / "p.csv").write_text("id,system,category,rater,score\nq.1,policy,emotion,ada,4\n")
    none = Clip(np.zeros(0, np.float32), 16_000)
    given = [*answers(tmp_path, "q.1", "q.2", "q.2", "r.3"), *answers(tmp_path, "r.0", clip=none)]
    with pytest.raises(JudgeError, match="has no score for 2 of 3 answers"):
        require_people(PeopleTeacher(tmp_path / "p.csv", 0.5), given, tmp_path / "people")
    rows = list(read_jsonl(tmp_path / "people/items.jsonl"))
    assert [row["id"] for row in rows] == ["q.2", "r.3"]
    assert all(read_clip(tmp_path / "people" / row["answers"][0]["clip"]).duration_s == SOUND.duration_s for row in rows)
    require_people(PeopleTeacher(tmp_path / "p.csv", 0.7), given, tmp_path / "people")


def test_pairs_need_two_answers_to_a_question(tmp_path: Path) -> None:
    with pytest.raises(JudgeError, match="nothing to choose from"):
        require_people(PeopleTeacher(tmp_path / "p.json", 0.3), answers(tmp_path, "q.1", "r.2"), tmp_path / "people")


def test_a_key_names_the_codes_and_the_query() -> None:
    codes = np.array([[1, 2], [3, 4]])
    assert answer_key("q", codes) == answer_key("q", codes.astype(np.int16)) != answer_key("q", codes[::-1])
    assert answer_key("q", codes) != answer_key("r", codes)
    assert not any(is_people(name) for name in ("rubric", "trace", "my.yaml"))
    assert all(is_people(name) for name in ("people.CSV", "a/labels.json"))
