"""`paras2s paper`: the paper's figures in miniature and our own ablations, each on a page of its own."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rich.console import Console

from paras2s.bench.paras2s.metrics import cell
from paras2s.configs.schema.ablation import AblationConfig, load_ablation
from paras2s.configs.schema.base import preset_path
from paras2s.errors import DataError
from paras2s.pipeline.ablate import (
    draw,
    hack_table,
    judge_claim,
    label_table,
    paired_claim,
    refused_rows,
    run_ablation,
    score_table,
)
from paras2s.utils.io import read_json, write_text
from paras2s.utils.tables import Table, number_text

READING = """
`make paper` runs every grid below on this machine and writes this page; `paras2s ablate NAME` runs one.

Each row is one run of one seed, unless the table names more. A figure is a mean with its standard error, clustered by contrast.
A claim *agrees* where our difference, on the same questions, is at least twice its standard error;
it *leans* where it is less.
"""
PAPER = f"""# The paper's figures, in miniature

The world is the demo's: synthetic speech, a policy of 6.5 M parameters, the rubric as judge, a few dozen GRPO steps. The
paper's is Kimi-Audio 7B on eight H100 with 100,000 prompts, so scores do not compare; what can be compared is which row is
above which. What the paper did not ask is on [a page of its own](ablations.md).
{READING}"""
ABLATIONS = f"""# Our ablations

What the paper did not ask, in the world of [its figures in miniature](paper.md).
{READING}"""
# The figures of each page, by its name; the paper's are in its order.
PAGES = {
    "paper.md": (PAPER, ("table2", "fig2a", "fig2b", "fig3a", "fig3b", "fig3c", "table7")),
    "ablations.md": (ABLATIONS, ("equal_labels", "reward_sources", "overoptimisation", "algorithms", "staleness", "budget",
                                 "budget_quick", "anchor", "objectives")),
}  # fmt: skip
FIGURES = tuple(name for _, names in PAGES.values() for name in names)


def paper_config(name: str) -> AblationConfig:
    """Return the config of a shipped figure."""
    return load_ablation(preset_path(name, "paper"))


def run_figures(
    names: Sequence[str], console: Console, quiet: bool, out: Path, run: bool = True, anyway: bool = False
) -> list[Path]:
    """Run the unfinished figures, and write the pages with all that are finished."""
    for name in names:
        if run:
            run_ablation(paper_config(name), console, quiet, anyway)
        pages = [write_page(out, page) for page in PAGES]
    return pages


def write_page(out: Path, page: str) -> Path:
    """Write a page of `PAGES` and its plots from the tables of the figures run so far."""
    head, names = PAGES[page]
    parts = [head]
    for name in names:
        config = paper_config(name)
        try:
            rows = read_json(config.run_dir / config.name / "table.json")["rows"]
        except DataError:
            title = config.title or name
            unknown = f"## {title}\n\nNot run yet: `paras2s ablate {name}`.\n"
            parts.append(_kept_section(out / page, title) or unknown)
            continue
        parts.append(_section(config, rows, out))
    write_text(out / page, "\n".join(parts))
    return out / page


def _by_category(rows: Sequence[dict[str, Any]]) -> str:
    """Return each row's score in every category, and how well its reward model agreed with the judge on held-out queries."""
    measured = [row for row in rows if "failed" not in row]
    names = list(dict.fromkeys(name for row in measured for name in row["scores"]["categories"]))
    if not names:
        return ""
    empty = {"mean": None, "standard_error": None, "n_scored": 0, "n_asked": 0}
    lines = [
        (row["row"], *(cell(row["scores"]["categories"].get(name, empty)) for name in names),
         number_text(row.get("reward_model_pearson")))
        for row in measured
    ]  # fmt: skip
    return Table(("row", *names, "reward model's Pearson"), lines).markdown()


def _kept_section(page: Path, title: str) -> str | None:
    """Return a figure's section in the page as it is, so that a page written where its rows are gone does not lose it."""
    if not page.is_file():
        return None
    for part in page.read_text(encoding="utf-8").split("\n## ")[1:]:
        if part.startswith(f"{title}\n") and "Not run yet" not in part:
            return f"## {part.rstrip()}\n"
    return None


def _section(config: AblationConfig, rows: list[dict[str, Any]], out: Path) -> str:
    lines = [f"## {config.title or config.name}", "", f"`paras2s ablate {config.name}`", ""]
    minutes = sum(row.get("minutes") or 0 for row in rows)
    total = len(config.rows) * len(config.seeds)
    commits = sorted({row["commit"][:7] for row in rows if row.get("commit")})
    made = f", commit {', '.join(commits)}" if commits else ""
    lines += [f"On {config.queries} queries, {len(rows)} of {total} rows, {minutes:.0f} minutes to align and bench{made}.", ""]
    lines += [score_table(rows).markdown(), "", *filter(None, [_by_category(rows)]), ""]
    if refused := refused_rows(rows):
        lines += [*(f"- {line}" for line in refused), ""]
    if hacks := hack_table(rows):
        lines += [hacks.markdown(), ""]
    if labels := label_table(rows, config.demonstration_price):
        lines += [labels.markdown(), ""]
    for kind in config.plots:
        if (plot := draw(config, rows, kind)) is not None:
            write_text(out / "paper" / f"{config.name}-{kind}.svg", plot)
            lines += [f"![{config.title}: {kind.replace('_', ' ')}](paper/{config.name}-{kind}.svg)", ""]
    if config.paper:
        lines += [f"The paper: {config.paper}", ""]
    if config.claims:
        whose = "the paper's claim" if config.paper else "claim"
        claims = [(claim.say, judge_claim(claim, rows, paired_claim(config, claim))) for claim in config.claims]
        lines += [Table((whose, "ours"), claims).markdown(), ""]
    if config.note:
        lines += [config.note, ""]
    return "\n".join(lines)
