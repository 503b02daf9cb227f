"""Base of all settings, and their loading from YAML. Imports no torch; unknown keys fail."""

from __future__ import annotations

import os
import re
from collections.abc import Collection, Iterator, Sequence
from importlib import resources
from pathlib import Path
from typing import Any, TypeVar, get_args

import yaml
from pydantic import BaseModel, ConfigDict, ValidationError, field_validator

from paras2s.errors import ConfigError, message_of
from paras2s.utils.io import read_yaml
from paras2s.utils.suggest import did_you_mean, nearest_file

# What torch and numpy take for a whole number.
LARGEST_INT = 2**63 - 1
MAX_SEED = 2**32 - 1
# A value that may be a key, put into the wrong field, is not printed.
SECRET_KEY = re.compile(r"key|token|secret|password", re.IGNORECASE)
SECRET = re.compile(r"\b(?:sk|pk|hf|gsk|xai|AIza)[-_]?[A-Za-z0-9_-]{12,}|\b[A-Za-z0-9_-]{32,}\b")
LONGEST_SHOWN = 120


class Section(BaseModel):
    """Base of all sections: frozen; unknown keys are errors, numbers are finite, paths may begin with ~ and hold $VARIABLES."""

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)

    @field_validator("*")
    @classmethod
    def _usable(cls, value: Any) -> Any:
        if isinstance(value, Path):
            return expanded(value)
        if isinstance(value, int) and abs(value) > LARGEST_INT:
            raise ValueError(f"a number of more than {len(str(LARGEST_INT)) - 1} digits")
        return value


def expanded(path: Path) -> Path:
    """Return a path with ~ and variables of the environment replaced."""
    return Path(os.path.expandvars(os.path.expanduser(path)))


Config = TypeVar("Config", bound=Section)


def parse_config(values: Any, name: str, kind: type[Config], overrides: Collection[str] = ()) -> Config:
    """Validate a mapping as a config of this kind; what is wrong with one of the `overrides` is said of --set, not of the file.

    Raises:
        ConfigError: names every wrong key, in one line.
    """
    if not isinstance(values, dict):
        raise ConfigError(f"{name}: expected a mapping of sections, got {type(values).__name__}")
    try:
        return kind.model_validate(values)
    except ValidationError as error:
        raise ConfigError("; ".join(_describe(item, name, kind, overrides) for item in error.errors())) from error


def _describe(item: Any, name: str, kind: type[Section], overrides: Collection[str]) -> str:
    key = ".".join(map(str, item["loc"]))
    if not key:
        # A rule between keys of several sections.
        return f"{name}{' with --set' if overrides else ''}: {_complaint(item, kind)}"
    given = any(f"{key}.".startswith(f"{override}.") for override in overrides)
    return f"--set {key}: {_complaint(item, kind)}" if given else f"{name}: {key}: {_complaint(item, kind)}"


def _complaint(item: Any, kind: type[Section]) -> str:
    if item["type"] == "extra_forbidden":
        return f"unknown key{_nearest_key(item['loc'], kind)}; `paras2s config` prints all keys"
    said = message_of(item)
    said = f"{said[0].lower()}{said[1:]}"
    if isinstance(item["input"], dict):
        # Of a rule between several keys the input is all of them.
        return said
    return f"{said} (got {_shown(str(item['loc'][-1]) if item['loc'] else '', item['input'])})"


def _shown(key: str, value: Any) -> str:
    text = repr(value)
    if isinstance(value, str) and (SECRET_KEY.search(key) or SECRET.search(value)):
        return f"a text of {len(value)} characters, not shown since it may be a key"
    return text if len(text) <= LONGEST_SHOWN else f"{text[:LONGEST_SHOWN]}..."


def _nearest_key(location: Sequence[str | int], kind: type[BaseModel]) -> str:
    """Return the nearest key of the section that an unknown one is in; else the key of this name in another section."""
    sections = [kind]
    for part in location[:-1]:
        # An index, or the tag of a union, names no section of its own.
        sections = [inner for section in sections for inner in _sections(section, str(part))] or sections
    near = did_you_mean(str(location[-1]), (name for section in sections for name in section.model_fields))
    return near or did_you_mean(f".{location[-1]}", (key for key in _dotted(kind) if key.endswith(f".{location[-1]}")))


def _sections(section: type[BaseModel], name: str) -> list[type[BaseModel]]:
    """Return the sections that a key of a section may hold."""
    field = section.model_fields.get(name)
    pending: list[Any] = [field.annotation] if field else []
    sections: list[type[BaseModel]] = []
    while pending:
        kind = pending.pop()
        if isinstance(kind, type) and issubclass(kind, BaseModel):
            sections.append(kind)
        pending += get_args(kind)
    return sections


def _dotted(kind: type[BaseModel], before: str = "") -> Iterator[str]:
    for name in kind.model_fields:
        yield f"{before}{name}"
        for inner in _sections(kind, name) if before.count(".") < 4 else ():
            yield from _dotted(inner, f"{before}{name}.")


def read_values(path: Path) -> Any:
    """Read a YAML config without validating it. Raises ConfigError: missing file, bad YAML."""
    if not os.path.exists(path):
        raise ConfigError(f"{path}: no such config{nearest_file(path)}; give a YAML file, or the name of a shipped config")
    return read_yaml(path) or {}


def load_section(path: Path, overrides: dict[str, Any] | None, kind: type[Config]) -> Config:
    """Read a YAML config and lay dotted overrides over it. Raises ConfigError: no such file, unknown key, bad value."""
    return parse_config(with_overrides(read_values(path), overrides), str(path), kind, overrides or ())


def with_overrides(values: Any, overrides: dict[str, Any] | None) -> Any:
    """Lay dotted overrides over settings; `parse_config` checks values. Raises ConfigError: a key within a value."""
    if not isinstance(values, dict):
        return values
    for dotted, value in (overrides or {}).items():
        *parents, key = dotted.split(".")
        section = values
        for parent in parents:
            # A section that is null is made by the override of a key in it.
            section[parent] = {} if section.get(parent) is None else section[parent]
            section = section[parent]
            if not isinstance(section, dict):
                raise ConfigError(f"{dotted}: '{parent}' is a value, not a section")
        section[key] = value
    return values


def shipped_presets(kind: str = "") -> list[str]:
    """List the names of the shipped configs of a kind."""
    return sorted(path.stem for path in _presets(kind).glob("*.yaml"))


def _presets(kind: str) -> Path:
    return Path(str(resources.files("paras2s"))) / "configs" / kind


def preset_path(name: str, kind: str = "") -> Path:
    """Return the path of a shipped config; `kind` is "" for runs, "judges" for judges. Raises ConfigError: no such preset."""
    path = _presets(kind) / f"{name}.yaml"
    if not path.is_file():
        presets = shipped_presets(kind)
        raise ConfigError(f"no preset {name!r}{did_you_mean(name, presets)}; there are {', '.join(presets)}")
    return path


def dump_config(config: Section) -> str:
    """Dump a resolved config as YAML."""
    return yaml.safe_dump(config.model_dump(mode="json"), sort_keys=False)
