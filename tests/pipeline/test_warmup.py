"""Which demonstrated contrasts a warm-up learns from, by hand.

Not covered: training itself (policy/test_sft.py) and the stage's files (integration/test_cli.py).
"""

from __future__ import annotations

import pytest

from paras2s.pipeline.warmup import first_contrasts
from paras2s.types import Query


def query(contrast: str, category: str, style: str) -> Query:
    return Query(f"{contrast}-{style}", contrast, category, "food", "demonstration", "m1", "x.wav", 1.0, "", "", style)  # type: ignore[arg-type]


QUERIES = [
    query("e0", "emotion", "happy"),
    query("e0", "emotion", "sad"),
    query("a0", "age", "adult"),
    query("e1", "emotion", "sad"),
    query("a1", "age", "child"),
    query("e1", "emotion", "fear"),
    query("e0", "emotion", "happy"),
]


@pytest.mark.parametrize(("count", "rows"), [(1, [0, 1, 2, 6]), (2, [0, 1, 2, 3, 4, 5, 6]), (9, [0, 1, 2, 3, 4, 5, 6])])
def test_by_hand(count: int, rows: list[int]) -> None:
    assert first_contrasts(QUERIES, count) == [QUERIES[row] for row in rows]
