"""Which trials a page lets people hear, and that its players hold the clips that were compared."""

from __future__ import annotations

import base64
import io
from dataclasses import dataclass
from html.parser import HTMLParser

import numpy as np
import pytest
import soundfile

from paras2s.audio.clip import Clip, write_clip
from paras2s.bench.bias.examples import MAX_EXAMPLES, pick_examples
from paras2s.bench.bias.judges import Probed
from paras2s.bench.bias.perturbations import ProbePair, noise, position
from paras2s.bench.bias.report import ProbeReport, write_probes
from paras2s.bench.bias.run import make_plan, probe_judge
from paras2s.reward.judges.votes import POINTS
from paras2s.types import Preference, Unscored

RATE_HZ = 16_000


def tone(hz, duration_s):
    return Clip((0.3 * np.sin(2 * np.pi * hz * np.arange(int(RATE_HZ * duration_s)) / RATE_HZ)).astype(np.float32), RATE_HZ)


@pytest.fixture
def pairs(tmp_path):
    """Five pairs of two lengths, of which the last is about the same thing as the one before."""
    found = []
    for number in range(5):
        names = [tmp_path / f"{number}-{side}.wav" for side in "ab"]
        for path, duration_s in zip(names, (0.3 + 0.1 * number, 0.25), strict=True):
            write_clip(path, tone(300 + 50 * number, duration_s))
        found.append(ProbePair(f"p{number}", *names, text="say <it>", cluster=f"c{min(number, 3)}"))
    return found


@dataclass
class ScriptedJudge:
    """Likes the first place where the longer of the two clips is longer than half a second, else the longer one."""

    name: str = "scripted"
    scores_alone: bool = False

    def compare_batch(self, pairs, on_progress=None):
        found = []
        for pair in pairs:
            first, second = pair.first.duration_s, pair.second.duration_s
            label = "1" if max(first, second) > 0.55 or first > second else "2"
            found.append(Preference("scripted", "1", "", "", label, POINTS[label], (label,), (1.0,), None, None, "", ""))
        return found


class Players(HTMLParser):
    def __init__(self, text):
        super().__init__()
        self.clips = []
        self.feed(text)

    def handle_starttag(self, tag, attrs):
        if tag == "audio":
            kind, _, data = dict(attrs)["src"].partition(";base64,")
            assert kind == "data:audio/ogg"
            self.clips.append(soundfile.read(io.BytesIO(base64.b64decode(data))))


def report_of(judge):
    settings = {"seed": 0, "resamples": 10_000, "snrs_db": [1.0], "control_db": 80.0, "gain_db": 6.0}
    return ProbeReport("here", 5, 5, 4, settings, (judge,))


def test_the_page_plays_the_compared_clips_in_their_order_and_what_goes_by_place_first(pairs, tmp_path):
    plan = make_plan(pairs, ("position", "noise"), 0)
    judge, *_ = probe_judge(Probed("scripted", ScriptedJudge(), "1"), plan, lambda done, total: None)
    shown = judge.examples["position"]
    # Of pairs 3 and 4, which are longer, one: they are of one cluster; then stable ones.
    assert [(one.about, one.outcome) for one in shown] == [("pair p3", "first"), ("pair p0", "stable"), ("pair p1", "stable")]
    assert [one.verdict for one in shown[0].comparisons] == ["the first", "the first"]
    assert [one.verdict for one in shown[1].comparisons] == ["the first", "the second"]
    report = report_of(judge)
    write_probes(tmp_path, report)
    page = (tmp_path / "probe.html").read_text()
    players = Players(page)
    lengths = [round(len(samples) / rate_hz, 2) for samples, rate_hz in players.clips]
    # Three trials of two comparisons of two clips each; the exchanged comparison plays them the other way round.
    assert lengths[:8] == [0.6, 0.25, 0.25, 0.6, 0.3, 0.25, 0.25, 0.3]
    assert len(lengths) == 2 * MAX_EXAMPLES * 2 * 2
    # A noisy clip is played with its noise: at 1 dB, nearly half of the power is off the tone.
    clean, noisy = (np.abs(np.fft.rfft(players.clips[place][0])) ** 2 for place in (12, 14))
    assert [float(one.max() / one.sum()) > 0.7 for one in (clean, noisy)] == [True, False]
    assert "Hear 3 of 5 trials" in page
    assert "Asked: say &lt;it&gt;" in page
    assert "examples" not in report.as_json()["judges"][0]


def test_a_judge_of_single_answers_was_not_asked_in_the_other_order(pairs):
    trials = position(pairs)
    found = {comparison: ("tie", (3.0, 3.0)) for trial in trials for comparison in trial.comparisons}
    shown = pick_examples(trials, found, alone=True)
    assert [[one.change for one in trial.comparisons] for trial in shown] == [["as given"]] * MAX_EXAMPLES
    assert shown[0].comparisons[0].verdict == "a tie: 3 and 3"


def test_what_cannot_be_told_or_held_is_not_played(pairs, tmp_path):
    write_clip(tmp_path / "1-a.wav", tone(300, 61.0))
    (tmp_path / "2-b.wav").unlink()
    trials = noise(pairs[:3], 0)[:3]
    labels = ("tie", Unscored("audio", "no such file"))
    found = {one: (labels["p0" in one.about or one.about == "pair p2"], None) for trial in trials for one in trial.comparisons}
    (trial,) = pick_examples(trials, found, alone=False)
    assert trial.about == "pair p1"
    long, short = trial.comparisons[0].clips
    assert (long.source, long.problem) == (None, "not held by this page: 61 s")
    assert short.source is not None
