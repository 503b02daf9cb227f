"""A cache of the latest values by key, since a value is often used again."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Mapping
from typing import Generic, TypeVar

Item = TypeVar("Item")
Value = TypeVar("Value")


class Latest(Generic[Value]):
    """A cache of at most `most` values; the oldest are dropped first."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._held: OrderedDict[str, Value] = OrderedDict()

    def of(self, items: Mapping[str, Item], make: Callable[[list[Item]], list[Value]]) -> dict[str, Value]:
        """Return the value of each item by its key; `make` is called once, for missing items alone, if any."""
        held = dict(self._held)
        missing = [key for key in items if key not in held]
        made = dict(zip(missing, make([items[key] for key in missing]), strict=True)) if missing else {}
        self._held.update(made)
        while len(self._held) > self._most:
            self._held.popitem(last=False)
        return {key: made[key] if key in made else held[key] for key in items}
