"""Encoding of clips for the reward model of a run, as in its training."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from paras2s.audio.asr import transcribe
from paras2s.audio.clip import Clip
from paras2s.audio.text_embedding import SENTENCE_DIM
from paras2s.data_gen.dataset import load_dataset
from paras2s.data_gen.policy_inputs import CODEC, fit_normalizer
from paras2s.errors import AudioError
from paras2s.policy.embedded.frontend import extract_features
from paras2s.reward.reward_model.model import EncodedQuestion
from paras2s.types import Query


class RunClipEncoder:
    """Encoder of questions (features of a run's dataset) and answers (its codec). Each question is encoded once."""

    def __init__(self, run_dir: Path) -> None:
        self._dataset = load_dataset(run_dir / "data")
        self._normalizer = fit_normalizer(self._dataset)
        # The transcripts of a run's own questions are in its manifest.
        held_out = (query for role in ("test", "validation") for query in self._dataset.of_role(role))
        self._queries = {self._dataset.clip(query.clip).digest: query for query in held_out}
        self._encoded: dict[str, EncodedQuestion | str] = {}

    def encode_question(self, clip: Clip) -> EncodedQuestion | str:
        """Return a question's codes and features, or the reason why it has none."""
        name = clip.digest
        if name not in self._encoded:
            try:
                self._encoded[name] = self._encode(clip, self._queries.get(name))
            except AudioError as error:
                self._encoded[name] = f"the instruction: {error}"
        return self._encoded[name]

    def encode_answer(self, clip: Clip) -> np.ndarray:
        """Return an answer's codes [T, K]."""
        return CODEC.encode(clip)

    def _encode(self, clip: Clip, query: Query | None) -> EncodedQuestion:
        features = extract_features(clip, CODEC) if query is None else self._dataset.clip_features(query.clip, CODEC)
        words = transcribe([clip])[0].text if query is None else query.transcript
        return EncodedQuestion(features.codes, self._normalizer.features(features, words), SENTENCE_DIM)
