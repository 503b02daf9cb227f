"""What several verbs share: options that read alike everywhere, and how their values are parsed and printed."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Any

import typer

Json = Annotated[bool, typer.Option("--json", help="Print one JSON object and nothing else.")]
Set = Annotated[list[str] | None, typer.Option("--set", "-s", help="Lay over the config: llm.model=gpt-4o. Repeatable.")]
Tone = Annotated[Path | None, typer.Option(help="A fitted tone classifier (RUN/data/tone_agent.json).")]
Estimate = Annotated[bool, typer.Option("--estimate", help="Say what the calls would cost at most, and make none.")]
Task = Annotated[
    str | None, typer.Option(help="Of an audio judge: pronunciation, speaker_identity, lexical ...; else its own.")
]
Dump = Annotated[
    Path | None, typer.Option(help="Of an audio judge: write its messages and recordings to this folder, and make no call.")
]
Limit = Annotated[int | None, typer.Option(min=1, help="Only the first so many pairs.")]
Systems = Annotated[
    list[str],
    typer.Option(
        "--system",
        help="NAME=WHAT: a folder of ID.wav, a checkpoint's folder, an endpoint's YAML, cascade, or topline. Repeatable.",
    ),
]
Curation = Annotated[Path | None, typer.Option(help="A curation's YAML: for cascade and topline, its LLM and its voice.")]
Cache = Annotated[Path, typer.Option(help="Where answers that were paid for are kept.")]


def print_json(value: Any) -> None:
    """One JSON value on standard output; a number that is none is refused."""
    typer.echo(json.dumps(value, indent=1, allow_nan=False))


def parse_pairs(items: list[str] | None, option: str) -> dict[str, str]:
    """KEY=VALUE pairs, the values as they were typed.

    Raises:
        ConfigError: no equals sign.
    """
    from paras2s.errors import ConfigError

    pairs = {}
    for item in items or []:
        key, equals, value = item.partition("=")
        if not equals:
            raise ConfigError(f"{option} {item}: expected key=value")
        pairs[key] = value
    return pairs


def parse_overrides(items: list[str] | None) -> dict[str, Any]:
    """--set's KEY=VALUE pairs, the values as YAML.

    Raises:
        ConfigError: no equals sign, or not YAML.
    """
    import yaml

    from paras2s.errors import ConfigError, one_line

    found: dict[str, Any] = {}
    for key, value in parse_pairs(items, "--set").items():
        try:
            found[key] = yaml.safe_load(value)
        except yaml.YAMLError as error:
            raise ConfigError(f"--set {key}={value}: not valid YAML ({one_line(error)})") from error
    return found


def parse_systems(items: list[str], option: str = "--system") -> dict[str, str]:
    """NAME=WHAT pairs.

    Raises:
        ConfigError: no equals sign, a name that is no file name, or one that stands twice.
    """
    import re

    from paras2s.errors import ConfigError

    found: dict[str, str] = {}
    for item in items:
        name, equals, spec = item.partition("=")
        if not equals or not re.fullmatch(r"\w[\w.+-]{0,59}", name) or not spec:
            raise ConfigError(f"{option} {item}: expected NAME=WHAT, such as mine=answers/ or kimi=endpoint.yaml")
        if name in found:
            raise ConfigError(f"{option} {name}: stands twice")
        found[name] = spec
    return found
