"""`paras2s paper`: the paper's figures and tables on the embedded world, and the page that sets them beside the paper's."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rich.console import Console

from paras2s.config import AblationConfig, load_ablation
from paras2s.errors import DataError
from paras2s.stages.ablate import draw, judge_claim, markdown, paired_claim, run_ablation
from paras2s.stages.demo import preset_path
from paras2s.storage import read_json, write_text

# In the paper's order; the last is ours.
FIGURES = ("table2", "fig2a", "fig2b", "fig3a", "fig3b", "fig3c", "table7", "reward_sources")

HEAD = """# The paper's figures, in miniature

`make paper` runs every grid below on this machine and writes this page; `paras2s ablate NAME` runs one. The world is the
demo's: synthetic speech, a policy of 6.5 M parameters, the rubric as judge, a few dozen GRPO steps. The paper's is Kimi-Audio
7B on eight H100 with 100,000 prompts, so scores do not compare; what can be compared is which row is above which.

Each row is one run of one seed, unless the table names more. A figure is a mean with its standard error, clustered by contrast.
A claim of the paper *agrees* where our difference, on the same questions, is at least twice its standard error, and *leans*
where it is less.
"""


def paper_config(name: str) -> AblationConfig:
    """A shipped figure."""
    return load_ablation(preset_path(name, "paper"))


def run_figures(names: Sequence[str], console: Console, quiet: bool, out: Path, run: bool = True) -> Path:
    """Run the figures that are not whole yet, and write the page with all that there are."""
    for name in names:
        if run:
            run_ablation(paper_config(name), console, quiet)
        page = write_page(out)
    return page


def write_page(out: Path) -> Path:
    """`paper.md` and its plots, from the tables of figures that have been run."""
    parts = [HEAD]
    for name in FIGURES:
        config = paper_config(name)
        try:
            rows = read_json(config.run_dir / config.name / "table.json")["rows"]
        except DataError:
            parts.append(f"## {config.title or name}\n\nNot run yet: `paras2s ablate {name}`.\n")
            continue
        parts.append(_section(config, rows, out))
    page = out / "paper.md"
    write_text(page, "\n".join(parts))
    return page


def _section(config: AblationConfig, rows: list[dict[str, Any]], out: Path) -> str:
    lines = [f"## {config.title or config.name}", "", f"`paras2s ablate {config.name}`", ""]
    # Its heading and the paper's sentence stand in ours.
    table = [line for line in markdown(config, rows).splitlines() if line.startswith("|")]
    lines += [f"On {config.queries} queries, {len(rows)} of {len(config.rows) * len(config.seeds)} rows.", "", *table, ""]
    for kind in config.plots:
        if (plot := draw(config, rows, kind)) is not None:
            write_text(out / "paper" / f"{config.name}-{kind}.svg", plot)
            lines += [f"![{config.title}: {kind.replace('_', ' ')}](paper/{config.name}-{kind}.svg)", ""]
    if config.paper:
        lines += [f"The paper: {config.paper}", ""]
    if config.claims:
        lines += ["| the paper's claim | ours |", "|---|---|"]
        for claim in config.claims:
            paired = paired_claim(config, claim) if claim.of == "score" else None
            lines.append(f"| {claim.say} | {judge_claim(claim, rows, paired)} |")
        lines.append("")
    if config.note:
        lines += [config.note, ""]
    return "\n".join(lines)
