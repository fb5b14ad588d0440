"""Small tables of an image (quotas, access rules, users) and how they change."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Generic, TypeVar

K = TypeVar("K")
V = TypeVar("V")


def patched(before: Mapping[K, V], changed: Mapping[K, V], removed: Iterable[K]) -> Mapping[K, V]:
    """A copy with some rows changed and some gone."""
    after = dict(before)
    after.update(changed)
    for key in removed:
        after.pop(key, None)
    return MappingProxyType(after)


@dataclass(slots=True)
class TableDelta(Generic[K, V]):
    """Rows that change. What was not touched is shared with the table before."""

    before: Mapping[K, V]
    changed: dict[K, V] = field(default_factory=dict)
    removed: set[K] = field(default_factory=set)

    @property
    def is_empty(self) -> bool:
        """Whether the table stays as it is."""
        return not (self.changed or self.removed)

    def get(self, key: K) -> V | None:
        """The row after what was replayed."""
        if key in self.changed:
            return self.changed[key]
        return None if key in self.removed else self.before.get(key)

    def put(self, key: K, row: V) -> None:
        """Add or change a row."""
        self.changed[key] = row
        self.removed.discard(key)

    def remove(self, key: K) -> None:
        """Take a row away."""
        self.changed.pop(key, None)
        self.removed.add(key)

    def apply(self) -> Mapping[K, V]:
        """The table after."""
        return self.before if self.is_empty else patched(self.before, self.changed, self.removed)


def table_delta(before: Mapping[K, V], after: Mapping[K, V]) -> TableDelta[K, V]:
    """What leads from one table to another."""
    delta = TableDelta(before)
    delta.changed = {key: row for key, row in after.items() if before.get(key) != row}
    delta.removed = set(before.keys() - after.keys())
    return delta
