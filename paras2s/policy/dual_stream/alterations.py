"""Settings of a dual-stream decoder read otherwise: the mistakes that an adapter of a released model can make unnoticed.

Each leaves shapes and names as they are, so the checkpoint loads and answers; only its trained weights can tell.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np

from paras2s.policy.dual_stream.config import DualStreamConfig
from paras2s.policy.dual_stream.network import Attention, DualStreamNetwork
from paras2s.policy.types import Alteration, Prompt


def alterations_of(model: DualStreamNetwork) -> list[Alteration]:
    """Return alterations of rotary positions; with an audio branch also of heads, tap, delay, scale and marks of the prompt."""
    config = model.dual_config

    def configured(**values: Any) -> Callable[[], AbstractContextManager[None]]:
        return partial(_attribute, model, "dual_config", config.model_copy(update=values))

    alterations = [
        Alteration(f"rotary base x {factor:g}", configured(rope_theta=config.rope_theta * factor))
        for factor in (0.01, 0.1, 10.0, 100.0)
    ]
    alterations.append(Alteration("rotary positions in pairs or in halves, the other way", partial(_other_pairs, model)))
    if not config.num_codebooks:
        return alterations
    alterations.append(Alteration("text and audio head exchanged", partial(_exchanged_heads, model)))
    alterations += [
        Alteration(f"audio branch after layer {tap}", configured(tap_layer=tap))
        for tap in (config.tap_layer - 1, config.tap_layer + 1)
        if 0 <= tap < config.num_layers
    ]
    alterations += [
        Alteration(f"audio delay of {delay} steps", configured(audio_delay_steps=delay), lays_out_answers=True)
        for delay in range(max(config.audio_delay_steps - 2, 0), config.audio_delay_steps + 3)
        if delay != config.audio_delay_steps
    ]
    alterations.append(Alteration("media marks of the prompt, the other way", prompt=partial(exchange_media_marks, config)))
    if config.continuous_dim and config.continuous == "adapted":
        alterations += [
            Alteration(f"continuous positions x {name}", partial(_attribute, model, "continuous_scale", scale))
            for name, scale in (
                ("1 / sqrt 2", model.continuous_scale / math.sqrt(2)),
                ("sqrt 2", model.continuous_scale * math.sqrt(2)),
            )
        ]
        alterations.append(Alteration("continuous features left out", prompt=_without_features))
    return alterations


def exchange_media_marks(config: DualStreamConfig, prompt: Prompt) -> Prompt:
    """Return the prompt without the marks around its clips; with marks if it has none."""
    first = prompt.audio_ids[:, 0]
    marks = (first == config.media_begin_id) | (first == config.media_end_id)
    if marks.any():
        return _rows(prompt, np.flatnonzero(~marks))
    edges = np.diff(prompt.continuous.astype(np.int8), prepend=0, append=0)
    begins, ends = np.flatnonzero(edges == 1), np.flatnonzero(edges == -1)
    places = np.concatenate([begins, ends])
    # Copies of the row in front of each clip, which is no clip's, become the marks.
    rows = np.insert(np.arange(prompt.length), places, np.concatenate([begins, begins]) - 1)
    marked = _rows(prompt, rows)
    order = np.argsort(places, kind="stable")
    at = places[order] + np.arange(len(places))
    marked.audio_ids[at] = config.pad_id
    marked.audio_ids[at, 0] = np.repeat([config.media_begin_id, config.media_end_id], len(begins))[order]
    marked.text_ids[at], marked.continuous[at] = config.blank_id, False
    return marked


def _rows(prompt: Prompt, rows: np.ndarray) -> Prompt:
    features = None if prompt.features is None else prompt.features[rows]
    return replace(prompt, audio_ids=prompt.audio_ids[rows], text_ids=prompt.text_ids[rows], features=features,
                   continuous=prompt.continuous[rows])  # fmt: skip


def _without_features(prompt: Prompt) -> Prompt:
    return replace(prompt, features=None, continuous=np.zeros_like(prompt.continuous))


@contextmanager
def _attribute(model: DualStreamNetwork, name: str, value: Any) -> Iterator[None]:
    own = getattr(model, name)
    setattr(model, name, value)
    try:
        yield
    finally:
        setattr(model, name, own)


@contextmanager
def _exchanged_heads(model: DualStreamNetwork) -> Iterator[None]:
    model.lm_head, model.mimo_output = model.mimo_output, model.lm_head
    try:
        yield
    finally:
        model.lm_head, model.mimo_output = model.mimo_output, model.lm_head


@contextmanager
def _other_pairs(model: DualStreamNetwork) -> Iterator[None]:
    own, layers = model.dual_config, [module for module in model.modules() if isinstance(module, Attention)]
    model.dual_config = own.model_copy(update={"rotary_in_pairs": not own.rotary_in_pairs})
    for layer in layers:
        layer.in_pairs = not layer.in_pairs
    try:
        yield
    finally:
        model.dual_config = own
        for layer in layers:
            layer.in_pairs = not layer.in_pairs
