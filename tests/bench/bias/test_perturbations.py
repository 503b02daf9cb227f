"""How pairs are read and changed: manifests, noise, levels, orders, and what each label of a changed pair means.

Not covered: what a person hears of a changed clip.
"""

import json
from pathlib import Path

import numpy as np
import pytest
from outside import LIBRISPEECH

from paras2s.audio.clip import Clip, encode_clip, read_clip, write_clip
from paras2s.bench.bias import perturbations
from paras2s.bench.bias.perturbations import (
    ProbePair,
    add_noise,
    amplify,
    clips_at,
    load_probe_pairs,
    louder_and_quieter,
    pick_pairs,
)
from paras2s.errors import AudioError, DataError

RATE_HZ = 16_000


def tone(hz=220.0, peak=0.3, duration_s=0.5):
    return Clip((peak * np.sin(2 * np.pi * hz * np.arange(int(RATE_HZ * duration_s)) / RATE_HZ)).astype(np.float32), RATE_HZ)


def real_clip():
    return read_clip(LIBRISPEECH / "librispeech_1263-139804-0001.flac")


def level_db(clip):
    return 10 * np.log10(np.mean(np.square(clip.samples, dtype=np.float64)))


@pytest.fixture
def pair(tmp_path):
    for name, clip in (("a", tone(220)), ("b", tone(330)), ("q", tone(110))):
        write_clip(tmp_path / f"{name}.wav", clip)
    return ProbePair("p", tmp_path / "a.wav", tmp_path / "b.wav", tmp_path / "q.wav", "how?", "happy", cluster="p")


# Manifests.

ROWS = [
    {"id": "x", "first": "a.wav", "second": "b.wav", "human": "tie", "first_mos": 3.5, "second_mos": 4, "cluster": "k"},
    {"id": "y", "first": "sub/c.wav", "second": "b.wav", "instruction": "q.wav", "instruction_text": "why?", "style": "sad"},
    {"id": "z", "first": "c.wav", "second": "b.wav", "human": "2", "aspect": "voice", "first_text": "a b", "second_text": "c"},
]


def as_csv(rows):
    names = sorted({name for row in rows for name in row})
    lines = [",".join(names)] + [",".join(str(row.get(name, "")) for name in names) for row in rows]
    return "\n".join(lines) + "\n"


def write(path, rows):
    path.write_text(as_csv(rows) if path.suffix == ".csv" else "\n".join(map(json.dumps, rows)) + "\n\n")
    return path


@pytest.mark.parametrize("name", ["pairs.csv", "pairs.jsonl"])
def test_both_kinds_of_manifest_say_the_same(tmp_path, name):
    x, y, z = load_probe_pairs(write(tmp_path / name, ROWS))
    assert x == ProbePair(
        "x", tmp_path / "a.wav", tmp_path / "b.wav", human="tie", tied_by="people", cluster="k", mos=(3.5, 4.0)
    )
    assert y == ProbePair("y", tmp_path / "sub/c.wav", tmp_path / "b.wav", tmp_path / "q.wav", "why?", "sad", cluster="y")
    assert (z.human, z.tied_by, z.aspect, z.words) == ("2", None, "voice", ("a b", "c"))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"human": "3"}, r":2: human: Input should be '1', '2' or 'tie'"),
        ({"first": ""}, r":2: first:"),
        ({"colour": "red"}, r":2: colour: Extra inputs"),
        ({"first_mos": "nan", "second_mos": 1}, r":2: first_mos:"),
        ({"first_mos": 3.0}, r":2: row: first_mos and second_mos: give both or neither"),
        ({"id": "x"}, r":2: id: 'x' occurs more than once"),
    ],
)
def test_a_wrong_row_is_named(tmp_path, change, message):
    path = write(tmp_path / "pairs.jsonl", [ROWS[0], ROWS[1] | change])
    with pytest.raises(DataError, match=message):
        load_probe_pairs(path)


def test_a_row_ends_where_a_line_ends_and_nowhere_else(tmp_path):
    path = tmp_path / "pairs.jsonl"
    text = "one\u2028two\x85three"
    path.write_text(json.dumps(ROWS[0] | {"first_text": text}, ensure_ascii=False) + "\r\n" + json.dumps(ROWS[1]), "utf-8")
    one, _ = load_probe_pairs(path)
    assert one.words[0] == text


def test_a_csv_names_the_line_and_the_value_too_many(tmp_path):
    path = tmp_path / "pairs.csv"
    path.write_text("id,first,second\nx,a.wav,b.wav\ny,a.wav,b.wav,c.wav\n")
    with pytest.raises(DataError, match=r"pairs.csv:3: more values than columns"):
        load_probe_pairs(path)


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("p.jsonl", "", "holds no pairs"),
        ("p.jsonl", '{"id": "x"', r":1: not valid JSON"),
        ("p.csv", "id,first,second\n", "holds no pairs"),
        ("p.txt", "x", "expected .csv or .jsonl"),
        ("p.jsonl", "[1]", r":1: row:"),
    ],
)
def test_a_file_that_is_no_manifest_is_refused(tmp_path, name, text, message):
    (tmp_path / name).write_text(text)
    with pytest.raises(DataError, match=message):
        load_probe_pairs(tmp_path / name)


def test_a_sample_is_seeded_and_keeps_the_order():
    pairs = [ProbePair(str(n), Path("a"), Path("b")) for n in range(50)]
    found = pick_pairs(pairs, 10, 1)
    assert found == pick_pairs(pairs, 10, 1) != pick_pairs(pairs, 10, 2)
    assert [int(one.id) for one in found] == sorted({int(one.id) for one in found})
    assert pick_pairs(pairs, None, 0) == pick_pairs(pairs, 60, 0) == pairs


# Sound.


def measured_snr_db(clean, noisy):
    """From the scale that fits best, since a sum that would clip is turned down."""
    x, y = clean.samples.astype(np.float64), noisy.samples.astype(np.float64)
    scale = x @ y / (x @ x)
    return 10 * np.log10(np.sum((scale * x) ** 2) / np.sum((y - scale * x) ** 2))


@pytest.mark.parametrize("snr_db", [*perturbations.SNRS_DB, perturbations.CONTROL_DB])
@pytest.mark.parametrize("peak", [0.02, 0.3, 0.99])
def test_noise_has_the_ratio_that_was_requested(snr_db, peak):
    clean = tone(peak=peak, duration_s=2.0)
    noisy = add_noise(clean, snr_db, np.random.default_rng(0))
    assert measured_snr_db(clean, noisy) == pytest.approx(snr_db, abs=0.1)
    assert np.abs(noisy.samples).max() <= 1.0


def test_noise_on_real_speech_has_its_ratio_after_encoding_too():
    clean = real_clip()
    for snr_db in (1.0, 10.0, 30.0):
        noisy = add_noise(clean, snr_db, np.random.default_rng(1))
        assert measured_snr_db(clean, read_clip(encode_clip(noisy))) == pytest.approx(snr_db, abs=0.1)


def test_silence_has_no_ratio():
    with pytest.raises(AudioError, match="silent"):
        add_noise(Clip(np.zeros(800, np.float32), RATE_HZ), 10, np.random.default_rng(0))


@pytest.mark.parametrize("gain_db", [6.0, -6.0])
def test_a_gain_is_a_difference_of_levels(gain_db):
    assert level_db(amplify(tone(peak=0.1), gain_db)) - level_db(tone(peak=0.1)) == pytest.approx(gain_db, abs=1e-3)


def test_a_gain_on_real_speech_is_one_of_loudness():
    pyloudnorm = pytest.importorskip("pyloudnorm")
    clip = real_clip()
    meter = pyloudnorm.Meter(clip.sample_rate_hz)
    louder, quieter = louder_and_quieter(clip, 6.0)
    difference = meter.integrated_loudness(louder.samples) - meter.integrated_loudness(quieter.samples)
    assert difference == pytest.approx(6.0, abs=0.05)


def test_where_more_would_clip_the_original_is_turned_down():
    quiet, loud = tone(peak=0.4), tone(peak=0.7)
    assert not clips_at(quiet, 6.0)
    assert clips_at(loud, 6.0)
    louder, quieter = louder_and_quieter(quiet, 6.0)
    assert quieter is quiet
    assert level_db(louder) > level_db(quiet)
    louder, quieter = louder_and_quieter(loud, 6.0)
    assert louder is loud
    assert level_db(quieter) - level_db(loud) == pytest.approx(-6.0, abs=1e-3)
    louder, quieter = louder_and_quieter(quiet, -6.0)
    assert louder is quiet


# Trials.


def hz_of(clip):
    spectrum = np.abs(np.fft.rfft(clip.samples))
    return round(float(np.argmax(spectrum)) * clip.sample_rate_hz / len(clip.samples))


def test_the_other_order_exchanges_clips_and_words(pair):
    (trial,) = perturbations.position([pair])
    given, exchanged = (ask.make() for ask in trial.comparisons)
    assert [hz_of(clip) for clip in (given.first, given.second, exchanged.first, exchanged.second)] == [220, 330, 330, 220]
    assert (given.instruction.text, given.instruction.style, hz_of(given.instruction.clip)) == ("how?", "happy", 110)
    assert given.words is None
    worded = ProbePair(**{**vars(pair), "words": ("one", "two"), "aspect": "voice"})
    (trial,) = perturbations.position([worded])
    assert [ask.make().words for ask in trial.comparisons] == [("one", "two"), ("two", "one")]
    assert trial.read(["1", "1"]) == [(("all",), "first"), (("aspect voice",), "first")]


def test_a_comparison_of_two_probes_is_one(pair):
    (place,), (noisy, *_) = perturbations.position([pair]), perturbations.noise([pair], 0)
    assert place.comparisons[0] == noisy.comparisons[0]
    assert len({*place.comparisons, *noisy.comparisons}) == 3


def test_equal_files_are_one_clip(pair, tmp_path):
    (tmp_path / "copy.wav").write_bytes((tmp_path / "a.wav").read_bytes())
    other = ProbePair("o", tmp_path / "copy.wav", tmp_path / "missing.wav", cluster="o")
    clips = perturbations.distinct_clips([pair, other])
    assert [clip.pair.id for clip in clips] == ["p", "p", "o"]
    trials = perturbations.identical(clips)
    twice = trials[1].comparisons[0].make()
    assert hz_of(twice.first) == hz_of(twice.second) == 330
    assert np.array_equal(twice.first.samples, twice.second.samples)
    with pytest.raises(AudioError, match=r"missing\.wav: no such file"):
        trials[2].comparisons[0].make()
    assert [trials[0].read([label])[0][1] for label in ("1", "2", "tie", None)] == ["first", "second", "tie", None]


@pytest.mark.parametrize(
    ("tokens", "label", "meaning"),
    [((9, 4), "1", "longer"), ((9, 4), "2", "shorter"), ((4, 9), "1", "shorter"), ((4, 9), "tie", "tie"), ((4, 9), None, None)],
)
def test_only_tied_pairs_of_unequal_length_tell_of_verbosity(pair, tokens, label, meaning):
    tied = ProbePair(**{**vars(pair), "tied_by": "people"})
    given, exchanged = perturbations.verbosity([tied, pair], {"p": tokens})
    assert given.read([label]) == [(("all",), meaning)]
    # In the other order the same place has the other answer.
    other = {"longer": "shorter", "shorter": "longer"}.get(meaning, meaning)
    assert exchanged.read([label]) == [(("all",), other)]
    assert [trial.comparisons[0] for trial in (given, exchanged)] == [
        perturbations.as_given(tied),
        perturbations.turned_round(tied),
    ]
    assert given.cluster == exchanged.cluster
    assert perturbations.verbosity([tied], {"p": (9, 5)}) == []
    assert perturbations.verbosity([pair], {}) == []


def test_noise_is_the_same_every_time_and_another_on_each_answer(pair):
    trials = perturbations.noise([pair], 7)
    assert [trial.comparisons[1].change for trial in trials] == [f"noise at {snr:g} dB" for snr in (1, 5, 10, 20, 30, 40, 80)]
    once, again = (trials[2].comparisons[1].make() for _ in range(2))
    assert np.array_equal(once.first.samples, again.first.samples)
    assert not np.array_equal(once.first.samples, perturbations.noise([pair], 8)[2].comparisons[1].make().first.samples)
    clean = trials[2].comparisons[0].make()
    noises = [noisy.samples - plain.samples for noisy, plain in ((once.first, clean.first), (once.second, clean.second))]
    assert abs(np.corrcoef(noises)[0, 1]) < 0.1
    assert measured_snr_db(clean.second, once.second) == pytest.approx(10, abs=0.1)
    assert np.array_equal(once.instruction.clip.samples, clean.instruction.clip.samples)


def test_a_noisy_verdict_counts_at_its_level_and_in_its_class(pair):
    chosen = ProbePair(**{**vars(pair), "human": "2"})
    (trial, *_) = perturbations.noise([chosen], 0)
    assert trial.read(["1", "1"]) == [(("1 dB",), "unchanged"), (("1 dB", "not chosen"), "unchanged")]
    assert trial.read(["2", "tie"]) == [(("1 dB",), "changed"), (("1 dB", "chosen"), "changed")]
    assert trial.read(["2", None]) == [(("1 dB",), None), (("1 dB", "chosen"), None)]
    assert trial.read([None, "2"]) == [(("1 dB",), None)]


def test_the_louder_clip_comes_first_in_one_level_of_two(pair):
    clips = perturbations.distinct_clips([pair])
    trials = perturbations.loudness(clips)
    first_is_louder = []
    for trial in trials:
        made = trial.comparisons[0].make()
        louder_first = level_db(made.first) > level_db(made.second)
        assert abs(level_db(made.first) - level_db(made.second)) == pytest.approx(6.0, abs=1e-3)
        assert trial.read(["1"])[0][1] == ("louder" if louder_first else "quieter")
        assert trial.read(["2"])[0][1] == ("quieter" if louder_first else "louder")
        first_is_louder.append(louder_first)
    # Of either clip once, and once at each level.
    assert first_is_louder == [True, False, False, True]
    assert perturbations.turned_down(clips) == 0


def test_a_voice_is_compared_with_the_clips_own(pair):
    def revoice(clip, voice):
        return tone({"own": 100, "high": 400, "low": 50}[voice])

    trials = perturbations.speaker(perturbations.distinct_clips([pair]), revoice, ["high", "low"])
    own_first = []
    for trial in trials:
        made = trial.comparisons[0].make()
        first = hz_of(made.first) == 100
        assert {hz_of(made.first), hz_of(made.second)} - {100} == {400 if trial.read(["1"])[0][0] == ("high",) else 50}
        assert trial.read(["1"])[0][1] == ("original" if first else "other")
        own_first.append(first)
    assert own_first == [True, False, False, True]


def test_a_gap_in_opinion_says_which_verdict_is_right(pair):
    better_second = ProbePair(**{**vars(pair), "mos": (3.0, 4.25)})
    equal = ProbePair(**{**vars(pair), "id": "e", "mos": (3.0, 3.0)})
    trial, even = perturbations.mos_gap([better_second, pair, equal])
    assert dict(trial.read(["2", "1"])) == {
        ("all", "order"): "stable", ("1 to 1.5", "order"): "stable",
        ("all", "verdict"): "right", ("1 to 1.5", "verdict"): "right",
    }  # fmt: skip
    assert dict(trial.read(["tie", "2"]))["all", "verdict"] == "wrong"
    assert dict(trial.read(["2", None])) == {
        ("all", "order"): None, ("1 to 1.5", "order"): None, ("all", "verdict"): "right", ("1 to 1.5", "verdict"): "right",
    }  # fmt: skip
    assert {group[1] for group, _ in even.read(["1", "2"])} == {"order"}
