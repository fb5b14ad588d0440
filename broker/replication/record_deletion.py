"""One delete-records, at the leader: answered once no clean election can bring the records back.

Kafka's DeleteRecords waits likewise in a purgatory for the lowest log start of all live replicas
(KIP-107). Here those count that may lead next: the maximal ISR and the eligible leader replicas. A
replica that is neither joins only once its own log start is where the leader's is (`shows_deleted`
in `log_start`). What a replica says of its log start is durable there.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from broker.replication import log_start
from raft_metadata.common.errors import ErrorCode, KafkaError, Outcome

if TYPE_CHECKING:
    from collections.abc import Callable

    from broker.replication.partition_state import LeaderState
    from broker.replication.replica import Replica
    from broker.replication.replica_manager import ReplicaManager
    from raft_metadata.common.clock import Clock
    from raft_metadata.common.ids import BrokerId

LOOK_AGAIN_S = 0.01
"""How soon a deletion looks again: followers are told within a tick of 50 ms, and then sync."""


class Deletion:
    """Made and awaited by `LogTrimming`; holds nothing once it is over."""

    def __init__(
        self,
        manager: ReplicaManager,
        replica: Replica,
        role: LeaderState,
        clock: Clock,
        deadline_ms: int,
    ) -> None:
        """``role``: the one in which ``replica`` leads; the deletion ends with it."""
        self._manager = manager
        self._replica = replica
        self._role = role
        self._clock = clock
        self._deadline_ms = deadline_ms
        self._outcome = Outcome.NOT_WRITTEN
        """Of what fails from here on."""

    async def run(self, before_offset: int) -> int:
        """The new log start; see `LogTrimming.delete_records`."""
        offset = await self._decide(before_offset)
        log = self._replica.log
        if offset > log.log_start_offset:
            if offset == log.log_end_offset:
                log.roll()  # so that the files of what is deleted can go
            log.advance_log_start(offset)
        self._outcome = Outcome.UNKNOWN
        if not await self._until(lambda: not self._lacking(offset)):
            lacking = self._lacking(offset)
            if self._role.me in lacking:
                raise self._not_yet("the new log start is not on the disk yet", offset)
            late = ", ".join(str(broker) for broker in sorted(lacking))
            text = (
                f"the log begins at {log.log_start_offset} on its leader, broker {self._role.me}, "
                f"but that is not known of broker {late}, which may lead next and show older "
                "records again"
            )
            raise self._not_yet(text, offset)
        return log.log_start_offset

    async def _decide(self, before_offset: int) -> int:
        """The first offset to keep, once this leader knows what is committed (rule R8)."""
        partition, log = self._replica.partition, self._replica.log
        if not await self._until(lambda: partition.high_watermark >= self._role.epoch_start):
            raise KafkaError(ErrorCode.OFFSET_NOT_AVAILABLE)
        offset = partition.high_watermark if before_offset == -1 else before_offset
        if not 0 <= offset <= partition.high_watermark:
            raise KafkaError(
                ErrorCode.OFFSET_OUT_OF_RANGE,
                f"can't delete up to offset {before_offset}: log start offset "
                f"{log.log_start_offset}, high watermark {partition.high_watermark}",
            )
        return offset

    def _lacking(self, offset: int) -> frozenset[BrokerId]:
        registration = self._manager.image.partition(*self._replica.partition.id)
        return log_start.lacking(self._role, registration, self._replica.log, offset)

    async def _until(self, done: Callable[[], bool]) -> bool:
        """Wait, while this replica leads and its log is sound; False at the deadline."""
        while True:
            if self._replica.partition.role is not self._role:
                text = "another broker became the leader meanwhile"
                raise KafkaError(ErrorCode.NOT_LEADER_OR_FOLLOWER, text, outcome=self._outcome)
            failed = self._replica.log.failed
            if failed is not None:
                raise KafkaError(ErrorCode.KAFKA_STORAGE_ERROR, str(failed), outcome=self._outcome)
            if done():
                return True
            if self._clock.monotonic_ms() >= self._deadline_ms:
                return False
            await asyncio.sleep(LOOK_AGAIN_S)

    def _not_yet(self, what: str, offset: int) -> KafkaError:
        text = f"{what}: delete up to {offset} again, as often as you like, until it is answered"
        return KafkaError(ErrorCode.REQUEST_TIMED_OUT, text, outcome=Outcome.UNKNOWN)
