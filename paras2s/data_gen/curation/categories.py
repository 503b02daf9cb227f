"""Categories of queries, shipped or a user's: topics, pairs of contrasting styles, rules."""

from __future__ import annotations

import re
from importlib import resources
from pathlib import Path
from typing import Annotated, Any, Literal

import yaml
from pydantic import Field, StringConstraints, model_validator

from paras2s.audio.asr import normalise_words
from paras2s.configs.schema.base import Section, parse_config
from paras2s.configs.schema.curation import Engine
from paras2s.errors import ConfigError
from paras2s.utils.io import read_yaml

Split = Literal["train", "validation", "test"]
# Names become file names.
NAME = re.compile(r"[A-Za-z][\w-]{0,40}")
StyleName = Annotated[str, StringConstraints(pattern=r"^[A-Za-z][\w-]{0,40}$")]
# Ellipses for irony, scare quotes, shouting, heaped marks and emoji give sarcasm away (appendix I.4).
MARKED = re.compile(r"\.\.|…|[\"“”]|[!?]{2,}|\b(?![AI]\b)[A-Z]{3,}\b|[\U0001F300-\U0001FAFF☀-➿]")


class QueryCategory(Section):
    """A category of contrasts, as a section of YAML."""

    prompt: str = Field(description="name of the prompt that asks for a list of sentences")
    engine: Engine = Field(description="engine of its voices")
    styles: tuple[tuple[StyleName, StyleName], ...] = Field(min_length=1)
    topics: dict[Split, tuple[str, ...]]
    forbidden: tuple[str, ...] = Field((), description="words, or runs of words, that no sentence may hold")
    plain_marks: bool = Field(False, description="true: no ellipsis, quotes, capitals or heaped marks")
    min_words: int = Field(3, ge=1)
    max_words: int = Field(60, ge=1)

    @model_validator(mode="after")
    def _check(self) -> QueryCategory:
        names = [" ".join(topic.split()).lower() for topics in self.topics.values() for topic in topics]
        if len(set(names)) < len(names):
            raise ValueError(f"topic {max(names, key=names.count)!r} is in two splits")
        if not self.topics.get("train"):
            raise ValueError("topics: train must name at least one")
        if any(first == second for first, second in self.styles):
            raise ValueError("styles: a pair must hold two")
        return self

    def complaint(self, text: str) -> str | None:
        """Return why a sentence breaks the category's rules, or None."""
        words = normalise_words(text)
        count = len(words.split())
        if not self.min_words <= count <= self.max_words:
            return f"{count} words, {self.min_words} to {self.max_words} are allowed"
        for phrase in self.forbidden:
            if f" {normalise_words(phrase)} " in f" {words} ":
                return f"holds {phrase!r}, which the rules forbid"
        marked = MARKED.search(text) if self.plain_marks else None
        return f"{marked.group(0)!r} gives the tone away" if marked else None


def load_categories(path: Path | None = None) -> dict[str, QueryCategory]:
    """Load the shipped categories under a user's file of the same form. Raises ConfigError: a wrong file; names the key."""
    shipped = resources.files("paras2s.data_gen.curation").joinpath("categories.yaml")
    values: dict[str, Any] = yaml.safe_load(shipped.read_text(encoding="utf-8"))
    if path is not None:
        own = read_yaml(path, "not a file of categories")
        if not isinstance(own, dict):
            raise ConfigError(f"{path}: expected categories by name")
        if strange := [name for name in own if not NAME.fullmatch(str(name))]:
            raise ConfigError(f"{path}: {strange[0]!r} is no name for a category: letters, digits, - and _ alone")
        values |= own
    source = path or "categories"
    return {name: parse_config(category, f"{source}: {name}", QueryCategory) for name, category in values.items()}
