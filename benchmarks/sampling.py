"""Tokens a second of our sampler: against transformers' `generate`, vLLM on the CPU, and itself without its compiled step.

Same weights, same prompts, no end, temperature 1, no truncation, a KV cache on every side, float32. vLLM's side is the
rollout worker's (an actor in .venv-vllm, whose `save_pretrained` folder holds the same weights; prefix caching on, so that
it too reads a prompt once a group); it is skipped where there is no .venv-vllm. Sides take turns, so that load on the
machine meets all alike. Log-probs must agree to 1e-4 first.

    python benchmarks/sampling.py [--repeats 5] [--prompt-tokens 64] [--new-tokens 128] [--processor]
    python benchmarks/sampling.py --prefill
    python benchmarks/sampling.py --continuous

--prefill: 8 answers to one prompt of 1,000 tokens. --continuous: answers of very different length to many queries.
--processor: one thread and the processor time of each side's process, for a machine on which others compute too.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
from collections.abc import Callable
from pathlib import Path
from unittest import mock

import numpy as np
import torch
from figures import Figure, add_json_option, write_figures
from torch import Tensor
from transformers import GenerationConfig, Qwen2ForCausalLM
from twins import (
    PAD_ID,
    THREADS,
    Work,
    as_prompts,
    clock_of,
    count_parameters,
    in_turns,
    our_model,
    peak_flops,
    products_flop,
    prompt_ids,
    seeds_of,
    spread,
    their_model,
)

from paras2s.policy.dual_stream.model import DualStreamLM
from paras2s.policy.dual_stream.native import native_decoder
from paras2s.policy.dual_stream.sampler import sample
from paras2s.policy.types import Generation, SampleRequest, Sampling

REPOSITORY = Path(__file__).resolve().parents[1]
OTHER_PYTHON = REPOSITORY / ".venv-vllm" / "bin" / "python"
Clock = Callable[[], float]


def sample_ours(model: DualStreamLM, ids: np.ndarray, work: Work, turn: int) -> list[Generation]:
    found = sample(model, SampleRequest(as_prompts(ids), seeds_of(work, turn), Sampling(max_steps=work.new_tokens)))
    assert all(one.blocks[0].sampled.shape == (work.group, work.new_tokens, 1) for one in found)
    assert all(one.blocks[0].sampled.all() for one in found)
    return found


def sample_by_modules(model: DualStreamLM, ids: np.ndarray, work: Work, turn: int) -> list[Generation]:
    """Our sampler as it is where there is no C++ compiler."""
    with mock.patch("paras2s.policy.dual_stream.sampler.native_decoder", return_value=None):
        return sample_ours(model, ids, work, turn)


def sample_theirs(model: Qwen2ForCausalLM, ids: np.ndarray, work: Work, turn: int) -> Tensor:
    torch.manual_seed(turn)
    wanted = GenerationConfig(
        do_sample=True,
        top_k=0,
        temperature=1.0,
        max_new_tokens=work.new_tokens,
        num_return_sequences=work.group,
        pad_token_id=PAD_ID,
        use_cache=True,
    )
    found = model.generate(torch.from_numpy(ids), generation_config=wanted)
    assert found.shape == (work.prompts * work.group, work.prompt_tokens + work.new_tokens)
    return found


class Vllm:
    """vLLM's side: the rollout worker in its own interpreter, made once."""

    def __init__(self, theirs: Qwen2ForCausalLM, folder: Path, work: Work, threads: int) -> None:
        import ray

        from paras2s.rollout.local_ray import start_ray
        from paras2s.rollout.vllm_worker import VllmWorker

        theirs.save_pretrained(folder)
        start_ray(None)
        kilobytes = next(line for line in Path("/proc/meminfo").read_text().splitlines() if line.startswith("MemTotal:"))
        # 2.5 GB: Python and torch, 25 MB of weights, 180 MB of keys and values.
        share = 2.5e9 / (1024 * float(kilobytes.split()[1]))
        environment = {"py_executable": str(OTHER_PYTHON), "env_vars": {"PYTHONPATH": str(REPOSITORY)}}
        actor = ray.remote(VllmWorker).options(runtime_env=environment)
        longest = work.prompt_tokens + work.new_tokens
        self._get, self._actor = ray.get, actor.remote(str(folder), "float32", longest, threads, share)

    def sample(self, ids: np.ndarray, work: Work, turn: int) -> list[list[tuple[np.ndarray, np.ndarray, str]]]:
        """Answers [B][G]."""
        requests = (ids.tolist(), work.group, 1.0, work.new_tokens, [], seeds_of(work, turn))
        found = self._get(self._actor.sample.remote(*requests))
        assert all(len(tokens) == work.new_tokens for group in found for tokens, _, _ in group)
        return found

    def processor_s(self) -> float:
        """Processor time of the actor so far."""
        return self._get(self._actor.__ray_call__.remote(lambda self: __import__("time").process_time()))


def worst(theirs: Qwen2ForCausalLM, ids: np.ndarray, tokens: Tensor, said: Tensor) -> float:
    """Largest distance of log-probs `said` of tokens, both [N, T], from transformers' own."""
    group = len(tokens) // len(ids)
    full = torch.cat([torch.from_numpy(ids).repeat_interleave(group, 0), tokens], 1)
    logp = theirs(full).logits[:, ids.shape[1] - 1 : -1].log_softmax(-1)
    return float((said - logp.gather(2, tokens[..., None])[..., 0]).abs().max())


@torch.inference_mode()
def check(ours: DualStreamLM, theirs: Qwen2ForCausalLM, vllm: Vllm | None, ids: np.ndarray, work: Work) -> None:
    """All must compute the same model."""
    x = torch.from_numpy(ids)
    no_audio = torch.zeros(*x.shape, 0, dtype=torch.long)
    state, _ = ours.hidden(ours.embed(no_audio, x, None, None), torch.arange(x.shape[1]).expand(x.shape))
    here, there = (logits.log_softmax(-1) for logits in (ours.text_logits(state), theirs(x).logits))
    apart = {"over all next tokens": float((here - there).abs().max())}
    for name, how in {"of the tokens we sampled": sample_ours, "of those our modules sampled": sample_by_modules}.items():
        blocks = [one.blocks[0] for one in how(ours, ids, work, 0)]
        tokens = torch.from_numpy(np.concatenate([block.tokens[..., 0] for block in blocks]))
        said = torch.from_numpy(np.concatenate([block.behaviour_logp[..., 0] for block in blocks]))
        apart[name] = worst(theirs, ids, tokens, said)
    if vllm is not None:
        answers = [one for group in vllm.sample(ids, work, 0) for one in group]
        tokens, said = (torch.from_numpy(np.stack([one[part] for one in answers])) for part in (0, 1))
        apart["of those vLLM sampled"] = worst(theirs, ids, tokens, said)
    print("largest log-prob difference from transformers: " + ", ".join(f"{v:.1e} {k}" for k, v in apart.items()))
    if not max(apart.values()) < 1e-4:
        raise SystemExit("they do not compute the same model; their speeds cannot be compared")


def compare(work: Work, repeats: int, now: Clock, processor: bool) -> list[Figure]:
    ours, ids = our_model(seed=0).eval(), prompt_ids(work, seed=0)
    theirs = their_model(ours).eval()
    if native_decoder(ours, work.prompt_tokens + work.new_tokens) is None:
        print("no C++ compiler: ours is our modules")
    print(f"{count_parameters(ours):.1f} M parameters; {work}")
    with tempfile.TemporaryDirectory() as folder:
        vllm = Vllm(theirs, Path(folder), work, 1 if processor else THREADS) if OTHER_PYTHON.exists() else None
        if vllm is None:
            print(f"no vLLM: there is no {OTHER_PYTHON} (see paras2s/rollout/vllm_worker.py); compared without it")
        check(ours, theirs, vllm, ids, work)

        def timed(clock: Clock, one: Callable[[int], object]) -> Callable[[int], float]:
            def side(turn: int) -> float:
                started = clock()
                one(turn)
                return clock() - started

            return side

        sides = {
            "ours": timed(now, lambda turn: sample_ours(ours, ids, work, turn)),
            "our modules": timed(now, lambda turn: sample_by_modules(ours, ids, work, turn)),
            "transformers": timed(now, lambda turn: sample_theirs(theirs, ids, work, turn)),
        }
        if vllm is not None:
            sides["vLLM"] = timed(vllm.processor_s if processor else now, lambda turn: vllm.sample(ids, work, turn))
        seconds = in_turns(sides, repeats)
    rates = {name: [work.tokens / one for one in taken] for name, taken in seconds.items()}
    for name, found in rates.items():
        times = statistics.median(rates["ours"]) / statistics.median(found)
        print(f"{name:12s} {spread(found, 0)} tokens/s" + (f"; ours / {name}: {times:.2f}" if name != "ours" else ""))
    bound(ours, work, now, {name: statistics.median(taken) for name, taken in seconds.items()})
    aims = {"transformers": 3.0, "vLLM": 2.0}
    return [
        Figure(f"beside {name}", "tokens/s", rates["ours"], rates[name], name, more_is_better=True, least_ratio=aims.get(name))
        for name in rates
        if name != "ours"
    ]


def bound(ours: DualStreamLM, work: Work, now: Clock, seconds: dict[str, float]) -> None:
    """The time that the products with the weights alone would take at the machine's best."""
    read = work.prompts * (work.prompt_tokens + work.group * (work.new_tokens - 1))
    flop = products_flop(ours, read, work.tokens)
    print(f"products with the weights: {flop / 1e9:.0f} GFLOP, of our {seconds['ours']:.2f} s")
    for name, peak in peak_flops(now).items():
        print(f"  at the {peak / 1e9:.0f} GFLOP/s of a large product by {name}: {flop / peak:.2f} s, nothing else ", end="")
        print(", ".join(f"{other / (flop / peak):.1f} x {side}" for side, other in seconds.items() if side != "ours"))


# -- one prefill a group ----------------------------------------------------------------------------------------------


def prefill(repeats: int, now: Clock) -> list[Figure]:
    """Eight answers to a long prompt, and what they would take if they cost its reading once and their own steps."""
    ours, group, steps, long = our_model(seed=0).eval(), 8, 64, 1000

    def side(answers: int, prompt_tokens: int, new_tokens: int) -> Callable[[int], float]:
        work = Work(1, answers, prompt_tokens, new_tokens)
        ids = prompt_ids(work, seed=0)

        def run(turn: int) -> float:
            started = now()
            sample_ours(ours, ids, work, turn)
            return now() - started

        return run

    seconds = in_turns(
        {
            "G = 8, 1,000-token prompt": side(group, long, steps),
            "G = 1, 1,000-token prompt": side(1, long, steps),
            "G = 8, 1-token prompt": side(group, 1, steps),
            "G = 1, 1-token prompt": side(1, 1, steps),
            "G = 8, 1,000-token prompt, first token alone": side(group, long, 1),
            "G = 1, 1,000-token prompt, first token alone": side(1, long, 1),
        },
        repeats,
    )
    for name, taken in seconds.items():
        print(f"{name:46s} {spread(taken, 3)} s")
    many, one, many_short, one_short, many_first, one_first = (statistics.median(taken) for taken in seconds.values())
    wanted = one + (many_short - one_short)
    print(f"G = 8 / (G = 1 + decoding of 7 more, behind a 1-token prompt): {many:.3f} / {wanted:.3f} s = {many / wanted:.2f}")
    print(f"G = 8 / G = 1, first token alone: {many_first / one_first:.2f} (8 prefills would be 8)")
    name = "G = 8 behind one prompt of 1,000 tokens"
    return [
        Figure(
            name,
            "s",
            seconds["G = 8, 1,000-token prompt"],
            [wanted],
            "G = 1 and the decoding of seven more",
            least_ratio=1 / 1.3,
        )
    ]


# -- continuous batching ----------------------------------------------------------------------------------------------


def continuous(repeats: int, now: Clock) -> list[Figure]:
    """64 queries of 4 answers, whose ends come by chance: 64 rows that are filled again, and batches of 16 queries."""
    work, rows, often = Work(64, 4, 64, 128), 64, 32
    # Random weights draw all ids about equally often, so one in `often` ends an answer: lengths are geometric, cut at 128.
    ours = our_model(seed=0, end_ids=range(1, 1 + 2048 // often)).eval()
    prompts, sampling = as_prompts(prompt_ids(work, seed=0)), Sampling(max_steps=work.new_tokens)
    at_once = rows // work.group
    counts: dict[str, list[int]] = {}

    def side(name: str, batch: int) -> Callable[[int], float]:
        def run(turn: int) -> float:
            seeds, found = seeds_of(work, turn), []
            started = now()
            for start in range(0, work.prompts, batch):
                here = slice(start, start + batch)
                found += sample(ours, SampleRequest(prompts[here], seeds[here], sampling), rows_at_once=rows)
            taken = now() - started
            lengths = [int(one) for query in found for one in query.blocks[0].sampled.sum((1, 2))]
            counts.setdefault(name, []).append(sum(lengths))
            if turn == 0:
                print(f"{name}: {len(lengths)} answers of {np.mean(lengths):.1f} tokens, {min(lengths)} to {max(lengths)}")
            return taken

        return run

    names = {"continuous": work.prompts, "batches": at_once}
    seconds = in_turns({name: side(name, batch) for name, batch in names.items()}, repeats)
    assert counts["continuous"] == counts["batches"], "the same seeds must give the same answers"
    rates = {name: [n / s for n, s in zip(counts[name][1:], taken, strict=True)] for name, taken in seconds.items()}
    for name, found in rates.items():
        print(f"{name:12s} {spread(found, 0)} tokens/s")
    times = statistics.median(rates["continuous"]) / statistics.median(rates["batches"])
    print(f"continuous / consecutive batches of {at_once} queries: {times:.2f} times the tokens/s, at most {rows} rows in both")
    name = f"256 answers of 1 to 128 tokens, {rows} rows at once"
    return [
        Figure(name, "tokens/s", rates["continuous"], rates["batches"], f"batches of {at_once} queries", more_is_better=True)
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--prompt-tokens", type=int, default=64)
    parser.add_argument("--new-tokens", type=int, default=128)
    parser.add_argument("--processor", action="store_true", help="one thread, and processor time")
    what = parser.add_mutually_exclusive_group()
    what.add_argument("--prefill", action="store_true")
    what.add_argument("--continuous", action="store_true")
    add_json_option(parser)
    options = parser.parse_args()
    now = clock_of(options.processor)
    if options.prefill:
        found = prefill(options.repeats, now)
    elif options.continuous:
        found = continuous(options.repeats, now)
    else:
        work = Work(prompt_tokens=options.prompt_tokens, new_tokens=options.new_tokens)
        found = compare(work, options.repeats, now, options.processor)
    write_figures(options.json, found)


if __name__ == "__main__":
    main()
