"""SDiaReward as a judge: the rewards of its makers' class on a tiny checkpoint of theirs, and what it refuses.

Not covered: released weights, half precision, the makers' processor (it needs Qwen2.5-Omni's files), long dialogues.
"""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file
from tiny.moshi import tone
from tiny.sdiareward import DIALOGUES, golden, write_sdiareward

from paras2s.audio.clip import Clip
from paras2s.configs.schema.run import RewardConfig, RewardSourceConfig
from paras2s.errors import ConfigError, JudgeError
from paras2s.reward.judges.base import Exchange, Pair, Utterance
from paras2s.reward.judges.registry import open_judge
from paras2s.reward.judges.sdiareward import SDiaRewardJudge
from paras2s.reward.sources.base import GivenAnswer, Group, RewardQuestion
from paras2s.reward.sources.composite import RewardSetup, make_source
from paras2s.types import Preference, Unscored, Verdict

QUESTION = Utterance(tone(0.5, 16_000, 200), "Hi there")
FIRST, SECOND = tone(0.7, 24_000, 300), tone(0.4, 24_000, 150)


@pytest.fixture(scope="module")
def judge(tmp_path_factory: pytest.TempPathFactory) -> SDiaRewardJudge:
    return SDiaRewardJudge(str(write_sdiareward(tmp_path_factory.mktemp("sdia") / "tiny")))


def test_rewards_are_those_of_the_makers_class(judge: SDiaRewardJudge) -> None:
    rewards = [judge.reward(turns) for turns in DIALOGUES]
    assert rewards == pytest.approx(golden()["rewards"], abs=1e-5)
    assert np.ptp(rewards) > 1e-3


def test_two_answers_are_compared_by_their_rewards_and_one_is_scored_by_the_fit_alone(judge: SDiaRewardJudge) -> None:
    raw = [judge.reward([("user", QUESTION), ("assistant", Utterance(clip))]) for clip in (FIRST, SECOND)]
    found = judge.compare(FIRST, SECOND, QUESTION)
    assert isinstance(found, Preference)
    assert found.label == ("1" if raw[0] > raw[1] else "2")
    (tied,) = judge.compare_batch([Pair(QUESTION, FIRST, FIRST)])
    assert isinstance(tied, Preference)
    assert tied.label == "tie"
    with pytest.raises(ConfigError, match=r"fit: its rewards have no scale"):
        judge.score(QUESTION, FIRST)
    low, high = sorted(raw)
    fitted = SDiaRewardJudge(str(judge.weights), fit=[low, 2 * high - low])
    assert fitted.version != judge.version
    scores = fitted.score_batch([Exchange(QUESTION, FIRST), Exchange(QUESTION, SECOND)])
    assert [score.score for score in scores if isinstance(score, Verdict)] == pytest.approx(
        [3.0 if value == high else 1.0 for value in raw]
    )
    assert [score.reply for score in scores if isinstance(score, Verdict)] == [f"reward {value:.6g}" for value in raw]
    clipped = SDiaRewardJudge(str(judge.weights), fit=[high + 1, high + 2]).score(QUESTION, FIRST)
    assert isinstance(clipped, Verdict)
    assert clipped.score == 1.0


def test_what_cannot_be_read_is_unscored_with_the_reason(judge: SDiaRewardJudge) -> None:
    nothing = Clip(np.zeros(0, dtype=np.float32), 16_000)
    found = judge.compare(FIRST, nothing, QUESTION)
    assert isinstance(found, Unscored)
    assert "the assistant's clip lasts 0.000 s; 0.03 to 120 s are read" in found.reason
    silent = judge.compare(FIRST, SECOND)
    assert isinstance(silent, Unscored)
    assert "the user's turn has neither words nor sound" in silent.reason


def test_a_yaml_opens_it_as_judge_and_as_source(judge: SDiaRewardJudge, tmp_path: Path) -> None:
    file = tmp_path / "sdia.yaml"
    file.write_text(f"kind: sdiareward\noptions: {{weights: {judge.weights}, fit: [-1000, 1000]}}\n")
    opened = open_judge(str(file))
    assert isinstance(opened, SDiaRewardJudge)
    source = make_source(
        RewardSourceConfig(kind="llm", options={"judge": str(file)}),
        RewardSetup(RewardConfig(), tmp_path, tmp_path / "tone.json"),
    )
    group = Group(RewardQuestion("q", None, "Hi there"), (GivenAnswer(1, "", FIRST), GivenAnswer(1, "", None)))
    ((scored, missing),) = source.score([group])
    expected = judge.reward([("user", Utterance(text="Hi there")), ("assistant", Utterance(FIRST))])
    assert scored == pytest.approx(3 + expected / 500)
    assert isinstance(missing, Unscored)


@pytest.mark.parametrize(
    ("options", "complaint"),
    [
        ({"weights": "nowhere"}, "holds no config.json"),
        ({"fit": [1.0, 1.0]}, r"fit: \[1.0, 1.0\] must be two rewards"),
        ({"fit": [1.0]}, r"fit: \[1.0\] must be two rewards"),
    ],
)
def test_wrong_settings_are_refused(judge: SDiaRewardJudge, options: dict[str, object], complaint: str) -> None:
    with pytest.raises(ConfigError, match=complaint):
        SDiaRewardJudge(**{"weights": str(judge.weights), **options})  # type: ignore[arg-type]


@pytest.mark.parametrize(("change", "named"), [("no head", "score_head.weight"), ("attention", "pooler.attn.weight")])
def test_a_checkpoint_of_another_kind_is_refused(judge: SDiaRewardJudge, tmp_path: Path, change: str, named: str) -> None:
    tensors = load_file(judge.weights / "model.safetensors")
    if change == "no head":
        del tensors["score_head.weight"]
    else:
        tensors["pooler.attn.weight"] = np.zeros((1, 32), dtype=np.float32)
    save_file(tensors, str(tmp_path / "model.safetensors"), metadata={"format": "pt"})
    (tmp_path / "config.json").write_text(json.dumps(golden()["config"]))
    with pytest.raises(JudgeError, match=f"no SDiaReward with mean pooling.*{named}"):
        SDiaRewardJudge(str(tmp_path)).reward(DIALOGUES[2])
