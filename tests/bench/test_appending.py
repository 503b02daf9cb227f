"""`bench speakbench` and `bench detect` append verdicts, so that what they write grows with the pairs and a kill loses little.

Not covered: a kill in the middle of a chunk, whose replies the endpoint's cache keeps.
"""

import json
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from paras2s.audio.clip import Clip
from paras2s.bench.detection import run as detection
from paras2s.bench.detection.data import SUITES, DetectPair, load_rows, rows_so_far
from paras2s.bench.speakbench import run as speakbench
from paras2s.bench.speakbench.data import SuitePair
from paras2s.bench.speakbench.verdicts import load_verdicts
from paras2s.errors import DataError
from paras2s.reward.fusion import find_rule
from paras2s.reward.judges.base import Pair, Utterance
from paras2s.types import PairVerdict, Preference, Unscored
from paras2s.utils import io

LABELS = {"content": "1", "voice_quality": "2", "paralinguistics": "both_good"}
CLIPS = Pair(Utterance(None, "Say it."), *(Clip(np.full(160, level, np.float32), 16_000) for level in (0.1, 0.2)))


class Killed(Exception):
    """The end of a run."""


class Judge:
    """Gives every pair the same verdict; with `dies_at`, ends the run at that chunk; the pairs of `odd` chunks are unscored."""

    name, version, pair_prompt = "scripted", "1", SimpleNamespace(hash="p")

    def __init__(self, dies_at=None, odd=False):
        self.dies_at, self.odd, self.chunks, self.judged = dies_at, odd, 0, 0

    def _answers(self, pairs, verdict):
        self.chunks += 1
        if self.chunks == self.dies_at:
            raise Killed
        self.judged += len(pairs)
        return [Unscored("scripted", "no reply") if self.odd and self.chunks % 2 else verdict for _ in pairs]

    def pair_requests(self, pairs):
        return [[] for _ in pairs]

    requests = pair_requests

    def label_pairs(self, pairs, on_progress):
        return self._answers(pairs, a_verdict())

    def compare_batch(self, pairs, on_progress):
        return self._answers(pairs, Preference("scripted", "1", "", "q", "1", 1.0, ("1",), (1.0,), None, None, "", ""))


def a_verdict():
    return PairVerdict(
        judge="scripted", version="1", prompt_hash="p", labels=LABELS, reason="", reply="", consistent=None,
        text_in_tokens=1, audio_in_tokens=0, text_out_tokens=1, cost_usd=0.0, latency_s=0.0, local_s=0.0,
    )  # fmt: skip


def of_speakbench(judge, n, path):
    label = {**LABELS, "overall": "1"}
    names = {key: "x" for key in ("instruction_path", "instruction_text", "model_a", "model_b", "audio1_path", "audio2_path")}
    pairs = [SuitePair(index=number, label=label, instruction_id=0, **names) for number in range(n)]
    speakbench.judge_suite(judge, pairs, Path(), path, ("speakbench", find_rule("speakbench")), lambda *_: None)


def of_detection(judge, n, path):
    pairs = [DetectPair(audio1_path=f"{number}.wav", audio2_path="b.wav", label="1") for number in range(n)]
    detection.judge_pairs(judge, pairs, Path(), path, lambda *_: None, rows_so_far(path, SUITES["somos"]))


RUNS = {"speakbench": of_speakbench, "detection": of_detection}
LOADS = {
    "speakbench": lambda path: {key: row.labels for key, row in load_verdicts(path).items()},
    "detection": lambda path: {key: row.label for key, row in load_rows(path, SUITES["somos"]).items()},
}


@pytest.fixture(params=list(RUNS))
def bench(request, monkeypatch):
    """The name of a benchmark whose chunks are two pairs, and whose clips are at hand."""
    for module in (speakbench, detection):
        monkeypatch.setattr(module, "CHUNK_PAIRS", 2)
        monkeypatch.setattr(module, "read_pair_audio", lambda pair, root: CLIPS)
    return request.param


def written_rows(bench, n, path, monkeypatch):
    """Number of rows that a run over n pairs turns into text."""
    count = 0

    def dumps(*args, **named):
        nonlocal count
        count += 1
        return json.dumps(*args, **named)

    with monkeypatch.context() as patched:
        patched.setattr(io, "json", SimpleNamespace(dumps=dumps, loads=json.loads))
        RUNS[bench](Judge(), n, path)
    return count


def test_each_row_is_written_when_it_comes_and_once_at_the_end(bench, tmp_path, monkeypatch):
    assert written_rows(bench, 10, tmp_path / "a.jsonl", monkeypatch) == 2 * 10
    assert written_rows(bench, 80, tmp_path / "b.jsonl", monkeypatch) == 2 * 80


@pytest.mark.parametrize("torn", ["", '{"index": 9, "lab'])
def test_a_killed_run_goes_on_to_the_file_of_an_uninterrupted_one(bench, tmp_path, torn):
    full, cut = tmp_path / "full.jsonl", tmp_path / "cut.jsonl"
    RUNS[bench](Judge(), 8, full)
    with pytest.raises(Killed):
        RUNS[bench](Judge(dies_at=4), 8, cut)
    with cut.open("a") as file:
        file.write(torn)
    assert len(LOADS[bench](cut)) == 6
    RUNS[bench](Judge(), 8, cut)
    assert cut.read_text() == full.read_text()


def test_a_run_killed_within_its_first_row_starts_anew(bench, tmp_path):
    path = tmp_path / "rows.jsonl"
    path.write_text('{"ind')
    RUNS[bench](Judge(), 4, path)
    assert len(LOADS[bench](path)) == 4


def test_a_verdict_takes_the_place_of_an_unscored_row_and_of_no_verdict(bench, tmp_path):
    path = tmp_path / "rows.jsonl"
    RUNS[bench](Judge(odd=True), 4, path)
    assert list(LOADS[bench](path).values()).count(None) == 2
    # The second run is killed after the pairs that were unscored: the file holds both rows of each, and the verdict counts.
    with pytest.raises(Killed):
        RUNS[bench](Judge(dies_at=2), 4, path)
    assert len(path.read_text().splitlines()) == 6
    assert None not in LOADS[bench](path).values()
    path.write_text(path.read_text().splitlines()[-1] + "\n" + path.read_text())
    with pytest.raises(DataError, match="judged twice"):
        LOADS[bench](path)
