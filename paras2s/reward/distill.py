"""Teaching the reward model a judge's scores, and measuring how well it learned them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import torch

from paras2s.config import DistillConfig
from paras2s.reward.model import HeardQuestion, RewardModel, RewardModelConfig


@dataclass(frozen=True)
class ScoredAnswer:
    """One sampled answer with the judge's score for every style of question; a style it could not score is missing.

    `question` indexes the question it was given to; `scores` maps a style to 1..5; `codes` is [T, K].
    """

    question: int
    codes: np.ndarray
    scores: dict[str, float]


@dataclass(frozen=True)
class PreferenceSet:
    """Questions with their styles, the answers sampled for them, and degenerate answers (codes), which are worth 1."""

    questions: tuple[HeardQuestion, ...]
    styles: tuple[str, ...]
    answers: tuple[ScoredAnswer, ...]
    degenerate: tuple[np.ndarray, ...]

    def own_pairs(self) -> list[tuple[int, int]]:
        """(question, answer) as sampled, where the judge scored it."""
        return [(a.question, row) for row, a in enumerate(self.answers) if self.styles[a.question] in a.scores]


def draw_batch(
    preferences: PreferenceSet, size: int, rng: np.random.Generator
) -> tuple[list[HeardQuestion], list[np.ndarray], list[int]]:
    """Questions, answer codes and classes 0..4: a half as sampled, three eighths crossed, an eighth degenerate.

    A crossed pair gives an answer to another question than it was sampled for. The judge has scored it for that
    question's style as well, so it costs nothing, and only listening to the question can tell such pairs apart.
    """
    own = preferences.own_pairs()
    questions: list[HeardQuestion] = []
    answers: list[np.ndarray] = []
    classes: list[int] = []
    while len(classes) < size:
        part = len(classes) / size
        question, row = own[int(rng.integers(len(own)))]
        codes = preferences.answers[row].codes
        score: float | None = preferences.answers[row].scores[preferences.styles[question]]
        if part >= 0.875 and preferences.degenerate:
            codes, score = preferences.degenerate[int(rng.integers(len(preferences.degenerate)))], 1.0
        elif part >= 0.5:
            question = int(rng.integers(len(preferences.questions)))
            score = preferences.answers[row].scores.get(preferences.styles[question])
        if score is not None and len(codes):
            questions.append(_blur(preferences.questions[question], rng))
            answers.append(codes)
            classes.append(round(score) - 1)
    return questions, answers, classes


def _blur(question: HeardQuestion, rng: np.random.Generator) -> HeardQuestion:
    """Few questions are known by heart soon: shake the features, and now and then withhold the codes' order."""
    noise = rng.standard_normal((1, question.features.shape[1])).astype(np.float32)
    codes = question.codes[rng.permutation(len(question.codes))] if rng.random() < 0.5 else question.codes
    return HeardQuestion(codes, question.features + 0.3 * noise)


def train_reward_model(
    preferences: PreferenceSet,
    codebook_sizes: tuple[int, ...],
    config: DistillConfig,
    seed: int,
    on_step: Callable[[int, float], None],
) -> RewardModel:
    """Cross entropy on the judge's score, AdamW, cosine schedule."""
    torch.manual_seed(seed)
    sizes = RewardModelConfig(
        codebook_sizes=codebook_sizes,
        feature_dim=preferences.questions[0].features.shape[1],
        hidden_size=config.hidden_size,
        layers=config.layers,
    )
    model = RewardModel(sizes)
    optimiser = torch.optim.AdamW(model.parameters(), lr=config.learning_rate, weight_decay=0.05)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimiser, config.learning_rate, total_steps=config.steps, pct_start=0.1)
    rng = np.random.default_rng([seed, 7])
    model.train()
    for step in range(config.steps):
        questions, answers, classes = draw_batch(preferences, config.batch_size, rng)
        loss = torch.nn.functional.cross_entropy(model(questions, answers), torch.tensor(classes))
        optimiser.zero_grad()
        torch.autograd.backward(loss)
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimiser.step()
        schedule.step()
        on_step(step, loss.item())
    return model.eval()


def agreement(predicted: Sequence[float], judged: Sequence[float]) -> dict[str, float | int | None]:
    """Pearson and Spearman with the judge and the mean absolute error; correlations are None where a side is constant."""
    from scipy import stats

    known = len(judged) > 2 and len(set(judged)) > 1 and len(set(predicted)) > 1
    return {
        "n": len(judged),
        "pearson": float(stats.pearsonr(predicted, judged)[0]) if known else None,
        "spearman": float(stats.spearmanr(predicted, judged)[0]) if known else None,
        "mean_absolute_error": float(np.mean(np.abs(np.subtract(predicted, judged)))) if judged else None,
    }
