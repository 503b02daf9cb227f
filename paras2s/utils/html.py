"""HTML pages from Jinja templates: every value is escaped, and a missing name is an error."""

from __future__ import annotations

from pathlib import Path

from jinja2 import Environment, FileSystemLoader, StrictUndefined, Template


def template_folder(folder: Path) -> Environment:
    """Make an environment that loads a folder's templates; they may include `page_style.css.j2`, which is beside this file."""
    return Environment(
        autoescape=True,
        loader=FileSystemLoader([folder, Path(__file__).parent]),
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )


def page_template(path: Path) -> Template:
    """Load the template in a file."""
    return template_folder(path.parent).get_template(path.name)
