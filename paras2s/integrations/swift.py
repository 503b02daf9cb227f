"""A judge as an ORM of ms-swift: `orms["paras2s"] = judge_orm("http://127.0.0.1:8018")` in a file of `--external_plugins`.

ms-swift calls it with completions and the columns of the data set. It counts a missing reward as 0, so a missing score stops
the run, unless `unscored` says what is paid instead.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from paras2s.integrations.rewards import JudgeReward, numbers


def judge_orm(judge: str, unscored: float | None = None, **options: Any) -> type:
    """Return a class for ms-swift's `orms`.

    Args:
        judge: the address of a server, or a judge of this process.
        unscored: reward of an answer without a score; None: it stops the run.
        options: those of `JudgeReward`.
    """

    class Paras2sJudge:
        """Pays a judge's scores. It needs no base class: ms-swift calls what `orms` holds."""

        def __init__(self, args: Any = None, **_: Any) -> None:
            self.reward = JudgeReward(judge, **options)

        def __call__(self, completions: Sequence[str], **columns: Any) -> list[float]:
            """Return a reward for each completion."""
            # The last message of each row is the completion.
            messages = columns.get("messages") or [[] for _ in completions]
            prompts = [row[:-1] if row and row[-1].get("role") == "assistant" else row for row in messages]
            return numbers(self.reward.of_rows(completions, prompts, columns), unscored)

    return Paras2sJudge
