"""The verb `judge audit`."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from paras2s.cli.options import Cache, Estimate, Json, Queries, Set, exit_if_unscored, parse_overrides, print_json

if TYPE_CHECKING:
    from rich.console import Console

    from paras2s.bench.audit import Audit


def judge_audit(
    judge: Annotated[
        str, typer.Argument(help="Judge: trace_local, contrast, audiojudge, unisrm, a YAML, or a run, for its reward model.")
    ],
    folder: Annotated[Path, typer.Argument(help="A finished run, whose answers are judged again, or a folder of data.")],
    limit: Queries = None,
    map_: Annotated[Path | None, typer.Option("--map", help="File for a contrast judge's map of ratios to 1 to 5.")] = None,
    estimate: Estimate = False,
    cache_dir: Cache = Path("runs/cache"),
    set_: Set = None,
    as_json: Json = False,
) -> None:
    """Find out whether a judge, or a run's reward model, tells good answers from wrong ones, style by style."""
    from paras2s.bench.paras2s.audit import JudgeAudit
    from paras2s.bench.paras2s.judges import open_audited_judge
    from paras2s.bench.paras2s.pair_audit import PairAudit, only_compares
    from paras2s.configs.schema.judges import find_judge
    from paras2s.errors import ConfigError
    from paras2s.reward.judges.contrast import fit_map, ratio_of, save_map
    from paras2s.utils.progress import open_console, progress_bar

    overrides, named = parse_overrides(set_), find_judge(judge)
    if map_ is not None and (named.kind != "contrast" or overrides.get("score_map") is not None):
        raise ConfigError(f"--map: it is fitted for a contrast judge without a score_map, and {judge} is none")
    console = open_console(to_stderr=as_json)
    if named.kind == "reward_model":
        from paras2s.pipeline.audit import audit_of_run

        _show(audit_of_run(named.source or Path(judge)), console, as_json)
        return
    tone = next((path for part in ("data", ".") if (path := folder / part / "tone_agent.json").is_file()), None)
    opened = open_audited_judge(named, overrides, tone, cache_dir, not estimate)
    chosen = (PairAudit if only_compares(named, opened) else JudgeAudit)(opened, folder, limit)
    if estimate:
        bill = chosen.estimate()
        usd = "an unknown price" if bill.at_most_usd is None else f"at most {bill.at_most_usd:.4f} USD"
        print_json(asdict(bill)) if as_json else console.print(f"{bill.calls} calls, {usd}")
        return
    with progress_bar(console, "answers judged", None, quiet=as_json) as bar:
        audit, judged = chosen.run(bar.at)
    if map_ is not None:
        known = [(ratio_of(now.reason), before.score) for before, now in judged if before.score and now.score]
        save_map(map_, fit_map([ratio for ratio, _ in known], [score for _, score in known]))
        console.print(f"{map_}: give it as score_map")
    _show(audit, console, as_json)


def _show(audit: Audit, console: Console, as_json: bool) -> None:
    from paras2s.utils.tables import Table

    if as_json:
        print_json(audit.to_json())
    else:
        columns = ("style", "gold above wrong kind", "above another topic", "above neutral tone")
        Table(columns, audit.table()).show(console)
        for line in (*audit.lines(), audit.sentence):
            console.print(line)
    exit_if_unscored(audit.unscored)
