"""Seconds and memory of one whole GRPO step: ours against TRL's `GRPOTrainer`, the same weights and the same work.

A step: 64 answers (8 prompts, 8 each) of 64 tokens at temperature 1, a rule for a reward, reference log-probs,
loss with beta 0.04, backward, clipping, AdamW. All in float32. Each side has a process of its own, for its memory's sake,
and they take turns. `Learner` wants a codec; the step here is made of the pieces that `Learner` is made of.

TRL runs as fast as its options make it here: no gradient checkpointing, one micro-batch (see --micro-batch), fused AdamW.

    python benchmarks/grpo_step.py [--repeats 5] [--micro-batch 64]
"""

from __future__ import annotations

import argparse
import copy
import multiprocessing
import resource
import tempfile
import time
from collections.abc import Sequence
from functools import partial
from multiprocessing.connection import Connection
from pathlib import Path

import numpy as np
import torch
from figures import Figure, add_json_option, write_figures
from twins import (
    EOS_ID,
    PAD_ID,
    THREADS,
    VOCAB,
    Work,
    as_prompts,
    clock_of,
    count_parameters,
    our_model,
    peak_flops,
    products_flop,
    prompt_ids,
    seeds_of,
    their_model,
)

WORK = Work()
ANSWERS = WORK.prompts * WORK.group
BETA, LEARNING_RATE, MAX_GRAD_NORM = 0.04, 1e-5, 1.0


def odd_share(ids: Sequence[int]) -> float:
    """The reward: the share of odd ids."""
    return sum(one % 2 for one in ids) / len(ids)


def peak_mib() -> float:
    """Most memory this process has held."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


# -- ours -----------------------------------------------------------------------------------------------------------


def run_ours(wire: Connection, turns: int) -> None:
    """One step for each message; answers with (seconds, mean reward, |gradient|), at last with memory and the learner's part.

    The learner's part: GFLOP/s of its products with the weights (reference, forward, backward), and of one large product.
    """
    from paras2s.configs.schema.align import ObjectiveConfig
    from paras2s.policy.base import flat
    from paras2s.policy.dual_stream.logprobs import teacher_forced
    from paras2s.policy.dual_stream.sampler import sample
    from paras2s.policy.types import SampleRequest, Sampling
    from paras2s.train.advantages import group_advantages
    from paras2s.train.batching import token_batch
    from paras2s.train.losses import LossNormalizer, grpo_loss
    from paras2s.train.passes import add_gradients, side_by_side

    torch.set_num_threads(THREADS)
    model = our_model(seed=0)
    reference = copy.deepcopy(model).requires_grad_(False)
    optimiser = torch.optim.AdamW(model.parameters(), lr=LEARNING_RATE, weight_decay=0.0, fused=True)
    objective = ObjectiveConfig(loss_type="grpo", ratio_level="token", average="joint", kl_weight=BETA)
    sampling = Sampling(max_steps=WORK.new_tokens)
    parameters, learned = list(model.parameters()), list[float]()
    # As the learner does it on a processor: a pass for each core.
    size = WORK.prompts // THREADS
    parts = [slice(start, start + size) for start in range(0, WORK.prompts, size)]

    def step(turn: int) -> tuple[float, float]:
        prompts = as_prompts(prompt_ids(WORK, seed=turn))
        blocks = [one.blocks[0] for one in sample(model.eval(), SampleRequest(prompts, seeds_of(WORK, turn), sampling))]
        rewards = [[odd_share(answer) for answer in block.tokens[..., 0].tolist()] for block in blocks]
        advantages = torch.tensor(group_advantages(rewards).values, dtype=torch.float32)
        started = time.perf_counter()
        model.train()

        @torch.no_grad()
        def reference_of(part: slice) -> torch.Tensor:
            return flat([teacher_forced(reference, prompts[part], blocks[part], sampling)])

        references = side_by_side([partial(reference_of, part) for part in parts], THREADS)
        tokens = [token_batch([[block] for block in blocks[part]], torch.float32, torch.device("cpu")) for part in parts]
        counts = [one.normalizer(objective) for one in tokens]
        units = tuple(sum(own) for own in zip(*(one.units for one in counts), strict=True))
        normalizer = LossNormalizer(sum(one.sequences for one in counts), units)

        def pass_of(number: int) -> tuple[torch.Tensor, None]:
            part, known = parts[number], tokens[number]
            logp = flat([teacher_forced(model, prompts[part], blocks[part], sampling)])
            own = advantages[part.start * WORK.group : part.stop * WORK.group]
            batch = known.batch(logp, references[number], known.behaviour_logp)
            return grpo_loss(batch, own, objective, WORK.new_tokens, None, normalizer).loss, None

        optimiser.zero_grad()
        add_gradients([partial(pass_of, number) for number in range(len(parts))], parameters, THREADS)
        learned.append(time.perf_counter() - started)
        norm = torch.nn.utils.clip_grad_norm_(model.parameters(), MAX_GRAD_NORM)
        optimiser.step()
        return float(np.mean(rewards)), float(norm)

    for turn in range(turns):
        wire.recv()
        started = time.perf_counter()
        reward, norm = step(turn)
        wire.send((time.perf_counter() - started, reward, norm))
    memory = peak_mib()
    read = WORK.prompts * WORK.prompt_tokens + ANSWERS * (WORK.new_tokens - 1)
    # Reference and forward once each, backward twice.
    flop = 4 * products_flop(model, read, ANSWERS * WORK.new_tokens)
    wire.send((memory, flop / float(np.median(learned[1:])), peak_flops(clock_of(False))))


# -- TRL's ----------------------------------------------------------------------------------------------------------


def run_theirs(wire: Connection, turns: int, micro_batch: int) -> None:
    """`GRPOTrainer.train`, whose every step waits for a message."""
    from datasets import Dataset, disable_progress_bars
    from tokenizers import Tokenizer, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast, TrainerCallback
    from trl import GRPOConfig, GRPOTrainer

    torch.set_num_threads(THREADS)
    disable_progress_bars()
    words = {f"w{number}": number for number in range(VOCAB)} | {"<eos>": EOS_ID}
    tokenizer = Tokenizer(models.WordLevel(words, unk_token="w1"))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    ends = {"pad_token": f"w{PAD_ID}", "eos_token": "<eos>", "padding_side": "left"}
    wrapped = PreTrainedTokenizerFast(tokenizer_object=tokenizer, **ends)
    rows = [{"prompt": " ".join(f"w{i}" for i in ids)} for turn in range(turns) for ids in prompt_ids(WORK, seed=turn)]
    rewards: list[float] = []

    def reward(completion_ids: list[list[int]], **_: object) -> list[float]:
        assert len(completion_ids) == ANSWERS
        assert all(len(ids) == WORK.new_tokens for ids in completion_ids)
        found = [odd_share(ids) for ids in completion_ids]
        rewards.append(float(np.mean(found)))
        return found

    class Turns(TrainerCallback):
        """Sampling happens inside the step, between these two calls."""

        def on_step_begin(self, *_: object, **__: object) -> None:
            wire.recv()
            self.started = time.perf_counter()
            self.norm = float("nan")

        def on_pre_optimizer_step(self, *_: object, model: torch.nn.Module, **__: object) -> None:
            gone = time.perf_counter()
            # Measured behind the clipping; the clock is put back by what it takes.
            grads = [parameter.grad.norm() for parameter in model.parameters() if parameter.grad is not None]
            self.norm = float(torch.stack(grads).norm())
            self.started += time.perf_counter() - gone

        def on_step_end(self, *_: object, **__: object) -> None:
            wire.send((time.perf_counter() - self.started, rewards[-1], self.norm))

    with tempfile.TemporaryDirectory() as folder:
        # By path and not as an object: TRL reads its reference model from there.
        their_model(our_model(seed=0)).save_pretrained(Path(folder) / "model")
        config = GRPOConfig(
            output_dir=folder,
            max_steps=turns,
            per_device_train_batch_size=micro_batch,
            gradient_accumulation_steps=ANSWERS // micro_batch,
            num_generations=WORK.group,
            max_completion_length=WORK.new_tokens,
            temperature=1.0,
            top_k=0,
            beta=BETA,
            loss_type="grpo",
            learning_rate=LEARNING_RATE,
            lr_scheduler_type="constant",
            max_grad_norm=MAX_GRAD_NORM,
            model_init_kwargs={"dtype": "float32"},
            gradient_checkpointing=False,
            bf16=False,
            use_cpu=True,
            use_vllm=False,
            report_to="none",
            save_strategy="no",
            logging_strategy="no",
            disable_tqdm=True,
            shuffle_dataset=False,
        )
        trainer = GRPOTrainer(
            model=str(Path(folder) / "model"),
            reward_funcs=reward,
            args=config,
            train_dataset=Dataset.from_list(rows),
            processing_class=wrapped,
            callbacks=[Turns()],
        )
        trainer.train()
    wire.send(peak_mib())


# -- both -----------------------------------------------------------------------------------------------------------


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeats", type=int, default=5, help="timed steps of each side, after one that is not")
    parser.add_argument("--micro-batch", type=int, default=ANSWERS, help="answers in TRL's micro-batch")
    add_json_option(parser)
    options = parser.parse_args()
    turns = options.repeats + 1
    print(f"{count_parameters(our_model(seed=0)):.1f} M parameters; {WORK}")
    start = multiprocessing.get_context("spawn")
    wires, processes = {}, []
    for name, work, more in (("ours", run_ours, ()), ("TRL", run_theirs, (options.micro_batch,))):
        wires[name], inside = start.Pipe()
        processes.append(start.Process(target=work, args=(inside, turns, *more), daemon=True))
        processes[-1].start()
        # Else a side that dies would leave its wire open, and `recv` would wait for ever.
        inside.close()
    seconds: dict[str, list[float]] = {name: [] for name in wires}
    for turn in range(turns):
        for name, wire in wires.items():
            wire.send("go")
            taken, reward, norm = wire.recv()
            print(f"  step {turn} {name:4s} {taken:6.2f} s, mean reward {reward:.3f}, gradient {norm:.3f}", flush=True)
            if turn:
                seconds[name].append(taken)
    peaks_mib = {}
    for name, wire in wires.items():
        taken, memory = seconds[name], wire.recv()
        if name == "ours":
            memory, rate, peaks = memory
        peaks_mib[name] = memory
        print(
            f"{name:4s} {np.median(taken):.2f} s a step, median of {len(taken)} ({min(taken):.2f} to {max(taken):.2f}); "
            f"peak {memory:.0f} MiB"
        )
    print(f"TRL / ours: {np.median(seconds['TRL']) / np.median(seconds['ours']):.2f} times the seconds")
    shares = ", ".join(f"{rate / peak:.0%} of {peak / 1e9:.0f} by {name}" for name, peak in peaks.items())
    print(f"our learner's products: {rate / 1e9:.0f} GFLOP/s, of one large product's {shares}")
    for process in processes:
        process.join()
    found = [
        Figure("a GRPO step", "s", seconds["ours"], seconds["TRL"], "TRL", least_ratio=2.0),
        Figure("most memory", "MiB", [peaks_mib["ours"]], [peaks_mib["TRL"]], "TRL", least_ratio=1 / 0.7),
    ]
    for name, peak in peaks.items():
        figure = (
            "the learner's products with the weights",
            "GFLOP/s",
            [rate / 1e9],
            [peak / 1e9],
            f"one large product by {name}",
        )
        found.append(Figure(*figure, more_is_better=True))
    write_figures(options.json, found)


if __name__ == "__main__":
    main()
