"""Does `paras2s plan` predict this machine? Rates are measured piece by piece, then whole GRPO steps are timed and compared.

Pieces: products, attention, vector work, draws, copies, the launch of a small operation; nothing of a step is among them,
and nothing is fitted to steps. Steps: sampling, reference, and learning (forward, backward, AdamW) of random weights at
four settings that differ in B, G, T and sizes; what cost.py counts was corrected while looking at the first three, and the
last was held out for the times. Lengths are predicted too: an answer ends by chance at every step.

    python benchmarks/plan_check.py [--repeats 3] [--shipped] [--recorded runs/ablations]

--shipped predicts with the rates of configs/clusters/this_machine.yaml instead of those measured now; --recorded compares
whole steps of earlier runs with them (rewards, Ray and evaluation included), and times nothing.
"""

from __future__ import annotations

import argparse
import contextlib
import copy
import ctypes
import json
import random
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
import yaml
from figures import Figure as BenchmarkFigure
from figures import add_json_option, write_figures
from torch.nn import functional as fn

from paras2s.configs.schema.align import ObjectiveConfig
from paras2s.configs.schema.run import PolicyConfig, RunConfig
from paras2s.planning import cost
from paras2s.planning.cluster import Cluster, Figure, MeasuredDevice, PolicyFacts, load_cluster, load_rates, policy_facts
from paras2s.planning.simulate import AnswerLength, Lengths, decode, draw_answers, learn, make_plan
from paras2s.policy.dual_stream.config import DualStreamConfig
from paras2s.policy.dual_stream.kv_cache import DecodeCache, PromptCache
from paras2s.policy.dual_stream.logprobs import picked_logprobs, teacher_forced
from paras2s.policy.dual_stream.model import DualStreamLM
from paras2s.policy.dual_stream.network import Layer, RMSNorm
from paras2s.policy.dual_stream.sampler import pick, sample
from paras2s.policy.embedded.policy import SPECIAL_IDS, special_ids
from paras2s.policy.types import Prompt, SampleRequest, Sampling
from paras2s.reward.reward_model.model import EncodedQuestion, RewardModel, RewardModelConfig
from paras2s.train.advantages import group_advantages
from paras2s.train.batching import token_batch
from paras2s.train.losses import grpo_loss
from paras2s.types import Block

THREADS = 2
SPOKEN_STEPS = 34
DRAWS = 20


class Clock:
    """Seconds: the wall's, or with --processor this process's own, which other programs do not lengthen."""

    now: Callable[[], float] = staticmethod(time.perf_counter)


def least_s(work: Callable[[], object], repeats: int) -> float:
    """Seconds of the fastest call, after two that are not counted: what the machine can do, whoever else was on it."""
    taken = []
    for turn in range(repeats + 2):
        started = Clock.now()
        work()
        if turn > 1:
            taken.append(Clock.now() - started)
    return min(taken)


# -- the pieces ---------------------------------------------------------------------------------------------------------


def network(policy: PolicyConfig, facts: PolicyFacts) -> DualStreamConfig:
    """The embedded policy's network at these sizes."""
    return DualStreamConfig(
        hidden_size=policy.hidden_size,
        intermediate_size=policy.intermediate_size,
        num_layers=policy.num_layers,
        tap_layer=policy.tap_layer,
        num_heads=policy.num_heads,
        num_kv_heads=policy.num_kv_heads,
        text_vocab=policy.text_pieces + len(SPECIAL_IDS),
        codebook_sizes=facts.codebook_sizes,
        audio_delay_steps=policy.audio_delay_steps,
        continuous_dim=facts.continuous_dim,
        mask_invalid_ids=True,
        **special_ids(policy.text_pieces),
    )


def launch_s(facts: PolicyFacts, repeats: int) -> float:
    """One small operation: a layer so narrow that nothing else takes time, by the count of cost.py."""
    config = network(PolicyConfig(hidden_size=8, intermediate_size=8, num_heads=1, num_kv_heads=1, text_pieces=8), facts)
    layer, x = Layer(config).eval(), torch.randn(1, 1, 8)
    turn = torch.ones(1, 1, 1, 8)
    with torch.inference_mode():
        return least_s(lambda: [layer(x, turn, turn, None, 0) for _ in range(50)], repeats) / 50 / cost.LONE_LAYER_LAUNCHES


def product_rates(sizes: cost.PolicySizes, small_s: float, repeats: int) -> tuple[float, float]:
    """FLOP/s over many rows, and bytes/s at which weights are read, from the layers' own products at 16 and 1024 rows."""
    d, f, j = sizes.hidden, sizes.intermediate, sizes.kv
    shapes = [(d, d), (j, d), (j, d), (d, d), (f, d), (f, d), (d, f)] * sizes.cached_layers
    weights = [torch.randn(shape) for shape in shapes]
    taken = {}
    for rows in (16, 1024):
        inputs = {width: torch.randn(rows, width) for width in (d, f)}

        def work(inputs: dict[int, torch.Tensor] = inputs) -> None:
            for weight in weights:
                fn.linear(inputs[weight.shape[1]], weight)

        taken[rows] = least_s(work, repeats) - small_s * len(weights)
    count = sum(weight.numel() for weight in weights)
    flops = 2 * count * (1024 - 16) / (taken[1024] - taken[16])
    return flops, 4 * count / max(taken[16] - 2 * count * 16 / flops, 1e-9)


def vector_rates(sizes: cost.PolicySizes, repeats: int) -> tuple[float, float]:
    """Bytes/s, by the count of cost.py, of what a layer does beside products and attention: forward, and backward.

    Over tensors of their own for each layer, so that one layer does not find the last one's in the cache.
    """
    rows, length, heads, size = 32, 32, sizes.heads, sizes.hidden // sizes.heads
    shape = (rows, length)
    norm, turn = RMSNorm(sizes.hidden, 1e-6), torch.randn(rows, 1, length, size)
    widths = (sizes.hidden, sizes.hidden, sizes.hidden, sizes.intermediate, sizes.intermediate)
    layers = [[torch.randn(*shape, width, requires_grad=True) for width in widths] for _ in range(sizes.cached_layers)]

    def rotated(y: torch.Tensor) -> torch.Tensor:
        y = y.view(*shape, heads, size).transpose(1, 2)
        return y * turn + torch.cat([-y[..., size // 2 :], y[..., : size // 2]], -1) * turn

    def work() -> list[torch.Tensor]:
        outs = []
        for x, q, k, gate, up in layers:
            seen = (rotated(q) + rotated(k)).transpose(1, 2).reshape(*shape, sizes.hidden)
            outs += [norm(norm(x) + seen) + x, fn.silu(gate) * up]
        return outs

    def both() -> None:
        outs = work()
        torch.autograd.backward(outs, [torch.ones_like(out) for out in outs])

    with torch.no_grad():
        forward_s = least_s(work, repeats)
    counted = 4 * cost.vector_elements(sizes) * rows * length * len(layers)
    return counted / forward_s, counted / max(least_s(both, repeats) - forward_s, 1e-9)


def attention_rates(sizes: cost.PolicySizes, repeats: int) -> tuple[float, float]:
    """FLOP/s of whole answers behind a prompt, and bytes/s of keys and values behind one new position."""
    heads, size, prompt, own, rows, group = sizes.heads, sizes.hidden // sizes.heads, 40, 32, 32, 8
    q, k, v = (torch.randn(rows, heads, length, size) for length in (own, prompt + own, prompt + own))
    mask = torch.zeros(rows, 1, own, prompt + own)
    full_s = least_s(lambda: fn.scaled_dot_product_attention(q, k, v, attn_mask=mask), repeats)
    flops = 4 * sizes.hidden * (prompt + own) * rows * own / full_s
    layers = range(sizes.cached_layers)
    read = PromptCache(torch.full((rows,), prompt))
    read.pairs = {layer: (torch.randn(rows, heads, prompt, size), torch.randn(rows, heads, prompt, size)) for layer in layers}
    memory = DecodeCache(read, rows, group, 2 * own, prompt)
    memory.admit(read)
    for _ in range(own):
        memory.advance()
    new = torch.randn(rows * group, heads, 1, size)
    step_s = least_s(lambda: [memory.attend(layer, new, new, new) for layer in layers], repeats)
    return flops, 2 * sizes.kv * 4 * (rows * group * own + rows * prompt) * len(layers) / step_s


def reward_s(facts: PolicyFacts, repeats: int) -> float:
    """The distilled reward model on one of 256 answers of 32 steps."""
    rng, styles = np.random.default_rng(0), tuple(f"style{number}" for number in range(8))
    made = RewardModelConfig(
        codebook_sizes=facts.codebook_sizes, code_dim=46, feature_dim=facts.continuous_dim, styles=styles, hidden_size=128,
        layers=2,
    )  # fmt: skip
    model = RewardModel(made, rng.normal(size=(sum(facts.codebook_sizes), 46)))
    codes = [np.stack([rng.integers(size, size=32) for size in facts.codebook_sizes], 1) for _ in range(256)]
    transcript = [EncodedQuestion(one, rng.normal(size=(32, facts.continuous_dim)).astype(np.float32)) for one in codes]
    return least_s(lambda: model.score(transcript, codes), repeats) / 256


def measure(sizes: cost.PolicySizes, facts: PolicyFacts, memory_gib: Figure, repeats: int) -> MeasuredDevice:
    """Every rate of this machine."""
    small_s = launch_s(facts, repeats)
    flops, weights = product_rates(sizes, small_s, repeats)
    forward, back = vector_rates(sizes, repeats)
    with torch.inference_mode():
        attention, cache = attention_rates(sizes, repeats)
    large = torch.randn(2**24)
    into, logits, uniform = torch.empty_like(large), torch.randn(256, sizes.text_rows), torch.rand(256)
    wanted = torch.zeros(1024, dtype=torch.long)
    many = torch.randn(1024, sizes.text_rows)
    with torch.inference_mode():
        rates = {
            "product_gflops": flops / 1e9,
            "weight_gb_s": weights / 1e9,
            "attention_gflops": attention / 1e9,
            "cache_gb_s": cache / 1e9,
            "vector_gb_s": forward / 1e9,
            "backward_gb_s": back / 1e9,
            "stream_gb_s": 2 * 4 * large.numel() / least_s(lambda: into.copy_(large), repeats) / 1e9,
            "drawn_mlogits_s": logits.numel() / least_s(lambda: pick(logits, 1.0, uniform), repeats) / 1e6,
            "scored_mlogits_s": many.numel() / least_s(lambda: picked_logprobs(many, wanted, 1.0), repeats) / 1e6,
            "launch_us": small_s * 1e6,
        }
    note = f"benchmarks/plan_check.py, {torch.get_num_threads()} threads"
    found = {name: Figure(value=float(f"{value:.3g}"), origin="measured", note=note) for name, value in rates.items()}
    return MeasuredDevice(kind="measured", memory_gib=memory_gib, **found)


# -- whole steps --------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Setting:
    """B queries, of which some are learned from, G answers of at most T steps, by a policy of these sizes."""

    name: str
    queries: int
    learned: int
    group: int
    steps: int
    policy: PolicyConfig


SETTINGS = (
    Setting("the demo", 32, 16, 8, 52, PolicyConfig()),
    Setting("few and long", 4, 4, 4, 120, PolicyConfig()),
    Setting(
        "wider, short texts", 8, 8, 8, 64,
        PolicyConfig(
            hidden_size=384, intermediate_size=1024, num_layers=6, tap_layer=2, num_heads=6, num_kv_heads=6, text_pieces=30
        ),
    ),
    # Added when cost.py's times were done; none was changed after looking at it.
    Setting(
        "held out", 12, 12, 16, 40,
        PolicyConfig(
            hidden_size=320, intermediate_size=768, num_layers=5, tap_layer=3, num_heads=5, num_kv_heads=5, text_pieces=500
        ),
    ),
)  # fmt: skip
PHASES = ("sampling", "reference", "learning")


def questions(config: DualStreamConfig, count: int, rng: np.random.Generator) -> list[Prompt]:
    """Random spoken prompts in the embedded policy's layout."""
    length = SPOKEN_STEPS + 6
    speech = np.zeros(length, dtype=bool)
    speech[2 : 2 + SPOKEN_STEPS] = True
    found = []
    for _ in range(count):
        audio = np.full((length, config.num_codebooks), config.pad_id)
        codes = np.stack([rng.integers(size, size=SPOKEN_STEPS) for size in config.codebook_sizes], 1)
        audio[speech] = codes + np.array(config.codebook_offsets)
        features = rng.normal(size=(length, config.continuous_dim)).astype(np.float32) * speech[:, None]
        found.append(Prompt(audio, rng.integers(config.text_eos_id, size=length), features, speech))
    return found


def resident_bytes(name: str) -> float:
    """Of this process: VmRSS what it holds, VmHWM the most it held."""
    line = next(line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith(name))
    return 1024 * float(line.split()[1])


class Growth:
    """How much more memory than at the start was held at once; what is free by then is given back first."""

    def __enter__(self) -> Growth:
        ctypes.CDLL("libc.so.6").malloc_trim(0)
        Path("/proc/self/clear_refs").write_text("5")
        self.start, self.bytes = resident_bytes("VmRSS"), 0.0
        return self

    def __exit__(self, *_: object) -> None:
        self.bytes = resident_bytes("VmHWM") - self.start


def measured_phases(setting: Setting, facts: PolicyFacts, repeats: int) -> tuple[dict[str, list[float]], float, float]:
    """Seconds of each phase of each step after the first, the answers' mean length, and bytes that learning adds."""
    config, objective = network(setting.policy, facts), ObjectiveConfig(average="joint", kl_weight=0.2)
    model = DualStreamLM(config)
    model.initialise(0)
    reference = copy.deepcopy(model).requires_grad_(False)
    optimiser = torch.optim.AdamW(model.parameters(), lr=1e-5, weight_decay=0.0, fused=True)
    sampling, rng = Sampling(max_steps=setting.steps), np.random.default_rng(0)
    taken: dict[str, list[float]] = {name: [] for name in PHASES}
    lengths: list[float] = []
    added = 0.0
    for turn in range(repeats + 1):
        prompts = questions(config, setting.queries, rng)
        seeds = rng.integers(2**31, size=(setting.queries, setting.group)).tolist()
        clock = [Clock.now()]
        blocks = [one.blocks[0] for one in sample(model.eval(), SampleRequest(prompts, seeds, sampling))]
        clock.append(Clock.now())
        blocks, prompts = blocks[: setting.learned], prompts[: setting.learned]
        with torch.no_grad():
            ref_logp = teacher_forced(reference, prompts, blocks, sampling)
        clock.append(Clock.now())
        with Growth() if turn == 0 else contextlib.nullcontext() as grown:
            _learn(model.train(), optimiser, objective, prompts, blocks, ref_logp, sampling)
        clock.append(Clock.now())
        if grown is not None:
            added = grown.bytes
        else:
            lengths += [float(block.sampled.any(2).sum(1).mean()) for block in blocks]
            for name, since, until in zip(PHASES, clock, clock[1:], strict=False):
                taken[name].append(until - since)
    return taken, statistics.fmean(lengths), added


def _learn(
    model: DualStreamLM,
    optimiser: torch.optim.Optimizer,
    objective: ObjectiveConfig,
    prompts: Sequence[Prompt],
    blocks: Sequence[Block],
    ref_logp: torch.Tensor,
    sampling: Sampling,
) -> None:
    """Forward, loss, backward, clipping, AdamW; the reward is the share of odd audio tokens."""
    rewards = [[float(np.mean(answer % 2)) for answer in block.tokens[..., 1]] for block in blocks]
    advantages = torch.tensor(group_advantages(rewards).values, dtype=torch.float32)
    logp = teacher_forced(model, prompts, blocks, sampling)
    known = token_batch([(block,) for block in blocks], torch.float32, torch.device("cpu"))
    batch = known.batch(logp.flatten(1), ref_logp.flatten(1), known.behaviour_logp)
    optimiser.zero_grad()
    torch.autograd.backward(grpo_loss(batch, advantages, objective, sampling.max_steps).loss)
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimiser.step()


def predicted_phases(setting: Setting, facts: PolicyFacts, cluster: Cluster) -> tuple[dict[str, float], float, float]:
    """What the plan says of the same, over draws of its own."""
    sizes, device = cost.policy_sizes(setting.policy, facts), cluster.rates
    prompt_steps = SPOKEN_STEPS + 6
    # Random weights: an end is as likely as any other token of its slot.
    audio = Lengths(facts.codebook_sizes[0] + 1 + setting.policy.audio_delay_steps, None, setting.steps)
    text = Lengths(setting.policy.text_pieces + 1, None, setting.steps)
    rng = random.Random(0)
    found: list[tuple[float, ...]] = []
    lengths, texts = [], []
    read_s = cost.seconds(cost.read_prompts(sizes, setting.queries, prompt_steps, 4), device, "read")
    for _ in range(DRAWS):
        answers: list[AnswerLength] = draw_answers(setting.queries * setting.group, audio, text, rng)
        decoded = decode(sizes, device, cluster.engine, answers, setting.group, prompt_steps)
        learned = answers[: setting.learned * setting.group]
        times = learn(sizes, cluster, learned, setting.group, prompt_steps)
        found.append((read_s + decoded.seconds, times.reference, times.forward + times.backward + times.optimiser))
        lengths.append(statistics.fmean(one.steps for one in learned))
        texts.append(statistics.fmean(one.text_steps for one in learned))
    means = [statistics.fmean(column) for column in zip(*found, strict=True)]
    steps, text = statistics.fmean(lengths), statistics.fmean(texts)
    rows = setting.learned * setting.group
    parts = cost.learner_memory(sizes, cluster.learner, rows, setting.learned, round(steps), round(text), prompt_steps)
    added = sum(parts[name] for name in ("optimiser", "gradients", "activations", "logits"))
    return dict(zip(PHASES, means, strict=True)), steps, added


def check_steps(facts: PolicyFacts, cluster: Cluster, repeats: int) -> list[BenchmarkFigure]:
    found = []
    print(f"\n{'setting':20s} {'phase':10s} predicted  measured (range)           predicted / measured")
    for setting in SETTINGS:
        said, said_steps, said_bytes = predicted_phases(setting, facts, cluster)
        taken, steps, added = measured_phases(setting, facts, repeats)
        complete = [sum(parts) for parts in zip(*taken.values(), strict=True)]
        found.append(BenchmarkFigure(f"a step, {setting.name}", "s", complete, [sum(said.values())], "as planned"))
        found.append(
            BenchmarkFigure(
                f"memory that learning adds, {setting.name}", "GiB", [added / cost.GIB], [said_bytes / cost.GIB], "as planned"
            )
        )
        for name, expected, seen in [*((p, said[p], taken[p]) for p in PHASES), ("all", sum(said.values()), complete)]:
            median = statistics.median(seen)
            spread = f"({min(seen):.3f} to {max(seen):.3f})"
            print(f"{setting.name:20s} {name:10s} {expected:8.3f} s {median:8.3f} s {spread:20s} {expected / median:.2f}")
        print(f"{setting.name:20s} {'steps':10s} {said_steps:8.1f}   {steps:8.1f} an answer")
        sizes = f"{said_bytes / cost.GIB:8.2f} GiB {added / cost.GIB:6.2f} GiB added by learning"
        print(f"{setting.name:20s} {'memory':10s} {sizes:40s} {said_bytes / added:.2f}")
    return found


def check_recorded(folder: Path, cluster: Cluster) -> list[BenchmarkFigure]:
    """Whole steps of earlier runs, whose answers' lengths are in their logs; steps with a look at validation are left out."""
    rates = load_rates()
    print(f"\n{'run':34s}   B   groups   G  predicted  recorded (n)     predicted / recorded")
    ratios = []
    for path in sorted(folder.rglob("metrics.jsonl")):
        run = yaml.safe_load((path.parent / "config.resolved.yaml").read_text())
        rows = [json.loads(line) for line in path.read_text().splitlines()]
        seen = [row["seconds"] for row in rows if "validation_reward" not in row]
        align = {name: run["align"][name] for name in ("sampling", "objective")}
        config = RunConfig.model_validate({"align": align, "policy": run["policy"], "distill": run["distill"]})
        sampling, groups = config.align.sampling, config.align.objective.groups_per_update
        known = policy_facts(rates, config.policy, "embedded")
        steps = statistics.fmean(row["length_steps"] for row in rows)
        answer_s = (steps - config.policy.audio_delay_steps - 1) / known.facts.steps_per_s.value
        plan = make_plan(config, cluster, rates, known, answer_s=answer_s)
        ratios.append(plan.rhythm.step_s / statistics.median(seen))
        counts = f"{sampling.queries_per_step:3d} {groups:8d} {sampling.group_size:3d}"
        print(
            f"{path.parent.relative_to(folder)!s:34s} {counts} {plan.rhythm.step_s:8.2f} s "
            f"{statistics.median(seen):8.2f} s ({len(seen)}) {ratios[-1]:10.2f}"
        )
    inside = sum(0.75 <= ratio <= 1.25 for ratio in ratios)
    print(f"{inside} of {len(ratios)} within 25 %; ratios {min(ratios):.2f} to {max(ratios):.2f}")
    return [BenchmarkFigure("planned by recorded seconds of a step", "", ratios)]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeats", type=int, default=3, help="timed steps of each setting, after one that is not")
    parser.add_argument("--threads", type=int, default=THREADS)
    parser.add_argument("--processor", action="store_true", help="one thread, its processor time: where others compute too")
    parser.add_argument("--shipped", action="store_true", help="predict with the rates of this_machine.yaml")
    parser.add_argument("--recorded", type=Path, help="compare with the runs below this folder, and time no step")
    add_json_option(parser)
    options = parser.parse_args()
    torch.set_num_threads(1 if options.processor else options.threads)
    if options.processor:
        Clock.now = staticmethod(time.process_time)
    rates = load_rates()
    facts, cluster = rates.policies["embedded"], load_cluster("this_machine", rates)
    if not options.shipped:
        sizes = cost.policy_sizes(PolicyConfig(), facts)
        device = measure(sizes, facts, cluster.rates.memory_gib, 10 * options.repeats)
        cluster = cluster.model_copy(update={"device": device})
        print("measured now; for configs/clusters/this_machine.yaml:")
        for name, figure in device:
            if isinstance(figure, Figure) and name != "memory_gib":
                print(f'  {name}: {{value: {figure.value:g}, origin: measured, note: "{figure.note}"}}')
        print(f"for planning/rates.yaml: rewards.reward_model.seconds {reward_s(facts, 3):.2g}")
    found = check_recorded(options.recorded, cluster) if options.recorded else check_steps(facts, cluster, options.repeats)
    write_figures(options.json, found)


if __name__ == "__main__":
    main()
