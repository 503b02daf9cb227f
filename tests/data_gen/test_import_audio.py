"""An audio dataset in each form that the `datasets` library writes becomes a dataset of ours; wrong columns are named.

Not covered: the library itself, whose files are written here by pyarrow as it does; how well clips are transcribed.
"""

from __future__ import annotations

import csv
import json
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.ipc
import pyarrow.parquet as pq
import pytest
from tiny.world import invoke

import paras2s
from paras2s.audio.asr import Transcript
from paras2s.audio.clip import Clip, encode_clip
from paras2s.errors import ConfigError, DataError, ParaS2SError, StorageError

COLUMNS = "audio=speech,text=words,style=feeling,speaker=who"


def sound(pitch: int) -> bytes:
    wave = 0.1 * np.sin(np.arange(1600) * pitch / 100, dtype=np.float32)
    return encode_clip(Clip(wave, 16_000))


def rows(*feelings: str) -> list[dict[str, Any]]:
    return [
        {"speech": {"bytes": sound(number + 1), "path": None}, "words": f"line {number}", "feeling": feeling, "who": "ann"}
        for number, feeling in enumerate(feelings)
    ]


def write_parquet(folder: Path, table: list[dict[str, Any]], name: str = "data/test-00000-of-00001.parquet") -> Path:
    (folder / name).parent.mkdir(parents=True, exist_ok=True)
    pq.write_table(pa.Table.from_pylist(table), folder / name)
    return folder


def write_arrow(folder: Path, table: list[dict[str, Any]]) -> Path:
    """As `Dataset.save_to_disk` does: Arrow's stream format, and a table of a map in the cache."""
    for name, kept in (("data-00000-of-00001.arrow", table), ("cache-1a2b.arrow", [{"other": 1}])):
        (folder / "test").mkdir(parents=True, exist_ok=True)
        arrow = pa.Table.from_pylist(kept)
        with pyarrow.ipc.new_stream(folder / "test" / name, arrow.schema) as writer:
            writer.write_table(arrow)
    return folder


def write_audio_folder(folder: Path, table: list[dict[str, Any]]) -> Path:
    folder.mkdir(parents=True)
    with (folder / "metadata.csv").open("w", newline="") as file:
        writer = csv.DictWriter(file, ["speech", "words", "feeling", "who"])
        writer.writeheader()
        for number, row in enumerate(table):
            (folder / f"{number}.wav").write_bytes(row["speech"]["bytes"])
            writer.writerow(row | {"speech": f"{number}.wav"})
    return folder


@pytest.mark.parametrize("write", [write_parquet, write_arrow, write_audio_folder])
def test_each_form_gives_the_same_queries(write: Any, tmp_path: Path) -> None:
    source = write(tmp_path / "source", rows("happy", "sad"))
    said = invoke("import-data", source, tmp_path / "out", "--columns", COLUMNS, "--category", "mood").stdout
    assert "2 test queries, 0 demonstrations" in said
    table = pq.read_table(tmp_path / "out/queries.parquet").to_pylist()
    assert [(row["text"], row["transcript"], row["style"], row["speaker"]) for row in table] == [
        ("line 0", "line 0", "happy", "ann"), ("line 1", "line 1", "sad", "ann"),
    ]  # fmt: skip
    assert {(row["role"], row["category"], row["duration_s"]) for row in table} == {("test", "mood", 0.1)}
    clip = paras2s.read_clip(tmp_path / "out" / table[1]["clip"])
    np.testing.assert_allclose(clip.samples, paras2s.read_clip(sound(2)).samples, atol=1e-4)
    # Other verbs read it.
    invoke("bench", "template", tmp_path / "out", tmp_path / "questions")
    assert len(list((tmp_path / "questions/questions").iterdir())) == 2


def test_roles_contrasts_and_answers(tmp_path: Path) -> None:
    table = [
        row | {"split": split, "pair": pair, "reply": {"bytes": sound(9), "path": None}, "said": "yes", "tone": "warm"}
        for row, split, pair in zip(
            rows("happy", "sad", "happy", "sad", "sad"), ("demonstration", "train", "dev", "dev", "rl"), "abccd", strict=True
        )
    ]
    # One style of the held-out contrast c cannot be read, so the other is left out as well.
    table[3]["speech"] = {"bytes": b"no sound", "path": None}
    columns = {
        "audio": "speech", "text": "words", "style": "feeling", "speaker": "who", "role": "split", "contrast": "pair",
        "answer_audio": "reply", "answer_text": "said", "answer_tone": "tone",
    }  # fmt: skip
    manifest = paras2s.import_dataset(write_parquet(tmp_path / "source", table), tmp_path / "out", columns)
    assert [(query.role, query.style) for query in manifest.queries] == [
        ("demonstration", "happy"), ("preference", "sad"), ("rl", None),
    ]  # fmt: skip
    assert [(one.query_id, one.text, one.tone) for one in manifest.demonstrations] == [("q000000", "yes", "warm")]
    assert [candidate.rejected_by for candidate in manifest.candidates] == [None, None, "contrast", "audio", None]
    prompt = manifest.queries[-1]
    assert (prompt.text, prompt.speaker, prompt.contrast_id) == (None, "", "")
    assert "q000004" not in prompt.clip


def test_clips_without_words_are_transcribed_together_and_keep_their_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two at once; one has a text, one cannot be read, and the last ones are fewer."""
    batches: list[int] = []

    def transcribe(clips: list[Clip]) -> list[Transcript]:
        batches.append(len(clips))
        lengths = (str(len(clip.samples)) for clip in clips)
        return [Transcript(length, *[None] * (len(Transcript.__dataclass_fields__) - 1)) for length in lengths]  # type: ignore[arg-type]

    monkeypatch.setattr("paras2s.data_gen.import_audio.transcribe", transcribe)
    monkeypatch.setattr("paras2s.data_gen.import_audio.TRANSCRIBED_TOGETHER", 2)
    table = rows(*["sad"] * 7)
    for number, row in enumerate(table):
        steady = Clip(np.full(1600 + number, 0.1, np.float32), 16_000)
        row |= {"speech": {"bytes": encode_clip(steady), "path": None}, "words": "known" if number == 1 else None}
    table[3]["speech"] = {"bytes": b"no sound", "path": None}
    columns = {"audio": "speech", "text": "words"}
    manifest = paras2s.import_dataset(write_parquet(tmp_path / "s", table), tmp_path / "out", columns)
    assert [query.transcript for query in manifest.queries] == ["1600", "known", "1602", "1604", "1605", "1606"]
    assert [candidate.rejected_by for candidate in manifest.candidates] == [None, None, None, "audio", None, None, None]
    assert batches == [2, 2, 1]


def test_a_split_and_a_limit(tmp_path: Path) -> None:
    source = write_parquet(tmp_path / "source", rows("happy", "sad", "sad"))
    write_parquet(source, [{"other": 1}], "data/train-00000-of-00001.parquet")
    shown = json.loads(
        invoke("import-data", source, "out", "--columns", COLUMNS, "--split", "test", "--dry-run", "--json").stdout
    )
    assert shown == {"rows": 3, "tables": 1, "columns": ["speech", "words", "feeling", "who"]}
    done = invoke("import-data", source, tmp_path / "out", "--columns", COLUMNS, "--split", "test", "--limit", 2, "--json")
    assert json.loads(done.stdout) == {"queries": {"test": 2}, "demonstrations": 0, "left_out": 0}
    with pytest.raises(DataError, match="import each split by --split"):
        invoke("import-data", source, tmp_path / "more", "--columns", COLUMNS)


@pytest.mark.parametrize(
    ("columns", "more", "kind", "problem"),
    [
        ("text=words", (), ConfigError, "give audio=COLUMN.* the tables have speech, words, feeling, who"),
        ("audio=speach", (), ConfigError, "no column 'speach'; did you mean speech"),
        ("audio=speech,stile=feeling", (), ConfigError, "no part 'stile'; did you mean style"),
        ("audio=speech,answer_text=words", (), ConfigError, "both answer_audio and answer_text"),
        ("audio=speech,answer_audio=speech,answer_text=words", (), ConfigError, "answers are kept of demonstrations alone"),
        ("audio", (), ConfigError, "expected key=value"),
        ("audio=speech", ("--role", "exam"), ConfigError, "role 'exam': is none of demonstration"),
        ("audio=speech,role=feeling", (), ConfigError, "role 'sad': is none of"),
        ("audio=words", (), DataError, "not one row can be read; the first: .*line 0"),
        ("audio=speech", ("--split", "dev"), DataError, "no tables of a split 'dev'"),
    ],
)
def test_what_is_wrong_is_named(
    columns: str, more: tuple[str, ...], kind: type[ParaS2SError], problem: str, tmp_path: Path
) -> None:
    source = write_parquet(tmp_path / "source", rows("sad"))
    with pytest.raises(kind, match=problem):
        invoke("import-data", source, tmp_path / "out", "--columns", columns, *more)


def test_a_folder_that_exists_and_a_path_that_leaves_are_refused(tmp_path: Path) -> None:
    source = write_audio_folder(tmp_path / "source", rows("sad", "happy"))
    (source / "metadata.csv").write_text("speech,words\n../secret.wav,a\n1.wav,b\n")
    manifest = paras2s.import_dataset(source, tmp_path / "out", {"audio": "speech", "text": "words"})
    assert [candidate.rejected_by for candidate in manifest.candidates] == ["audio", None]
    assert "leaves its folder" in str(manifest.candidates[0].rejected)
    with pytest.raises(StorageError, match="exists already"):
        paras2s.import_dataset(source, tmp_path / "out", {"audio": "speech", "text": "words"})
