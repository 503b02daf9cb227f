"""Covers packing clips into windows, word error rates, and packed recognition against one clip at a time.

Not covered: accents, noise, languages other than English, and clips longer than one window.
"""

import itertools
from pathlib import Path

import pytest

from paras2s.audio.asr import GAP_S, Transcript, normalise_words, pack, transcribe, word_error_rate
from paras2s.audio.clip import Clip, read_clip

LIBRISPEECH = Path(__file__).resolve().parents[2].parent / "shared" / "data" / "librispeech"
FIRST_5_S = {
    "0001": "they are nearly as large as we and relatively much lighter in weight",
    "0002": "and are capable of receiving regular instruction at the age of five months",
    "0004": "on this world of brief all vegetables mature in periods so short that",
    "0005": "early in the morning certain crops are planted and are harvested at night",
}


@pytest.mark.parametrize(
    ("durations_s", "windows"),
    [([], 0), ([3.0], 1), ([4.0, 4.0], 1), ([4.0, 4.0, 4.0], 2), ([20.0, 1.0], 2), ([9.0, 9.0], 2)],
    ids=["none", "one", "two fill it", "third overflows", "too long stands alone", "exact fit"],
)
def test_pack_fills_windows(durations_s: list[float], windows: int) -> None:
    found = pack(durations_s, window_s=10.0, gap_s=1.0)
    assert len(found) == windows
    assert sorted(index for window in found for index in window) == list(range(len(durations_s)))


def test_pack_keeps_neighbours_apart() -> None:
    windows = pack([2.0] * 60)
    following = [after - before for window in windows for before, after in itertools.pairwise(window)]
    assert len(following) > 40
    assert sum(step == 1 for step in following) <= 3


def test_pack_places_every_clip_once_and_within_the_window() -> None:
    durations_s = [0.3 * (i % 17) + 0.5 for i in range(100)]
    windows = pack(durations_s)
    assert sorted(index for window in windows for index in window) == list(range(100))
    assert max(sum(durations_s[i] + GAP_S for i in window) for window in windows) <= 29.0


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


def test_normalise_keeps_letters_and_apostrophes() -> None:
    assert normalise_words("  It's  OK -- really!\n") == "it's ok really"


def test_nothing_to_transcribe() -> None:
    assert transcribe([]) == []
    assert Transcript(()).text == ""


@pytest.mark.skipif(not LIBRISPEECH.is_dir(), reason=f"real speech is outside the repository, in {LIBRISPEECH}")
def test_packed_recognition_is_that_of_each_clip_alone() -> None:
    full = [read_clip(LIBRISPEECH / f"librispeech_1263-139804-{number}.flac") for number in FIRST_5_S]
    clips = [Clip(clip.samples[: 5 * clip.sample_rate_hz], clip.sample_rate_hz) for clip in full]
    packed = transcribe(clips)
    alone = [transcribe([clip])[0] for clip in clips]
    for truth, together, single in zip(FIRST_5_S.values(), packed, alone, strict=True):
        # Neighbours in a window may turn a word ("are", "or") but not move words from clip to clip.
        assert word_error_rate(single.text, together.text) <= 0.1
        assert word_error_rate(truth, together.text) <= 0.1
    rates = [word_error_rate(single.text, both.text) for single, both in zip(alone, packed, strict=True)]
    assert sum(rates) / len(rates) <= 0.05
    for transcript in packed:
        # A last word's end may run into the gap after the clip; its start may not.
        assert all(-0.1 <= word.start_s <= 5.0 and word.start_s <= word.end_s for word in transcript.words)
        assert all(0 <= word.probability <= 1 for word in transcript.words)
