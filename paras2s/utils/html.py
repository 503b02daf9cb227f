"""HTML pages from Jinja templates: every value is escaped, and a missing name is an error."""

from __future__ import annotations

from pathlib import Path

from jinja2 import Environment, FileSystemLoader, StrictUndefined, Template


def page_template(path: Path) -> Template:
    """Loads the template in a file; it may include `page_style.css.j2`, which lies here."""
    environment = Environment(
        autoescape=True,
        loader=FileSystemLoader([path.parent, Path(__file__).parent]),
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    return environment.get_template(path.name)
