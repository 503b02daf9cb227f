"""Make a `SpokenLmPolicy` from a language model: its weights as they are, and new parts that hear and choose prosody."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import torch

from paras2s.audio.prosody import UTTERANCE_DIM
from paras2s.errors import PolicyError, one_line
from paras2s.policy.spoken_lm.policy import SpokenLmPolicy
from paras2s.policy.types import Turn

# Sentences that show how large the model's states are.
SAMPLES = ("Thank you for watering my plants.", "Which coat would you choose for me?", "My train was late again today.")
# Share of the layers that see words alone.
FROZEN_SHARE = 0.6


def read_language_model(model: Path) -> tuple[Any, Any]:
    """Read a causal language model and its tokenizer from a folder of transformers, or a GGUF file, in float32.

    Raises:
        PolicyError: it is neither.
    """
    from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer

    source, file = (model.parent, {"gguf_file": model.name}) if model.is_file() else (model, {})
    try:
        tokenizer = AutoTokenizer.from_pretrained(source, local_files_only=True, **file)
        read: Any = AutoModelForCausalLM.from_pretrained(source, dtype=torch.float32, local_files_only=True, **file)
        config: Any = read.config
        # Weights of a GGUF file are read as plain ones; the note that they were packed would forbid to write them.
        held = {key: value for key, value in config.to_dict().items() if key != "quantization_config"}
        build: Any = AutoModelForCausalLM.from_config
        lm = build(AutoConfig.for_model(**held)).float()
        lm.load_state_dict(read.state_dict())
    except (OSError, ValueError, TypeError, KeyError, ImportError, RuntimeError) as error:
        raise PolicyError(f"{model}: no language model of transformers and no GGUF file ({one_line(error)[:300]})") from error
    return lm, tokenizer


def make_spoken_lm(
    model: Path, out: Path, mean: np.ndarray, spread: np.ndarray, prosody_layer: int | None = None, seed: int = 0
) -> SpokenLmPolicy:
    """Write a new policy's checkpoint; `mean` and `spread` [45] are those of questions' prosody.

    Raises:
        PolicyError: no language model, one without a chat template, or a layer that it does not have.
    """
    lm, tokenizer = read_language_model(model)
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
