"""What `paras2s data` does with each of its two kinds of config: a run's, and a curation's."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import typer

from paras2s.cli.options import parse_overrides, print_json
from paras2s.errors import ConfigError


def which_config(config: Path) -> tuple[Path, bool]:
    """The file of a config, and whether it is a curation's: its `kind` says so.

    Raises:
        ConfigError: no such preset.
    """
    import yaml

    from paras2s.configs.schema.run import preset_path

    if config.suffix in (".yaml", ".yml"):
        try:
            values = yaml.safe_load(config.read_text()) if config.is_file() else None
        except (OSError, UnicodeDecodeError, yaml.YAMLError):
            # Whoever loads it says what is wrong.
            values = None
        return config, isinstance(values, dict) and values.get("kind") == "curation"
    try:
        return preset_path(str(config)), False
    except ConfigError as error:
        try:
            return preset_path(str(config), "data"), True
        except ConfigError as other:
            raise ConfigError(f"{error}; for curation, {str(other).rpartition('; ')[2]}") from None


def run_scripts(run: Any, report: bool, dry_run: bool, of_curation: list[Any], as_json: bool) -> None:
    """The shipped scripts, spoken for a run."""
    from paras2s.configs.schema.run import dump_config
    from paras2s.data_gen.curation.report import read_funnel
    from paras2s.pipeline.curate import funnel_json, show_funnel
    from paras2s.pipeline.data import run_data

    if any(one is not None for one in of_curation):
        raise ConfigError("--limit, --check and --ray are for a curation; a run speaks the shipped scripts")
    if dry_run:
        typer.echo(dump_config(run.config))
        return
    if report:
        found = read_funnel(run.data_dir)
        print_json(funnel_json(found)) if as_json else show_funnel(run.console, found)
        return
    run.open()
    dataset = run_data(run)
    if as_json:
        print_json({"queries": len(dataset.queries), "candidates": len(dataset.candidates), "hearing": dataset.hearing})


@dataclass(frozen=True)
class Curation:
    """What was asked for; see the options of `paras2s data`. `ray_address` "": not over Ray."""

    overrides: list[str] | None
    seed: int | None
    folder: Path | None
    report: bool
    dry_run: bool
    limit: int | None
    check: str | None
    port: int
    ray_address: str | None


def curate(path: Path, asked: Curation, as_json: bool) -> None:
    """Run, estimate, report or check a curation."""
    from paras2s.configs.schema.run import dump_config, load_curation
    from paras2s.data_gen.curation.report import read_funnel
    from paras2s.pipeline import curate as stage
    from paras2s.utils.progress import open_console

    own: dict[str, Any] = {} if asked.seed is None else {"seed": asked.seed}
    own |= {} if asked.folder is None else {"folder": str(asked.folder)}
    config = load_curation(path, parse_overrides(asked.overrides) | own)
    console = open_console(to_stderr=as_json)
    if asked.report:
        found = read_funnel(config.folder)
        print_json(stage.funnel_json(found)) if as_json else stage.show_funnel(console, found)
    elif asked.dry_run:
        stages, measured_on = stage.estimate_curation(config, asked.limit)
        if as_json:
            shown = {name: asdict(one) for name, one in stages.items()}
            print_json({"stages": shown, "measured_on": measured_on, "config": config.model_dump(mode="json")})
        else:
            typer.echo(dump_config(config))
            stage.show_estimate(console, stages, measured_on)
    elif asked.check is not None:
        decided, total = stage.check_clips(config, asked.check, asked.port, console)
        console.print(f"{decided} of {total} decided by {asked.check}; run the pipeline again to apply it", highlight=False)
    else:
        made = stage.run_curation(config, console, as_json, asked.limit, asked.ray_address)
        print_json(_plain(made)) if as_json else stage.show_curated(console, made)


def _plain(made: Any) -> dict[str, Any]:
    return {**asdict(made), "folder": str(made.folder)}
