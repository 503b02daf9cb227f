"""Published data sets in small folders of their own layouts, with clips of LibriSpeech, as UniSRM items.

Not covered: the releases themselves, whose licences do not let them stand here; their layouts are those of their cards.
"""

import json
import shutil
from pathlib import Path
from typing import get_args

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from typer.testing import CliRunner

from paras2s.cli.app import app
from paras2s.cli.unisrm import PublishedSet
from paras2s.errors import ConfigError, DataError
from paras2s.unisrm.bench.data import column_of, load_bench
from paras2s.unisrm.data_gen.builders.build import BUILDERS
from paras2s.unisrm.data_gen.import_layout import LAYOUTS, import_layout, keys_of
from paras2s.unisrm.reward.items import read_items
from paras2s.unisrm.reward.reply import parse_reply, write_reply
from paras2s.unisrm.reward.tasks import PairRecord

CLIPS = sorted((Path(__file__).parents[1] / "fixtures" / "librispeech").glob("*.flac"))
HEADING = (
    "id,Speed,Naturalness,Background noise,Distortion,Listening effort,Continuity,Overall quality,Feeling of voice,"
    "Noise Description,Distortion description,Unnatural pause,Natural language description"
)


def put(path, number):
    path.parent.mkdir(parents=True, exist_ok=True)
    shutil.copy(CLIPS[number], path)


def qualispeech(root, rows=None):
    """One clip a split; the test split has a second row whose clip is that of training, and a third without a clip."""
    tables = {
        "train": ["a.wav,3,4,5,2,4,5,4,warm,a hum,,none,It hums.", "b.wav,1,2,3,4,5,1,2,flat,,,,"],
        "val": ["c.wav,3,3,3,3,3,3,3,warm,x,y,z,Fine."],
        "test": [
            "d.wav,5,4,3,2,1,5,4.5,warm,x,y,z,Fine <b>.",
            "a.wav,3,3,3,3,3,3,3,x,x,y,z,Fine.",
            "no.wav,3,3,3,3,3,3,3,x,x,y,z,F",
        ],
    }
    for number, (split, name) in enumerate((("train", "a"), ("train", "b"), ("val", "c"), ("test", "d"))):
        put(root / "wav" / split / f"{name}.wav", number)
    put(root / "wav" / "test" / "a.wav", 0)
    for split, lines in (tables | (rows or {})).items():
        (root / f"{split}.csv").write_text("\n".join([HEADING, *lines]) + "\n")
    return root


def mos(root, corpus):
    """Two clips with a score, and one that is not on the disk."""
    if corpus == "bvcc":
        names, folder, path, head = ("sys1-utt1", "sys2-utt2", "sys1-utt9"), "DATA/wav", "DATA/sets/test_mos_list.txt", []
    else:
        names, folder = ("news_0001_001", "news_0001_002", "news_0002_001"), "audios"
        path, head = f"training_files/split1/{corpus[6:]}/test_mos_list.txt", ["utteranceId,mean"]
    for number, name in enumerate(names[:2]):
        put(root / folder / f"{name}.wav", number)
    (root / path).parent.mkdir(parents=True)
    (root / path).write_text("\n".join([*head, f"{names[0]}.wav,3.25", f"{names[1]}.wav,4.5", f"{names[2]}.wav,2"]) + "\n")
    return root


def pair(index, text, label, prompt=0, language="en2en"):
    clip = [{"bytes": one.read_bytes(), "path": None} for one in CLIPS]
    return {
        "index": index, "subset": "regular", "language_setting": language, "prompt": clip[prompt], "target_text": text,
        "audioA": clip[1], "audioB": clip[2], "naturalness_label": label,
    }  # fmt: skip


def speechjudge(root):
    tables = {
        "train": [pair(1, "One.", "A", 3), pair(2, "TWO.", "B", 3), pair(3, "Three.", "B", 0), pair(4, "Four.", "Tie", 3)],
        "dev": [pair(5, "Five.", "B", 2)],
        "test": [pair(6, "Two.", "A", 0, "en2zh")],
    }
    for split, rows in tables.items():
        pq.write_table(pa.Table.from_pylist(rows), root / f"{split}-00000-of-00001.parquet")
    return root


def test_qualispeech_gives_seven_scores_and_its_words_as_reasoning(tmp_path):
    report = import_layout("qualispeech", qualispeech(tmp_path / "in"), tmp_path / "out")
    assert report.items == {"sft": 1, "rl": 1, "bench": 2}
    # The clip that training and test share stays in the test.
    assert report.dropped == {("sft", "its text is in bench"): 1, ("bench", "no such clip"): 1}
    items = {item.id: item for item in read_items(tmp_path / "out")}
    first = items["qualispeech-test-d.wav"].record
    # Noise, distortion, speed, continuity, naturalness, listening effort, overall: not the order of the table.
    assert first.scores == (3, 2, 5, 5, 4, 1, 4.5)
    assert (first.descriptions, first.description) == (("x", "y", "z", "warm"), "Fine (b).")
    assert parse_reply("T2", write_reply("T2", first)).scores == (3, 2, 5, 5, 4, 1, 5)
    silent = items["qualispeech-train-b.wav"].record
    assert (silent.descriptions, silent.description) == ((), "")


def test_an_aspect_without_words_is_none(tmp_path):
    import_layout("qualispeech", qualispeech(tmp_path / "in", {"test": ["d.wav,3,3,3,3,3,3,3,,,,,Clear."]}), tmp_path / "out")
    record = read_items(tmp_path / "out", ["bench"])[0].record
    assert record.descriptions == ("none",) * 4


@pytest.mark.parametrize("corpus", ["bvcc", "somos-clean", "somos-full"])
def test_opinion_scores_keep_their_decimals_and_have_a_column_of_their_own(tmp_path, corpus):
    report = import_layout(corpus, mos(tmp_path / "in", corpus), tmp_path / "out")
    assert (report.items, report.dropped) == ({"bench": 2}, {("bench", "no such clip"): 1})
    items = load_bench(tmp_path / "out").items
    assert [item.record.scores for item in items] == [(3.25,), (4.5,)]
    assert {column_of(item) for item in items} == {corpus}
    # Of SOMOS two systems speak one sentence; in BVCC the sentence of a clip is not published.
    assert len({item.text_id for item in items}) == (2 if corpus == "bvcc" else 1)
    assert len({item.speakers for item in items}) == 2


def test_speechjudge_gives_preferences_and_splits_share_no_text_and_no_prompt(tmp_path):
    report = import_layout("speechjudge", speechjudge(tmp_path), tmp_path / "out")
    assert report.items == {"sft": 1, "rl": 1, "bench": 1}
    assert report.dropped == {("sft", "its text is in bench"): 1, ("sft", "its speaker is in bench"): 1, ("sft", "a tie"): 1}
    items = read_items(tmp_path / "out")
    owners = {}
    for item in items:
        for key in keys_of(item):
            assert owners.setdefault(key, item.split) == item.split
    test = next(item for item in items if item.split == "bench")
    assert (test.texts, test.record, test.factors["language"]) == ({"reference_text": "Two."}, PairRecord("A"), "zh")
    assert (tmp_path / "out" / test.clips["speech_b"]).read_bytes() == CLIPS[2].read_bytes()


def test_data_sets_stand_beside_each_other_and_a_second_import_replaces_its_own(tmp_path):
    import_layout("bvcc", mos(tmp_path / "b", "bvcc"), tmp_path / "out")
    somos = mos(tmp_path / "s", "somos-full")
    for _ in range(2):
        import_layout("somos-full", somos, tmp_path / "out")
    assert [item.factors["corpus"] for item in load_bench(tmp_path / "out").items] == ["bvcc"] * 2 + ["somos-full"] * 2


def test_a_dry_run_counts_and_writes_nothing(tmp_path):
    call = ["unisrm", "import", "bvcc", str(mos(tmp_path / "in", "bvcc")), str(tmp_path / "out"), "--json"]
    dry = CliRunner().invoke(app, [*call, "--dry-run"])
    assert not (tmp_path / "out").exists()
    done = CliRunner().invoke(app, call)
    assert json.loads(dry.stdout) == json.loads(done.stdout) == {"items": {"bench": 2}, "dropped": {"bench: no such clip": 1}}
    assert {*get_args(PublishedSet)} == {*LAYOUTS, *BUILDERS}


def without_column(root):
    (qualispeech(root) / "val.csv").write_text("id,Speed\nc.wav,3\n")


def out_of_range(root):
    qualispeech(root, {"val": ["c.wav,3,3,3,3,3,3,6,warm,x,y,z,Fine."]})


def outside(root):
    qualispeech(root, {"val": ["../../x.wav,3,3,3,3,3,3,3,warm,x,y,z,Fine."]})


def no_table(root):
    root.mkdir()


def other_heading(root):
    path = mos(root, "somos-clean") / "training_files/split1/clean/test_mos_list.txt"
    path.write_text("news_0001_001,3.25\n")


def no_score(root):
    (mos(root, "bvcc") / "DATA/sets/test_mos_list.txt").write_text("sys1-utt1.wav,high\n")


def all_missing(root):
    shutil.rmtree(mos(root, "bvcc") / "DATA/wav")


def other_label(root):
    root.mkdir()
    for split in ("train", "dev", "test"):
        pq.write_table(pa.Table.from_pylist([pair(7, "Seven.", "C")]), root / f"{split}-0.parquet")


def other_columns(root):
    root.mkdir()
    for split in ("train", "dev", "test"):
        pq.write_table(pa.table({"index": [1]}), root / f"{split}-0.parquet")


def no_parquet(root):
    root.mkdir()
    (root / "test-0.parquet").write_text("no")
    for split in ("train", "dev"):
        (root / f"{split}-0.parquet").write_text("no")


@pytest.mark.parametrize(
    ("layout", "make", "message"),
    [
        ("qualispeech", without_column, r"val\.csv:1: no column background noise, .* there are id, speed"),
        ("qualispeech", out_of_range, r"val\.csv:2: overall quality is 6, which is not from 1 to 5"),
        ("qualispeech", outside, "leads out of"),
        ("qualispeech", no_table, r"train\.csv: cannot be read"),
        ("bvcc", no_table, r"DATA/sets/test_mos_list\.txt: cannot be read"),
        ("bvcc", no_score, r"test_mos_list\.txt:1: the score is no number: 'high'"),
        ("bvcc", all_missing, r"no row makes an item: no such clip \(3\)"),
        ("somos-clean", other_heading, "the heading is not utteranceId,mean"),
        ("speechjudge", no_table, r"no train-\*\.parquet"),
        ("speechjudge", other_label, "index 7: naturalness_label is 'C'; expected A, B or Tie"),
        ("speechjudge", other_columns, "no column language_setting, target_text"),
        ("speechjudge", no_parquet, "cannot be read as Parquet"),
    ],
)
def test_another_layout_is_refused_with_what_is_missing(tmp_path, layout, make, message):
    make(tmp_path / "in")
    with pytest.raises(DataError, match=message):
        import_layout(layout, tmp_path / "in", tmp_path / "out")
    assert not (tmp_path / "out" / "items.jsonl").exists()


def test_an_unknown_layout_names_those_that_there_are(tmp_path):
    with pytest.raises(ConfigError, match="there are qualispeech, speechjudge, bvcc, somos-clean, somos-full"):
        import_layout("esc", tmp_path, tmp_path)
