"""`RewardModel`: a small transformer over a question's and an answer's codec tokens with a five-way score.

Distilled from a judge by cross entropy on its score (ParaS2S, section 4.2), scoring by the expected value. It hears the
question and says which style it was spoken in, hears the answer and says what it would be worth to each style, and
mixes: P(score | question, answer) = sum over styles of P(style | question) P(score | style, answer). Learned as one black
box from a few hundred questions, the same network found neither part.
Beside the codes it is given the question's continuous features, as the policy is; of the answer it hears the codes alone.
Alphabet: N pairs, T steps, K codebooks, F features, Y styles.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from pydantic import BaseModel, ConfigDict, ValidationError
from torch import Tensor, nn

from paras2s.errors import JudgeError, one_line
from paras2s.utils.io import read_json, write_bytes, write_json

SCORES = torch.arange(1.0, 6.0)
MAX_STEPS = 160


@dataclass(frozen=True)
class EncodedQuestion:
    """A question as the reward model hears it: codes [T, K] and features [T, F], the last `words_dim` of them of its words."""

    codes: np.ndarray
    features: np.ndarray
    words_dim: int = 0


class RewardModelConfig(BaseModel):
    """Sizes."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    codebook_sizes: tuple[int, ...]
    feature_dim: int
    styles: tuple[str, ...]
    hidden_size: int
    layers: int


class RewardModel(nn.Module):
    """Scores answers from 1 to 5; says nothing of why."""

    name = "reward_model"

    def __init__(self, config: RewardModelConfig) -> None:
        super().__init__()
        self.config = config
        width = config.hidden_size
        self.offsets: Tensor
        self.register_buffer("offsets", torch.tensor([0, *np.cumsum(config.codebook_sizes)[:-1].tolist()]), persistent=False)
        self.codes = nn.Embedding(sum(config.codebook_sizes), width)
        self.features = nn.Sequential(nn.Linear(config.feature_dim, width), nn.GELU(), nn.Linear(width, width))
        self.start = nn.Parameter(torch.zeros(width))
        self.place = nn.Embedding(MAX_STEPS, width)
        # Without dropout: drawing its masks would take longer than everything else on a CPU.
        layer = nn.TransformerEncoderLayer(width, 4, 3 * width, 0.0, "gelu", batch_first=True, norm_first=True)
        self.encoder = nn.TransformerEncoder(layer, config.layers, enable_nested_tensor=False)
        self.style_head = nn.Sequential(nn.LayerNorm(width), nn.Linear(width, len(config.styles)))
        self.score_head = nn.Sequential(nn.LayerNorm(width), nn.Linear(width, 5 * len(config.styles)))
        nn.init.normal_(self.codes.weight, std=0.3)
        nn.init.normal_(self.place.weight, std=0.1)

    def hear_style(self, questions: Sequence[EncodedQuestion]) -> Tensor:
        """Log-probs [N, Y] of the style each question was spoken in; a question may come without its codes."""
        # One place for the features' mean: step by step they would tell which clip it is, and be learned by heart.
        means = torch.from_numpy(np.stack([question.features.mean(0) for question in questions]).astype(np.float32))
        heard = self._encode(self.features(means)[:, None], [question.codes for question in questions])
        return self.style_head(heard).log_softmax(-1)

    def worth(self, answers: Sequence[np.ndarray]) -> Tensor:
        """Log-probs [N, Y, 5] of what each answer would score with each style; answers have at least one step."""
        start = self.start.expand(len(answers), 1, -1)
        scores = self.score_head(self._encode(start, answers))
        return scores.view(len(answers), len(self.config.styles), 5).log_softmax(-1)

    def forward(self, questions: Sequence[EncodedQuestion], answers: Sequence[np.ndarray]) -> Tensor:
        """Log-probs [N, 5] over the scores 1 to 5."""
        return (self.hear_style(questions)[..., None] + self.worth(answers)).logsumexp(1)

    def _encode(self, start: Tensor, codes: Sequence[np.ndarray]) -> Tensor:
        """State of the first place [N, width], after it has looked at the codes."""
        embedded, mask = self._embed_codes(codes)
        mask = torch.cat([torch.ones(len(codes), 1, dtype=torch.bool), mask], 1)
        # The mean beside the sequence: it is learned at once, and the order soon after.
        mean = (embedded * mask[:, 1:, None]).sum(1, keepdim=True) / mask[:, 1:, None].sum(1, keepdim=True).clamp(min=1)
        x = torch.cat([start + mean, embedded + self.place.weight[: embedded.shape[1]]], 1)
        return self.encoder(x, src_key_padding_mask=~mask)[:, 0]

    def _embed_codes(self, codes: Sequence[np.ndarray]) -> tuple[Tensor, Tensor]:
        longest = min(MAX_STEPS, max(len(one) for one in codes))
        ids = np.zeros((len(codes), longest, len(self.config.codebook_sizes)), dtype=np.int64)
        mask = np.zeros((len(codes), longest), dtype=bool)
        for row, one in enumerate(codes):
            ids[row, : len(one)], mask[row, : len(one)] = one[:longest], True
        return self.codes(torch.from_numpy(ids) + self.offsets).sum(2), torch.from_numpy(mask)

    @torch.inference_mode()
    def score(self, questions: Sequence[EncodedQuestion], answers: Sequence[np.ndarray]) -> list[float]:
        """Expected score of each answer; one without a single step is worth 1, since nothing is said."""
        self.eval()
        found = [1.0] * len(answers)
        spoken = [row for row, answer in enumerate(answers) if len(answer)]
        if spoken:
            logits = self([questions[row] for row in spoken], [answers[row] for row in spoken])
            for row, value in zip(spoken, (logits.exp() @ SCORES).tolist(), strict=True):
                found[row] = value
        return found

    def save(self, folder: Path) -> None:
        """Weights and config."""
        from safetensors.torch import save

        write_bytes(folder / "reward_model.safetensors", save(self.state_dict()))
        write_json(folder / "reward_model.json", self.config.model_dump(mode="json"))

    @classmethod
    def load(cls, folder: Path) -> RewardModel:
        """Read what `save` wrote.

        Raises:
            DataError: no config, or not JSON. JudgeError: wrong keys, or weights that are missing, cut off or of other sizes.
        """
        from safetensors import SafetensorError
        from safetensors.torch import load_file

        described = folder / "reward_model.json"
        try:
            model = cls(RewardModelConfig.model_validate(read_json(described)))
        except ValidationError as error:
            first = error.errors()[0]
            place = ".".join(map(str, first["loc"])) or "config"
            raise JudgeError(f"{described}: {place}: {first['msg']}; run `paras2s distill` again") from error
        path = folder / "reward_model.safetensors"
        try:
            model.load_state_dict(load_file(path))
        except (FileNotFoundError, SafetensorError, RuntimeError) as error:
            raise JudgeError(
                f"{path}: does not fit reward_model.json ({one_line(error)}); run `paras2s distill` again"
            ) from error
        return model
