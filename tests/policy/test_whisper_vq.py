"""Speech to codes and to Whisper features, on tiny random weights against a straight-line reference and golden numbers.

Not covered: the released tokenizer and Whisper weights, which cannot be had here, so no code of theirs was ever compared.
"""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file
from tiny.whisper_vq import SMALL, TINY, encoder_of, noise, save_tokenizer, whisper_folder
from torch import Tensor

from paras2s.audio.clip import Clip
from paras2s.errors import AudioError, PolicyError
from paras2s.policy.speech_tokenizers.whisper_features import BATCH_CHUNKS, WhisperFeatures
from paras2s.policy.speech_tokenizers.whisper_vq import GlmTokenizer, WhisperVQConfig, WhisperVQEncoder, block_causal, nearest


def tokenizer_of(seed: int = 0, chunk_s: int = 30) -> GlmTokenizer:
    from transformers import WhisperFeatureExtractor

    return GlmTokenizer(encoder_of(SMALL, seed).float(), WhisperFeatureExtractor(feature_size=4, chunk_length=chunk_s))


# -- the network ------------------------------------------------------------------------------------------------------


def reference(config: dict[str, object], weights: dict[str, Tensor], mel: Tensor, transcript: Tensor) -> Tensor:
    """What one row quantises, [T, D], of mel [bins, M]: one place, one head and one key at a time."""

    def convolve(signal: Tensor, name: str, stride: int) -> Tensor:
        kernel, bias = weights[f"{name}.weight"], weights[f"{name}.bias"]
        out = []
        for place in range(0, signal.shape[1], stride):
            total = bias.clone()
            for tap in range(3):
                if place + tap - 2 >= 0:
                    total = total + kernel[:, :, tap] @ signal[:, place + tap - 2]
            out.append(gelu(total))
        return torch.stack(out, dim=1)

    def gelu(value: Tensor) -> Tensor:
        return value * 0.5 * (1 + torch.erf(value / math.sqrt(2)))

    def norm(vector: Tensor, name: str) -> Tensor:
        centred = vector - vector.mean()
        return weights[f"{name}.weight"] * centred / (centred.pow(2).mean() + 1e-5).sqrt() + weights[f"{name}.bias"]

    def linear(vector: Tensor, name: str) -> Tensor:
        return weights[f"{name}.weight"] @ vector + weights.get(f"{name}.bias", torch.zeros(()))

    def attend(rows: list[Tensor], layer: str, block: int, transcript: list[bool]) -> list[Tensor]:
        query, key, value = ([linear(row, f"{layer}.self_attn.{part}_proj") for row in rows] for part in "qkv")
        out = []
        for place in range(len(rows)):
            seen = [j for j in range(len(rows)) if transcript[j] and (j <= place or j // block == place // block)]
            heads = []
            for head in range(2):
                part = slice(4 * head, 4 * head + 4)
                scores = [math.exp(float(query[place][part] @ key[j][part]) / math.sqrt(4)) for j in seen]
                total = sum(score / sum(scores) * value[j][part] for score, j in zip(scores, seen, strict=True))
                heads.append(total)
            out.append(linear(torch.cat(heads), f"{layer}.self_attn.out_proj"))
        return out

    block, kernel = int(str(config["quantize_causal_block_size"])), int(str(config["pooling_kernel_size"]))
    signal = convolve(convolve(mel, "conv1", 1), "conv2", 2)
    rows = [signal[:, place] + weights["embed_positions.weight"][place] for place in range(signal.shape[1])]
    mask = transcript.tolist()[::2]
    for number in range(int(str(config["quantize_position"]))):
        layer = f"layers.{number}"
        mixed = attend([norm(row, f"{layer}.self_attn_layer_norm") for row in rows], layer, block, mask)
        rows = [row + new for row, new in zip(rows, mixed, strict=True)]
        inner = [gelu(linear(norm(row, f"{layer}.final_layer_norm"), f"{layer}.fc1")) for row in rows]
        rows = [row + linear(new, f"{layer}.fc2") for row, new in zip(rows, inner, strict=True)]
        if number + 1 == config["pooling_position"]:
            rows = [torch.stack(rows[start : start + kernel]).mean(dim=0) for start in range(0, len(rows), kernel)]
            mask, block = mask[::kernel], block // kernel
    return torch.stack(rows)


@pytest.mark.parametrize("config", [TINY, SMALL | {"quantize_causal_block_size": 8}], ids=["tiny", "small"])
def test_states_and_codes_are_those_of_the_straight_line_reference(config: dict[str, object]) -> None:
    encoder = encoder_of(config)
    mel = torch.randn(3, 4, 24).double()
    transcript = torch.arange(24) < torch.tensor([24, 17, 3])[:, None]
    weights = {name: value.detach() for name, value in encoder.state_dict().items()}
    with torch.no_grad():
        states, codes = encoder.hidden(mel, transcript), encoder(mel, transcript)
    for row in range(3):
        expected = reference(config, weights, mel[row], transcript[row])
        torch.testing.assert_close(states[row], expected, rtol=1e-11, atol=1e-11)
        far = [[float((state - entry).norm()) for entry in weights["codebook.weight"]] for state in expected]
        assert codes[row].tolist() == [distances.index(min(distances)) for distances in far]


def test_golden_states() -> None:
    # By GLM-4-Voice's own code at eb00ce9, run in float64 on these weights under transformers 5.23.
    encoder = WhisperVQEncoder(WhisperVQConfig.model_validate(TINY)).double()
    for number, (name, weight) in enumerate(sorted(encoder.state_dict().items())):
        wave = torch.sin(0.5 + 1.3 * number + 0.731 * torch.arange(weight.numel()).double()).reshape(weight.shape)
        scale = 3.0 if name.startswith("codebook") else 0.3
        weight.copy_(1 + 0.1 * wave if "norm" in name and name.endswith("weight") else scale * wave)
    mel = torch.cos(0.37 * torch.arange(192).double()).reshape(2, 4, 24)
    transcript = torch.arange(24) < torch.tensor([24, 17])[:, None]
    with torch.no_grad():
        states = encoder.hidden(mel, transcript)[:, :, 0]
    full = [-5.8631417159079, -5.8155248936759, -4.7555522530792, -3.5732935064981, -4.2612383962075, -4.3061617147989]
    padded = [-3.6576614905795, -3.9158197604114, -4.1223885083853, -4.0240384391570, -2.7863862599802, -2.4589349798781]
    assert states[0].tolist() == pytest.approx(full, abs=1e-10)
    assert states[1].tolist() == pytest.approx(padded, abs=1e-10)


def test_nothing_after_a_block_reaches_it_and_everything_inside_does() -> None:
    # A block is 4 frames before the pooling, 2 states behind it. Frame f hears mel frames 2 f - 4 to 2 f: the causal
    # convolutions give the last of a block's 8 mel frames to the block after it.
    encoder = encoder_of(TINY)
    mel, transcript = torch.randn(1, 4, 24).double(), torch.ones(1, 24)
    with torch.no_grad():
        before = encoder.hidden(mel, transcript)
        for changed, first in ((7, 2), (15, 4)):
            other = mel.clone()
            other[:, :, changed:] += 1
            moved = (encoder.hidden(other, transcript) - before)[0].abs().amax(dim=1)
            assert moved[:first].max() < 1e-13
            assert moved[first:].min() > 1e-6
        other = mel.clone()
        other[:, :, 6] += 1
        assert (encoder.hidden(other, transcript) - before)[0].abs().amax(dim=1).min() > 1e-6


def test_who_may_look_at_whom() -> None:
    transcript = torch.tensor([[True, True, True, True, False]])
    expected = [[1, 1, 0, 0, 0], [1, 1, 0, 0, 0], [1, 1, 1, 1, 0], [1, 1, 1, 1, 0], [1, 1, 1, 1, 0]]
    assert block_causal(transcript, 2)[0].int().tolist() == expected


def test_the_nearest_entry_and_the_first_of_two_equal_ones() -> None:
    generator = torch.Generator().manual_seed(0)
    vectors, codebook = torch.randn(5, 7, 8, generator=generator) + 3, torch.randn(50, 8, generator=generator) + 3
    found = nearest(vectors, codebook)
    assert found.shape == (5, 7)
    assert found.dtype == torch.int64
    for place in np.ndindex(5, 7):
        assert found[place] == min(range(50), key=lambda entry: float((vectors[place] - codebook[entry]).norm()))
    assert nearest(torch.zeros(1, 2), torch.tensor([[3.0, 0.0], [0.0, 1.0], [1.0, 0.0]])).tolist() == [1]


# -- the tokenizer ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("samples", "codes"), [(1, 1), (1279, 1), (1280, 1), (1281, 2), (16_000, 13), (480_000, 375), (480_001, 376)]
)
def test_a_code_for_every_1280_samples_begun(samples: int, codes: int) -> None:
    found = tokenizer_of().encode(noise(samples))
    assert found.shape == (codes,)
    assert found.dtype == np.int64
    assert found.min() >= 0
    assert found.max() < 64


def test_only_what_was_spoken_is_read() -> None:
    # The zeros that fill the last code are pooled with it, but no frame may attend to them.
    tokenizer = tokenizer_of()
    deaf = 0
    for samples in range(1400, 12_000, 700):
        clip = noise(samples, samples)
        padded = np.pad(clip.samples, (0, -samples % 1280))
        mel = tokenizer.extractor(padded, sampling_rate=16_000, padding="longest", return_tensors="pt").input_features
        transcript = torch.arange(mel.shape[2])[None] * 160 < samples
        with torch.no_grad():
            codes, all_read = tokenizer.encoder(mel, transcript)[0], tokenizer.encoder(mel, transcript | True)[0]
        assert tokenizer.encode(clip).tolist() == codes.tolist()
        deaf += codes.tolist() != all_read.tolist()
    assert deaf > 0


def test_chunks_of_30_s_one_after_another() -> None:
    tokenizer = tokenizer_of()
    clip = noise(31 * 16_000)
    parts = [tokenizer.encode(Clip(part, 16_000)) for part in (clip.samples[:480_000], clip.samples[480_000:])]
    assert [len(part) for part in parts] == [375, 13]
    assert tokenizer.encode(clip).tolist() == np.concatenate(parts).tolist()


def test_a_batch_is_its_clips_one_by_one() -> None:
    tokenizer = tokenizer_of(chunk_s=2)
    # 17 chunks of very different lengths: more than one batch, and a clip that is split over two.
    lengths = [1, 5000, 31_999, 12 * 16_000, 1280, 9 * 16_000 + 7, 16_001, 700]
    clips = [noise(samples, seed) for seed, samples in enumerate(lengths)]
    together = tokenizer.encode_batch(clips)
    alone = [tokenizer.encode(clip) for clip in clips]
    assert [codes.tolist() for codes in together] == [codes.tolist() for codes in alone]
    assert len(set(np.concatenate(alone).tolist())) > 8
    assert tokenizer.encode_batch([]) == []


def test_later_sound_leaves_the_codes_of_earlier_blocks_alone() -> None:
    tokenizer = tokenizer_of()
    clip = noise(9 * 16_000)
    # The first 200 frames hear mel frames to 398, whose window ends 200 samples after its centre at 398 * 160.
    other = clip.samples.copy()
    other[63_880:] = noise(len(other), seed=1).samples[63_880:][::-1]
    before, after = tokenizer.encode(clip), tokenizer.encode(Clip(other, 16_000))
    assert before[:50].tolist() == after[:50].tolist()
    assert before[50:].tolist() != after[50:].tolist()


def test_another_sample_rate_is_brought_to_16_khz() -> None:
    tokenizer = tokenizer_of()
    assert (tokenizer.sample_rate_hz, tokenizer.frame_rate_hz, tokenizer.vocab_size) == (16_000, 12.5, 64)
    clip = noise(8_000)
    assert tokenizer.encode(clip.at(48_000)).shape == tokenizer.encode(clip).shape


def test_an_empty_clip_is_refused() -> None:
    with pytest.raises(AudioError, match="no samples"):
        tokenizer_of().encode_batch([noise(1280), Clip(np.zeros(0, dtype=np.float32), 16_000)])


# -- the checkpoint ---------------------------------------------------------------------------------------------------


def test_a_released_folder_is_loaded_by_name(tmp_path: Path) -> None:
    encoder = encoder_of(SMALL).float()
    loaded = GlmTokenizer.load(save_tokenizer(tmp_path, encoder, SMALL))
    assert loaded.encoder.state_dict().keys() == encoder.state_dict().keys()
    for name, value in encoder.state_dict().items():
        assert torch.equal(loaded.encoder.state_dict()[name], value)
    clip = noise(20_000)
    assert loaded.encode(clip).tolist() == tokenizer_of().encode(clip).tolist()


def test_a_full_whisper_with_a_codebook_is_cut(tmp_path: Path) -> None:
    folder = save_tokenizer(tmp_path, encoder_of(SMALL), SMALL)
    state = {f"model.encoder.{name}": value for name, value in load_file(folder / "model.safetensors").items()}
    above = {"model.encoder.layers.2.fc1.weight", "model.encoder.layer_norm.bias", "model.decoder.x", "proj_out.weight"}
    save_file(state | {name: torch.ones(2) for name in above}, folder / "model.safetensors")
    clip = noise(20_000)
    assert GlmTokenizer.load(folder).encode(clip).tolist() == tokenizer_of().encode(clip).tolist()


def test_tensors_that_do_not_fit_are_named_with_their_shapes(tmp_path: Path) -> None:
    folder = save_tokenizer(tmp_path, encoder_of(SMALL), SMALL)
    state = load_file(folder / "model.safetensors")
    del state["layers.1.fc1.bias"]
    state["codebook.weight"] = torch.ones(63, 8)
    state["layers.0.self_attn.k_proj.bias"] = torch.ones(8)
    save_file(state, folder / "model.safetensors")
    with pytest.raises(PolicyError) as error:
        GlmTokenizer.load(folder)
    assert "3 tensors" in str(error.value)
    for part in ("layers.1.fc1.bias [16]", "codebook.weight", "[63, 8]", "[64, 8]", "layers.0.self_attn.k_proj.bias [8]"):
        assert part in str(error.value)

    save_file({"conv1.bias": torch.ones(8)}, folder / "model.safetensors")
    with pytest.raises(PolicyError) as error:
        GlmTokenizer.load(folder)
    assert sum(str(error.value).count(name) for name in encoder_of(SMALL).state_dict()) == 10


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("encoder_causal_attention", True),
        ("encoder_causal_convolution", False),
        ("quantize_causal_encoder", True),
        ("pooling_type", "max"),
        ("quantize_causal_block_size", None),
        ("quantize_causal_block_size", 201),
        ("pooling_position", 3),
        ("encoder_attention_heads", 3),
    ],
)
def test_a_variant_that_was_not_released_is_refused(tmp_path: Path, key: str, value: object) -> None:
    folder = save_tokenizer(tmp_path, encoder_of(SMALL), SMALL | {key: value})
    with pytest.raises(PolicyError, match=key):
        GlmTokenizer.load(folder)


def test_a_config_is_never_completed_from_defaults(tmp_path: Path) -> None:
    folder = save_tokenizer(tmp_path, encoder_of(SMALL), {key: value for key, value in SMALL.items() if key != "pooling_type"})
    with pytest.raises(PolicyError, match="pooling_type"):
        GlmTokenizer.load(folder)


def test_a_missing_or_foreign_feature_recipe_is_refused(tmp_path: Path) -> None:
    from transformers import WhisperFeatureExtractor

    folder = save_tokenizer(tmp_path, encoder_of(SMALL), SMALL)
    WhisperFeatureExtractor(feature_size=5).save_pretrained(str(folder))
    with pytest.raises(PolicyError, match="5 bins"):
        GlmTokenizer.load(folder)
    (folder / "preprocessor_config.json").unlink()
    with pytest.raises(PolicyError, match="preprocessor_config"):
        GlmTokenizer.load(folder)


# -- Whisper's own features -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("samples", "steps"), [(1, 1), (1280, 1), (1281, 2), (32_000, 25), (32_001, 26), (80_000, 63)])
def test_features_of_every_1280_samples_begun(tmp_path: Path, samples: int, steps: int) -> None:
    features = WhisperFeatures.load(whisper_folder(tmp_path))
    found = features.features(noise(samples))
    assert (features.sample_rate_hz, features.frame_rate_hz, features.feature_dim) == (16_000, 12.5, 32)
    assert found.shape == (steps, 32)
    assert found.dtype == np.float32


def test_features_are_whispers_states_four_side_by_side(tmp_path: Path) -> None:
    from transformers import WhisperFeatureExtractor, WhisperModel

    folder = whisper_folder(tmp_path)
    clip = noise(5000)
    model = WhisperModel.from_pretrained(str(folder)).eval()
    recipe = WhisperFeatureExtractor.from_pretrained(str(folder))
    mel = recipe(np.pad(clip.samples, (0, 27_000)), sampling_rate=16_000, return_tensors="pt").input_features
    with torch.no_grad():
        states = model.encoder(mel).last_hidden_state[0].numpy()
    found = WhisperFeatures.load(folder).features(clip)
    expected = [np.concatenate([states[4 * step + part] for part in range(4)]) for step in range(4)]
    np.testing.assert_allclose(found, np.stack(expected), rtol=1e-5, atol=1e-5)


def test_a_long_clip_is_its_chunks_one_after_another(tmp_path: Path) -> None:
    features = WhisperFeatures.load(whisper_folder(tmp_path))
    clip = noise(70_000)
    parts = [features.features(Clip(clip.samples[start : start + 32_000], 16_000)) for start in (0, 32_000, 64_000)]
    np.testing.assert_allclose(features.features(clip), np.concatenate(parts), rtol=1e-5, atol=1e-5)
    full = WhisperFeatures.load(whisper_folder(tmp_path, chunk_s=30))
    assert full.features(noise(31 * 16_000)).shape == (375 + 13, 32)


def test_features_of_many_clips_are_those_of_each(tmp_path: Path) -> None:
    """More chunks than one pass takes, of clips of one to three chunks."""
    features = WhisperFeatures.load(whisper_folder(tmp_path))
    features.encoder.double()
    clips = [noise(9_000 * number) for number in (1, 8, 3, 5, 2, 7)]
    assert sum(-(-len(clip.samples) // 32_000) for clip in clips) > BATCH_CHUNKS
    for found, clip in zip(features.features_batch(clips), clips, strict=True):
        np.testing.assert_allclose(found, features.features(clip), atol=1e-6)


def test_half_precision_weights_become_float32(tmp_path: Path) -> None:
    folder = whisper_folder(tmp_path)
    state = {name: value.half() for name, value in load_file(folder / "model.safetensors").items()}
    save_file(state, folder / "model.safetensors")
    encoder = WhisperFeatures.load(folder).encoder
    assert torch.equal(encoder.state_dict()["conv1.bias"], state["model.encoder.conv1.bias"].float())


def test_features_refuse_what_does_not_fit(tmp_path: Path) -> None:
    from transformers import WhisperFeatureExtractor

    folder = whisper_folder(tmp_path)
    features = WhisperFeatures.load(folder)
    with pytest.raises(AudioError, match="no samples"):
        features.features(Clip(np.zeros(0, dtype=np.float32), 16_000))
    with pytest.raises(PolicyError, match="3000"):
        WhisperFeatures(features.encoder, WhisperFeatureExtractor(feature_size=4))
    state = load_file(folder / "model.safetensors")
    del state["model.encoder.layers.1.fc2.bias"]
    save_file(state, folder / "model.safetensors")
    with pytest.raises(PolicyError, match=r"layers\.1\.fc2\.bias \[8\]"):
        WhisperFeatures.load(folder)
