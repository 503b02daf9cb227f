"""HTML pages from templates: everything that is put into one is escaped, and a name that is missing is an error."""

from __future__ import annotations

from pathlib import Path

from jinja2 import Environment, FileSystemLoader, StrictUndefined, Template


def page_template(path: Path) -> Template:
    """The template in this file."""
    environment = Environment(
        autoescape=True,
        loader=FileSystemLoader(path.parent),
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    return environment.get_template(path.name)
