"""The verbs `bench speakbench` and `bench s2sarena`: a judge against people's labels."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any

import typer

from paras2s.cli.judge import Both, Judge
from paras2s.cli.options import Estimate, Json, Limit, Set, Tone, parse_overrides, print_json

bench_app = typer.Typer(help="What is measured: a run's held-out contrasts, or a judge against people.", no_args_is_help=True)


class SuiteName(StrEnum):
    """Suites with people's labels."""

    speakbench = "speakbench"
    s2sarena = "s2sarena"


SUITE_TITLES = {SuiteName.speakbench: "SpeakBench", SuiteName.s2sarena: "S2S-Arena"}

Labels = Annotated[Path, typer.Option(help="People's labels, in the form of TRACE's release (JSON).")]
Audio = Annotated[Path | None, typer.Option(help="Folder under which the labels' audio lies.")]
Verdicts = Annotated[list[Path] | None, typer.Option(help="Recorded verdicts (JSONL); no call is made. Repeatable: compared.")]
Oracle = Annotated[bool, typer.Option("--oracle", help="Fuse people's own dimension labels: what each rule could reach.")]
Rule = Annotated[str | None, typer.Option(help="Fusion rule; else the suite's own.")]
Rules = Annotated[Path | None, typer.Option(help="YAML with fusion rules of your own.")]
Out = Annotated[Path | None, typer.Option(help="Where verdicts are written; else runs/SUITE/JUDGE-VERSION.jsonl.")]


def _suite_command(name: SuiteName) -> Callable[..., None]:
    def command(
        labels: Labels, audio: Audio = None, judge: Judge = "trace", verdicts: Verdicts = None, oracle: Oracle = False,
        rule: Rule = None, rules: Rules = None, both_orders: Both = False, estimate: Estimate = False, out: Out = None,
        limit: Limit = None, tone: Tone = None, set_: Set = None, as_json: Json = False,
    ) -> None:  # fmt: skip
        _bench(
            SuiteOptions(
                name, labels, audio, judge, verdicts, oracle, rule, rules, both_orders, estimate, out, limit, tone, set_
            ),
            as_json,
        )

    command.__doc__ = f"A judge, or its recorded verdicts, against people's labels of {SUITE_TITLES[name]}."
    return command


@dataclass(frozen=True)
class SuiteOptions:
    """The options of `bench SUITE`."""

    name: SuiteName
    labels: Path
    audio: Path | None
    judge: str
    verdicts: list[Path] | None
    oracle: bool
    rule: str | None
    rules: Path | None
    both_orders: bool
    estimate: bool
    out: Path | None
    limit: int | None
    tone: Path | None
    overrides: list[str] | None


for _name in SuiteName:
    bench_app.command(_name.value)(_suite_command(_name))


def _bench(options: SuiteOptions, as_json: bool) -> None:
    from paras2s.bench.speakbench.data import SUITES, load_pairs
    from paras2s.bench.speakbench.report import oracle_report, show_oracle
    from paras2s.reward.fusion import find_rule, load_rules
    from paras2s.utils.progress import open_console

    console = open_console(to_stderr=as_json)
    suite, pairs = SUITES[options.name], load_pairs(options.labels)[: options.limit]
    if options.oracle:
        report = oracle_report(suite, pairs, load_rules(options.rules))
        print_json(report) if as_json else show_oracle(console, report)
        return
    rule_name = options.rule or suite.rule
    rule = find_rule(rule_name, options.rules)
    paths, stopped = list(options.verdicts or []), None
    if not paths:
        if options.estimate:
            _estimate_suite(options, pairs, console, as_json)
            return
        path, stopped = _judge_suite(options, pairs, console, as_json)
        paths = [path]
    _report_verdicts(suite, pairs, paths, rule_name, rule, console, as_json)
    if stopped:
        raise stopped


def _audio_root(options: SuiteOptions) -> Path:
    from paras2s.errors import ConfigError

    if options.audio is None or not options.audio.is_dir():
        raise ConfigError("--audio: give the folder that holds the labels' audio, or --verdicts, or --oracle")
    return options.audio


def _open(options: SuiteOptions) -> Any:
    from paras2s.reward.judges.registry import open_llm_judge

    orders = True if options.both_orders else None
    return open_llm_judge(options.judge, parse_overrides(options.overrides), both_orders=orders, tone=options.tone)


def _estimate_suite(options: SuiteOptions, pairs: Any, console: Any, as_json: bool) -> None:
    from dataclasses import asdict

    from paras2s.bench.display import show_estimate
    from paras2s.bench.speakbench.run import estimate_suite
    from paras2s.utils.progress import progress_bar

    root = _audio_root(options)
    judge = _open(options)
    with progress_bar(console, "pairs read", len(pairs), quiet=as_json) as bar:
        bill, unscored = estimate_suite(judge, pairs, root, bar.at)
    if as_json:
        print_json({**asdict(bill), "unscored": unscored})
        return
    show_estimate(console, judge.config.llm.model, bill)
    console.print(f"{unscored} of {len(pairs)} pairs cannot be judged")


def _judge_suite(options: SuiteOptions, pairs: Any, console: Any, as_json: bool) -> Any:
    """Path of the verdicts, and the error that stopped it before its end, if any."""
    from paras2s.bench.speakbench.run import judge_suite
    from paras2s.utils.progress import progress_bar

    root = _audio_root(options)
    judge = _open(options)
    own_name = f"{judge.name}-{judge.version}".replace(":", "-").replace("/", "-")
    path = options.out or Path("runs") / options.name / f"{own_name}.jsonl"
    with progress_bar(console, "pairs judged", len(pairs), quiet=as_json) as bar:
        took_s, stopped = judge_suite(judge, pairs, root, path, bar.at)
    spent_usd = judge.client.spent_usd
    console.print(
        f"{judge.client.calls} calls in {took_s:.0f} s, {spent_usd:.4f} USD spent now; verdicts in {path}", highlight=False
    )
    return path, stopped


def _report_verdicts(suite: Any, pairs: Any, paths: list[Path], rule_name: str, rule: Any, console: Any, as_json: bool) -> None:
    from itertools import combinations

    from paras2s.bench.speakbench.report import comparison_report, judge_report, show_comparison, show_judge, show_labels
    from paras2s.bench.speakbench.verdicts import load_verdicts

    loaded = {str(path): load_verdicts(path) for path in paths}
    reports = {name: judge_report(suite, pairs, found, rule_name, rule) for name, found in loaded.items()}
    pairwise = {
        f"{one} - {other}": comparison_report(pairs, loaded[one], loaded[other], rule) for one, other in combinations(loaded, 2)
    }
    if as_json:
        print_json({"judges": reports, "comparisons": pairwise})
        return
    show_labels(console, next(iter(reports.values())))
    for name, report in reports.items():
        show_judge(console, name, report)
    for (one, other), found in zip(combinations(loaded, 2), pairwise.values(), strict=True):
        show_comparison(console, one, other, found)
