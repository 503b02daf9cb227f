"""`paras2s data`, with a run's config or a curation's."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from paras2s.cli.options import Json, parse_overrides, print_json
from paras2s.cli.run_options import RunDir, Seed, Set, Wait
from paras2s.errors import ConfigError

if TYPE_CHECKING:
    from rich.console import Console

    from paras2s.configs.schema.curation import CurationConfig


def data(
    config: Annotated[
        Path, typer.Argument(help="Config of a run (demo, quick ...) or of a curation (local, paper), or a YAML.")
    ],
    set_: Set = None,
    seed: Seed = None,
    run_dir: RunDir = None,
    report: Annotated[
        bool, typer.Option("--report", help="Print the outcome of every sentence and clip; make nothing.")
    ] = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Print the cost and the config; call nothing.")] = False,
    limit: Annotated[int | None, typer.Option(min=1, help="Curation, pilot: write at most N sentences.")] = None,
    check: Annotated[
        str | None, typer.Option(metavar="NAME", help="Curation: listen to clips and decide on them, as this annotator.")
    ] = None,
    port: Annotated[int, typer.Option(help="Port of the page for listening. 0: any free port.")] = 0,
    ray: Annotated[bool, typer.Option("--ray", help="Curation: measure clips with Ray Data.")] = False,
    ray_address: Annotated[
        str | None, typer.Option(help="Address of a running Ray cluster. Default: start Ray on this machine.")
    ] = None,
    wait: Wait = False,
    as_json: Json = False,
) -> None:
    """Make queries and demonstrations: from the shipped scripts for a run, or at scale with an LLM and a TTS (curation)."""
    from paras2s.configs.find import which_config
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
        wait,
    )


def import_data(
    source: Annotated[Path, typer.Argument(help="Audio dataset: *.parquet, save_to_disk's folder, or one with metadata.csv.")],
    out: Annotated[Path, typer.Argument(help="New folder, as `bench paras2s` and a run's data.curated read it.")],
    columns: Annotated[
        list[str],
        typer.Option(
            metavar="PART=COLUMN,...",
            help="audio, text, style, speaker, contrast, category, topic, role, answer_audio, answer_text, answer_tone.",
        ),
    ],
    role: Annotated[
        str | None,
        typer.Option(help="Role of all rows: demonstration, preference, rl, validation or test. Default: the split's."),
    ] = None,
    category: Annotated[str, typer.Option(help="Category of rows without one.")] = "emotion",
    split: Annotated[str | None, typer.Option(help="Only the tables of this split: train, validation, test ...")] = None,
    limit: Annotated[int | None, typer.Option(min=1, help="Only the first N rows.")] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Check the columns and count the rows; write nothing.")] = False,
    as_json: Json = False,
) -> None:
    """Import an audio dataset whose columns you name: its clips as spoken queries, with the labels that it has."""
    from collections import Counter

    from paras2s.cli.options import parse_pairs
    from paras2s.data_gen.import_audio import check_columns, import_dataset, open_source, role_of
    from paras2s.utils.progress import open_console, progress_bar

    named = parse_pairs([pair for item in columns for pair in item.split(",")], "--columns")
    tables = open_source(source, split)
    check_columns(tables, named)
    if dry_run:
        shown = {"rows": tables.rows, "tables": len(tables.files), "columns": list(tables.columns)}
        print_json(shown) if as_json else typer.echo(
            f"{shown['rows']} rows; columns: {', '.join(tables.columns)}; nothing written"
        )
        return
    checked = None if role is None else role_of(role, "test")
    with progress_bar(open_console(to_stderr=as_json), "clips", tables.rows, quiet=as_json) as bar:
        manifest = import_dataset(
            source, out, named, role=checked, category=category, split=split, limit=limit, progress=bar.at
        )
    left = [candidate for candidate in manifest.candidates if candidate.rejected_by is not None]
    roles = Counter(query.role for query in manifest.queries)
    if as_json:
        print_json({"queries": roles, "demonstrations": len(manifest.demonstrations), "left_out": len(left)})
        return
    counts = ", ".join(f"{count} {name}" for name, count in roles.items())
    typer.echo(f"{out}: {counts} queries, {len(manifest.demonstrations)} demonstrations")
    if left:
        typer.echo(
            f"{len(left)} rows left out ({out}/candidates.parquet says why), the first: {left[0].id}, {left[0].rejected}"
        )


def run_scripts(run: Any, report: bool, dry_run: bool, curation_options: list[Any], as_json: bool, wait: bool) -> None:
    """Build, report or dry-run the dataset of a run."""
    from paras2s.configs.schema.base import dump_config
    from paras2s.data_gen.curation.report import read_funnel
    from paras2s.pipeline.curate import funnel_json, show_funnel
    from paras2s.pipeline.data import run_data

    if any(option is not None for option in curation_options):
        raise ConfigError("--limit, --check and --ray are for a curation; a run has the shipped scripts")
    if dry_run:
        typer.echo(dump_config(run.config))
        return
    if report:
        funnel = read_funnel(run.data_dir)
        print_json(funnel_json(funnel)) if as_json else show_funnel(run.console, funnel)
        return
    run.open(wait)
    dataset = run_data(run)
    if as_json:
        counts = {"queries": len(dataset.queries), "candidates": len(dataset.candidates)}
        print_json({**counts, "audibility": dataset.audibility})


@dataclass(frozen=True)
class Curation:
    """Options of `paras2s data` for a curation. `ray_address` "": without Ray."""

    overrides: list[str] | None
    seed: int | None
    folder: Path | None
    report: bool
    dry_run: bool
    limit: int | None
    check: str | None
    port: int
    ray_address: str | None


def curate(path: Path, options: Curation, as_json: bool) -> None:
    """Run, estimate, report or check a curation."""
    from paras2s.configs.schema.base import dump_config
    from paras2s.configs.schema.curation import load_curation
    from paras2s.data_gen.curation.report import read_funnel
    from paras2s.pipeline import curate as stage
    from paras2s.utils.progress import open_console

    own: dict[str, Any] = {} if options.seed is None else {"seed": options.seed}
    own |= {} if options.folder is None else {"folder": str(options.folder)}
    config = load_curation(path, parse_overrides(options.overrides) | own)
    console = open_console(to_stderr=as_json)
    if options.report:
        funnel = read_funnel(config.folder)
        print_json(stage.funnel_json(funnel)) if as_json else stage.show_funnel(console, funnel)
    elif options.dry_run:
        stages, measured_on = stage.estimate_curation(config, options.limit)
        if as_json:
            by_stage = {name: asdict(estimate) for name, estimate in stages.items()}
            print_json({"stages": by_stage, "measured_on": measured_on, "config": config.model_dump(mode="json")})
        else:
            typer.echo(dump_config(config))
            stage.show_estimate(console, stages, measured_on)
    elif options.check is not None:
        check_clips(config, options.check, options.port, console)
    else:
        result = stage.run_curation(config, console, as_json, options.limit, options.ray_address)
        print_json({**asdict(result), "folder": str(result.folder)}) if as_json else stage.show_result(console, result)


def check_clips(config: CurationConfig, name: str, port: int, console: Console) -> None:
    """Serve the page of the human check to one annotator until Ctrl-C, and say how far they are."""
    from paras2s.cli.studio import check_installed
    from paras2s.data_gen.curation.human_check import load_decisions, open_check

    check_installed()
    from paras2s.studio.app import make_annotating_app
    from paras2s.studio.serve import serve

    store, annotator = open_check(config, name)

    def say(line: str) -> None:
        console.print(f"Listen and decide: {line}", soft_wrap=True)

    serve(make_annotating_app(store.folder), port, False, say, f"annotate/{annotator.token}")
    shown = {item.id for item in store.study.items if not item.retired}
    mine = [decision for decision in load_decisions(config.folder) if decision.annotator == name and decision.item_id in shown]
    accepted = sum(decision.accept for decision in mine)
    others = sum(decision.choice is not None for decision in mine)
    console.print(
        f"{len(mine)} of {len(shown)} decided by {name}: {accepted} accepted ({others} with another take), "
        f"{len(mine) - accepted} rejected; run the pipeline again to apply it"
    )
