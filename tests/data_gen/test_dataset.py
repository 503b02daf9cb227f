"""A dataset on disk: a round trip with hand-made records, and every broken manifest named in one line.

Not covered: what `build_dataset` puts into one, which a run of the CI preset shows.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from paras2s.audio.clip import Clip, encode_clip, read_clip
from paras2s.audio.prosody import STEP_DIM, UTTERANCE_DIM
from paras2s.data_gen.dataset import Dataset, inside, load_dataset, save_dataset
from paras2s.errors import DataError
from paras2s.policy.embedded.codec2 import Codec2Pairs
from paras2s.policy.embedded.frontend import ClipFeatures
from paras2s.reward.tone_classifier import ToneClassifier
from paras2s.types import Candidate, Demonstration, Query

TEST = Query("emotion000-sad-m4", "emotion000", "emotion", "food", "test", "m4", "queries/q0.wav", 0.5, "hello",
             "Hello.", "sad")  # fmt: skip
PROMPT = replace(TEST, id="rl-1", contrast_id="", category=None, topic=None, role="rl", speaker="", text=None,
                 style=None, clip="queries/q1.wav")  # fmt: skip
SHOWN = replace(TEST, id="emotion001-sad-m1", role="demonstration", clip="queries/q2.wav")
ANSWER = Demonstration(SHOWN.id, "I am sorry.", "gentle", "answers/a0.wav")
REJECTED = Candidate(
    "x", "emotion002", "emotion", "food", "rl", "happy", "m2", "Words.", "birds", 1.0, 0.25, "words", "too many"
)
KEPT = replace(REJECTED, id="y", rejected=None)


@dataclass(frozen=True)
class Made:
    wav: bytes
    features: ClipFeatures


def clip_of(number: int) -> Made:
    rng = np.random.default_rng(number)
    samples = 0.1 * rng.standard_normal(8_000).astype(np.float32)
    features = ClipFeatures(
        rng.integers(0, 16, size=(7, 8)),
        rng.normal(size=(7, STEP_DIM)).astype(np.float32),
        rng.normal(size=UTTERANCE_DIM).astype(np.float32),
    )
    return Made(encode_clip(Clip(samples, 16_000)), features)


def tone(*labels: str) -> ToneClassifier:
    ones, count = np.ones(UTTERANCE_DIM), len(labels)
    return ToneClassifier(labels, 0 * ones, ones, np.zeros((count, UTTERANCE_DIM)), np.arange(count, dtype=float), {})


@pytest.fixture
def saved(tmp_path: Path) -> Dataset:
    names = ("queries/q0", "queries/q1", "queries/q2", "answers/a0")
    return save_dataset(
        tmp_path / "data",
        queries=[TEST, PROMPT, SHOWN],
        demonstrations=[ANSWER],
        candidates=[REJECTED, KEPT],
        clips={name: clip_of(number) for number, name in enumerate(names)},
        user_tone=tone("happy", "sad"),
        agent_tone=tone("calm", "cheerful", "gentle"),
        audibility={"accuracy": 0.75, "clips": 4},
    )


def test_round_trip(saved: Dataset) -> None:
    loaded = load_dataset(saved.folder)
    for dataset in (saved, loaded):
        assert dataset.queries == (TEST, PROMPT, SHOWN)
        assert dataset.demonstrations == (ANSWER,)
        assert dataset.candidates == (REJECTED, KEPT)
        assert dataset.audibility == {"accuracy": 0.75, "clips": 4}
        assert dataset.user_tone.labels == ("happy", "sad")
        assert dataset.agent_tone.labels == ("calm", "cheerful", "gentle")
        assert dataset.of_role("rl") == [PROMPT]
        assert dataset.of_role("preference") == []


def test_clips_and_features_come_back(saved: Dataset) -> None:
    made = clip_of(1)
    np.testing.assert_array_equal(saved.clip(PROMPT.clip).samples, read_clip(made.wav).samples)
    features = saved.clip_features(PROMPT.clip, Codec2Pairs())
    np.testing.assert_array_equal(features.codes, made.features.codes)
    np.testing.assert_array_equal(features.steps, made.features.steps)
    np.testing.assert_array_equal(features.utterance, made.features.utterance)


def test_features_without_their_file_are_computed_from_the_clip(saved: Dataset) -> None:
    (saved.folder / "queries/q1.npz").unlink()
    features = saved.clip_features(PROMPT.clip, Codec2Pairs())
    assert features.codes.shape == (7, 8)
    assert features.utterance.shape == (UTTERANCE_DIM,)


@pytest.mark.parametrize("length", [0, 3, 100, -9])
def test_a_broken_feature_file_is_named(saved: Dataset, length: int) -> None:
    path = saved.folder / "queries/q1.npz"
    path.write_bytes(path.read_bytes()[:length])
    with pytest.raises(DataError, match=r"queries/q1\.npz: not a percept"):
        saved.clip_features(PROMPT.clip, Codec2Pairs())


def rewrite(name: str, **values: object) -> Callable[[Path], None]:
    """Change columns of a table's first row."""

    def edit(folder: Path) -> None:
        first = True

        def change(row: dict[str, object]) -> dict[str, object]:
            nonlocal first
            first, is_first = False, first
            return {**row, **values} if is_first else row

        columns(name, change)(folder)

    return edit


def columns(name: str, change: Callable[[dict[str, object]], dict[str, object]]) -> Callable[[Path], None]:
    def edit(folder: Path) -> None:
        table = pq.read_table(folder / name)
        rows = pa.Table.from_pylist([change(row) for row in table.to_pylist()])
        pq.write_table(rows.replace_schema_metadata(table.schema.metadata), folder / name)

    return edit


def without_version(folder: Path) -> None:
    path = folder / "candidates.parquet"
    pq.write_table(pq.read_table(path).replace_schema_metadata(None), path)


def cut(name: str, change: Callable[[bytes], bytes]) -> Callable[[Path], None]:
    return lambda folder: (folder / name).write_bytes(change((folder / name).read_bytes())) and None


def zero_middle(data: bytes) -> bytes:
    return data[:20] + bytes(len(data) // 2) + data[20 + len(data) // 2 :]


def zero_footer(data: bytes) -> bytes:
    return data[:-400] + bytes(380) + data[-20:]


@pytest.mark.parametrize(
    ("damage", "named"),
    [
        (lambda folder: (folder / TEST.clip).unlink(), r"queries/q0\.wav: named in the manifest but missing"),
        (lambda folder: (folder / ANSWER.clip).unlink(), r"answers/a0\.wav: named in the manifest but missing"),
        (rewrite("queries.parquet", clip="../secret.wav"), r"'\.\./secret\.wav', which leaves the data folder"),
        (rewrite("queries.parquet", clip="queries/../../secret.wav"), "which leaves the data folder"),
        (rewrite("queries.parquet", clip="/etc/hostname"), "'/etc/hostname', which leaves the data folder"),
        (rewrite("demonstrations.parquet", clip="../secret.wav"), "which leaves the data folder"),
        (columns("queries.parquet", lambda row: {**row, "id": "../../secret"}), "cannot name a file"),
        (columns("queries.parquet", lambda row: {**row, "id": "/etc/secret"}), "cannot name a file"),
        (columns("queries.parquet", lambda row: {**row, "id": None}), "cannot name a file"),
        (rewrite("queries.parquet", clip="queries"), "queries: named in the manifest but missing"),
        (cut("queries.parquet", lambda data: data[:-30]), r"queries\.parquet: not a parquet table"),
        (cut("queries.parquet", lambda data: b""), r"queries\.parquet: not a parquet table"),
        (cut("candidates.parquet", lambda data: b"words, words"), r"candidates\.parquet: not a parquet table"),
        (cut("demonstrations.parquet", zero_middle), r"demonstrations\.parquet: not a parquet table"),
        (cut("queries.parquet", zero_footer), r"queries\.parquet: not a parquet table"),
        (columns("queries.parquet", lambda row: {key: row[key] for key in row if key != "transcript"}), r"columns transcript"),
        (columns("candidates.parquet", lambda row: {**row, "mood": 1}), r"candidates\.parquet: columns mood"),
        (columns("queries.parquet", lambda row: {**row, "clip": None}), r"queries\.parquet"),
        (columns("queries.parquet", lambda row: {**row, "clip": 7}), r"queries\.parquet"),
        (lambda folder: (folder / "queries.parquet").unlink(), r"queries\.parquet: no such table"),
        (without_version, r"candidates\.parquet: of schema 1, this version reads 3; run `paras2s data` into another folder"),
        (lambda folder: (folder / "tone_agent.json").unlink(), r"tone_agent\.json: no such file"),
        (cut("style_audibility.json", lambda data: data[:9]), r"style_audibility\.json: not valid JSON"),
    ],
    ids=["query clip missing", "answer clip missing", "leaves", "leaves by a detour", "absolute", "answer leaves",
         "id leaves", "id is a path", "id is null",
         "a folder", "cut off", "empty", "text", "zeros inside", "zeros in the footer", "column missing",
         "column too many", "clip is null", "clip is a number", "no table", "older schema", "no classifier", "check cut off"],
)  # fmt: skip
def test_a_broken_manifest_is_named(saved: Dataset, damage: Callable[[Path], None], named: str) -> None:
    (saved.folder.parent / "secret.wav").write_bytes(clip_of(9).wav)
    damage(saved.folder)
    with pytest.raises(DataError, match=named) as caught:
        load_dataset(saved.folder)
    assert str(saved.folder) in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_link_out_of_the_folder_is_refused(saved: Dataset) -> None:
    outside = saved.folder.parent / "secret.wav"
    outside.write_bytes(clip_of(9).wav)
    (saved.folder / "queries/link.wav").symlink_to(outside)
    with pytest.raises(DataError, match="leaves the data folder"):
        inside(saved.folder, "queries/link.wav")


def test_a_clip_is_checked_again_when_it_is_read(saved: Dataset) -> None:
    for name in ("../data2/x.wav", "queries/none.wav"):
        with pytest.raises(DataError):
            saved.clip(name)
