"""The policy's own likelihood ratio as a reward: its score by hand, what it leaves unscored, and the reader's sums.

Not covered: whether a policy's ratio agrees with a judge; `hacks` of `paras2s ablate` measures what it pays for.
"""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tiny.dual_stream import small_config, small_model, small_policy, small_prompt

from paras2s.configs.schema.run import RewardConfig, RewardSourceConfig
from paras2s.errors import ConfigError
from paras2s.policy.types import Sampling
from paras2s.reward.sources.base import GivenAnswer, Group, RewardQuestion
from paras2s.reward.sources.composite import CompositeReward, RewardSetup
from paras2s.reward.sources.self_contrast import SelfContrastSource
from paras2s.rollout.answer_reader import PolicyReader
from paras2s.types import TEXT, Unscored

SINCERE = "in a warm, sincere tone, meaning every word"
SARCASTIC = "in a sarcastic, annoyed tone, meaning the opposite of the words"


class Reader:
    """Log-likelihoods (text, audio) by the style that is given; the second answer cannot be read."""

    needs_sound = False

    def __init__(self, own: dict[str, str], nats: dict[str, tuple[float, float]]) -> None:
        self.style_words, self._nats = own, nats

    def nats(self, question: RewardQuestion, words: str, answers: Any) -> list[tuple[float, float] | str]:
        return [self._nats[words] if answer.text else "no words" for answer in answers]


def group(style: str | None, *texts: str) -> Group:
    return Group(RewardQuestion("q", None, "how kind", style), tuple(GivenAnswer(3, text) for text in texts))


NATS = {SINCERE: (-4.0, -50.0), SARCASTIC: (-7.0, -40.0), "": (-5.0, -45.0)}


@pytest.mark.parametrize(
    ("options", "style", "ratio"),
    [
        ({}, "sincere", 3.0),
        ({}, "sarcastic", -3.0),
        ({"streams": "audio"}, "sincere", -10.0),
        ({"streams": "both"}, "sincere", -7.0),
        ({"against": "none"}, "sincere", 1.0),
    ],
    ids=["text", "the other style", "audio", "both", "no style"],
)
def test_scores_by_hand(options: dict[str, Any], style: str, ratio: float) -> None:
    """A sigmoid of 2 nats from 1 to 5: a ratio of 0 is a 3."""
    found = SelfContrastSource(Reader({}, NATS), **options).score([group(style, "thanks")])
    assert found == [[pytest.approx(1 + 4 / (1 + math.exp(-ratio / 2)))]]


def test_several_other_styles_count_by_their_mean_probability() -> None:
    """A style of the run's own in no shipped category is compared with no style alone."""
    emotions = {"sad": -1.0, "happy": -3.0, "angry": -2.0, "fear": -9.0, "disgust": -9.0, "surprised": -9.0}
    reader = Reader({name: name for name in emotions}, {name: (value, 0.0) for name, value in emotions.items()})
    (score,) = SelfContrastSource(reader).score([group("sad", "thanks")])
    others = math.log(sum(math.exp(value) for name, value in emotions.items() if name != "sad") / 5)
    assert score == [pytest.approx(1 + 4 / (1 + math.exp(-(-1.0 - others) / 2)))]
    whispered = Reader({"whispered": "in a whisper"}, {"in a whisper": (-2.0, 0.0), "": (-2.0, 0.0)})
    assert SelfContrastSource(whispered, against="none").score([group("whispered", "thanks")]) == [[3.0]]


@pytest.mark.parametrize("style", [None, "whispered"])
def test_an_unknown_style_is_unscored(style: str | None) -> None:
    (found,) = SelfContrastSource(Reader({}, NATS)).score([group(style, "thanks", "yes")])
    assert all(isinstance(score, Unscored) and "has no words" in score.reason for score in found)


def test_an_answer_that_cannot_be_read_is_unscored_alone() -> None:
    (found,) = SelfContrastSource(Reader({}, NATS)).score([group("sincere", "thanks", "")])
    assert isinstance(found[0], float)
    assert found[1] == Unscored("self_contrast", "no words")


def test_the_reader_sums_the_policys_log_probs() -> None:
    config = small_config()
    policy = small_policy(small_model(config))
    prompt = small_prompt(config, 1, 3, 0)
    reader = PolicyReader(policy, {}, batch_size=2)
    reader._prompt = lambda clip, transcript: prompt  # type: ignore[assignment, misc]
    codes = [np.full((length, 2), 1) for length in (4, 6, 5)]
    answers = [GivenAnswer(len(one), text, codes=one) for one, text in zip(codes, ("b a d", "a", "f a d"), strict=True)]
    silent = [GivenAnswer(0, "b a d", codes=codes[0][:0]), GivenAnswer(4, "", codes=codes[0])]
    long = GivenAnswer(1, "a b c d e f", codes=codes[0][:1])
    question = RewardQuestion("q", None, "hello", "sad", Path("q.wav"))
    found = reader.nats(question, "b a d", [*answers, *silent, long])
    for answer, sums in zip(answers, found, strict=False):
        block = policy.target_block(answer.codes, policy.pieces.encode(answer.text))  # type: ignore[arg-type]
        logp = policy.logprobs([policy.with_style(prompt, "b a d")], [(block,)], Sampling())[0].detach().numpy()
        text = block.sampled & (block.streams == TEXT)
        assert sums == pytest.approx((logp[text].sum(), logp[block.sampled & ~text].sum()), abs=1e-9)
    assert found[3:5] == ["the answer has no words or no sound"] * 2
    assert "longer than their speech" in str(found[5])
    assert reader.nats(question, "", answers)[0] != found[0]


def test_it_needs_a_run_and_options_that_it_has(tmp_path: Path) -> None:
    def reward(**options: Any) -> CompositeReward:
        source = RewardSourceConfig(kind="self_contrast", options=options)
        opener = None if "streams" not in options else lambda: Reader({}, NATS)
        return CompositeReward(RewardSetup(RewardConfig(sources=(source,)), tmp_path, tmp_path, open_reader=opener))

    with pytest.raises(ConfigError, match="self_contrast reads answers with a run's warm-up"):
        reward()
    with pytest.raises(ConfigError, match="streams is text, audio or both"):
        reward(streams="sound")
    found = reward(streams="text")
    assert (found.needs_codes, found.needs_sound, found.setup.needs_style) == (True, False, True)
