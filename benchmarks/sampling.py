"""Tokens a second: our sampler against transformers' `generate`, the same weights and the same prompts.

64 answers at once (8 prompts, 8 answers each), 64 new tokens, no end, temperature 1, no truncation, a KV cache on both
sides. Ours and theirs take turns, so that load on the machine meets both alike.

    python benchmarks/sampling.py [--repeats 5]
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable

import numpy as np
import torch
from torch import Tensor
from transformers import GenerationConfig, Qwen2ForCausalLM
from twins import (
    GROUP,
    NEW_TOKENS,
    PAD_ID,
    PROMPT_TOKENS,
    PROMPTS,
    THREADS,
    as_prompts,
    count_parameters,
    our_model,
    prompt_ids,
    seeds_of,
    their_model,
)

from paras2s.policy.dual_stream import DualStreamLM
from paras2s.policy.interface import Generation, Sampling
from paras2s.policy.sampler import sample

SAMPLING = Sampling(max_steps=NEW_TOKENS)


def sample_ours(model: DualStreamLM, ids: np.ndarray, turn: int) -> list[Generation]:
    found = sample(model, as_prompts(ids), GROUP, SAMPLING, seeds_of(turn))
    assert all(one.blocks[0].sampled.shape == (GROUP, NEW_TOKENS, 1) for one in found)
    assert all(one.blocks[0].sampled.all() for one in found)
    return found


def sample_theirs(model: Qwen2ForCausalLM, ids: np.ndarray, turn: int) -> Tensor:
    torch.manual_seed(turn)
    wanted = GenerationConfig(
        do_sample=True,
        top_k=0,
        temperature=1.0,
        max_new_tokens=NEW_TOKENS,
        num_return_sequences=GROUP,
        pad_token_id=PAD_ID,
        use_cache=True,
    )
    found = model.generate(torch.from_numpy(ids), generation_config=wanted)
    assert found.shape == (PROMPTS * GROUP, PROMPT_TOKENS + NEW_TOKENS)
    return found


def differences(ours: DualStreamLM, theirs: Qwen2ForCausalLM, ids: np.ndarray) -> tuple[float, float]:
    """Largest difference of next-token log-probs: over all V after each prompt token, and of the tokens we sampled."""
    with torch.inference_mode():
        x = torch.from_numpy(ids)
        no_audio = torch.zeros(*x.shape, 0, dtype=torch.long)
        state, _ = ours.hidden(ours.embed(no_audio, x, None, None), torch.arange(x.shape[1]).expand(x.shape))
        here, there = (logits.log_softmax(-1) for logits in (ours.text_logits(state), theirs(x).logits))
        blocks = [one.blocks[0] for one in sample_ours(ours, ids, 0)]
        tokens = torch.from_numpy(np.concatenate([block.tokens[..., 0] for block in blocks]))
        said = torch.from_numpy(np.concatenate([block.behaviour_logp[..., 0] for block in blocks]))
        whole = torch.cat([x.repeat_interleave(GROUP, 0), tokens], 1)
        scored = theirs(whole).logits[:, PROMPT_TOKENS - 1 : -1].log_softmax(-1).gather(2, tokens[..., None])[..., 0]
    return float((here - there).abs().max()), float((said - scored).abs().max())


def seconds_of(work: Callable[[], object]) -> float:
    started = time.perf_counter()
    work()
    return time.perf_counter() - started


def products_s(work: Callable[[], object]) -> float:
    """Seconds that the matrix products of one call take by themselves: what no sampler in this precision can save."""
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profile:
        work()
    rows = profile.key_averages()
    return sum(row.self_cpu_time_total for row in rows if row.key in ("aten::mm", "aten::addmm")) / 1e6


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeats", type=int, default=5)
    repeats = parser.parse_args().repeats
    torch.set_num_threads(THREADS)
    ours, ids = our_model(seed=0).eval(), prompt_ids(seed=0)
    theirs = their_model(ours).eval()
    print(f"{count_parameters(ours):.1f} M parameters, {PROMPTS} x {GROUP} answers of {NEW_TOKENS} tokens")

    everywhere, sampled = differences(ours, theirs, ids)
    print(f"largest log-prob difference: {everywhere:.1e} over all next tokens, {sampled:.1e} of the sampled ones")
    if not max(everywhere, sampled) < 1e-4:
        raise SystemExit("the two do not compute the same model; their speeds cannot be compared")

    sides: dict[str, Callable[[int], object]] = {
        "ours": lambda turn: sample_ours(ours, ids, turn),
        "transformers": lambda turn: sample_theirs(theirs, ids, turn),
    }
    seconds: dict[str, list[float]] = {name: [] for name in sides}
    for turn in range(repeats + 1):
        for name, work in sides.items():
            # Turn 0 warms up.
            taken = seconds_of(lambda work=work, turn=turn: work(turn))
            if turn:
                seconds[name].append(taken)
    count = PROMPTS * GROUP * NEW_TOKENS
    medians = {}
    for name, taken in seconds.items():
        rates = [count / one for one in taken]
        medians[name] = float(np.median(rates))
        spread = f"{min(rates):.0f} to {max(rates):.0f}"
        print(f"{name:12s} {medians[name]:7.0f} tokens/s, median of {repeats} ({spread})")
    print(f"ours / transformers: {medians['ours'] / medians['transformers']:.2f} times the tokens/s")
    floor_s = products_s(lambda: sample_ours(ours, ids, 1))
    print(f"products with the weights alone: {floor_s:.2f} s of our {count / medians['ours']:.2f} s, so that")
    print(f"  a sampler that did nothing else would be {count / floor_s / medians['transformers']:.2f} times as fast")


if __name__ == "__main__":
    main()
