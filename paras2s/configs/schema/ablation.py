"""Settings of an ablation: runs that share common stages."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Literal

from pydantic import Field, ValidationInfo, field_validator

from paras2s.configs.schema.base import Section, load_section


class AblationRow(Section):
    """One run of an ablation: its changed keys, its point in the plot, and the system that counts."""

    name: str = Field(pattern=r"^\w[\w .,+=()-]*$", description="name of the row, and of its folder")
    set: dict[str, Any] = Field({}, description="dotted keys laid over the base")
    system: Literal["cascade", "sft", "aligned", "topline"] = Field(
        "aligned", description="system whose score counts; only aligned is trained by GRPO"
    )
    line: str = Field("", description="line of the plot; rows of one line are joined")
    x: float | None = Field(None, description="position on the plot's axis; null: not plotted")


class Claim(Section):
    """A finding of the paper that the rows can confirm or not: one row scores above another."""

    say: str
    higher: str = Field(description="name of the row that should score higher")
    lower: str
    of: Literal["score", "told_apart", "words_understood"] = "score"
    at_least: bool = Field(False, description="claim that the row scores no lower, in place of higher")
    leave_out: tuple[str, ...] = Field((), description="categories that do not count, since a row was trained on them")


class AblationConfig(Section):
    """A grid of runs that share common stages: one table, and a plot of the rows with a value of x."""

    name: str
    base: str = Field("demo", description="preset or YAML of the run that the rows change")
    queries: Literal["validation", "test"] = Field(
        "validation", description="queries that score it; test: for final figures, never to choose settings"
    )
    seeds: tuple[int, ...] = Field((0,), min_length=1)
    run_dir: Path = Path("runs/ablations")
    set: dict[str, Any] = Field({}, description="dotted keys laid over the base in every row")
    rows: tuple[AblationRow, ...] = Field(min_length=1)
    axis: str = Field("", description="label of the plot's axis")
    title: str = ""
    plots: tuple[Literal["score", "words_understood", "curve"], ...] = Field(
        ("score",), description="curve: reward model and judges over the steps of each aligned row, a panel a row"
    )
    demonstration_price: float | None = Field(
        None, ge=0, description="price of a demonstration, in verdicts of the judge, for a table of what each row's labels cost"
    )
    hacks: int = Field(0, ge=0, description="questions on which each reward scores hacks; 0: none")
    paper: str = Field("", description="the paper's finding, in a sentence, shown beside our table")
    claims: tuple[Claim, ...] = ()
    note: str = Field("", description="differences from the paper's experiment")

    @field_validator("claims")
    @classmethod
    def _about_rows(cls, claims: tuple[Claim, ...], info: ValidationInfo) -> tuple[Claim, ...]:
        rows = {row.name for row in info.data.get("rows", ())}
        if unknown := [name for claim in claims for name in (claim.higher, claim.lower) if rows and name not in rows]:
            raise ValueError(f"no row is called {unknown[0]!r}")
        return claims


def load_ablation(path: Path, overrides: dict[str, Any] | None = None) -> AblationConfig:
    """Load an ablation from YAML with dotted overrides.

    Raises:
        ConfigError: missing file, bad YAML, unknown key, bad value.
    """
    return load_section(path, overrides, AblationConfig)
