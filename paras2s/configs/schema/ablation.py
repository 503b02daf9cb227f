"""Settings of an ablation: runs that share what they have in common."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Literal

from pydantic import Field, ValidationInfo, field_validator

from paras2s.configs.schema.base import Section, load_section


class AblationRow(Section):
    """One run of an ablation: what it changes, where its point stands in the plot, and whether it is aligned at all."""

    name: str = Field(pattern=r"^\w[\w .,+=()-]*$", description="also its folder")
    set: dict[str, Any] = Field({}, description="dotted keys laid over the base")
    system: Literal["cascade", "sft", "aligned", "topline"] = Field(
        "aligned", description="whose score counts; only the aligned one is reinforced"
    )
    line: str = Field("", description="rows of one line are joined in the plot")
    x: float | None = Field(None, description="place on the plot's axis; null: not plotted")


class Claim(Section):
    """Something the paper found that the rows of an ablation can bear out or not: one row above another."""

    say: str
    higher: str = Field(description="name of the row that should have more")
    lower: str
    of: Literal["score", "told_apart", "words_understood"] = "score"
    at_least: bool = Field(False, description="the claim is that it has no less, not that it has more")
    leave_out: tuple[str, ...] = Field((), description="categories that do not count: those a row was trained in")


class AblationConfig(Section):
    """A grid of runs that share what they have in common: one table, and a plot where rows have a place on its axis."""

    name: str
    base: str = Field("demo", description="preset or YAML of the run that the rows change")
    queries: Literal["validation", "test"] = Field(
        "validation", description="that score it; test: for a figure, never to choose"
    )
    seeds: tuple[int, ...] = Field((0,), min_length=1)
    run_dir: Path = Path("runs/ablations")
    set: dict[str, Any] = Field({}, description="laid over the base in every row")
    rows: tuple[AblationRow, ...] = Field(min_length=1)
    axis: str = Field("", description="what the plot's axis shows")
    title: str = ""
    plots: tuple[Literal["score", "words_understood", "curve"], ...] = Field(
        ("score",), description="curve: reward model and judges over the steps of each aligned row, a panel a row"
    )
    hacks: int = Field(0, ge=0, description="questions about which each reward is asked what it pays for hacks; 0: none")
    paper: str = Field("", description="what the paper found, in a sentence, to stand beside our table")
    claims: tuple[Claim, ...] = ()
    note: str = Field("", description="what differs from the paper's experiment")

    @field_validator("claims")
    @classmethod
    def _about_rows(cls, claims: tuple[Claim, ...], info: ValidationInfo) -> tuple[Claim, ...]:
        rows = {row.name for row in info.data.get("rows", ())}
        if strange := [name for claim in claims for name in (claim.higher, claim.lower) if rows and name not in rows]:
            raise ValueError(f"no row is called {strange[0]!r}")
        return claims


def load_ablation(path: Path, overrides: dict[str, Any] | None = None) -> AblationConfig:
    """Load an ablation, from YAML with dotted overrides laid over it.

    Raises:
        ConfigError: missing file, bad YAML, unknown key, bad value.
    """
    return load_section(path, overrides, AblationConfig)
