"""The verb `judge audit`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from paras2s.cli.options import Cache, Json, Queries, Set, exit_if_unscored, parse_overrides, print_json


def judge_audit(
    judge: Annotated[str, typer.Argument(help="Judge: trace_local, contrast, rubric, independent or a YAML.")],
    run: Annotated[Path, typer.Argument(help="Folder of a finished run, whose answers are judged again.")],
    limit: Queries = None,
    map_: Annotated[Path | None, typer.Option("--map", help="File for a contrast judge's map of ratios to 1 to 5.")] = None,
    cache_dir: Cache = Path("runs/cache"),
    set_: Set = None,
    as_json: Json = False,
) -> None:
    """Find out whether a judge tells good answers from wrong ones, style by style, on the answers of a run."""
    from paras2s.bench.paras2s.audit import audit_judge
    from paras2s.bench.paras2s.judges import open_answer_judge
    from paras2s.configs.schema.judges import find_judge
    from paras2s.errors import ConfigError
    from paras2s.reward.judges.contrast import fit_map, ratio_of, save_map
    from paras2s.utils.progress import open_console, progress_bar
    from paras2s.utils.tables import Table

    overrides = parse_overrides(set_)
    if map_ is not None and (find_judge(judge).kind != "contrast" or overrides.get("score_map") is not None):
        raise ConfigError(f"--map: it is fitted for a contrast judge without a score_map, and {judge} is none")
    opened = open_answer_judge(judge, overrides, run / "data" / "tone_agent.json", cache_dir)
    console = open_console(to_stderr=as_json)
    with progress_bar(console, "answers judged", None, quiet=as_json) as bar:
        audit, judged = audit_judge(opened, run, limit, bar.at)
    if map_ is not None:
        known = [(ratio_of(now.reason), before.score) for before, now in judged if before.score and now.score]
        save_map(map_, fit_map([ratio for ratio, _ in known], [score for _, score in known]))
    if as_json:
        print_json(audit.to_json())
    else:
        Table(("style", "gold above wrong kind", "gold above neutral tone"), audit.table()).show(console)
        agreed = audit.agreement
        ends = "" if agreed.low is None else f" ({agreed.low:.2f} to {agreed.high:.2f})"
        pearson = agreed.why_none or f"{agreed.value:.2f}{ends}"
        scored = f"{audit.n_scored} of {audit.n_answers} scored"
        console.print(f"Pearson with the run's rubric: {pearson}; {scored}", highlight=False)
        if audit.commonest is not None:
            console.print(f"commonest score: {audit.commonest[0]}, {audit.commonest[1]:.0%} of all", highlight=False)
        console.print(f"{audit.seconds:.2f} s a verdict, {audit.cost_usd:.4f} USD in all", highlight=False)
        for reason, count in audit.unscored.items():
            console.print(f"unscored: {count} times {reason}", highlight=False, markup=False)
        if map_ is not None:
            console.print(f"{map_}: give it as score_map", highlight=False, markup=False)
        console.print(audit.sentence, highlight=False, markup=False)
    exit_if_unscored(audit.unscored)
