"""Internal topics: creation on first use, and refusal of clients' requests for them.

`GroupRequests`, `StageRequests` and the requests of transactions look their topic up by
`InternalTopics`, and create it before the first write. `check_no_group_reads` refuses groups that
would read such a topic.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Mapping
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final

from broker.coordinator.group_messages import (
    Assign,
    Commit,
    CommitGroup,
    GroupRequest,
    Heartbeat,
    JoinGroup,
    Subscribe,
)
from raft_metadata.common.configs.table import (
    OFFSETS_TOPIC_NUM_PARTITIONS,
    OFFSETS_TOPIC_REPLICATION_FACTOR,
)
from raft_metadata.common.errors import ErrorCode, KafkaError
from raft_metadata.common.ids import TopicId, TopicName, id_from_bytes
from raft_metadata.common.internal_topics import (
    INTERNAL_TOPICS,
    OFFSETS_TOPIC,
    STAGED_PARTITIONS,
    STAGED_TOPIC,
    TRANSACTIONS_PARTITIONS,
    TRANSACTIONS_TOPIC,
)
from raft_metadata.image.metadata_image import cluster_layers
from raft_metadata.records.commands import CreateTopic

if TYPE_CHECKING:
    from broker.config import BrokerConfig
    from broker.server.metadata_loader import MetadataLoader
    from broker.server.topics import TopicRequests
    from raft_metadata.common.clock import Clock
    from raft_metadata.image.metadata_image import TopicImage

FIRST_USE_TIMEOUT_MS = 15_000
"""Time to wait for as many live brokers as the replication factor of an internal topic needs."""
FIRST_USE_RETRY_MS = 200

_FIXED_PARTITIONS: Final[Mapping[TopicName, int]] = MappingProxyType(
    {TRANSACTIONS_TOPIC: TRANSACTIONS_PARTITIONS, STAGED_TOPIC: STAGED_PARTITIONS}
)
"""Partitions of the internal topics whose number no config sets."""


class InternalTopics:
    """Look-up and creation of internal topics on the broker that received a request.

    Owned by `RoutedBrokerApis`, on its loop. Stateless.
    """

    def __init__(
        self,
        config: BrokerConfig,
        loader: MetadataLoader,
        topics: TopicRequests,
        clock: Clock,
        random_bytes: Callable[[int], bytes],
    ) -> None:
        self._static = config.static()
        self._loader = loader
        self._topics = topics
        self._clock = clock
        self._random_bytes = random_bytes

    async def existing(self, name: TopicName) -> TopicImage | None:
        """Return the topic, or None if it was never needed yet.

        Raises:
            KafkaError: LEADER_NOT_AVAILABLE if that can't be found out now.
        """
        topic = self._loader.image.topic(name)
        if topic is None:
            await self._topics.catch_up_with(name)
            topic = self._loader.image.topic(name)
        return topic

    async def for_first_write(self, name: TopicName) -> TopicImage:
        """Return the topic; create it if it does not exist.

        Raises:
            KafkaError: COORDINATOR_NOT_AVAILABLE after `FIRST_USE_TIMEOUT_MS` with too few live
                brokers; LEADER_NOT_AVAILABLE if no metadata has been loaded yet.
        """
        topic = self._loader.image.topic(name)
        if topic is None:
            await self._topics.look_for(name)
            topic = self._loader.image.topic(name)
        if topic is None:
            await self._create(name)
            topic = self._loader.image.topic(name)
        if topic is None:
            raise KafkaError(ErrorCode.COORDINATOR_NOT_AVAILABLE)
        return topic

    async def _create(self, name: TopicName) -> None:
        """Create an internal topic, waiting for as many live brokers as it needs.

        Its configs are read here, once (rule M8).
        """
        command = self._creation(name)
        deadline_ms = self._clock.monotonic_ms() + FIRST_USE_TIMEOUT_MS
        while True:
            try:
                await self._topics.create_internal(command)
                return
            except KafkaError as error:
                if error.code is ErrorCode.TOPIC_ALREADY_EXISTS:
                    await self._topics.catch_up_with(name)
                    return
                if self._clock.monotonic_ms() >= deadline_ms:
                    text = f"{name} can't be created: {error.message}"
                    code = ErrorCode.COORDINATOR_NOT_AVAILABLE
                    raise KafkaError(code, text) from error
            await asyncio.sleep(FIRST_USE_RETRY_MS / 1000)

    def _creation(self, name: TopicName) -> CreateTopic:
        """Return the command; partitions and replicas by the cluster's configs, where it has them.

        A replication factor of None stands for ``default.replication.factor``.
        """
        layers = cluster_layers(self._loader.image, self._static)
        factor = None
        if name == OFFSETS_TOPIC:
            partitions = layers.number(OFFSETS_TOPIC_NUM_PARTITIONS)
            factor = layers.number(OFFSETS_TOPIC_REPLICATION_FACTOR) or None
        else:
            partitions = _FIXED_PARTITIONS[name]
        return CreateTopic(
            name=name,
            topic_id=TopicId(id_from_bytes(self._random_bytes(16))),
            partitions_count=partitions,
            replication_factor=factor,
            configs={"flush": "ack"},
        )


def check_no_group_reads(request: GroupRequest[Any]) -> None:
    """Raise INVALID_TOPIC_EXCEPTION if a group would read or commit an internal topic.

    A pattern matches none of them.
    """
    names: Iterable[TopicName] = ()
    match request:
        case Subscribe() | JoinGroup() | Heartbeat():
            names = request.topics or ()
        case Assign():
            names = [place.topic for place in request.partitions]
        case Commit() | CommitGroup():
            names = [one.topic for one in request.offsets or ()]
        case _:
            pass
    for name in names:
        if name in INTERNAL_TOPICS:
            text = f"{name} is the cluster's own: no group reads it"
            raise KafkaError(ErrorCode.INVALID_TOPIC_EXCEPTION, text)
