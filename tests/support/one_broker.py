"""One broker without a network: a real log and replica manager, followers are only said."""

from __future__ import annotations

import asyncio
import dataclasses
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, cast

from broker.config import BrokerConfig
from broker.log.log_manager import LogManager
from broker.replication.replica_manager import ReplicaManager
from broker.server.local_partitions import LocalPartitions
from raft_metadata.common.clock import SystemClock
from raft_metadata.common.faults import ProcessFaultHandler
from raft_metadata.common.ids import (
    BrokerEpoch,
    BrokerId,
    ClusterId,
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
from raft_metadata.image.metadata_image import (
    BrokerRegistration,
    MetadataImage,
    PartitionRegistration,
    TopicImage,
)
from raft_metadata.records.records import BrokerState

ME, OTHER = BrokerId(1), BrokerId(2)
TOPIC = TopicId("A" * 22)
HERE = TopicIdPartition(TOPIC, PartitionId(0))


def _broker(broker_id: BrokerId) -> BrokerRegistration:
    return BrokerRegistration(
        broker_id=broker_id,
        broker_epoch=BrokerEpoch(broker_id),
        incarnation_id=IncarnationId(f"life-{broker_id}"),
        directory_id=DirectoryId(f"disk-{broker_id}"),
        http="",
        peer="",
        rack=None,
        state=BrokerState.UNFENCED,
        settled=True,
    )


def image(epoch: int, isr: tuple[BrokerId, ...], leader: BrokerId = ME) -> MetadataImage:
    """Topic t with one partition of two replicas."""
    partition = PartitionRegistration(
        replicas=(ME, OTHER),
        directories=(DirectoryId("disk-1"), DirectoryId("disk-2")),
        isr=isr,
        elr=(),
        leader=leader,
        leader_epoch=LeaderEpoch(epoch),
        partition_epoch=PartitionEpoch(epoch * 10 - len(isr)),
        leader_epoch_offset=MetadataOffset(10 + epoch),
    )
    topic = TopicImage(
        name=TopicName("t"), topic_id=TOPIC, partitions_count=1, partitions=(partition,)
    )
    return MetadataImage(
        next_offset=MetadataOffset(20 + epoch),
        brokers={ME: _broker(ME), OTHER: _broker(OTHER)},
        topics={TOPIC: topic},
        topic_ids={TopicName("t"): TOPIC},
    )


@dataclasses.dataclass
class Here:
    """What `one_broker` gives."""

    manager: ReplicaManager
    local: LocalPartitions
    proven: list[bool]


@asynccontextmanager
async def one_broker(directory: Path) -> AsyncIterator[Here]:
    """A broker's replica manager and local requests; no task runs."""
    config = BrokerConfig(
        broker_id=ME,
        cluster_id=ClusterId("c"),
        directory_id=DirectoryId("disk-1"),
        data_dir=directory,
        advertised_http="",
        advertised_peer="",
    )
    clock, faults = SystemClock(), ProcessFaultHandler()
    logs = LogManager(directory, on_failed=lambda error: faults.fatal("log", error))
    logs.open()
    logs.start(asyncio.get_running_loop())
    nobody = cast("Any", None)  # no task runs: neither controllers nor peers are ever asked
    manager = ReplicaManager(config, IncarnationId("life-1"), logs, nobody, nobody, clock, faults)
    proven = [True]
    yield Here(manager, LocalPartitions(config, manager, clock, lambda: proven[0]), proven)
    logs.close(None)
