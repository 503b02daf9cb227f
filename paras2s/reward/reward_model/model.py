"""`RewardModel`: a small transformer over a question's and an answer's codec tokens with a five-way score.

It is distilled from a judge by cross entropy on its score (ParaS2S, section 4.2) and scores by the expected value. It
predicts the question's style, and the answer's score for each style, and mixes them:
P(score | question, answer) = sum over styles of P(style | question) P(score | style, answer).
Trained as one black box on a few hundred questions, the same network learned neither part.
Of the question it reads codes and continuous features, as the policy does; of the answer it reads codes alone. It reads
codes by what they sound like (`code_vectors`), not by their names: the next reading of a sentence shares hardly a code with
the last. Neighbouring steps are read together, and no mean over all of them, which is the same in any order.
An answer unlike all that it learned from gets no score where scores are paid (`score_known`; see `known_range`).
Alphabet: N pairs, T steps, K codebooks, C codes of all codebooks, D numbers of a step, F features, Y styles.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from pydantic import BaseModel, ConfigDict
from torch import Tensor, nn

from paras2s.errors import JudgeError, checking
from paras2s.reward.reward_model.known_range import KnownRange
from paras2s.types import Unscored
from paras2s.utils.io import read_json, reading, write_bytes, write_json

SCORES = torch.arange(1.0, 6.0)
MAX_STEPS = 160
# Rows that are padded to one length.
ROWS_AT_ONCE = 16
# Of a step's numbers while it learns: for all steps of a clip, and for each alone.
CLIP_NOISE, STEP_NOISE = 0.2, 0.2


@dataclass(frozen=True)
class EncodedQuestion:
    """A question as the reward model reads it: codes [T, K] and features [T, F], the last `words_dim` of them of its words."""

    codes: np.ndarray
    features: np.ndarray
    words_dim: int = 0


class RewardModelConfig(BaseModel):
    """Sizes."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    codebook_sizes: tuple[int, ...]
    code_dim: int
    feature_dim: int
    styles: tuple[str, ...]
    hidden_size: int
    layers: int


class _Neighbours(nn.Module):
    """Adds to each step what it makes of itself and the steps beside it."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.mix = nn.Conv1d(width, width, 3, padding=1)

    def forward(self, x: Tensor, mask: Tensor) -> Tensor:
        """Return [N, T, width], as x is; zero where mask [N, T] is False, as x must be."""
        kept = mask[..., None]
        mixed = self.mix((self.norm(x) * kept).transpose(1, 2)).transpose(1, 2)
        return x + nn.functional.gelu(mixed) * kept


class RewardModel(nn.Module):
    """Scores answers from 1 to 5 and gives no reason. `code_vectors` [C, D] are stored with it; None: they are loaded.

    `known` are the answers that it learned from (`learned_from`); None while it is trained.
    """

    name = "reward_model"

    def __init__(self, config: RewardModelConfig, code_vectors: np.ndarray | None = None) -> None:
        super().__init__()
        self.config = config
        self.known: KnownRange | None = None
        width = config.hidden_size
        self.offsets: Tensor
        self.register_buffer("offsets", torch.tensor([0, *np.cumsum(config.codebook_sizes)[:-1].tolist()]), persistent=False)
        shape = sum(config.codebook_sizes), config.code_dim
        vectors = torch.zeros(shape) if code_vectors is None else torch.from_numpy(code_vectors.astype(np.float32))
        if vectors.shape != shape:
            raise ValueError(f"code vectors {list(vectors.shape)} for {shape[0]} codes of {shape[1]} numbers")
        self.code_vectors: Tensor
        self.register_buffer("code_vectors", vectors)
        self.sounds = nn.Linear(config.code_dim, width)
        self.neighbours = nn.ModuleList(_Neighbours(width) for _ in range(2))
        self.features = nn.Sequential(nn.Linear(config.feature_dim, width), nn.GELU(), nn.Linear(width, width))
        self.start = nn.Parameter(torch.zeros(width))
        self.place = nn.Embedding(MAX_STEPS, width)
        # Without dropout: drawing its masks would take longer than everything else on a CPU.
        layer = nn.TransformerEncoderLayer(width, 4, 3 * width, 0.0, "gelu", batch_first=True, norm_first=True)
        self.encoder = nn.TransformerEncoder(layer, config.layers, enable_nested_tensor=False)
        self.style_head = nn.Sequential(nn.LayerNorm(width), nn.Linear(width, len(config.styles)))
        self.score_head = nn.Sequential(nn.LayerNorm(width), nn.Linear(width, 5 * len(config.styles)))
        nn.init.normal_(self.place.weight, std=0.1)

    def style_logprobs(self, questions: Sequence[EncodedQuestion], noise: torch.Generator | None = None) -> Tensor:
        """Return log-probs [N, Y] of each question's style; a question may come without its codes. `noise` while it learns."""
        # One position for the features' mean: step by step they would identify the clip, and be memorised.
        means = torch.from_numpy(np.stack([question.features.mean(0) for question in questions]).astype(np.float32))
        encoded = self._encode(self.features(means)[:, None], [question.codes for question in questions], noise)
        return self.style_head(encoded).log_softmax(-1)

    def score_logprobs(self, answers: Sequence[np.ndarray], noise: torch.Generator | None = None) -> Tensor:
        """Return log-probs [N, Y, 5] of each answer's score for each style; answers have at least one step."""
        return self._read_scores(self.answer_states(answers, noise))

    def answer_states(self, answers: Sequence[np.ndarray], noise: torch.Generator | None = None) -> Tensor:
        """Return the normalised states [N, width] that the scores are read from; answers have at least one step."""
        return self.score_head[0](self._encode(self.start.expand(len(answers), 1, -1), answers, noise))

    def _read_scores(self, states: Tensor) -> Tensor:
        """Return the log-probs [N, Y, 5] from states [N, width]."""
        return self.score_head[1](states).view(len(states), len(self.config.styles), 5).log_softmax(-1)

    def forward(self, questions: Sequence[EncodedQuestion], answers: Sequence[np.ndarray]) -> Tensor:
        """Return the log-probs [N, 5] over the scores 1 to 5."""
        return (self.style_logprobs(questions)[..., None] + self.score_logprobs(answers)).logsumexp(1)

    def _encode(self, start: Tensor, codes: Sequence[np.ndarray], noise: torch.Generator | None) -> Tensor:
        """Return the first position's state [N, width] after attention over the codes."""
        # In order of length: one answer said three times would pad all others of its batch to its length.
        order = torch.tensor(sorted(range(len(codes)), key=lambda row: len(codes[row])))
        parts = torch.split(order, ROWS_AT_ONCE)
        states = [self._encode_alike(start[rows], [codes[row] for row in rows.tolist()], noise) for rows in parts]
        return torch.cat(states)[order.argsort()]

    def _encode_alike(self, start: Tensor, codes: Sequence[np.ndarray], noise: torch.Generator | None) -> Tensor:
        """Return the same for codes of equal length."""
        steps, mask = self._steps(codes)
        if noise is not None:
            of_clips = torch.randn(len(codes), 1, steps.shape[2], generator=noise)
            steps = steps + CLIP_NOISE * of_clips + STEP_NOISE * torch.randn(steps.shape, generator=noise)
        x = self.sounds(steps) * mask[..., None]
        for layer in self.neighbours if x.shape[1] else ():
            x = layer(x, mask)
        x = torch.cat([start, x + self.place.weight[: x.shape[1]]], 1)
        mask = torch.cat([torch.ones(len(codes), 1, dtype=torch.bool), mask], 1)
        return self.encoder(x, src_key_padding_mask=~mask)[:, 0]

    def _steps(self, codes: Sequence[np.ndarray]) -> tuple[Tensor, Tensor]:
        """Return the sound of steps [N, T, D], and which are no padding [N, T]."""
        longest = min(MAX_STEPS, max(len(answer) for answer in codes))
        ids = np.zeros((len(codes), longest, len(self.config.codebook_sizes)), dtype=np.int64)
        mask = np.zeros((len(codes), longest), dtype=bool)
        for row, answer in enumerate(codes):
            ids[row, : len(answer)], mask[row, : len(answer)] = answer[:longest], True
        return self.code_vectors[torch.from_numpy(ids) + self.offsets].sum(2), torch.from_numpy(mask)

    def score(self, questions: Sequence[EncodedQuestion], answers: Sequence[np.ndarray]) -> list[float]:
        """Return the expected score of each answer, known or not; one without a single step scores 1, since it is silent."""
        return self._score(questions, answers)[0]

    def score_known(self, questions: Sequence[EncodedQuestion], answers: Sequence[np.ndarray]) -> list[float | Unscored]:
        """Return the same; Unscored where a clip is longer than the model reads, and for an answer unlike all it learned from.

        Raises:
            JudgeError: the model does not know what it learned from.
        """
        if self.known is None:
            raise JudgeError("the reward model does not know which answers it learned from; run `paras2s distill` again")
        limit, why = (
            self.known.limit,
            "unlike the answers that the model learned from: {:.2f} from the nearest, known up to {:.2f}",
        )
        scored = zip(questions, answers, *self._score(questions, answers), strict=True)
        scores: list[float | Unscored] = []
        for question, answer, value, distance in scored:
            reason = "" if distance <= limit else why.format(distance, limit)
            for name, codes in (("answer", answer), ("question", question.codes)):
                if len(codes) > MAX_STEPS:
                    reason = f"the {name} has {len(codes)} steps, and this model reads {MAX_STEPS}"
            scores.append(Unscored(self.name, reason) if reason else value)
        return scores

    @torch.inference_mode()
    def _score(self, questions: Sequence[EncodedQuestion], answers: Sequence[np.ndarray]) -> tuple[list[float], list[float]]:
        """Return expected scores, and distances to the nearest answer learned from; 0 for silence, and without `known`."""
        self.eval()
        scores, distances = [1.0] * len(answers), [0.0] * len(answers)
        spoken = [row for row, answer in enumerate(answers) if len(answer)]
        if spoken:
            states = self.answer_states([answers[row] for row in spoken])
            style = self.style_logprobs([questions[row] for row in spoken])
            expected = (style[..., None] + self._read_scores(states)).logsumexp(1).exp() @ SCORES
            far = states.new_zeros(len(spoken)) if self.known is None else self.known.distances(states)
            for row, value, distance in zip(spoken, expected.tolist(), far.tolist(), strict=True):
                scores[row], distances[row] = value, distance
        return scores, distances

    @torch.inference_mode()
    def score_every(self, questions: Sequence[EncodedQuestion], answers: Sequence[np.ndarray]) -> np.ndarray:
        """Return the expected scores [Q, N] of N answers, of at least one step each, to each of Q questions."""
        self.eval()
        expected = self.score_logprobs(answers).exp() @ SCORES
        return (self.style_logprobs(questions).exp() @ expected.T).numpy()

    @torch.inference_mode()
    def known_share(self, answers: Sequence[np.ndarray]) -> float | None:
        """Return the share of answers of at least one step that are like those learned from; None: nothing to tell it by."""
        self.eval()
        if self.known is None or not answers:
            return None
        return float((self.known.distances(self.answer_states(answers)) <= self.known.limit).double().mean())

    @torch.inference_mode()
    def learned_from(self, learned: Sequence[np.ndarray], held_out: Sequence[np.ndarray]) -> None:
        """Remember the answers learned from; the policy's own `held_out` answers set how near is known (none: all is)."""
        self.eval()
        spoken = [[answer for answer in some if len(answer)] for some in (learned, held_out)]
        empty = torch.zeros(0, self.config.hidden_size)
        self.known = KnownRange.fit(*(self.answer_states(some) if some else empty for some in spoken))

    @torch.inference_mode()
    def score_for(self, styles: Sequence[str], answers: Sequence[np.ndarray]) -> list[float]:
        """Return the expected score of each answer where the question's style is known; answers have at least one step."""
        self.eval()
        known = {style: index for index, style in enumerate(self.config.styles)}
        expected = self.score_logprobs(answers).exp() @ SCORES if answers else torch.zeros(0, len(known))
        return [float(row[known[style]]) for row, style in zip(expected, styles, strict=True)]

    def save(self, folder: Path) -> None:
        """Write the weights, the config and the known range."""
        from safetensors.torch import save

        write_bytes(folder / "reward_model.safetensors", save(self.state_dict()))
        write_json(folder / "reward_model.json", self.config.model_dump(mode="json"))
        if self.known is not None:
            self.known.save(folder)

    @classmethod
    def load(cls, folder: Path) -> RewardModel:
        """Read what `save` wrote.

        Raises:
            DataError: no config, or not JSON. JudgeError: wrong keys, weights that are missing, cut off or of other sizes, or
                nothing says what it learned from.
        """
        from safetensors.torch import load_file

        described = folder / "reward_model.json"
        with checking(described, "config", error=JudgeError, advice="; run `paras2s distill` again"):
            model = cls(RewardModelConfig.model_validate(read_json(described)))
        path = folder / "reward_model.safetensors"
        with reading(path, "does not fit reward_model.json", "; run `paras2s distill` again", JudgeError):
            model.load_state_dict(load_file(path))
        model.known = KnownRange.load(folder)
        return model
