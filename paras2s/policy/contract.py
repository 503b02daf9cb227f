"""The contract that every policy must keep, so that its samples can be learned from (docs/policies.md, "The contract").

Run on a policy with real weights by `paras2s check-policy`, on tiny random ones by the tests, and by whoever adds one.
A check gives what it measured; it raises nothing, whatever the policy does. The policy is left with the weights it came with.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from paras2s.errors import ParaS2SError, PolicyError, one_line
from paras2s.policy.base import Policy, flat
from paras2s.policy.subject import Finding, Subject, sample_dialogues
from paras2s.policy.types import AnswersSoFar, Generation, SampleRequest, Sampling
from paras2s.types import Block


def _apart(first: Tensor | np.ndarray, second: Tensor | np.ndarray) -> float:
    a, b = (torch.as_tensor(x).detach().cpu().double() for x in (first, second))
    return float((a - b).abs().max()) if a.numel() else 0.0


def _answers(generations: Sequence[Generation]) -> list[tuple[Block, ...]]:
    return [generation.blocks for generation in generations]


def _row(blocks: Sequence[Block], answer: int) -> tuple[Block, ...]:
    """Return one answer of its group."""
    return tuple(block.part([answer]) for block in blocks)


# -- the checks -------------------------------------------------------------------------------------------------------


def behaviour_is_scored(subject: Subject) -> Finding:
    """1: log-probs from sampling equal those from teacher forcing."""
    worst, longest = 0.0, 0
    for sampling in (Sampling(max_steps=max(subject.long_steps, subject.steps)), subject.warm):
        generations = subject.sampled(sampling)
        longest = max(longest, *(block.tokens.shape[1] for generation in generations for block in generation.blocks))
        for number, logp in enumerate(subject.scored(subject.prompts, _answers(generations), sampling)):
            row = 0
            for generation in generations:
                block = generation.blocks[number]
                answers, steps = block.tokens.shape[:2]
                worst = max(worst, _apart(logp[row : row + answers, :steps], block.behaviour_logp))
                row += answers
    detail = f"{worst:.2e} nats apart at most, in answers of up to {longest} steps"
    return Finding("1 sampled log-probs are the scored ones", worst <= subject.tolerance, detail)


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
        for block, other in zip(generation.blocks, again.blocks, strict=True):
            if not _same(block, other):
                other_tokens += 1
                continue
            steps = min(block.tokens.shape[1], other.tokens.shape[1])
            worst = max(worst, _apart(block.behaviour_logp[:, :steps], other.behaviour_logp[:, :steps]))
    # In half precision two nearly equal probabilities may swap; the log-probs of the same tokens may not.
    same = other_tokens == 0 or subject.tolerance > 0.05
    detail = f"{worst:.2e} nats a step apart at most, {other_tokens} groups with other tokens"
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


def rest_is_not_needed(subject: Subject) -> Finding:
    """4c: without its second half an answer has the same log-probs in its first: an update reads no more than it pays."""
    answers = _answers(subject.sampled(subject.warm))
    full, apart, read = subject.scored(subject.prompts, answers, subject.warm), 0.0, 0
    for last in range(len(answers[0])):
        cut = [
            (
                *blocks[:last],
                blocks[last].part(steps=slice(-(-blocks[last].tokens.shape[1] // 2))),
                *(block.part(steps=slice(1)) for block in blocks[last + 1 :]),
            )
            for blocks in answers
        ]
        for number, logp in enumerate(subject.scored(subject.prompts, cut, subject.warm)[: last + 1]):
            row = 0
            for blocks in cut:
                rows, steps = slice(row, row := row + len(blocks[number].tokens)), slice(0, blocks[number].tokens.shape[1])
                apart, read = max(apart, _apart(logp[rows, steps], full[number][rows, steps])), read + steps.stop
    detail = f"{apart:.2e} nats apart in {read} steps"
    return Finding("4 what is behind is not needed", apart <= subject.tolerance, detail)


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
    first = [tuple(block.part(steps=slice(1)) for block in blocks) for blocks in every]
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


# Answers whose draws are counted, and their temperatures; those are compared with probabilities at cooler ones.
DRAWN, HOT, COOL = 128, 1.6, 0.9
# Standard errors by which draws may differ from their probabilities, and tokens of a slot that say something about it.
MAX_ERRORS, MIN_TOKENS = 5.0, 50


def draws_follow_probabilities(subject: Subject) -> Finding:
    """12: tokens are drawn with the probabilities that are recorded for them.

    Their probability at a cooler temperature, divided by the one at which they were drawn, is 1 on average, whatever the
    vocabulary. Tokens drawn from another distribution give another average, also where what is recorded agrees.
    """
    name, hot, cool = "12 draws follow their probabilities", *(Sampling(t, t, subject.steps) for t in (HOT, COOL))
    (generation,) = subject.policy.generate(SampleRequest(subject.prompts[:1], subject.seeds(1, DRAWN), hot))
    scored = [subject.scored(subject.prompts[:1], [generation.blocks], sampling) for sampling in (hot, cool)]
    errors: dict[str, float] = {}
    for block, drawn, cooler in zip(generation.blocks, *scored, strict=True):
        ratios = (cooler - drawn).double().exp().cpu().numpy() - 1
        for slot, slot_name in enumerate(block.slots):
            ratio = ratios[..., slot][block.sampled[..., slot]]
            if len(ratio) >= MIN_TOKENS and ratio.any():
                errors[slot_name] = float(ratio.sum() / np.sqrt((ratio**2).sum()))
    if not errors:
        return Finding(name, None, f"no slot has {MIN_TOKENS} tokens in {DRAWN} answers of {subject.steps} steps")
    worst = max(errors, key=lambda slot_name: abs(errors[slot_name]))
    detail = f"{len(errors)} slots, {worst} {errors[worst]:+.1f} standard errors from 1"
    return Finding(name, abs(errors[worst]) <= MAX_ERRORS, detail)


def slopes_are_gradients(subject: Subject) -> Finding:
    """13: log-probs of each slot change along a random direction of the adapters as their gradient says.

    A pass without a gradient knows nothing of what was detached on the way: a trunk, a prompt's keys.
    """
    name, policy = "13 gradients are slopes", subject.policy
    if subject.tolerance > 0.05:
        return Finding(name, None, "half precision is too coarse for a slope: give --dtype float32")
    # Norms are in float32 in some models of float64 weights.
    width, bound = (1e-4, 1e-2) if subject.tolerance < 1e-3 else (3e-4, 0.05)
    answers, worst = _answers(subject.sampled(subject.warm)), 0.0
    with _adapters(policy) as matrices, policy.full_gradient():
        generator = torch.Generator().manual_seed(1)
        steps = [torch.randn(matrix.shape, generator=generator).to(matrix) for matrix in matrices.values()]
        parts = policy.logprobs(subject.prompts, answers, subject.warm)
        sums = [part[..., slot].sum() for part in parts for slot in range(part.shape[-1])]
        weights = list(matrices.values())
        of_sums = [torch.autograd.grad(total, weights, retain_graph=True, allow_unused=True) for total in sums]
        sides = []
        for signed in (width, -2 * width, width):
            for matrix, step in zip(matrices.values(), steps, strict=True):
                matrix.data += signed * step
            sides.append([part.double().sum((0, 1)) for part in subject.scored(subject.prompts, answers, subject.warm)])
        slopes = (torch.cat(sides[0]) - torch.cat(sides[1])).cpu() / (2 * width)
        for gradients, slope in zip(of_sums, slopes.tolist(), strict=True):
            pairs = [(gradient, step) for gradient, step in zip(gradients, steps, strict=True) if gradient is not None]
            along = sum(float((gradient * step).sum()) for gradient, step in pairs)
            size = sum(float(gradient.square().sum()) for gradient, _ in pairs) ** 0.5
            worst = max(worst, abs(along - slope) / max(size, abs(slope), 1e-9))
    return Finding(name, worst <= bound, f"{len(sums)} slots, at most {worst:.1e} of a gradient's length apart")


def answers_end(subject: Subject) -> Finding:
    """14: an answer ends at each of its end ids, and only there."""
    name, policy = "14 an answer ends at its ends", subject.policy
    if not policy.final_ids:
        return Finding(name, None, "the policy names no end ids")
    hot = Sampling(HOT, HOT, subject.steps)
    (generation,) = policy.generate(SampleRequest(subject.prompts[:1], subject.seeds(1, DRAWN), hot))
    seen, wrong = dict.fromkeys((end for ends in policy.final_ids.values() for end in ends), 0), 0
    for answer, reason in enumerate(generation.finish_reason):
        ended = spoke = False
        for block in generation.blocks:
            for slot in (number for number, slot_name in enumerate(block.slots) if slot_name in policy.final_ids):
                ids, sampled = block.tokens[answer, :, slot], block.sampled[answer]
                ends = np.flatnonzero(np.isin(ids, policy.final_ids[block.slots[slot]]) & sampled[:, slot])
                ended, spoke = ended or len(ends) > 0, spoke or bool(sampled[:, slot].any())
                for step in ends[:1]:
                    seen[int(ids[step])] += 1
                    wrong += bool(sampled[step + 1 :].any())
        wrong += reason == "eos" and spoke and not ended
    unseen = [str(end) for end, count in seen.items() if not count]
    ended_at = ", ".join(f"{count} at {end}" for end, count in seen.items() if count)
    detail = f"{ended_at or 'none'} of {DRAWN} answers; {wrong} wrong" + f"; not drawn: {', '.join(unseen)}" * bool(unseen)
    return Finding(name, (None if len(unseen) == len(seen) else True) if not wrong else False, detail)


def merged_is_the_same(subject: Subject) -> Finding:
    """6c: folded into the weights, adapters do what they did beside them."""
    policy, answers = subject.policy, _answers(subject.sampled(subject.warm))
    trainable = {name: parameter.requires_grad for name, parameter in policy.model.named_parameters()}
    policy.add_lora(2, 4)
    layers = {name: module for name, module in policy.model.named_modules() if hasattr(module, "lora_A")}
    beneath = {name: layer.get_base_layer().weight.detach().cpu().clone() for name, layer in layers.items()}
    try:
        _perturb(policy)
        trained = flat(subject.scored(subject.prompts, answers, subject.warm))
        policy.merge_lora()
        apart = _apart(flat(subject.scored(subject.prompts, answers, subject.warm)), trained)
    finally:
        if policy.adapters:
            policy.take_off_adapters()
        for name, weight in beneath.items():
            policy.model.get_parameter(f"{name}.weight").data.copy_(weight)
        for name, parameter in policy.model.named_parameters():
            parameter.requires_grad_(trainable[name])
    ok = apart <= max(1e-5, subject.tolerance)
    return Finding("6 merged it is the same", ok, f"{len(layers)} layers, {apart:.2e} nats apart")


CHECKS: tuple[Callable[[Subject], Finding], ...] = (
    behaviour_is_scored,
    batch_is_one_by_one,
    group_shares_a_prefill,
    masks_hold,
    tokens_are_causal,
    rest_is_not_needed,
    adapters_learn,
    reference_stays,
    first_tokens_sum_to_one,
    sound_is_decoded,
    targets_are_scored,
    layers_are_read_alike,
    parts_are_the_same,
    draws_follow_probabilities,
    slopes_are_gradients,
    answers_end,
    merged_is_the_same,
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
