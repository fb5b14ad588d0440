"""The led partitions of one internal topic, opened and closed by a broker's image."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Generic, Protocol, TypeVar

from broker.coordinator.runtime import ShardLog, ShardRuntime
from raft_metadata.common.errors import ErrorCode, KafkaError
from raft_metadata.common.ids import LeaderEpoch, PartitionId, TopicId, TopicIdPartition, TopicName

if TYPE_CHECKING:
    from raft_metadata.image.metadata_image import MetadataImage, TopicImage

Leading = Callable[[TopicIdPartition], LeaderEpoch | None]
MakeLog = Callable[[TopicIdPartition, LeaderEpoch], ShardLog]


class LedPartition(Protocol):
    """Work of a broker on a partition that it leads, in one leader epoch."""

    @property
    def epoch(self) -> LeaderEpoch: ...

    async def run(self) -> None:
        """Do the work, until closed or cancelled."""
        ...

    def close(self) -> None:
        """End the work: this broker does not lead in that epoch any more."""
        ...


L = TypeVar("L", bound=LedPartition)
R = TypeVar("R", bound=ShardRuntime[Any])


class LedPartitions(Generic[L]):
    """The work on the led partitions of one topic.

    Owned by a coordinator, or by the stages, on its event loop. Invariant: work is open only while
    this broker leads its partition in that epoch, by its newest image.
    """

    def __init__(
        self,
        topic: TopicName,
        leading: Leading,
        make: Callable[[TopicImage, PartitionId, LeaderEpoch], L],
        closed: Callable[[L], None] = lambda _: None,
    ) -> None:
        """Take ``closed``, which is called right before work is closed."""
        self._topic = topic
        self._topic_id: TopicId | None = None
        self._leading = leading
        self._make = make
        self._closed = closed
        self._tasks: asyncio.TaskGroup | None = None
        self.by_partition: dict[PartitionId, L] = {}
        self.partitions_count = 0
        """Number of partitions of the topic; 0 while there is none."""

    def follow(self, image: MetadataImage) -> None:
        """Open and close work by this broker's roles, which the replicas have taken already."""
        topic = image.topic(self._topic)
        led: dict[PartitionId, LeaderEpoch] = {}
        if topic is not None:
            self.partitions_count = topic.partitions_count
            for number in range(len(topic.partitions)):
                partition = PartitionId(number)
                epoch = self._leading(TopicIdPartition(topic.topic_id, partition))
                if epoch is not None:
                    led[partition] = epoch
        topic_id = None if topic is None else topic.topic_id
        is_anew, self._topic_id = topic_id != self._topic_id, topic_id
        for partition, work in list(self.by_partition.items()):
            if is_anew or led.get(partition) != work.epoch:
                del self.by_partition[partition]
                self._closed(work)
                work.close()
        for partition, epoch in led.items():
            if partition not in self.by_partition:
                assert topic is not None
                work = self._make(topic, partition, epoch)
                self.by_partition[partition] = work
                self._start(partition, work)

    def start(self, tasks: asyncio.TaskGroup) -> None:
        """Run the work, that of later images included, as tasks of this group."""
        self._tasks = tasks
        for partition, work in self.by_partition.items():
            self._start(partition, work)

    def _start(self, partition: PartitionId, work: L) -> None:
        if self._tasks is not None:
            self._tasks.create_task(work.run(), name=f"{self._topic}-{partition}")


class LedShards(LedPartitions[R]):
    """The shards of the led partitions of a coordinator's topic."""

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
