"""Queries with a history: every family's prompt equals the one of its dialogue, and whoever cannot read one says so.

Not covered: whether a released model answers better with a history.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tiny.csm import tiny_csm
from tiny.dual_stream import small_config, small_model, small_policy
from tiny.interleaved import tiny_glm_once, tiny_step_once
from tiny.kimi import write_kimi
from tiny.minimind import tiny_minimind
from tiny.moshi import tiny_moshi, tone
from tiny.qwen3_omni import tiny_qwen3_omni
from tiny.qwen_omni import released_inputs, tiny_qwen_omni
from tiny.spoken_lm import tiny_spoken_lm

from paras2s.audio.clip import Clip
from paras2s.errors import PolicyError
from paras2s.policy.kimi.policy import KimiPolicy
from paras2s.policy.types import Turn, style_sentence
from paras2s.types import PastTurn, Query

CLIPS = {"q": tone(0.4, 16_000, 200), "u": tone(0.31, 16_000, 150), "a": tone(0.5, 24_000, 330)}
USER_TURN, ANSWERED = PastTurn("user", "a b", "u"), PastTurn("assistant", "c a", "a")
PLAIN = Query("q", "", None, None, "rl", "", "q", 0.4, "b a", None, None)
DIALOGUE = [Turn("user", "a b", CLIPS["u"]), Turn("assistant", "c a", CLIPS["a"]), Turn("user", "b a", CLIPS["q"])]


class Clips:
    def clip(self, name: str) -> Clip:
        return CLIPS[name]

    def cached_features(self, name: str) -> None:
        return None


def query_behind(*history: PastTurn) -> Query:
    return Query("q", "", None, None, "rl", "", "q", 0.4, "b a", None, None, history)


def tiny_kimi(folder: Path) -> KimiPolicy:
    policy = KimiPolicy.load(write_kimi(folder))
    policy.whisper.encoder.double()
    return policy


MAKERS: dict[str, Callable[[Path], Any]] = {
    "kimi": tiny_kimi,
    "qwen omni": lambda folder: tiny_qwen_omni(),
    "qwen3 omni": lambda folder: tiny_qwen3_omni(),
    "glm": lambda folder: tiny_glm_once(),
    "step": lambda folder: tiny_step_once(),
    "moshi": lambda folder: tiny_moshi(),
    "minimind": tiny_minimind,
    "csm": lambda folder: tiny_csm(replies={"b a": "c"}),
    "spoken lm": lambda folder: tiny_spoken_lm(),
}


@pytest.mark.parametrize("family", MAKERS)
def test_a_query_with_a_history_is_read_as_its_dialogue(family: str, tmp_path: Path) -> None:
    policy = MAKERS[family](tmp_path)
    said = [Turn("assistant", "c")] if family == "csm" else []
    found = policy.encode_queries(Clips(), [PLAIN, query_behind(USER_TURN, ANSWERED), PLAIN])
    alone, dialogue = (policy.encode_prompt([*turns, *said]) for turns in (DIALOGUE[2:], DIALOGUE))
    assert dialogue.length > alone.length
    for one, other in zip(found, (alone, dialogue, alone), strict=True):
        for name in ("text_ids", "audio_ids", "continuous"):
            np.testing.assert_array_equal(getattr(one, name), getattr(other, name))
        if other.features is not None:
            np.testing.assert_allclose(one.features, other.features, atol=2e-6)


def test_qwen_omni_reads_what_its_chat_template_says() -> None:
    policy = tiny_qwen_omni()
    official = released_inputs(policy, [DIALOGUE])["input_ids"][0]
    (found,) = policy.encode_queries(Clips(), [query_behind(USER_TURN, ANSWERED)])
    assert found.text_ids.tolist() == official.tolist()


def test_kimi_reads_what_its_makers_lay_out(tmp_path: Path) -> None:
    """As their prompt manager does, message by message: two lists, filled in turn."""
    policy, text, audio = tiny_kimi(tmp_path), list[int](), list[int]()
    config, blank = policy.config, policy.config.blank_id

    def put(sound: int = blank, word: int = blank) -> None:
        audio.append(sound)
        text.append(word)

    for turn in DIALOGUE:
        assert turn.clip is not None
        codes = [config.codebook_offsets[0] + int(code) for code in policy.tokenizer.encode(turn.clip)]
        put(config.user_id if turn.role == "user" else config.assistant_id)
        if turn.role == "user":
            put(config.media_begin_id)
            [put(code) for code in codes]
            put(config.media_end_id)
            put(config.audio_and_text_id)
        else:
            words = policy.words.encode(turn.text)
            sounds = [*[blank] * config.audio_delay_steps, *codes]
            [put(sound, word) for sound, word in zip(sounds, words + [blank] * (len(sounds) - len(words)), strict=True)]
        put(config.msg_end_id)
    put(config.assistant_id)
    (found,) = policy.encode_queries(Clips(), [query_behind(USER_TURN, ANSWERED)])
    assert found.text_ids.tolist() == text
    assert found.audio_ids[:, 0].tolist() == audio


@pytest.mark.parametrize("family", ["kimi", "qwen omni", "glm", "step"])
def test_a_style_in_words_belongs_to_the_last_turn(family: str, tmp_path: Path) -> None:
    policy = MAKERS[family](tmp_path)
    sentence = style_sentence("sadly")
    words = policy._words(sentence) if hasattr(policy, "_words") else policy.words.encode(sentence)
    (prompt,) = policy.encode_queries(Clips(), [query_behind(USER_TURN, ANSWERED)])
    (before,) = policy.encode_queries(Clips(), [query_behind(USER_TURN)])
    styled = policy.with_style(prompt, "sadly").text_ids.tolist()
    at = next(start for start in range(len(styled)) if styled[start : start + len(words)] == words)
    assert styled[:at] + styled[at + len(words) :] == prompt.text_ids.tolist()
    # Behind all that was said before.
    assert at > before.length - policy.encode_queries(Clips(), [PLAIN])[0].length
    assert prompt.continuous[at:].sum() == policy.encode_queries(Clips(), [PLAIN])[0].continuous.sum()


@pytest.mark.parametrize(
    ("family", "history", "said"),
    [
        ("moshi", PastTurn("assistant", "c a"), "Moshi reads speech alone: leave out the assistant's turn 'c a', or speak it"),
        ("csm", PastTurn("user", "a b"), "complete the user's turn 'a b'"),
        ("qwen omni", PastTurn("assistant", "", "a"), "the assistant's turn holds no words, only sound"),
        ("glm", PastTurn("assistant", "", "a"), "an earlier answer with sound needs its words"),
        ("step", PastTurn("assistant", "", "a"), "an earlier answer with sound needs its words"),
        ("kimi", PastTurn("assistant", "c" * 99, "a"), "an earlier answer has 99 word ids for"),
        ("minimind", PastTurn("user", "", "u"), "give the words of the user's turn before it"),
    ],
)
def test_a_turn_that_a_family_cannot_read_is_named(family: str, history: PastTurn, said: str, tmp_path: Path) -> None:
    with pytest.raises(PolicyError, match=said):
        MAKERS[family](tmp_path).encode_queries(Clips(), [query_behind(history)])


def test_the_embedded_policy_refuses_a_history() -> None:
    policy = small_policy(small_model(small_config()))
    said = r"query q has a history, .* no dialogue; set policy.weights"
    with pytest.raises(PolicyError, match=said):
        policy.encode_queries(Clips(), [PLAIN, query_behind(USER_TURN)])
    with pytest.raises(PolicyError, match=said):
        policy.check_queries(Path(), [query_behind(USER_TURN)])
    policy.check_queries(Path(), [PLAIN])
