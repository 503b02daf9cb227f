"""Suites about one characteristic of speech: which of two clips is faster or better, or whether they match (AudioJudge, 4).

Two kinds of files hold pairs (appendix A.1); the audio stays where the user has it.

1. Pairs: the JSON that the authors' preparation writes, a CSV with the same keys, or one of their CSVs of results, which holds
   the pairs as well (repository Woodygan/AudioJudge, experiments/main_experiments).
2. Clips with people's ratings, made into pairs here: SOMOS's `*_mos_list.txt` (its readme), TMHINT-Q's `raw_data.csv`
   as the recipe of unilight/sheet reads it, or cleaned, and ThaiMOS's master table (both in potsawee/audioLM-as-judge).

Rated clips are paired with others of the same sentence. Of the authors' SOMOS list that gives their 593 pairs; their 6475 of
TMHINT-Q are those of the 1647 clips that they kept, among 7788 of all 1978. Both were counted on their files.
"""

from __future__ import annotations

import csv
import io
import random
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import combinations
from pathlib import Path
from statistics import fmean
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, model_validator

from paras2s.audio.clip import Clip, read_clip
from paras2s.bench.made_from import MadeFrom
from paras2s.bench.results import HIGHEST_SCORE, LOWEST_SCORE
from paras2s.bench.verdict_file import read_rows, rows_by_key
from paras2s.errors import AudioError, DataError, checking
from paras2s.reward.judges.base import Pair, Utterance
from paras2s.reward.judges.votes import prefer
from paras2s.types import MatchLabel, PairLabel, Preference, Unscored, Verdict
from paras2s.utils.io import path_inside, read_json, read_text

TruthLabel = PairLabel | MatchLabel
MAX_CLIP_S = 120.0
QUALITY = "clip_quality"


@dataclass(frozen=True)
class RatingTable:
    """A released table of ratings: the columns read, those passed over, and how a clip's file and sentence are called."""

    clip: tuple[str, ...]
    rating: str
    others: tuple[str, ...]
    sentence_of: Callable[[str], str]
    text: str | None = None

    @property
    def columns(self) -> frozenset[str]:
        """Every column it may have; a table is known by them."""
        return frozenset((*self.clip, self.rating, *self.others, *([self.text] if self.text else [])))


def _after_condition(clip: str) -> str:
    """TMHINT-Q's names end in the speaker and the sentence: FCN_snr0_babble_TMHINT_b2_26_01."""
    return clip.rpartition("TMHINT_")[2]


RAW_TMHINTQ = ("idx", "method", "uttr", "snr", "noise", "intelligibility_score")
THAIMOS = ("file_id", "sound_quality", "silence", "worker_id")


@dataclass(frozen=True)
class DetectSuite:
    """One suite. `paper` holds accuracies, `pointwise` accuracy and mean squared error, of 1 (Tables 1, 2, 9 and 10).

    `pairs` is how many the paper takes; `tables` the forms in which its clips and ratings are released, if they are.
    """

    name: str
    title: str
    task: str
    kind: Literal["winner", "match"]
    pairs: int
    paper: Mapping[str, float]
    pointwise: Mapping[str, tuple[float, float]] = field(default_factory=dict)
    tables: tuple[RatingTable, ...] = ()
    min_difference: float = 0.0

    @property
    def labels(self) -> tuple[TruthLabel, ...]:
        """The labels that people may give a pair."""
        return ("1", "2") if self.kind == "winner" else ("same", "different")


def _paper(baseline: float, test: float, examples_and_test: float, human: float, **trained: float) -> dict[str, float]:
    judges = {"baseline, 0-shot": baseline, "test concat, 0-shot": test, "examples and test concat, 4-shot": examples_and_test}
    return {"random guess": 0.5, **judges, **trained, "people": human}


def _trained(utmos: float, mosanet: float, salmonn: float) -> dict[str, float]:
    return {"UTMOS": utmos, "MOSANET+": mosanet, "SALMONN-FT": salmonn}


def _pointwise(*setups: tuple[float, float]) -> dict[str, tuple[float, float]]:
    return dict(zip(("pointwise, 0-shot", "pointwise, 4-shot", "pointwise, 4-shot concat"), setups, strict=True))


SUITES: dict[str, DetectSuite] = {
    suite.name: suite
    for suite in (
        DetectSuite("pronunciation", "Pronunciation", "pronunciation", "match", 200, _paper(0.460, 0.660, 0.665, 0.695)),
        # The paper names 187 pairs; every file of results, and each figure of its Table 1, is of 179.
        DetectSuite("speaking_rate", "Speaking rate", "speaking_rate", "winner", 187, _paper(0.469, 0.542, 0.553, 0.778)),
        DetectSuite("speaker_identity", "Speaker", "speaker_identity", "match", 200, _paper(0.615, 0.640, 0.700, 0.830)),
        DetectSuite(
            "somos", "SOMOS", QUALITY, "winner", 200,
            _paper(0.705, 0.725, 0.710, 0.710, **_trained(0.775, 0.850, 0.820)),
            _pointwise((0.528, 3.31), (0.503, 3.60), (0.553, 2.81)),
            (RatingTable(("utteranceId",), "mean", (), lambda clip: clip.rpartition("_")[0]),),
            min_difference=1.0,
        ),
        DetectSuite(
            "tmhintq", "TMHINT-Q", QUALITY, "winner", 200,
            _paper(0.705, 0.705, 0.745, 0.780, **_trained(0.715, 0.775, 0.610)),
            _pointwise((0.465, 3.40), (0.518, 3.46), (0.593, 1.80)),
            (
                RatingTable(("filename",), "Q", ("I",), _after_condition),
                RatingTable(("file_name",), "quality_score", RAW_TMHINTQ, _after_condition),
            ),
        ),
        DetectSuite(
            "thaimos", "ThaiMOS", QUALITY, "winner", 200,
            _paper(0.655, 0.655, 0.640, 0.775, **_trained(0.535, 0.625, 0.585)),
            _pointwise((0.515, 3.19), (0.553, 3.12), (0.535, 2.55)),
            (RatingTable(("system", "file_name"), "pronunciation", THAIMOS, lambda clip: clip.partition("/")[2], "text"),),
        ),
    )
}  # fmt: skip


class DetectPair(BaseModel):
    """One pair and people's label of it. Paths are relative to the audio's folder; unknown values are None."""

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False, str_min_length=1, coerce_numbers_to_str=True)

    audio1_path: str
    audio2_path: str
    label: TruthLabel
    transcript1: str | None = None
    transcript2: str | None = None
    mos1: float | None = Field(None, ge=LOWEST_SCORE, le=HIGHEST_SCORE)
    mos2: float | None = Field(None, ge=LOWEST_SCORE, le=HIGHEST_SCORE)
    speaker1: str | None = None
    speaker2: str | None = None

    @property
    def id(self) -> str:
        """Both paths: how results name their pair as well."""
        return f"{self.audio1_path} | {self.audio2_path}"

    @property
    def exchanged_id(self) -> str:
        """The id of this pair in the other order."""
        return f"{self.audio2_path} | {self.audio1_path}"


@dataclass(frozen=True)
class Loaded:
    """The pairs of a file, in its order; of a table of ratings also the numbers of pairs, clips and empty ratings behind it."""

    pairs: tuple[DetectPair, ...]
    drawn_from: int | None = None
    clips: int | None = None
    empty_ratings: int = 0


# Our field: the keys that stand for it in one release or another.
KEYS: dict[str, tuple[str, ...]] = {
    "audio1_path": ("audio1_path",),
    "audio2_path": ("audio2_path",),
    "label": ("label", "match", "ground_truth"),
    "transcript1": ("transcript1",),
    "transcript2": ("transcript2",),
    "mos1": ("mos1", "mos_a", "human_quality_a", "pronunciation_a", "groundtruth1"),
    "mos2": ("mos2", "mos_b", "human_quality_b", "pronunciation_b", "groundtruth2"),
    "speaker1": ("speaker1", "speaker_a"),
    "speaker2": ("speaker2", "speaker_b"),
}
FIELD_OF = {key: name for name, keys in KEYS.items() for key in keys}
# Keys of the releases that no verdict is measured by. Any other is taken for a typing error, and refused.
PASSED_OVER = frozenset(
    (
        "index", "word", "region", "IPAs", "OED", "gpt4o_reasoning", "gpt4o_correct", "meta_a", "meta_b", "id_a", "id_b",
        "uttId_a", "uttId_b", "system_a", "system_b", "sound_a", "sound_b", "rhythm_a", "rhythm_b", "datawow_id_a",
        "datawow_id_b", "prediction", "score1", "score2", "reasoning", "reasoning1", "reasoning2", "correct", "prompt_type",
        "dataset_name", "n_shots", "transcript_type", "concat_fewshot", "concat_test", "two_turns", "aggregate_fewshot",
        "instruction_id",
    )
)  # fmt: skip


def load_pairs(path: Path, suite: DetectSuite, seed: int | None = None) -> Loaded:
    """Return the pairs of a file of pairs, or as many as the paper takes, drawn from a table of ratings by `seed`.

    Raises:
        DataError: missing, of no known form, a wrong value, an unknown key or label, a pair that occurs twice, or a seed for
            pairs that are not drawn; names file, line or entry, and key.
    """
    if path.suffix.lower() == ".json":
        entries = read_json(path)
        if not isinstance(entries, list):
            raise DataError(f"{path}: expected a list of pairs, as the authors' preparation writes it")
        rows: Iterable[tuple[str, Any]] = ((f"{path}: entry {number}", row) for number, row in enumerate(entries))
    else:
        columns, rows = read_table(path)
        for table in suite.tables:
            if {*table.clip, table.rating} <= set(columns):
                return _draw(path, suite, table, 0 if seed is None else seed)
        if "audio1_path" not in columns:
            known = "; ".join(", ".join((*table.clip, table.rating)) for table in suite.tables)
            raise DataError(f"{path}:1: no column audio1_path{f', nor the columns {known}' if known else ''}: {columns}")
    if seed is not None:
        raise DataError(f"{path}: holds finished pairs, none are drawn: leave the seed out")
    loaded: dict[frozenset[str], DetectPair] = {}
    for where, row in rows:
        pair = read_pair(where, row, suite)
        both = frozenset((pair.audio1_path, pair.audio2_path))
        if len(both) == 1:
            raise DataError(f"{where}: audio2_path: is audio1_path once more")
        if both in loaded:
            raise DataError(f"{where}: audio1_path: the pair {pair.id} occurs twice, in this order or the other")
        loaded[both] = pair
    if not loaded:
        raise DataError(f"{path}: holds no pairs")
    return Loaded(tuple(loaded.values()))


def read_table(path: Path) -> tuple[list[str], Iterator[tuple[str, dict[str, Any]]]]:
    """Return the columns and rows of a CSV or TSV; each row with its file:line. Raises DataError: it is not such a file."""
    reader = csv.DictReader(io.StringIO(read_text(path)), delimiter="\t" if path.suffix.lower() == ".tsv" else ",")
    columns = list(reader.fieldnames or [])
    if not columns:
        raise DataError(f"{path}: is empty")
    if len(set(columns)) < len(columns):
        raise DataError(f"{path}:1: a column occurs twice: {columns}")
    return columns, _rows(path, reader)


def _rows(path: Path, reader: csv.DictReader[str]) -> Iterator[tuple[str, dict[str, Any]]]:
    try:
        for row in reader:
            where = f"{path}:{reader.line_num}"
            if None in row or None in row.values():
                raise DataError(f"{where}: not as many values as the head has columns")
            yield where, dict(row)
    except csv.Error as error:
        raise DataError(f"{path}:{reader.line_num + 1}: {error}") from error


def read_pair(where: str, row: Any, suite: DetectSuite) -> DetectPair:
    """Return a row of a file of pairs. Raises DataError: a wrong key, label or value, or a label against its own ratings."""
    if not isinstance(row, dict):
        raise DataError(f"{where}: expected an object")
    if strange := sorted(set(map(str, row)) - FIELD_OF.keys() - PASSED_OVER):
        raise DataError(f"{where}: {strange[0]}: unknown key; a pair may have {', '.join(KEYS)}")
    values: dict[str, Any] = {}
    for key, value in row.items():
        if key in FIELD_OF and value not in (None, ""):
            if FIELD_OF[key] in values:
                raise DataError(f"{where}: {key}: {FIELD_OF[key]} is given twice")
            values[FIELD_OF[key]] = value
    if "label" in values:
        values["label"] = read_label(where, values["label"], suite)
    with checking(where):
        pair = DetectPair.model_validate(values)
    _require_consistent(where, pair, suite)
    return pair


def read_label(where: str, label_text: Any, suite: DetectSuite, key: str = "label") -> TruthLabel:
    """Return a label as written in any release: 1 or 2, true or false. Raises DataError: the suite knows no such label."""
    written = str(label_text).strip().lower()
    for label in suite.labels:
        if written == label or written == {"same": "true", "different": "false"}.get(label):
            return label
    raise DataError(f"{where}: {key}: {label_text!r} is not one of {', '.join(suite.labels)}")


def _require_consistent(where: str, pair: DetectPair, suite: DetectSuite) -> None:
    if suite.kind == "winner" and pair.mos1 is not None and pair.mos2 is not None and pair.mos1 != pair.mos2:
        by_rating = "1" if pair.mos1 > pair.mos2 else "2"
        if pair.label != by_rating:
            raise DataError(f"{where}: label: {pair.label}, but the ratings are {pair.mos1:g} and {pair.mos2:g}")
    if suite.name == "speaker_identity" and pair.speaker1 and pair.speaker2:
        alike = pair.speaker1 == pair.speaker2
        if alike != (pair.label == "same"):
            raise DataError(f"{where}: label: {pair.label}, but the speakers are {pair.speaker1} and {pair.speaker2}")


@dataclass(frozen=True)
class RatedClip:
    """A clip, its mean rating, and its transcript where that is known."""

    path: str
    sentence: str
    mos: float
    text: str | None


def _draw(path: Path, suite: DetectSuite, table: RatingTable, seed: int) -> Loaded:
    clips, empty = read_ratings(path, table)
    pool = pair_up(clips, suite.min_difference)
    if not pool:
        raise DataError(f"{path}: no two clips of one sentence differ by more than {suite.min_difference:g} in {table.rating}")
    pairs = tuple(draw_pairs(pool, suite.pairs, seed))
    return Loaded(pairs, len(pool), len(clips), empty)


def read_ratings(path: Path, table: RatingTable) -> tuple[list[RatedClip], int]:
    """Return every rated clip with its mean rating, and the number of empty ratings, as in TMHINT-Q. Raises DataError."""
    columns, rows = read_table(path)
    if strange := sorted(set(columns) - table.columns):
        raise DataError(f"{path}:1: {strange[0]}: unknown column; there are {', '.join(sorted(table.columns))}")
    ratings: dict[str, list[float]] = defaultdict(list)
    texts: dict[str, str | None] = {}
    empty = 0
    for where, row in rows:
        if not all(row[column].strip() for column in table.clip):
            raise DataError(f"{where}: {table.clip[0]}: a clip without a name")
        clip = "/".join(row[column].strip() for column in table.clip).removesuffix(".wav")
        text = row[table.text].strip() if table.text else None
        if texts.setdefault(clip, text) != text:
            raise DataError(f"{where}: {table.text}: another text than this clip had before")
        if not row[table.rating].strip():
            empty += 1
            continue
        ratings[clip].append(_on_scale(where, table.rating, row[table.rating]))
    clips = [RatedClip(f"{name}.wav", table.sentence_of(name), fmean(scores), texts[name]) for name, scores in ratings.items()]
    return clips, empty


def _on_scale(where: str, column: str, written: str) -> float:
    try:
        value = float(written)
    except ValueError:
        value = 0.0
    if not LOWEST_SCORE <= value <= HIGHEST_SCORE:
        raise DataError(f"{where}: {column}: {written!r} is no number from {LOWEST_SCORE} to {HIGHEST_SCORE}")
    return value


def pair_up(clips: Sequence[RatedClip], min_difference: float) -> list[tuple[RatedClip, RatedClip]]:
    """Pair all clips of one sentence whose mean ratings differ by more than `min_difference`, whatever the file's order."""
    by_sentence: dict[str, list[RatedClip]] = defaultdict(list)
    for clip in sorted(clips, key=lambda clip: clip.path):
        by_sentence[clip.sentence].append(clip)
    pairs = (pair for _, group in sorted(by_sentence.items()) for pair in combinations(group, 2))
    return [(first, other) for first, other in pairs if abs(first.mos - other.mos) > min_difference]


def draw_pairs(pool: Sequence[tuple[RatedClip, RatedClip]], count: int, seed: int) -> list[DetectPair]:
    """At most `count` of them by `seed`, which also tosses for their order: to prefer the first clip gains a judge nothing."""
    dice = random.Random(seed)
    drawn = dice.sample(pool, min(count, len(pool)))
    return [_labelled(*(pair if dice.random() < 0.5 else pair[::-1])) for pair in drawn]


def _labelled(first: RatedClip, second: RatedClip) -> DetectPair:
    return DetectPair(
        audio1_path=first.path,
        audio2_path=second.path,
        label="1" if first.mos > second.mos else "2",
        transcript1=first.text,
        transcript2=second.text,
        mos1=first.mos,
        mos2=second.mos,
    )


def read_pair_audio(pair: DetectPair, root: Path) -> Pair | Unscored:
    """Return the pair's clips; Unscored where one is missing or unreadable. Raises DataError: a path leaves the root."""
    try:
        first, second = (_read(root, name) for name in (pair.audio1_path, pair.audio2_path))
    except AudioError as error:
        return Unscored("audio", str(error))
    known = pair.transcript1 is not None and pair.transcript2 is not None
    return Pair(Utterance(), first, second, (pair.transcript1 or "", pair.transcript2 or "") if known else None)


def _read(root: Path, name: str) -> Clip:
    path = path_inside(root, name)
    if path is None:
        raise DataError(f"{name}: leaves the audio folder {root}")
    return read_clip(path, max_duration_s=MAX_CLIP_S)


class DetectRow(BaseModel):
    """A judge's verdict on one pair: a label or the reason in `unscored`, never both. `truth` is people's label.

    `scores` are those of the two clips, where each was scored alone. Keys that others' files lack keep their defaults.
    """

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)

    id: str
    truth: TruthLabel
    label: TruthLabel | None = None
    unscored: str | None = None
    judge: str = "unknown"
    version: str = ""
    prompt_hash: str = ""
    scores: tuple[float, float] | None = None
    votes: tuple[float, ...] = ()
    spread: float | None = None
    consistent: bool | None = None
    reason: str = ""
    reply: str = ""
    cost_usd: float | None = None
    latency_s: float | None = None
    made_from: MadeFrom | None = None

    @model_validator(mode="after")
    def _check(self) -> DetectRow:
        if (self.label is None) == (self.unscored is None):
            raise ValueError("give either a label or the reason in 'unscored', and not both")
        return self


def row_of(pair: DetectPair, verdict: Preference | Unscored) -> DetectRow:
    """Return a verdict on a pair as a line of the file."""
    if isinstance(verdict, Unscored):
        return DetectRow(id=pair.id, truth=pair.label, unscored=verdict.reason, judge=verdict.judge, reply=verdict.reply)
    return DetectRow(
        id=pair.id, truth=pair.label, label=verdict.label, judge=verdict.judge, version=verdict.version,
        prompt_hash=verdict.prompt_hash, votes=verdict.votes, spread=verdict.spread, consistent=verdict.consistent,
        reason=verdict.reason, reply=verdict.reply, cost_usd=verdict.cost_usd, latency_s=verdict.latency_s,
    )  # fmt: skip


def row_of_scores(pair: DetectPair, first: Verdict | Unscored, second: Verdict | Unscored) -> DetectRow:
    """Two verdicts on single clips as one on the pair: the higher score wins, equal ones tie (AudioJudge, E.1)."""
    if isinstance(first, Unscored):
        return row_of(pair, first)
    if isinstance(second, Unscored):
        return row_of(pair, second)
    costs = [row.cost_usd for row in (first, second) if row.cost_usd is not None]
    return DetectRow(
        id=pair.id, truth=pair.label, label=prefer(first.score, second.score), judge=first.judge, version=first.version,
        prompt_hash=first.prompt_hash, scores=(first.score, second.score), reason=f"{first.reason}\n---\n{second.reason}",
        reply=f"{first.reply}\n---\n{second.reply}", cost_usd=sum(costs) if len(costs) == 2 else None,
        latency_s=first.latency_s + second.latency_s,
    )  # fmt: skip


def load_rows(path: Path, suite: DetectSuite) -> dict[str, DetectRow]:
    """Return recorded verdicts by the pair's id: our JSONL, or a CSV of the authors' results. Raises DataError: it has none."""
    rows = _read_rows(path, suite)
    if not rows:
        raise DataError(f"{path}: holds no verdicts")
    return rows


def rows_so_far(path: Path, suite: DetectSuite) -> dict[str, DetectRow]:
    """Return the verdicts of a run that may have been cut off: no verdicts if there is no file, or only the start of a line.

    Raises:
        DataError: a wrong row, a label of another kind of suite, or a pair with two verdicts; names file and line.
    """
    return _read_rows(path, suite) if path.is_file() else {}


def _read_rows(path: Path, suite: DetectSuite) -> dict[str, DetectRow]:
    is_authors = path.suffix.lower() == ".csv"
    rows = _authors_rows(path, suite) if is_authors else read_rows(path, DetectRow)
    return rows_by_key(_with_known_labels(rows, suite), lambda row: row.id, lambda row: row.label is not None, "id: the pair")


def _with_known_labels(rows: Iterable[tuple[str, DetectRow]], suite: DetectSuite) -> Iterator[tuple[str, DetectRow]]:
    for where, row in rows:
        for name, label in (("truth", row.truth), ("label", row.label)):
            if label not in (*suite.labels, *([None, "tie"] if name == "label" and suite.kind == "winner" else [None])):
                raise DataError(f"{where}: {name}: {label!r} is not one of {', '.join(suite.labels)}")
        yield where, row


def _authors_rows(path: Path, suite: DetectSuite) -> Iterator[tuple[str, DetectRow]]:
    """Yield rows of the authors' results; the file alone tells the model, no row does."""
    columns, rows = read_table(path)
    if missing := [name for name in ("audio1_path", "audio2_path", "ground_truth", "prediction") if name not in columns]:
        raise DataError(f"{path}:1: no column {missing[0]}: these are no results of the authors' form")
    for where, row in rows:
        pair, prediction = read_pair(where, row, suite), row["prediction"].strip()
        if not prediction:
            yield where, row_of(pair, Unscored(path.stem, "the file records no prediction"))
            continue
        is_tie = prediction == "tie" and suite.kind == "winner"
        label = "tie" if is_tie else read_label(where, prediction, suite, "prediction")
        try:
            scores = tuple(_on_scale(where, key, row[key]) for key in ("score1", "score2") if key in columns)
        except DataError:
            # A model gave 0 on a scale from 1, and the authors counted it; here such a reply is no verdict.
            off = f"scores {row.get('score1')} and {row.get('score2')}: one is not from 1 to 5"
            yield where, row_of(pair, Unscored(path.stem, off))
            continue
        yield where, DetectRow(
            id=pair.id, truth=pair.label, label=label, judge=path.stem, scores=scores if len(scores) == 2 else None,
            reason=row.get("reasoning", ""),
        )  # fmt: skip


def matched(pairs: Sequence[DetectPair], rows: Mapping[str, DetectRow], name: str) -> list[DetectRow | None]:
    """Return each pair's verdict, or None. Raises DataError: they are about other pairs, or hold another label of people."""
    verdicts = [rows.get(pair.id) for pair in pairs]
    if not any(verdicts):
        exchanged = sum(pair.exchanged_id in rows for pair in pairs)
        but = f", but {exchanged} on them in the other order" if exchanged else ""
        raise DataError(f"{name}: holds no verdict on any of these pairs{but}; its first one is {next(iter(rows))}")
    for pair, row in zip(pairs, verdicts, strict=True):
        if row is not None and row.truth != pair.label:
            raise DataError(f"{name}: {pair.id}: people's label is {row.truth} there, and {pair.label} here")
    return verdicts


def why_missing(pair: DetectPair, rows: Mapping[str, DetectRow]) -> str:
    """Return the reason why there is no verdict on a pair in this order."""
    return "a verdict recorded in the other order alone" if pair.exchanged_id in rows else "no verdict recorded"
