"""A policy is told a question's style in words: where they go in each family's prompt, and who refuses.

Not covered: whether a model understands them.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tiny.dual_stream import small_config, small_model, small_policy, small_prompt
from tiny.interleaved import tiny_glm_once, tiny_step_once
from tiny.kimi import write_kimi
from tiny.moshi import tiny_moshi
from tiny.qwen_omni import noise_clip, tiny_qwen_omni

from paras2s.configs.schema.run import RunConfig
from paras2s.configs.schema.styles import shipped_styles, words_of
from paras2s.errors import ConfigError, PolicyError
from paras2s.pipeline.preflight import check_style_in_words
from paras2s.policy.embedded.policy import EmbeddedPolicy
from paras2s.policy.kimi.policy import KimiPolicy
from paras2s.policy.moshi import MoshiPolicy
from paras2s.policy.types import Prompt, Turn, style_sentence
from paras2s.reward.sources.base import RewardQuestion
from paras2s.rollout.orchestrator import styles_in_words

WORDS = "in a sad voice"


def test_the_embedded_policy_reads_the_words_before_the_sound() -> None:
    config = small_config()
    policy, prompt = small_policy(small_model(config)), small_prompt(config, 1, 3, 0)
    styled = policy.with_style(prompt, "b a d")
    assert styled.text_ids.tolist() == [prompt.text_ids[0], 1, 0, 3, *prompt.text_ids[1:]]
    assert styled.audio_ids[1:4].tolist() == [[config.blank_id, config.pad_id]] * 3
    assert styled.features is not None
    assert not styled.features[1:4].any()
    assert not styled.continuous[1:4].any()
    kept = [0, *range(4, styled.length)]
    for one, other in ((styled.audio_ids, prompt.audio_ids), (styled.features, prompt.features)):
        np.testing.assert_array_equal(one[kept], other)  # type: ignore[index]
    assert policy.with_style(prompt, "").length == prompt.length
    with pytest.raises(PolicyError, match=r"policy.style_words: 'x' cannot be spelled"):
        policy.with_style(prompt, "x")


def test_kimi_reads_them_as_a_message_of_its_own(tmp_path: Path) -> None:
    policy = KimiPolicy.load(write_kimi(tmp_path))
    clip = noise_clip(0, 0.5)
    styled = policy.with_style(policy.encode_prompt([Turn("user", "", clip)]), WORDS)
    official = policy.encode_prompt([Turn("user", style_sentence(WORDS)), Turn("user", "", clip)])
    for name in ("audio_ids", "text_ids", "features", "continuous"):
        np.testing.assert_array_equal(getattr(styled, name), getattr(official, name))


@pytest.mark.parametrize("make", [tiny_glm_once, tiny_step_once, tiny_qwen_omni], ids=["glm", "step", "qwen omni"])
def test_others_read_them_before_the_sound_in_the_same_turn(make: Callable[[], Any]) -> None:
    policy = make()
    prompt: Prompt = policy.encode_prompt([Turn("user", "", noise_clip(1, 0.6))])
    words = policy._words(style_sentence(WORDS)) if hasattr(policy, "_words") else policy.words.encode(style_sentence(WORDS))
    mark = policy.special[policy.audio_marks[0]] if hasattr(policy, "audio_marks") else policy.tokens[policy.audio_begin]
    at = prompt.text_ids.tolist().index(mark)
    styled = policy.with_style(prompt, WORDS)
    assert styled.text_ids.tolist() == [*prompt.text_ids[:at], *words, *prompt.text_ids[at:]]
    if prompt.features is not None:
        np.testing.assert_array_equal(styled.features[styled.continuous], prompt.features[prompt.continuous])


def test_who_cannot_be_told_says_so() -> None:
    with pytest.raises(PolicyError, match="MoshiPolicy cannot be told a question's style"):
        tiny_moshi().with_style(small_prompt(small_config(), 1, 3, 0), WORDS)


def test_styles_in_words() -> None:
    assert words_of("sad", {}) == "in a sad, downcast voice"
    assert words_of("sad", {"sad": "sadly"}) == "sadly"
    assert set(shipped_styles()) == {"emotion", "sarcasm", "age", "gender"}


@pytest.mark.parametrize(
    ("settings", "kind", "styles", "error", "said"),
    [
        (
            {},
            EmbeddedPolicy,
            ["sad"],
            ConfigError,
            "x: a policy that was trained from random .* set warmup.style_share",
        ),
        ({"warmup": {"style_share": 0.5}}, EmbeddedPolicy, ["whisper"], ConfigError, "'whisper' has no words to tell a policy"),
        ({}, MoshiPolicy, ["sad"], PolicyError, "x: MoshiPolicy cannot be told"),
    ],
    ids=["never told", "unknown style", "no text"],
)
def test_what_cannot_be_told_is_refused_before_training(
    settings: dict[str, Any], kind: Any, styles: list[str], error: type[Exception], said: str
) -> None:
    with pytest.raises(error, match=said):
        check_style_in_words(RunConfig.model_validate(settings), kind, styles, "x")


def test_the_loop_gives_the_styles_of_a_step_in_words() -> None:
    questions = [RewardQuestion(f"q{number}", None, "hi", style) for number, style in enumerate(("sad", "happy", None))]
    run, off = (RunConfig.model_validate({"align": {"objective": {"loss_type": name}}}) for name in ("self_distill", "grpo"))
    assert styles_in_words(off, questions) == []
    assert styles_in_words(run, questions[:2]) == ["in a sad, downcast voice", "in a happy, joyful voice"]
    with pytest.raises(ConfigError, match="the style of question q2 is not known"):
        styles_in_words(run, questions)
