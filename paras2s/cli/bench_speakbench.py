"""The verbs `bench speakbench` and `bench s2sarena`: score a judge against people's labels."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from paras2s.cli.judge import Both, Judge
from paras2s.cli.options import Estimate, Json, Limit, RetryUnscored, Set, Tone, exit_if_unscored, parse_overrides, print_json
from paras2s.cli.own_benchmarks import BenchGroup
from paras2s.errors import ConfigError

if TYPE_CHECKING:
    from rich.console import Console

    from paras2s.bench.speakbench.run import SuiteOptions

bench_app = typer.Typer(
    cls=BenchGroup, help="Benchmarks of a run, of any system, and of judges against people.", no_args_is_help=True
)

SUITE_TITLES = {"speakbench": "SpeakBench", "s2sarena": "S2S-Arena"}

Labels = Annotated[Path, typer.Option(help="People's labels, in the form of TRACE's release (JSON).")]
Audio = Annotated[Path | None, typer.Option(help="Folder with the labels' audio.")]
Verdicts = Annotated[list[Path] | None, typer.Option(help="Recorded verdicts (JSONL), compared without any call. Repeatable.")]
Oracle = Annotated[bool, typer.Option("--oracle", help="Fuse people's own dimension labels: the best each rule could reach.")]
Against = Annotated[
    Path | None,
    typer.Option(help="Second set of labels to measure agreement with (TRACE's JSON, or CSV: index, label, with 1, 2, tie)."),
]
Rule = Annotated[str | None, typer.Option(help="Fusion rule. Default: the suite's own.")]
Rules = Annotated[Path | None, typer.Option(help="YAML with fusion rules of your own.")]
Out = Annotated[Path | None, typer.Option(help="File for verdicts. Default: runs/SUITE/JUDGE-VERSION.jsonl.")]
Plots = Annotated[
    Path | None, typer.Option(help="Folder for ties.svg, flips.svg, winners.svg and confusion.svg (TRACE, Figs. 3, 4, 5, 9).")
]
Cases = Annotated[
    Path | None,
    typer.Option(help="Folder for cases.html and cases.json: pairs on which judges and people differ (TRACE, Fig. 6)."),
]
Ablate = Annotated[
    bool,
    typer.Option(
        "--ablate-features",
        help="Also judge without each group of the blueprint in turn (TRACE, Table 12); budget_usd counts for each.",
    ),
]
Baselines = Annotated[
    Path | None,
    typer.Option(
        help="Original labels (CSV: index, label, with 1, 2, tie; or TRACE's JSON): compare with two judges that say 1, 2 or "
        "tie, one by words, one by sound (TRACE, Tables 1 and 9)."
    ),
]
JUDGE = "trace"


def _suite_command(name: str) -> Callable[..., None]:
    def command(
        labels: Labels, audio: Audio = None, judge: Judge = JUDGE, verdicts: Verdicts = None, oracle: Oracle = False,
        against: Against = None,
        rule: Rule = None, rules: Rules = None, both_orders: Both = False, estimate: Estimate = False, out: Out = None,
        limit: Limit = None, retry_unscored: RetryUnscored = False, plots: Plots = None, cases: Cases = None,
        ablate: Ablate = False, baselines: Baselines = None, tone: Tone = None, set_: Set = None, as_json: Json = False,
    ) -> None:  # fmt: skip
        from paras2s.bench.speakbench.run import SuiteOptions

        if against is not None:
            if verdicts or oracle or estimate or plots or cases or ablate or baselines:
                raise ConfigError(
                    "--against compares two sets of labels alone: leave --verdicts, --oracle, --estimate, --plots, --cases, "
                    "--ablate-features and --baselines out"
                )
            _agree(labels, against, as_json)
            return
        options = SuiteOptions(
            name,
            labels,
            audio,
            judge,
            tuple(verdicts or ()),
            rule,
            rules,
            both_orders,
            out,
            limit,
            tone,
            parse_overrides(set_),
            retry_unscored,
            plots,
            cases,
            ablate,
        )
        if baselines is None:
            _bench(options, oracle, estimate, as_json)
        else:
            _baselines(options, baselines, oracle, estimate, as_json)

    command.__doc__ = f"Score a judge, or its recorded verdicts, against people's labels of {SUITE_TITLES[name]}."
    return command


for _name in SUITE_TITLES:
    bench_app.command(_name)(_suite_command(_name))


def _agree(labels: Path, against: Path, as_json: bool) -> None:
    from paras2s.bench.speakbench.label_sets import agreement, show_agreement
    from paras2s.utils.progress import open_console

    result = agreement(labels, against)
    print_json(asdict(result)) if as_json else show_agreement(open_console(), against, result)


def _baselines(options: SuiteOptions, labels: Path, oracle: bool, estimate: bool, as_json: bool) -> None:
    from paras2s.bench.speakbench import baselines
    from paras2s.utils.progress import open_console

    console = open_console(to_stderr=as_json)
    baselines.refuse_others(options, JUDGE, oracle)
    if estimate:
        cost = baselines.estimate_baselines(options, labels, console, as_json)
        print_json(cost.to_json()) if as_json else cost.show(console)
        return
    table = baselines.run_baselines(options, labels, console, as_json)
    print_json(table.to_json()) if as_json else baselines.show_baselines(console, table)
    if table.stopped:
        raise table.stopped
    exit_if_unscored(table.n_unscored)


def _bench(options: SuiteOptions, oracle: bool, estimate: bool, as_json: bool) -> None:
    from paras2s.bench.speakbench import run
    from paras2s.bench.speakbench.report import show_oracle
    from paras2s.utils.progress import open_console

    console = open_console(to_stderr=as_json)
    if options.ablate and (oracle or options.verdicts or options.out is not None):
        raise ConfigError("--ablate-features: writes verdicts of each setup; leave --oracle, --verdicts and --out out")
    if options.cases is not None and (oracle or estimate):
        raise ConfigError("--cases: needs verdicts of a judge; leave --oracle and --estimate out")
    if oracle:
        report = run.oracle(options)
        print_json(report) if as_json else show_oracle(console, report)
        _name_files(options, console)
        return
    if estimate and options.plots is not None:
        raise ConfigError("--plots: an estimate has no verdicts to draw; leave one of the two out")
    if estimate and not options.verdicts:
        cost = run.estimate(options, console, as_json)
        print_json(cost.to_json()) if as_json else cost.show(console)
        return
    result = run.run_suite(options, console, as_json)
    print_json(result.to_json()) if as_json else result.show(console)
    _name_files(options, console)
    if result.stopped:
        raise result.stopped
    exit_if_unscored(result.unscored)


def _name_files(options: SuiteOptions, console: Console) -> None:
    if options.plots is not None:
        console.print(f"plots in {options.plots}")
    if options.cases is not None:
        console.print(f"cases in {options.cases / 'cases.html'}")
