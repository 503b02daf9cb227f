"""A judge as a reward function of TRL: `GRPOTrainer(reward_funcs=judge_reward("http://127.0.0.1:8018"), ...)`.

TRL calls it with prompts, completions and the columns of the data set, and takes None for a completion that has no reward.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from paras2s.integrations.rewards import JudgeReward, text_of
from paras2s.types import Unscored


def judge_reward(judge: str, **options: Any) -> Callable[..., list[float | None]]:
    """Return a reward function of TRL that pays a judge's scores; None without a score.

    Args:
        judge: the address of a server, or a judge of this process.
        options: those of `JudgeReward`.

    Raises:
        ConfigError: there is no such judge, or a wrong option.
    """
    reward = JudgeReward(judge, **options)

    def paras2s_judge(prompts: Sequence[Any], completions: Sequence[Any], **columns: Any) -> list[float | None]:
        """Return a reward for each completion, or None."""
        scores = reward.of_rows([text_of(completion) for completion in completions], prompts, columns)
        if (log_metric := columns.get("log_metric")) is not None:
            log_metric("unscored", sum(isinstance(score, Unscored) for score in scores) / max(1, len(scores)))
        return [None if isinstance(score, Unscored) else score for score in scores]

    return paras2s_judge
