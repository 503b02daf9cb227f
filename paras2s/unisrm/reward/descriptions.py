"""Descriptions: how each clip of an item sounds, in words, from how it was made (takes.jsonl).

A thinker with random weights learns to write them before it compares clips; released ones know how a sad voice sounds.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from paras2s.errors import ConfigError
from paras2s.unisrm.reward.items import TAKES
from paras2s.unisrm.reward.messages import clip_order, label
from paras2s.unisrm.reward.tasks import Item, TaskId
from paras2s.unisrm.reward.thinker import ItemEncoder, UniSRM
from paras2s.utils.io import read_jsonl

# Request of a description, after the name of the task.
REQUEST = "describe"
# Items of another split on which it is measured.
MEASURED_ITEMS = 96
MAX_TOKENS = 64


@dataclass(frozen=True)
class DescriptionProbe:
    """Shares of clips of other speakers and texts for which each part of the description is right."""

    manner: float
    voice: float
    signal: float


def read_descriptions(data: Path, items: Sequence[Item]) -> dict[str, str]:
    """Read the description of items whose clips all have one, by id. Raises ConfigError: the data describes no clips."""
    sounds = {row["clip"]: row.get("in_words") for row in read_jsonl(data / TAKES)} if (data / TAKES).is_file() else {}
    descriptions = {item.id: text for item in items if (text := describe(item, sounds))}
    if not descriptions:
        raise ConfigError(
            f"{data / TAKES}: describes the clips of no item, as thinker.scratch.description_updates needs; "
            "make the data with `paras2s unisrm data`"
        )
    return descriptions


def describe(item: Item, sounds: Mapping[str, str | None]) -> str | None:
    """Return a line for each clip of an item, in the order of its prompt; None for a clip without words in `sounds`."""
    lines = [(name, sounds.get(item.clips[name])) for name in clip_order(item.task, item.clips)]
    return "\n".join(f"{label(name)} {words}" for name, words in lines) if all(words for _, words in lines) else None


def requested(model: UniSRM, task: TaskId) -> str:
    """Return the system prompt of a task that requests a description."""
    return f"{model.systems[task]} {REQUEST}"


def measure_descriptions(model: UniSRM, data: Path, items: Sequence[Item]) -> DescriptionProbe:
    """Measure how often a model describes the clips of `items` rightly, part by part. Raises ConfigError. AudioError."""
    described = read_descriptions(data, items)
    chosen = [item for item in items if item.id in described]
    chosen = chosen[:: max(1, len(chosen) // MEASURED_ITEMS)]
    encoder = ItemEncoder(model, data, chosen)
    rows = [encoder.encoded(number, requested(model, item.task)) for number, item in enumerate(chosen)]
    replies = model.reply(rows, MAX_TOKENS, batch_size=16)
    right = [
        [part == other for part, other in zip(_parts(line), _parts(said), strict=True)]
        for item, reply in zip(chosen, replies, strict=True)
        for line, said in _matched(described[item.id].splitlines(), reply.splitlines())
    ]
    shares = [sum(column) / len(column) for column in zip(*right, strict=True)]
    return DescriptionProbe(*shares)


def _matched(lines: Sequence[str], said: Sequence[str]) -> list[tuple[str, str]]:
    """Pair each requested line with the line written in its place, "" if there is none."""
    return [(line, said[number] if number < len(said) else "") for number, line in enumerate(lines)]


def _parts(line: str) -> list[str]:
    """Return manner, voice and signal of a line; "" for what it lacks."""
    return [*(part.strip() for part in line.partition("]")[2].split(",")), "", "", ""][:3]
