"""Augmented questions: what is hidden, what is moved and by how much, and that the prompt itself stays as it is.

Not covered: whether augmentation helps a policy, which the benchmark shows.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from tiny.dual_stream import small_config, small_prompt

from paras2s.configs.schema.align import AugmentConfig
from paras2s.policy.embedded.augment import augment
from paras2s.policy.embedded.features import WORDS_SPREAD
from paras2s.policy.types import Prompt

STILL = {"words_dropped": 0.0, "codes_dropped": 0.0, "prosody_noise": 0.0, "words_noise": 0.0}


def augmented(**settings: Any) -> tuple[Prompt, Prompt]:
    config = small_config()
    prompt = replace(small_prompt(config, 2, 3, seed=5), words_dim=1, hidden_ids=(config.blank_id, config.pad_id))
    held = {name: np.array(getattr(prompt, name)) for name in ("audio_ids", "text_ids", "features", "continuous")}
    after = augment(prompt, AugmentConfig(**{**STILL, **settings}), np.random.default_rng(3))
    for name, value in held.items():
        np.testing.assert_array_equal(getattr(prompt, name), value, err_msg="the prompt itself must stay as it is")
    np.testing.assert_array_equal(after.continuous, prompt.continuous)
    return prompt, after


def test_augment_changes_nothing_when_all_is_off() -> None:
    prompt, after = augmented()
    for name in ("audio_ids", "text_ids", "features"):
        np.testing.assert_array_equal(getattr(after, name), getattr(prompt, name))


def test_hidden_words_leave_text_and_features() -> None:
    prompt, after = augmented(words_dropped=1.0)
    assert (after.text_ids == small_config().blank_id).all()
    assert not after.features[:, -1].any()
    np.testing.assert_array_equal(after.features[:, :-1], prompt.features[:, :-1])
    np.testing.assert_array_equal(after.audio_ids, prompt.audio_ids)


def test_dropped_text_leaves_the_sentences_meaning() -> None:
    prompt, after = augmented(text_dropped=1.0)
    assert (after.text_ids == small_config().blank_id).all()
    np.testing.assert_array_equal(after.features, prompt.features)
    np.testing.assert_array_equal(after.audio_ids, prompt.audio_ids)


def test_words_are_augmented_by_one_draw_a_prompt_and_nothing_else_is() -> None:
    prompt, after = augmented(words_noise=1.0)
    moved = (after.features - prompt.features)[prompt.continuous]
    assert (moved[:, :-1] == 0).all()
    assert len(set(moved[:, -1].round(5))) == 1
    assert 0 < abs(moved[0, -1]) < 5 * WORDS_SPREAD
    np.testing.assert_array_equal(after.features[~prompt.continuous], prompt.features[~prompt.continuous])
    np.testing.assert_array_equal(after.text_ids, prompt.text_ids)


def test_hidden_codes_leave_the_layout() -> None:
    prompt, after = augmented(codes_dropped=1.0)
    assert (after.audio_ids[prompt.continuous] == small_config().pad_id).all()
    np.testing.assert_array_equal(after.audio_ids[~prompt.continuous], prompt.audio_ids[~prompt.continuous])
    np.testing.assert_array_equal(after.text_ids, prompt.text_ids)
    np.testing.assert_array_equal(after.features, prompt.features)


def test_augment_moves_the_prosody_of_all_steps_alike() -> None:
    prompt, after = augmented(prosody_noise=0.5)
    moved = after.features - prompt.features
    assert (np.abs(moved[prompt.continuous][:, :-1]) > 1e-3).all()
    assert np.ptp(moved[prompt.continuous], axis=0).max() < 1e-12
    assert not moved[:, -1].any()
    assert not moved[~prompt.continuous].any()


def test_augment_hides_the_share_it_was_set_to() -> None:
    config, rng = small_config(), np.random.default_rng(0)
    prompt = replace(small_prompt(config, 1, 2, seed=0), words_dim=1, hidden_ids=(config.blank_id, config.pad_id))
    settings = AugmentConfig(words_dropped=0.4, codes_dropped=0.1, prosody_noise=0.0, words_noise=0.0)
    made = [augment(prompt, settings, rng) for _ in range(1000)]
    words = np.mean([(one.text_ids == config.blank_id).all() for one in made])
    codes = np.mean([(one.audio_ids[one.continuous] == config.pad_id).all() for one in made])
    assert words == pytest.approx(0.4, abs=0.06)
    assert codes == pytest.approx(0.1, abs=0.04)
