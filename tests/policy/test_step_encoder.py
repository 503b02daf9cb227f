"""Step-Audio 2's audio encoder against its arithmetic written out, and the wrapper of the S3 tokenizer's package."""

from __future__ import annotations

import itertools
import sys
import types
from pathlib import Path

import numpy as np
import pytest
import torch
from tiny.interleaved import (
    TinyStep,
    sliding,
    tiny_step_once,
    write_step,
)
from torch import Tensor
from torch.nn import functional as fn

from paras2s.audio.clip import Clip
from paras2s.errors import AudioError, PolicyError
from paras2s.policy.interleaved.cosyvoice import S3Tokenizer
from paras2s.policy.interleaved.step_encoder import StepEncoderConfig
from paras2s.policy.types import Turn


def log_mel(samples: np.ndarray, bins: int) -> Tensor:
    """Step-Audio 2's recipe [bins, M], from its parts."""
    from transformers.audio_utils import mel_filter_bank

    wave = fn.pad(torch.from_numpy(samples), (0, 479))
    spectrum = torch.stft(wave, 400, 160, window=torch.hann_window(400), return_complex=True)[..., :-1].abs().square()
    filters = mel_filter_bank(201, bins, 0.0, 8000.0, 16_000, norm="slaney", mel_scale="slaney")
    logs = (torch.from_numpy(filters).float().T @ spectrum).clamp(min=1e-10).log10()
    return (torch.maximum(logs, logs.max() - 8) + 4) / 4


def encoder_by_hand(weights: dict[str, Tensor], mel: Tensor, heads: int) -> Tensor:
    """Vectors [T, H] of mel [bins, M], as the released forward counts them: lengths, mask and all."""
    width, transcript = weights["encoder.conv1.bias"].shape[0], mel.shape[1] - 2

    def named(name: str) -> tuple[Tensor, Tensor | None]:
        return weights[f"{name}.weight"], weights.get(f"{name}.bias")

    def norm(x: Tensor, name: str) -> Tensor:
        return fn.layer_norm(x, (width,), *named(name))

    x = fn.gelu(fn.conv1d(mel[None], *named("encoder.conv1"), padding=1))
    x = fn.gelu(fn.conv1d(x, *named("encoder.conv2"), stride=2, padding=1))[0].T
    mask = (torch.arange(mel.shape[1]) < transcript)[(mel.shape[1] + 1) % 2 :: 2]
    x = x + weights["encoder.positional_embedding.weight"][: len(x)]
    layer = 0
    while f"encoder.blocks.{layer}.attn_ln.weight" in weights:
        at = f"encoder.blocks.{layer}"
        y = norm(x, f"{at}.attn_ln")
        q, k, v = (fn.linear(y, *named(f"{at}.attn.{one}")).view(len(y), heads, -1) for one in ("query", "key", "value"))
        scores = torch.einsum("qhd,khd->hqk", q, k) / (width // heads) ** 0.5 + (~mask) * -1e10
        seen = torch.einsum("hqk,khd->qhd", scores.softmax(-1), v).reshape(len(y), width)
        x = x + fn.linear(seen, *named(f"{at}.attn.out"))
        x = x + fn.linear(fn.gelu(fn.linear(norm(x, f"{at}.mlp_ln"), *named(f"{at}.mlp.0"))), *named(f"{at}.mlp.2"))
        layer += 1
    x = norm(x[: len(x) // 2 * 2].view(-1, 2, width).mean(1), "encoder.after_norm")
    x = fn.gelu(fn.conv1d(x.T[None], *named("adapter.conv"), stride=2, padding=1))[0].T
    x = fn.linear(fn.relu(fn.linear(x, *named("adapter.linear1"))), *named("adapter.linear2"))
    return x[: ((transcript + 1) // 2 // 2 - 1) // 2 + 1]


@pytest.mark.parametrize(
    ("samples", "vectors"), [(1, 0), (800, 1), (3200, 3), (3201, 3), (4960, 4), (16_000, 13), (25 * 16_000, 313)]
)
def test_the_audio_encoder_does_what_the_released_arithmetic_does(samples: int, vectors: int, tmp_path: Path) -> None:
    policy = tiny_step_once()
    clip = sliding(samples / 16_000, 16_000, 180).samples[:samples]
    assert len(clip) == samples
    found = policy.audio_encoder.features(clip)
    assert found.shape == (vectors, 16)
    assert found.dtype == np.float64
    assert policy.audio_encoder.config.vectors(samples) == vectors
    weights = {name: value for name, value in policy.tensors().items() if name.startswith(("encoder.", "adapter."))}
    wanted = encoder_by_hand(weights, log_mel(clip, 8).double(), heads=2).numpy()
    np.testing.assert_allclose(found, wanted, atol=2e-5, rtol=0)
    if vectors > 2:
        assert np.abs(found[1] - found[0]).max() > 1e-2


def test_long_clips_are_encoded_in_pieces_of_25_s() -> None:
    policy = tiny_step_once()
    clip = sliding(27.0, 16_000, 180)
    prompt = policy.encode_prompt([Turn("user", clip=clip)])
    runs = [(held, len(list(group))) for held, group in itertools.groupby(prompt.continuous.tolist())]
    assert [count for held, count in runs if held] == [313, 25]
    assert prompt.features is not None
    pieces = [
        policy.audio_encoder.features(clip.samples[: 25 * 16_000]),
        policy.audio_encoder.features(clip.samples[25 * 16_000 :]),
    ]
    np.testing.assert_array_equal(prompt.features[prompt.continuous], np.concatenate(pieces))


def test_clips_that_do_not_fit_are_refused() -> None:
    encoder = tiny_step_once().audio_encoder
    assert encoder.longest == 30 * 16_000 - 479
    for samples in (0, encoder.longest + 1):
        with pytest.raises(AudioError, match="takes 1 to"):
            encoder.features(np.zeros(samples, dtype=np.float32))
    assert not any(parameter.requires_grad for parameter in encoder.parameters())


def test_vectors_of_the_released_sizes() -> None:
    config = StepEncoderConfig(n_mels=128, n_audio_ctx=1500, n_audio_state=1280, n_audio_head=20, n_audio_layer=32,
                               llm_dim=3584, kernel_size=3, adapter_stride=2)  # fmt: skip
    for frames in range(3, 2600):
        released = (((frames - 2 + 1) // 2 // 2) + 2 - 3) // 2 + 1
        assert config.vectors(frames * 160 - 479) == released


class FakeS3Network(torch.nn.Module):
    """As `s3tokenizer.model_v2.S3TokenizerV2` is called."""

    def __init__(self, name: str) -> None:
        super().__init__()
        assert name == "speech_tokenizer_v2_25hz"
        self.weight = torch.nn.Parameter(torch.ones(1))
        self.read = ""

    def init_from_onnx(self, path: str) -> None:
        self.read = path

    def quantize(self, mel: Tensor, lengths: Tensor) -> tuple[Tensor, Tensor]:
        assert mel.shape == (1, 3, 100)
        assert not torch.is_grad_enabled()
        return torch.arange(27)[None].int(), torch.tensor([25])


def test_the_s3_tokenizer_is_called_as_its_package_wants(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    package, inner = types.ModuleType("s3tokenizer"), types.ModuleType("s3tokenizer.model_v2")
    package.log_mel_spectrogram = lambda wave: wave[: len(wave) // 160 * 160].view(-1, 160)[:, :3].T  # type: ignore[attr-defined]
    package.padding = lambda mels: (torch.stack(mels), torch.tensor([mel.shape[1] for mel in mels]))  # type: ignore[attr-defined]
    inner.S3TokenizerV2 = FakeS3Network  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "s3tokenizer", package)
    monkeypatch.setitem(sys.modules, "s3tokenizer.model_v2", inner)
    path = tmp_path / "speech_tokenizer_v2_25hz.onnx"
    with pytest.raises(PolicyError, match="token2wav"):
        S3Tokenizer.load(path)
    path.write_bytes(b"onnx")
    tokenizer = S3Tokenizer.load(path)
    assert tokenizer.network.read == str(path)
    codes = tokenizer.encode(sliding(1.0, 24_000, 100))
    assert codes.tolist() == list(range(25))
    assert codes.dtype == np.int64
    with pytest.raises(AudioError, match="no samples"):
        tokenizer.encode(Clip(np.zeros(0, dtype=np.float32), 16_000))


def test_without_the_package_it_is_said_what_to_install(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setitem(sys.modules, "s3tokenizer", None)
    policy = TinyStep.load(write_step(tmp_path / "step"))
    with pytest.raises(PolicyError, match="no token2wav in it or beside it"):
        policy.encode_target(sliding(0.3, 16_000, 100), "Hi")
    (tmp_path / "step" / "token2wav").mkdir()
    (tmp_path / "step" / "token2wav" / "speech_tokenizer_v2_25hz.onnx").write_bytes(b"onnx")
    with pytest.raises(PolicyError, match="pip install torchaudio 's3tokenizer"):
        policy.encode_target(sliding(0.3, 16_000, 100), "Hi")
