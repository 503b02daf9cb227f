"""The verb `bench unisrm`: score judges on the four tasks of UniSRM."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Literal

import typer

from paras2s.cli.options import Cache, Estimate, Json, RetryUnscored, Set, Tone, exit_if_unscored, parse_overrides, print_json

Split = Literal["sft", "rl", "bench"]


def bench_unisrm(
    data: Annotated[Path, typer.Argument(help="Folder with items.jsonl and its clips, as `unisrm data` makes it.")],
    judge: Annotated[
        list[str] | None,
        typer.Option("--judge", help="Judge: a UniSRM's folder, trace, audiojudge, a run's folder, or a YAML. Repeatable."),
    ] = None,
    objective: Annotated[
        bool, typer.Option("--objective/--no-objective", help="Also score word errors, speaker similarity and DNSMOS.")
    ] = True,
    groundedness: Annotated[
        Path | None, typer.Option(help="Endpoint (YAML: model, base_url ...) whose LLM rates each reply's evidence, 0 to 2.")
    ] = None,
    limit: Annotated[int | None, typer.Option(min=1, help="Use only the first N items of each task.")] = None,
    split: Annotated[
        Split, typer.Option(help="Split of the data. rl of another seed's data: new items with GRPO's texts and speakers.")
    ] = "bench",
    out: Annotated[Path, typer.Option(help="Folder for verdicts and tables.")] = Path("runs/bench-unisrm"),
    tone: Tone = None,
    retry_unscored: RetryUnscored = False,
    estimate: Estimate = False,
    cache_dir: Cache = Path("runs/cache"),
    set_: Set = None,
    as_json: Json = False,
) -> None:
    """Score judges on UniSRM-Bench: preference, quality, scene and dialogue, each figure beside its controls.

    Controls: the majority class, silence for clips, another item's clips, the candidates exchanged.
    """
    from paras2s.bench.display import show_estimate
    from paras2s.unisrm.bench.report import markdown
    from paras2s.unisrm.bench.run import UniSRMBenchOptions, estimate_bench, run_bench
    from paras2s.utils.progress import open_console

    console = open_console(to_stderr=as_json)
    options = UniSRMBenchOptions(
        data=data,
        judges=judge or [],
        out=out,
        cache_dir=cache_dir,
        objective=objective,
        llm=groundedness,
        tone=tone,
        limit=limit,
        split=split,
        retry_unscored=retry_unscored,
        overrides=parse_overrides(set_),
    )
    if estimate:
        bills = estimate_bench(options)
        if as_json:
            print_json({name: asdict(bill) for name, bill in bills.items()})
        for name, bill in bills.items() if not as_json else ():
            show_estimate(console, name, bill)
        if not bills and not as_json:
            console.print("0 calls: no --judge is given")
        return
    result = run_bench(options, console, as_json)
    if as_json:
        print_json(result.report)
    else:
        console.print(markdown(result.report), soft_wrap=True)
        console.print(f"{out}: verdicts, unisrm.md and unisrm.json")
    if result.stopped:
        raise result.stopped
    exit_if_unscored(result.unscored)
