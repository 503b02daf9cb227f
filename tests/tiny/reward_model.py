"""A reward model of random weights that takes every answer for one that it knows."""

from __future__ import annotations

import math

import numpy as np
import torch

from paras2s.reward.reward_model.known_range import KnownRange
from paras2s.reward.reward_model.model import RewardModel, RewardModelConfig


def random_reward_model(sizes: RewardModelConfig, code_vectors: np.ndarray) -> RewardModel:
    model = RewardModel(sizes, code_vectors)
    model.known = KnownRange(torch.zeros(1, sizes.hidden_size), math.inf)
    return model
