"""Reward sources and their combination: by hand where they are arithmetic, over HTTP where they ask an endpoint.

Not covered: which source makes the better policy; `paras2s ablate` is for that.
"""

import json
import math
import re
from dataclasses import replace

import numpy as np
import pytest
from tiny.endpoint import Fail, Say, ScriptedEndpoint, said
from tiny.reward_model import random_reward_model

from paras2s.audio.clip import Clip, write_clip
from paras2s.clients.chat import LLMClient
from paras2s.configs.schema.judges import JudgingConfig
from paras2s.configs.schema.run import RewardConfig, RewardSourceConfig
from paras2s.errors import BudgetError, ConfigError, JudgeError
from paras2s.reward.blueprint.parallel import JUDGE_EXTRACTORS
from paras2s.reward.blueprint.quality import OVERALL
from paras2s.reward.judges.llm_judge import LLMJudge
from paras2s.reward.judges.rubric import RubricJudge
from paras2s.reward.reward_model.model import EncodedQuestion, RewardModelConfig
from paras2s.reward.reward_model.omni import OmniScore
from paras2s.reward.sources.base import GivenAnswer, Group, RewardQuestion
from paras2s.reward.sources.composite import CompositeReward, RewardSetup, combine
from paras2s.reward.sources.judge import JudgeSource
from paras2s.reward.sources.local import LengthSource, ModelSource, OverlongSource, QualitySource, WordErrorSource
from paras2s.reward.sources.omni import InProcess, OmniSource
from paras2s.reward.sources.pairwise import PairwiseSource, swiss_round, win_rates
from paras2s.statistics.bradley_terry import Result, bradley_terry
from paras2s.types import Absent, Blueprint, Measured, Reward, Unscored


def source(kind, weight=1.0, required=True):
    return RewardSourceConfig(kind=kind, weight=weight, required=required)


FAILED = Unscored("quality", "silent")


@pytest.mark.parametrize(
    ("parts", "sources", "value"),
    [
        ({"rubric": 4.0}, [source("rubric", 0.3)], 4.0),
        ({"rubric": 4.0, "quality": 2.0}, [source("rubric", 3.0), source("quality", 1.0)], 3.5),
        ({"rubric": 4.0, "quality": FAILED}, [source("rubric"), source("quality", required=False)], 4.0),
    ],
)
def test_a_reward_is_the_weighted_mean_of_what_could_be_scored(parts, sources, value):
    found = combine(parts, sources)
    assert isinstance(found, Reward)
    assert found.value == pytest.approx(value)
    assert found.parts == {kind: part for kind, part in parts.items() if part is not FAILED}


@pytest.mark.parametrize(
    ("parts", "sources"),
    [
        ({"rubric": 4.0, "quality": FAILED}, [source("rubric"), source("quality")]),
        ({"quality": FAILED}, [source("quality", required=False)]),
    ],
)
def test_what_is_required_and_missing_leaves_no_reward(parts, sources):
    assert combine(parts, sources) == FAILED


def test_a_source_stands_once():
    with pytest.raises(ValueError, match="length is given twice"):
        RewardConfig(sources=[source("length"), source("length")])


def test_an_unknown_schedule_is_refused():
    with pytest.raises(ConfigError, match="schedule must be all or swiss"):
        PairwiseSource(None, "round_robin")


def test_a_score_that_is_no_number_is_no_reward():
    optional = combine({"rubric": math.nan, "length": 2.0}, [source("rubric", required=False), source("length")])
    assert optional == Reward(2.0, {"length": 2.0})
    found = combine({"rubric": math.nan}, [source("rubric")])
    assert found == Unscored("rubric", "the score is nan")


# Local sources.


def group(*answers, question=None):
    transcript = EncodedQuestion(np.zeros((2, 3), dtype=np.int64), np.zeros((2, 4), dtype=np.float32))
    return Group(question or RewardQuestion("q", transcript, "hello there", "sad"), answers)


def answer(steps=10, text="good morning to you", transcript=None, quality=None, clip=None):
    fields = {}
    if transcript is not None:
        fields["agent_response"] = Measured(transcript)
    fields[OVERALL] = Measured(quality) if quality else Absent("the clip is silent")
    return GivenAnswer(steps, text, clip, Blueprint(fields), np.zeros((steps, 3), dtype=np.int64))


def test_length_is_best_at_its_target():
    scores = LengthSource(target_steps=10).score([group(*(answer(steps) for steps in (10, 5, 15, 0, 20, 99)))])[0]
    assert scores == [5.0, 3.0, 3.0, 1.0, 1.0, 1.0]


def test_over_long_answers_are_penalised_softly():
    scores = OverlongSource(from_steps=20, to_steps=40).score([group(*(answer(steps) for steps in (3, 20, 30, 35, 40, 99)))])[0]
    assert scores == [5.0, 5.0, 3.0, 2.0, 1.0, 1.0]
    with pytest.raises(ConfigError, match="below to_steps"):
        OverlongSource(from_steps=40, to_steps=40)


def test_word_errors_compare_the_voice_with_the_text_stream():
    rows = [
        answer(transcript="Good morning, to you!"),
        answer(transcript="good morning to"),
        answer(transcript="quite other words here"),
    ]
    scores = WordErrorSource().score([group(*rows, answer(text="..."), answer(transcript=None))])[0]
    assert scores[:3] == [5.0, pytest.approx(4.0), 1.0]
    assert [one.reason for one in scores[3:]] == ["no transcript of the answer"] * 2
    assert (
        WordErrorSource()
        .score([group(answer(text="...", transcript="x"))])[0][0]
        .reason.startswith("the text stream holds no word")
    )


def test_the_distilled_model_scores_no_clip_that_it_would_cut():
    sizes = RewardModelConfig(
        codebook_sizes=(2, 2, 2), code_dim=6, feature_dim=4, styles=("sad", "happy"), hidden_size=16, layers=1
    )
    source = ModelSource(random_reward_model(sizes, np.eye(6)))
    read, cut, silent = source.score([group(answer(160), answer(161), answer(0))])[0]
    assert 1 < read < 5
    assert cut == Unscored("reward_model", "the answer has 161 steps, and this model reads 160")
    assert silent == 1.0
    spoken = EncodedQuestion(np.zeros((200, 3), dtype=np.int64), np.zeros((200, 4), dtype=np.float32))
    long = source.score([group(answer(10), question=RewardQuestion("q", spoken, "hello there", "sad"))])[0]
    assert long == [Unscored("reward_model", "the question has 200 steps, and this model reads 160")]


def test_an_answer_without_codes_gives_its_score_to_no_other():
    sizes = RewardModelConfig(
        codebook_sizes=(2, 2, 2), code_dim=6, feature_dim=4, styles=("sad", "happy"), hidden_size=16, layers=1
    )
    source = ModelSource(random_reward_model(sizes, np.eye(6)))
    with pytest.raises(JudgeError, match="came without codes"):
        source.score([group(replace(answer(20), codes=None), answer(30))])


def test_quality_is_dnsmos_or_says_why_there_is_none():
    assert QualitySource().score([group(answer(quality=3.25), answer())])[0] == [
        3.25,
        Unscored("quality", "the clip is silent"),
    ]


def test_the_rubric_needs_a_transcribed_style_and_a_blueprint():
    no_style = RewardQuestion("q", group().question.encoded, "hello", None)
    found = JudgeSource(RubricJudge(), "rubric", JUDGE_EXTRACTORS).score([group(answer(), question=no_style)])[0][0]
    assert "needs the instruction's words and style" in found.reason
    kind = answer(transcript="I am so sorry, this must be very hard.")
    kind.blueprint.fields["agent_emotion.gentle"] = Measured(0.9)
    assert JudgeSource(RubricJudge(), "rubric", JUDGE_EXTRACTORS).score([group(kind)])[0][0] == 5.0


# Standings.


def test_a_swiss_draw_pairs_like_standings_and_never_twice():
    assert swiss_round(range(5), [], []) == [(0, 1), (2, 3)]
    first = [Result(0, 1, 1.0), Result(2, 3, 0.0)]
    drawn = [(0, 1), (2, 3)]
    # Standing: 0 and 3 have a point, then 1, 2 and 4 have none. 2 sits out, lowest of those with a game; 4 plays.
    assert swiss_round(range(5), first, drawn) == [(0, 3), (1, 4)]
    for _ in range(6):
        drawn += swiss_round(range(4), [], drawn)
    assert len({frozenset(pair) for pair in drawn}) == len(drawn)


@pytest.mark.parametrize("size", [3, 5, 7, 8])
def test_everyone_plays_within_two_rounds(size):
    rng = np.random.default_rng(size)
    for _ in range(50):
        drawn, results = [], []
        for _ in range(2):
            now = swiss_round(range(size), results, drawn)
            drawn += now
            results += [Result(one, other, float(rng.integers(3)) / 2) for one, other in now]
        assert {number for pair in drawn for number in pair} == set(range(size))


def test_win_rates_by_hand():
    results = [Result(0, 1, 1.0), Result(0, 2, 0.5), Result(1, 2, 0.0)]
    assert win_rates(4, results) == [0.75, 0.0, 0.75, None]


def test_bradley_terry_orders_by_strength_not_by_luck_of_the_draw():
    # 0 beats 1, 1 beats 2: against an average answer 0 is strongest, although 0 and 1 both met just one or two.
    found = bradley_terry(4, [Result(0, 1, 1.0), Result(1, 2, 1.0)])
    assert found[0] > found[1] > found[2]
    assert found[3] is None
    assert found[1] == pytest.approx(0.5, abs=1e-6)
    assert found[0] == pytest.approx(1 - found[2], abs=1e-6)


LOPSIDED = [Result(0, b, 1.0) for b in range(1, 5)] + [Result(a, b, 0.5) for a in range(1, 5) for b in range(a + 1, 5)]
MIXED = [Result(a, b, (3 * a + 5 * b) % 3 / 2) for a in range(5) for b in range(a + 1, 5)]


@pytest.mark.parametrize("results", [LOPSIDED, MIXED])
def test_bradley_terry_satisfies_its_own_equations(results):
    chances = bradley_terry(5, results)
    strength = [c / (1 - c) for c in chances]
    for number in range(5):
        won = sum(r.points if r.first == number else 1 - r.points for r in results if number in (r.first, r.second)) + 0.25
        met = [r.second if r.first == number else r.first for r in results if number in (r.first, r.second)]
        expected = sum(strength[number] / (strength[number] + strength[other]) for other in met)
        expected += 0.5 * strength[number] / (strength[number] + 1)
        assert won == pytest.approx(expected, abs=1e-3)


# Sources that ask an endpoint.


def spoken(level, steps=10):
    return answer(steps, clip=Clip(np.full(8000, level, dtype=np.float32), 16_000))


def judge_for(server, **llm):
    config = JudgingConfig(
        extractors=[],
        judge={"reads": "audio"},
        llm={"base_url": server.base_url, "backoff_s": 0.001, "model": "gpt-audio", **llm},
    )
    return LLMJudge(config, LLMClient(config.llm))


def levels(sent):
    """The constant level of each clip of a request, which is how the scripted judge knows them apart."""
    import base64
    import io

    import soundfile

    parts = [part["input_audio"]["data"] for part in sent["messages"][1]["content"] if part["type"] == "input_audio"]
    return [float(np.median(soundfile.read(io.BytesIO(base64.b64decode(data)))[0])) for data in parts]


def test_an_llm_scores_each_answer_and_silence_is_unscored():
    empty = answer(clip=Clip(np.zeros(0, dtype=np.float32), 16_000))
    with ScriptedEndpoint(lambda sent, n: Say(json.dumps({"reasoning": "", "score": round(10 * levels(sent)[-1])}))) as server:
        found = JudgeSource(judge_for(server)).score([group(spoken(0.1), empty, spoken(0.4)), group(spoken(0.3))])
        given = json.loads(re.search(r"<data question>\n(.*)\n</data>", said(server.requests[0])).group(1))
    assert found == [[1.0, Unscored("llm", "the answer has no sound"), 4.0], [3.0]]
    assert given == {"words": "hello there", "spoken": "sad"}


def loudest_wins(sent, _):
    first, second = levels(sent)[-2:]
    label = "both_good" if abs(first - second) < 0.01 else "1" if first > second else "2"
    return Say(json.dumps({"reasoning": "", "content": label, "voice_quality": "both_good", "paralinguistics": "both_good"}))


@pytest.mark.parametrize("rating", ["win_rate", "bradley_terry"])
@pytest.mark.parametrize("schedule", ["all", "swiss"])
def test_a_pairwise_judge_ranks_a_group(schedule, rating):
    answers = [spoken(level) for level in (0.2, 0.4, 0.1, 0.3)]
    with ScriptedEndpoint(loudest_wins) as server:
        maker = PairwiseSource(judge_for(server), schedule, rating, rounds=3)
        scores = maker.score([group(*answers), group(spoken(0.2), spoken(0.2))])
        assert len(server.requests) == 6 + 1
    assert sorted(range(4), key=lambda number: scores[0][number]) == [2, 0, 3, 1]
    assert scores[1] == [pytest.approx(3.0), pytest.approx(3.0)]
    if (schedule, rating) == ("all", "win_rate"):
        assert scores[0] == pytest.approx([1 + 4 / 3, 5.0, 1.0, 1 + 8 / 3])


def test_an_answer_whose_games_all_failed_is_unscored_and_others_keep_theirs():
    def answer_to(sent, n):
        return Fail(400, "no") if any(abs(level - 0.2) < 0.01 for level in levels(sent)) else loudest_wins(sent, n)

    with ScriptedEndpoint(answer_to) as server:
        scores = PairwiseSource(judge_for(server)).score([group(spoken(0.2), spoken(0.4), spoken(0.3))])
    assert isinstance(scores[0][0], Unscored)
    assert "HTTP 400" in scores[0][0].reason
    assert scores[0][1:] == [5.0, 1.0]


def test_a_spent_budget_stops_instead_of_rewarding_by_chance():
    with ScriptedEndpoint(loudest_wins) as server:
        poor = judge_for(server, budget_usd=0.00001)
        with pytest.raises(BudgetError):
            PairwiseSource(poor).score([group(spoken(0.2), spoken(0.4))])
        with pytest.raises(BudgetError):
            JudgeSource(poor).score([group(spoken(0.2))])


class ScriptedOmni:
    """Gives the score that a clip's constant level spells; the true class is in test_omni.py."""

    def score(self, pairs):
        if any(pair.answer.duration_s > 1 for pair in pairs):
            raise JudgeError("the answer lasts too long")
        found = [round(10 * float(np.median(pair.answer.samples))) for pair in pairs]
        return [OmniScore(float(score), score, 0.1 if score == 2 else 0.9) for score in found]


def test_the_omni_source_leaves_out_what_cannot_be_transcribed_or_was_not_understood(tmp_path):
    write_clip(tmp_path / "q.wav", Clip(np.full(8000, 0.25, dtype=np.float32), 16_000))
    question = RewardQuestion("q", group().question.encoded, "hello", None, tmp_path / "q.wav")
    empty = answer(clip=Clip(np.zeros(0, dtype=np.float32), 16_000))
    long = answer(clip=Clip(np.full(32_000, 0.3, dtype=np.float32), 16_000))
    source_ = OmniSource(InProcess(ScriptedOmni()))
    scores = source_.score(
        [group(spoken(0.4), empty, spoken(0.2), question=question), group(spoken(0.5), long, question=question)]
    )
    assert scores[0][0] == 4.0
    assert [one.reason[:22] for one in scores[0][1:]] == ["the answer has no soun", "only 0.10 of the proba"]
    assert scores[1] == [5.0, Unscored("omni", "the answer lasts too long")]
    assert source_.score([group(spoken(0.4))])[0][0] == Unscored("omni", "the question has no sound")


# The composite.


def test_an_audio_judge_rewards_a_group(tmp_path):
    def louder(sent, number):
        first, second = levels(sent)[-2:]
        return Say(json.dumps({"reasoning": "louder", "label": "1" if first > second else "2"}))

    write_clip(tmp_path / "q.wav", Clip(np.full(8000, 0.5, dtype=np.float32), 16_000))
    question = RewardQuestion("q", group().question.encoded, "hello", None, tmp_path / "q.wav")
    with ScriptedEndpoint(louder) as server:
        llm = {"base_url": server.base_url, "model": "x"}
        judge = {"tasks": ["paralinguistic"], "cache_dir": str(tmp_path), "both_orders": False, "llm": llm}
        (tmp_path / "judge.yaml").write_text(json.dumps(judge))
        setup = setup_for(tmp_path, RewardSourceConfig(kind="pairwise", options={"judge": str(tmp_path / "judge.yaml")}))
        rewards = CompositeReward(setup).score([group(spoken(0.2), spoken(0.4), spoken(0.3), question=question)])
        assert [len(levels(sent)) for sent in server.requests] == [3, 3, 3]
    assert [reward.value for reward in rewards[0]] == [1.0, 5.0, 3.0]


def setup_for(tmp_path, *sources):
    return RewardSetup(RewardConfig(sources=sources), tmp_path / "reward", tmp_path / "tone.json")


def test_a_composite_measures_once_and_combines(tmp_path, monkeypatch):
    from paras2s.reward.sources import composite as module

    seen = []
    real = module.build_blueprints
    monkeypatch.setattr(module, "build_blueprints", lambda clips, items: (seen.append(len(clips)), real(clips, items))[1])
    composite = CompositeReward(setup_for(tmp_path, source("length", 3.0), source("quality", required=False)))
    assert composite.needs_sound
    rng = np.random.default_rng(0)
    noise = GivenAnswer(32, "x", Clip((0.1 * rng.standard_normal(8000)).astype(np.float32), 16_000))
    rewards = composite.score([group(noise, answer(16))])[0]
    assert seen == [2]
    assert set(rewards[0].parts) == {"length", "quality"}
    assert rewards[0].value == pytest.approx((3 * 5.0 + rewards[0].parts["quality"]) / 4)
    # Without sound there is no quality, which is not required here.
    assert rewards[1] == Reward(3.0, {"length": 3.0})


def test_a_composite_of_codes_alone_needs_no_sound(tmp_path):
    composite = CompositeReward(setup_for(tmp_path, source("length")))
    assert not composite.needs_sound
    # It counts steps.
    assert not composite.needs_codes


def test_a_judge_is_found_by_path(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "mine.yaml").write_text(
        "name: mine\nextractors: []\njudge: {reads: audio}\nllm: {base_url: 'http://127.0.0.1:1/v1'}\n"
    )
    options = {"judge": "mine.yaml", "schedule": "swiss", "rounds": 2}
    composite = CompositeReward(setup_for(tmp_path, RewardSourceConfig(kind="pairwise", options=options)))
    made = composite.sources[0]
    assert (made.judge.name, made.schedule, made.rounds) == ("audio:gpt-4o", "swiss", 2)


@pytest.mark.parametrize(
    ("sources", "message"),
    [
        ([RewardSourceConfig(kind="length", options={"target_steps": 0})], "target_steps must be at least 1"),
        ([RewardSourceConfig(kind="omni", options={"lora_rank": 8})], "lora_rank is a setting of its training"),
        ([RewardSourceConfig(kind="length", options={"goal": 3})], "length: options {'goal': 3} do not fit it"),
        ([RewardSourceConfig(kind="rubric", options={"x": 3})], "rubric: options"),
    ],
)
def test_a_wrong_composite_is_refused(tmp_path, sources, message):
    with pytest.raises(ConfigError, match=re.escape(message)):
        CompositeReward(setup_for(tmp_path, *sources))


def test_a_question_with_a_file_is_transcribed_by_the_judge(tmp_path):
    write_clip(tmp_path / "q.wav", Clip(np.full(8000, 0.25, dtype=np.float32), 16_000))
    transcript = group().question.encoded
    question = RewardQuestion("q", transcript, "hello", "sad", tmp_path / "q.wav")
    with ScriptedEndpoint(lambda sent, n: Say(json.dumps({"reasoning": "", "score": 2}))) as server:
        JudgeSource(judge_for(server)).score([group(spoken(0.5), question=question)])
        assert levels(server.requests[0]) == pytest.approx([0.25, 0.5], abs=0.01)
