"""The Omni reward model on a tiny random thinker of the true class, with a tokenizer of bytes.

Not covered: what 7 B parameters hear, which needs their weights.
"""

from pathlib import Path

import numpy as np
import pytest
import torch

from paras2s.audio.clip import Clip
from paras2s.configs.schema.run import OmniConfig
from paras2s.errors import JudgeError
from paras2s.reward.reward_model.omni import (
    AUDIO,
    LORA_TARGETS,
    OmniRewardModel,
    SpokenPair,
    audio_tokens,
    mel_features,
    prompt_text,
    read_adapter_config,
)
from paras2s.reward.reward_model.omni_train import OmniTraining
from paras2s.train.checkpoint import Position, restore_training, save_training

VISION = ["<|vision_bos|>", "<|vision_eos|>", "<|IMAGE|>", "<|VIDEO|>"]
SPECIAL = [AUDIO, "<|audio_bos|>", "<|audio_eos|>", *VISION, "<|im_start|>", "<|im_end|>", "<|endoftext|>"]


def tiny_tokenizer():
    from transformers import AddedToken, Qwen2Tokenizer
    from transformers.convert_slow_tokenizer import bytes_to_unicode

    tokenizer = Qwen2Tokenizer(vocab={piece: n for n, piece in enumerate(bytes_to_unicode().values())}, merges=[])
    tokenizer.add_tokens([AddedToken(token, special=True) for token in SPECIAL])
    tokenizer.pad_token = "<|endoftext|>"
    return tokenizer


def tiny_thinker(tokenizer, seed=0):
    from transformers import Qwen2_5OmniThinkerConfig, Qwen2_5OmniThinkerForConditionalGeneration

    ids = {token: tokenizer.convert_tokens_to_ids(token) for token in SPECIAL}
    config = Qwen2_5OmniThinkerConfig(
        text_config={
            "vocab_size": 320, "hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2,
            "num_attention_heads": 4, "num_key_value_heads": 2, "tie_word_embeddings": False,
            "rope_parameters": {"rope_type": "default", "rope_theta": 1e6, "mrope_section": [1, 1, 2]},
        },
        audio_config={
            "num_mel_bins": 128, "encoder_layers": 1, "encoder_attention_heads": 2, "encoder_ffn_dim": 32, "d_model": 16,
            "output_dim": 32, "n_window": 50, "max_source_positions": 64,
        },
        vision_config={
            "depth": 1, "hidden_size": 16, "intermediate_size": 32, "num_heads": 2, "out_hidden_size": 32,
            "fullatt_block_indexes": [0],
        },
        audio_token_index=ids[AUDIO], image_token_index=ids["<|IMAGE|>"], video_token_index=ids["<|VIDEO|>"],
        audio_start_token_id=ids["<|audio_bos|>"], audio_end_token_id=ids["<|audio_eos|>"],
    )  # fmt: skip
    config.vision_start_token_id, config.vision_end_token_id = ids["<|vision_bos|>"], ids["<|vision_eos|>"]
    torch.manual_seed(seed)
    return Qwen2_5OmniThinkerForConditionalGeneration(config).eval()


@pytest.fixture(scope="module")
def tokenizer():
    return tiny_tokenizer()


def model_for(tokenizer, seed=0, **settings):
    return OmniRewardModel(tiny_thinker(tokenizer, seed), tokenizer, OmniConfig(model="tiny", **settings))


def noise(seed, duration_s):
    samples = 0.1 * np.random.default_rng(seed).standard_normal(int(16_000 * duration_s))
    return Clip(samples.astype(np.float32), 16_000)


def tone(hz, duration_s):
    time_s = np.arange(int(16_000 * duration_s)) / 16_000
    return Clip((0.3 * np.sin(2 * np.pi * hz * time_s)).astype(np.float32), 16_000)


def train(model, pairs, scores):
    """All steps; returns the losses."""
    training = OmniTraining(model, pairs, scores, seed=0)
    losses = [training.step(number) for number in range(model.config.steps)]
    training.finish()
    return losses


PAIRS = [SpokenPair(noise(n, 0.5 + 0.1 * n), noise(100 + n, 0.9 - 0.05 * n)) for n in range(8)]
SCORES = [1, 5, 3, 2, 4, 5, 1, 3]


@pytest.mark.parametrize(("samples", "tokens"), [(16_000, 25), (160_000, 250), (16_001, 25), (480, 1), (100, 0)])
def test_a_second_has_25_tokens(samples, tokens):
    assert audio_tokens(samples) == tokens


def test_the_prompt_holds_each_clip_where_its_placeholder_stood():
    text = prompt_text("Q {{question}} A {{answer}}.", {"question": 16_000, "answer": 32_000})
    assert text == (
        "<|im_start|>system\nYou are a helpful assistant.<|im_end|>\n<|im_start|>user\n"
        f"Q <|audio_bos|>{AUDIO * 25}<|audio_eos|> A <|audio_bos|>{AUDIO * 50}<|audio_eos|>.<|im_end|>\n<|im_start|>assistant\n"
    )


def test_placeholders_and_what_the_audio_tower_makes_agree(tokenizer):
    """A wrong count makes transformers refuse, so every length that passes here is right."""
    model = model_for(tokenizer)
    for samples in (1_599, 1_600, 1_601, 16_159, 16_160, 16_161, 40_000):
        clip = Clip(noise(0, 3).samples[:samples], 16_000)
        assert torch.isfinite(model.next_logits([SpokenPair(clip, clip)])).all()


def test_features_are_those_of_the_full_length_to_rounding(tokenizer):
    model = model_for(tokenizer)
    clips = [noise(n, 1.0).samples[:samples] for n, samples in enumerate((16_000, 12_345, 1_600))]
    features, mask = mel_features(model.features, clips)
    exact = model.features(clips, sampling_rate=16_000, padding="max_length", return_attention_mask=True, return_tensors="pt")
    assert mask.sum(-1).tolist() == exact["attention_mask"].sum(-1).tolist()
    for row, count in enumerate(mask.sum(-1).tolist()):
        torch.testing.assert_close(features[row, :, :count], exact["input_features"][row, :, :count], atol=1e-5, rtol=0)


def test_a_batch_scores_as_one_by_one(tokenizer):
    model = model_for(tokenizer, batch_size=8)
    together = model.score(PAIRS)
    alone = [model.score([pair])[0] for pair in PAIRS]
    for one, other in zip(together, alone, strict=True):
        assert one.expected == pytest.approx(other.expected, abs=1e-5)
        assert one.digit_mass == pytest.approx(other.digit_mass, abs=1e-6)
        assert one.hard == other.hard


def test_the_last_place_has_the_logits_of_the_full_forward(tokenizer):
    model = model_for(tokenizer)
    with torch.inference_mode():
        full = model.thinker(**model.batch(PAIRS[:3])).logits[:, -1].float()
        torch.testing.assert_close(model.next_logits(PAIRS[:3]), full, atol=1e-6, rtol=0)


def test_score_is_the_expected_digit_and_the_mass_is_what_the_digits_have(tokenizer):
    model = model_for(tokenizer)
    found = model.score(PAIRS[:1])[0]
    with torch.inference_mode():
        share = model.next_logits(PAIRS[:1]).softmax(-1)[0, model.digit_ids]
    assert found.digit_mass == pytest.approx(float(share.sum()))
    by_hand = sum(n * float(p) for n, p in zip(range(1, 6), share, strict=True)) / float(share.sum())
    assert found.expected == pytest.approx(by_hand)
    assert found.hard == int(share.argmax()) + 1


def test_it_receives_both_clips_and_their_order(tokenizer):
    model = model_for(tokenizer)
    pair = PAIRS[0]
    variants = [pair, SpokenPair(pair.answer, pair.question), SpokenPair(pair.question, PAIRS[3].answer)]
    values = [model.score([one])[0].expected for one in variants]
    assert len({round(value, 6) for value in values}) == 3


def test_lora_is_on_the_language_model_alone(tokenizer):
    import re

    model = model_for(tokenizer)
    model.add_lora()
    trainable = [name for name, parameter in model.thinker.named_parameters() if parameter.requires_grad]
    assert len(trainable) == 2 * 2 * 7
    assert all("language_model" in name and "lora_" in name for name in trainable)
    assert not any(re.fullmatch(LORA_TARGETS, name) for name, _ in model.thinker.named_modules() if "audio_tower" in name)


def test_it_overfits_eight_pairs_and_an_adapter_is_the_same_after_loading(tokenizer, tmp_path: Path):
    settings = {"lr": 0.005, "batch_size": 8, "steps": 120, "lora_rank": 8, "lora_alpha": 16}
    pairs = [SpokenPair(tone(150 * 1.4**n, 0.4), tone(400, 0.3 + 0.05 * n)) for n in range(8)]

    def untrained():
        model = model_for(tokenizer, **settings)
        # The frozen random head could not put more than a hundredth on any token; a trained one can.
        model.thinker.lm_head.weight.data *= 50
        return model

    model = untrained()
    model.add_lora()
    losses = train(model, pairs, SCORES)
    found = model.score(pairs)
    assert losses[-1] < 0.1 < losses[0]
    assert [one.hard for one in found] == SCORES
    assert all(one.digit_mass > 0.9 for one in found)
    assert np.corrcoef([one.expected for one in found], SCORES)[0, 1] > 0.98
    model.save_adapter(tmp_path / "adapter")
    again = untrained()
    again.load_adapter(tmp_path / "adapter")
    for one, other in zip(again.score(pairs), found, strict=True):
        assert one.expected == pytest.approx(other.expected, abs=1e-5)
    other = OmniRewardModel(tiny_thinker(tokenizer), tokenizer, OmniConfig(model="another"))
    with pytest.raises(JudgeError, match="an adapter of tiny, not of another"):
        other.load_adapter(tmp_path / "adapter")


def test_what_is_exported_for_a_server_is_a_full_model_that_scores_the_same(tokenizer, tmp_path: Path):
    from safetensors import safe_open

    model = model_for(tokenizer, lr=0.01, batch_size=8, steps=3)
    model.add_lora()
    train(model, PAIRS, SCORES)
    before = model.score(PAIRS)
    model.export(tmp_path / "served")
    with safe_open(tmp_path / "served/model.safetensors", "pt") as file:
        names = list(file.keys())
    assert all(name.startswith("thinker.") and "lora" not in name for name in names)
    again = OmniRewardModel.pretrained(OmniConfig(model=str(tmp_path / "served")))
    for one, other in zip(again.score(PAIRS), before, strict=True):
        assert one.expected == pytest.approx(other.expected, abs=1e-4)


def test_a_batch_in_parts_with_activations_made_anew_is_the_full_batch(tokenizer, tmp_path: Path):
    """In float64, where the two differ by rounding alone; without the shares of the parts the weights differ at once."""
    settings = {"lr": 0.01, "batch_size": 5, "steps": 3}
    trained = []
    for more in ({}, {"micro_batch_size": 2, "gradient_checkpointing": True}):
        model = model_for(tokenizer, **settings, **more)
        torch.manual_seed(0)
        model.add_lora()
        model.thinker.double()
        calls = []
        layer = model.base.model.language_model.layers[0].self_attn
        layer.register_forward_pre_hook(lambda *_, calls=calls: calls.append(None))
        trained.append((train(model, PAIRS, SCORES), {n: v.detach().clone() for n, v in model.trainable().items()}, len(calls)))
    (losses, weights, passes), (other_losses, other_weights, other_passes) = trained
    assert other_losses == pytest.approx(losses, abs=1e-9)
    assert losses[0] != pytest.approx(losses[1], abs=1e-6)
    for name, value in weights.items():
        torch.testing.assert_close(other_weights[name], value, atol=1e-9, rtol=0)
    # Three parts for each batch, and each layer once more on the way back.
    assert (passes, other_passes) == (3, 3 * 3 * 2)


@pytest.mark.parametrize("stopped_at", [1, 3])
def test_training_that_was_stopped_ends_as_the_uninterrupted_one(tokenizer, tmp_path: Path, stopped_at):
    """Batches of 3 of 8 pairs: the fourth step crosses into a second epoch."""

    def begin():
        model = model_for(tokenizer, lr=0.01, batch_size=3, steps=5)
        torch.manual_seed(0)
        model.add_lora()
        return OmniTraining(model, PAIRS, SCORES, seed=4)

    straight = begin()
    losses = [straight.step(number) for number in range(5)]
    stopped = begin()
    for number in range(stopped_at):
        stopped.step(number)
    save_training(tmp_path / "at", stopped.model, stopped.optimiser, Position(stopped_at))
    resumed = begin()
    first = restore_training(tmp_path / "at", resumed.model, resumed.optimiser)
    assert [resumed.step(number) for number in range(first, 5)] == losses[stopped_at:]
    for (name, one), other in zip(straight.model.trainable().items(), resumed.model.trainable().values(), strict=True):
        assert torch.equal(one, other), name


def test_bad_input_is_named(tokenizer, tmp_path: Path):
    model = model_for(tokenizer, max_audio_s=1.0)
    with pytest.raises(JudgeError, match="the answer lasts 2 s, at most 1 s are read"):
        model.score([SpokenPair(noise(0, 0.5), noise(1, 2.0))])
    with pytest.raises(JudgeError, match="the question is too short to be heard"):
        model.score([SpokenPair(Clip(np.zeros(100, dtype=np.float32), 16_000), noise(1, 0.5))])
    with pytest.raises(JudgeError, match="2 pairs and 1 scores"):
        OmniTraining(model, PAIRS[:2], [3], 0)
    with pytest.raises(JudgeError, match="do not make a preference set"):
        OmniTraining(model, PAIRS[:1], [6], 0)
    with pytest.raises(JudgeError, match="/nowhere: cannot be loaded"):
        OmniRewardModel.pretrained(OmniConfig(model="/nowhere"))
    (tmp_path / "omni.md").write_text("{{question}} only")
    with pytest.raises(JudgeError, match="once each"):
        model_for(tokenizer, prompts=tmp_path)


def test_an_adapter_that_version_0_5_stored_keeps_its_settings(tmp_path: Path) -> None:
    (tmp_path / "omni.json").write_text('{"model": "m", "learning_rate": 0.25, "steps": 3}')
    config = OmniConfig.model_validate(read_adapter_config(tmp_path))
    assert (config.model, config.lr, config.steps) == ("m", 0.25, 3)
