"""Specialised judges on real clips made worse or faster, and the speaker model's true architecture at random weights.

Not covered: the weights of a speaker-verification model, which come from a hub; random ones know no speaker.
"""

import shutil

import numpy as np
import pytest
from outside import LIBRISPEECH

from paras2s.audio.clip import Clip, make_clip, read_clip
from paras2s.bench.detection.baselines import BASELINES, count_phonemes, open_baseline, same_speaker, speech_s
from paras2s.bench.detection.data import SUITES
from paras2s.errors import AssetError, ConfigError
from paras2s.reward.judges.base import Exchange, Pair, Utterance
from paras2s.types import Preference, Unscored, Verdict

NEEDS_ESPEAK = pytest.mark.skipif(shutil.which("espeak-ng") is None, reason="the program espeak-ng is not installed")
SILENCE = Clip(np.zeros(16_000, np.float32), 16_000)


@pytest.fixture(scope="module")
def clips():
    return [read_clip(path) for path in sorted(LIBRISPEECH.glob("*.flac"))]


@pytest.fixture
def kept(tmp_path):
    return {"cache_dir": tmp_path}


def noisy(clip, snr_db):
    noise = np.random.default_rng(0).standard_normal(len(clip.samples))
    noise *= np.sqrt((clip.samples**2).mean() / (noise**2).mean()) * 10 ** (-snr_db / 20)
    return make_clip(clip.samples + noise, clip.sample_rate_hz)


def faster(clip, factor):
    return Clip(clip.at(round(clip.sample_rate_hz / factor)).samples, clip.sample_rate_hz)


def pair_of(first, second, words=None):
    return Pair(Utterance(), first, second, words)


def labels(found):
    return [one.label if isinstance(one, Preference) else one.reason for one in found]


# Quality.


def test_dnsmos_prefers_the_clean_clip_in_either_place(clips, kept):
    judge, bad = open_baseline("dnsmos", SUITES["tmhintq"], kept), noisy(clips[0], 0)
    given = []
    pairs = [pair_of(clips[0], bad), pair_of(bad, clips[0]), pair_of(clips[0], clips[0])]
    found = judge.compare_batch(pairs, lambda done, total: given.append((done, total)))
    assert labels(found) == ["1", "2", "tie"]
    assert [one.points for one in found] == [1.0, 0.0, 0.5]
    assert given == [(1, 3), (2, 3), (3, 3)]


def test_dnsmos_scores_a_clip_from_one_to_five_and_silence_not_at_all(clips, kept):
    judge = open_baseline("dnsmos", SUITES["somos"], kept)
    good, none = judge.score_batch([Exchange(Utterance(), clips[0]), Exchange(Utterance(), SILENCE)])
    assert isinstance(good, Verdict)
    assert 1 <= good.score <= 5
    assert isinstance(none, Unscored)
    assert "silent" in none.reason
    assert isinstance(judge.compare_batch([pair_of(clips[0], SILENCE)])[0], Unscored)


# Speaking rate.


def test_speech_lasts_from_its_first_to_its_last_loud_frame():
    tone = 0.3 * np.sin(2 * np.pi * 200 * np.arange(16_000) / 16_000)
    padded = np.concatenate([np.zeros(8000), tone, np.zeros(4000), tone, np.full(8000, 1e-4)])
    # A second of tone, a quarter of silence that is inside, and another second.
    assert speech_s(make_clip(padded, 16_000)) == pytest.approx(2.25, abs=0.021)


@NEEDS_ESPEAK
def test_phonemes_are_counted_as_espeak_speaks_them():
    # k-ae-t, and d-ow-g after it.
    assert count_phonemes("cat", "en-us") == 3
    assert count_phonemes("cat. dog", "en-us") == 6
    assert count_phonemes("--version", "en-us") == count_phonemes("version", "en-us")
    with pytest.raises(AssetError, match="espeak-ng -v xx-none"):
        count_phonemes("cat", "xx-none")


def test_without_espeak_it_says_what_to_do(monkeypatch):
    monkeypatch.setenv("PATH", "")
    with pytest.raises(AssetError, match="--baseline syllables"):
        count_phonemes("cat", "en-us")


@pytest.mark.parametrize("name", [pytest.param("phonemes", marks=NEEDS_ESPEAK), "syllables"])
def test_the_clip_that_was_made_faster_is_faster(clips, kept, name):
    judge, words = open_baseline(name, SUITES["speaking_rate"], kept), "The same words are said in both of them."
    quick = faster(clips[1], 1.25)
    pairs = [pair_of(clips[1], quick, (words, words)), pair_of(quick, clips[1], (words, words))]
    pairs += [pair_of(clips[1], clips[1], (words, words)), pair_of(clips[1], SILENCE, (words, words))]
    pairs += [pair_of(clips[1], quick, (words, "..."))]
    found = labels(judge.compare_batch(pairs))
    assert found[:3] == ["2", "1", "tie"]
    assert found[3] == "the clip is silent: it has no rate"
    assert found[4].startswith(f"no {judge.unit} in what is said")
    # The same units in 1 / 1.25 of the time.
    slow, fast = (float(part.split()[0]) for part in judge.compare_batch(pairs[:1])[0].reason.split(" and "))
    assert fast / slow == pytest.approx(1.25, rel=0.01)


def test_words_that_are_not_given_are_transcribed(clips, kept):
    judge = open_baseline("syllables", SUITES["speaking_rate"], kept)
    found = judge.compare_batch([pair_of(clips[0], faster(clips[0], 1.25)), pair_of(SILENCE, clips[0])])
    assert labels(found)[0] == "2"
    assert isinstance(found[1], Unscored)
    assert "whisper-tiny" in judge.version


# Speakers.


@pytest.mark.parametrize(
    ("first", "second", "label", "cosine"),
    [
        ([1, 0], [2, 0], "same", 1.0),
        ([1, 0], [0, 3], "different", 0.0),
        ([1, 0], [3, 4], "same", 0.6),
        ([1, 0], [-3, 4], "different", -0.6),
    ],
)
def test_two_embeddings_are_one_speaker_from_the_threshold_on(first, second, label, cosine):
    found = same_speaker(np.array(first, float), np.array(second, float), 0.6)
    assert found == (label, pytest.approx(cosine))


@pytest.mark.parametrize("bad", [[0, 0], [np.nan, 1], [np.inf, 1], [np.nan, np.nan]])
def test_an_embedding_without_direction_is_of_no_speaker(bad):
    good, bad = np.array([1.0, 0.0]), np.array(bad, float)
    assert same_speaker(good, bad, 0.6) is same_speaker(bad, good, -1.0) is same_speaker(bad, bad, -1.0) is None


@pytest.fixture(scope="module")
def speaker_model(tmp_path_factory):
    transformers = pytest.importorskip("transformers", reason="the extra 'offline' is not installed")
    folder = tmp_path_factory.mktemp("wavlm")
    config = transformers.WavLMConfig(
        hidden_size=16, num_hidden_layers=1, num_attention_heads=2, intermediate_size=16, conv_dim=(8, 8), conv_stride=(5, 4),
        conv_kernel=(10, 8), num_conv_pos_embeddings=8, num_conv_pos_embedding_groups=2, tdnn_dim=(8, 8, 8),
        tdnn_kernel=(5, 3, 1), tdnn_dilation=(1, 1, 1), xvector_output_dim=8, num_buckets=16, max_bucket_distance=32,
    )  # fmt: skip
    transformers.WavLMForXVector(config).save_pretrained(folder)
    transformers.Wav2Vec2FeatureExtractor(do_normalize=True).save_pretrained(folder)
    return folder


def test_the_speaker_model_runs_and_the_threshold_decides(clips, speaker_model):
    def judge(threshold):
        return open_baseline("speaker", SUITES["speaker_identity"], {"model": str(speaker_model), "threshold": threshold})

    short = [Clip(clip.samples[:16_000], clip.sample_rate_hz) for clip in clips[:2]]
    pairs = [pair_of(short[0], short[0]), pair_of(short[0], short[1]), pair_of(short[0], SILENCE)]
    same, other, silent = judge(0.999999).compare_batch(pairs)
    assert same.label == "same"
    assert same.points == 1.0
    assert same.reason.startswith("cosine 1.0000")
    assert other.label == "different"
    assert isinstance(silent, Unscored)
    assert judge(-1.0).compare_batch(pairs[1:2])[0].label == "same"


@pytest.mark.filterwarnings("ignore:std")
@pytest.mark.parametrize(
    ("samples", "reason"),
    [
        # No frame at all, one alone where there must be several, too few for a later layer, and one left to be pooled.
        (5, "a clip is too short for the model ("),
        (12, "a clip is too short for the model ("),
        (100, "a clip is too short for the model ("),
        (170, "the embedding has no direction"),
        (400, ""),
    ],
)
def test_a_clip_too_short_for_the_speaker_model_has_no_verdict(clips, speaker_model, samples, reason):
    judge = open_baseline("speaker", SUITES["speaker_identity"], {"model": str(speaker_model)})
    transcript = clips[0].at(16_000).samples
    loudest = int(np.abs(transcript).argmax())
    long, short = Clip(transcript[:16_000], 16_000), Clip(transcript[loudest : loudest + samples], 16_000)
    for (found,) in (judge.compare_batch([pair_of(long, short)]), judge.compare_batch([pair_of(short, long)])):
        assert isinstance(found, Unscored if reason else Preference)
        assert found.reason.startswith(reason)


def test_missing_weights_say_what_to_do(clips, tmp_path):
    pytest.importorskip("transformers", reason="the extra 'offline' is not installed")
    judge = open_baseline("speaker", SUITES["speaker_identity"], {"model": str(tmp_path)})
    with pytest.raises(ConfigError, match=r"--set model=.*give its folder"):
        judge.compare_batch([pair_of(clips[0], clips[1])])


# Which is for what.


@pytest.mark.parametrize(
    ("name", "suite", "options", "message"),
    [
        ("none", "somos", {}, "--baseline none: there are dnsmos, phonemes, syllables, speaker"),
        ("dnsmos", "speaking_rate", {}, "is not for speaking_rate; for that there is phonemes, syllables"),
        ("speaker", "pronunciation", {}, "for that there is none"),
        ("dnsmos", "somos", {"threshold": 1}, "--set: threshold: unknown key"),
        ("syllables", "speaking_rate", {"voice": "de"}, "--set: voice: unknown key"),
        ("speaker", "speaker_identity", {"threshold": 2}, "--set: threshold: "),
    ],
)
def test_a_baseline_that_does_not_fit_is_refused(name, suite, options, message):
    with pytest.raises(ConfigError) as error:
        open_baseline(name, SUITES[suite], options)
    assert message in str(error.value)


def test_every_baseline_is_for_some_suite():
    tasks = {suite.task for suite in SUITES.values()}
    assert {offer.task for offer in BASELINES.values()} <= tasks
