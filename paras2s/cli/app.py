"""`paras2s <verb>`. Parses before anything heavy is imported; errors of this project are one line and exit 2."""

from __future__ import annotations

import os
import sys
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any

import typer

from paras2s import __version__
from paras2s.cli.bench_bias import probe
from paras2s.cli.bench_detection import bench_detect
from paras2s.cli.bench_paras2s import bench_paras2s, bench_voicebench
from paras2s.cli.bench_ranking import rank
from paras2s.cli.bench_speakbench import bench_app
from paras2s.cli.bench_styleset import bench_styleset
from paras2s.cli.bench_systems import bench_systems
from paras2s.cli.check_policy import check_policy
from paras2s.cli.judge import blueprint, judge_app
from paras2s.cli.options import Json, parse_overrides, print_json
from paras2s.cli.plan import plan
from paras2s.errors import ParaS2SError

app = typer.Typer(
    name="paras2s",
    help="Teach a speech-to-speech model to hear how something is said, and to answer fittingly.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)

app.command()(blueprint)
app.command("check-policy")(check_policy)
app.command()(plan)
app.command()(rank)
app.command()(probe)
app.add_typer(judge_app, name="judge")
bench_app.command("paras2s")(bench_paras2s)
bench_app.command("guard")(bench_voicebench)
bench_app.command("systems")(bench_systems)
bench_app.command("detect")(bench_detect)
bench_app.command("styleset")(bench_styleset)
app.add_typer(bench_app, name="bench")

Config = Annotated[Path, typer.Argument(help="A run's YAML config, or the name of a preset: demo, ci, full.")]
Set = Annotated[list[str] | None, typer.Option("--set", "-s", help="Lay over the config: align.steps=3. Repeatable.")]
Seed = Annotated[int | None, typer.Option(help="Another seed; the run gets a folder of its own.")]
RunDir = Annotated[Path | None, typer.Option(help="Another run folder.")]


class HeldOut(StrEnum):
    """The queries that nothing is trained on."""

    validation = "validation"
    test = "test"


def _open(config: Path, overrides: list[str] | None, seed: int | None, run_dir: Path | None, quiet: bool) -> Any:
    from paras2s.configs.schema.run import load_config, preset_path
    from paras2s.pipeline.demo import with_run_dir
    from paras2s.run import Run
    from paras2s.utils.progress import open_console

    path = config if config.suffix in (".yaml", ".yml") else preset_path(str(config))
    loaded = with_run_dir(load_config(path, parse_overrides(overrides)), run_dir, seed)
    return Run(loaded, open_console(to_stderr=quiet), quiet)


@app.command()
def demo(
    preset: Annotated[str, typer.Option(help="demo (a quarter of an hour), ci (minutes), full (longer).")] = "demo",
    seed: Seed = None,
    run_dir: RunDir = None,
    set_: Set = None,
    resume: Annotated[bool, typer.Option(help="Continue a killed run; finished stages are kept either way.")] = True,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Say what would be done, and do nothing.")] = False,
    as_json: Json = False,
) -> None:
    """Train a small speech-to-speech model by reinforcement on this machine, offline, and write report.html."""
    from paras2s.pipeline.demo import announce, run_demo

    run = _open(Path(preset), set_, seed, run_dir, as_json)
    if dry_run:
        from paras2s.configs.schema.run import dump_config

        typer.echo(announce(run))
        typer.echo(dump_config(run.config))
        return
    found = run_demo(run, resume)
    if as_json:
        print_json(found)


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

    path, is_curation = which_config(config)
    if is_curation:
        where: str | None = ray_address if ray or ray_address else ""
        curate(path, Curation(set_, seed, run_dir, report, dry_run, limit, check, port, where), as_json)
        return
    run_scripts(_open(path, set_, seed, run_dir, as_json), report, dry_run, [limit, check, ray or None, ray_address], as_json)


@app.command()
def warmup(config: Config, set_: Set = None, seed: Seed = None, run_dir: RunDir = None) -> None:
    """Train the SFT policy on the demonstrations."""
    from paras2s.data_gen.dataset import load_dataset
    from paras2s.pipeline.warmup import run_warmup

    run = _open(config, set_, seed, run_dir, False)
    run.open()
    run_warmup(run, load_dataset(run.data_dir))


@app.command()
def distill(
    config: Config,
    set_: Set = None,
    seed: Seed = None,
    run_dir: RunDir = None,
    export: Annotated[Path | None, typer.Option(help="Write the distilled Omni model there, merged, for vLLM.")] = None,
    as_json: Json = False,
) -> None:
    """Judge the SFT policy's own answers and train the reward model on the verdicts."""
    from paras2s.data_gen.dataset import load_dataset
    from paras2s.pipeline.distill import run_distill
    from paras2s.utils.io import read_json

    run = _open(config, set_, seed, run_dir, as_json)
    run.open()
    run_distill(run, load_dataset(run.data_dir), run.load_policy(run.sft_dir))
    if export is not None:
        from paras2s.pipeline.distill_omni import export_omni

        export_omni(run, export)
    if as_json:
        print_json(read_json(run.reward_dir / "agreement.json"))


@app.command()
def align(
    config: Config,
    set_: Set = None,
    seed: Seed = None,
    run_dir: RunDir = None,
    resume: Annotated[bool, typer.Option(help="Continue from the newest checkpoint.")] = False,
) -> None:
    """Move the SFT policy toward its better answers by GRPO."""
    from paras2s.data_gen.dataset import load_dataset
    from paras2s.pipeline.align import run_align

    run = _open(config, set_, seed, run_dir, False)
    run.open()
    run_align(run, load_dataset(run.data_dir), run.load_policy(run.sft_dir), resume)


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
    from paras2s.bench.paras2s.run_checkpoint import describe_bench, run_bench, summary
    from paras2s.data_gen.dataset import load_dataset
    from paras2s.reward.reward_model.model import RewardModel

    run = _open(config, set_, seed, run_dir, as_json)
    run.open()
    systems = run_bench(run, load_dataset(run.data_dir), RewardModel.load(run.reward_dir), on.value)
    describe_bench(run, systems)
    if as_json:
        print_json(summary(systems))


@app.command()
def ablate(
    config: Annotated[Path, typer.Argument(help="An ablation's YAML, or the name of a shipped one (configs/paper).")],
    set_: Set = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Resolve every row, and run none.")] = False,
    as_json: Json = False,
) -> None:
    """Run a grid of settings, sharing what rows have in common; one table and one plot."""
    from paras2s.configs.schema.run import dump_config, load_ablation, preset_path
    from paras2s.pipeline.ablate import row_config, run_ablation
    from paras2s.utils.io import read_json
    from paras2s.utils.progress import open_console

    path = config if config.suffix in (".yaml", ".yml") else preset_path(str(config), "paper")
    found = load_ablation(path, parse_overrides(set_))
    if dry_run:
        for row in found.rows:
            typer.echo(f"# {row.name}\n{dump_config(row_config(found, row, found.seeds[0]))}")
        return
    folder = run_ablation(found, open_console(to_stderr=as_json), as_json)
    if as_json:
        print_json(read_json(folder / "table.json"))
    else:
        typer.echo(f"{folder}/table.md, table.json, and plots where rows have a place on an axis")


@app.command()
def paper(
    only: Annotated[list[str] | None, typer.Option(help="One figure: fig2a, table2 ... Repeatable; else all.")] = None,
    out: Annotated[Path, typer.Option(help="Where paper.md and its plots are written.")] = Path("docs"),
    run: Annotated[bool, typer.Option(help="Run what is not whole yet; else write the page from what there is.")] = True,
) -> None:
    """Run the paper's figures in miniature, hours on a laptop, and write them beside the paper's numbers."""
    from paras2s.pipeline.paper import FIGURES, run_figures
    from paras2s.utils.progress import open_console

    typer.echo(run_figures(only or FIGURES, open_console(), False, out, run))


@app.command()
def config(config: Annotated[Path, typer.Argument(help="A YAML config or a preset.")] = Path("demo")) -> None:
    """Print a config with every key there is, resolved."""
    from paras2s.configs.schema.run import dump_config

    typer.echo(dump_config(_open(config, None, None, None, False).config))


@app.command()
def doctor(as_json: Json = False) -> None:
    """What is installed, what is missing, and what each missing part switches off."""
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
    # Bars of other libraries, their telemetry and their attempts at a hub say nothing to our users.
    quiet = {
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
