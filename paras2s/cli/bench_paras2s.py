"""The verbs `bench paras2s` (a dataset's queries) and `bench voicebench` (VoiceBench's questions), for any system."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from paras2s.cli.options import (
    Cache,
    Curation,
    Estimate,
    Json,
    Queries,
    Set,
    Systems,
    Tone,
    exit_if_unscored,
    parse_overrides,
    parse_systems,
    print_json,
)
from paras2s.cli.studio import check_installed
from paras2s.errors import ConfigError

if TYPE_CHECKING:
    from rich.console import Console

    from paras2s.clients.chat import Bill


def bench_paras2s(
    data: Annotated[Path, typer.Argument(help="Folder of a dataset: a curation's, or a run's.")],
    system: Systems,
    judge: Annotated[str, typer.Option("--judge", help="Judge, as for `judge answer`: trace, rubric, or a YAML.")] = "trace",
    on: Annotated[str, typer.Option(help="Role of the queries: test or validation.")] = "test",
    answers: Annotated[int, typer.Option(min=1, help="Answers to each query.")] = 1,
    limit: Queries = None,
    estimate: Estimate = False,
    out: Annotated[
        Path, typer.Option(help="Folder for rows, samples and tables; shows systems benched there earlier as well.")
    ] = Path("runs/paras2s"),
    human: Annotated[Path | None, typer.Option(help="People's ratings (CSV: id, system, category, rater, score).")] = None,
    voicebench: Annotated[
        list[str] | None, typer.Option(help="NAME=ROWS of `bench voicebench`, for the same table. Repeatable.")
    ] = None,
    curation: Curation = None,
    cache_dir: Cache = Path("runs/cache"),
    tone: Tone = None,
    set_: Set = None,
    as_json: Json = False,
) -> None:
    """Score systems' spoken answers on held-out queries, by category and on average (ParaS2S, Table 2)."""
    from paras2s.bench.paras2s.judges import open_answer_judge
    from paras2s.bench.paras2s.run import BenchOptions, estimate_paras2s, run_paras2s
    from paras2s.clients.endpoint import missing_for
    from paras2s.configs.schema.judges import JudgingConfig, find_judge
    from paras2s.data_gen.dataset import data_folder
    from paras2s.utils.progress import open_console
    from paras2s.utils.suggest import nearest_file

    if not data.is_dir():
        raise ConfigError(f"{data}: no such folder{nearest_file(data)}")
    if (
        judge == "trace"
        and not estimate
        and (missing := missing_for(find_judge(judge).config(JudgingConfig, parse_overrides(set_)).llm))
    ):
        raise ConfigError(f"{'; '.join(missing)}; without a key: --judge rubric, or --judge independent")
    console = open_console(to_stderr=as_json)
    fitted = data_folder(data) / "tone_agent.json"
    tone = fitted if tone is None and fitted.is_file() else tone
    beside = parse_systems(voicebench or [], "--voicebench")
    options = BenchOptions(data, on, parse_systems(system), answers, out, curation, cache_dir, human, limit, beside)
    opened = open_answer_judge(judge, parse_overrides(set_), tone, cache_dir, calls=not estimate)
    if estimate:
        _show_bill(console, judge, estimate_paras2s(options, opened), as_json)
        return
    report = run_paras2s(options, opened, console, as_json)
    if as_json:
        print_json(report.to_json())
        # After the results, which a broken page must not hide.
        write_page(data_folder(data), out)
    else:
        for text in report.to_markdown():
            console.print(text)
        for name in options.systems:
            console.print(report.sentence(name))
        console.print(f"{out}: rows, samples, table2.md and table2.json")
        console.print(f"Look and listen: {write_page(data_folder(data), out)}")
        if report.unscored:
            console.print(f"{report.unscored} answers have no score: exit status 1")
    exit_if_unscored(report.unscored)


def write_page(data: Path, out: Path) -> str:
    """Write report.html of a folder's answers; return its place, or how to hear them without the studio's packages."""
    try:
        check_installed()
    except ConfigError as error:
        return f"paras2s studio {out} ({error})"
    from paras2s.studio.export.one_file import export_answers

    export_answers(out, data, out / "report.html")
    return str(out / "report.html")


def _show_bill(console: Console, judge: str, bill: Bill, as_json: bool) -> None:
    from paras2s.bench.display import show_estimate

    print_json(asdict(bill)) if as_json else show_estimate(console, judge, bill)


def bench_template(
    data: Annotated[Path, typer.Argument(help="Folder of a dataset: a curation's, or a run's.")],
    out: Annotated[Path, typer.Argument(help="New folder: the questions' clips, a table of the expected answers, a README.")],
    on: Annotated[str, typer.Option(help="Role of the queries: test or validation.")] = "test",
    answers: Annotated[int, typer.Option(min=1, help="Answers to each query.")] = 1,
) -> None:
    """Write the questions that a system is to answer, in a folder that can be sent to another team; it holds no label."""
    from paras2s.bench.paras2s.template import ANSWERS, write_template

    count = write_template(data, out, on, answers)
    more = "" if answers == 1 else f" --answers {answers}"
    typer.echo(f"{out}: {count} questions and a README; with the answers in {out / ANSWERS}, run")
    typer.echo(f"paras2s bench paras2s {data} --system mine={out / ANSWERS} --judge rubric{more}")


def bench_voicebench(
    files: Annotated[list[Path], typer.Argument(help="VoiceBench's questions: one JSONL a subset, named after it.")],
    system: Annotated[str, typer.Option("--system", help="The system that answers, as for `bench paras2s`.")],
    questions: Annotated[Path | None, typer.Option(help="Folder of spoken questions, ID.wav.")] = None,
    subset: Annotated[str | None, typer.Option(help="Subset, if neither file names nor rows name it.")] = None,
    judge: Annotated[str | None, typer.Option("--judge", help="Config of a judge whose LLM scores open questions.")] = None,
    limit: Annotated[int | None, typer.Option(min=1, help="Use only the first N questions of each file.")] = None,
    estimate: Estimate = False,
    out: Annotated[Path, typer.Option(help="File for rows.")] = Path("runs/voicebench.jsonl"),
    curation: Curation = None,
    cache_dir: Cache = Path("runs/cache"),
    set_: Set = None,
    as_json: Json = False,
) -> None:
    """Score what a system still knows: the words of its spoken answers to VoiceBench's questions (ParaS2S, Fig. 3c and 4)."""
    from paras2s.bench.paras2s.metrics import cell
    from paras2s.bench.voicebench.run import VoiceBenchOptions, estimate_voicebench, run_voicebench
    from paras2s.utils.progress import open_console

    console = open_console(to_stderr=as_json)
    overrides = parse_overrides(set_)
    options = VoiceBenchOptions(files, system, out, cache_dir, questions, subset, judge, curation, overrides, limit)
    if estimate:
        _show_bill(console, judge or "no judge", estimate_voicebench(options, console, as_json), as_json)
        return
    summary = run_voicebench(options, console, as_json)
    if as_json:
        print_json({"subsets": summary.figures(), "undecided": summary.undecided})
    else:
        for name, figure in summary.figures().items():
            console.print(f"{name:>18} {cell(figure, digits=1)}")
        console.print(f"points of 100, the mean over subsets; rows in {out}")
    exit_if_unscored(summary.unscored)
