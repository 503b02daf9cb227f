"""The distilled reward model as a judge of clips, which an encoder turns into what the model reads."""

from __future__ import annotations

import hashlib
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Protocol

import numpy as np

from paras2s.audio.clip import Clip
from paras2s.reward.judges.base import Exchange, Judge, Progress, Scored
from paras2s.reward.reward_model.known_range import FILE as KNOWN_RANGE_FILE
from paras2s.reward.reward_model.model import EncodedQuestion, RewardModel
from paras2s.types import Unscored, Verdict


class ClipEncoder(Protocol):
    """Encodes clips as in the reward model's training."""

    def encode_question(self, clip: Clip) -> EncodedQuestion | str:
        """Return a question's codes and features, or the reason why there are none."""

    def encode_answer(self, clip: Clip) -> np.ndarray:
        """Return an answer's codes [T, K]."""


class RewardModelJudge(Judge):
    """Scores answers with the reward model of a folder. `version` is the hash of its weights and of what it knows."""

    name = RewardModel.name
    scores_alone = True
    needs = ("question.audio", "answer.audio")

    def __init__(self, folder: Path, encoder: ClipEncoder) -> None:
        self._model, self._encoder = RewardModel.load(folder), encoder
        parts = [(folder / name).read_bytes() for name in ("reward_model.safetensors", KNOWN_RANGE_FILE)]
        self.version = hashlib.sha256(b"".join(parts)).hexdigest()[:12]

    def score_batch(self, exchanges: Sequence[Exchange], on_progress: Progress | None = None) -> list[Scored]:
        """Score answers; an answer to a question without a clip, or unlike all that the model learned from, is Unscored."""
        started = time.perf_counter()
        questions = [self._question(exchange.question.clip) for exchange in exchanges]
        encoded = [(index, question) for index, question in enumerate(questions) if not isinstance(question, Unscored)]
        codes = [self._encoder.encode_answer(exchanges[index].answer) for index, _ in encoded]
        values = self._model.score_known([question for _, question in encoded], codes) if encoded else []
        latency_s = (time.perf_counter() - started) / max(len(encoded), 1)
        verdicts = {index: self._verdict(value, latency_s) for (index, _), value in zip(encoded, values, strict=True)}
        return [verdicts[index] if not isinstance(question, Unscored) else question for index, question in enumerate(questions)]

    def _question(self, clip: Clip | None) -> EncodedQuestion | Unscored:
        if clip is None:
            return Unscored(self.name, "the reward model hears the instruction, and the pair has no clip of it")
        encoded = self._encoder.encode_question(clip)
        return Unscored(self.name, encoded) if isinstance(encoded, str) else encoded

    def _verdict(self, value: float | Unscored, latency_s: float) -> Verdict | Unscored:
        if isinstance(value, Unscored):
            return value
        if not np.isfinite(value):
            return Unscored(self.name, f"the score is {value}")
        return Verdict(self.name, self.version, "", float(value), "", "", 0.0, latency_s)
