"""The demonstrations that an alignment is anchored to: those of its warm-up, or an error that says what is missing.

Not covered: the update (tests/train/test_anchor.py), and a run from end to end (tests/integration/test_drivers.py).
"""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from paras2s.configs.schema.run import RunConfig
from paras2s.errors import DataError, PolicyError
from paras2s.pipeline.align import anchor_demonstrations
from paras2s.policy.embedded.policy import EmbeddedPolicy
from paras2s.policy.omni import OmniPolicy
from paras2s.types import Demonstration, Query, Role


def query(name: str, contrast: str, role: Role = "demonstration") -> Query:
    return Query(name, contrast, "sarcasm", "work", role, "someone", f"{name}.wav", 1.0, "hello", "hello", "sincere")


def opened(demonstrations: list[Demonstration], queries: list[Query], folder: Path, **anchor: Any) -> Any:
    """Run and dataset with these tables."""
    config = RunConfig.model_validate(
        {"warmup": {"demonstration_contrasts": 1}, "align": {"objective": {"anchor": anchor or None}}}
    )
    run: Any = SimpleNamespace(config=config, folder=folder / "run", sft_dir=folder / "run" / "sft")
    dataset: Any = SimpleNamespace(
        folder=folder / "data",
        demonstrations=demonstrations,
        queries=queries,
        of_role=lambda role: [one for one in queries if one.role == role],
    )
    return run, dataset


QUERIES = [query("a", "1"), query("b", "1"), query("c", "2"), query("d", "3", "preference")]
ROWS = [Demonstration(one.id, text, "calm", f"{text}.wav") for one in QUERIES for text in ("Yes", "No")]


def test_it_is_what_the_warm_up_learned_from(tmp_path: Path) -> None:
    files = anchor_demonstrations(*opened(ROWS, QUERIES, tmp_path, weight=0.5), EmbeddedPolicy)
    assert files is not None
    assert [(one.query_id, one.text) for one in files.demonstrations] == [("a", "Yes"), ("a", "No"), ("b", "Yes"), ("b", "No")]
    assert [one.id for one in files.queries] == ["a", "b"]
    assert files.folder == tmp_path / "run" / "prompts"


@pytest.mark.parametrize("anchor", [{}, {"weight": 0.0}], ids=["none", "of weight 0"])
def test_without_an_anchor_no_demonstration_is_needed(anchor: dict[str, float], tmp_path: Path) -> None:
    assert anchor_demonstrations(*opened([], QUERIES, tmp_path, **anchor), EmbeddedPolicy) is None


@pytest.mark.parametrize(
    ("rows", "queries", "said"),
    [
        ([], QUERIES, "holds no demonstration, and align.objective.anchor"),
        ([ROWS[-1]], QUERIES, r"holds no demonstration of the queries that warmup.\*_contrasts choose"),
    ],
    ids=["no demonstration", "none that the warm-up learned from"],
)
def test_what_is_missing_is_said_with_its_file(rows: Any, queries: Any, said: str, tmp_path: Path) -> None:
    with pytest.raises(DataError, match=rf"data/demonstrations.parquet: {said}"):
        anchor_demonstrations(*opened(rows, queries, tmp_path, weight=1.0), EmbeddedPolicy)


def test_a_model_that_no_demonstration_can_be_encoded_for_is_refused(tmp_path: Path) -> None:
    with pytest.raises(PolicyError, match=r"align.objective.anchor needs .* or set the anchor to null: .* never released"):
        anchor_demonstrations(*opened(ROWS, QUERIES, tmp_path, weight=1.0), OmniPolicy)
