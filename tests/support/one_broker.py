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
    BrokerId,
    ClusterId,
    IncarnationId,
    MetadataOffset,
    PartitionId,
    TopicId,
    TopicIdPartition,
    TopicName,
)
from raft_metadata.image.metadata_image import (
    MetadataImage,
    TopicImage,
)
from tests.support.registered import broker, disk, partition

ME, OTHER = BrokerId(1), BrokerId(2)
TOPIC = TopicId("A" * 22)
HERE = TopicIdPartition(TOPIC, PartitionId(0))


def image(epoch: int, isr: tuple[BrokerId, ...], leader: BrokerId = ME) -> MetadataImage:
    """Topic t with one partition of two replicas."""
    registration = partition(
        (ME, OTHER), leader, epoch,
        isr=isr, partition_epoch=epoch * 10 - len(isr), set_at=10 + epoch,
    )  # fmt: skip
    topic = TopicImage(
        name=TopicName("t"), topic_id=TOPIC, partitions_count=1, partitions=(registration,)
    )
    return MetadataImage(
        next_offset=MetadataOffset(20 + epoch),
        brokers={ME: broker(ME), OTHER: broker(OTHER)},
        topics={TOPIC: topic},
        topic_ids={TopicName("t"): TOPIC},
    )


@dataclasses.dataclass
class Here:
    """What `one_broker` gives."""

    config: BrokerConfig
    logs: LogManager
    manager: ReplicaManager
    local: LocalPartitions
    proven: list[bool]


@asynccontextmanager
async def one_broker(directory: Path) -> AsyncIterator[Here]:
    """A broker's replica manager and local requests; no task runs."""
    config = BrokerConfig(
        broker_id=ME,
        cluster_id=ClusterId("c"),
        directory_id=disk(ME),
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
    local = LocalPartitions(config, manager, clock, lambda: proven[0])
    yield Here(config, logs, manager, local, proven)
    logs.close(None)
