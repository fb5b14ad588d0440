"""A partition of the offsets topic in memory, whose high watermark and faults a test decides."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, field

from broker.coordinator.records import (
    ShardRecord,
    UndecodableRecord,
    decode_record,
    encode_key,
    encode_value,
)
from raft_metadata.common.errors import ErrorCode, KafkaError, Outcome


@dataclass
class SharedLog:
    """What all coordinators, one after the other, have written."""

    entries: list[ShardRecord | UndecodableRecord] = field(default_factory=list)
    high_watermark: int = 0
    epoch: int = 0
    moved: asyncio.Event = field(default_factory=asyncio.Event)

    def commit(self, up_to: int | None = None) -> None:
        self.high_watermark = len(self.entries) if up_to is None else up_to
        self.moved.set()
        self.moved = asyncio.Event()

    def elect(self) -> MemoryShardLog:
        """A new leader epoch: older ones write and prove nothing any more."""
        self.epoch += 1
        self.moved.set()
        self.moved = asyncio.Event()
        return MemoryShardLog(self, self.epoch)


class MemoryShardLog:
    """`broker.coordinator.runtime.ShardLog` in one epoch."""

    def __init__(self, shared: SharedLog, epoch: int) -> None:
        self.shared = shared
        self.epoch = epoch
        self.start_of_epoch = len(shared.entries)
        self.commit_at_once = True
        self.may_append = self.has_role = True
        self.next_append: KafkaError | None = None
        """The next append fails with this; of outcome unknown, it is written all the same."""
        self.appends: list[list[ShardRecord]] = []

    def _check(self) -> None:
        if self.epoch != self.shared.epoch:
            raise KafkaError(ErrorCode.NOT_LEADER_OR_FOLLOWER)

    @property
    def bounds(self) -> tuple[int, int]:
        self._check()
        return 0, len(self.shared.entries)

    def read(
        self, from_offset: int, up_to_offset: int
    ) -> tuple[list[ShardRecord | UndecodableRecord], int]:
        self._check()
        end = min(from_offset + 3, up_to_offset)
        return self.shared.entries[from_offset:end], end

    async def until_committed(self, offset: int) -> None:
        while self.shared.high_watermark < max(offset, self.start_of_epoch):
            await self.shared.moved.wait()
            self._check()

    def check_leads(self) -> None:
        """A deposed leader that has not heard of it has its role."""
        if not self.has_role:
            raise KafkaError(ErrorCode.NOT_LEADER_OR_FOLLOWER)

    def check_may_append(self) -> None:
        self._check()
        if not self.may_append:
            raise KafkaError(ErrorCode.NOT_ENOUGH_REPLICAS)

    async def append(self, decisions: Sequence[Sequence[ShardRecord]]) -> None:
        self._check()
        entries = [entry for decision in decisions for entry in decision]
        self.appends.append(list(entries))
        failure, self.next_append = self.next_append, None
        if failure is not None and failure.outcome is Outcome.NOT_WRITTEN:
            raise failure
        for entry in entries:  # as they will be read
            texts = encode_key(entry.key), encode_value(entry.value)
            self.shared.entries.append(decode_record(*texts, len(self.shared.entries)))
        end = len(self.shared.entries)
        if failure is not None:
            raise failure
        if self.commit_at_once:
            await asyncio.sleep(0)
            if self.epoch == self.shared.epoch:
                self.shared.commit(end)
        while self.shared.high_watermark < end:
            await self.shared.moved.wait()
            if self.epoch != self.shared.epoch:
                raise KafkaError(ErrorCode.OUTCOME_UNKNOWN)
