"""The verb `bench suite`: any system on a public benchmark of other makers, read from the user's download."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from paras2s.cli.options import Curation, Estimate, Json, Set, exit_if_unscored, parse_overrides, parse_systems, print_json
from paras2s.errors import ConfigError

RUNS = Path("runs/suites")


def bench_suite(
    name: Annotated[
        str,
        typer.Argument(
            help="vstyle, echomind, speechparaling, uro, vocalbench, sdeval, mtalk, fullduplex, or module:Class of your own."
        ),
    ],
    data: Annotated[Path | None, typer.Option(help="Folder with the suite's download and its makers' code.")] = None,
    system: Annotated[
        list[str] | None,
        typer.Option(
            "--system", help="NAME=SYSTEM: a checkpoint's folder, an endpoint's YAML, a folder of answers. Repeatable."
        ),
    ] = None,
    answers: Annotated[
        list[Path] | None, typer.Option(help="Folder of finished answers; the system has the folder's name. Repeatable.")
    ] = None,
    judge: Annotated[
        str | None, typer.Option("--judge", help="A judge by name, YAML or module:Class. Default: the makers' own.")
    ] = None,
    own_prompts: Annotated[
        bool, typer.Option("--own-prompts", help="The judge asks its own questions in place of the makers'.")
    ] = False,
    both_orders: Annotated[bool, typer.Option("--both-orders", help="Judge each pair in both orders.")] = False,
    limit: Annotated[int | None, typer.Option(min=1, help="Use only the first N items.")] = None,
    subset: Annotated[str | None, typer.Option(help="Only subsets of this pattern, such as 'en/*'.")] = None,
    verdicts: Annotated[
        list[Path] | None,
        typer.Option(help="Recorded verdicts, ours or of the makers' release: read, compared, nothing called. Repeatable."),
    ] = None,
    rescore: Annotated[
        Path | None, typer.Option(help="Folder of an earlier run: its answers are judged again by --judge, beside the first.")
    ] = None,
    out: Annotated[Path | None, typer.Option(help="Folder of the run. Default: runs/suites/NAME.")] = None,
    estimate: Estimate = False,
    curation: Curation = None,
    cache_dir: Annotated[Path, typer.Option(help="Folder of cached replies and answers.")] = Path("runs/cache"),
    set_: Set = None,
    as_json: Json = False,
) -> None:
    """Bench a system on a public suite by its makers' rules, or re-read and judge again recorded verdicts."""
    from paras2s.bench.suites.report import tables_of
    from paras2s.bench.suites.run import SuiteOptions, estimate_suite, find_suite, rescored, run_suite
    from paras2s.utils.progress import open_console

    console = open_console(to_stderr=as_json)
    systems = parse_systems([*(system or ()), *(f"{folder.name}={folder}" for folder in answers or ())])
    options = SuiteOptions(
        name, out or RUNS / name.rpartition(":")[2], cache_dir, data, systems, judge, own_prompts, both_orders, limit, subset,
        curation, tuple(verdicts or ()), parse_overrides(set_),
    )  # fmt: skip
    if rescore is not None:
        if systems or out or limit or subset:
            raise ConfigError(
                "--rescore takes systems, items and folder from the run: leave --system, --answers, --out ... out"
            )
        options = rescored(options, rescore)
    if estimate:
        bill = estimate_suite(options, console)
        print_json(bill) if as_json else _show_bill(console, bill)
        return
    result = run_suite(options, console, as_json)
    if as_json:
        print_json(result.report)
    else:
        for table in tables_of(find_suite(name), result.report):
            table.show(console)
        console.print(f"verdicts and tables in {options.out}")
    if result.stopped:
        raise result.stopped
    exit_if_unscored(result.unscored)


def _show_bill(console: Any, bill: dict[str, Any]) -> None:
    from paras2s.utils.tables import Table

    price = "no price is known" if bill["at_most_usd"] is None else f"at most {bill['at_most_usd']:.4f} USD"
    rows = [(name.replace("_", " "), bill[name]) for name in bill if not isinstance(bill[name], dict | list)]
    notes = [f"judging: {price}"]
    for name, known in bill["systems"].items():
        usd = known["answer_usd"]
        cost = "no price is known" if usd is None else f"at most {usd:.4f} USD"
        notes.append(f"{name}: {known['to_answer']} answers are missing, {cost}")
    notes += [f"{count} cannot be judged: {reason}" for reason, count in bill["cannot_be_judged"].items()]
    Table(("", ""), rows, notes=[*notes, *bill["problems"]]).show(console)
