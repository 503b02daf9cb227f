"""Covers windows, the stopping rule and its checks, word error rates, and each clip alone against clips in company.

Not covered: accents, noise, and languages other than English.
"""

import math
from pathlib import Path

import numpy as np
import pytest
import torch
from outside import LIBRISPEECH

from paras2s.audio import asr
from paras2s.audio.asr import (
    BATCH,
    FULL_WINDOW_S,
    RATE_HZ,
    Segment,
    batches,
    cut_at_end,
    cut_loop,
    doubt,
    end_of_sound_s,
    normalise_words,
    split_segments,
    transcribe,
    word_error_rate,
)
from paras2s.audio.clip import Clip, read_clip
from paras2s.reward.blueprint.extract import build_blueprints
from paras2s.reward.blueprint.schema import RESPONSE
from paras2s.reward.blueprint.words import WORD_KEYS, WordsExtractor
from paras2s.reward.judges.audio_judge import judge
from paras2s.reward.judges.audio_judge.judge import TranscriptCache
from paras2s.utils.cache import JsonCache

FIRST_5_S = {
    "0001": "they are nearly as large as we and relatively much lighter in weight",
    "0002": "and are capable of receiving regular instruction at the age of five months",
    "0004": "on this world of brief all vegetables mature in periods so short that",
    "0005": "early in the morning certain crops are planted and are harvested at night",
}
# Of a made-up vocabulary: text below 100, then timestamps of 20 ms.
FIRST_TIMESTAMP = 100


def at(time_s: float) -> int:
    return FIRST_TIMESTAMP + round(time_s / 0.02)


def test_a_clips_window_depends_on_itself_alone() -> None:
    durations_s = [0.5 + 0.37 * (n % 29) for n in range(200)]
    window_of = {place: size_s for places, size_s in batches(durations_s) for place in places}
    assert sorted(window_of) == list(range(200))
    for place, duration_s in enumerate(durations_s):
        assert [size_s for _, size_s in batches([duration_s])] == [window_of[place]]
        assert duration_s + asr.SILENCE_S <= window_of[place] < duration_s + asr.SILENCE_S + asr.WINDOW_STEP_S
    assert all(len(places) <= BATCH for places, _ in batches([3.0] * 100))


def test_a_clip_that_fills_whispers_own_window_is_in_no_batch() -> None:
    assert list(batches([FULL_WINDOW_S, FULL_WINDOW_S - asr.SILENCE_S])) == []
    assert list(batches([])) == []


@pytest.mark.parametrize(
    ("ids", "segments"),
    [
        ([], []),
        ([at(0), at(2)], []),
        ([at(0), 1, 2, at(2)], [Segment(0.0, (1, 2), 2.0)]),
        ([at(0), 1, at(2), at(2.5), 3, at(4)], [Segment(0.0, (1,), 2.0), Segment(2.5, (3,), 4.0)]),
        ([at(0.5), 1, 2], [Segment(0.5, (1, 2), None)]),
        ([1, at(1)], [Segment(0.0, (1,), 1.0)]),
    ],
    ids=["nothing", "no text", "one", "two", "without an end", "without a start"],
)
def test_segments(ids: list[int], segments: list[Segment]) -> None:
    assert split_segments(ids, FIRST_TIMESTAMP) == segments


FIRST, SECOND, MADE_UP = Segment(0.0, (1,), 1.4), Segment(1.5, (2,), 2.9), Segment(3.0, (3,), 4.0)


@pytest.mark.parametrize(
    ("segments", "end_s", "kept"),
    [
        ([FIRST, SECOND, MADE_UP], 3.0, 2),
        ([FIRST, MADE_UP], 1.5, 1),
        ([FIRST, SECOND], 1.3, 1),
        ([Segment(0.0, (1,), None)], 3.0, 1),
        ([Segment(4.0, (1,), 5.0)], 3.0, 1),
    ],
    ids=["ends with the sound", "the next begins behind it", "ends early enough", "no end", "the only one stays"],
)
def test_what_stands_behind_the_sound_is_cut(segments: list[Segment], end_s: float, kept: int) -> None:
    assert cut_at_end(segments, end_s) == segments[:kept]


@pytest.mark.parametrize(
    ("texts", "end_s", "cut_off", "reason"),
    [
        (["Hello there."], 2.9, False, None),
        (["Hello there.", "How are you?"], 2.9, False, None),
        ([], None, False, "nothing was recognised"),
        (["..."], 2.9, False, "nothing was recognised"),
        (["Hello there."], None, True, "it went on to the limit"),
        (["Hello there, you.", "Hello there"], 2.9, False, "it repeats itself"),
        (["go " * 30], 2.9, False, "it repeats itself"),
        (["Hello there."], 1.5, False, "its end is missing"),
    ],
    ids=["good", "two segments", "empty", "dots", "limit", "said again", "looped", "short"],
)
def test_doubts(texts: list[str], end_s: float | None, cut_off: bool, reason: str | None) -> None:
    assert doubt(texts, end_s, 3.0, cut_off) == reason


@pytest.mark.parametrize(
    ("text", "duration_s", "expected"),
    [
        ("No way, it is. No way, it is. No way,", 1.5, "No way, it is."),
        ("No way, it is. No way, it is. No way,", 2.5, "No way, it is. No way, it is. No way,"),
        ("one two three four five six seven eight nine", 1.0, "one two three four five six seven eight nine"),
        ("go go go go go go go go", 1.0, "go go go"),
        ("", 1.0, ""),
    ],
    ids=["looped", "slow enough to have been said", "fast without a loop", "one word", "nothing"],
)
def test_a_sentence_that_nobody_could_have_said_so_often_is_kept_once(text: str, duration_s: float, expected: str) -> None:
    assert cut_loop(text, duration_s) == expected


def test_the_end_of_the_sound_is_that_of_the_last_loud_frame() -> None:
    sound = np.sin(np.arange(RATE_HZ) / 9).astype(np.float32)
    assert end_of_sound_s(np.concatenate([sound, np.zeros(RATE_HZ, np.float32)])) == pytest.approx(1.0)
    assert end_of_sound_s(np.concatenate([sound, 0.001 * sound, sound])) == pytest.approx(3.0)
    assert end_of_sound_s(np.concatenate([sound, 0.001 * sound])) == pytest.approx(1.0)
    assert end_of_sound_s(np.zeros(RATE_HZ, np.float32)) == 0.0


@pytest.mark.parametrize(
    ("reference", "hypothesis", "expected"),
    [
        ("Turn it off, please.", "turn it off please", 0.0),
        ("turn it off please", "turn it on please", 0.25),
        ("turn it off", "", 1.0),
        ("turn it off", "...", 1.0),
        ("no", "no no no", 2.0),
        ("don’t go", "don't go", 0.0),
    ],
    ids=["punctuation", "1 of 4 replaced", "nothing", "only punctuation", "2 added to 1", "curly apostrophe"],
)
def test_word_error_rate_by_hand(reference: str, hypothesis: str, expected: float) -> None:
    assert word_error_rate(reference, hypothesis) == pytest.approx(expected)


def test_reference_without_words_is_refused() -> None:
    with pytest.raises(ValueError, match="no word"):
        word_error_rate("?!", "hello")


@pytest.mark.parametrize(
    ("text", "transcript", "expected"),
    [
        ("The total is 42 dollars.", "The total is 97 dollars.", 0.25),
        ("The total is 42 dollars.", "The total is forty-two dollars.", 0.0),
        ("I have 3 cats.", "I have three cats.", 0.0),
        ("Call 112.", "Call.", 0.5),
        ("Call 112.", "Call one one two.", 0.0),
        ("42", "42", 0.0),
        ("1,000 days", "one thousand days", 0.0),
        ("A naïve café.", "A naive cafe.", 0.0),
        ("Straße, Łódź, smørrebrød", "strasse lodz smorrebrod", 0.0),
        ("Добрый вечер", "добрый день", 0.5),
        ("नमस्ते दुनिया", "नमस्ते", 0.5),
        ("今天天气", "今天", 0.5),
        ("hello 世界", "hello", 2 / 3),
    ],
)
def test_numbers_are_words_and_other_scripts_count(text: str, transcript: str, expected: float) -> None:
    assert word_error_rate(text, transcript) == pytest.approx(expected)


def test_the_recogniser_has_one_thread_whatever_the_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    """Sums of several threads round otherwise, and clipped speech got other words where OMP_NUM_THREADS was 1."""
    given: list[dict[str, object]] = []
    monkeypatch.setattr("faster_whisper.WhisperModel", lambda *_, **options: given.append(options))
    monkeypatch.setattr(asr, "_Recogniser", lambda whisper: whisper)
    asr._recogniser.__wrapped__(asr.EMBEDDED)
    assert given[0]["cpu_threads"] == 1


def test_a_recogniser_leaves_torch_its_threads(clips: list[Clip]) -> None:
    """CTranslate2 and torch share OpenMP: whoever has transcribed would compute by one thread from then on."""
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        asr._recogniser.cache_clear()
        asr.transcribe(clips[:1])
        assert torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(before)


def test_normalise_keeps_letters_and_apostrophes() -> None:
    assert normalise_words("  It's  OK -- really!\n") == "it's ok really"


def test_nothing_to_transcribe() -> None:
    assert transcribe([]) == []


@pytest.fixture(scope="module")
def clips() -> list[Clip]:
    """The first five seconds of four clips, and pieces of other lengths."""
    full = [read_clip(LIBRISPEECH / f"librispeech_1263-139804-{number}.flac") for number in FIRST_5_S]
    pieces = [(0.0, 5.0), (0.0, 3.0), (5.0, 7.5), (5.0, 9.0)]
    return [Clip(c.samples[int(a * RATE_HZ) : int(b * RATE_HZ)], c.sample_rate_hz) for a, b in pieces for c in full]


def test_the_words_of_real_speech(clips: list[Clip]) -> None:
    for truth, found in zip(FIRST_5_S.values(), transcribe(clips[:4], timed=True), strict=True):
        assert word_error_rate(truth, found.text) <= 0.1
        assert found.confidence is not None
        assert 0.4 < found.confidence < 1
        assert normalise_words(" ".join(word.text for word in found.words)) == normalise_words(found.text)
        starts = [word.start_s for word in found.words]
        assert starts == sorted(starts)
        assert starts[0] < 1.0
        assert 4.0 < found.words[-1].end_s <= 5.0
        assert all(word.start_s <= word.end_s and 0 <= (word.probability or 0) <= 1 for word in found.words)


def test_neighbours_change_nothing(clips: list[Clip]) -> None:
    together = transcribe(clips, timed=True)
    backwards = transcribe(clips[::-1], timed=True)[::-1]
    alone = [transcribe([clip], timed=True)[0] for clip in clips]
    assert [one.text for one in together] == [one.text for one in backwards] == [one.text for one in alone]
    for one, other in zip(together, alone, strict=True):
        assert math.isclose(one.confidence or 0, other.confidence or 0, rel_tol=1e-3)
        assert [word.end_s for word in one.words] == [word.end_s for word in other.words]


def test_a_transcript_from_the_cache_is_the_one_recognised(
    clips: list[Clip], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Cold, in whatever company and order, or cached: a clip has the words and the rates that it has alone."""
    clips = clips[4:12]
    alone = [build_blueprints([clip], [WordsExtractor()])[0] for clip in clips]
    cache, held = JsonCache(tmp_path / "cache.sqlite"), TranscriptCache()
    # Some are there already when the others come, backwards, and those beside them.
    build_blueprints(clips[3:5], [WordsExtractor()], cache)
    half_cold = build_blueprints(clips[::-1], [WordsExtractor()], cache)[::-1]
    held_cold = held(clips[::-1])[::-1]
    monkeypatch.setattr(asr, "transcribe", lambda *_, **__: pytest.fail("recognised again"))
    monkeypatch.setattr(judge, "transcribe", asr.transcribe)
    cached = build_blueprints(clips, [WordsExtractor()], JsonCache(tmp_path / "cache.sqlite"))
    for key in WORD_KEYS:
        values = [one.value(key) for one in alone]
        assert None not in values
        assert [one.value(key) for one in half_cold] == values
        assert [one.value(key) for one in cached] == values
    assert cached == half_cold
    assert held(clips) == held_cold == [one.value(RESPONSE) for one in alone]


def test_times_do_not_change_the_words(clips: list[Clip]) -> None:
    assert [one.text for one in transcribe(clips)] == [one.text for one in transcribe(clips, timed=True)]
    assert all(one.words == () for one in transcribe(clips[:4]))


def test_what_is_cut_from_the_text_is_not_among_the_words(clips: list[Clip], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(asr, "cut_loop", lambda text, duration_s: " ".join(text.split()[:3]))
    for one in transcribe(clips[:4], timed=True):
        assert len(one.text.split()) == 3
        assert normalise_words(" ".join(word.text for word in one.words)) == normalise_words(one.text)


def test_a_clip_longer_than_a_window_is_heard_to_its_end() -> None:
    full = [read_clip(LIBRISPEECH / f"librispeech_1263-139804-{number}.flac") for number in FIRST_5_S]
    joined = Clip(np.concatenate([clip.samples for clip in full]), RATE_HZ)
    (found,) = transcribe([joined], timed=True)
    assert joined.duration_s > 50
    assert found.full_window
    assert "nearly as large" in found.text
    assert "harvested at night" in found.text
    assert found.words[-1].end_s > 48


def test_what_runs_to_the_limit_is_given_to_the_full_window(clips: list[Clip], monkeypatch: pytest.MonkeyPatch) -> None:
    expected = [one.text for one in transcribe(clips[:4])]
    monkeypatch.setattr(asr, "TOKENS_PER_S", 0)
    found = transcribe(clips[:4])
    assert all(one.full_window for one in found)
    for one, text in zip(found, expected, strict=True):
        assert word_error_rate(text, one.text) <= 0.2


def test_a_tone_is_given_to_the_full_window() -> None:
    tone = Clip((0.3 * np.sin(np.arange(3 * RATE_HZ) * 0.4)).astype(np.float32), RATE_HZ)
    assert transcribe([tone])[0].full_window
