"""Published data sets in their own layouts, brought into a UniSRM data folder: items.jsonl and the clips as they are.

Splits are disjoint by text and by speaker, as far as a layout names them: the bench is read first, and an item of a split for
training that shares either with a split before it is dropped and counted.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Protocol

from paras2s.audio.clip import read_clip
from paras2s.errors import AudioError, ConfigError, DataError
from paras2s.unisrm.data_gen.layouts.entries import Dropped, Entry, Layout, Split
from paras2s.unisrm.data_gen.layouts.mos import BVCC, SOMOS_CLEAN, SOMOS_FULL
from paras2s.unisrm.data_gen.layouts.qualispeech import QUALISPEECH
from paras2s.unisrm.data_gen.layouts.speechjudge import SPEECHJUDGE
from paras2s.unisrm.reward.items import ITEMS, read_items, write_items
from paras2s.unisrm.reward.tasks import Item
from paras2s.utils.io import write_bytes

LAYOUTS: Mapping[str, Layout] = {layout.name: layout for layout in (QUALISPEECH, SPEECHJUDGE, BVCC, SOMOS_CLEAN, SOMOS_FULL)}
# The bench before the data that trains: what both would have stays in the bench.
ORDER = ("bench", "rl", "sft")


@dataclass(frozen=True)
class ImportReport:
    """The number of items by split, and of rows that make none by split and reason."""

    items: Mapping[str, int]
    dropped: Mapping[tuple[str, str], int]


def disjoint(rows: Iterable[Entry | Dropped], taken: Mapping[str, str]) -> Iterator[Entry | Dropped]:
    """Yield rows; a reason in place of an item whose text or speaker another split has, by `taken` (see `keys_of`)."""
    for row in rows:
        if isinstance(row, Entry) and (clash := clash_of(keys_of(row.item), row.item.split, taken)):
            row = Dropped(row.item.id, clash)
        yield row


def clash_of(keys: Iterable[str], own: str, taken: Mapping[str, str]) -> str | None:
    """Return why an item of the split `own` cannot be taken; None if no other split has one of its keys."""
    clash = [(key.partition(":")[0], split) for key in keys if (split := taken.get(key, own)) != own]
    return "its {} is in {}".format(*clash[0]) if clash else None


class Keyed(Protocol):
    """An item, or a plan of one."""

    @property
    def text_id(self) -> str:
        """Key of its text."""

    @property
    def speakers(self) -> tuple[str, ...]:
        """All speakers that are heard."""


def keys_of(item: Keyed) -> tuple[str, ...]:
    """Return the keys that no other split may have: an item's text and its speakers."""
    return (f"text:{item.text_id}", *(f"speaker:{name}" for name in item.speakers))


def import_layout(
    name: str,
    source: Path,
    out: Path,
    *,
    dry_run: bool = False,
    sizes: Mapping[Split, int] | None = None,
    progress: Callable[[int, int], None] = lambda *_: None,
) -> ImportReport:
    """Read a published data set from `source` into the data folder `out`, beside the items of other data sets there.

    Items of the same data set are replaced. `dry_run` reads everything and writes nothing. `sizes`: the most items of a split.

    Raises:
        ConfigError: no such layout. DataError: a file or a column is missing, a cell is not as documented, or no row makes an
            item.
    """
    if name not in LAYOUTS:
        raise ConfigError(f"layout: there is no {name!r}; there are {', '.join(LAYOUTS)}")
    layout = LAYOUTS[name]
    others = [] if not (out / ITEMS).is_file() else [item for item in read_items(out) if item.factors.get("corpus") != name]
    # Counted first: a missing file is an error before anything is copied.
    total = sum(layout.count(source, split) for split in layout.splits)
    taken = {key: item.split for item in others for key in keys_of(item)}
    items: list[Item] = []
    ids: set[str] = set()
    dropped: Counter[tuple[str, str]] = Counter()
    count: Counter[str] = Counter()
    done = 0
    for split in sorted(layout.splits, key=ORDER.index):
        for row in disjoint(layout.read(source, split), taken):
            if isinstance(row, Entry) and row.item.id in ids:
                row = Dropped(row.item.id, "its id occurs twice")
            if isinstance(row, Entry) and sizes is not None and count[split] >= sizes[split]:
                row = Dropped(row.item.id, "beyond the requested size")
            made = row if isinstance(row, Dropped) else _copied(row, name, out, dry_run)
            if isinstance(made, Dropped):
                dropped[split, made.reason] += 1
            else:
                items.append(made)
                count[split] += 1
                ids.add(made.id)
                taken.update(dict.fromkeys(keys_of(made), split))
            done += 1
            progress(done, total)
    if not items:
        reasons = ", ".join(f"{why} ({count})" for (_, why), count in dropped.items())
        raise DataError(f"{source}: no row makes an item: {reasons or 'the tables are empty'}")
    if not dry_run:
        write_items(out, [*others, *items])
    return ImportReport(count, dropped)


def _copied(entry: Entry, corpus: str, out: Path, dry_run: bool) -> Item | Dropped:
    """Copy an item's clips to the data folder; a clip that cannot be read drops the item."""
    clips = {}
    for number, (name, sound) in enumerate(entry.sounds.items()):
        try:
            read_clip(sound)
        except AudioError:
            return Dropped(entry.item.id, "a clip cannot be read")
        ending = sound.suffix if isinstance(sound, Path) else _ending(sound)
        stem = re.sub(r"[^0-9A-Za-z_.+-]", "_", entry.item.id).removesuffix(ending)
        if len(entry.sounds) > 1:
            stem = f"{stem}-{number}"
        clips[name] = f"clips/{corpus}/{entry.item.split}/{stem}{ending}"
        if not dry_run:
            write_bytes(out / clips[name], sound.read_bytes() if isinstance(sound, Path) else sound)
    return replace(entry.item, clips=clips)


def _ending(data: bytes) -> str:
    """Return the file ending for these bytes: decoders go by the content, people by the name."""
    return {b"fLaC": ".flac", b"OggS": ".ogg", b"RIFF": ".wav"}.get(data[:4], ".mp3")
