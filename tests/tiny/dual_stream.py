"""Tiny models for the policy tests: the golden instance of docs/experiments/policies.md and small random ones."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch

from paras2s.audio.clip import Clip
from paras2s.audio.prosody import UTTERANCE_DIM
from paras2s.audio.text_embedding import WordPieces
from paras2s.policy.dual_stream.config import DualStreamConfig
from paras2s.policy.dual_stream.model import DualStreamLM
from paras2s.policy.embedded.features import FeatureNormalizer
from paras2s.policy.embedded.policy import EmbeddedPolicy
from paras2s.policy.types import Prompt, SampleRequest, Sampling
from paras2s.rollout.engine import NativeEngine, answer_seeds
from paras2s.types import Rollout


def golden_config() -> DualStreamConfig:
    return DualStreamConfig(
        hidden_size=16, intermediate_size=24, num_layers=4, tap_layer=1, num_heads=4, num_kv_heads=2, text_vocab=40,
        codebook_sizes=(24,), audio_delay_steps=2, continuous_dim=20, blank_id=36, text_eos_id=37, msg_end_id=30,
        media_begin_id=33, media_end_id=35, user_id=38, assistant_id=39, audio_and_text_id=34, pad_id=32,
        mask_invalid_ids=False,
    )  # fmt: skip


def golden_model() -> DualStreamLM:
    model = DualStreamLM(golden_config()).double()
    state = model.state_dict()
    assert len(state) == 83
    for number, key in enumerate(sorted(state)):
        value = state[key]
        wave = torch.sin(0.5 + 1.3 * number + 0.731 * torch.arange(value.numel(), dtype=torch.float64))
        wave = wave.reshape(value.shape)
        is_norm = ("norm" in key and key.endswith("weight")) or key == "model.vq_adaptor.layers.4.weight"
        state[key] = 1 + 0.1 * wave if is_norm else 0.2 * wave
    model.load_state_dict(state)
    return model


def golden_prompt() -> Prompt:
    features = np.zeros((9, 20))
    features[2:5] = np.cos(0.3 * np.arange(60)).reshape(3, 20)
    continuous = np.zeros(9, dtype=bool)
    continuous[2:5] = True
    audio = np.array([38, 33, 41, 45, 52, 35, 34, 30, 39])[:, None]
    return Prompt(audio, np.full(9, 36), features, continuous)


def small_config(codebooks: tuple[int, ...] = (5, 4), text: int = 6, continuous_dim: int = 3, delay: int = 1,
                 layers: int = 3, tap: int = 0) -> DualStreamConfig:  # fmt: skip
    """Ids: words 0..text-1, then text_eos, blank, pad, user, assistant, media begin and end, both, msg_end."""
    names = ("text_eos_id", "blank_id", "pad_id", "user_id", "assistant_id", "media_begin_id", "media_end_id",
             "audio_and_text_id", "msg_end_id")  # fmt: skip
    ids = {name: text + number for number, name in enumerate(names)}
    return DualStreamConfig(
        hidden_size=16, intermediate_size=24, num_layers=layers, tap_layer=tap, num_heads=4, num_kv_heads=2,
        text_vocab=text + len(names), codebook_sizes=codebooks, audio_delay_steps=delay, continuous_dim=continuous_dim,
        mask_invalid_ids=True, **ids,
    )  # fmt: skip


def small_model(config: DualStreamConfig, seed: int = 0) -> DualStreamLM:
    torch.manual_seed(seed)
    model = DualStreamLM(config).double()
    for parameter in model.parameters():
        parameter.data += 0.3 * torch.randn_like(parameter)
    model.model.embed_tokens.weight.data[config.pad_id] = 0
    return model.eval()


def small_prompt(config: DualStreamConfig, clips: int, steps: int, seed: int) -> Prompt:
    """A prompt with `clips` user clips of `steps` codes each."""
    rng = np.random.default_rng(seed)
    rows_audio, rows_text, flags = [], [], []
    special = np.full(config.num_codebooks, config.pad_id)

    def put(audio_id: int, text_id: int) -> None:
        row = special.copy()
        row[0] = audio_id
        rows_audio.append(row)
        rows_text.append(text_id)
        flags.append(False)

    put(config.user_id, config.blank_id)
    for _ in range(clips):
        put(config.media_begin_id, config.blank_id)
        for _ in range(steps):
            codes = [rng.integers(size) for size in config.codebook_sizes]
            rows_audio.append(np.array(codes) + np.array(config.codebook_offsets))
            rows_text.append(int(rng.integers(config.text_eos_id)))
            flags.append(True)
        put(config.media_end_id, config.blank_id)
    put(config.assistant_id, config.blank_id)
    features = rng.normal(size=(len(flags), max(config.continuous_dim, 1))) * np.array(flags)[:, None]
    return Prompt(np.array(rows_audio), np.array(rows_text), features, np.array(flags))


class FakeCodec:
    """A codec of any cardinality; its waveform is silence of the right length."""

    sample_rate_hz = 8_000
    frame_rate_hz = 12.5

    def __init__(self, cardinality: tuple[int, ...]) -> None:
        self.cardinality, self.num_codebooks = cardinality, len(cardinality)

    def encode(self, clip: Clip) -> np.ndarray:
        return np.zeros((-(-len(clip.samples) // 640), self.num_codebooks), dtype=np.int64)

    def decode(self, codes: np.ndarray) -> Clip:
        return Clip(np.zeros(640 * len(codes), dtype=np.float32), self.sample_rate_hz)


def small_policy(model: DualStreamLM) -> EmbeddedPolicy:
    """A policy around a model of `small_config`; its word pieces are single letters."""
    pieces = WordPieces([chr(ord("a") + number) for number in range(model.dual_config.text_eos_id)])
    listener = FeatureNormalizer(np.zeros(UTTERANCE_DIM), np.ones(UTTERANCE_DIM))
    return EmbeddedPolicy(model, pieces, FakeCodec(model.dual_config.codebook_sizes), listener)


def small_rollouts(
    policy: EmbeddedPolicy, prompts: Sequence[Prompt], group_size: int, max_steps: int, step: int
) -> list[Rollout]:
    """On-policy rollouts [B] whose seeds depend on `step` alone."""
    ids = [f"q{number}" for number in range(len(prompts))]
    seeds = answer_seeds(5, step, range(len(prompts)), group_size)
    sampling = Sampling(1.0, 1.0, max_steps)
    engine = NativeEngine(policy)
    engine.version = step
    return engine.generate(ids, SampleRequest(prompts, seeds, sampling))
