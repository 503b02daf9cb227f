"""The independent judge: what it hears, that it scores by the rubric's table, and that nothing it hears by is the teacher's.

Not covered: whether people agree with it; it shares with the rubric what is asked, so both can be wrong about that.
"""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from paras2s.audio import asr, pitch
from paras2s.audio.asr import normalise_words
from paras2s.audio.clip import Clip, make_clip
from paras2s.configs.schema.run import RewardSourceConfig
from paras2s.data_gen.scripted.scripts import load_calibration, load_cascade, load_contrasts, load_families
from paras2s.data_gen.tts.piper_world import AGENT, AGENT_TONES
from paras2s.data_gen.tts.render import Take, render
from paras2s.errors import AudioError, ConfigError, DataError
from paras2s.policy.embedded.codec2 import Codec2Pairs
from paras2s.reward.judges import rubric as rubric_module
from paras2s.reward.judges.base import Exchange, Utterance
from paras2s.reward.judges.independent import judge as judge_module
from paras2s.reward.judges.independent.judge import IndependentJudge, MeasuredAnswer, voiced_share
from paras2s.reward.judges.independent.kinds import KindClassifier, load_kinds, load_sentences
from paras2s.reward.judges.independent.tone import FEATURE_DIM, ToneDiscriminant, tone_features
from paras2s.reward.judges.registry import open_judge
from paras2s.reward.judges.rubric_rules import Finding, load_rubric
from paras2s.reward.sources.composite import RewardSetup, make_source
from paras2s.types import Unscored, Verdict

RUBRIC, _ = load_rubric()
EXAMPLES = [(kind, text) for kind, family in RUBRIC.families.items() for text in family.examples]
ANSWERS = [(style, text) for style, family in load_families().items() for text in family.answers]
CLEAR = MeasuredAnswer("That is wonderful, I am so happy for you.", "cheerful", 0.45, 4.0, -30.0)
RATE_HZ = 16_000


@pytest.fixture(scope="module")
def judge() -> IndependentJudge:
    return IndependentJudge()


@pytest.fixture(scope="module")
def spoken(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Clip]:
    """An answer to each of six styles, in its tone, through the codec, in the agent's voice."""
    families = {style: load_families()[style] for style in ("happy", "sad", "angry", "surprised", "sincere", "male")}
    takes = [Take(one.answers[0], AGENT, AGENT_TONES[one.tone], 0, coded=True) for one in families.values()]
    rendered = render(takes, tmp_path_factory.mktemp("cache"))
    return {style: one.clip for style, one in zip(families, rendered, strict=True)}


def find(judge: IndependentJudge, style: str, **changes: object) -> Finding | Unscored:
    return judge.find("", style, replace(CLEAR, **changes))


# -- kinds ------------------------------------------------------------------------------------------------------------


def test_the_kinds_of_sentences_that_it_has_never_read() -> None:
    kinds = load_kinds()
    right = [kinds.recognise(text)[0] == kind for kind, text in (*EXAMPLES, *ANSWERS)]
    assert np.mean(right) >= 0.97
    understood = [kinds.recognise(text)[1] >= judge_module.UNDERSTOOD for _, text in (*EXAMPLES, *ANSWERS)]
    assert np.mean(understood) >= 0.97


def test_few_questions_pass_for_an_answer() -> None:
    found = [load_kinds().recognise(contrast.text)[1] for contrast in load_contrasts() if contrast.category != "sarcasm"]
    assert np.mean([one >= judge_module.UNDERSTOOD for one in found]) < 0.1
    # Remarks to the assistant thank it, as answers do.
    assert np.mean([load_kinds().recognise(text)[1] >= judge_module.UNDERSTOOD for text in load_calibration()]) < 0.1


def test_kinds_learned_from_mixed_up_labels_know_nothing() -> None:
    kinds, texts = zip(*[(kind, text) for kind, rows in load_sentences().items() for text in rows], strict=True)
    mixed: dict[str, list[str]] = {}
    for kind, place in zip(kinds, np.random.default_rng(0).permutation(len(texts)), strict=True):
        mixed.setdefault(kind, []).append(texts[place])
    wrong = KindClassifier(mixed)
    assert np.mean([wrong.recognise(text)[0] == kind for kind, text in EXAMPLES]) < 0.3
    assert wrong.version != load_kinds().version


# -- independence -----------------------------------------------------------------------------------------------------


def test_no_sentence_is_one_that_the_teacher_or_the_data_knows() -> None:
    own = {normalise_words(text) for rows in load_sentences().values() for text in rows}
    others = [text for _, text in (*EXAMPLES, *ANSWERS)] + [text for rows in load_cascade().values() for text in rows]
    others += [*load_calibration(), *(contrast.text for contrast in load_contrasts())]
    assert not own & {normalise_words(text) for text in others}
    assert load_sentences().keys() == RUBRIC.families.keys()


def test_it_hears_without_any_model_of_the_teacher(monkeypatch: pytest.MonkeyPatch, spoken: dict[str, Clip]) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise AssertionError("a model of the teacher")

    loaded = []
    recogniser = asr._recogniser
    monkeypatch.setattr(asr, "_recogniser", lambda model: loaded.append(model) or recogniser(model))
    monkeypatch.setattr(pitch, "track_pitch", refuse)
    monkeypatch.setattr("paras2s.audio.prosody.track_pitch", refuse)
    monkeypatch.setattr(rubric_module, "embed_sentences", refuse)
    monkeypatch.setattr("paras2s.audio.text_embedding._sentence_model", refuse)
    judge = IndependentJudge()
    (measured,) = judge_module._measure_chunk([spoken["happy"]])
    found = judge.find("", "happy", measured)
    assert isinstance(found, Finding)
    assert found.score >= 4
    assert loaded == [asr.SECOND]
    assert asr.version(asr.SECOND) != asr.VERSION
    assert judge.parts["recogniser"] == asr.version(asr.SECOND)


@pytest.mark.parametrize("kind", ["pairwise", "llm"])
def test_nothing_may_learn_from_it(kind: str, tmp_path: Path) -> None:
    setup = RewardSetup(None, tmp_path, tmp_path)  # type: ignore[arg-type]
    source = RewardSourceConfig(kind=kind, options={"judge": "independent"})  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="nothing may learn from it"):
        make_source(source, setup)


# -- rules ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("style", "changes", "expected", "reason"),
    [
        ("happy", {}, 5, "as it should be"),
        ("happy", {"tone": "neutral"}, 4, "where cheerful would carry it"),
        ("happy", {"tone": "gentle"}, 3, "where cheerful would carry it"),
        ("surprised", {}, 3, "not wrong but not for"),
        ("sad", {}, 1, "does not fit"),
        ("happy", {"transcript": "So happy."}, 1, "only 2 words"),
        ("happy", {"transcript": "I am so happy I am so happy I am so happy."}, 1, "again and again"),
        ("happy", {"voiced_share": 0.05}, 1, "hardly a voice"),
        ("happy", {"syllables_per_s": 1.0}, 1, "far too slow"),
        ("happy", {"tail_db": -2.0}, 1, "cut off"),
        ("happy", {"transcript": "Their house stands beside an old stone wall."}, 1, "do not make an answer"),
    ],
)
def test_scores_by_the_table(judge: IndependentJudge, style: str, changes: dict, expected: int, reason: str) -> None:
    found = find(judge, style, **changes)
    assert isinstance(found, Finding)
    assert (found.score, reason in found.reason) == (expected, True), found


def test_a_guess_is_worth_two_at_most(judge: IndependentJudge, monkeypatch: pytest.MonkeyPatch) -> None:
    shares = {"low": 0.24, "guess": 0.34, "clear": 0.35}
    monkeypatch.setattr(judge._kinds, "recognise", lambda text: ("happy", shares[text.split()[0]]))
    scores = [find(judge, "happy", transcript=f"{word} and some words") for word in shares]
    assert [one.score for one in scores if isinstance(one, Finding)] == [1, 2, 5]


def test_what_cannot_be_judged_is_unscored(judge: IndependentJudge) -> None:
    silence = make_clip(np.zeros(RATE_HZ), RATE_HZ)
    exchanges = [Exchange(Utterance(text="Hi", style="happy"), silence), Exchange(Utterance(text="Hi"), silence)]
    first, second = judge.score_batch(exchanges)
    assert isinstance(first, Unscored)
    assert "silent" in first.reason
    assert isinstance(second, Unscored)
    assert "style" in second.reason
    assert isinstance(judge.find("", "bored", CLEAR), Unscored)


# -- hearing ----------------------------------------------------------------------------------------------------------


def test_spoken_answers_score_high_and_backwards_low(judge: IndependentJudge, spoken: dict[str, Clip]) -> None:
    codec = Codec2Pairs()
    backwards = {style: codec.decode(codec.encode(clip)[::-1]) for style, clip in spoken.items()}
    scores = []
    for clips in (spoken, backwards):
        exchanges = [Exchange(Utterance(text="Hi", style=style), clip) for style, clip in clips.items()]
        verdicts = judge.score_batch(exchanges)
        scores.append([one.score for one in verdicts if isinstance(one, Verdict)])
    assert [len(row) for row in scores] == [6, 6]
    assert np.mean(scores[0]) >= 4.5
    assert max(scores[1]) <= 2


def test_a_batch_hears_what_it_hears_alone(judge: IndependentJudge, spoken: dict[str, Clip]) -> None:
    clips = list(spoken.values())
    together = judge.measure([*clips, clips[0]])
    assert together[-1] == together[0]
    assert [judge.measure([clip])[0] for clip in clips[:3]] == together[:3]


def test_voicing_of_known_sounds() -> None:
    time_s = np.arange(RATE_HZ) / RATE_HZ
    buzz = make_clip(0.3 * np.sign(np.sin(2 * np.pi * 120 * time_s)), RATE_HZ)
    noise = make_clip(0.3 * np.random.default_rng(0).uniform(-1, 1, RATE_HZ), RATE_HZ)
    half = make_clip(np.concatenate([buzz.samples, np.zeros(RATE_HZ)]), RATE_HZ)
    assert voiced_share(buzz) == 1.0
    assert voiced_share(noise) < 0.05
    assert voiced_share(half) == pytest.approx(0.5, abs=0.03)
    assert voiced_share(make_clip(np.zeros(RATE_HZ), RATE_HZ)) == 0.0


# -- tones ------------------------------------------------------------------------------------------------------------


def test_the_shipped_tones_and_the_features_they_are_fitted_on(spoken: dict[str, Clip]) -> None:
    tones = ToneDiscriminant.load()
    assert (tones.labels, tones.clips) == (tuple(sorted(AGENT_TONES)), 120)
    assert tones.accuracy >= 0.9
    features = np.stack([tone_features(clip) for clip in spoken.values()])
    assert features.shape == (6, FEATURE_DIM)
    right = [load_families()[style].tone for style in spoken]
    assert sum(one == other for one, other in zip(tones.predict(features), right, strict=True)) >= 5


def test_tone_features_do_not_change_with_the_rate_and_need_sound(spoken: dict[str, Clip]) -> None:
    clip = spoken["happy"]
    np.testing.assert_allclose(tone_features(clip.at(16_000))[:13], tone_features(clip)[:13], atol=1.5)
    with pytest.raises(AudioError, match="silent"):
        tone_features(make_clip(np.zeros(RATE_HZ), RATE_HZ))
    with pytest.raises(AudioError, match="silent or under"):
        tone_features(make_clip(0.1 * np.ones(1600), RATE_HZ))


def test_discriminants_on_numbers_and_their_file(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    labels = ["low", "high"] * 20
    features = rng.normal(size=(40, FEATURE_DIM)) + np.array([[0.0], [3.0]] * 20)
    tones = ToneDiscriminant.fit(features[:30], labels[:30], features[30:], labels[30:])
    assert (tones.accuracy, tones.clips) == (1.0, 10)
    wrong = ToneDiscriminant.fit(features[:30], labels[:30], features[30:], labels[31:] + labels[:1])
    assert wrong.accuracy == 0.0
    tones.save(tmp_path / "t.json")
    again = ToneDiscriminant.load(tmp_path / "t.json")
    assert again.version == tones.version
    assert again.predict(features) == tones.predict(features)
    stored = json.loads((tmp_path / "t.json").read_text())
    for change, message in ({"features": "other"}, "other features"), ({"coef": [[1.0]]}, "other features"):
        (tmp_path / "t.json").write_text(json.dumps(stored | change))
        with pytest.raises(DataError, match=message):
            ToneDiscriminant.load(tmp_path / "t.json")
    (tmp_path / "t.json").write_text("{}")
    with pytest.raises(DataError, match=r"tools/fit_tones\.py"):
        ToneDiscriminant.load(tmp_path / "t.json")


def test_it_opens_by_its_name_and_has_no_config(monkeypatch: pytest.MonkeyPatch) -> None:
    opened = open_judge("independent")
    assert isinstance(opened, IndependentJudge)
    # Other models give another name, so that no verdict of theirs is taken for one of these.
    monkeypatch.setattr(asr, "version", lambda model: f"other {model}")
    assert IndependentJudge().fingerprint != opened.fingerprint
    monkeypatch.undo()
    assert IndependentJudge().fingerprint == opened.fingerprint
    with pytest.raises(ConfigError, match="no config"):
        open_judge("independent", {"llm.model": "x"})
