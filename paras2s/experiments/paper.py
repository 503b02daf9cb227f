"""`paras2s paper`: the paper's figures and tables on the embedded world, and the page that sets them beside the paper's."""

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

# In the paper's order; the last nine are ours.
FIGURES = (
    "table2", "fig2a", "fig2b", "fig3a", "fig3b", "fig3c", "table7", "equal_labels", "reward_sources", "overoptimisation",
    "algorithms", "staleness", "budget", "budget_quick", "anchor", "objectives",
)  # fmt: skip

HEAD = """# The paper's figures, in miniature

`make paper` runs every grid below on this machine and writes this page; `paras2s ablate NAME` runs one. The world is the
demo's: synthetic speech, a policy of 6.5 M parameters, the rubric as judge, a few dozen GRPO steps. The paper's is Kimi-Audio
7B on eight H100 with 100,000 prompts, so scores do not compare; what can be compared is which row is above which.

Each row is one run of one seed, unless the table names more. A figure is a mean with its standard error, clustered by contrast.
A claim of the paper *agrees* where our difference, on the same questions, is at least twice its standard error, and *leans*
where it is less.
"""


def paper_config(name: str) -> AblationConfig:
    """Return the config of a shipped figure."""
    return load_ablation(preset_path(name, "paper"))


def run_figures(names: Sequence[str], console: Console, quiet: bool, out: Path, run: bool = True, anyway: bool = False) -> Path:
    """Run the figures that are not whole yet, and write the page with all that there are."""
    for name in names:
        if run:
            run_ablation(paper_config(name), console, quiet, anyway)
        page = write_page(out)
    return page


def write_page(out: Path) -> Path:
    """Write `paper.md` and its plots from the tables of the figures run so far."""
    parts = [HEAD]
    for name in FIGURES:
        config = paper_config(name)
        try:
            rows = read_json(config.run_dir / config.name / "table.json")["rows"]
        except DataError:
            title = config.title or name
            unknown = f"## {title}\n\nNot run yet: `paras2s ablate {name}`.\n"
            parts.append(_kept_section(out / "paper.md", title) or unknown)
            continue
        parts.append(_section(config, rows, out))
    page = out / "paper.md"
    write_text(page, "\n".join(parts))
    return page


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
