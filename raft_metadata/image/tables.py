"""Copy-on-write tables of an image (quotas, access rules, users) and their deltas."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Generic, TypeVar

K = TypeVar("K")
V = TypeVar("V")


def patched(before: Mapping[K, V], changed: Mapping[K, V], removed: Iterable[K]) -> Mapping[K, V]:
    """Return a copy of the table with some rows changed and some removed."""
    after = dict(before)
    after.update(changed)
    for key in removed:
        after.pop(key, None)
    return MappingProxyType(after)


@dataclass(slots=True)
class TableDelta(Generic[K, V]):
    """The changed rows of a table. Unchanged rows are shared with the previous table."""

    before: Mapping[K, V]
    changed: dict[K, V] = field(default_factory=dict)
    removed: set[K] = field(default_factory=set)

    @property
    def is_empty(self) -> bool:
        """True if no row changes."""
        return not (self.changed or self.removed)

    def get(self, key: K) -> V | None:
        """Return the row with the changes so far, or None."""
        if key in self.changed:
            return self.changed[key]
        return None if key in self.removed else self.before.get(key)

    def put(self, key: K, row: V) -> None:
        """Add or change a row."""
        self.changed[key] = row
        self.removed.discard(key)

    def remove(self, key: K) -> None:
        """Remove a row."""
        self.changed.pop(key, None)
        self.removed.add(key)

    def apply(self) -> Mapping[K, V]:
        """Return the changed table; the previous one if there is no change."""
        return self.before if self.is_empty else patched(self.before, self.changed, self.removed)


def table_delta(before: Mapping[K, V], after: Mapping[K, V]) -> TableDelta[K, V]:
    """Return the delta that leads from one table to another."""
    delta = TableDelta(before)
    delta.changed = {key: row for key, row in after.items() if before.get(key) != row}
    delta.removed = set(before.keys() - after.keys())
    return delta
