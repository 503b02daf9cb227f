"""Online DPO (Rafailov et al., 2023): each group's best answer against its worst; beta is `kl_weight`.

It is the optimum of the reward under that KL penalty, hence the same weight. Nothing is clipped or corrected.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from paras2s.configs.schema.align import AlignConfig, ObjectiveConfig
from paras2s.train.algorithm import Algorithm, no_policy_gradient

if TYPE_CHECKING:
    from torch import Tensor


def preference(margin: Tensor, objective: ObjectiveConfig) -> Tensor:
    """Return the negative log-likelihood that the preferred answer of each pair is preferred."""
    from torch.nn.functional import logsigmoid

    return -logsigmoid(objective.kl_weight * margin)


def check(config: AlignConfig) -> str | None:
    """Check that there is a beta, and that pairs stay together."""
    if not config.objective.kl_weight:
        return "kl_weight is its beta and must be above 0"
    if config.optimizer.micro_batch_size == 1:
        return "both answers of a pair go through together; set micro_batch_size to 2"
    return no_policy_gradient(config)


ALGORITHM = Algorithm(pair_term=preference, average="pair", rule="pair", check=check)
