"""Prompts from files, with the words of clips as data that can never become an instruction or a delimiter.

Substitution is done once, so that a placeholder inside a transcript stays as it is.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from importlib import resources
from pathlib import Path
from typing import Any

from paras2s.clients.chat import Audio, Message
from paras2s.errors import ConfigError
from paras2s.utils.io import reading

PLACEHOLDER = re.compile(r"\{\{(\w+)\}\}")
OPEN, CLOSE = "<data {name}>", "</data>"


@dataclass(frozen=True)
class Prompt:
    """A system and a user prompt; `hash` changes with every letter of either."""

    system: str
    user: str

    @property
    def hash(self) -> str:
        """The first 16 digits of the SHA-256 of both."""
        return hashlib.sha256(f"{self.system}\0{self.user}".encode()).hexdigest()[:16]

    def messages(self, values: Mapping[str, Any], plain: Mapping[str, str]) -> tuple[Message, Message]:
        """Return both messages, with `values` as data and `plain` (our own text) as it is. Audio becomes a part of its own.

        Raises:
            ConfigError: the prompt names a placeholder that there is no value for.
        """
        return Message("system", (self.system,)), Message("user", tuple(_filled(self.user, values, plain)))


def load_prompt(system: str, user: str, folder: Path | None = None) -> Prompt:
    """Load shipped prompts, each replaced by an existing `folder`/NAME.md. Raises ConfigError: a folder that replaces none."""
    if folder is not None:
        if not folder.is_dir():
            raise ConfigError(f"prompts: {folder} is not a folder")
        shipped = {Path(entry.name).stem for entry in resources.files("paras2s.reward").joinpath("prompts").iterdir()}
        if unknown := sorted(path.name for path in folder.glob("*.md") if path.stem not in shipped):
            raise ConfigError(f"prompts: {folder / unknown[0]} replaces nothing; there are {', '.join(sorted(shipped))}")
    return Prompt(read_prompt(system, folder), read_prompt(user, folder))


def read_prompt(name: str, folder: Path | None = None, package: str = "paras2s.reward") -> str:
    """Read one prompt: the user's file, or the one in `package`/prompts. Raises ConfigError: it cannot be read."""
    own = folder / f"{name}.md" if folder else None
    source = own if own and own.is_file() else resources.files(package).joinpath(f"prompts/{name}.md")
    with reading(source, kind=ConfigError):
        return source.read_text(encoding="utf-8").strip()


def as_data(name: str, value: Any) -> str:
    """Return JSON between our delimiters. No value can write a delimiter or a line break inside it."""
    text = json.dumps(value, ensure_ascii=False, allow_nan=False).replace("<", "\\u003c").replace(">", "\\u003e")
    # JSON leaves these as they are, and some readers take them for the end of a line.
    text = text.replace("\u2028", "\\u2028").replace("\u2029", "\\u2029").replace("\x85", "\\u0085")
    return f"{OPEN.format(name=name)}\n{text}\n{CLOSE}"


def _filled(template: str, values: Mapping[str, Any], plain: Mapping[str, str]) -> list[str | Audio]:
    parts: list[str | Audio] = []
    text, end = "", 0
    for match in PLACEHOLDER.finditer(template):
        name = match.group(1)
        text += template[end : match.start()]
        end = match.end()
        if name in plain:
            text += plain[name]
        elif name not in values:
            raise ConfigError(f"the prompt asks for {{{{{name}}}}}; there are {', '.join((*plain, *values))}")
        elif isinstance(values[name], Audio):
            # Spoken words are data as written ones are; and no part of a message may be empty.
            parts += [text + OPEN.format(name=name), values[name]]
            text = CLOSE
        else:
            text += as_data(name, values[name])
    return [*parts, text + template[end:]]
