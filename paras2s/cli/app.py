"""`paras2s <verb>`. Parses before anything heavy is imported; errors of this project are one line and exit 2."""

from __future__ import annotations

import os
import sys
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from paras2s import __version__
from paras2s.cli.ablate import ablate
from paras2s.cli.align import align
from paras2s.cli.bench_bias import probe
from paras2s.cli.bench_detection import bench_detect
from paras2s.cli.bench_paras2s import bench_paras2s, bench_voicebench
from paras2s.cli.bench_ranking import rank
from paras2s.cli.bench_speakbench import bench_app
from paras2s.cli.bench_styleset import bench_styleset
from paras2s.cli.bench_systems import bench_systems
from paras2s.cli.check_policy import check_policy
from paras2s.cli.config import config
from paras2s.cli.convert import convert
from paras2s.cli.demo import demo
from paras2s.cli.distill import distill
from paras2s.cli.judge import blueprint, judge_app
from paras2s.cli.options import Json, parse_overrides, print_json
from paras2s.cli.paper import paper
from paras2s.cli.plan import plan
from paras2s.cli.run_options import Config, RunDir, Seed, Set
from paras2s.cli.warmup import warmup
from paras2s.errors import ParaS2SError

app = typer.Typer(
    name="paras2s",
    help="Teach a speech-to-speech model to hear how something is said, and to answer fittingly.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)

for verb in (demo, warmup, distill, align, ablate, paper, config, convert, blueprint, plan, rank, probe):
    app.command()(verb)
app.command("check-policy")(check_policy)
app.add_typer(judge_app, name="judge")
bench_app.command("paras2s")(bench_paras2s)
bench_app.command("voicebench")(bench_voicebench)
bench_app.command("systems")(bench_systems)
bench_app.command("detect")(bench_detect)
bench_app.command("styleset")(bench_styleset)
app.add_typer(bench_app, name="bench")


class HeldOut(StrEnum):
    """The queries that nothing is trained on."""

    validation = "validation"
    test = "test"


@app.command()
def data(
    config: Annotated[Path, typer.Argument(help="A run's config (demo, ci, full), or a curation's (local, paper), or YAML.")],
    set_: Set = None,
    seed: Seed = None,
    run_dir: RunDir = None,
    report: Annotated[bool, typer.Option("--report", help="What became of every sentence and clip; makes nothing.")] = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="What it would take, and the config; calls nothing.")] = False,
    limit: Annotated[int | None, typer.Option(min=1, help="Curation: write so many sentences at most, as a pilot.")] = None,
    check: Annotated[str | None, typer.Option(metavar="NAME", help="Curation: listen and decide, under this name.")] = None,
    port: Annotated[int, typer.Option(help="Of the page to listen at; 0: any free one.")] = 0,
    ray: Annotated[bool, typer.Option("--ray", help="Curation: measure clips over Ray Data.")] = False,
    ray_address: Annotated[str | None, typer.Option(help="Of a running cluster; else Ray starts here.")] = None,
    as_json: Json = False,
) -> None:
    """Make queries and demonstrations: from the shipped scripts for a run, or at scale with an LLM and a TTS (curation)."""
    from paras2s.cli.data import Curation, curate, run_scripts, which_config
    from paras2s.run import open_run

    path, is_curation = which_config(config)
    if is_curation:
        where: str | None = ray_address if ray or ray_address else ""
        curate(path, Curation(set_, seed, run_dir, report, dry_run, limit, check, port, where), as_json)
        return
    run_scripts(
        open_run(path, parse_overrides(set_), seed, run_dir, as_json),
        report,
        dry_run,
        [limit, check, ray or None, ray_address],
        as_json,
    )


@bench_app.command("contrasts")
def contrasts(
    config: Config,
    set_: Set = None,
    seed: Seed = None,
    run_dir: RunDir = None,
    as_json: Json = False,
    on: Annotated[HeldOut, typer.Option(help="validation: for choosing settings. test: for the figure, asked once.")] = (
        HeldOut.test
    ),
) -> None:
    """Score every system on the held-out queries, with standard errors."""
    from paras2s.bench.paras2s.contrasts import describe_bench, run_bench
    from paras2s.bench.paras2s.metrics import summary
    from paras2s.data_gen.dataset import load_dataset
    from paras2s.reward.reward_model.model import RewardModel
    from paras2s.run import open_run

    run = open_run(config, parse_overrides(set_), seed, run_dir, as_json)
    run.open()
    systems = run_bench(run, load_dataset(run.data_dir), RewardModel.load(run.reward_dir), on.value)
    describe_bench(run, systems)
    if as_json:
        print_json(summary(systems))


@app.command()
def doctor(as_json: Json = False) -> None:
    """List what is installed, what is missing, and what each missing part switches off."""
    from paras2s.cli.doctor import examine, show

    found = examine()
    if as_json:
        print_json(found)
    else:
        show(found)
    if any(part["needed"] and not part["ok"] for part in found["parts"]):
        raise typer.Exit(1)


def _version(wanted: bool) -> None:
    if wanted:
        typer.echo(__version__)
        raise typer.Exit


@app.callback()
def _root(
    version: Annotated[bool, typer.Option("--version", callback=_version, is_eager=True, help="Print it.")] = False,
) -> None:
    # Bars of other libraries, their telemetry and their attempts at a hub are of no use here. OpenMP threads that wait for
    # each other must sleep: beside one busy program, spinning ones are up to twenty times slower. All before torch is loaded.
    quiet = {
        "OMP_WAIT_POLICY": "PASSIVE",
        "HF_HUB_OFFLINE": "1",
        "HF_HUB_DISABLE_PROGRESS_BARS": "1",
        "PYTHONWARNINGS": "ignore",
        "RAY_USAGE_STATS_ENABLED": "0",
        "TOKENIZERS_PARALLELISM": "false",
        "TRANSFORMERS_VERBOSITY": "error",
    }
    for name, value in quiet.items():
        os.environ.setdefault(name, value)
    import warnings

    warnings.filterwarnings("ignore")


def main() -> None:
    """Entry point of the command line."""
    try:
        app()
    except ParaS2SError as error:
        typer.echo(f"paras2s: {error}", err=True)
        sys.exit(2)
    except KeyboardInterrupt:
        typer.echo("paras2s: stopped; the same command continues where this one ended", err=True)
        sys.exit(130)
