"""The three terms of UniSRM's reward as pure functions of a parsed reply and its label (equations 7 to 11).

A reply without a record has R_fmt = -1, and 0 for the other terms: the paper leaves these open. A tie in a dimension's label
counts as a sign of its own (equation 10).
Alphabet: D dimensions.
"""

from __future__ import annotations

from collections.abc import Sequence

from paras2s.configs.schema.unisrm import RewardWeights
from paras2s.types import Reward
from paras2s.unisrm.reward.reply import Malformed
from paras2s.unisrm.reward.tasks import TASKS, PairRecord, QualityRecord, Record, Task, TaskId


def format_reward(reply: Record | Malformed) -> float:
    """Return R_fmt: -1 for a reply that gives no record, else 0."""
    return -1.0 if isinstance(reply, Malformed) else 0.0


def accuracy_reward(task_id: TaskId, reply: Record | Malformed, label: Record) -> float:
    """Return R_acc: whether the better side is right (equation 8); for T2 the overall score's closeness (equation 9)."""
    if isinstance(reply, PairRecord) and isinstance(label, PairRecord):
        return float(reply.better == label.better)
    if isinstance(reply, QualityRecord) and isinstance(label, QualityRecord):
        return closeness(TASKS[task_id], reply.scores[-1:], label.scores[-1:])
    return 0.0


def consistency_reward(task_id: TaskId, reply: Record | Malformed, label: Record) -> float | None:
    """Return R_rc: the share of dimensions compared with the right sign (equation 10); for T2 closeness (equation 11).

    None if the label has no scores of dimensions, such as a preference by people: then the term does not apply.
    """
    if isinstance(label, PairRecord):
        if label.sides is None:
            return None
        if not isinstance(reply, PairRecord) or reply.sides is None:
            return 0.0
        right = [ours == theirs for ours, theirs in zip(preferences(reply), preferences(label), strict=True)]
        return sum(right) / len(right)
    return closeness(TASKS[task_id], reply.scores, label.scores) if isinstance(reply, QualityRecord) else 0.0


def preferences(record: PairRecord) -> tuple[int, ...]:
    """Return the sign of A's score less B's in each of D dimensions. Raises ValueError: the record has no scores."""
    if record.sides is None:
        raise ValueError("a record without scores has no preferences by dimension")
    first, second = record.sides
    return tuple((a > b) - (a < b) for a, b in zip(first.scores, second.scores, strict=True))


def closeness(task: Task, scores: Sequence[float], target: Sequence[float]) -> float:
    """Return 1 less the mean distance over the width of the range, clamped to 0 to 1."""
    distance = sum(abs(score - other) for score, other in zip(scores, target, strict=True)) / len(target)
    return min(1.0, max(0.0, 1 - distance / (task.high - task.low)))


def combine(task_id: TaskId, reply: Record | Malformed, label: Record, weights: RewardWeights) -> Reward:
    """Return R of equation 7 with its terms; a term that does not apply is left out of both."""
    consistency = consistency_reward(task_id, reply, label)
    parts = {"format": format_reward(reply), "accuracy": accuracy_reward(task_id, reply, label)}
    parts |= {} if consistency is None else {"consistency": consistency}
    return Reward(sum(getattr(weights, name) * value for name, value in parts.items()), parts)
