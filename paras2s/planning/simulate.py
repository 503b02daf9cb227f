"""Simulated steps of GRPO: answers of different length are decoded, scored and learned from, on shared or own devices.

Lengths are drawn, so that a batch takes its longest answer and a phase its slowest device. Four roles (rollout, speak, reward,
learner) work through the steps in order, each on devices of its own or all on the same; the synchronous driver samples
with the newest weights, the asynchronous one with weights that are at most n steps old.

Left out: failures, checkpoints, looks at validation queries, and what the network does for others.
"""

from __future__ import annotations

import heapq
import math
import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace
from statistics import fmean

from paras2s.configs.schema.run import RunConfig
from paras2s.planning import cost
from paras2s.planning.cluster import (
    Cluster,
    Device,
    Engine,
    KnownPolicy,
    LearnerPlan,
    PeakDevice,
    PolicyFacts,
    Rates,
    override_by_run,
)
from paras2s.planning.cost import PolicySizes, RewardLoad, Work
from paras2s.planning.driver import Rhythm, StepTimes, run_driver
from paras2s.planning.host import answer_bytes, host_memory, prompt_bytes
from paras2s.planning.queues import SpeechBatch, batches_as_they_end, calls_seconds, spoken_seconds

# Steps whose lengths are drawn; the driver takes them in turn.
DRAWN_STEPS = 4


@dataclass(frozen=True)
class AnswerLength:
    """Steps of one answer, its end included, and of its text."""

    steps: int
    text_steps: int


@dataclass(frozen=True)
class Lengths:
    """Lengths of answers. `spread` None: they end by chance at every step (geometric); else evenly about the mean."""

    mean: float
    spread: float | None
    most: int

    def draw(self, rng: random.Random) -> int:
        """Draw one length, at most `most`."""
        if self.spread is None:
            drawn = 1 + int(math.log(max(rng.random(), 1e-300)) / math.log(1 - 1 / self.mean)) if self.mean > 1 else 1
        else:
            drawn = round(self.mean * (1 + self.spread * (2 * rng.random() - 1)))
        return max(1, min(self.most, drawn))


def draw_answers(count: int, audio: Lengths, text: Lengths, rng: random.Random) -> list[AnswerLength]:
    """Draw lengths of both streams; a text ends no later than its answer."""
    steps = [audio.draw(rng) for _ in range(count)]
    return [AnswerLength(steps_drawn, min(steps_drawn, text.draw(rng))) for steps_drawn in steps]


@dataclass(frozen=True)
class Decoded:
    """Seconds until each answer ended, in their order, and until the last."""

    ends_s: tuple[float, ...]

    @property
    def seconds(self) -> float:
        """Sum over all parts."""
        return max(self.ends_s, default=0.0)


def decode(
    sizes: PolicySizes, device: Device, engine: Engine, answers: Sequence[AnswerLength], group: int, prompt_steps: int
) -> Decoded:
    """Simulate decoding of a device's answers, `engine.rows` at once; cost between two ends is that of the middle context."""
    waiting = list(range(len(answers)))[::-1]
    ends_s = [0.0] * len(answers)
    now_s, tick, rows = 0.0, 0, 0
    active: list[tuple[int, int, int]] = []  # (tick of its end, its number, tick of its start)
    while waiting or active:
        if not active or engine.batching == "continuous":
            while waiting and len(active) < engine.rows:
                number = waiting.pop()
                # The first step is drawn from the prompt: one pass less than there are steps.
                heapq.heappush(active, (tick + answers[number].steps - 1, number, tick))
                rows = max(rows, len(active))
        # Ended rows sit idle until `leave_share` have ended, then the rest is packed; in a static batch it never is.
        gone = rows - len(active)
        if engine.batching == "continuous" and gone and gone >= engine.leave_share * rows:
            rows = len(active)
            if engine.leave_share:
                kept = cost.cache_bytes(sizes, sum(tick - start for _, _, start in active), engine.dtype_bytes)
                now_s += cost.seconds(Work(stream_bytes=4 * kept), device, "decode")
        text_ends = [start + answers[number].text_steps - 1 for _, number, start in active]
        writing = [end for end in text_ends if end > tick]
        stop = min(active[0][0], max(writing, default=active[0][0]))
        if stop > tick:
            middle = (tick + stop) / 2
            own = sum(middle - start for _, _, start in active) * rows / len(active)
            prompts = math.ceil(rows / group)
            work = cost.decode_step(sizes, rows, own, prompts, prompt_steps, bool(writing), engine.dtype_bytes)
            overhead_s = device.step_overhead_ms.value / 1e3 if isinstance(device, PeakDevice) else 0.0
            now_s += (stop - tick) * (cost.seconds(work, device, "decode") + overhead_s)
            tick = stop
        while active and active[0][0] <= tick:
            ends_s[heapq.heappop(active)[1]] = now_s
        if not active:
            rows = 0
    return Decoded(tuple(ends_s))


# -- learner ------------------------------------------------------------------------------------------------------------


def forward_work(sizes: PolicySizes, plan: LearnerPlan, answers: Sequence[AnswerLength], group: int, prompt_steps: int) -> Work:
    """Cost one pass over answers by length, `chunk_rows` (else `rows`) at a time, after prompts read once."""
    at_once = plan.chunk_rows or plan.rows or max(1, len(answers))
    ordered = sorted(answers, key=lambda answer: -answer.steps)
    # Prompts are read once for all answers in memory together, and again with the next.
    times = math.ceil(len(answers) / (plan.rows or max(1, len(answers))))
    prompts = max(times, math.ceil(len(answers) / group))
    work = cost.read_prompts(sizes, prompts, prompt_steps, plan.weight_bytes)
    for first in range(0, len(ordered), at_once):
        chunk = ordered[first : first + at_once]
        text = max(answer.text_steps for answer in chunk)
        work += cost.score_answers(sizes, len(chunk), chunk[0].steps, text, prompt_steps, plan.weight_bytes)
    return work


@dataclass(frozen=True)
class LearnTimes:
    """Seconds of a step's learning on the slowest device; `exchange` is the wait for other devices' numbers."""

    reference: float
    forward: float
    backward: float
    optimiser: float
    exchange: float

    @property
    def seconds(self) -> float:
        """Sum over all parts."""
        return self.reference + self.forward + self.backward + self.optimiser + self.exchange


def learn(sizes: PolicySizes, cluster: Cluster, answers: Sequence[AnswerLength], group: int, prompt_steps: int) -> LearnTimes:
    """Simulate reference, policy, backward pass and AdamW, on answers dealt to the learner's devices by groups."""
    plan, device, devices = cluster.learner, cluster.rates, cluster.count("learner")
    total = sum(cost.parameters(sizes).values())
    trained = cost.lora_parameters(sizes, plan.lora_rank) if plan.trainable == "lora" else total
    by_device = []
    for hand in deal(answers, group, devices):
        forward = forward_work(sizes, plan, hand, group, prompt_steps)
        forward_s = cost.seconds(forward, device, "train")
        back = cost.backward(forward, plan.trainable == "full") + (forward if plan.checkpointing else Work())
        chunks = math.ceil(len(hand) / (plan.chunk_rows or plan.rows or len(hand)))
        if not isinstance(device, PeakDevice) and plan.trainable == "full":
            back += cost.embedding_gradients(sizes, chunks + 1, plan.weight_bytes)
            # Each chunk's gradient is added to what there is.
            back += Work(stream_bytes=3 * plan.weight_bytes * total * chunks)
        passes = math.ceil(len(hand) / (plan.rows or len(hand)))
        reference_s, back_s = forward_s, cost.seconds(back, device, "train")
        exchange_s = exchange_seconds(cluster, total, trained, passes)
        # Layer by layer, the next one's weights travel while this one is computed.
        hidden_s = min(exchange_s, reference_s + forward_s + back_s) if plan.gather == "layer" else 0.0
        by_device.append((reference_s, forward_s, back_s, exchange_s - hidden_s))
    optimiser_s = cost.seconds(cost.update(trained / plan.shard_over), device, "train")
    reference_s, forward_s, back_s, exchange_s = max(by_device, key=sum)
    return LearnTimes(reference_s, forward_s, back_s, optimiser_s, exchange_s)


def bandwidth(cluster: Cluster, among: int) -> float:
    """Return the bytes a second and device that a collective among n devices reaches."""
    figure = cluster.link_gb_s if among <= cluster.devices_per_node else cluster.network_gb_s
    return figure.value * 1e9 * cluster.link_share.value


def exchange_seconds(cluster: Cluster, total: float, trained: float, passes: int) -> float:
    """Return the seconds to gather weights, scatter gradients, and sum those shared among copies.

    Once a step for the reference and once for the policy, even if LoRA makes them the same weights; or layer by layer
    for both and for the backward pass, in each pass, for prompts and for their answers.
    """
    plan, devices = cluster.learner, cluster.count("learner")
    shards, copies = plan.shard_over, devices // plan.shard_over
    spent_s = 0.0
    if shards > 1:
        moved = 2 * plan.weight_bytes * total + plan.gradient_bytes * trained
        if plan.gather == "layer":
            moved = 2 * passes * (3 * plan.weight_bytes * total + plan.gradient_bytes * trained)
        spent_s += (shards - 1) / shards * moved / bandwidth(cluster, shards)
    if copies > 1:
        moved = 2 * (copies - 1) / copies * plan.gradient_bytes * trained / shards
        spent_s += moved / bandwidth(cluster, devices)
    return spent_s


def sent_bytes(sizes: PolicySizes, plan: LearnerPlan) -> float:
    """Return the bytes of trained weights sent to samplers: all, or the adapters alone, which are float32 everywhere."""
    if plan.trainable == "lora":
        return 4.0 * cost.lora_parameters(sizes, plan.lora_rank)
    return float(plan.weight_bytes * sum(cost.parameters(sizes).values()))


def sync_seconds(sizes: PolicySizes, cluster: Cluster) -> float:
    """Return the seconds to send trained weights to every rollout device; adapters are folded there, from the host."""
    plan, device, moved = cluster.learner, cluster.rates, sent_bytes(sizes, cluster.learner)
    folded_s = 0.0
    if plan.trainable == "lora" and isinstance(device, PeakDevice) and device.host_gb_s is not None:
        folded_s = cost.beneath_bytes(sizes, cluster.engine.dtype_bytes) / (device.host_gb_s.value * 1e9)
    if cluster.transport_gb_s is not None:
        return folded_s + moved / (cluster.transport_gb_s.value * 1e9)
    return folded_s + moved / bandwidth(cluster, plan.shard_over if cluster.roles.layout == "colocated" else cluster.devices)


# -- the plan -----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Load:
    """Work of a step: B queries, G answers each; the update learns from `learned` queries.

    With `text_alone` it reads an answer up to the end of its text, since its sound has no weight; evaluations read all.
    """

    queries: int
    learned: int
    group: int
    prompt_steps: int
    audio: Lengths
    text: Lengths
    text_alone: bool


def load_of(config: RunConfig, known: KnownPolicy, answer_s: float | None = None) -> Load:
    """Return the load of a run's config; its `policy.max_answer_steps`, if set, replaces the policy's own longest answer."""
    facts, align = known.facts, config.align
    rate = facts.steps_per_s.value
    speech_rate = (facts.prompt_steps_per_s or facts.steps_per_s).value
    prompt_steps = round(facts.question_s.value * speech_rate) + facts.prompt_extra_steps
    most = round(facts.longest_answer_s.value * rate)
    if "max_answer_steps" in config.policy.model_fields_set:
        most = config.policy.max_answer_steps
    wanted_s = facts.answer_s.value if answer_s is None else answer_s
    # Audio begins behind the delay, and the end has a step of its own.
    audio = Lengths(wanted_s * rate + known.sizes.audio_delay_steps + 1, facts.answer_spread.value, most)
    text = Lengths(wanted_s * facts.text_steps_per_s.value + 1, facts.answer_spread.value, most)
    sampling, groups = align.sampling, align.objective.groups_per_update
    learned = min(groups, sampling.queries_per_step)
    text_alone = not align.objective.weights[1]
    return Load(sampling.queries_per_step, learned, sampling.group_size, prompt_steps, audio, text, text_alone)


@dataclass(frozen=True)
class Phases:
    """Seconds of one step's phases on their slowest device; `straggling` is the part of `decode` for unlike lengths.

    `speak` is of rollout devices, `speak_apart` of devices with that role; `speak_behind` is its part after
    all answers have been sampled.
    """

    encode: float
    read: float
    decode: float
    straggling: float
    speak: float
    speak_apart: float
    speak_behind: float
    judge: float
    reference: float
    forward: float
    backward: float
    optimiser: float
    exchange: float
    sync: float

    @property
    def rollout(self) -> float:
        """Seconds of the rollout devices: from the question's sound to the answers' sound, or to their codes."""
        return self.encode + self.read + self.decode + self.speak

    @property
    def learner(self) -> float:
        """Seconds of an update."""
        return self.reference + self.forward + self.backward + self.optimiser + self.exchange

    def times(self, factors: Mapping[str, float]) -> Phases:
        """Return the phases, each times its factor if it has one."""
        return replace(self, **{name: factor * getattr(self, name) for name, factor in factors.items()})


def step_phases(
    sizes: PolicySizes, facts: PolicyFacts, cluster: Cluster, load: Load, reward: RewardLoad, rng: random.Random
) -> tuple[Phases, list[SpeechBatch]]:
    """Simulate one step with drawn lengths, and the batches of speaking devices, counted from the end of its rollout."""
    device, devices = cluster.rates, cluster.count("rollout")
    answers = draw_answers(load.queries * load.group, load.audio, load.text, rng)
    mean_steps, mean_text_steps = (fmean(getattr(answer, name) for answer in answers) for name in ("steps", "text_steps"))
    even = [AnswerLength(round(mean_steps), round(mean_text_steps))]
    by_device = deal(answers, load.group, devices)
    largest = max(map(len, by_device))
    prompts = math.ceil(largest / load.group)
    dtype = cluster.engine.dtype_bytes
    decoded = [decode(sizes, device, cluster.engine, own_answers, load.group, load.prompt_steps) for own_answers in by_device]
    slowest_s = max(part.seconds for part in decoded)
    even_s = decode(sizes, device, cluster.engine, even * largest, load.group, load.prompt_steps).seconds
    encode = facts.audio_encoder
    encoding = Work(products=2 * encode.parameters.value * encode.positions.value * prompts) if encode else Work()
    second = Work(products=facts.speaking.gflop_per_s.value * 1e9) if facts.speaking else Work()
    # Seconds to make one second of sound.
    each_s, rate = cost.seconds(second, device, "speak"), facts.steps_per_s.value
    apart_s, behind_s, batches = 0.0, 0.0, list[SpeechBatch]()
    if speakers := cluster.count("speak"):
        ends_s = [end for part in decoded for end in part.ends_s]
        batches = batches_as_they_end(
            ends_s, [answer.steps / rate for own_answers in by_device for answer in own_answers], each_s
        )
        apart_s = sum(batch.seconds for batch in batches) / speakers
        behind_s = spoken_seconds(batches, speakers) - slowest_s
    read = cost.read_prompts(sizes, prompts, load.prompt_steps, dtype)
    read_again = answers[: load.learned * load.group]
    if load.text_alone:
        read_again = [replace(answer, steps=answer.text_steps) for answer in read_again]
    learned = learn(sizes, cluster, read_again, load.group, load.prompt_steps)
    phases = Phases(
        encode=cost.seconds(encoding, device, "read"),
        read=cost.seconds(read, device, "read"),
        decode=slowest_s,
        straggling=slowest_s - even_s,
        speak=0.0
        if speakers
        else each_s * max(sum(answer.steps for answer in own_answers) for own_answers in by_device) / rate,
        speak_apart=apart_s,
        speak_behind=behind_s,
        judge=judge_seconds(reward, cluster, [end for part in decoded for end in part.ends_s], slowest_s),
        sync=sync_seconds(sizes, cluster),
        reference=learned.reference,
        forward=learned.forward,
        backward=learned.backward,
        optimiser=learned.optimiser,
        exchange=learned.exchange,
    )
    return phases, [replace(batch, ready_s=batch.ready_s - slowest_s) for batch in batches]


def deal(answers: Sequence[AnswerLength], group: int, devices: int) -> list[list[AnswerLength]]:
    """Deal groups in turn to devices, or single answers if there are fewer groups than devices; no share is empty."""
    groups = [list(answers[first : first + group]) for first in range(0, len(answers), group)]
    if len(groups) < devices:
        groups = [[answer] for answer in answers]
    return [[answer for dealt in groups[worker::devices] for answer in dealt] for worker in range(min(devices, len(groups)))]


def judge_seconds(reward: RewardLoad, cluster: Cluster, ends_s: Sequence[float], rollout_s: float) -> float:
    """Return the seconds from the end of the rollout until everything is scored."""
    device = cluster.rates
    judges = cluster.roles.reward or cluster.count("rollout")
    spent_s = cost.seconds(reward.work.times(1 / judges), device, "read") + reward.processor_s
    if not reward.calls:
        return spent_s
    per_answer = reward.calls / len(ends_s)
    arrive_s = [ends_s[int(number / per_answer)] if cluster.judging.streaming else rollout_s for number in range(reward.calls)]
    return spent_s + calls_seconds(arrive_s, reward.concurrency, reward.latency_s) - rollout_s


@dataclass(frozen=True)
class Plan:
    """Prediction for a run: memory by role and part, of `hosts` too; `problems` names misfits and their remedies."""

    policy: str
    cluster: Cluster
    load: Load
    parameters: dict[str, int]
    phases: Phases
    rhythm: Rhythm
    memory: dict[str, dict[str, float]]
    room_bytes: float
    problems: list[str]
    steps: int
    judge_usd_per_step: float | None
    checkpoint_bytes: int
    most_checkpoints: int
    hosts: dict[str, dict[str, float]]

    @property
    def hours(self) -> float:
        """Total of the run."""
        return self.steps * self.rhythm.step_s / 3600

    @property
    def device_hours(self) -> float:
        """Hours of all devices, working or waiting."""
        return self.hours * self.cluster.devices

    @property
    def devices_usd(self) -> float:
        """Cost of the devices at the cluster's price."""
        return self.device_hours * self.cluster.usd_per_device_hour.value

    @property
    def judge_usd(self) -> float | None:
        """Total of the run; None: the judge's price is not known."""
        return None if self.judge_usd_per_step is None else self.judge_usd_per_step * self.steps


def make_plan(
    config: RunConfig,
    cluster: Cluster,
    rates: Rates,
    known: KnownPolicy,
    prompts: int | None = None,
    epochs: float = 1.0,
    answer_s: float | None = None,
    factors: Mapping[str, float] | None = None,
) -> Plan:
    """Predict time, memory and cost of a run's GRPO; `factors` multiply the seconds of phases (planning/calibrate.py)."""
    facts, cluster = known.facts, override_by_run(cluster, config.align)
    sizes, load = cost.policy_sizes(known.sizes, facts), load_of(config, known, answer_s)
    reward = cost.reward_load(
        config, rates, facts, load.queries, load.group, load.audio.mean / facts.steps_per_s.value, cluster
    )
    rng = random.Random(config.seed)
    factors = factors or {}
    steps_drawn = [step_phases(sizes, facts, cluster, load, reward, rng) for _ in range(DRAWN_STEPS)]
    drawn = [phases.times(factors) for phases, _ in steps_drawn]
    slower = factors.get("decode", 1.0), factors.get("speak_apart", 1.0)
    times = [
        StepTimes(phases.rollout, phases.judge, phases.learner, phases.sync, tuple(batch.times(*slower) for batch in batches))
        for phases, (_, batches) in zip(drawn, steps_drawn, strict=True)
    ]
    colocated, speakers = cluster.roles.layout == "colocated", max(1, cluster.count("speak"))
    on_devices = bool(reward.work.products) and not cluster.roles.reward
    if colocated or not on_devices:
        at_once = max(1, reward.concurrency // reward.calls) if reward.calls and not reward.processor_s else 1
        rhythm = run_driver(times, cluster.driver, colocated, bool(reward.work.products), at_once, speakers)
    else:
        # Rollout devices judge as well.
        both = [replace(phases, rollout=phases.rollout + phases.reward, reward=0.0) for phases in times]
        rhythm = run_driver(both, cluster.driver, False, False, speakers=speakers)
    memory = device_memory(sizes, facts, cluster, load, reward)
    device = cluster.rates
    room = (device.memory_gib.value - cluster.reserve_gib.value) * cost.GIB
    steps = config.align.steps if prompts is None else math.ceil(prompts * epochs / load.queries)
    return Plan(
        policy=known.name,
        cluster=cluster,
        load=load,
        parameters=cost.parameters(sizes),
        phases=Phases(*(fmean(getattr(phases, part.name) for phases in drawn) for part in fields(Phases))),
        rhythm=rhythm,
        memory=memory,
        room_bytes=room,
        problems=[text for role, parts in memory.items() if (text := cost.complaint(role, parts, room))],
        steps=steps,
        judge_usd_per_step=reward.usd,
        checkpoint_bytes=cost.checkpoint_bytes(sizes, cluster.learner),
        most_checkpoints=config.align.model_copy(update={"steps": steps}).most_checkpoints,
        hosts=hosts_of(sizes, facts, cluster, load, steps * load.queries if prompts is None else prompts),
    )


def hosts_of(sizes: PolicySizes, facts: PolicyFacts, cluster: Cluster, load: Load, prompts: int) -> dict[str, dict[str, float]]:
    """Return the bytes of the driver, the object store and the disk, for answers of the mean length and n prompts."""
    batches = cluster.driver.max_staleness + 1
    speech = load.prompt_steps - facts.prompt_extra_steps
    prompt = prompt_bytes(sizes, load.prompt_steps, speech, cluster.engine.dtype_bytes)
    # A policy without a vocoder has its codes judged.
    sound_s = load.audio.mean / facts.steps_per_s.value if facts.speaking else 0.0
    answer, weights = answer_bytes(sizes, load.audio.mean), sent_bytes(sizes, cluster.learner)
    return host_memory(prompts, batches, load.queries, load.group, prompt, answer, sound_s, weights)


def role_memory(
    sizes: PolicySizes, facts: PolicyFacts, cluster: Cluster, load: Load, reward: RewardLoad
) -> dict[str, dict[str, float]]:
    """Return bytes by part on one device of each role by itself."""
    plan, engine = cluster.learner, cluster.engine
    answers_each = math.ceil(load.queries * load.group / cluster.count("rollout"))
    sampled = rows = min(engine.rows, answers_each)
    rank = plan.lora_rank if plan.trainable == "lora" else None
    prompts = math.ceil(rows / load.group)
    rollout = cost.rollout_memory(sizes, engine, facts, rows, prompts, load.audio.most, load.prompt_steps, rank)
    speak = cost.speak_memory(facts)
    if not cluster.count("speak"):
        rollout, speak = rollout | speak, {}
    learned = math.ceil(load.learned * load.group / cluster.count("learner"))
    rows = min(plan.rows or learned, learned)
    longest, text = (
        min(length.most, math.ceil(length.mean * (1 + (length.spread or 1.0)))) for length in (load.audio, load.text)
    )
    groups = math.ceil(rows / load.group)
    learner = cost.learner_memory(sizes, plan, rows, groups, longest, min(text, longest), load.prompt_steps)
    judge = {"reward model": reward.resident_bytes, "reward model's activations": reward.working_bytes}
    roles = {"rollout": rollout, "speak": speak, "learner": learner, "reward": judge if reward.resident_bytes else {}}
    if isinstance(device := cluster.rates, PeakDevice):
        chunk = min(rows, plan.chunk_rows or rows)
        attention = cost.attention_bytes(sizes, chunk, longest, load.prompt_steps, plan.weight_bytes)
        roles["learner"] = learner | {"attention": attention}
        roles["rollout"] = _recorded(rollout, device, cost.recorded_steps(sizes, sampled, load.audio.most, min(text, longest)))
        if (context := device.context_gib) is not None:
            roles = {role: parts | ({"context": cost.GIB * context.value} if parts else {}) for role, parts in roles.items()}
    return roles if cluster.count("speak") else {role: parts for role, parts in roles.items() if role != "speak"}


def _recorded(rollout: dict[str, float], device: PeakDevice, recorded: tuple[int, int]) -> dict[str, float]:
    """Return a sampler's memory where its steps are recorded: they keep their caches, to which they refer."""
    if device.recorded_launch_kib is None:
        return rollout
    kept = {"kept keys and values" if part == "keys and values" else part: size for part, size in rollout.items()}
    return kept | {"recorded steps": math.prod(recorded) * 1024 * device.recorded_launch_kib.value}


# What a role gives back when its turn on a device ends.
TURNS = {
    "rollout": ("compiled step", "keys and values", "logits", "vocoder's keys and values"),
    "speak": ("vocoder's keys and values",),
    "learner": ("activations", "attention", "logits", "gathered"),
    "reward": ("reward model's activations",),
}


def device_memory(
    sizes: PolicySizes, facts: PolicyFacts, cluster: Cluster, load: Load, reward: RewardLoad
) -> dict[str, dict[str, float]]:
    """Return bytes by part on one device of each role. Colocated roles keep what lasts and take turns with the rest."""
    roles = role_memory(sizes, facts, cluster, load, reward)
    if cluster.roles.layout == "colocated":
        return {"every device": colocated(roles)}
    if cluster.roles.reward:
        return roles
    judge = roles.pop("reward")
    return roles | {"rollout": roles["rollout"] | judge}


def colocated(roles: Mapping[str, Mapping[str, float]]) -> dict[str, float]:
    """Return bytes by part of a device with these roles: what lasts of all, and the most that one adds while it works."""
    lasting = {
        f"{role} {part}": size for role, parts in roles.items() for part, size in parts.items() if part not in TURNS[role]
    }
    turns = [
        {f"while {role} works: {part}": size for part, size in parts.items() if part in TURNS[role]}
        for role, parts in roles.items()
    ]
    return lasting | max(turns, key=lambda parts: sum(parts.values()), default={})
