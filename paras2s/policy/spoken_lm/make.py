"""Make a `SpokenLmPolicy` from a language model: its weights as they are, and new parts that hear and choose prosody."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import torch

from paras2s.audio.prosody import UTTERANCE_DIM
from paras2s.errors import PolicyError
from paras2s.policy.spoken_lm.policy import SpokenLmPolicy
from paras2s.policy.types import Turn
from paras2s.utils.io import reading
from paras2s.utils.language_model import read_language_model

# Sentences that show how large the model's states are.
SAMPLES = ("Thank you for watering my plants.", "Which coat would you choose for me?", "My train was late again today.")
# Share of the layers that see words alone.
FROZEN_SHARE = 0.6


def make_spoken_lm(
    model: Path, out: Path, mean: np.ndarray, spread: np.ndarray, prosody_layer: int | None = None, seed: int = 0
) -> SpokenLmPolicy:
    """Write a new policy's checkpoint; `mean` and `spread` [45] are those of questions' prosody.

    Raises:
        ConfigError: there is no language model. PolicyError: one without a chat template, or a layer that it does not have.
    """
    from transformers import AutoConfig, AutoModelForCausalLM

    read, tokenizer = read_language_model(model)
    # Weights of a GGUF file are read as plain ones; the note that they were packed would forbid to write them.
    held = {key: value for key, value in read.config.to_dict().items() if key != "quantization_config"}
    build: Any = AutoModelForCausalLM.from_config
    with reading(model, "no language model that can be made again from its config", kind=PolicyError):
        lm = build(AutoConfig.for_model(**held)).float()
        lm.load_state_dict(read.state_dict())
    layer = int(FROZEN_SHARE * lm.config.num_hidden_layers) if prosody_layer is None else prosody_layer
    policy = SpokenLmPolicy(lm, tokenizer, layer)
    policy.model.feature_mean.copy_(torch.from_numpy(mean))
    policy.model.feature_spread.copy_(torch.from_numpy(spread))
    policy.model.start(seed)
    nothing = np.zeros(UTTERANCE_DIM, dtype=np.float32)
    policy.model.measure_scale([policy.prompt_of([Turn("user", text)], nothing) for text in SAMPLES])
    out.mkdir(parents=True, exist_ok=True)
    policy.save(out)
    return policy
