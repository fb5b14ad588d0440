"""A led partition of `__transaction_state`: the home of transactions without a group."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import cast

from typing_extensions import override

from broker.coordinator.records import ShardRecord, UndecodableRecord
from broker.coordinator.runtime import ShardRuntime
from broker.transactions.home_records import HOME_KEYS, HomeRecord, HomeValue
from broker.transactions.home_state import HomeState

_log = logging.getLogger("broker.coordinator")


class TransactionsState:
    """State of a home that no group shares. Owned by its shard, on the event loop."""

    def __init__(self) -> None:
        self.home = HomeState()
        self.entries: list[ShardRecord] = []
        self.trusted_ms: int | None = None

    def fold(self, entry: ShardRecord) -> None:
        """Apply a record that was decided here or read from the log."""
        if isinstance(entry.key, HOME_KEYS):
            self.home.fold(HomeRecord(entry.key, cast("HomeValue | None", entry.value)))

    def apply(self, *entries: ShardRecord) -> None:
        """Fold records that were just decided, and keep them to be written."""
        for entry in entries:
            self.fold(entry)
            self.entries.append(entry)

    def take(self) -> list[ShardRecord]:
        """Return the records to be written since the last call."""
        taken, self.entries = self.entries, []
        return taken


class TransactionShard(ShardRuntime[TransactionsState]):
    """The transactions of one led partition of `__transaction_state`, in one leader epoch.

    Owned by the `TransactionCoordinator`, on its event loop.
    """

    name = "transaction coordinator"

    @override
    def _empty_state(self) -> TransactionsState:
        return TransactionsState()

    @override
    def _described(self, state: TransactionsState) -> str:
        return f"ids={len(state.home.newest)} open={len(state.home.open)}"

    @override
    def _loaded(self, state: TransactionsState, undecodable: Sequence[UndecodableRecord]) -> bool:
        """Refuse to answer where a fact is not known: a decision might be taken twice."""
        for record in undecodable[:1]:
            _log.error(
                "transaction coordinator can't load partition=%d records=%d first_offset=%d: %s",
                self.partition, len(undecodable), record.offset, record.reason,
            )  # fmt: skip
        return not undecodable
