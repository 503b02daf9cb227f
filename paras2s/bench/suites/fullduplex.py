"""Full-Duplex-Bench v1 and v1.5 (arXiv 2503.04721, 2507.23159): when a system speaks, keeps silent and yields; no judge.

Items are `TASK/ID/input.wav`, answers `TASK/ID/output.wav` of the same clock, with the makers' `output.json` of timed words
beside them, or words that are recognised here. Speech is found by Silero's detector, as the makers find it. Left out: the
relevance of what is said after an interruption, and v1.5's classes of behaviour, which an LLM gives.
"""

from __future__ import annotations

import functools
import json
from collections.abc import Iterator, Sequence
from statistics import fmean
from typing import Any

import numpy as np

from paras2s.audio.asr import transcribe
from paras2s.audio.clip import Clip
from paras2s.bench.ranking.answers import SystemAnswer
from paras2s.bench.suites.base import Item, Parts, Question, Suite, SuiteRow, UserTurn, mean_of, with_part
from paras2s.bench.suites.download import Download
from paras2s.errors import AssetError, JudgeError, one_line
from paras2s.statistics.intervals import Share
from paras2s.types import Unscored

Span = tuple[float, float]
# The annotation of each task, and the key of the moment from which the answer is timed.
TASKS = {
    **dict.fromkeys(("candor_pause_handling", "synthetic_pause_handling", "icc_backchannel"), ""),
    "candor_turn_taking": "turn_taking.json",
    "synthetic_user_interruption": "interrupt.json",
    **dict.fromkeys(("user_interruption", "user_backchannel", "talking_to_other", "background_speech"), "metadata.json"),
}
TAKES_OVER, LATENCY, FREQUENCY, DIVERGENCE = "take-over rate", "latency, s", "backchannels a second", "divergence from people"
STOP, RESPONSE = "stop latency, s", "response latency, s"
TURN_S, TURN_WORDS = 1.0, 3
SPEAKS_S, WINDOW_S, BACKCHANNEL_WORDS = 3.0, 0.2, 2
USER_GAP_S, MODEL_GAP_S = 0.6, 0.5
RATE_HZ = 16_000


class FullDuplexBench(Suite):
    """Full-Duplex-Bench, v1 and v1.5."""

    name, title = "fullduplex", "Full-Duplex-Bench v1 and v1.5"
    source = "the repository DanielLin94144/Full-Duplex-Bench, whose README links the data"
    measured = ("timing",)
    timed = True

    def items(self, data: Download) -> Iterator[Item]:
        """Yield the recordings of the existing tasks."""
        for task, folder in data.present({task: task for task in TASKS}).items():
            for recording in sorted(path for path in folder.iterdir() if path.is_dir()):
                values: dict[str, Any] = {}
                try:
                    if name := TASKS[task]:
                        marks = json.loads((recording / name).read_text(encoding="utf-8"))
                        first = marks if isinstance(marks, dict) else marks[0]
                        values["span"] = tuple(map(float, first.get("timestamps") or first["timestamp"]))
                except (OSError, ValueError, LookupError, TypeError) as error:
                    data.problems.append(f"{recording / TASKS[task]}: {one_line(error)}")
                    continue
                yield Item(f"{task}/{recording.name}", task, (UserTurn(data.sound(recording, "input.wav")),), values)

    def answer_names(self, item: Item, turn: int) -> Sequence[str]:
        """Return the makers' name, and ours."""
        return [f"{item.id}/output", item.id]

    def scoring(self, item: Item, metric: str, answers: Sequence[SystemAnswer], data: Download) -> Question | Parts | Unscored:
        """Return the times of an answer. An output without a word is silence, which is a result here."""
        answer, span = answers[0], item.values.get("span", ())
        clip = answer.response.clip
        if clip is None:
            raise JudgeError(answer.response.missing or "no sound")
        if TASKS[item.subset] == "metadata.json":
            user, model = speech(data.clip(item.turns[0].clip)), speech(clip)
            return overlap_times(merged(user, USER_GAP_S), merged(model, MODEL_GAP_S))
        words = timed_words(answer, clip)
        if item.subset == "icc_backchannel":
            return backchannels(speech(clip), words, clip.duration_s, _people(data, item))
        if item.subset == "synthetic_user_interruption":
            words = [word for word in words if word[0] >= span[1]]
        takes = takes_over(words)
        parts = {TAKES_OVER: float(takes)}
        if span and takes:
            since = span[1] if item.subset == "synthetic_user_interruption" else span[0]
            parts[LATENCY] = max(0.0, words[0][0] - since)
        return parts

    def columns(self, rows: Sequence[SuiteRow]) -> dict[str, Share]:
        """Return every task's rates and times; a time is over the answers that have it."""
        columns = {}
        for task in dict.fromkeys(row.subset for row in rows):
            own = [row for row in rows if row.subset == task]
            for part in dict.fromkeys(name for row in own for name in row.parts):
                columns[f"{task}: {part}"] = mean_of(with_part([row for row in own if row.unscored or part in row.parts], part))
        return columns


def timed_words(answer: SystemAnswer, clip: Clip) -> list[Span]:
    """Return start and end of every word, the makers' or recognised here. Raises JudgeError: output.json is of another form."""
    path = None if answer.path is None else answer.path.with_suffix(".json")
    if path is not None and path.is_file():
        try:
            marks = [chunk["timestamp"] for chunk in json.loads(path.read_text(encoding="utf-8"))["chunks"]]
            return [(float(start), float(start if end is None else end)) for start, end in marks if start is not None]
        except (ValueError, LookupError, TypeError) as error:
            raise JudgeError(f"{path.name}: {one_line(error)}") from error
    return [(word.start_s, word.end_s) for word in transcribe([clip], timed=True)[0].words]


def takes_over(words: Sequence[Span]) -> bool:
    """Return whether words are a turn: they last a second, or are more than three."""
    return bool(words) and (words[-1][1] - words[0][0] >= TURN_S or len(words) > TURN_WORDS)


def speech(clip: Clip) -> list[Span]:
    """Return the stretches of speech in seconds. Raises AssetError: the detector is not installed."""
    detect, options = _detector()
    stretches = detect(clip.at(RATE_HZ).samples, options)
    return [(stretch["start"] / RATE_HZ, stretch["end"] / RATE_HZ) for stretch in stretches]


@functools.lru_cache(maxsize=1)
def _detector() -> tuple[Any, Any]:
    try:
        from faster_whisper.vad import VadOptions, get_speech_timestamps
    except ImportError as error:
        raise AssetError(f"Silero's detector of speech is not installed ({one_line(error)})") from error
    return get_speech_timestamps, VadOptions(min_speech_duration_ms=250, min_silence_duration_ms=100, speech_pad_ms=30)


def merged(spans: Sequence[Span], gap_s: float) -> list[Span]:
    """Return spans joined across gaps of at most this length."""
    joined: list[Span] = []
    for start, end in sorted(spans):
        if joined and start - joined[-1][1] <= gap_s:
            joined[-1] = (joined[-1][0], max(joined[-1][1], end))
        else:
            joined.append((start, end))
    return joined


def overlap_times(user: Sequence[Span], model: Sequence[Span]) -> Parts:
    """Return the mean overlap, and the time from a user's end to the model's next start. Raises JudgeError: neither occurs."""
    both = [(max(a[0], b[0]), min(a[1], b[1])) for a in user for b in model]
    # Of overlaps that end together, and of users' ends before the same start, the shortest counts.
    stops: dict[int, float] = {}
    gaps: dict[int, float] = {}
    for start, end in both:
        if end > start:
            stops[round(1000 * end)] = min(end - start, stops.get(round(1000 * end), end - start))
    for _, end in user:
        for start in [start for start, _ in model if start > end][:1]:
            gaps[round(1000 * start)] = min(start - end, gaps.get(round(1000 * start), start - end))
    parts = {STOP: fmean(stops.values())} if stops else {}
    parts |= {RESPONSE: fmean(gaps.values())} if gaps else {}
    if not parts:
        raise JudgeError("the system neither speaks over the user nor after them")
    return parts


def _people(data: Download, item: Item) -> Sequence[float]:
    path = data.look_for("icc_gt_distribution.json") or data.look_for("v1_v1.5/evaluation/icc_gt_distribution.json")
    if path is None:
        path = data.find("evaluation/icc_gt_distribution.json")
    values = json.loads(path.read_text(encoding="utf-8"))
    name = item.id.rpartition("/")[2]
    if name not in values:
        raise JudgeError(f"{path.name}: has no people's backchannels of {name}")
    return list(values[name])


def backchannels(spans: Sequence[Span], words: Sequence[Span], duration_s: float, people: Sequence[float]) -> Parts:
    """Return whether a system takes over a listener's part, its short sounds a second, and their distance from people's."""
    from scipy.spatial.distance import jensenshannon

    takes, short = 0.0, list[Span]()
    for start, end in spans:
        if end - start > SPEAKS_S:
            takes = 1.0
            break
        within = [word for word in words if word[0] <= end and word[1] > start]
        takes = float(end - start >= 1 or len(within) > BACKCHANNEL_WORDS)
        short.append((start, end))
    divergence = 1.0
    if short:
        windows = np.zeros(int(duration_s / WINDOW_S) + 1) + 1e-10
        for start, end in short:
            windows[int(start / WINDOW_S) : int(end / WINDOW_S) + 1] += 1
        places = np.linspace(0, 1, len(windows))
        expected = np.interp(places, np.linspace(0, 1, len(people)), people)
        divergence = float(jensenshannon(windows / windows.sum(), expected))
    return {TAKES_OVER: takes, FREQUENCY: len(short) / duration_s, DIVERGENCE: divergence}
