"""Options that several verbs share, and the parsing and printing of values."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Annotated, Any

import typer

Json = Annotated[bool, typer.Option("--json", help="Print one JSON object and nothing else.")]
Set = Annotated[list[str] | None, typer.Option("--set", "-s", help="Override a config value: llm.model=gpt-4o. Repeatable.")]
Tone = Annotated[Path | None, typer.Option(help="A fitted tone classifier (RUN/data/tone_agent.json).")]
Estimate = Annotated[bool, typer.Option("--estimate", help="Print the most that the calls would cost; call nothing.")]
Task = Annotated[
    str | None,
    typer.Option(help="Task of an audio judge (pronunciation, lexical ...) or a UniSRM (T1 to T4). Default: the judge's own."),
]
Dump = Annotated[
    Path | None,
    typer.Option(help="Folder for the audio and text of the requests to an audio judge or served UniSRM; call nothing."),
]
RetryUnscored = Annotated[bool, typer.Option("--retry-unscored", help="Judge again only the items without a verdict.")]
Limit = Annotated[int | None, typer.Option(min=1, help="Use only the first N pairs.")]
Queries = Annotated[int | None, typer.Option("--limit", min=1, help="Judge N queries at most, of each category in turn.")]
Systems = Annotated[
    list[str],
    typer.Option(
        "--system",
        help="NAME=SYSTEM: a folder of ID.wav, a checkpoint's folder, an endpoint's YAML, cascade or topline. Repeatable.",
    ),
]
Curation = Annotated[Path | None, typer.Option(help="YAML of a curation: LLM and voice for cascade and topline.")]
Cache = Annotated[Path, typer.Option(help="Folder of cached paid replies.")]


# Exit codes of the program; the page on judges has the same list.
EXIT_CODES = (
    "Exit codes: 0 done, everything has a verdict; 1 done, but something is unscored; 2 refused or stopped (a wrong option or "
    "file, a spent budget, a failing endpoint), with the reason in one line; 130 stopped by Ctrl-C. Finished work is kept; "
    "the same command continues it."
)
UNSCORED = 1


def exit_if_unscored(unscored: object) -> None:
    """Exit with code 1 if an item has no verdict. Raises typer.Exit: something is unscored."""
    if unscored:
        raise typer.Exit(UNSCORED)


_printed = False


def print_json(value: Any) -> None:
    """Print a JSON value on standard output; NaN is refused."""
    global _printed
    _printed = True
    typer.echo(json.dumps(value, indent=1, allow_nan=False))


def print_failure(error: str) -> None:
    """Print the error of a command with --json that has printed nothing yet, and what its calls cost."""
    endpoint = sys.modules.get("paras2s.clients.endpoint")
    if "--json" in sys.argv[1:] and not _printed:
        print_json({"error": error, **(endpoint.SPENT if endpoint else {"spent_usd": 0.0, "unreported_usd": 0.0})})


def print_json_members(members: Iterable[tuple[str, Any]]) -> None:
    """Print a JSON object member by member, as they come, in the form of `print_json`; nothing if there are none."""
    empty = True
    for key, value in members:
        member = json.dumps({key: value}, indent=1, allow_nan=False).removeprefix("{").removesuffix("\n}")
        typer.echo(("{" if empty else ",") + member, nl=False)
        empty = False
    if not empty:
        typer.echo("\n}")


def parse_pairs(items: list[str] | None, option: str) -> dict[str, str]:
    """Parse KEY=VALUE pairs; values stay text. Raises ConfigError: no equals sign."""
    from paras2s.errors import ConfigError

    pairs = {}
    for item in items or []:
        key, equals, value = item.partition("=")
        if not equals:
            raise ConfigError(f"{option} {item}: expected key=value")
        pairs[key] = value
    return pairs


def parse_overrides(items: list[str] | None) -> dict[str, Any]:
    """Parse the KEY=VALUE pairs of --set; values are YAML. Raises ConfigError: no equals sign, or not YAML."""
    from paras2s.utils.io import parse_yaml

    overrides: dict[str, Any] = {}
    for key, value in parse_pairs(items, "--set").items():
        overrides[key] = parse_yaml(value, f"--set {key}={value}")
    return overrides


def parse_seeds(seeds: str) -> list[int]:
    """Parse the seeds of --seeds. Raises ConfigError: a seed is no number, or occurs twice."""
    from paras2s.errors import ConfigError

    numbers = seeds.split()
    if not numbers or not all(number.isdigit() for number in numbers) or len(set(numbers)) < len(numbers):
        raise ConfigError(f"--seeds {seeds!r}: give different numbers separated by blanks, such as '0 1 2'")
    return [int(number) for number in numbers]


def parse_systems(items: list[str], option: str = "--system") -> dict[str, str]:
    """Parse the NAME=SYSTEM pairs of --system.

    Raises:
        ConfigError: no equals sign, a name that cannot be a file name, or the same name twice.
    """
    import re

    from paras2s.errors import ConfigError

    systems: dict[str, str] = {}
    for item in items:
        name, equals, spec = item.partition("=")
        if equals and not re.fullmatch(r"\w[\w.+-]{0,59}", name):
            raise ConfigError(f"{option} {item}: the name may have letters, digits and ._+-, no spaces, at most 60 in all")
        if not equals or not spec:
            raise ConfigError(f"{option} {item}: expected NAME=SYSTEM, such as mine=answers/ or kimi=endpoint.yaml")
        if name in systems:
            raise ConfigError(f"{option} {name}: given twice")
        systems[name] = spec
    return systems
