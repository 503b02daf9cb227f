"""Checks of trained weights on recorded question-answer pairs, which say whether this is the model that its makers trained.

The contract (`contract.py`) holds for any weights, also for random ones and for a network read with wrong settings. These
checks do not: trained weights expect a recorded answer to its own question more than another's, fit their own settings better
than other ones, and speak what they write. They need no code of the makers; `official.py` compares with what that gave.

Left out: languages without spaces between words, since word errors count words of a-z.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch

from paras2s.audio.clip import Clip, read_clip
from paras2s.errors import AssetError, PolicyError, one_line
from paras2s.policy.base import Policy
from paras2s.policy.subject import Finding
from paras2s.policy.types import Prompt, SampleRequest, Sampling, Turn
from paras2s.types import Block
from paras2s.utils.io import read_rows

# A uniform guess over a slot's ids has 1 here. Trained models are far below, random weights are at or above it.
MAX_SHARE_OF_UNIFORM = 0.75
# A difference counts where Wilcoxon's signed-rank test over pairs gives at most this: about twenty settings are tried at once,
# and a few answers that change much say less than all that change a little.
MAX_P = 0.005
# And is this share of the answers' nats: settings that hardly matter lie on either side of the best by as little.
MIN_SHARE_BETTER = 0.01
# With fewer, no difference could count.
MIN_PAIRS = 8
MAX_WORD_ERRORS = 0.3
# Word errors that codes and decoder may add to those of the recording itself.
MAX_ADDED_WORD_ERRORS = 0.15
# Pairs scored at once.
AT_ONCE = 4

Recognise = Callable[[Sequence[Clip]], list[str]]


@dataclass(frozen=True)
class Pair:
    """A spoken question and a recorded answer to it with its words, neither made by the policy."""

    name: str
    question: Clip
    answer: Clip
    text: str


def read_pairs(path: Path) -> list[Pair]:
    """Read pairs of a JSON Lines file: `question` and `answer` are clips, named from its folder, `text` is what is answered.

    Raises:
        DataError: the file cannot be read. PolicyError: a line is no pair, or there are fewer than eight. AudioError: a clip
            cannot be read.
    """
    pairs: list[Pair] = []
    for number, row in read_rows(path):
        try:
            question, answer, text = (str(row[key]) for key in ("question", "answer", "text"))
        except (ValueError, KeyError, TypeError) as error:
            raise PolicyError(f"{path}:{number}: not an object with question, answer and text ({error})") from error
        pairs.append(Pair(question, read_clip(path.parent / question), read_clip(path.parent / answer), text))
    if len(pairs) < MIN_PAIRS:
        raise PolicyError(f"{path}: {len(pairs)} pairs; give at least {MIN_PAIRS}, better 20, of different questions")
    return pairs


@dataclass(frozen=True)
class _Scored:
    """Nats of each answer [n] and of each of its slots [n, S], and how many tokens those are [n, S]."""

    nats: np.ndarray
    counts: np.ndarray

    @property
    def total(self) -> np.ndarray:
        return self.nats.sum(1)


class PairScorer:
    """Negative log-probs of the pairs' answers, behind their own or other questions."""

    def __init__(self, policy: Policy, pairs: Sequence[Pair]) -> None:
        self.policy, self.pairs = policy, pairs
        self.prompts = [policy.encode_prompt([Turn("user", clip=pair.question)]) for pair in pairs]

    def targets(self) -> list[tuple[Block, ...]]:
        """Return the answers as blocks, laid out by the settings that the policy has now."""
        return [self.policy.encode_target(pair.answer, pair.text) for pair in self.pairs]

    def score(self, prompts: Sequence[Prompt], targets: Sequence[tuple[Block, ...]]) -> _Scored:
        """Score each target behind the prompt with the same index."""
        nats, counts = [], []
        for start in range(0, len(prompts), AT_ONCE):
            batch = list(targets[start : start + AT_ONCE])
            with torch.no_grad():
                parts = self.policy.logprobs(prompts[start : start + AT_ONCE], batch, Sampling())
            nats.append(np.concatenate([-part.double().sum(1).cpu().numpy() for part in parts], 1))
            counts += [np.concatenate([block.sampled[0].sum(0) for block in blocks]) for blocks in batch]
        return _Scored(np.concatenate(nats), np.array(counts))


def answers_are_expected(policy: Policy, scored: _Scored) -> Finding:
    """T1: an answer costs far fewer nats than a uniform guess, in every slot."""
    slots, tokens = policy.spec.slots, scored.counts.sum(0)
    shares = [
        float(nats / max(count, 1)) / math.log(slot.stop - slot.start)
        for nats, count, slot in zip(scored.nats.sum(0), tokens, slots, strict=True)
    ]
    detail = ", ".join(
        f"{slot.name} {float(nats / max(count, 1)):.2f} nats a token over {int(count)} ({share:.0%} of a uniform guess)"
        for slot, nats, count, share in zip(slots, scored.nats.sum(0), tokens, shares, strict=True)
    )
    return Finding("T1 recorded answers are expected", all(share <= MAX_SHARE_OF_UNIFORM for share in shares), detail)


def questions_matter(own: _Scored, others: _Scored) -> Finding:
    """T2: an answer costs fewer nats behind its own question than behind another's."""
    gain = others.total - own.total
    detail = f"{gain.mean():+.2f} nats an answer for its own question, better in {int((gain > 0).sum())} of {len(gain)}"
    return Finding("T2 an answer fits its own question", is_above_zero(gain), detail)


def settings_fit(scorer: PairScorer, targets: Sequence[tuple[Block, ...]], own: _Scored) -> Finding:
    """T3: no setting beside the checkpoint's own makes the answers more probable; a setting that does not matter is named."""
    name = "T3 no other setting fits better"
    better, alike, worse = [], [], 0
    for altered in scorer.policy.alterations():
        with altered.applied():
            answers = scorer.targets() if altered.lays_out_answers else targets
            scored = scorer.score([altered.prompt(prompt) for prompt in scorer.prompts], answers)
        loss = scored.total - own.total
        if is_above_zero(-loss) and -loss.mean() > MIN_SHARE_BETTER * own.total.mean():
            better.append(f"{altered.name} ({-loss.mean():.2f} nats an answer better)")
        elif not is_above_zero(loss):
            alike.append(f"{altered.name} ({loss.mean():+.2f} nats, worse in {int((loss > 0).sum())} of {len(loss)})")
        else:
            worse += 1
    if not better and not alike and not worse:
        return Finding(name, None, f"{type(scorer.policy).__name__} names no settings to try")
    detail = f"{worse} tried settings are worse"
    detail += f"; BETTER: {', '.join(better)}" if better else ""
    detail += f"; no difference seen: {', '.join(alike)}" if alike else ""
    return Finding(name, not better and worse > 0, detail)


def sound_says_the_text(policy: Policy, prompts: Sequence[Prompt], recognise: Recognise) -> Finding:
    """T4: words that are recognised in the decoded sound are those of the text stream, over answers that the policy samples."""
    name = "T4 sound says the text"
    said, clips = [], []
    for number, prompt in enumerate(prompts):
        (generation,) = policy.generate(SampleRequest([prompt], [[number]], policy.sampling))
        text, clip = policy.decode_text(generation.blocks, 0), policy.decode_audio(generation.blocks, 0, number)
        # An answer cut at the step limit has text that it did not come to speak.
        if generation.finish_reason[0] != "length":
            said.append(text)
            clips.append(clip)
    if len(clips) < len(prompts) / 2:
        few = f"{len(clips)} of {len(prompts)} answers end within {policy.sampling.max_steps} steps, less than half"
        return Finding(name, False, few)
    errors = pooled_word_errors(said, recognise(clips))
    if errors is None:
        return Finding(name, None, f"{len(said)} answers hold no words of a-z")
    detail = f"{errors:.1%} word errors over {len(said)} of {len(prompts)} answers, the others cut at the step limit"
    return Finding(name, errors <= MAX_WORD_ERRORS, detail)


def speech_survives_codes(policy: Policy, pairs: Sequence[Pair], recognise: Recognise) -> Finding:
    """T5: recorded answers, coded and decoded again, are recognised nearly as well as before."""
    texts = [pair.text for pair in pairs]
    coded = [policy.decode_audio(policy.encode_target(pair.answer, pair.text), 0, 0) for pair in pairs]
    before = pooled_word_errors(texts, recognise([pair.answer for pair in pairs]))
    after = pooled_word_errors(texts, recognise(coded))
    name = "T5 speech survives its codes"
    if before is None or after is None:
        return Finding(name, None, "the answers' texts hold no words of a-z")
    detail = f"{after:.1%} word errors after codes and decoder, {before:.1%} in the recordings, over {len(pairs)} answers"
    return Finding(name, after - before <= MAX_ADDED_WORD_ERRORS, detail)


def pooled_word_errors(references: Sequence[str], hypotheses: Sequence[str]) -> float | None:
    """Return the word errors of all texts together, each weighed by its words; None if the references hold no word."""
    from paras2s.audio.asr import countable_words, word_error_rate

    words = [len(countable_words(text).split()) for text in references]
    if not sum(words):
        return None
    errors = [
        count * word_error_rate(reference, hypothesis) if count else len(countable_words(hypothesis).split())
        for count, reference, hypothesis in zip(words, references, hypotheses, strict=True)
    ]
    return sum(errors) / sum(words)


def recognised(clips: Sequence[Clip]) -> list[str]:
    """Whisper's words; a clip without samples has none."""
    from paras2s.audio.asr import transcribe

    spoken = [clip for clip in clips if len(clip.samples)]
    texts = iter(transcribe(spoken))
    return [next(texts).text if len(clip.samples) else "" for clip in clips]


def check_trained(policy: Policy, pairs: Sequence[Pair], recognise: Recognise = recognised) -> Iterator[Finding]:
    """Run all checks above; a check that the policy or this machine cannot do is left out, with the reason."""
    scorer = PairScorer(policy, pairs)
    try:
        targets = scorer.targets()
    except PolicyError as error:
        for name in (
            "T1 recorded answers are expected",
            "T2 an answer fits its own question",
            "T3 no other setting fits better",
        ):
            yield Finding(name, None, one_line(error))
    else:
        own = scorer.score(scorer.prompts, targets)
        yield answers_are_expected(policy, own)
        yield questions_matter(own, scorer.score([*scorer.prompts[1:], scorer.prompts[0]], targets))
        yield settings_fit(scorer, targets, own)
    spoken: tuple[tuple[str, Callable[[], Finding]], ...] = (
        ("T4 sound says the text", lambda: sound_says_the_text(policy, scorer.prompts, recognise)),
        ("T5 speech survives its codes", lambda: speech_survives_codes(policy, pairs, recognise)),
    )
    for name, check in spoken:
        try:
            yield check()
        except (PolicyError, AssetError) as error:
            yield Finding(name, None, one_line(error))


def is_above_zero(values: np.ndarray) -> bool:
    """Return whether differences over pairs are above 0 by more than chance."""
    from scipy.stats import wilcoxon

    return bool(np.any(values)) and float(wilcoxon(values, alternative="greater").pvalue) <= MAX_P
