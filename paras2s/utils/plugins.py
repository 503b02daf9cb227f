"""Find a part by name: a shipped one, one of an installed package (an entry point), or `module:Class` of your own code.

The groups of entry points are `paras2s.judges`, `paras2s.rewards`, `paras2s.extractors`, `paras2s.tts`, `paras2s.benchmarks`,
`paras2s.suites` and `paras2s.policies`.
"""

from __future__ import annotations

import importlib
import importlib.metadata
from collections.abc import Collection, Mapping
from typing import Any

from paras2s.errors import ConfigError, ParaS2SError, one_line, raised_at
from paras2s.utils.suggest import did_you_mean


def find_part(what: str, group: str, name: str, shipped: Mapping[str, Any], error: type[ParaS2SError] = ConfigError) -> Any:
    """Return the part of a name; a shipped `module:Class` is imported. Raises ParaS2SError (of type `error`): no such part."""
    try:
        require_part(what, group, name, shipped)
    except ValueError as unknown:
        raise error(str(unknown)) from unknown
    where = {**shipped, **installed_parts(what, group, shipped, error)}.get(name, name)
    return import_part(where, f"{what} {name!r}", error) if isinstance(where, str) else where


def require_part(what: str, group: str, name: str, shipped: Collection[str]) -> str:
    """Return a name that stands for a part, without an import. Raises ValueError: no such part; lists the known ones."""
    installed = installed_parts(what, group, shipped)
    if name in shipped or name in installed or is_reference(name):
        return name
    known = ", ".join((*shipped, *installed))
    near = did_you_mean(name, (*shipped, *installed))
    raise ValueError(
        f"no {what} {name!r}{near}; there are {known}, or give module:Class of your own (PYTHONPATH=. for this folder)"
    )


def installed_parts(what: str, group: str, shipped: Collection[str], error: type[ParaS2SError] = ConfigError) -> dict[str, str]:
    """Return installed packages' parts by name, as `module:Class`. Raises ParaS2SError (type `error`): a shipped name."""
    installed = {entry.name: f"{entry.module}:{entry.attr}" for entry in importlib.metadata.entry_points(group=group)}
    if taken := sorted(set(installed) & set(shipped)):
        raise error(f"plug-in {installed[taken[0]]}: the {what} {taken[0]!r} exists already; uninstall or rename it")
    return installed


def is_reference(name: str) -> bool:
    """Return whether a name has the form `module:Class`."""
    module, _, attribute = name.partition(":")
    return attribute.isidentifier() and all(part.isidentifier() for part in module.split("."))


def import_part(where: str, key: str, error: type[ParaS2SError] = ConfigError) -> Any:
    """Return the object that `module:Class` names. Raises ParaS2SError (of the type `error`): it cannot be imported."""
    module, _, attribute = where.partition(":")
    try:
        return getattr(importlib.import_module(module), attribute)
    except Exception as failure:
        # Another package's import may raise whatever it likes; the user must learn whose it was.
        lost = isinstance(failure, ModuleNotFoundError) and failure.name == module.partition(".")[0]
        hint = "; begin the command with PYTHONPATH=. if it is in this folder" if lost else raised_at(failure)
        raise error(f"{key}: cannot import {where} ({one_line(failure)}){hint}") from failure
