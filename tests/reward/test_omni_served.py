"""The Omni reward model behind a server: what is sent, and the arithmetic of what comes back, over real HTTP.

Not covered: vLLM itself, which needs another environment and weights.
"""

import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tiny.endpoint import Fail, Raw, ScriptedEndpoint

from paras2s.audio.clip import Clip
from paras2s.configs.schema.judges import OmniServedConfig
from paras2s.configs.schema.run import RewardConfig
from paras2s.errors import ConfigError, JudgeError
from paras2s.reward.reward_model.omni import OmniScore, SpokenPair
from paras2s.reward.reward_model.omni_vllm import ServedOmni, score_of
from paras2s.reward.sources.composite import CompositeReward, RewardSetup
from paras2s.types import Unscored
from paras2s.utils.cache import JsonCache


def clip(duration_s: float = 0.5, level: float = 0.1) -> Clip:
    return Clip(np.full(int(8000 * duration_s), level, dtype=np.float32), 8000)


def served(server: ScriptedEndpoint, kept: JsonCache | None = None, **changes: Any) -> ServedOmni:
    config = OmniServedConfig(**changes)
    llm = config.llm.model_copy(update={"base_url": server.base_url, "backoff_s": 0.001, "max_attempts": 2})
    return ServedOmni(config.model_copy(update={"llm": llm}), kept)


def reply(shares: dict[str, float]) -> Raw:
    top = [{"token": token, "logprob": math.log(share), "bytes": None} for token, share in shares.items()]
    place = {"token": "4", "logprob": -0.1, "bytes": None, "top_logprobs": top}
    choice = {
        "index": 0,
        "message": {"role": "assistant", "content": "4"},
        "finish_reason": "length",
        "logprobs": {"content": [place]},
    }
    body = {"id": "x", "object": "chat.completion", "created": 0, "model": "m", "choices": [choice]}
    return Raw(json.dumps(body).encode())


DIGITS = {"1": 0.05, "2": 0.05, "3": 0.1, "4": 0.5, "5": 0.1}


def test_the_expected_digit_by_hand() -> None:
    found = score_of({token: math.log(share) for token, share in DIGITS.items()})
    assert found.expected == pytest.approx((0.05 + 0.1 + 0.3 + 2.0 + 0.5) / 0.8)
    assert (found.hard, found.digit_mass) == (4, pytest.approx(0.8))


def test_the_token_that_was_sampled_beside_the_five_does_not_count_as_a_digit() -> None:
    logprobs = {token: math.log(share) for token, share in DIGITS.items()}
    assert score_of({**logprobs, " 5": math.log(0.19), "\n1": math.log(0.01)}) == score_of(logprobs)


@pytest.mark.parametrize("logprobs", [None, {}, {"1": -1.0, "2": -1.0, "3": -1.0, "4": -1.0, "Well": -0.1}])
def test_without_all_five_digits_there_is_no_score(logprobs: dict[str, float] | None) -> None:
    with pytest.raises(JudgeError, match=r"no log-probability of .*5; it must know logprob_token_ids"):
        score_of(logprobs)


def test_both_clips_and_the_guideline_are_sent_and_five_ids_requested(tmp_path: Path) -> None:
    pairs = [SpokenPair(clip(0.5), clip(0.25)), SpokenPair(clip(0.5), clip(0.75))]
    with ScriptedEndpoint(lambda *_: reply(DIGITS)) as server:
        model = served(server, JsonCache(tmp_path / "kept.sqlite"))
        found = model.score_each(pairs)
        assert served(server, JsonCache(tmp_path / "kept.sqlite")).score_each(pairs) == found
        assert len(server.requests) == 2
    assert all(isinstance(one, OmniScore) and one.hard == 4 for one in found)
    sent = server.requests[0]
    assert (sent["logprob_token_ids"], sent["logprobs"], sent["max_tokens"]) == ([16, 17, 18, 19, 20], True, 1)
    parts = sent["messages"][-1]["content"]
    assert [part["type"] for part in parts] == ["text", "input_audio", "text", "input_audio", "text"]
    assert parts[-1]["text"].strip().endswith("a digit from 1 to 5.")


def test_what_cannot_be_scored_holds_nobody_up() -> None:
    def answer(sent: dict[str, Any], _: int) -> Any:
        size = len(sent["messages"][-1]["content"][3]["input_audio"]["data"])
        return Fail(400, "broken") if size < 10_000 else reply({"1": 0.5, "A": 0.5}) if size > 40_000 else reply(DIGITS)

    pairs = [SpokenPair(clip(), clip(duration_s)) for duration_s in (0.1, 0.5, 1.5, 9.0)]
    with ScriptedEndpoint(answer) as server:
        found = served(server, max_audio_s=5.0).score_each(pairs)
    assert [type(one) for one in found] == [Unscored, OmniScore, Unscored, Unscored]
    reasons = [one.reason for one in found if isinstance(one, Unscored)]
    assert "HTTP 400" in reasons[0]
    assert "no log-probability of 2, 3, 4, 5" in reasons[1]
    assert "the answer lasts 9 s, at most 5 s are read" in reasons[2]


def test_a_run_asks_a_server_where_the_config_names_one(tmp_path: Path) -> None:
    source = {"kind": "omni", "options": {"base_url": "http://127.0.0.1:9/v1", "model": "mine", "max_audio_s": 20}}
    setup = RewardSetup(RewardConfig(sources=[source]), tmp_path, tmp_path / "tone.json")
    model = CompositeReward(setup).sources[0].model
    assert (model.config.llm.model, model.config.max_audio_s) == ("mine", 20.0)
    source["options"]["steps"] = 5
    with pytest.raises(ConfigError, match="omni: options"):
        CompositeReward(RewardSetup(RewardConfig(sources=[source]), tmp_path, tmp_path / "tone.json"))
