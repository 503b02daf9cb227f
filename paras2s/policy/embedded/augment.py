"""Augmentation of questions, in warm-up and in reinforcement learning."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from paras2s.configs.schema.align import AugmentConfig
from paras2s.policy.embedded.features import WORDS_SPREAD
from paras2s.policy.types import Prompt


def augment(prompt: Prompt, config: AugmentConfig, rng: np.random.Generator) -> Prompt:
    """Hide a prompt's words or codes at random and add noise: few clips are known by them, so the policy must use prosody."""
    text, features, audio = prompt.text_ids, prompt.features, prompt.audio_ids
    no_words, no_codes = rng.random() < config.words_dropped, rng.random() < config.codes_dropped
    if rng.random() < config.text_dropped or no_words:
        text = np.full_like(text, prompt.hidden_ids[0])
    if no_codes:
        audio = np.where(prompt.continuous[:, None], prompt.hidden_ids[1], audio)
    if features is not None:
        features, prosody = features.copy(), features.shape[1] - prompt.words_dim
        # One draw an utterance: noise that differed from step to step would average out.
        features[:, :prosody] += config.prosody_noise * rng.standard_normal(prosody).astype(features.dtype)
        # Words are learned from a few topics alone, so their exact vectors would be memorised.
        features[:, prosody:] += (
            config.words_noise * WORDS_SPREAD * rng.standard_normal(prompt.words_dim).astype(features.dtype)
        )
        if no_words:
            features[:, prosody:] = 0
        features *= prompt.continuous[:, None]
    return replace(prompt, text_ids=text, features=features, audio_ids=audio)
