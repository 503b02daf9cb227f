"""The compiled decoder against the model's own modules: the same answers, and the modules where it does not fit.

Not covered: processors with AVX-512 or of ARM; a diverged model's answers, of which only the log-probs are checked.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from tiny.dual_stream import small_config, small_model, small_prompt

from paras2s.policy.dual_stream import native
from paras2s.policy.dual_stream.config import DualStreamConfig
from paras2s.policy.dual_stream.logprobs import teacher_forced
from paras2s.policy.dual_stream.model import DualStreamLM
from paras2s.policy.dual_stream.native import is_plain, library, native_decoder
from paras2s.policy.dual_stream.sampler import ModelDecoder, pick, sample
from paras2s.policy.types import Generation, Prompt, SampleRequest, Sampling

CLOSE = 1e-5
compiled = pytest.mark.skipif(library() is None, reason="no C++ compiler")


def wide_config(codebooks: tuple[int, ...] = (21, 37), delay: int = 1, **changes: object) -> DualStreamConfig:
    """Heads of 24, of which two share keys; sizes that fill no panel."""
    sizes = {"hidden_size": 96, "intermediate_size": 50, "num_heads": 4, "num_kv_heads": 2}
    config = small_config(codebooks, text=41, delay=delay, layers=4, tap=1)
    return DualStreamConfig(**{**config.model_dump(), **sizes, **changes})


CONFIGS = {
    "two codebooks": wide_config(),
    "delay 3": wide_config(delay=3),
    "text alone": wide_config(codebooks=()),
    "half of a head turned, in pairs": wide_config(codebooks=(), rotary_share=0.5, rotary_in_pairs=True),
    "heads of 96, every id": wide_config(codebooks=(30,), num_heads=1, num_kv_heads=1, mask_invalid_ids=False),
}


def case(name: str) -> tuple[DualStreamLM, list[Prompt]]:
    """Five prompts of different length, in float32."""
    config = CONFIGS[name]
    model = DualStreamLM(config).eval()
    model.initialise(0)
    for weight in model.parameters():
        # Distributions that are neither flat nor sharp.
        weight.data *= 4 if weight.ndim == 2 else 1
        weight.data += 0.1 * torch.randn(weight.shape, generator=torch.Generator().manual_seed(1)) if weight.ndim == 1 else 0
    if config.num_codebooks:
        return model, [small_prompt(config, 1 + number % 2, 1 + 3 * number % 5, number) for number in range(5)]
    lengths, rng = (3, 9, 1, 4, 6), np.random.default_rng(0)
    return model, [
        Prompt(np.zeros((n, 0), dtype=np.int64), rng.integers(41, size=n), None, np.zeros(n, dtype=bool)) for n in lengths
    ]


def answers(model: DualStreamLM, prompts: list[Prompt], sampling: Sampling, rows: int = 256) -> list[Generation]:
    seeds = [[100 * row + answer for answer in range(6)] for row in range(len(prompts))]
    return sample(model, SampleRequest(prompts, seeds, sampling), rows)


def assert_same(found: list[Generation], expected: list[Generation]) -> None:
    for one, other in zip(found, expected, strict=True):
        assert one.finish_reason == other.finish_reason
        np.testing.assert_array_equal(one.blocks[0].tokens, other.blocks[0].tokens)
        np.testing.assert_array_equal(one.blocks[0].sampled, other.blocks[0].sampled)
        np.testing.assert_allclose(one.blocks[0].behaviour_logp, other.blocks[0].behaviour_logp, atol=CLOSE, rtol=0)


HOW = {
    "plain": Sampling(max_steps=24),
    "warm": Sampling(text_temperature=0.7, audio_temperature=1.4, max_steps=24),
    "top k": Sampling(text_top_k=4, audio_top_k=3, max_steps=24),
    "text without speech": Sampling(speak=False, max_steps=24),
}


@compiled
@pytest.mark.parametrize("rows", [256, 12], ids=["all at once", "some wait"])
@pytest.mark.parametrize("how", HOW)
@pytest.mark.parametrize("name", CONFIGS)
def test_answers_are_those_of_the_modules(name: str, how: str, rows: int, monkeypatch: pytest.MonkeyPatch) -> None:
    model, prompts = case(name)
    assert native_decoder(model, 1) is not None
    found = answers(model, prompts, HOW[how], rows)
    monkeypatch.setattr(native, "library", lambda: None)
    assert native_decoder(model, 1) is None
    assert_same(found, answers(model, prompts, HOW[how], rows))


@compiled
@pytest.mark.parametrize("name", CONFIGS)
def test_log_probs_are_the_learners(name: str) -> None:
    model, prompts = case(name)
    blocks = [one.blocks[0] for one in answers(model, prompts, HOW["warm"])]
    logp = teacher_forced(model, prompts, blocks, HOW["warm"]).detach().numpy()
    for number, block in enumerate(blocks):
        said = logp[6 * number : 6 * number + 6, : block.tokens.shape[1]]
        np.testing.assert_allclose(block.behaviour_logp, said, atol=CLOSE, rtol=0)


@compiled
def test_an_answer_depends_on_no_neighbour_to_the_last_bit() -> None:
    model, prompts = case("two codebooks")
    (group,) = sample(model, SampleRequest(prompts[:1], [list(range(7))], HOW["plain"]))
    for seed in range(7):
        (alone,) = sample(model, SampleRequest(prompts[:1], [[seed]], HOW["plain"]))
        steps = min(alone.blocks[0].tokens.shape[1], group.blocks[0].tokens.shape[1])
        for name in ("tokens", "behaviour_logp"):
            one, other = (getattr(found.blocks[0], name) for found in (alone, group))
            np.testing.assert_array_equal(one[0, :steps], other[seed, :steps])


@compiled
@pytest.mark.parametrize("threads", [1, 3])
def test_any_number_of_threads_gives_the_same_answers(threads: int) -> None:
    model, prompts = case("delay 3")
    expected, before = answers(model, prompts, HOW["plain"]), torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        assert_same(answers(model, prompts, HOW["plain"]), expected)
    finally:
        torch.set_num_threads(before)


@compiled
def test_new_weights_are_sampled_from_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """In place, as an optimizer writes, and through `.data`, which no version counter sees."""
    model, prompts = case("two codebooks")
    old = answers(model, prompts, HOW["plain"])
    with torch.no_grad():
        for weight in model.parameters():
            weight.data.mul_(1.1)
    new = answers(model, prompts, HOW["plain"])
    assert any(not np.array_equal(a.blocks[0].tokens, b.blocks[0].tokens) for a, b in zip(old, new, strict=True))
    monkeypatch.setattr(native, "library", lambda: None)
    assert_same(new, answers(model, prompts, HOW["plain"]))


@compiled
@pytest.mark.parametrize("top_k", [0, 1, 5, 200])
@pytest.mark.parametrize("temperature", [0.01, 1.0, 3.0])
def test_draws_are_those_of_pick(temperature: float, top_k: int) -> None:
    model, _ = case("text alone")
    decoder = native_decoder(model, 4)
    assert decoder is not None
    states = torch.randn(300, 96, generator=torch.Generator().manual_seed(0))
    uniform = torch.rand(300, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    # Where rounding is at its worst.
    uniform[:4] = torch.tensor([0.0, 1.0 - 2**-53, 1.0 - 2**-30, 2**-60], dtype=torch.float64)
    with torch.inference_mode():
        index, logp = decoder.draw_text(states, temperature, top_k, uniform)
        expected, their_logp = pick(model.text_logits(states), temperature, uniform, top_k)
    assert logp.isfinite().all()
    usual = expected == index
    assert usual[4:].all()
    torch.testing.assert_close(logp[usual], their_logp[usual], atol=CLOSE / min(temperature, 1), rtol=0)


@compiled
def test_a_diverged_model_has_no_log_probs() -> None:
    model, prompts = case("text alone")
    model.model.norm.weight.data[3] = float("nan")
    (found,) = answers(model, prompts[:1], HOW["plain"])
    assert np.isnan(found.blocks[0].behaviour_logp[found.blocks[0].sampled]).all()


def lora(model: DualStreamLM) -> None:
    from peft import LoraConfig, inject_adapter_in_model

    inject_adapter_in_model(LoraConfig(r=2, target_modules=["q_proj"]), model)


def hooked(model: DualStreamLM) -> None:
    model.model.layers[1].register_forward_hook(lambda *_: None)


CHANGES = {"half precision": DualStreamLM.bfloat16, "double": DualStreamLM.double, "adapters": lora, "a hook": hooked}


@pytest.mark.parametrize("change", CHANGES)
def test_models_that_do_not_fit_run_their_modules(change: str) -> None:
    model, prompts = case("two codebooks")
    assert is_plain(model)
    CHANGES[change](model)
    assert not is_plain(model)
    assert native_decoder(model, 100) is None
    assert len(answers(model, prompts[:1], HOW["plain"])) == 1


def test_small_heads_and_large_models_run_their_modules(monkeypatch: pytest.MonkeyPatch) -> None:
    assert not is_plain(small_model(small_config()).float())
    monkeypatch.setattr(native, "LARGEST_BYTES", 1000)
    assert not is_plain(case("two codebooks")[0])


@pytest.mark.parametrize("compiler", ["none", "false"], ids=["no compiler", "a compiler that fails"])
def test_without_a_compiler_the_modules_serve(compiler: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("CXX", compiler)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr(native, "library", library.__wrapped__)
    model, prompts = case("two codebooks")
    if compiler == "none":
        assert native_decoder(model, 100) is None
    else:
        with pytest.warns(UserWarning, match="without its compiled step"):
            assert native_decoder(model, 100) is None
    assert ModelDecoder(model).model is model
    assert prompts


@compiled
def test_the_library_is_compiled_once(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    first = native._build(["c++"])
    assert first.parent == tmp_path / "paras2s"
    written = first.stat().st_mtime_ns
    assert native._build(["c++"]) == first
    assert first.stat().st_mtime_ns == written
    assert list(first.parent.iterdir()) == [first]
