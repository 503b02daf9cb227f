"""BVCC and SOMOS as T2 items with the overall score alone, for the bench (Table 7): people's mean opinion of each clip.

BVCC is read as its release on Zenodo and the VoiceMOS Challenge 2022 lay it out, below the folder `main` or `phase1-main`:
`DATA/sets/test_mos_list.txt` with lines "FILE.wav,MOS" and no heading, and `DATA/wav`. SOMOS as its release v2 on Zenodo,
unpacked: `training_files/split1/clean` or `.../full` with `test_mos_list.txt`, whose heading is "utteranceId,mean", and
`audios/ID.wav`. The test lists alone are read.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from pathlib import Path

from paras2s.errors import DataError
from paras2s.unisrm.data_gen.layouts.entries import Dropped, Entry, Layout, Split, clip_of, rating
from paras2s.unisrm.reward.tasks import Item, QualityRecord
from paras2s.utils.io import read_text

BVCC_LIST, BVCC_CLIPS = "DATA/sets/test_mos_list.txt", "DATA/wav"
SOMOS_LIST, SOMOS_CLIPS = "training_files/split1/{}/test_mos_list.txt", "audios"
SOMOS_HEADING = "utteranceId,mean"


def _lines(path: Path, heading: str | None) -> list[tuple[str, str, str]]:
    """Read place (file:line), clip and score of each line."""
    texts = [line.strip() for line in read_text(path).splitlines()]
    if heading and texts[:1] != [heading]:
        raise DataError(f"{path}:1: the heading is not {heading}")
    lines = []
    for number, line in enumerate(texts, 1):
        if not line or (heading and number == 1):
            continue
        name, comma, score = line.rpartition(",")
        if not comma or not name:
            raise DataError(f"{path}:{number}: expected FILE,MOS; got {line!r}")
        lines.append((f"{path}:{number}", name if name.endswith(".wav") else f"{name}.wav", score))
    return lines


def _bvcc_lines(root: Path) -> list[tuple[str, str, str]]:
    return _lines(root / BVCC_LIST, None)


def _somos_lines(part: str, root: Path) -> list[tuple[str, str, str]]:
    return _lines(root / SOMOS_LIST.format(part), SOMOS_HEADING)


def read_bvcc(root: Path, split: Split) -> Iterator[Entry | Dropped]:
    """Yield the clips of BVCC's test list. Raises DataError: the list is missing, or a line is not FILE,MOS with 1 to 5."""
    for where, name, score in _bvcc_lines(root):
        # sys64e2f-utt3a1b2c3.wav: the system, and a number of the clip.
        system = name.removesuffix(".wav").partition("-")[0]
        yield _entry("bvcc", root / BVCC_CLIPS, where, name, score, split, name, system)


def read_somos(part: str, root: Path, split: Split) -> Iterator[Entry | Dropped]:
    """Yield the clips of SOMOS's test list "clean" or "full". Raises DataError: missing, or a line is not ID,MOS (1 to 5)."""
    for where, name, score in _somos_lines(part, root):
        # booksent_2012_0005_001.wav: the sentence, and the system after the last underscore.
        text, _, system = name.removesuffix(".wav").rpartition("_")
        yield _entry(f"somos-{part}", root / SOMOS_CLIPS, where, name, score, split, text or name, system)


def _entry(
    corpus: str, clips: Path, where: str, name: str, score: str, split: Split, text_id: str, system: str
) -> Entry | Dropped:
    label = rating(where, "the score", score)
    clip = clip_of(clips, name, where)
    if clip is None:
        return Dropped(name, "no such clip")
    record = QualityRecord((label,))
    # The published systems are the voices.
    item = Item(
        f"{corpus}-{name}", "T2", split, f"{corpus}:{text_id}", (f"{corpus}:{system}",), {}, {"speech": ""}, record,
        {"corpus": corpus},
    )  # fmt: skip
    return Entry(item, {"speech": clip})


BVCC = Layout("bvcc", "T2", ("bench",), read_bvcc, lambda root, _: len(_bvcc_lines(root)))


def _somos(part: str) -> Layout:
    return Layout(
        f"somos-{part}", "T2", ("bench",), partial(read_somos, part), lambda root, _: len(_somos_lines(part, root))
    )  # fmt: skip


SOMOS_CLEAN, SOMOS_FULL = _somos("clean"), _somos("full")
