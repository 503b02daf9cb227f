"""The contract that every policy must keep, so that its samples can be learned from (docs/policies.md, "The contract").

Run on a policy with real weights by `paras2s check-policy`, on tiny random ones by the tests, and by whoever adds one.
A check gives what it measured; it raises nothing, whatever the policy does. The policy is left with the weights it came with.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from paras2s.audio.clip import Clip
from paras2s.errors import ParaS2SError, PolicyError, one_line
from paras2s.policy.base import Policy, flat
from paras2s.policy.types import AnswersSoFar, Generation, Prompt, SampleRequest, Sampling, Turn
from paras2s.types import Block

# Nats by which two ways to the same log-prob may differ, of one token; half precision rounds by position in a batch.
TOLERANCE = {torch.float64: 1e-6, torch.float32: 2e-3, torch.bfloat16: 0.5, torch.float16: 0.1}


@dataclass(frozen=True)
class Finding:
    """One check: `ok` is None if it does not apply, and `detail` says what was measured or why not."""

    name: str
    ok: bool | None
    detail: str


@dataclass(frozen=True)
class Subject:
    """A policy with prompts to try it on, of different length, and how far numbers may be apart."""

    policy: Policy
    prompts: tuple[Prompt, ...]
    tolerance: float
    steps: int = 8
    group: int = 3
    text: str = "hello there"

    @property
    def warm(self) -> Sampling:
        """A temperature of its own for each stream."""
        return Sampling(0.7, 1.4, self.steps)

    def seeds(self, prompts: int, group: int) -> list[list[int]]:
        """[B, G], all different."""
        return [[1000 * row + number for number in range(group)] for row in range(prompts)]

    def sampled(self, sampling: Sampling) -> list[Generation]:
        """G answers to every prompt."""
        return self.policy.generate(SampleRequest(self.prompts, self.seeds(len(self.prompts), self.group), sampling))

    def scored(self, prompts: Sequence[Prompt], answers: Sequence[Sequence[Block]], sampling: Sampling) -> tuple[Tensor, ...]:
        """Teacher-forced, without a gradient."""
        with torch.no_grad():
            return self.policy.logprobs(prompts, answers, sampling)


def sample_dialogues(rate_hz: int) -> list[list[Turn]]:
    """Make questions of different length, the second of two clips: sliding tones, since no check needs speech."""
    dialogues = []
    for number, durations in enumerate([(1.3,), (0.5, 0.8), (0.4,)]):
        turns = []
        for index, duration_s in enumerate(durations):
            time_s = np.arange(round(duration_s * rate_hz)) / rate_hz
            pitch_hz = 150 + 60 * number + 40 * index + 30 * np.sin(4 * time_s)
            wave = 0.3 * np.sin(2 * np.pi * np.cumsum(pitch_hz) / rate_hz) * (0.6 + 0.4 * np.sin(9 * time_s))
            turns.append(Turn("user", "hello there", Clip(wave.astype(np.float32), rate_hz)))
        dialogues.append(turns)
    return dialogues


def subject_of(policy: Policy, dialogues: Sequence[Sequence[Turn]] | None = None) -> Subject:
    """Return a policy and prompts; prompts of several clips are left out for a policy that refuses them."""
    prompts = []
    for turns in dialogues or sample_dialogues(policy.spec.input_rate_hz):
        try:
            prompts.append(_prompt_of(policy, turns))
        except PolicyError:
            if len(turns) == 1:
                raise
    return Subject(policy, tuple(prompts), TOLERANCE[next(policy.model.parameters()).dtype])


def _prompt_of(policy: Policy, turns: Sequence[Turn]) -> Prompt:
    """Return a dialogue's prompt; a policy that speaks given words, as CSM does, is given some."""
    try:
        return policy.encode_prompt(turns)
    except PolicyError as refused:
        try:
            return policy.encode_prompt([*turns, Turn("assistant", "hello there")])
        except PolicyError:
            raise refused from None


def _apart(first: Tensor | np.ndarray, second: Tensor | np.ndarray) -> float:
    a, b = (torch.as_tensor(x).detach().cpu().double() for x in (first, second))
    return float((a - b).abs().max()) if a.numel() else 0.0


def _answers(generations: Sequence[Generation]) -> list[tuple[Block, ...]]:
    return [generation.blocks for generation in generations]


def _row(blocks: Sequence[Block], answer: int) -> tuple[Block, ...]:
    """Return one answer of its group."""

    def cut(block: Block) -> Block:
        rows = slice(answer, answer + 1)
        labels = None if block.labels is None else block.labels[rows]
        return replace(block, tokens=block.tokens[rows], sampled=block.sampled[rows],
                       behaviour_logp=block.behaviour_logp[rows], labels=labels)  # fmt: skip

    return tuple(cut(block) for block in blocks)


# -- the checks -------------------------------------------------------------------------------------------------------


def behaviour_is_scored(subject: Subject) -> Finding:
    """1: log-probs from sampling equal those from teacher forcing."""
    worst = 0.0
    for sampling in (Sampling(max_steps=subject.steps), subject.warm):
        generations = subject.sampled(sampling)
        for number, logp in enumerate(subject.scored(subject.prompts, _answers(generations), sampling)):
            row = 0
            for generation in generations:
                block = generation.blocks[number]
                answers, steps = block.tokens.shape[:2]
                worst = max(worst, _apart(logp[row : row + answers, :steps], block.behaviour_logp))
                row += answers
    return Finding("1 sampled log-probs are the scored ones", worst <= subject.tolerance, f"{worst:.2e} nats apart at most")


def batch_is_one_by_one(subject: Subject) -> Finding:
    """2: neighbours change nothing, neither in sampling nor in scoring."""
    generations, worst, other_tokens = subject.sampled(subject.warm), 0.0, 0
    together = flat(subject.scored(subject.prompts, _answers(generations), subject.warm))
    for number, (prompt, generation) in enumerate(zip(subject.prompts, generations, strict=True)):
        rows = together[number * subject.group : (number + 1) * subject.group].sum(1)
        alone = flat(subject.scored([prompt], [generation.blocks], subject.warm)).sum(1)
        worst = max(worst, _apart(rows, alone) / subject.steps)
        seeds = subject.seeds(len(subject.prompts), subject.group)[number]
        (again,) = subject.policy.generate(SampleRequest([prompt], [seeds], subject.warm))
        other_tokens += sum(not _same(a, b) for a, b in zip(generation.blocks, again.blocks, strict=True))
    # In half precision two nearly equal probabilities may swap; the log-probs of the same tokens may not.
    same = other_tokens == 0 or subject.tolerance > 0.05
    detail = f"{worst:.2e} nats a step apart, {other_tokens} groups with other tokens"
    return Finding("2 a batch is its prompts one by one", worst <= subject.tolerance and same, detail)


def group_shares_a_prefill(subject: Subject) -> Finding:
    """3: an answer depends on its own seed, and not on how many are drawn beside it."""
    seeds = subject.seeds(1, subject.group)[0]
    (group,) = subject.policy.generate(SampleRequest(subject.prompts[:1], [seeds], subject.warm))
    other = 0
    for answer, seed in enumerate(seeds):
        (alone,) = subject.policy.generate(SampleRequest(subject.prompts[:1], [[seed]], subject.warm))
        other += any(not _same(a, b) for a, b in zip(_row(group.blocks, answer), alone.blocks, strict=True))
    ok = other == 0 or (None if subject.tolerance > 0.05 else False)
    return Finding("3 a group is its answers one by one", ok, f"{other} of {len(seeds)} answers differ")


def masks_hold(subject: Subject) -> Finding:
    """4a: tokens that were not sampled have log-prob 0, and the log-prob recorded for them is ignored."""
    generations = subject.sampled(subject.warm)
    forced, leaked = 0, 0.0
    scored = subject.scored(subject.prompts, _answers(generations), subject.warm)
    noisy = [
        tuple(
            replace(block, behaviour_logp=np.where(block.sampled, block.behaviour_logp, -50.0)) for block in generation.blocks
        )
        for generation in generations
    ]
    again = subject.scored(subject.prompts, noisy, subject.warm)
    for number, logp in enumerate(scored):
        row = 0
        for generation in generations:
            block = generation.blocks[number]
            part = logp[row : row + len(block.tokens), : block.tokens.shape[1]].cpu().numpy()
            leaked = max(leaked, float(np.abs(part[~block.sampled]).max(initial=0)))
            leaked = max(leaked, float(np.abs(block.behaviour_logp[~block.sampled]).max(initial=0)))
            forced += int((~block.sampled).sum())
            row += len(block.tokens)
        leaked = max(leaked, _apart(logp, again[number]))
    return Finding(
        "4 forced tokens have no log-prob", leaked == 0, f"{forced} forced or padded entries, {leaked:.2e} nats in them"
    )


def tokens_are_causal(subject: Subject) -> Finding:
    """4b: another token at a step leaves every earlier step as it was (a depth decoder without a mask does not)."""
    (group,) = subject.policy.generate(SampleRequest(subject.prompts[:1], subject.seeds(1, subject.group), subject.warm))
    longest = int(np.argmax(group.blocks[0].sampled.any(2).sum(1)))
    blocks = _row(group.blocks, longest)
    before = subject.scored(subject.prompts[:1], [blocks], subject.warm)
    backward, forward, changed = 0.0, 0.0, 0
    for number, block in enumerate(blocks):
        for _, step, slot in np.argwhere(block.sampled):
            tokens = block.tokens.copy()
            alike = tokens[..., slot][block.sampled[..., slot] & (tokens[..., slot] != tokens[0, step, slot])]
            if not len(alike):
                continue
            tokens[0, step, slot] = alike[0]
            other = tuple(replace(b, tokens=tokens) if n == number else b for n, b in enumerate(blocks))
            after = subject.scored(subject.prompts[:1], [other], subject.warm)
            backward = max(backward, _apart(after[number][:, :step], before[number][:, :step]))
            # Nor may a slot see those that are drawn after it.
            backward = max(backward, _apart(after[number][:, step, :slot], before[number][:, step, :slot]))
            forward = max(forward, _apart(after[number][:, step + 1 :], before[number][:, step + 1 :]))
            changed += 1
    if not changed:
        return Finding("4 the past does not see the future", None, "all tokens of the answer are the same")
    ok = backward <= subject.tolerance * 1e-2 and forward > 0
    return Finding("4 the past does not see the future", ok,
                   f"{changed} tokens changed: {backward:.2e} nats backward, {forward:.2e} forward")  # fmt: skip


def adapters_learn(subject: Subject) -> Finding:
    """5: a gradient on every LoRA matrix, of every branch (detached logits have none)."""
    generations = subject.sampled(subject.warm)
    with _adapters(subject.policy) as matrices:
        parts = subject.policy.logprobs(subject.prompts, _answers(generations), subject.warm)
        torch.autograd.backward(torch.stack([part.sum() for part in parts]).sum())
        still = [name for name, matrix in matrices.items() if matrix.grad is None or not bool(matrix.grad.abs().max() > 0)]
        leaking = [
            name
            for name, parameter in subject.policy.model.named_parameters()
            if name not in matrices and parameter.grad is not None
        ]
    detail = f"{len(matrices)} matrices, {len(still)} without a gradient{f' ({still[0]})' if still else ''}"
    detail += f"; {len(leaking)} frozen parameters with one ({leaking[0]})" if leaking else ""
    return Finding("5 every adapter learns", bool(matrices) and not still and not leaking, detail)


def reference_stays(subject: Subject) -> Finding:
    """6a: the reference is exactly the policy from before training, and the policy comes back after it."""
    answers = _answers(subject.sampled(subject.warm))
    before = flat(subject.scored(subject.prompts, answers, subject.warm))
    with _adapters(subject.policy):
        trained = flat(subject.scored(subject.prompts, answers, subject.warm))
        with subject.policy.reference():
            held = flat(subject.scored(subject.prompts, answers, subject.warm))
        again = flat(subject.scored(subject.prompts, answers, subject.warm))
    ok = torch.equal(held, before) and torch.equal(again, trained) and not torch.equal(trained, before)
    detail = f"reference {_apart(held, before):.2e} nats from the start, training {_apart(trained, before):.2e} from it"
    return Finding("6 the reference is the policy from before", ok, detail)


def saved_is_the_same(subject: Subject, folder: Path) -> Finding:
    """6b: merged, saved under its own names and loaded, it is the same policy."""
    policy, answers = subject.policy, _answers(subject.sampled(subject.warm))
    names = list(policy.model.state_dict())
    dtype = next(policy.model.parameters()).dtype
    before = {name: value.detach().cpu().clone() for name, value in policy.model.state_dict().items()}
    policy.add_lora(2, 4)
    _perturb(policy)
    trained = flat(subject.scored(subject.prompts, answers, subject.warm))
    policy.merge_lora()
    same_names = list(policy.model.state_dict()) == names
    policy.save(folder)
    loaded = type(policy).load(folder, str(policy.device), dtype)
    again = flat(replace(subject, policy=loaded).scored(subject.prompts, answers, subject.warm))
    policy.model.load_state_dict(before)
    apart = _apart(again, trained)
    bound = max(1e-5, subject.tolerance)
    detail = f"{len(names)} tensors, names {'unchanged' if same_names else 'changed'}, {apart:.2e} nats apart"
    return Finding("6 saved and loaded it is the same", same_names and apart <= bound, detail)


def first_tokens_sum_to_one(subject: Subject) -> Finding:
    """7: a distribution is one: the probabilities of all first tokens of the first block add up to 1."""
    name = "7 probabilities add up to 1"
    slot = subject.policy.spec.slots[0]
    if slot.stop - slot.start > 4096:
        return Finding(name, None, f"{slot.stop - slot.start} ids are too many to score one by one")
    (generation,) = subject.policy.generate(SampleRequest(subject.prompts[:1], [[1]], subject.warm))
    ids = np.arange(slot.start, slot.stop)

    def first_only(block: Block, number: int) -> Block:
        rows = len(ids)
        tokens, sampled = (np.repeat(part[:1], rows, 0) for part in (block.tokens, block.sampled))
        if number == 0:
            tokens[:, 0, 0], mask = ids, np.zeros_like(sampled)
            mask[:, 0, 0] = True
            sampled = mask
        labels = None if block.labels is None else np.repeat(block.labels[:1], rows, 0)
        return Block(block.slots, tokens, sampled, np.zeros(tokens.shape), labels)

    blocks = tuple(first_only(block, number) for number, block in enumerate(generation.blocks))
    total = float(subject.scored(subject.prompts[:1], [blocks], subject.warm)[0][:, 0, 0].double().exp().sum())
    return Finding(name, abs(total - 1) < 1e-3, f"{len(ids)} first tokens: {total:.6f}")


# Of a waveform's norm, by which a batch in half precision may differ from one answer alone.
OTHERWISE_ROUNDED = 0.1


def sound_is_decoded(subject: Subject) -> Finding:
    """8: as long as its codes, the same from the same seed, each as by itself among others, and no sound of no codes."""
    name, policy = "8 sound is as long as its codes", subject.policy
    (group,) = policy.generate(SampleRequest(subject.prompts[:1], subject.seeds(1, subject.group), subject.warm))
    counts = [len(policy.decode_codes(group.blocks, answer)) for answer in range(subject.group)]
    answer = int(np.argmax(counts))
    try:
        clip, again = (policy.decode_audio(group.blocks, answer, seed=5) for _ in range(2))
        together = policy.decode_audios([(group.blocks, number, 5) for number in range(subject.group)])
    except PolicyError as error:
        return Finding(name, None, one_line(error))
    empty = tuple(replace(block, sampled=np.zeros_like(block.sampled)) for block in group.blocks)
    silent = policy.decode_audio(empty, answer, seed=5)
    same = np.array_equal(clip.samples, again.samples)
    among = together[answer].samples
    # A batch rounds otherwise; another answer's sound, or that of padding, is far from it.
    alike = among.shape == clip.samples.shape and bool(
        np.linalg.norm(among - clip.samples) <= OTHERWISE_ROUNDED * np.linalg.norm(clip.samples)
    )
    ok = same and alike and len(silent.samples) == 0 and bool(np.isfinite(clip.samples).all())
    ok = ok and clip.sample_rate_hz == policy.spec.output_rate_hz and (counts[answer] == 0) == (len(clip.samples) == 0)
    ok = ok and (not counts[answer] or policy.decode_text(group.blocks, answer) is not None)
    detail = f"{counts[answer]} codes, {clip.duration_s:.3f} s; same seed {'same' if same else 'OTHER'} sound"
    detail += f", {'same' if alike else 'OTHER'} among others"
    return Finding(name, ok, f"{detail}; no codes: {len(silent.samples)} samples")


def targets_are_scored(subject: Subject) -> Finding:
    """9: a demonstration becomes blocks that have a probability, and whose text is read back."""
    name, target = "9 a demonstration can be learned from", subject.text
    clip = sample_dialogues(subject.policy.spec.input_rate_hz)[0][0].clip
    assert clip is not None
    try:
        blocks = subject.policy.encode_target(clip, target)
    except PolicyError as error:
        return Finding(name, None, one_line(error))
    logp = flat(subject.scored(subject.prompts[:1], [blocks], Sampling()))
    text = subject.policy.decode_text(blocks, 0)
    ok = bool(torch.isfinite(logp).all()) and bool((logp < 0).any())
    return Finding(
        name,
        ok,
        f"{int(sum(block.sampled.sum() for block in blocks))} tokens, {float(logp.sum()):.1f} nats; read back as {text!r}",
    )


def layers_are_read_alike(subject: Subject) -> Finding:
    """10: a pass reads the sharded modules in one order, whatever the answers are (ranks gather them in it)."""
    name, policy = "10 every pass reads every layer", subject.policy
    every = _answers(subject.sampled(subject.warm))
    first = [tuple(_first_step(block) for block in blocks) for blocks in every]
    read: list[str] = []
    layers = [(layer, module) for layer, module in policy.model.named_modules() if re.fullmatch(policy.spec.sharded, layer)]
    hooks = [module.register_forward_pre_hook(lambda *_, layer=layer: read.append(layer)) for layer, module in layers]
    orders = []
    try:
        for count, answers in ((len(every), every), (1, every), (1, first)):
            read.clear()
            subject.scored(subject.prompts[:count], answers[:count], subject.warm)
            orders.append(tuple(read))
    finally:
        for hook in hooks:
            hook.remove()
    ok = len(set(orders)) == 1 and {layer for layer, _ in layers} == set(orders[0])
    calls = ", ".join(str(len(order)) for order in orders)
    return Finding(name, ok, f"{len(layers)} layers; calls for all answers, one group's, first steps alone: {calls}")


def parts_are_the_same(subject: Subject) -> Finding:
    """11: sampled in parts, as for speak workers, answers are those of `generate`; an answer reported as ended has ended."""
    policy, seeds = subject.policy, subject.seeds(len(subject.prompts), subject.group)
    events = policy.generate_in_parts(SampleRequest(subject.prompts, seeds, subject.warm), report_every=1)
    reports: list[AnswersSoFar] = []
    while True:
        try:
            event = next(events)
        except StopIteration as done:
            parts: list[Generation] = done.value
            break
        if isinstance(event, AnswersSoFar):
            reports.append(event)
    expected = subject.sampled(subject.warm)
    pairs = [both for part, other in zip(parts, expected, strict=True) for both in zip(part.blocks, other.blocks, strict=True)]
    others = sum(not _same(part, other) for part, other in pairs)
    apart = [_apart(part.behaviour_logp, other.behaviour_logp) for part, other in pairs if _same(part, other)]
    rows = [_row(part.blocks, answer) for part in parts for answer in range(subject.group)]
    wrong = sum(
        not all(_same(a, b) for a, b in zip(_row(report.blocks, int(number)), rows[number], strict=True))
        for report in reports
        for number in np.flatnonzero(report.ended)
    )
    detail = f"{others} of {len(pairs)} groups with other tokens, {max(apart, default=0.0):.2e} nats apart"
    detail += f"; {len(reports)} reports, {wrong} answers in them that went on"
    ok = not others and not wrong and max(apart, default=0.0) <= subject.tolerance
    return Finding("11 sampled in parts it is the same", ok, detail)


def _first_step(block: Block) -> Block:
    """Return the block's first step: as short as an answer can be."""
    labels = None if block.labels is None else block.labels[:, :1]
    return Block(block.slots, block.tokens[:, :1], block.sampled[:, :1], block.behaviour_logp[:, :1], labels)


CHECKS: tuple[Callable[[Subject], Finding], ...] = (
    behaviour_is_scored,
    batch_is_one_by_one,
    group_shares_a_prefill,
    masks_hold,
    tokens_are_causal,
    adapters_learn,
    reference_stays,
    first_tokens_sum_to_one,
    sound_is_decoded,
    targets_are_scored,
    layers_are_read_alike,
    parts_are_the_same,
)


def check_policy(subject: Subject, save_to: Path | None = None) -> Iterator[Finding]:
    """Run all checks, one after another; saving only where there is a folder for it."""
    checks: list[Callable[[Subject], Finding]] = list(CHECKS)
    if save_to is not None:
        checks.append(lambda subject: saved_is_the_same(subject, save_to))
    for check in checks:
        try:
            yield check(subject)
        except (
            ParaS2SError,
            RuntimeError,
            ValueError,
            IndexError,
            KeyError,
            TypeError,
            AttributeError,
            AssertionError,
        ) as error:
            yield Finding((check.__doc__ or "6 saved and loaded it is the same").splitlines()[0], False, one_line(error))


def _same(left: Block, right: Block) -> bool:
    """Return whether the sampled tokens are equal; what is behind the end of a group's shorter block is nothing."""
    steps = min(left.tokens.shape[1], right.tokens.shape[1])
    if left.sampled[:, steps:].any() or right.sampled[:, steps:].any():
        return False
    first, second = (np.where(b.sampled, b.tokens, -1)[:, :steps] for b in (left, right))
    return np.array_equal(first, second)


def _perturb(policy: Policy) -> dict[str, Tensor]:
    """Move every LoRA matrix away from its start, by as much whatever the order of modules."""
    generator = torch.Generator().manual_seed(0)
    matrices: dict[str, Tensor] = {name: parameter for name, parameter in policy.model.named_parameters() if "lora_" in name}
    for parameter in matrices.values():
        noise = torch.randn(parameter.shape, generator=generator, dtype=torch.float32)
        parameter.data += (0.1 * noise).to(parameter)
    return matrices


@contextmanager
def _adapters(policy: Policy) -> Iterator[dict[str, Tensor]]:
    """Add adapters that do something; afterwards the policy has none, and its own weights."""
    if policy.adapters:
        raise PolicyError("the policy comes with adapters; merge them first")
    trainable = {name: parameter.requires_grad for name, parameter in policy.model.named_parameters()}
    policy.add_lora(2, 4)
    try:
        yield _perturb(policy)
    finally:
        policy.model.zero_grad()
        # Merged with empty second matrices, the base weights stay as they were, to the bit.
        for name, parameter in policy.model.named_parameters():
            if "lora_B" in name:
                parameter.data.zero_()
        policy.merge_lora()
        for name, parameter in policy.model.named_parameters():
            parameter.requires_grad_(trainable[name])
