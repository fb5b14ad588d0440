"""The shards of one coordinator's topic that this broker leads, opened and closed by its image."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from broker.coordinator.runtime import ShardLog, ShardRuntime
from raft_metadata.common.errors import ErrorCode, KafkaError
from raft_metadata.common.ids import LeaderEpoch, PartitionId, TopicIdPartition, TopicName

if TYPE_CHECKING:
    from raft_metadata.image.metadata_image import MetadataImage, TopicImage

Leading = Callable[[TopicIdPartition], LeaderEpoch | None]
MakeLog = Callable[[TopicIdPartition, LeaderEpoch], ShardLog]
R = TypeVar("R", bound=ShardRuntime[Any])


class LedShards(Generic[R]):
    """The shards of the led partitions of one topic.

    Owned by a coordinator, on its event loop. Invariant: a shard is open only while this broker
    leads its partition in the shard's epoch, by its newest image.
    """

    def __init__(
        self,
        topic: TopicName,
        leading: Leading,
        make: Callable[[TopicImage, PartitionId, LeaderEpoch], R],
        closed: Callable[[R], None] = lambda _: None,
    ) -> None:
        """Take ``closed``, which is called right before a shard is closed."""
        self._topic = topic
        self._leading = leading
        self._make = make
        self._closed = closed
        self._tasks: asyncio.TaskGroup | None = None
        self.by_partition: dict[PartitionId, R] = {}
        self.partitions_count = 0
        """Number of partitions of the topic; 0 while there is none."""

    def follow(self, image: MetadataImage) -> None:
        """Open and close shards by this broker's roles, which the replicas have taken already."""
        topic = image.topic(self._topic)
        led: dict[PartitionId, LeaderEpoch] = {}
        if topic is not None:
            self.partitions_count = topic.partitions_count
            for number in range(len(topic.partitions)):
                partition = PartitionId(number)
                epoch = self._leading(TopicIdPartition(topic.topic_id, partition))
                if epoch is not None:
                    led[partition] = epoch
        for partition, shard in list(self.by_partition.items()):
            if led.get(partition) != shard.epoch:
                del self.by_partition[partition]
                self._closed(shard)
                shard.close()
        for partition, epoch in led.items():
            if partition not in self.by_partition:
                assert topic is not None
                shard = self._make(topic, partition, epoch)
                self.by_partition[partition] = shard
                self._start(shard)

    def start(self, tasks: asyncio.TaskGroup) -> None:
        """Run the shards, those of later images included, as tasks of this group."""
        self._tasks = tasks
        for shard in self.by_partition.values():
            self._start(shard)

    def _start(self, shard: R) -> None:
        if self._tasks is not None:
            name = f"shard-{self._topic}-{shard.partition}"
            self._tasks.create_task(shard.run(), name=name)

    def find(self, partition: PartitionId) -> R:
        """Return a loaded shard.

        Raises:
            KafkaError: NOT_COORDINATOR, COORDINATOR_LOAD_IN_PROGRESS.
        """
        shard = self.by_partition.get(partition)
        if shard is None:
            raise KafkaError(ErrorCode.NOT_COORDINATOR)
        shard.state()
        return shard
