"""Costs of waiting in a broker: 5,000 fetches and 20,000 produces wait, then all are completed.

``python -m benchmarks.parked``. The broker's own layer, in this process, over a real log: no HTTP.
A fetch is awaited by a task here, as in its HTTP handler; a produce waits without a task, as in the
fast lane.
"""

from __future__ import annotations

import asyncio
import sys
import tempfile
import time
import tracemalloc
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from benchmarks.report import Row, at_most, machine, table
from broker.config import BrokerConfig
from broker.log.log_manager import LogManager
from broker.record.batch import RecordFormat
from broker.record.lines import decode_records
from broker.replication.frames import Ack, Open
from broker.replication.leader_state import LeaderState
from broker.replication.replica_manager import ReplicaManager
from broker.server.local_partitions import Append, LocalPartitions, Read
from raft_metadata.common.clock import SystemClock
from raft_metadata.common.faults import ProcessFaultHandler
from raft_metadata.common.ids import (
    BrokerEpoch,
    BrokerId,
    ClusterId,
    ControllerEpoch,
    DirectoryId,
    IncarnationId,
    LeaderEpoch,
    MetadataOffset,
    PartitionEpoch,
    PartitionId,
    TopicId,
    TopicIdPartition,
    TopicName,
)
from raft_metadata.image.metadata_delta import MetadataDelta
from raft_metadata.image.metadata_image import MetadataImage
from raft_metadata.records.feature_levels import SUPPORTED_FEATURE_LEVEL
from raft_metadata.records.records import PartitionRecord, RegisterBrokerRecord, TopicRecord

if TYPE_CHECKING:
    from raft_metadata.common.errors import KafkaError
    from raft_metadata.records.records import MetadataRecord

ME, OTHER = BrokerId(1), BrokerId(2)
NAME, TOPIC = TopicName("t"), TopicId("A" * 22)
HERE = TopicIdPartition(TOPIC, PartitionId(0))
FETCHES, PRODUCES = 5_000, 20_000
SESSION = 7
MS, KB = 1_000, 1_024


def _records(partitions: int, replicas: tuple[BrokerId, ...]) -> tuple[MetadataRecord, ...]:
    """Return records of two brokers and a topic that this broker leads, all replicas in sync."""
    disks = {ME: DirectoryId("disk-1"), OTHER: DirectoryId("disk-2")}
    return (
        *(
            RegisterBrokerRecord(
                broker_id=broker,
                broker_epoch=BrokerEpoch(number),
                incarnation_id=IncarnationId(f"life-{broker}"),
                directory_id=disks[broker],
                http="",
                peer="",
                feature_level_max=SUPPORTED_FEATURE_LEVEL,
                min_insync_replicas=1,
            )
            for number, broker in enumerate(disks)
        ),
        TopicRecord(name=NAME, topic_id=TOPIC, partitions_count=partitions),
        *(
            PartitionRecord(
                topic_id=TOPIC,
                partition=PartitionId(number),
                replicas=replicas,
                directories=tuple(disks[replica] for replica in replicas),
                isr=replicas,
                elr=(),
                leader=ME,
                leader_epoch=LeaderEpoch(0),
                partition_epoch=PartitionEpoch(0),
            )
            for number in range(partitions)
        ),
    )


class Leader:
    """A broker that leads the partitions of a topic, alone or with a simulated follower."""

    def __init__(self, directory: Path, partitions: int = 1, *, followed: bool = True) -> None:
        self.config = config = BrokerConfig(
            broker_id=ME,
            cluster_id=ClusterId("c"),
            directory_id=DirectoryId("disk-1"),
            data_dir=directory,
            advertised_http="",
            advertised_peer="",
        )
        clock, faults = SystemClock(), ProcessFaultHandler()
        self._logs = LogManager(directory, on_failed=lambda error: faults.fatal("log", error))
        self._logs.open()
        self._logs.start(asyncio.get_running_loop())
        nobody = cast("Any", None)
        self.manager = ReplicaManager(
            config, IncarnationId("life-1"), self._logs, nobody, nobody, clock, faults
        )
        delta = MetadataDelta(MetadataImage())
        replicas = (ME, OTHER) if followed else (ME,)
        count = delta.replay_all(_records(partitions, replicas), MetadataOffset(0))
        self.manager.on_metadata_update(delta.apply(MetadataOffset(count), ControllerEpoch(1)))
        self.local = LocalPartitions(config, self.manager, clock, lambda: True)
        replica = self.manager.replica(HERE)
        assert replica is not None
        self._replica = replica
        if followed:
            opened = Open(1, 0, 1, -1, 0, 0)
            replica.partition.on_open(OTHER, opened, self.manager.image.brokers, SESSION, 0)

    async def follower_has_all(self) -> None:
        """Let the follower acknowledge everything: the high watermark rises in one step."""
        log = self._replica.log
        while log.durable_end < log.log_end_offset:  # noqa: ASYNC110 a log has no event for it
            await asyncio.sleep(0.001)
        end = log.log_end_offset
        assert isinstance(self._replica.partition.role, LeaderState)
        self._replica.partition.on_ack(OTHER, Ack(SESSION, 0, end, end), 0)

    def close(self) -> None:
        """Stop the flusher."""
        self._logs.close(None)


class Stalls:
    """Worst delay of a callback that is scheduled for every turn of the loop."""

    def __init__(self) -> None:
        self.longest_s = 0.0
        self._loop = asyncio.get_running_loop()
        self._at = time.monotonic()
        self._stopped = False
        self._loop.call_soon(self._turn)

    def _turn(self) -> None:
        now = time.monotonic()
        self.longest_s, self._at = max(self.longest_s, now - self._at), now
        if not self._stopped:
            self._loop.call_soon(self._turn)

    def stop(self) -> float:
        """Return the worst delay in milliseconds."""
        self._stopped = True
        return self.longest_s * MS


async def _fetches(leader: Leader) -> Row:
    read = Read(partition=HERE, offset=0, timestamp_ms=None, max_bytes=KB, max_wait_ms=60_000)
    tracemalloc.start()
    before = tracemalloc.get_traced_memory()[0]
    async with asyncio.TaskGroup() as tasks:
        for _ in range(FETCHES):
            tasks.create_task(leader.local.fetch(read))
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        held = (tracemalloc.get_traced_memory()[0] - before) / FETCHES
        tracemalloc.stop()
        leader.local.append_directly(_append(), [(0, lambda *_: None)])
        stalls, began = Stalls(), time.monotonic()
        await leader.follower_has_all()
    return _row(f"{FETCHES:,} parked fetches woken by one record", held, began, stalls)


async def _produces(leader: Leader) -> Row:
    left = PRODUCES
    over = asyncio.get_running_loop().create_future()

    def answered(_: PartitionId, _base: int, error: KafkaError | None) -> None:
        nonlocal left
        left -= 1
        assert error is None
        if not left:
            over.set_result(None)

    appends = [_append() for _ in range(PRODUCES)]
    tracemalloc.start()
    before = tracemalloc.get_traced_memory()[0]
    for append in appends:
        leader.local.append_directly(append, [(0, answered)])
    held = (tracemalloc.get_traced_memory()[0] - before) / PRODUCES
    tracemalloc.stop()
    stalls, began = Stalls(), time.monotonic()
    await leader.follower_has_all()
    await over
    return _row(
        f"{PRODUCES:,} parked produces answered by one acknowledgement", held, began, stalls
    )


def _append() -> Append:
    return Append(
        partition=HERE,
        records=decode_records(b'{"records":[{"value":1}]}'),
        key_format=RecordFormat.JSON,
        value_format=RecordFormat.JSON,
        acks=-1,
        timeout_ms=60_000,
    )


def _row(what: str, held: float, began: float, stalls: Stalls) -> Row:
    took_ms = (time.monotonic() - began) * MS
    longest_ms = stalls.stop()
    return Row(
        what=what,
        product=f"last after {took_ms:.0f} ms",
        value=longest_ms,
        budget=at_most(50, " ms"),
        note=f"longest turn of the loop {longest_ms:.0f} ms (that is the budget's); "
        f"{held:.0f} bytes each while they wait",
    )


async def run() -> list[Row]:
    """Run both on one partition."""
    with tempfile.TemporaryDirectory() as directory:
        leader = Leader(Path(directory))
        rows = [await _fetches(leader), await _produces(leader)]
        leader.close()
    return rows


def main() -> int:
    """Measure and print."""
    note = machine()
    print(note, table(asyncio.run(run())), sep="\n\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
