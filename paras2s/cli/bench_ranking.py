"""The verb that ranks systems: `rank`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from paras2s.cli.options import Json, print_json


def read_names(file: Path | None, items: list[str] | None) -> dict[str, str]:
    """What people's systems are called among the verdicts: a YAML mapping, and OLD=NEW pairs beside it.

    Raises:
        ConfigError: not such a file or pair, or a name that stands twice.
    """
    import yaml

    from paras2s.errors import ConfigError, one_line

    found: dict[str, str] = {}
    if file is not None:
        try:
            values = yaml.safe_load(file.read_text(encoding="utf-8"))
        except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
            raise ConfigError(f"--names {file}: cannot be read ({one_line(error)})") from error
        if not isinstance(values, dict) or not all(isinstance(one, str) and one for pair in values.items() for one in pair):
            raise ConfigError(f"--names {file}: expected lines such as 'Moshi: moshi', people's name and that of the verdicts")
        found |= values
    for item in items or []:
        # The new name may hold an equals sign, the old one not.
        old, equals, new = item.partition("=")
        if not equals or not old or not new:
            raise ConfigError(f"--alias {item}: expected OLD=NEW, people's name and that of the verdicts")
        if old in found:
            raise ConfigError(f"--alias {item}: {old!r} is renamed already, to {found[old]!r}")
        found[old] = new
    return found


def rank(
    verdicts: Annotated[
        Path, typer.Argument(help="CSV: aspect, instruction_id, system, reference, system_first, system_second (1, 2, tie).")
    ],
    human: Annotated[
        Path | None, typer.Option(help="People's scores (CSV: system, score), or labelled pairs (TRACE's JSON).")
    ] = None,
    names: Annotated[Path | None, typer.Option(help="YAML: what people's systems are called among the verdicts.")] = None,
    alias: Annotated[list[str] | None, typer.Option(help="OLD=NEW: the same for one system. Repeatable.")] = None,
    rule: Annotated[str | None, typer.Option(help="How aspects become the ensemble; else majority.")] = None,
    rules: Annotated[Path | None, typer.Option(help="YAML with such rules of your own, for --rule.")] = None,
    aspect: Annotated[list[str] | None, typer.Option(help="Rank by this one, or by ensemble. Repeatable; else by all.")] = None,
    out: Annotated[
        Path | None, typer.Option(help="Folder for ranking.json, ranking.md and, with --human, ranking.svg.")
    ] = None,
    as_json: Json = False,
) -> None:
    """Rank systems by a judge's recorded verdicts against one reference, and compare that with people (AudioJudge)."""
    from paras2s.bench.ranking.data import load_people, load_recorded
    from paras2s.bench.ranking.metrics import rank_systems
    from paras2s.bench.ranking.report import markdown, ranking_json, scatter_svg, show
    from paras2s.errors import ConfigError
    from paras2s.reward.judges.audio_judge.ensemble_rules import DEFAULT_ENSEMBLE, ENSEMBLE, find_ensemble
    from paras2s.utils.io import write_json, write_text
    from paras2s.utils.progress import open_console

    if human is None and (names or alias):
        raise ConfigError("--names and --alias rename people's systems: give --human as well")
    if rules and not rule:
        raise ConfigError(f"--rules {rules}: say which of its rules makes the ensemble: give --rule as well")
    if rule and aspect and ENSEMBLE not in aspect:
        raise ConfigError(f"--rule {rule}: makes the ensemble, which is not ranked: add --aspect {ENSEMBLE}")
    ensemble = find_ensemble(rule or DEFAULT_ENSEMBLE, rules)
    people = load_people(human, read_names(names, alias)) if human else None
    recorded = load_recorded(verdicts)
    # Who names a rule wants an ensemble; else one that the file has no aspects for is a problem among others.
    wanted = aspect or ([*recorded.aspects, ENSEMBLE] if rule else [])
    found = rank_systems(recorded, ensemble, wanted, people)
    about = {
        "verdicts": str(verdicts),
        "human": str(human) if human else None,
        "rule": f"{rule or DEFAULT_ENSEMBLE}: {ensemble.says}" if ENSEMBLE in found.aspects else None,
    }
    report = ranking_json(found, about)
    if out is not None:
        write_json(out / "ranking.json", report)
        write_text(out / "ranking.md", markdown(found, about))
        if found.people is not None:
            write_text(out / "ranking.svg", scatter_svg(found, found.people))
    if as_json:
        print_json(report)
        return
    console = open_console()
    show(console, found)
    if out is not None:
        plot = " and ranking.svg" if found.people else "; a plot needs --human"
        console.print(f"in {out}: ranking.json, ranking.md{plot}", highlight=False, markup=False)
