"""`RewardModel`: a small transformer over a question's and an answer's codec tokens with a five-way score.

Distilled from a judge by cross entropy on its score (ParaS2S, section 4.2), scoring by the expected value. Beside the
codes it is given the question's continuous features, as the policy is; of the answer it hears the codes alone.
Alphabet: N pairs, T steps, K codebooks, F features.
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
from paras2s.storage import read_json, write_bytes, write_json

SCORES = torch.arange(1.0, 6.0)
MAX_STEPS = 160


@dataclass(frozen=True)
class HeardQuestion:
    """A question as the reward model hears it: codes [T, K] and features [T, F]."""

    codes: np.ndarray
    features: np.ndarray


class RewardModelConfig(BaseModel):
    """Sizes."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    codebook_sizes: tuple[int, ...]
    feature_dim: int
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
        # 0: the score's own place, 1: question, 2: answer.
        self.kind = nn.Embedding(3, width)
        self.place = nn.Embedding(MAX_STEPS, width)
        layer = nn.TransformerEncoderLayer(width, 4, 3 * width, 0.1, "gelu", batch_first=True, norm_first=True)
        self.encoder = nn.TransformerEncoder(layer, config.layers, enable_nested_tensor=False)
        self.head = nn.Sequential(nn.LayerNorm(width), nn.Linear(width, 5))
        nn.init.normal_(self.codes.weight, std=0.3)
        nn.init.normal_(self.place.weight, std=0.1)

    def forward(self, questions: Sequence[HeardQuestion], answers: Sequence[np.ndarray]) -> Tensor:
        """Logits [N, 5] over the scores 1 to 5; answers are codes [T, K], at least one step long."""
        q_codes, q_mask = self._embed_codes([question.codes for question in questions])
        features = np.zeros((*q_mask.shape, self.config.feature_dim), dtype=np.float32)
        for row, question in enumerate(questions):
            held = question.features[: q_mask.shape[1]]
            features[row, : len(held)] = held
        question = q_codes + self.features(torch.from_numpy(features))
        answer, a_mask = self._embed_codes(answers)
        rows = len(questions)
        start = self.kind.weight[0].expand(rows, 1, -1)
        x = torch.cat([start, question + self.kind.weight[1], answer + self.kind.weight[2]], 1)
        mask = torch.cat([torch.ones(rows, 1, dtype=torch.bool), q_mask, a_mask], 1)
        return self.head(self.encoder(x, src_key_padding_mask=~mask)[:, 0])

    def _embed_codes(self, codes: Sequence[np.ndarray]) -> tuple[Tensor, Tensor]:
        longest = min(MAX_STEPS, max(len(one) for one in codes))
        ids = np.zeros((len(codes), longest, len(self.config.codebook_sizes)), dtype=np.int64)
        mask = np.zeros((len(codes), longest), dtype=bool)
        for row, one in enumerate(codes):
            ids[row, : len(one)], mask[row, : len(one)] = one[:longest], True
        embedded = self.codes(torch.from_numpy(ids) + self.offsets).sum(2)
        return embedded + self.place.weight[:longest], torch.from_numpy(mask)

    @torch.inference_mode()
    def score(self, questions: Sequence[HeardQuestion], answers: Sequence[np.ndarray]) -> list[float]:
        """Expected score of each answer; one without a single step is worth 1, since nothing is said."""
        self.eval()
        found = [1.0] * len(answers)
        spoken = [row for row, answer in enumerate(answers) if len(answer)]
        if spoken:
            logits = self([questions[row] for row in spoken], [answers[row] for row in spoken])
            for row, value in zip(spoken, (logits.softmax(-1) @ SCORES).tolist(), strict=True):
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
