"""Trains the reward model on a judge's scores, and measures its agreement with the judge."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property, partial

import numpy as np
import torch
from torch.nn import functional as fn

from paras2s.configs.schema.run import DistillConfig
from paras2s.errors import JudgeError
from paras2s.reward.reward_model.disorder import TAUGHT, disordered
from paras2s.reward.reward_model.model import EncodedQuestion, RewardModel, RewardModelConfig
from paras2s.train.passes import add_gradients
from paras2s.utils.seeds import Stream

# Chosen on validation queries of three seeds; a sentence's numbers have a spread of 0.36.
PROSODY_NOISE, WORDS_NOISE = 0.3, 0.75
# Share of questions that get the words of another question of their style. Words and style are independent but for the
# topic, so a few hundred clips make thousands of such pairs.
CROSSED_WORDS = 0.8
# Where in a batch each kind of pair begins, as a share of it; the first are answers to their own questions.
CROSSED_FROM, OTHERS_FROM, DISORDERED_FROM, DEGENERATE_FROM = 0.3, 0.4, 0.6, 0.88
# A shorter answer out of order may be what it was.
FEWEST_STEPS = 8
# Passes of a batch, on any number of cores: each draws its own noise, so that a seed makes the same model on one as on many.
PASSES = 4


@dataclass(frozen=True)
class ScoredAnswer:
    """One answer with the judge's score for every style of question; a style it could not score is missing.

    `question` indexes the question it was sampled for, None if another system's answer belongs to no question here;
    `scores` maps a style to 1..5; `codes` is [T, K].
    """

    question: int | None
    codes: np.ndarray
    scores: dict[str, float]


@dataclass(frozen=True)
class PreferenceSet:
    """Questions with styles, sampled answers, other systems' answers, and degenerate answers (codes), which score 1."""

    questions: tuple[EncodedQuestion, ...]
    styles: tuple[str, ...]
    answers: tuple[ScoredAnswer, ...]
    degenerate: tuple[np.ndarray, ...]

    @cached_property
    def by_style(self) -> dict[str, list[int]]:
        """Places of the questions in each style."""
        places: dict[str, list[int]] = {}
        for index, style in enumerate(self.styles):
            places.setdefault(style, []).append(index)
        return places

    @cached_property
    def own_pairs(self) -> list[tuple[int, int]]:
        """(question, answer) as sampled, where the judge scored it."""
        return [
            (a.question, row)
            for row, a in enumerate(self.answers)
            if a.question is not None and self.styles[a.question] in a.scores
        ]

    @cached_property
    def others(self) -> list[int]:
        """Places of the other systems' answers that have a score."""
        return [row for row, a in enumerate(self.answers) if a.question is None and a.scores]


def learned_codes(preferences: PreferenceSet, seed: int) -> list[np.ndarray]:
    """Return the codes that the reward model learned from: all answers, each also in a taught disorder; degenerate clips."""
    rng = np.random.default_rng([seed, Stream.REWARD_DISORDER])
    answers = [answer.codes for answer in preferences.answers]
    mixed = [disordered(TAUGHT[int(rng.integers(len(TAUGHT)))], codes, rng) for codes in answers if len(codes) >= FEWEST_STEPS]
    return [*answers, *mixed, *preferences.degenerate]


@dataclass(frozen=True)
class Batch:
    """N pairs: questions, answer codes, the judge's class 0..4 [N], the question's style [N], and for every style the
    class the judge gave the answer [N, Y], -1 where it gave none.
    """

    questions: list[EncodedQuestion]
    answers: list[np.ndarray]
    classes: torch.Tensor
    styles: torch.Tensor
    score_classes: torch.Tensor


def draw_batch(preferences: PreferenceSet, names: Sequence[str], size: int, rng: np.random.Generator) -> Batch:
    """Three in ten as sampled; then crossed pairs, other systems' answers, answers out of order, and degenerate ones.

    A crossed pair gives an answer to another question than it was sampled for. The judge has scored it for that
    question's style as well, so it costs nothing, and only listening to the question can tell such pairs apart. In three of
    four batches the question has no codes.

    Raises:
        JudgeError: the judge scored none of the answers, or all that it scored are empty.
    """
    own, others = preferences.own_pairs, preferences.others
    if not own:
        raise JudgeError("the judge scored none of the sampled answers, so there is nothing to learn from")
    if not any(len(preferences.answers[row].codes) for _, row in own):
        raise JudgeError("all sampled answers with a score are empty: the policy ends them before their first frame of sound")
    nothing = dict.fromkeys(names, 1.0)
    pairs: list[tuple[int, np.ndarray, dict[str, float]]] = []
    while len(pairs) < size:
        part = len(pairs) / size
        question, row = own[int(rng.integers(len(own)))]
        if part >= OTHERS_FROM and others and (part < DISORDERED_FROM or rng.random() < 0.5):
            row = others[int(rng.integers(len(others)))]
        codes, scores = preferences.answers[row].codes, preferences.answers[row].scores
        if part >= DEGENERATE_FROM and preferences.degenerate:
            codes, scores = preferences.degenerate[int(rng.integers(len(preferences.degenerate)))], nothing
        elif DISORDERED_FROM <= part < DEGENERATE_FROM and len(codes) >= FEWEST_STEPS:
            codes, scores = disordered(TAUGHT[int(rng.integers(len(TAUGHT)))], codes, rng), nothing
        if part >= CROSSED_FROM:
            question = int(rng.integers(len(preferences.questions)))
        if preferences.styles[question] in scores and len(codes):
            pairs.append((question, codes, scores))
    hide = rng.random() < 0.75
    styles = [preferences.styles[question] for question, _, _ in pairs]
    return Batch(
        [_augment(_with_other_words(preferences, question, rng), hide, rng) for question, _, _ in pairs],
        [codes for _, codes, _ in pairs],
        torch.tensor([round(scores[style]) - 1 for style, (_, _, scores) in zip(styles, pairs, strict=True)]),
        torch.tensor([names.index(style) for style in styles]),
        torch.tensor([[round(scores[name]) - 1 if name in scores else -1 for name in names] for _, _, scores in pairs]),
    )


def _with_other_words(preferences: PreferenceSet, index: int, rng: np.random.Generator) -> EncodedQuestion:
    """Return a question, more often than not with the words of another question in the same style."""
    question = preferences.questions[index]
    if rng.random() >= CROSSED_WORDS or not question.words_dim:
        return question
    alike = preferences.by_style[preferences.styles[index]]
    other = preferences.questions[alike[int(rng.integers(len(alike)))]]
    features = question.features.copy()
    features[:, -question.words_dim :] = other.features[0, -question.words_dim :]
    return EncodedQuestion(question.codes, features, question.words_dim)


def _augment(question: EncodedQuestion, hide_codes: bool, rng: np.random.Generator) -> EncodedQuestion:
    """Add noise to a question, and sometimes hide its codes, so that the model learns the style and not which clip it is."""
    width = question.features.shape[1]
    # Words are few hundred points in hundreds of dimensions: without noise as large as they are, each is memorised.
    size = np.where(np.arange(width) < width - question.words_dim, PROSODY_NOISE, WORDS_NOISE).astype(np.float32)
    noise = size * rng.standard_normal((1, width)).astype(np.float32)
    return EncodedQuestion(question.codes[:0] if hide_codes else question.codes, question.features + noise, question.words_dim)


def split_batch(batch: Batch, count: int) -> list[Batch]:
    """At most `count` batches of answers of like length."""
    order = sorted(range(len(batch.answers)), key=lambda row: len(batch.answers[row]))
    size = -(-len(order) // count)
    return [_rows_of(batch, order[start : start + size]) for start in range(0, len(order), size)]


def _rows_of(batch: Batch, rows: list[int]) -> Batch:
    questions, answers = [batch.questions[row] for row in rows], [batch.answers[row] for row in rows]
    return Batch(questions, answers, batch.classes[rows], batch.styles[rows], batch.score_classes[rows])


def batch_loss(model: RewardModel, batch: Batch, total: Batch, noise: torch.Generator | None) -> torch.Tensor:
    """Return the cross entropy of the score, plus that of its two parts: the style, and the answer's score for every style.

    The losses of the parts of a `total` batch add up to its loss.
    """
    style, scores = model.style_logprobs(batch.questions, noise), model.score_logprobs(batch.answers, noise)
    score = (style[..., None] + scores).logsumexp(1)
    known = (total.score_classes >= 0).sum()
    parts = fn.nll_loss(scores.flatten(0, 1), batch.score_classes.flatten(), ignore_index=-1, reduction="sum") / known
    of_pairs = fn.nll_loss(score, batch.classes, reduction="sum") + fn.nll_loss(style, batch.styles, reduction="sum")
    return of_pairs / len(total.answers) + parts


def train_reward_model(
    preferences: PreferenceSet,
    codebook_sizes: tuple[int, ...],
    code_vectors: np.ndarray,
    config: DistillConfig,
    seed: int,
    on_step: Callable[[int, float], None],
) -> RewardModel:
    """AdamW on `batch_loss`, one cycle; `code_vectors` [C, D] say what the codes sound like."""
    torch.manual_seed(seed)
    sizes = RewardModelConfig(
        codebook_sizes=codebook_sizes,
        code_dim=code_vectors.shape[1],
        feature_dim=preferences.questions[0].features.shape[1],
        styles=tuple(sorted(set(preferences.styles))),
        hidden_size=config.hidden_size,
        layers=config.layers,
    )
    model = RewardModel(sizes, code_vectors)
    optimiser = torch.optim.AdamW(model.parameters(), lr=config.lr, weight_decay=0.05, fused=True)
    # The rise of `OneCycleLR` lasts a step less than this share of all, and it divides by that: of ten steps, by 0.
    rise = 0.11 if config.steps == 10 else 0.1
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimiser, config.lr, total_steps=config.steps, pct_start=rise)
    rng = np.random.default_rng([seed, Stream.REWARD_ORDER])
    noises = [
        torch.Generator().manual_seed(int(state))
        for state in np.random.SeedSequence([seed, Stream.REWARD_NOISE]).generate_state(PASSES)
    ]
    model.train()

    def pass_of(part: Batch, total: Batch, noise: torch.Generator) -> tuple[torch.Tensor, float]:
        loss = batch_loss(model, part, total, noise)
        return loss, loss.item()

    for step in range(config.steps):
        batch = draw_batch(preferences, sizes.styles, config.batch_size, rng)
        parts = zip(split_batch(batch, PASSES), noises, strict=False)
        passes = [partial(pass_of, part, batch, noise) for part, noise in parts]
        optimiser.zero_grad()
        losses = add_gradients(passes, list(model.parameters()), torch.get_num_threads())
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimiser.step()
        schedule.step()
        on_step(step, sum(losses))
    return model.eval()


def fit_baseline(known: Sequence[float], scores: Sequence[float], queries: Sequence[float]) -> list[float]:
    """Predict scores linearly from a number, or by the commonest score if it is constant. Raises JudgeError: no scores."""
    if not scores:
        raise JudgeError("the judge scored none of the sampled answers, so no baseline can be fitted")
    if len(set(known)) < 2:
        values, counts = np.unique(np.asarray(scores), return_counts=True)
        return [float(values[np.argmax(counts)])] * len(queries)
    slope, start = np.polyfit(known, scores, 1)
    return [float(slope * query + start) for query in queries]


def agreement(predicted: Sequence[float], judged: Sequence[float]) -> dict[str, float | int | None]:
    """Return Pearson and Spearman with the judge and the mean absolute error; correlations are None if a side is constant."""
    from scipy import stats

    known = len(judged) > 2 and len(set(judged)) > 1 and len(set(predicted)) > 1
    return {
        "n": len(judged),
        "pearson": float(stats.pearsonr(predicted, judged)[0]) if known else None,
        "spearman": float(stats.spearmanr(predicted, judged)[0]) if known else None,
        "mean_absolute_error": float(np.mean(np.abs(np.subtract(predicted, judged)))) if judged else None,
    }
