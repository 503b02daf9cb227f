"""Self-distillation: the policy, which only hears, learns from itself, told the question's style in words.

Both score the student's own samples, token by token (on-policy distillation; ParaBridge, arXiv 2606.10581). No reward is read:
alone it is the algorithm, and `align.self_distill` adds it to another. A divergence's gradient is estimated
from the sampled tokens, the expectation of `signal` times the gradient of the student's log-prob; ParaBridge sums over the
whole vocabulary, which has less noise and which no policy's contract offers.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from paras2s.configs.schema.align import AlignConfig, ObjectiveConfig, SelfDistillConfig
from paras2s.train.algorithm import Algorithm

if TYPE_CHECKING:
    from torch import Tensor


def signal(log_ratio: Tensor, config: SelfDistillConfig) -> Tensor:
    """Return how much likelier a unit of tokens should become, from the log-ratio of teacher and student; 0 where they agree.

    It is minus the derivative of the divergence in the student's probability, without a constant, which moves nothing.
    """
    held = log_ratio.clamp(-config.max_nats, config.max_nats)
    if config.divergence == "forward":
        return held.expm1()
    if config.divergence == "reverse":
        return held
    # Jensen-Shannon: half the log of the mixture of both over the student.
    return 0.5 * (held.exp().log1p() - math.log(2))


def towards_teacher(ratio: Tensor, teacher: Tensor, config: SelfDistillConfig) -> Tensor:
    """Return the loss of units [N, U] from the student's ratio to the sampler and the log-ratio of teacher and student."""
    return -config.weight * signal(teacher.detach(), config) * ratio


def nothing(ratio: Tensor, advantages: Tensor, logp: Tensor, objective: ObjectiveConfig) -> Tensor:
    """Return 0: the algorithm is the teacher's term alone."""
    return 0.0 * ratio


def check(config: AlignConfig) -> str | None:
    """Check that nothing is asked that only rewards could answer."""
    for key in ("resample", "curriculum"):
        if getattr(config.sampling, key) is not None:
            return f"sampling.{key} replaces groups by their rewards, which this does not read; leave it out"
    return None


ALGORITHM = Algorithm(nothing, rule="every", check=check)
