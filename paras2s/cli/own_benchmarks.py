"""Benchmarks of other packages and of your own code as verbs below `paras2s bench`."""

from __future__ import annotations

from typing import Any

import typer
from typer.core import TyperGroup

from paras2s.utils.plugins import find_part, installed_parts

# Entry points of other packages' benchmarks: a function with typer's options, or a `typer.Typer`.
GROUP = "paras2s.benchmarks"


class BenchGroup(TyperGroup):
    """The shipped benchmarks, those of installed packages by name, and `module:function`."""

    def list_commands(self, ctx: Any) -> list[str]:
        """Return the names of all benchmarks."""
        return [*super().list_commands(ctx), *installed_parts("benchmark", GROUP, self.commands)]

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        """Return the benchmark of a name.

        Raises:
            ConfigError: no benchmark has this name, or its package cannot be imported.
        """
        shipped = super().get_command(ctx, cmd_name)
        if shipped is not None:
            return shipped
        part = find_part("benchmark", GROUP, cmd_name, self.commands)
        if isinstance(part, typer.Typer):
            return typer.main.get_command(part)
        app = typer.Typer(add_completion=False)
        app.command(cmd_name)(part)
        return typer.main.get_command(app)
