"""Pairs made from a corpus in LibriTTS-R's layout: real clips with known rates, and the counts of labels.

Not covered: the paper's own pairs, whose drawing it does not describe; espeak-ng's phonemes, which have their own test.
"""

from __future__ import annotations

import json
import shutil
from collections import Counter

import pytest
import soundfile
from outside import LIBRISPEECH
from typer import Typer
from typer.testing import CliRunner

from paras2s.bench.detection.build import rate_pairs, speaker_pairs
from paras2s.bench.detection.data import SUITES, load_pairs, read_pair_audio
from paras2s.cli.bench_detection import bench_detect_pairs
from paras2s.data_gen.libritts import read_corpus
from paras2s.errors import ConfigError, DataError
from paras2s.reward.judges.base import Pair

WORDS = {"0001": "one two three", "0002": "one two", "0004": "one", "0005": "one two three four five six seven"}


@pytest.fixture(scope="module")
def corpus(tmp_path_factory):
    """Four clips, under three speakers each; the words are as many as above."""
    root = tmp_path_factory.mktemp("libritts") / "dev-clean"
    for speaker in ("84", "174", "251"):
        folder = root / speaker / "7"
        folder.mkdir(parents=True)
        for path in sorted(LIBRISPEECH.glob("*.flac")):
            name = f"{speaker}_7_{path.stem[-4:]}_000000"
            samples, rate_hz = soundfile.read(path)
            soundfile.write(folder / f"{name}.wav", samples, rate_hz)
            (folder / f"{name}.normalized.txt").write_text(WORDS[path.stem[-4:]] + "\n")
    return root


def rate_of(root, pair):
    sides = ((pair.audio1_path, pair.transcript1), (pair.audio2_path, pair.transcript2))
    return [len(words.split()) / soundfile.info(root / path).duration for path, words in sides]


def test_rates_are_sounds_over_the_length_of_the_clip(corpus):
    pairs = rate_pairs(corpus, 200, 0, lambda words: len(words.split()))
    assert len(pairs) == 6
    for pair in pairs:
        first, second = rate_of(corpus, pair)
        assert pair.label == ("1" if first > second else "2")
        assert pair.speaker1 == pair.speaker2
    used = [path for pair in pairs for path in (pair.audio1_path, pair.audio2_path)]
    assert len(set(used)) == 12
    assert len(rate_pairs(corpus, 4, 0, len)) == 4


def test_one_half_of_the_pairs_has_one_speaker(corpus):
    pairs = speaker_pairs(corpus, 200, 3)
    assert Counter(pair.label for pair in pairs) == {"same": len(pairs) // 2, "different": len(pairs) // 2}
    assert all((pair.speaker1 == pair.speaker2) == (pair.label == "same") for pair in pairs)
    assert pairs == speaker_pairs(corpus, 200, 3)
    assert pairs != speaker_pairs(corpus, 200, 4)


def test_what_is_written_is_what_bench_detect_reads(corpus, tmp_path):
    app = Typer()
    app.command()(bench_detect_pairs)
    words = ["speaker_identity", str(corpus), "--out", str(tmp_path / "pairs.json"), "--pairs", "4", "--json"]
    done = CliRunner().invoke(app, words)
    assert done.exit_code == 0, done.output
    assert json.loads(done.stdout)["labels"] == {"different": 2, "same": 2}
    loaded = load_pairs(tmp_path / "pairs.json", SUITES["speaker_identity"])
    assert isinstance(read_pair_audio(loaded.pairs[0], corpus), Pair)
    assert isinstance(CliRunner().invoke(app, [*words, "--voice", "th"]).exception, ConfigError)
    words[1] = str(tmp_path / "none")
    assert isinstance(CliRunner().invoke(app, words).exception, ConfigError)


def test_no_corpus_is_no_pair(corpus, tmp_path):
    with pytest.raises(DataError, match=r"holds no SPEAKER/CHAPTER/NAME\.wav"):
        read_corpus(tmp_path)
    alone = tmp_path / "84" / "7"
    alone.mkdir(parents=True)
    clip = next((corpus / "84" / "7").glob("*.wav"))
    shutil.copy(clip, alone / clip.name)
    with pytest.raises(DataError, match=r"normalized\.txt"):
        read_corpus(tmp_path)
    (alone / f"{clip.stem}.normalized.txt").write_text("one")
    with pytest.raises(DataError, match="different rates"):
        rate_pairs(tmp_path, 1, 0, len)
    with pytest.raises(DataError, match="too few utterances"):
        speaker_pairs(tmp_path, 2, 0)
