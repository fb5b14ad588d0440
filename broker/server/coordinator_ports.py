"""Ports of the group coordinator: the log of its own partition, and reads of any topic.

The `BrokerServer` makes them and gives them to the coordinator. `ReplicaShardLog` implements
`broker.coordinator.runtime.ShardLog`; `BrokerDataReader` implements
`broker.coordinator.reader.DataReader`.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from broker.coordinator.reader import Ends, Fetched
from broker.coordinator.records import (
    ShardRecord,
    UndecodableRecord,
    decode_record,
    encode_key,
    encode_value,
)
from broker.record.batch import BatchHeader, RecordFormat
from broker.record.lines import BATCH_BYTES_MAX, ProduceRecord, make_raw, record_size
from broker.record.render import split_line
from broker.record.values import NULL, bytes_view
from broker.server.fetch import LEADER_WAIT_MS
from broker.server.local_partitions import Append, LocalPartitions
from broker.server.requests import ACKS_ALL, BrokerApis, FetchRequest
from raft_metadata.common.errors import ErrorCode, KafkaError, Outcome

if TYPE_CHECKING:
    from broker.coordinator.positions import OffsetAndEpoch
    from broker.replication.leader_state import LeaderState
    from broker.replication.replica import Replica
    from raft_metadata.common.ids import (
        LeaderEpoch,
        TopicId,
        TopicIdPartition,
        TopicName,
        TopicPartition,
    )

READ_BYTES = 131_072
"""Bytes of one read while a shard loads: 6 ms of the loop (115,000 facts a second)."""
WRITE_TIMEOUT_MS = 5_000
"""Time after which an append counts as unknown and the shard loads again."""


class ReplicaShardLog:
    """The log of one coordinator shard: a replica that is led here in one given leader epoch.

    What it reads is as if compaction had been there: a record is left out that has a newer one of
    its key close behind it, as the decision of a transaction has its completion. Not where one
    can't be decoded: the one before it is what is still known then.

    Implements `ShardLog`. Every method raises NOT_LEADER_OR_FOLLOWER once that epoch has ended.
    """

    def __init__(
        self, local: LocalPartitions, partition: TopicIdPartition, epoch: LeaderEpoch
    ) -> None:
        self._local = local
        self._partition = partition
        self._epoch = epoch

    def _leading(self) -> tuple[Replica, LeaderState]:
        replica, role = self._local.leading(self._partition)
        if role.epoch != self._epoch:
            raise KafkaError(ErrorCode.NOT_LEADER_OR_FOLLOWER, "the leader epoch changed")
        return replica, role

    @property
    def bounds(self) -> tuple[int, int]:
        replica, _ = self._leading()
        return replica.log.log_start_offset, replica.log.log_end_offset

    def read(
        self, from_offset: int, up_to_offset: int
    ) -> tuple[list[ShardRecord | UndecodableRecord], int]:
        replica, _ = self._leading()
        records: list[tuple[bytes, bytes, bytes, BatchHeader]] = []
        offset = from_offset
        for piece in replica.log.read(from_offset, READ_BYTES, up_to_offset):
            for line in bytes(piece.lines).split(b"\n")[:-1]:
                at, _, _, key, value = split_line(line)
                records.append((key, value, at, piece.header))
            offset = piece.next_offset
        last = {record[0]: number for number, record in enumerate(records)}
        newest = [record for number, record in enumerate(records) if last[record[0]] == number]
        entries = [_decode(*record) for record in newest]
        if any(isinstance(entry, UndecodableRecord) for entry in entries):
            entries = [_decode(*record) for record in records]
        return entries, offset if offset > from_offset else up_to_offset

    async def until_committed(self, offset: int) -> None:
        _, role = self._leading()
        await self._local.until_high_watermark(
            self._partition, self._epoch, max(offset, role.epoch_start)
        )

    def check_leads(self) -> None:
        self._leading()

    def check_may_append(self) -> None:
        replica, _ = self._leading()
        replica.partition.check_may_append(all_replicas=True)

    async def append(self, decisions: Sequence[Sequence[ShardRecord]]) -> None:
        """Append the records of decisions with acks=all and wait until they are committed.

        Several decisions share a batch up to `BATCH_BYTES_MAX`; none is parted (rule S1). Nothing
        is awaited between the check of the leader epoch and an append.

        Raises:
            KafkaError: outcome UNKNOWN also if a batch is refused behind one that was committed.
        """
        for number, records in enumerate(_batches(decisions)):
            try:
                await self._append(records)
            except KafkaError as error:
                outcome = Outcome.UNKNOWN if number else error.outcome
                raise KafkaError(error.code, error.message, outcome=outcome) from error

    async def _append(self, records: list[ProduceRecord]) -> None:
        try:
            self._leading()
        except KafkaError as error:
            raise KafkaError(error.code, error.message, outcome=Outcome.NOT_WRITTEN) from None
        await self._local.append(
            Append(
                partition=self._partition,
                records=records,
                key_format=RecordFormat.JSON,
                value_format=RecordFormat.JSON,
                acks=ACKS_ALL,
                timeout_ms=WRITE_TIMEOUT_MS,
                whole=True,
            )
        )


def _batches(decisions: Sequence[Sequence[ShardRecord]]) -> Iterator[list[ProduceRecord]]:
    """Yield the records of whole decisions, batch by batch."""
    gathered: list[ProduceRecord] = []
    gathered_bytes = 0
    for decision in decisions:
        records = [
            ProduceRecord(key=make_raw(encode_key(key)), value=make_raw(encode_value(value)))
            for key, value in decision
        ]
        size = sum(record_size(record) for record in records)
        if gathered and gathered_bytes + size > BATCH_BYTES_MAX:
            yield gathered
            gathered, gathered_bytes = [], 0
        gathered += records
        gathered_bytes += size
    if gathered:
        yield gathered


def _decode(
    key: bytes, value: bytes, offset: bytes, header: BatchHeader
) -> ShardRecord | UndecodableRecord:
    return decode_record(
        _bytes_of(key, header.key_format), _bytes_of(value, header.value_format), int(offset)
    )


def _bytes_of(text: bytes, stored: RecordFormat) -> bytes:
    try:
        return bytes_view(text, stored) or NULL
    except KafkaError:
        return text


class BrokerDataReader:
    """Reads of any partition through this broker's `BrokerApis`; those led elsewhere are forwarded.

    Implements `DataReader`.
    """

    def __init__(self, apis: BrokerApis) -> None:
        self._apis = apis

    async def fetch(
        self,
        partition: TopicPartition,
        place: OffsetAndEpoch,
        topic_id: TopicId,
        max_bytes: int,
        max_wait_ms: int,
    ) -> Fetched:
        found = await self._apis.fetch(
            FetchRequest(
                topic=partition.topic,
                partition=partition.partition,
                offset=place.offset,
                leader_epoch=place.leader_epoch,
                topic_id=topic_id,
                max_bytes=max_bytes,
                max_wait_ms=max_wait_ms,
            )
        )
        return Fetched(found.slices, found.next_offset)

    async def ends(self, partition: TopicPartition) -> Ends:
        found = await self._apis.offsets(partition.topic, partition.partition)
        return Ends(found.beginning_offset, found.end_offset, found.end_leader_epoch)

    async def offset_at(self, partition: TopicPartition, timestamp_ms: int) -> int:
        found = await self._apis.fetch(
            FetchRequest(
                topic=partition.topic,
                partition=partition.partition,
                timestamp_ms=timestamp_ms,
                max_bytes=1,
                max_wait_ms=0,
                leader_wait_ms=LEADER_WAIT_MS,
            )
        )
        return found.slices[0].first_offset if found.slices else found.next_offset

    async def catch_up_with_topic(self, topic: TopicName) -> None:
        await self._apis.catch_up_with_topic(topic)
