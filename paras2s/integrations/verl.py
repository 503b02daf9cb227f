"""A judge as verl's reward function: `custom_reward_function.path=pkg://paras2s.integrations.verl`.

verl calls `compute_score` with keywords for every answer, and `compute_scores` (the reward manager `batch`) for many. It
knows no missing reward, so a missing score stops the run, unless `unscored` says what is paid instead.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from paras2s.integrations.rewards import COLUMNS, QUESTION, numbers, open_reward


def compute_score(
    data_source: str,
    solution_str: str,
    ground_truth: Any,
    extra_info: Mapping[str, Any] | None = None,
    judge: str = "http://127.0.0.1:8018",
    unscored: float | None = None,
    **options: Any,
) -> float:
    """Return the score of one answer; `extra_info` may hold `question`, `style`, `question_audio`, `answer_audio`, `history`.

    Raises:
        JudgeError: there is no score, and `unscored` is None. BudgetError: the budget ended, or the server failed too often.
    """
    return compute_scores([data_source], [solution_str], [ground_truth], [extra_info], judge, unscored, **options)[0]


def compute_scores(
    data_sources: Sequence[str],
    solution_strs: Sequence[str],
    ground_truths: Sequence[Any],
    extra_infos: Sequence[Mapping[str, Any] | None],
    judge: str = "http://127.0.0.1:8018",
    unscored: float | None = None,
    **options: Any,
) -> list[float]:
    """Return the scores of a batch, as `compute_score`. Raises JudgeError: a missing score. BudgetError."""
    known = [extra or {} for extra in extra_infos]
    columns = {name: [extra.get(name) for extra in known] for name in COLUMNS}
    # Names of verl's own for its workers, which are no options of a judge.
    given = {key: value for key, value in options.items() if not key.startswith("reward_")}
    reward = open_reward(judge, tuple(sorted(given.items())))
    return numbers(reward.of_rows(solution_strs, [extra.get(QUESTION, "") for extra in known], columns), unscored)
