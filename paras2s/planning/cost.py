"""Cost of a GRPO step: parameters, FLOPs, bytes, and the seconds a device needs for them.

Pure functions of sizes. A product of [n, a] with [a, b] is 2 n a b FLOPs. Attention over whole sequences is counted as a
rectangle, as our masks have it. The backward pass costs two products for each one; a layer that is not stored is computed
once more. Vector work (norms, rotations, gates, sums) is counted in bytes read and written by the operations of
`policy.dual_stream`.

Left out: padding of prompts to one length, dispatch between threads, allocation, and what the host does meanwhile.
Alphabet: d hidden, f intermediate, j = key heads x head size, V vocabulary, P prompt, n steps of an answer, r rows.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import Literal

from paras2s.configs.schema.run import PolicyConfig, RunConfig
from paras2s.errors import ConfigError
from paras2s.planning.cluster import Cluster, Engine, LearnerPlan, MeasuredDevice, PeakDevice, PolicyFacts, Rates, RewardFacts
from paras2s.planning.judge_calls import calls_of, rated_as

Phase = Literal["train", "read", "decode", "speak"]
GIB = 2**30
# Small operations: of one layer by itself and with its memory, of a slot drawn and scored, of a step besides; and the
# factor of the backward pass. Counted by timing networks so narrow that nothing else takes time, in units of the first.
LONE_LAYER_LAUNCHES, LAYER_LAUNCHES, DRAW_LAUNCHES, SCORE_LAUNCHES, STEP_LAUNCHES = 60, 100, 42, 88, 160
BACK_LAUNCHES = 2.4
# The backward pass through attention: scores once more, and four products for two.
ATTENTION_BACK = 2.5
# Bytes of an AdamW update of one float32 weight: four read (weight, gradient, two moments), three written.
ADAMW_BYTES = 28
# Of `policy/dual_stream/captured.py`: positions to which lengths are rounded up, and launches of a layer in a recorded step.
RECORDED_POSITIONS, RECORDED_LAYER_LAUNCHES = 64, 41


@dataclass(frozen=True)
class PolicySizes:
    """Sizes of `policy.dual_stream.DualStreamLM`; `text_rows` and `audio_rows` of its heads are used."""

    hidden: int
    intermediate: int
    layers: int
    tap: int
    heads: int
    kv_heads: int
    vocab: int
    text_rows: int
    audio_rows: int
    codebooks: int
    continuous: int

    @property
    def shared(self) -> int:
        """Layers that both streams go through."""
        return self.tap + 1 if self.codebooks else self.layers

    @property
    def branch(self) -> int:
        """Layers of each branch."""
        return self.layers - self.tap - 1 if self.codebooks else 0

    @property
    def kv(self) -> int:
        """Numbers in a key, j."""
        return self.hidden // self.heads * self.kv_heads

    @property
    def cached_layers(self) -> int:
        """Layers with keys and values of their own."""
        return self.shared + 2 * self.branch


def policy_sizes(config: PolicyConfig, facts: PolicyFacts) -> PolicySizes:
    """Return the sizes of a run's policy; those its config leaves open come from the facts."""
    text_vocab = config.text_pieces + facts.special_ids if facts.text_vocab is None else facts.text_vocab
    codes = sum(facts.codebook_sizes)
    # With masks, text is scored among pieces and their end, codes among themselves and the answer's end.
    text_rows = text_vocab - facts.special_ids + 1 if facts.masked else text_vocab + codes
    return PolicySizes(
        hidden=config.hidden_size,
        intermediate=config.intermediate_size,
        layers=config.num_layers,
        tap=config.tap_layer,
        heads=config.num_heads,
        kv_heads=config.num_kv_heads,
        vocab=text_vocab + codes,
        text_rows=text_rows,
        audio_rows=codes + 1 if facts.masked else text_vocab + codes,
        codebooks=len(facts.codebook_sizes),
        continuous=facts.continuous_dim,
    )


def layer_products(sizes: PolicySizes) -> int:
    """Count the weights of one layer's matrix products: q, k, v, o, gate, up, down."""
    d, f, j = sizes.hidden, sizes.intermediate, sizes.kv
    return 2 * d * d + 2 * d * j + 3 * d * f


def layer_parameters(sizes: PolicySizes) -> int:
    """Count one layer's parameters: products, biases of q, k and v, and two norms."""
    return layer_products(sizes) + sizes.hidden + 2 * sizes.kv + 2 * sizes.hidden


def parameters(sizes: PolicySizes) -> dict[str, int]:
    """Count parameters by part; their sum is the model's."""
    d, layer = sizes.hidden, layer_parameters(sizes)
    streams = 2 if sizes.codebooks else 1
    return {
        "embedding": sizes.vocab * d,
        "shared layers": sizes.shared * layer,
        "text branch": sizes.branch * layer,
        "audio branch": sizes.branch * layer,
        "heads": streams * sizes.vocab * d,
        "norms": streams * d,
        "adaptor": sizes.continuous * d + d + d * d + d + 2 * d if sizes.continuous else 0,
    }


def lora_parameters(sizes: PolicySizes, rank: int) -> int:
    """Count LoRA parameters: two matrices of the rank on each product of each layer."""
    d, f, j = sizes.hidden, sizes.intermediate, sizes.kv
    return rank * sizes.cached_layers * (2 * (d + d) + 2 * (d + j) + 3 * (d + f))


# -- work and time ------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Work:
    """Arithmetic and memory traffic."""

    products: float = 0.0
    weight_bytes: float = 0.0
    attention: float = 0.0
    cache_bytes: float = 0.0
    vector_bytes: float = 0.0
    backward_bytes: float = 0.0
    stream_bytes: float = 0.0
    drawn_logits: float = 0.0
    scored_logits: float = 0.0
    launches: float = 0.0

    def __add__(self, other: Work) -> Work:
        return Work(*(getattr(self, part.name) + getattr(other, part.name) for part in fields(self)))

    def times(self, factor: float) -> Work:
        """Return the work n times."""
        return Work(*(factor * getattr(self, part.name) for part in fields(self)))


def backward(forward: Work, of_weights: bool = True) -> Work:
    """Return the backward pass of a forward pass; `of_weights` False: gradients pass through frozen weights only."""
    return Work(
        products=(2 if of_weights else 1) * forward.products,
        weight_bytes=2 * forward.weight_bytes,
        attention=ATTENTION_BACK * forward.attention,
        backward_bytes=forward.vector_bytes,
        scored_logits=forward.scored_logits,
        launches=BACK_LAUNCHES * forward.launches,
    )


def seconds(work: Work, device: PeakDevice | MeasuredDevice, phase: Phase) -> float:
    """Return the seconds on one device.

    A data sheet's device does each kind of work at the slower of its two limits, arithmetic and memory, and
    elementwise work is in the share. A measured device does everything one after another.
    """
    if isinstance(device, PeakDevice):
        shares = {
            "train": device.train_share, "read": device.read_share, "decode": device.decode_share, "speak": device.speak_share,
        }  # fmt: skip
        flops = device.peak_tflops.value * 1e12 * shares[phase].value
        memory = device.memory_gb_s.value * 1e9 * device.memory_share.value
        return (
            max(work.products / flops, work.weight_bytes / memory)
            + max(work.attention / flops, work.cache_bytes / memory)
            + work.stream_bytes / memory
        )
    return (
        work.products / (device.product_gflops.value * 1e9)
        + work.weight_bytes / (device.weight_gb_s.value * 1e9)
        + max(work.attention / (device.attention_gflops.value * 1e9), work.cache_bytes / (device.cache_gb_s.value * 1e9))
        + work.vector_bytes / (device.vector_gb_s.value * 1e9)
        + work.backward_bytes / (device.backward_gb_s.value * 1e9)
        + work.stream_bytes / (device.stream_gb_s.value * 1e9)
        + work.drawn_logits / (device.drawn_mlogits_s.value * 1e6)
        + work.scored_logits / (device.scored_mlogits_s.value * 1e6)
        + work.launches * device.launch_us.value * 1e-6
    )


def vector_elements(sizes: PolicySizes) -> int:
    """Count the numbers that one layer's elementwise work reads and writes for one position.

    Two norms of 7 d, two residual sums of 3 d, rotation of 8 a number of q and k, 2 d to put heads side by side, 5 f for
    the gate.
    """
    d, f, j = sizes.hidden, sizes.intermediate, sizes.kv
    return 14 * d + 6 * d + 8 * (d + j) + 2 * d + 5 * f


def _layers(sizes: PolicySizes, positions: float, layers: float, dtype_bytes: int) -> Work:
    """Cost the products and elementwise work of positions through layers; the layers' weights are read once."""
    return Work(
        products=2 * layer_products(sizes) * positions * layers,
        weight_bytes=dtype_bytes * layer_parameters(sizes) * layers,
        vector_bytes=dtype_bytes * vector_elements(sizes) * positions * layers,
        launches=LAYER_LAUNCHES * layers,
    )


def _head(sizes: PolicySizes, positions: float, rows: int, launches: int, dtype_bytes: int) -> Work:
    return Work(products=2 * sizes.hidden * rows * positions, weight_bytes=dtype_bytes * sizes.hidden * rows, launches=launches)


def read_prompts(sizes: PolicySizes, prompts: int, prompt_steps: int, dtype_bytes: int) -> Work:
    """Cost each prompt once through every layer, features through the adaptor."""
    positions = prompts * prompt_steps
    d, layers = sizes.hidden, sizes.cached_layers
    adapted = 2 * (sizes.continuous * d + d * d) * positions if sizes.continuous else 0
    attention = 4 * d * prompt_steps * positions * layers
    return _layers(sizes, positions, layers, dtype_bytes) + Work(products=adapted, attention=attention, launches=STEP_LAUNCHES)


def decode_step(
    sizes: PolicySizes, rows: int, own_positions: float, prompts: int, prompt_steps: int, text: bool, dtype_bytes: int
) -> Work:
    """Cost one step of `rows` answers that share `own_positions` of context; `text`: some still write text."""
    through = sizes.shared + sizes.branch * (2 if text else 1)
    seen = own_positions + rows * prompt_steps
    work = _layers(sizes, rows, through, dtype_bytes)
    work += Work(
        attention=4 * sizes.hidden * seen * through,
        cache_bytes=2 * sizes.kv * dtype_bytes * through * (own_positions + prompts * prompt_steps),
        launches=STEP_LAUNCHES,
    )
    if text:
        work += _head(sizes, rows, sizes.text_rows, DRAW_LAUNCHES, dtype_bytes) + Work(drawn_logits=rows * sizes.text_rows)
    if sizes.codebooks:
        head = _head(sizes, rows, sizes.audio_rows, DRAW_LAUNCHES * sizes.codebooks, dtype_bytes)
        work += head + Work(drawn_logits=rows * sizes.audio_rows)
    return work


def score_answers(sizes: PolicySizes, rows: int, steps: int, text_steps: int, prompt_steps: int, dtype_bytes: int) -> Work:
    """Cost log-probs of `rows` answers of `steps` each after cached prompts, the text branch for `text_steps`."""
    ahead, text = sizes.shared + sizes.branch, sizes.branch
    work = _layers(sizes, rows * steps, ahead, dtype_bytes) + _layers(sizes, rows * text_steps, text, dtype_bytes)
    for layers, length in ((ahead, steps), (text, text_steps)):
        seen = prompt_steps + length
        # Keys and values of the prompt are fetched for each row and put before its own.
        copied = 2 * sizes.kv * rows * (2 * prompt_steps + 2 * seen)
        work += Work(attention=4 * sizes.hidden * seen * rows * length * layers, vector_bytes=dtype_bytes * copied * layers)
    work += _head(sizes, rows * text_steps, sizes.text_rows, SCORE_LAUNCHES, dtype_bytes)
    work += Work(scored_logits=rows * text_steps * sizes.text_rows, launches=STEP_LAUNCHES)
    if sizes.codebooks:
        work += _head(sizes, rows * steps, sizes.audio_rows, SCORE_LAUNCHES * sizes.codebooks, dtype_bytes)
        work += Work(scored_logits=rows * steps * sizes.audio_rows)
    return work


def embedding_gradients(sizes: PolicySizes, passes: int, dtype_bytes: int) -> Work:
    """Cost the embeddings' gradients: each look-up makes one as large as the table, which is cleared, filled and added."""
    return Work(stream_bytes=3 * dtype_bytes * sizes.vocab * sizes.hidden * (sizes.codebooks + 1) * passes)


def update(trained: float) -> Work:
    """Cost AdamW on n weights, and the norm of their gradients."""
    return Work(stream_bytes=(ADAMW_BYTES + 4) * trained)


# -- memory -------------------------------------------------------------------------------------------------------------


def cache_bytes(sizes: PolicySizes, positions: float, dtype_bytes: int) -> float:
    """Return bytes of keys and values of n positions in every layer."""
    return 2 * sizes.kv * sizes.cached_layers * dtype_bytes * positions


@dataclass(frozen=True)
class LayerNumbers:
    """Numbers that a layer stores for the backward pass, per position, and needs besides: of d and f; `end` a branch leaves."""

    left: tuple[int, int]
    besides: tuple[int, int]
    end: float


# Counted on the layer itself (tests/planning/test_measured_memory.py): norms and SwiGLU keep their inputs alone, as wide as
# the weights are, and an adapter reads the input of the layer beneath it.
LAYER = LayerNumbers((6, 3), (1, 2), 1.5)


def activation_bytes(
    sizes: PolicySizes, plan: LearnerPlan, rows: int, prompts: int, steps: int, text_steps: int, prompt_steps: int
) -> tuple[float, float]:
    """Return the bytes stored for the backward pass, and those that its current layer needs besides.

    A layer stores `LAYER`, and 2 j per visible position: a prompt's keys come before each of its answers. With
    checkpointing a layer stores its input (and a prompt's keys, which answers read) and is computed again, `chunk_rows` at a
    time. Each answer has a mask of its own.
    """
    d, f, j = sizes.hidden, sizes.intermediate, sizes.kv
    (wide, inner), (wide_besides, inner_besides) = LAYER.left, LAYER.besides
    ahead, text = sizes.shared + sizes.branch, sizes.branch
    chunk, read = min(rows, plan.chunk_rows or rows), prompts * prompt_steps

    def left(own: float, seen: float) -> float:
        return (wide * d + inner * f) * own + 2 * j * seen

    kept = 0.0
    working: float = (wide_besides * d + inner_besides * f) * chunk * steps
    if plan.checkpointing:
        kept += d * rows * (ahead * steps + text * text_steps) + (d + 2 * j) * read * sizes.cached_layers
        working += max(left(chunk * steps, chunk * (steps + prompt_steps)), left(read, read))
    else:
        kept += sizes.cached_layers * left(read, read)
        for layers, length in ((ahead, steps), (text, text_steps)):
            kept += layers * left(rows * length, rows * (length + prompt_steps))
    kept += LAYER.end * d * (rows * (steps + text_steps) + 2 * read) + rows * steps * (prompt_steps + steps)
    return kept * plan.weight_bytes, working * plan.weight_bytes


def logit_bytes(heads: Sequence[tuple[float, float]], plan: LearnerPlan) -> float:
    """Return the bytes of heads that score n logits each, in calls of equal size.

    They are kept for the backward pass, and the current call has two more copies in float32. Calls for more than
    `logits_at_once` are made in parts, which hold all three copies.
    """
    kept, working = 0.0, 0.0
    for scored, at_once in heads:
        in_parts = plan.logits_at_once is not None and at_once > plan.logits_at_once
        kept += 0.0 if in_parts else plan.weight_bytes * scored
        working = max(working, (8.0 + plan.weight_bytes) * (plan.logits_at_once or 0) if in_parts else 8 * at_once)
    return kept + working


def learner_memory(
    sizes: PolicySizes, plan: LearnerPlan, rows: int, prompts: int, steps: int, text_steps: int, prompt_steps: int
) -> dict[str, float]:
    """Return bytes on one device, by part, at the peak; `rows` answers after `prompts` prompts are in memory at once.

    The peak is at the start of the backward pass, with the logits; in its first layer; or at its end, where activations are
    gone and all gradients are made.
    """
    total, shards = sum(parameters(sizes).values()), plan.shard_over
    lora = plan.trainable == "lora"
    trained = lora_parameters(sizes, plan.lora_rank) if lora else total
    chunk = min(rows, plan.chunk_rows or rows)
    heads = [(text_steps, sizes.text_rows)] + ([(steps, sizes.audio_rows)] if sizes.codebooks else [])
    logits = [(float(rows * length * width), float(chunk * length * width)) for length, width in heads]
    lasting = {
        # What is trained is kept in float32; LoRA's reference is the same weights without it.
        "weights": (plan.weight_bytes * total + 4 * trained if lora else 4 * total) / shards,
        "reference": 0.0 if lora else plan.weight_bytes * total / shards,
        "optimiser": 8 * trained / shards,
    } | gathered_memory(sizes, plan, total, trained)
    gradients = plan.gradient_bytes * trained / shards
    table = 0.0 if lora else plan.gradient_bytes * sizes.vocab * sizes.hidden
    # Passes before this one have left theirs; in the only one the heads' are made while all activations are there.
    early = gradients if plan.rows is not None or lora else len(heads) * table
    kept, working = activation_bytes(sizes, plan, rows, prompts, steps, text_steps, prompt_steps)
    moments = [
        {"gradients": early, "activations": kept, "logits": logit_bytes(logits, plan)},
        {"gradients": early, "activations": kept + working, "logits": 0.0},
        # A look-up's gradient is as large as the table, and is added to those before.
        {"gradients": gradients + 2 * table, "activations": 0.0, "logits": 0.0},
    ]
    return lasting | max(moments, key=lambda parts: sum(parts.values()))


def gathered_memory(sizes: PolicySizes, plan: LearnerPlan, total: float, trained: float) -> dict[str, float]:
    """Return bytes of full weights and their gradients that a device holds while it learns; {}: its own are all."""
    lora = plan.trainable == "lora"
    if plan.shard_over > 1 and plan.gather == "step":
        # The reference is gathered, read and put back before the policy's own weights are.
        full = plan.weight_bytes * total
        return {"gathered": full + (plan.weight_bytes + plan.gradient_bytes if lora else plan.gradient_bytes) * trained}
    if plan.shard_over > 1:
        # Two layers are gathered at a time, and the root: embedding, heads, norms, adaptor. The gradients of one layer, and
        # of the root till a pass is over, are there in full before they are exchanged.
        layer = layer_parameters(sizes)
        root = total - sizes.cached_layers * layer
        return {"gathered": plan.weight_bytes * (2 * layer + root + (0 if lora else layer + root))}
    return {"gathered": plan.weight_bytes * total} if plan.weight_bytes < 4 and not lora else {}


def checkpoint_bytes(sizes: PolicySizes, plan: LearnerPlan) -> int:
    """Return the bytes of a training checkpoint: trained weights and AdamW's two moments, in float32."""
    trained = lora_parameters(sizes, plan.lora_rank) if plan.trainable == "lora" else sum(parameters(sizes).values())
    return round(12 * trained)


def rollout_memory(
    sizes: PolicySizes,
    engine: Engine,
    facts: PolicyFacts,
    rows: int,
    prompts: int,
    most_steps: int,
    prompt_steps: int,
    lora_rank: int | None = None,
) -> dict[str, float]:
    """Return bytes on one device, by part, with room for `most_steps` of every answer, and adapters beside the weights."""
    size = engine.dtype_bytes
    encoder, counted = facts.audio_encoder, parameters(sizes)
    return {
        "weights": float(size * sum(counted.values())),
        # On a processor, and in float32, the compiled step of `policy/dual_stream/native.py` packs layers and heads again.
        "compiled step": 4.0 * (sum(counted.values()) - counted["embedding"] - counted["adaptor"]) if size == 4 else 0.0,
        "adapters": 4.0 * lora_parameters(sizes, lora_rank) if lora_rank else 0.0,
        "keys and values": cache_bytes(sizes, rows * most_steps + prompts * prompt_steps, size),
        "logits": 4.0 * 4 * rows * max(sizes.text_rows, sizes.audio_rows),
        "audio encoders": GIB * encoder.held_gib.value if encoder is not None else 0.0,
    }


def recorded_steps(sizes: PolicySizes, rows: int, most_steps: int, text_steps: int) -> tuple[int, int]:
    """Return how many sizes of a step are recorded at most, and launches of one (policy/dual_stream/captured.py).

    A step is recorded for each size of rows and each 64 positions of answers, and again while some still write text.
    """
    # Two for each doubling: 1, 2, 3, 4, 6, 8, 12 and so on.
    row_sizes = max(1, 2 * (rows - 1).bit_length())
    through = sizes.shared + 2 * sizes.branch
    graphs = row_sizes * (math.ceil(most_steps / RECORDED_POSITIONS) + math.ceil(text_steps / RECORDED_POSITIONS))
    return graphs, RECORDED_LAYER_LAUNCHES * through


def beneath_bytes(sizes: PolicySizes, dtype_bytes: int) -> float:
    """Return the bytes of the weights beneath a sampler's adapters, which every update brings from the host."""
    return float(dtype_bytes * sizes.cached_layers * layer_products(sizes))


def attention_bytes(sizes: PolicySizes, rows: int, steps: int, prompt_steps: int, dtype_bytes: int) -> float:
    """Return the bytes of masked attention on a GPU: keys and values of each head (kv_cache.py), and their gradients."""
    copies = 4 if sizes.heads > sizes.kv_heads else 0
    return float(copies * dtype_bytes * sizes.hidden * rows * (prompt_steps + steps))


def speak_memory(facts: PolicyFacts) -> dict[str, float]:
    """Return bytes on a device that makes sound of codes, by part."""
    if (speaker := facts.speaking) is None:
        return {}
    state = GIB * speaker.state_gib.value if speaker.state_gib is not None else 0.0
    return {"vocoder": GIB * speaker.held_gib.value, "vocoder's keys and values": state}


# What to change where a part is the largest of those that do not fit: `align` in the run's config, the rest in the cluster's.
REMEDIES = {
    "weights": "more devices in learner.shard_over, or roles apart",
    "reference": "align.lora: {rank: 16}, or more devices in learner.shard_over",
    "optimiser": "align.lora: {rank: 16}, or more devices in learner.shard_over",
    "gradients": "align.lora: {rank: 16}, or more devices in learner.shard_over",
    "activations": "align.optimizer.gradient_checkpointing: true, or a lower align.optimizer.micro_batch_size",
    "logits": "a smaller learner.logits_at_once, or fewer engine.rows",
    "gathered": "align.lora: {rank: 16}, roles apart, or align.workers.learner.gather: layer",
    "keys and values": "fewer engine.rows, or a lower policy.max_answer_steps",
    "kept keys and values": "fewer engine.rows, or a lower policy.max_answer_steps",
    "reward model": "roles apart, with devices for the reward",
    "reward model's activations": "a lower batch_size in the reward source's options",
    "rollout weights": "roles apart, or engine.dtype_bytes: 2",
}


def complaint(role: str, parts: dict[str, float], room: float) -> str | None:
    """Return a line on what does not fit on a role's device and what to change; None if all fits."""
    needed = sum(parts.values())
    if needed <= room:
        return None
    largest = max(parts, key=lambda part: parts[part])
    part = largest.rpartition(": ")[2]
    # Colocated parts have their role before them.
    remedy = REMEDIES.get(part) or REMEDIES.get(part.partition(" ")[2], "devices with more memory")
    return (
        f"{role}: needs {needed / GIB:.1f} GiB a device and has {room / GIB:.1f}; the most is {largest} "
        f"({parts[largest] / GIB:.1f} GiB): {remedy}"
    )


# -- rewards ------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class RewardLoad:
    """Cost of the rewards of one step; `usd` None: a price is not known."""

    processor_s: float
    work: Work
    resident_bytes: float
    working_bytes: float
    calls: int
    concurrency: int
    latency_s: float
    usd: float | None


def reward_load(
    config: RunConfig, rates: Rates, facts: PolicyFacts, queries: int, group: int, answer_s: float, cluster: Cluster
) -> RewardLoad:
    """Return the cost of a run's sources, one after another. Raises ConfigError: an unknown kind, or an unreadable judge."""
    answers, input_s = queries * group, facts.question_s.value + answer_s
    processor_s, resident, working, latency_s, usd = 0.0, 0.0, 0.0, 0.0, 0.0
    work, calls, slots, priced = Work(), 0, 1, True
    for source in config.reward.sources:
        if (kind := rated_as(source)) not in rates.rewards:
            raise ConfigError(f"no reward {kind!r} in the rates; there are {', '.join(sorted(rates.rewards))}")
        known = rates.rewards[kind]
        each_s = known.seconds.value if known.seconds else 0.0
        each_s += known.seconds_per_s.value * answer_s if known.seconds_per_s else 0.0
        processor_s += answers * each_s / config.align.workers.reward.count
        work += _network(known, input_s).times(answers)
        resident += GIB * known.held_gib.value if known.held_gib is not None else 0.0
        working = max(working, _scored_bytes(known, input_s))
        if known.tokens_in is not None:
            more, concurrency, call_usd = calls_of(source, known, group, input_s)
            calls += more * queries
            slots = cluster.judging.concurrency or concurrency * config.align.workers.reward.count
            latency_s = max(latency_s, known.latency_s.value if known.latency_s else 0.0)
            priced = priced and call_usd is not None
            usd += (call_usd or 0.0) * more * queries
    return RewardLoad(processor_s, work, resident, working, calls, slots, latency_s, usd if priced else None)


def _scored_bytes(known: RewardFacts, input_s: float) -> float:
    """Return the activations of the answers that a reward model scores at once."""
    if known.position_bytes is None or known.positions_per_s is None or known.batch_size is None:
        return 0.0
    prompt = known.prompt_positions.value if known.prompt_positions else 0.0
    return known.position_bytes.value * known.batch_size.value * (known.positions_per_s.value * input_s + prompt)


def _network(known: RewardFacts, input_s: float) -> Work:
    """Cost one answer through a reward model: question and answer as sound, read with the prompt."""
    products = 0.0
    if known.parameters and known.positions_per_s:
        prompt = known.prompt_positions.value if known.prompt_positions else 0.0
        products += 2 * known.parameters.value * (known.positions_per_s.value * input_s + prompt)
    if known.encoder_parameters and known.encoder_positions_per_s:
        products += 2 * known.encoder_parameters.value * known.encoder_positions_per_s.value * input_s
    return Work(products=products)
