"""The state of a home: the fold of its records, key by key. Pure.

A shard replays records into `HomeState`; `home_decisions` reads it and returns new records, which
the shard folds and writes in the same turn.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field, replace

from broker.transactions.home_records import (
    EpochKey,
    EpochValue,
    FloorKey,
    HomeRecord,
    HorizonKey,
    NextKey,
    NextValue,
    NumberValue,
    Target,
    TransactionKey,
    TransactionValue,
)
from broker.transactions.messages import LogPlace, TransactionalId
from raft_metadata.common.ids import PartitionId


@dataclass(frozen=True, slots=True, kw_only=True)
class HomeLimits:
    """Limits of one home, by the cluster configs whose names follow."""

    committing_max: int = 1_000
    """Ids between decision and completion: ``transaction.committing.max``."""
    committing_bytes_max: int = 64 << 20
    """Bytes of rows that they carry."""
    units_max: int = 256
    """Units of one target that wait for it."""
    keys_max: int = 50_000
    """``idempotency.keys.max``, one-shots without a key among them."""
    ids_max: int = 100_000
    """``transactional.ids.max``."""
    key_retention_ms: int = 600_000
    """``idempotency.key.retention.ms``: a key is known for so long, at least (rule S12)."""
    id_expiration_ms: int = 604_800_000
    """``transactional.id.expiration.ms``, of a producer's id without use."""
    partitions_max: int = 1_000
    """``transaction.max.partitions``."""
    chunks_max: int = 10_000
    """``transaction.max.chunks``, of all attempts of a commit together."""
    bytes_max: int = 1 << 30
    """``transaction.max.bytes``, of all attempts together."""


@dataclass(slots=True, eq=False)
class HomeState:
    """The positions of the ids of one home, and the numbers of the rows that it decided.

    Owned by its shard, on the event loop. Only `fold` changes it.
    """

    newest: dict[TransactionalId, TransactionValue] = field(default_factory=dict)
    """The newest position of each id; keys are in the order of their first record."""
    epochs: dict[TransactionalId, EpochValue] = field(default_factory=dict)
    """The present epoch of each producer's id. An id without one is numbered, or a key."""
    next_rows: dict[NextKey, NextValue] = field(default_factory=dict)
    horizons: dict[PartitionId, LogPlace] = field(default_factory=dict)
    floor: int = 0
    """Highest epoch of a forgotten id: every epoch that is given is above it (rule S6)."""
    open: dict[TransactionalId, None] = field(default_factory=dict)
    """Ids whose decision is not recorded as complete, in the order of the first record of each that
    the log has. That of their rows is the one of numbers: compaction keeps no order."""
    open_bytes: int = 0
    """Bytes of rows that open decisions carry."""
    open_units: Counter[Target] = field(default_factory=Counter)
    """Units of open decisions, by target."""
    keys: dict[TransactionalId, None] = field(default_factory=dict)
    """The idempotency keys, in the order of their newest records: of completions, nearly."""
    once: dict[TransactionalId, None] = field(default_factory=dict)
    """The one-shots without a key, in the same order."""
    ids_count: int = 0
    """Number of ids that are no keys."""

    fault: str = ""
    """Reason why nothing may be decided or completed: a fact of the home can't be decoded."""

    def fold(self, record: HomeRecord) -> None:
        """Apply a record that was decided here or read from the log."""
        key, value = record
        match key:
            case TransactionKey():
                before = self._is_id(key.id)
                self._fold_transaction(key.id, value)
                self.ids_count += self._is_id(key.id) - before
            case EpochKey():
                before = self._is_id(key.id)
                if isinstance(value, EpochValue):
                    self.epochs[key.id] = value
                else:
                    self.epochs.pop(key.id, None)
                self.ids_count += self._is_id(key.id) - before
            case NextKey():
                if isinstance(value, NextValue):
                    self.next_rows[key] = value
                else:
                    self.next_rows.pop(key, None)
            case HorizonKey():
                if isinstance(value, LogPlace):
                    self.horizons[key.stage] = value
            case FloorKey():
                if isinstance(value, NumberValue):
                    self.floor = max(self.floor, value.number)

    def _fold_transaction(self, id_: TransactionalId, value: object) -> None:
        before = self.newest.get(id_)
        is_open = isinstance(value, TransactionValue) and value.is_open
        kept = self.once if id_.is_once else self.keys
        if before is not None and before.is_open:
            # A record of the same decision (a chunk was moved, a run came later) keeps its place.
            if not is_open:
                del self.open[id_]
            self.open_bytes -= before.inline_bytes
            self.open_units.subtract(unit.target for unit in before.units)
            for unit in before.units:
                if not self.open_units[unit.target]:
                    del self.open_units[unit.target]
        if not isinstance(value, TransactionValue):
            self.newest.pop(id_, None)
            kept.pop(id_, None)
            return
        self.newest[id_] = value
        if id_.is_key:
            kept.pop(id_, None)
            kept[id_] = None
        if value.is_open:
            self.open[id_] = None
            self.open_bytes += value.inline_bytes
            self.open_units.update(unit.target for unit in value.units)

    def _is_id(self, id_: TransactionalId) -> bool:
        return not id_.is_key and (id_ in self.epochs or id_ in self.newest)

    def is_producer(self, id_: TransactionalId) -> bool:
        """Return True if the id has epochs: it is a producer's for good."""
        return id_ in self.epochs


def slim(value: TransactionValue) -> TransactionValue:
    """Return a position without what only its completion needed."""
    return replace(value, units=(), inline=())
