"""What operators ask: decided by the active controller, done here before the answer.

Nothing here is tried again by this side: whether a command may be repeated is said by its row in
``raft_metadata.records.commands`` (rule F1). Progress is asked of the leaders, each once; what
can't be had is left out, since it only tells people how far something is.
"""

from __future__ import annotations

import asyncio
import logging
from collections import defaultdict
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from broker.server import forwarding
from broker.server.progress import local_progress
from broker.server.requests import OwnFacts, PartitionProgress
from broker.server.topic_requests import check_not_internal
from raft_metadata.common.errors import ErrorCode, KafkaError
from raft_metadata.common.ids import BrokerId, TopicIdPartition
from raft_metadata.records.commands import (
    A,
    AddPartitions,
    AdminCommand,
    AlterAnswer,
    AlterConfigs,
    LeadersElected,
    MetadataUpgraded,
    PartitionsAdded,
)
from raft_metadata.records.records import BrokerState

if TYPE_CHECKING:
    from broker.config import BrokerConfig
    from broker.ports import ControllerChannel, PeerChannel
    from broker.server.local_partitions import LocalPartitions
    from broker.server.metadata_loader import MetadataLoader
    from broker.server.topic_requests import TopicRequests

_log = logging.getLogger("broker.admin")

COMMAND_TIMEOUT_MS = 5_000
"""How long an active controller is looked for: an election takes about one second."""
PEER_TIMEOUT_MS = 2_000
"""Another broker tells what it knows in this time, or is not waited for."""
PROGRESS_PARTITIONS_MAX = 10_000
"""Partitions whose progress one request tells: a page of 2 MB."""


class AdminRequests:
    """On the broker's loop. Holds nothing between requests."""

    def __init__(
        self,
        config: BrokerConfig,
        local: LocalPartitions,
        loader: MetadataLoader,
        controllers: ControllerChannel,
        peers: PeerChannel,
        own_facts: Callable[[], OwnFacts],
        topics: TopicRequests,
    ) -> None:
        self._config = config
        self._local = local
        self._loader = loader
        self._controllers = controllers
        self._peers = peers
        self._own_facts = own_facts
        self._topics = topics

    async def ask(self, command: AdminCommand[A]) -> A:
        """See `BrokerApis.admin`."""
        had = 0
        if isinstance(command, AddPartitions):
            self._check_growth(command)
            before = self._loader.image.topic(command.topic)
            had = 0 if before is None else len(before.partitions)
        answer: A = await self._controllers.ask(command, COMMAND_TIMEOUT_MS)
        if getattr(command, "validate_only", False):
            return answer
        try:
            async with asyncio.timeout(self._config.timeouts.topic_ready_ms / 1000):
                if isinstance(answer, PartitionsAdded):
                    await self._topics.until_ready(answer.topic_id, answer.next_offset, had)
                elif isinstance(answer, AlterAnswer | LeadersElected | MetadataUpgraded):
                    await self._loader.wait_for(answer.next_offset)
                if isinstance(command, AlterConfigs) and isinstance(answer, AlterAnswer):
                    # in force on every broker that lives, not only on the one that was asked
                    await self._topics.until_known(self._live(), answer.next_offset)
        except TimeoutError:
            text = "it was decided, but this broker has not seen it come true yet"
            raise KafkaError(ErrorCode.REQUEST_TIMED_OUT, text) from None
        return answer

    def _live(self) -> list[BrokerId]:
        return [
            broker.broker_id
            for broker in self._loader.image.brokers.values()
            if broker.state in {BrokerState.UNFENCED, BrokerState.CONTROLLED_SHUTDOWN}
        ]

    def _check_growth(self, command: AddPartitions) -> None:
        check_not_internal(command.topic)  # groups are spread over as many as there were at first
        limit = self._config.limits.max_partitions_per_topic
        if command.partitions_count > limit:
            text = f"{command.partitions_count} partitions, max_partitions_per_topic is {limit}"
            raise KafkaError(ErrorCode.INVALID_PARTITIONS, text)

    # facts that only one broker knows

    async def own_facts(self, broker_id: BrokerId) -> OwnFacts:
        """See `BrokerApis`."""
        if broker_id == self._config.broker_id:
            return self._own_facts()
        registration = self._loader.image.brokers.get(broker_id)
        if registration is None:
            text = f"broker {broker_id} is not registered"
            raise KafkaError(ErrorCode.BROKER_ID_NOT_REGISTERED, text)
        try:
            answer = await self._peers.call(
                broker_id,
                registration.peer,
                forwarding.OWN_FACTS,
                forwarding.encode_own_facts(),
                PEER_TIMEOUT_MS,
            )
        except KafkaError as error:
            text = f"broker {broker_id} can't be asked what only it knows: {error.message}"
            raise KafkaError(ErrorCode.BROKER_NOT_AVAILABLE, text) from error
        return forwarding.decode_own_facts(answer)

    async def progress(
        self, partitions: Sequence[TopicIdPartition]
    ) -> dict[TopicIdPartition, PartitionProgress]:
        """See `BrokerApis.replication_progress`."""
        image = self._loader.image
        by_leader: dict[BrokerId, list[TopicIdPartition]] = defaultdict(list)
        for place in partitions[:PROGRESS_PARTITIONS_MAX]:
            registration = image.partition(*place)
            if registration is not None and registration.has_leader:
                by_leader[registration.leader].append(place)
        found: dict[TopicIdPartition, PartitionProgress] = {}
        async with asyncio.TaskGroup() as tasks:
            for leader, places in by_leader.items():
                tasks.create_task(self._progress_of(leader, places, found))
        return found

    async def _progress_of(
        self,
        leader: BrokerId,
        places: list[TopicIdPartition],
        found: dict[TopicIdPartition, PartitionProgress],
    ) -> None:
        if leader == self._config.broker_id:
            for place in places:
                progress = local_progress(self._local, place)
                if progress is not None:
                    found[place] = progress
            return
        registration = self._loader.image.brokers.get(leader)
        if registration is None:
            return
        body = forwarding.encode_progress(places)
        try:
            answer = await self._peers.call(
                leader, registration.peer, forwarding.PROGRESS, body, PEER_TIMEOUT_MS
            )
        except KafkaError as error:
            _log.debug("no progress told broker=%d error=%s", leader, error.code.name)
            return
        found.update(forwarding.decode_progress(answer))
