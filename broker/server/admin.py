"""Requests of operators: reassignments, elections, drains, configs, deletion of records.

`RoutedBrokerApis` calls it. The active controller decides; the broker that received the request
waits until its own image shows the result before it answers. Nothing is sent a second time from
here: each command's row in `raft_metadata.records.commands` says whether the channel to the
controllers may repeat it (rule F1). Facts that only one broker knows, and the progress of replicas,
are requested from the brokers that have them.
"""

from __future__ import annotations

import asyncio
import logging
from collections import defaultdict
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from broker.server import peer_codec
from broker.server.local_partitions import local_progress
from broker.server.metadata_requests import live_brokers
from broker.server.peer_codec import PeerRequestKind
from broker.server.requests import OwnFacts, PartitionProgress
from broker.server.topics import check_not_internal
from raft_metadata.common.errors import ErrorCode, KafkaError, Outcome
from raft_metadata.common.ids import BrokerId, TopicIdPartition
from raft_metadata.records.commands import (
    A,
    AddPartitions,
    AlterAnswer,
    AlterConfigs,
    Command,
    LeadersElected,
    MetadataUpgraded,
    PartitionsAdded,
)

if TYPE_CHECKING:
    from broker.config import BrokerConfig
    from broker.ports import ControllerChannel, PeerChannel
    from broker.replication.log_start_manager import LogTrimming
    from broker.server.local_partitions import LocalPartitions
    from broker.server.metadata_loader import MetadataLoader
    from broker.server.router import LeaderRouter
    from broker.server.topics import TopicRequests
    from raft_metadata.common.clock import Clock
    from raft_metadata.image.metadata_image import PartitionRegistration


DELETE_TIMEOUT_MS = 10_000
"""Time for the new log start to become durable on every replica that may lead next. A replica that
died has left the in-sync replicas long before, with the default ``replica_lag_time_max_ms``."""
PEER_TIMEOUT_MS = 2_000
"""Time for another broker to answer; after that its facts count as not available."""
PROGRESS_PARTITIONS_MAX = 10_000
"""Partitions whose progress one request returns: a page of 2 MB."""

_log = logging.getLogger("broker.admin")


class RecordDeletion:
    """Deletion of the records below an offset, here or by one request to the leader.

    Owned by the `BrokerServer`. Stateless.
    """

    def __init__(
        self, broker_id: BrokerId, router: LeaderRouter, trimming: LogTrimming, clock: Clock
    ) -> None:
        self._broker_id = broker_id
        self._router = router
        self._trimming = trimming
        self._clock = clock

    async def delete(self, partition: TopicIdPartition, before_offset: int) -> int:
        """Delete the records below `before_offset` and return the new log start offset.

        -1 stands for the high watermark. On return the next leader knows the log start as well. A
        request with an offset is repeated whatever the outcome of the first attempt; one with -1 is
        not repeated after an unknown outcome, because it would reach further by then (rule F1).

        Raises:
            KafkaError: OFFSET_OUT_OF_RANGE, or the error of the leader. Its outcome is unknown
                if that of any attempt was.
        """

        async def attempt(registration: PartitionRegistration, timeout_ms: int) -> int:
            if registration.leader == self._broker_id:
                return await self._trimming.delete_records(partition, before_offset, timeout_ms)
            body = peer_codec.encode_delete_records(partition, before_offset)
            answer = await self._router.forward(
                partition, registration, PeerRequestKind.DELETE_RECORDS, body, timeout_ms
            )
            return peer_codec.decode_log_start(answer)

        deadline_ms = self._clock.monotonic_ms() + DELETE_TIMEOUT_MS
        doubts: list[KafkaError] = []
        try:
            return await self._router.routed(
                partition, attempt, deadline_ms, repeat_unknown=before_offset >= 0, doubts=doubts
            )
        except KafkaError as error:
            if not doubts:
                raise
            if error.code is ErrorCode.LEADER_NOT_AVAILABLE:
                raise doubts[-1] from error
            raise KafkaError(error.code, error.message, outcome=Outcome.UNKNOWN) from error


class AdminRequests:
    """Operators' requests that the active controller decides or that one broker alone can answer.

    On the broker's loop. Holds nothing between requests.
    """

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

    async def ask(self, command: Command[A]) -> A:
        """Have the active controller decide a command; wait until this broker's image shows it.

        New partitions must have ready leaders, and every live broker must know changed configs.
        With ``validate_only`` nothing is awaited. Raises REQUEST_TIMED_OUT if the command was
        decided but its result did not show within ``topic_ready_ms``.
        """
        partitions_before = 0
        if isinstance(command, AddPartitions):
            self._check_growth(command)
            before = self._loader.image.topic(command.topic)
            partitions_before = 0 if before is None else len(before.partitions)
        answer: A = await self._controllers.execute(command)
        if getattr(command, "validate_only", False):
            return answer
        try:
            async with asyncio.timeout(self._config.timeouts.topic_ready_ms / 1000):
                if isinstance(answer, PartitionsAdded):
                    await self._topics.until_ready(
                        answer.topic_id, answer.next_offset, partitions_before
                    )
                elif isinstance(answer, AlterAnswer | LeadersElected | MetadataUpgraded):
                    await self._loader.wait_for(answer.next_offset)
                if isinstance(command, AlterConfigs) and isinstance(answer, AlterAnswer):
                    # in force on every live broker, not only on the one that got the request
                    live = live_brokers(self._loader.image)
                    await self._topics.until_known(live, answer.next_offset)
        except TimeoutError:
            text = "the change is recorded, but this broker has not applied it yet"
            raise KafkaError(ErrorCode.REQUEST_TIMED_OUT, text) from None
        return answer

    def _check_growth(self, command: AddPartitions) -> None:
        check_not_internal(command.topic)  # groups are spread over the first number of partitions
        limit = self._config.limits.max_partitions_per_topic
        if command.partitions_count > limit:
            text = f"{command.partitions_count} partitions, max_partitions_per_topic is {limit}"
            raise KafkaError(ErrorCode.INVALID_PARTITIONS, text)

    # facts that only one broker knows

    async def own_facts(self, broker_id: BrokerId) -> OwnFacts:
        """Return the facts that only that broker knows of itself.

        Raises KafkaError: BROKER_ID_NOT_REGISTERED, or BROKER_NOT_AVAILABLE if it does not answer.
        """
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
                PeerRequestKind.OWN_FACTS,
                peer_codec.encode_own_facts(),
                PEER_TIMEOUT_MS,
            )
        except KafkaError as error:
            text = f"broker {broker_id} did not answer, and only it knows: {error.message}"
            raise KafkaError(ErrorCode.BROKER_NOT_AVAILABLE, text) from error
        return peer_codec.decode_own_facts(answer)

    async def progress(
        self, partitions: Sequence[TopicIdPartition]
    ) -> dict[TopicIdPartition, PartitionProgress]:
        """Return the progress of the replicas of these partitions, as their leaders report it.

        All leaders are called at once. Left out are partitions without a leader, and those whose
        leader does not answer in time.
        """
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
        body = peer_codec.encode_progress(places)
        try:
            answer = await self._peers.call(
                leader, registration.peer, PeerRequestKind.PROGRESS, body, PEER_TIMEOUT_MS
            )
        except KafkaError as error:
            _log.debug("no progress reported broker=%d error=%s", leader, error.code.name)
            return
        found.update(peer_codec.decode_progress(answer))
