"""A broker's `ReplicaManager` on real logs, fed with images made of records; no network."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, NoReturn, cast

from typing_extensions import override

from broker.config import BrokerConfig
from broker.log.log_manager import LogManager
from broker.replication.frames import Key, partition_of
from broker.replication.replica_manager import ReplicaManager
from raft_metadata.common.clock import SystemClock
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
    TopicName,
)
from raft_metadata.image.metadata_delta import MetadataDelta
from raft_metadata.image.metadata_image import MetadataImage
from raft_metadata.records.feature_levels import SUPPORTED_FEATURE_LEVEL
from raft_metadata.records.records import (
    MetadataRecord,
    PartitionRecord,
    RegisterBrokerRecord,
    TopicRecord,
)

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from pathlib import Path

    from broker.ports import ControllerChannel, PeerChannel
    from broker.replication.replica import Replica
    from broker.replication.stream import ReplicationStream
    from raft_metadata.common.clock import Clock

ME, OTHER = BrokerId(1), BrokerId(2)
ORDERS = TopicName("orders")
FIRST_ID, SECOND_ID = TopicId("A" * 22), TopicId("B" * 22)
ZERO = PartitionId(0)


class NoFaults:
    """Any fatal fault fails the test."""

    def fatal(self, what: str, error: BaseException | None = None) -> NoReturn:
        raise AssertionError(what) from error


class NoEvents:
    """Nothing that is noted is kept."""

    def note(self, *_: object, **__: object) -> None:
        """Nothing."""


def receive(stream: ReplicationStream, data: bytes) -> None:
    """Have a stream receive these bytes, as its event loop would."""
    while data:
        room = stream.get_buffer(-1)
        part, data = data[: len(room)], data[len(room) :]
        room[: len(part)] = part
        stream.buffer_updated(len(part))


class StreamTransport(asyncio.Transport):
    """Takes what a stream writes."""

    def __init__(self) -> None:
        super().__init__()
        self.sent: list[bytes] = []
        self.unsent = 0
        """Bytes that the other end has not taken yet, as a test says."""

    @override
    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        """No limit."""

    @override
    def get_write_buffer_size(self) -> int:
        return self.unsent

    @override
    def write(self, data: bytes | bytearray | memoryview) -> None:
        self.sent.append(bytes(data))

    @override
    def writelines(self, list_of_data: Iterable[bytes | bytearray | memoryview]) -> None:
        self.sent.append(b"".join(bytes(data) for data in list_of_data))

    @override
    def abort(self) -> None:
        """Nobody is at the other end."""


def registered(broker: BrokerId, epoch: int, incarnation: str) -> RegisterBrokerRecord:
    """A registration; ``epoch`` is the offset it will stand at."""
    return RegisterBrokerRecord(
        broker_id=broker,
        broker_epoch=BrokerEpoch(epoch),
        incarnation_id=IncarnationId(incarnation),
        directory_id=DirectoryId(f"d{broker}"),
        http="h:1",
        peer="h:2",
        feature_level_max=SUPPORTED_FEATURE_LEVEL,
        min_insync_replicas=1,
    )


def created(
    topic_id: TopicId, replicas: tuple[BrokerId, ...], *, name: TopicName = ORDERS, count: int = 1
) -> tuple[MetadataRecord, ...]:
    """A topic whose partitions the first replica leads."""
    return (
        TopicRecord(name=name, topic_id=topic_id, partitions_count=count),
        *(
            PartitionRecord(
                topic_id=topic_id,
                partition=PartitionId(number),
                replicas=replicas,
                directories=tuple(DirectoryId(f"d{replica}") for replica in replicas),
                isr=replicas,
                elr=(),
                leader=replicas[0],
                leader_epoch=LeaderEpoch(0),
                partition_epoch=PartitionEpoch(0),
            )
            for number in range(count)
        ),
    )


def images(*batches: tuple[MetadataRecord, ...]) -> Iterator[MetadataImage]:
    """The image after each batch of the metadata log."""
    image = MetadataImage()
    for records in batches:
        delta = MetadataDelta(image)
        count = delta.replay_all(records, image.next_offset)
        image = delta.apply(MetadataOffset(image.next_offset + count), ControllerEpoch(1))
        yield image


def config_of(data_dir: Path) -> BrokerConfig:
    """The config of broker `ME`."""
    return BrokerConfig(
        broker_id=ME,
        cluster_id=ClusterId("c"),
        directory_id=DirectoryId(f"d{ME}"),
        data_dir=data_dir,
        advertised_http="h:1",
        advertised_peer="h:2",
    )


def hosted(
    data_dir: Path, incarnation: str, clock: Clock | None = None
) -> tuple[LogManager, ReplicaManager]:
    """One life of broker `ME` in this directory."""
    logs = LogManager(data_dir, on_failed=lambda _: None)
    logs.open()
    manager = ReplicaManager(
        config_of(data_dir),
        IncarnationId(incarnation),
        logs,
        cast("ControllerChannel", None),
        cast("PeerChannel", None),
        clock or SystemClock(),
        NoFaults(),
    )
    return logs, manager


def replica_of(manager: ReplicaManager, key: Key) -> Replica:
    """The hosted replica of this partition."""
    replica = manager.replica(partition_of(key))
    assert replica is not None
    return replica
