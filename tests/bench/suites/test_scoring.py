"""Errors of a suite's rules on one item: what the download lacks, and what our own code does wrong."""

from pathlib import Path
from typing import Any

import pytest

from paras2s.bench.suites import judging
from paras2s.bench.suites.base import Item
from paras2s.types import Unscored


def test_what_a_download_lacks_leaves_an_item_unscored_and_a_fault_of_our_rules_is_raised() -> None:
    class Rules:
        from_text = True

        def scoring(self, item: Item, metric: str, answers: Any, data: Any) -> Any:
            return {"score": len(item.values["Score"])}

    judge = judging.SuiteJudge(Rules(), Path(), False, {})  # type: ignore[arg-type]
    found = judge.scoring(judging.Job(Item("1", "s", ()), "m", ()), None)  # type: ignore[arg-type]
    assert isinstance(found, Unscored)
    assert found.reason == "the item is not of the makers' form: it has no Score"
    with pytest.raises(TypeError):
        judge.scoring(judging.Job(Item("1", "s", (), {"Score": 3}), "m", ()), None)  # type: ignore[arg-type]
