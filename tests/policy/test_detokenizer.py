"""Kimi-Audio's detokenizer at tiny random sizes, against straight-line references and hand-computed chunk tables.

Not covered: the released weights and their sound, which cannot be had here, and bfloat16 on a GPU. That the whole decode
equals the official code was checked by hand on random weights (float32, largest difference 5e-7), not by this file.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import scipy.signal
import torch
from tiny.detokenizer import (
    RELEASED_DIT,
    RELEASED_FLOW,
    RELEASED_VOCODER,
    TINY_FLOW,
    save_detokenizer,
    tiny_models,
    with_filters,
)
from torch import Tensor, nn

from paras2s.errors import PolicyError
from paras2s.policy.kimi.bigvgan import BigVGAN, BigVGANConfig, Conv, Upsample, kaiser_sinc
from paras2s.policy.kimi.detokenizer import KimiDetokenizer, MelStreams, Streaming, WaveStreams
from paras2s.policy.kimi.flow_matching import FlowConfig, FlowModel, euler

SAMPLES_PER_CODE = 4 * 6


@pytest.fixture(autouse=True, scope="module")
def _one_thread() -> Iterator[None]:
    """Threads that wait for each other take longer over tensors as small as these."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@pytest.fixture(scope="module")
def released(tmp_path_factory: pytest.TempPathFactory) -> Path:
    flow, vocoder = tiny_models()
    return save_detokenizer(tmp_path_factory.mktemp("kimi"), flow.state_dict(), with_filters(vocoder))


@pytest.fixture(scope="module")
def detokenizer(released: Path) -> KimiDetokenizer:
    return KimiDetokenizer.load(released, "cpu")


def some_codes(count: int) -> np.ndarray:
    return np.random.default_rng(count).integers(0, 40, count)


def test_released_layout_is_loaded_back(detokenizer: KimiDetokenizer) -> None:
    for loaded, made in zip((detokenizer.flow, detokenizer.vocoder), tiny_models(), strict=True):
        assert not any(parameter.requires_grad for parameter in loaded.parameters())
        wanted = made.state_dict()
        assert loaded.state_dict().keys() == wanted.keys()
        assert all(torch.equal(tensor, wanted[name]) for name, tensor in loaded.state_dict().items())
    assert (detokenizer.sample_rate_hz, detokenizer.frame_rate_hz, detokenizer.samples_per_code) == (300, 12.5, 24)


def test_tensor_names_are_those_of_the_release() -> None:
    flow, vocoder = tiny_models()
    block = ("attn.qkv", "attn.proj", "mlp.fc1", "mlp.fc2", "adaLN_modulation.1")
    layers = [f"blocks.{number}.{name}" for number in range(2) for name in block]
    layers += ["t_embedder.mlp.0", "t_embedder.mlp.2", "input_linear", "final_layer.linear", "final_layer.adaLN_modulation.1"]
    names = {f"{layer}.{kind}" for layer in layers for kind in ("weight", "bias")} | {"semantic_token_embedding.weight"}
    assert flow.state_dict().keys() == names

    convs = ["conv_pre", "ups.0.0", "ups.1.0"]
    convs += [f"resblocks.{block}.convs{kind}.{number}" for block in range(4) for kind in (1, 2) for number in range(2)]
    acts = [f"resblocks.{block}.activations.{number}" for block in range(4) for number in range(4)] + ["activation_post"]
    names = {f"{conv}.{kind}" for conv in convs for kind in ("weight_g", "weight_v", "bias")}
    names |= {"conv_post.weight_g", "conv_post.weight_v"} | {f"{act}.act.{kind}" for act in acts for kind in ("alpha", "beta")}
    assert vocoder.state_dict().keys() == names


def test_released_sizes_hold_171_and_868_tensors() -> None:
    with torch.device("meta"):
        flow = FlowModel(FlowConfig.from_released(RELEASED_FLOW)).state_dict()
        vocoder = BigVGAN(BigVGANConfig.from_released(RELEASED_VOCODER)).state_dict()
    assert (len(flow), len(vocoder)) == (171, 868)
    assert flow["semantic_token_embedding.weight"].shape == (16385, 2304)
    assert flow["blocks.15.mlp.fc1.weight"].shape == (9216, 2304)
    assert vocoder["ups.0.0.weight_v"].shape == (2048, 1024, 9)
    # The length of a transposed convolution's kernel is per input.
    assert vocoder["ups.0.0.weight_g"].shape == (2048, 1, 1)
    assert vocoder["conv_post.weight_v"].shape == (1, 16, 7)


def test_tensors_that_do_not_fit_are_listed(tmp_path: Path) -> None:
    flow, vocoder = tiny_models()
    state = dict(flow.state_dict())
    del state["input_linear.bias"]
    state["t_embedder.mlp.0.bias"] = torch.zeros(5)
    state["position_embedding.weight"] = torch.zeros(2, 3)
    with pytest.raises(PolicyError) as refused:
        KimiDetokenizer.load(save_detokenizer(tmp_path, state, with_filters(vocoder)), "cpu")
    message = str(refused.value)
    assert "audio_detokenizer/model.pt" in message
    for part in ("input_linear.bias [24]", "t_embedder.mlp.0.bias", "[5]", "position_embedding.weight [2, 3]"):
        assert part in message

    folded = {name.replace("weight_v", "weight"): tensor for name, tensor in with_filters(vocoder).items()}
    with pytest.raises(PolicyError, match=r"vocoder/model\.pt") as refused:
        KimiDetokenizer.load(save_detokenizer(tmp_path, flow.state_dict(), folded), "cpu")
    assert str(refused.value).count("weight") == 10


def test_a_filter_of_another_design_is_refused(tmp_path: Path) -> None:
    flow, vocoder = tiny_models()
    state = with_filters(vocoder)
    state["activation_post.upsample.filter"] = torch.full((1, 1, 12), 1 / 12)
    with pytest.raises(PolicyError, match=r"activation_post\.upsample\.filter"):
        KimiDetokenizer.load(save_detokenizer(tmp_path, flow.state_dict(), state), "cpu")


def test_files_that_are_not_the_release_are_refused(tmp_path: Path) -> None:
    flow, vocoder = tiny_models()
    with pytest.raises(PolicyError, match=r"config\.yaml"):
        KimiDetokenizer.load(tmp_path, "cpu")
    folder = save_detokenizer(tmp_path, flow.state_dict(), with_filters(vocoder))
    torch.save({"generator": 1}, folder / "vocoder" / "model.pt")
    with pytest.raises(PolicyError, match="no tensors under 'generator'"):
        KimiDetokenizer.load(folder, "cpu")
    (folder / "vocoder" / "model.pt").write_bytes(b"version https://git-lfs")
    with pytest.raises(PolicyError, match=r"vocoder/model\.pt: cannot be read"):
        KimiDetokenizer.load(folder, "cpu")


@pytest.mark.parametrize(("field", "value"), [("ffn_type", "conv1d_conv1d"), ("use_rope", False), ("num_heads", 5)])
def test_a_flow_model_of_another_kind_is_refused(field: str, value: object) -> None:
    dit = {**RELEASED_DIT, field: value}
    with pytest.raises(PolicyError, match=r"config\.yaml"):
        FlowConfig.from_released({**RELEASED_FLOW, "model": {"dit": dit}})


@pytest.mark.parametrize("field", ["mel_mean", "model"])
def test_a_missing_field_is_named(field: str) -> None:
    with pytest.raises(PolicyError, match=field):
        FlowConfig.from_released({name: value for name, value in RELEASED_FLOW.items() if name != field})


@pytest.mark.parametrize(
    ("field", "value"),
    [("activation", "snake"), ("use_tanh_at_final", True), ("hop_size", 256), ("upsample_kernel_sizes", [8] * 7)],
)
def test_a_vocoder_of_another_kind_is_refused(field: str, value: object) -> None:
    with pytest.raises(PolicyError, match=r"vocoder/config\.json"):
        BigVGANConfig.from_released({**RELEASED_VOCODER, field: value})


def test_the_official_default_of_a_missing_tanh_field_is_refused() -> None:
    with pytest.raises(PolicyError, match="use_tanh_at_final"):
        BigVGANConfig.from_released({name: value for name, value in RELEASED_VOCODER.items() if name != "use_tanh_at_final"})


def norm(x: np.ndarray) -> np.ndarray:
    return (x - x.mean(-1, keepdims=True)) / np.sqrt(x.var(-1, keepdims=True) + 1e-6)


def silu(x: np.ndarray) -> np.ndarray:
    return x / (1 + np.exp(-x))


def turned(row: np.ndarray, position: int) -> np.ndarray:
    """One head's channels, pair (2i, 2i + 1) turned by position / 10000^(2i / d)."""
    out = np.zeros_like(row)
    for pair in range(len(row) // 2):
        angle = position / 10_000 ** (2 * pair / len(row))
        a, b = row[2 * pair], row[2 * pair + 1]
        out[2 * pair] = a * math.cos(angle) - b * math.sin(angle)
        out[2 * pair + 1] = a * math.sin(angle) + b * math.cos(angle)
    return out


class StraightFlow:
    """The flow model as loops over frames and heads, in numpy float64. The history is recomputed, not cached."""

    def __init__(self, flow: FlowModel) -> None:
        self.weights = {name: tensor.double().numpy() for name, tensor in flow.state_dict().items()}
        self.heads, self.depth = flow.config.num_heads, flow.config.depth

    def linear(self, name: str, x: np.ndarray) -> np.ndarray:
        return x @ self.weights[f"{name}.weight"].T + self.weights[f"{name}.bias"]

    def block(self, name: str, x: np.ndarray, c: np.ndarray, start: int, past: list) -> tuple[np.ndarray, list]:
        """Returns the output [T, D] and the list of (position, key row, value row) seen, past ones included."""
        width = x.shape[1]
        part = [self.linear(f"{name}.adaLN_modulation.1", silu(c))[:, n * width : (n + 1) * width] for n in range(6)]
        qkv = self.linear(f"{name}.attn.qkv", norm(x) * (1 + part[1]) + part[0])
        seen = past + [(start + t, row[width : 2 * width], row[2 * width :]) for t, row in enumerate(qkv)]
        mixed, d = np.zeros_like(x), width // self.heads
        for t in range(len(x)):
            for head in range(self.heads):
                at = slice(head * d, (head + 1) * d)
                query = turned(qkv[t, :width][at], start + t)
                scores = np.array([query @ turned(key[at], position) for position, key, _ in seen]) / math.sqrt(d)
                odds = np.exp(scores - scores.max())
                mixed[t, at] = sum(odd * value[at] for odd, (_, _, value) in zip(odds / odds.sum(), seen, strict=True))
        x = x + part[2] * self.linear(f"{name}.attn.proj", mixed)
        inner = self.linear(f"{name}.mlp.fc1", norm(x) * (1 + part[4]) + part[3])
        inner = 0.5 * inner * (1 + np.tanh(math.sqrt(2 / math.pi) * (inner + 0.044715 * inner**3)))
        return x + part[5] * self.linear(f"{name}.mlp.fc2", inner), seen

    def velocity(self, mel: np.ndarray, codes: np.ndarray, time: int, start: int, past: list) -> tuple[np.ndarray, list]:
        angles = [time / 10_000 ** (n / 128) for n in range(128)]
        t = np.array([math.cos(a) for a in angles] + [math.sin(a) for a in angles])
        t = self.linear("t_embedder.mlp.2", silu(self.linear("t_embedder.mlp.0", t)))
        c = t + self.weights["semantic_token_embedding.weight"][codes]
        x, seen = self.linear("input_linear", mel), []
        for number in range(self.depth):
            x, own = self.block(f"blocks.{number}", x, c, start, past[number] if past else [])
            seen.append(own)
        shift, scale = np.split(self.linear("final_layer.adaLN_modulation.1", silu(c)), 2, axis=1)
        return self.linear("final_layer.linear", norm(x) * (1 + scale) + shift), seen


def test_flow_model_against_the_straight_line_reference() -> None:
    flow = tiny_models()[0].double()
    straight = StraightFlow(flow)
    rng = np.random.default_rng(0)
    earlier, later = rng.normal(size=(4, 8)), rng.normal(size=(5, 8))
    codes = rng.integers(0, 40, 9)
    with torch.no_grad():
        first, prefix = flow(torch.from_numpy(earlier), torch.from_numpy(codes[:4]), 999, 3000)
        second, _ = flow(torch.from_numpy(later), torch.from_numpy(codes[4:]), 137, 3004, prefix)
    wanted_first, past = straight.velocity(earlier, codes[:4], 999, 3000, [])
    wanted_second, _ = straight.velocity(later, codes[4:], 137, 3004, past)
    np.testing.assert_allclose(first.numpy(), wanted_first, atol=1e-10)
    np.testing.assert_allclose(second.numpy(), wanted_second, atol=1e-10)
    # The prefix matters, so the comparison above is not of two that ignore it.
    assert abs(wanted_second - straight.velocity(later, codes[4:], 137, 3004, [])[0]).max() > 1e-3


def test_one_block_against_the_straight_line_reference() -> None:
    flow = tiny_models()[0].double()
    rng = np.random.default_rng(1)
    x, condition = rng.normal(size=(6, 24)), rng.normal(size=(6, 24))
    with torch.no_grad():
        out, _ = flow.blocks[1](torch.from_numpy(x), torch.from_numpy(condition), flow._turns(4000, 6), None)
    np.testing.assert_allclose(out.numpy(), StraightFlow(flow).block("blocks.1", x, condition, 4000, [])[0], atol=1e-10)


def test_euler_takes_29_steps_at_exact_thousandths() -> None:
    seen = []

    def velocity(x: Tensor, time: int) -> Tensor:
        seen.append(time)
        return torch.sin(3 * x) + time / 1000

    start = torch.linspace(-1, 1, 7, dtype=torch.float64)
    solved = euler(velocity, start, 30)
    # i / 29 in thousandths, rounded down; 1 itself is not visited.
    assert seen == [1000 * step // 29 for step in range(29)]
    assert seen[:4] == [0, 34, 68, 103]
    x = start.clone()
    for step in range(29):
        x = x + (torch.sin(3 * x) + (1000 * step // 29) / 1000) / 29
    torch.testing.assert_close(solved, x, atol=1e-6, rtol=0)


def test_euler_keeps_the_times_apart_in_bfloat16() -> None:
    seen = []
    euler(lambda x, time: seen.append(time) or x, torch.zeros(2, dtype=torch.bfloat16), 30)
    assert min(after - now for now, after in pairwise(seen)) >= 34


def test_low_pass_is_scipys() -> None:
    # Kaiser's rule at a transition of 1.2 (of a Nyquist of pi) over 5 taps, as scipy states it.
    beta = scipy.signal.kaiser_beta(2.285 * 5 * math.pi * 1.2 + 7.95)
    np.testing.assert_allclose(kaiser_sinc(), scipy.signal.firwin(12, 0.5, window=("kaiser", beta)), atol=1e-12)
    assert sum(kaiser_sinc()) == pytest.approx(1)


class StraightVocoder:
    """The vocoder by numpy and scipy in float64, one output channel at a time."""

    def __init__(self, vocoder: BigVGAN) -> None:
        self.weights = {name: tensor.double().numpy() for name, tensor in vocoder.state_dict().items()}

    def activation(self, name: str, x: np.ndarray) -> np.ndarray:
        taps, out = np.array(kaiser_sinc()), []
        alphas, betas = (np.exp(self.weights[f"{name}.{kind}"]) for kind in ("alpha", "beta"))
        for row, alpha, beta in zip(x, alphas, betas, strict=True):
            # A sample and its zero become 2 samples; the filter's 5.5 samples of delay are cut off with the held edges.
            high = 2 * scipy.signal.upfirdn(taps, np.pad(row, 5, mode="edge"), up=2)[15:][: 2 * len(row)]
            high = high + np.sin(alpha * high) ** 2 / (beta + 1e-9)
            out.append(np.convolve(np.pad(high, (5, 6), mode="edge"), taps, mode="valid")[::2][: len(row)])
        return np.array(out)

    def kernel(self, name: str) -> np.ndarray:
        length, direction = self.weights[f"{name}.weight_g"], self.weights[f"{name}.weight_v"]
        return np.array([g.item() * v / math.sqrt((v**2).sum()) for g, v in zip(length, direction, strict=True)])

    def conv(self, name: str, x: np.ndarray, dilation: int = 1) -> np.ndarray:
        kernel = np.zeros((*self.kernel(name).shape[:2], (self.kernel(name).shape[2] - 1) * dilation + 1))
        kernel[:, :, ::dilation] = self.kernel(name)
        bias = self.weights.get(f"{name}.bias", np.zeros(len(kernel)))
        # Networks correlate: scipy's convolution takes the kernel backwards.
        rows = [sum(np.convolve(line, taps[::-1], mode="full") for line, taps in zip(x, out, strict=True)) for out in kernel]
        cut = kernel.shape[2] // 2
        return np.array(rows)[:, cut : cut + x.shape[1]] + bias[:, None]

    def up(self, name: str, x: np.ndarray, rate: int) -> np.ndarray:
        kernel, bias = self.kernel(name), self.weights[f"{name}.bias"]
        rows = [sum(scipy.signal.upfirdn(kernel[i, o], line, up=rate) for i, line in enumerate(x)) for o in range(len(bias))]
        cut = (kernel.shape[2] - rate) // 2
        return np.array(rows)[:, cut : cut + rate * x.shape[1]] + bias[:, None]

    def wave(self, mel: np.ndarray) -> np.ndarray:
        x = self.conv("conv_pre", mel.T)
        for number, rate in enumerate((3, 2)):
            x = self.up(f"ups.{number}.0", x, rate)
            made = []
            for block in (f"resblocks.{2 * number}", f"resblocks.{2 * number + 1}"):
                y = x
                for pair, dilation in enumerate((1, 3)):
                    inner = self.activation(f"{block}.activations.{2 * pair}.act", y)
                    inner = self.activation(
                        f"{block}.activations.{2 * pair + 1}.act", self.conv(f"{block}.convs1.{pair}", inner, dilation)
                    )
                    y = y + self.conv(f"{block}.convs2.{pair}", inner)
                made.append(y)
            x = (made[0] + made[1]) / 2
        return np.clip(self.conv("conv_post", self.activation("activation_post.act", x))[0], -1, 1)


def test_vocoder_against_the_straight_line_reference() -> None:
    vocoder = tiny_models()[1].double()
    nn.init.constant_(vocoder.conv_post.weight_g, 0.3)
    mel = np.random.default_rng(0).normal(size=(7, 8))
    wanted = StraightVocoder(vocoder).wave(mel)
    with torch.no_grad():
        got = vocoder(torch.from_numpy(mel)).numpy()
    np.testing.assert_allclose(got, wanted, atol=1e-10)
    assert wanted.std() > 0.05
    assert abs(wanted).max() <= 1


def test_activation_against_scipy() -> None:
    vocoder = tiny_models()[1].double()
    x = np.random.default_rng(0).normal(size=(2, 9))
    with torch.no_grad():
        got = vocoder.activation_post(torch.from_numpy(x), torch.tensor(kaiser_sinc(), dtype=torch.float64)).numpy()
    np.testing.assert_allclose(got, StraightVocoder(vocoder).activation("activation_post.act", x), atol=1e-12)


def test_convolutions_against_torchs_old_weight_norm() -> None:
    torch.manual_seed(0)
    x = torch.randn(4, 11)
    pairs = [
        (Conv(4, 6, 5, 3), nn.Conv1d(4, 6, 5, padding=6, dilation=3)),
        (Upsample(4, 2, 9, 5), nn.ConvTranspose1d(4, 2, 9, stride=5, padding=2)),
    ]
    for ours, plain in pairs:
        theirs = nn.utils.weight_norm(plain)
        nn.init.uniform_(theirs.weight_g, 0.5, 2)
        ours.load_state_dict(theirs.state_dict())
        torch.testing.assert_close(ours(x), theirs(x[None])[0])


def test_vocoder_clamps() -> None:
    vocoder = tiny_models()[1]
    nn.init.constant_(vocoder.conv_post.weight_g, 50.0)
    with torch.no_grad():
        wave = vocoder(mel := torch.randn(7, 8))
    assert wave.shape == (42,)
    assert wave.abs().max() == 1.0
    quiet = wave.abs() < 1
    nn.init.constant_(vocoder.conv_post.weight_g, 0.05)
    with torch.no_grad():
        torch.testing.assert_close(vocoder(mel)[quiet] * 1000, wave[quiet])


class ScriptedFlow:
    """Notes every call; velocity 0, so mel is the noise."""

    dtype = torch.float32
    device = torch.device("cpu")

    def __init__(self) -> None:
        self.config = FlowConfig.from_released(TINY_FLOW)
        self.calls: list[tuple[int, int, int, int]] = []

    def __call__(
        self, mel: Tensor, codes: Tensor, time: int, start: int, prefix: list, mask: None = None
    ) -> tuple[Tensor, list]:
        assert mel.shape[:2] == codes.shape
        self.calls.append((time, start, mel.shape[1], prefix[0][0].shape[1] if prefix else 0))
        self.prefix = prefix
        own = mel[:, :, :1, None]
        return torch.zeros_like(mel), [(own, own)]


def test_chunks_prefix_and_reset_by_hand() -> None:
    flow = ScriptedFlow()
    stream = MelStreams(flow, Streaming(prefix_frames=150, positions=500, ode_points=3), [0])
    mels = [stream.push([torch.arange(count)], [final])[0] for count, final in [(30, False)] * 4 + [(5, True)]]
    assert [len(mel) for mel in mels] == [72, 120, 120, 120, 68]
    # (time, first position, frames, frames of prefix): two Euler steps, then the refresh; the last chunk needs none.
    assert flow.calls == [
        (0, 0, 120, 0),
        (500, 0, 120, 0),
        (999, 0, 72, 0),
        (0, 72, 168, 72),
        (500, 72, 168, 72),
        (999, 72, 120, 72),
        (0, 192, 168, 150),
        (500, 192, 168, 150),
        (999, 192, 120, 150),
        # 312 + 2 * 120 would pass 500: position and prefix start anew, the 48 previewed frames stay.
        (0, 0, 168, 0),
        (500, 0, 168, 0),
        (999, 0, 120, 0),
        (0, 120, 68, 120),
        (500, 120, 68, 120),
    ]


def test_the_prefix_is_the_latest_mel() -> None:
    flow = ScriptedFlow()
    stream = MelStreams(flow, Streaming(prefix_frames=150, ode_points=2), [0])
    mel = torch.cat([stream.push([torch.arange(30)], [False])[0] for _ in range(3)])
    stream.push([torch.arange(30)], [True])
    keys, values = flow.prefix[0]
    torch.testing.assert_close(keys.flatten() * 3.4584913 - 4.479605, mel[-150:, 0])
    assert torch.equal(keys, values)


def test_mel_is_brought_back_to_its_level() -> None:
    (mel,) = MelStreams(ScriptedFlow(), Streaming(), [3]).push([torch.arange(7)], [True])
    noise = torch.randn(28, 8, generator=torch.Generator().manual_seed(3))
    torch.testing.assert_close(mel, noise * 3.4584913 - 4.479605)


def test_wave_chunks_and_fades_by_hand() -> None:
    hop = 3
    stream = WaveStreams(lambda mel: mel[..., 0].repeat_interleave(hop, dim=-1), hop)
    sizes = [72, 120, 120, 8]
    frames = torch.arange(1.0, sum(sizes) + 1)
    parts = [stream.push([mel[:, None]], [number == 3])[0] for number, mel in enumerate(frames.split(sizes))]
    # Half of the first; then twice what was held: 36, so 72, which leaves 84; 168, which leaves 36; then all.
    assert [len(part) / hop for part in parts] == [36, 72, 168, 44]
    gain = torch.ones(len(frames))
    # Both renderings of a held frame are the same here, so the fade shows as the sum of the window's halves.
    gain[36:72] = 1.08
    gain[108:192] = 1.08
    torch.testing.assert_close(torch.cat(parts), (frames * gain).repeat_interleave(hop))


def test_a_fade_goes_from_the_old_rendering_to_the_new() -> None:
    renderings = iter([0.0, 1.0])
    stream = WaveStreams(lambda mel: torch.full(mel.shape[:-1], next(renderings)), 1)
    stream.push([torch.zeros(8, 1)], [False])
    (faded,) = stream.push([torch.zeros(12, 1)], [False])
    rise = [0.54 - 0.46 * math.cos(2 * math.pi * number / 8) for number in range(4)]
    assert faded.tolist() == pytest.approx([*rise, 1, 1, 1, 1], abs=1e-6)


def test_look_ahead_must_be_less_than_a_chunk() -> None:
    with pytest.raises(PolicyError, match="look_ahead_codes"):
        Streaming(chunk_codes=12)


@pytest.mark.parametrize("count", [0, 1, 29, 30, 31, 95])
def test_every_code_gives_the_same_number_of_samples(detokenizer: KimiDetokenizer, count: int) -> None:
    clip = detokenizer.decode(some_codes(count), seed=0)
    assert clip.samples.shape == (count * SAMPLES_PER_CODE,)
    assert clip.samples.dtype == np.float32
    assert clip.sample_rate_hz == 300
    assert count == 0 or 1e-3 < abs(clip.samples).max() < 1


def test_released_rates_are_1920_samples_a_code() -> None:
    tiny_flow = FlowModel(FlowConfig.from_released(TINY_FLOW))
    vocoder = BigVGAN(BigVGANConfig.from_released({**RELEASED_VOCODER, "num_mels": 8, "upsample_initial_channel": 128}))
    detokenizer = KimiDetokenizer(tiny_flow, vocoder, Streaming(ode_points=2))
    assert (detokenizer.sample_rate_hz, detokenizer.frame_rate_hz) == (24_000, 12.5)
    assert len(detokenizer.decode(np.array([5]), 0).samples) == 1920


def test_a_gpu_convolves_in_float32_and_the_same_each_time(
    detokenizer: KimiDetokenizer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By default it would round inputs to TF32; the settings are the caller's again afterwards."""
    seen, cudnn, convolve = [], torch.backends.cudnn, torch.conv1d

    def watched(*inputs: Any, **settings: Any) -> torch.Tensor:
        seen.append((cudnn.allow_tf32, cudnn.deterministic))
        return convolve(*inputs, **settings)

    monkeypatch.setattr("torch.nn.functional.conv1d", watched)
    before = cudnn.allow_tf32, cudnn.deterministic
    detokenizer.decode(some_codes(3), seed=0)
    assert set(seen) == {(False, True)}
    assert (cudnn.allow_tf32, cudnn.deterministic) == before


@pytest.mark.parametrize("at_once", [2, 16])
def test_many_together_are_each_as_by_itself(monkeypatch: pytest.MonkeyPatch, at_once: int) -> None:
    """Ends at every place of a chunk and of the batch; in float64, so that rounding hides nothing."""
    monkeypatch.setattr("paras2s.policy.kimi.detokenizer.ANSWERS_AT_ONCE", at_once)
    flow, vocoder = tiny_models()
    # More than 14 chunks pass 4096 positions at released lengths; here a few do.
    streaming = Streaming(prefix_frames=150, positions=500, ode_points=4)
    detokenizer = KimiDetokenizer(flow.double(), vocoder.double(), streaming)
    rows = [some_codes(count) for count in (95, 30, 0, 1, 61, 150, 31, 60, 95)]
    together = detokenizer.decode_all(rows, range(len(rows)))
    for seed, (row, clip) in enumerate(zip(rows, together, strict=True)):
        alone = detokenizer.decode(row, seed)
        assert clip.samples.shape == alone.samples.shape
        np.testing.assert_allclose(clip.samples, alone.samples, atol=1e-6)
    assert not np.allclose(together[0].samples, together[-1].samples, atol=1e-3)
    # Neighbours are not seen: without the mask the padding of short ones is.
    monkeypatch.setattr(MelStreams, "_mask", lambda self, frames: None)
    unmasked = detokenizer.decode_all(rows, range(len(rows)))
    assert any(abs(a.samples - b.samples).max(initial=0) > 1e-4 for a, b in zip(unmasked, together, strict=True))


def test_a_batch_refuses_the_row_that_is_wrong(detokenizer: KimiDetokenizer) -> None:
    with pytest.raises(PolicyError, match=r"expected codes \[T\] in 0..39, got int64 \(1,\) in 40..40"):
        detokenizer.decode_all([some_codes(3), np.array([40])], [0, 1])


def test_the_seed_is_the_noise(detokenizer: KimiDetokenizer) -> None:
    codes = some_codes(40)
    first = detokenizer.decode(codes, seed=11).samples
    torch.manual_seed(99)
    # Neither earlier calls nor the global generator leave a trace.
    detokenizer.decode(some_codes(95), seed=4)
    assert np.array_equal(first, detokenizer.decode(codes, seed=11).samples)
    assert not np.allclose(first, detokenizer.decode(codes, seed=12).samples, atol=1e-4)


def test_a_code_changes_nothing_before_the_chunk_it_is_in(detokenizer: KimiDetokenizer) -> None:
    codes = some_codes(95)
    complete = detokenizer.decode(codes, seed=1).samples
    # Two chunks of codes, 0..59, settle 36 + 72 frames of 6 samples; code 60 is in the third chunk.
    settled = (36 + 72) * 6
    later, earlier = codes.copy(), codes.copy()
    later[60:] = (codes[60:] + 1) % 40
    earlier[59] = (codes[59] + 1) % 40
    assert np.array_equal(detokenizer.decode(later, seed=1).samples[:settled], complete[:settled])
    assert not np.array_equal(detokenizer.decode(earlier, seed=1).samples[:settled], complete[:settled])
    assert not np.array_equal(detokenizer.decode(later, seed=1).samples[settled:], complete[settled:])


def test_a_late_chunk_sees_the_first_through_the_prefix(detokenizer: KimiDetokenizer) -> None:
    codes = some_codes(95)
    changed = codes.copy()
    changed[0] = (codes[0] + 1) % 40
    complete, other = (detokenizer.decode(row, seed=1).samples for row in (codes, changed))
    assert not np.array_equal(complete[-SAMPLES_PER_CODE:], other[-SAMPLES_PER_CODE:])


def test_bfloat16_flow_is_close_to_float32(released: Path, detokenizer: KimiDetokenizer) -> None:
    rough = KimiDetokenizer.load(released, "cpu", torch.bfloat16)
    assert rough.flow.dtype == torch.bfloat16
    assert rough.vocoder.conv_pre.weight_v.dtype == torch.float32
    codes = some_codes(31)
    fine, coarse = (each.decode(codes, seed=0).samples for each in (detokenizer, rough))
    assert np.corrcoef(fine, coarse)[0, 1] > 0.99


@pytest.mark.parametrize("codes", [np.array([40]), np.array([-1]), np.array([[1, 2]]), np.array([1.0])])
def test_codes_the_model_does_not_know_are_refused(detokenizer: KimiDetokenizer, codes: np.ndarray) -> None:
    with pytest.raises(PolicyError, match=r"expected codes \[T\] in 0..39"):
        detokenizer.decode(codes, seed=0)


def test_nan_is_refused_not_returned() -> None:
    flow, vocoder = tiny_models()
    nn.init.constant_(flow.final_layer.linear.bias, math.nan)
    with pytest.raises(PolicyError, match="NaN"):
        KimiDetokenizer(flow, vocoder).decode(np.array([1, 2]), seed=0)
