"""Entry point of all client requests: routes each to the partition's leader, here or one hop away.

`http_api.server` calls `RoutedBrokerApis`. A request for a partition that is led elsewhere is
forwarded once (decision D7). An attempt that surely appended nothing is repeated until the
request's deadline, at the leader that the image names by then; an attempt of unknown outcome is not
repeated (rule F1). Each kind of request has its own module in this folder.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections import defaultdict
from collections.abc import Awaitable, Callable
from itertools import islice
from typing import TYPE_CHECKING, TypeVar

from broker.record.lines import key_view
from broker.record.values import partition_for_key
from broker.server.admin import AdminRequests
from broker.server.direct_requests import DirectRequests
from broker.server.fetch import ReadRouting
from broker.server.forwarded_produce import (
    DEPOSED_GRACE_MS,
    ForwardedProduces,
    PlacedRecords,
    ProducerIds,
)
from broker.server.groups import GroupRequests
from broker.server.health import damage_led_here
from broker.server.local_partitions import Append, LocalPartitions
from broker.server.metadata_requests import MetadataRequests
from broker.server.produce import (
    REFUSED_WHOLE,
    ProduceRouting,
    check_claimed,
    refusals,
    refused_whole,
)
from broker.server.requests import (
    FetchRequest,
    FetchResult,
    OffsetsResult,
    OwnFacts,
    PartitionProgress,
    ProduceRequest,
    RecordResult,
)
from broker.server.topics import LiveConfigs, TopicRequests
from raft_metadata.common.configs.table import TOPIC_CONFIGS
from raft_metadata.common.errors import ErrorCode, KafkaError, Outcome
from raft_metadata.common.ids import (
    BrokerId,
    ClusterId,
    LeaderEpoch,
    PartitionId,
    TopicIdPartition,
    TopicName,
)
from raft_metadata.common.sequenced_sender import RETRIABLE_REFUSALS
from raft_metadata.image.metadata_image import broker_layers
from raft_metadata.records.commands import CreateTopic, DeleteTopic, TopicCreated, TopicDeleted

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from broker.config import BrokerConfig
    from broker.coordinator.group_coordinator import GroupCoordinator
    from broker.coordinator.group_messages import A, GroupDescription, GroupRequest
    from broker.ports import ControllerChannel, PeerChannel
    from broker.record.lines import ProduceRecord
    from broker.server.admin import RecordDeletion
    from broker.server.fetch import FollowerReads
    from broker.server.health import Damage
    from broker.server.lifecycle import Lifecycle
    from broker.server.metadata_loader import MetadataLoader
    from raft_metadata.common.clock import Clock
    from raft_metadata.image.metadata_image import (
        MetadataImage,
        PartitionRegistration,
        TopicImage,
    )
    from raft_metadata.records.commands import A as AdminAnswer
    from raft_metadata.records.commands import Command

_log = logging.getLogger("broker.apis")
T = TypeVar("T")

REROUTE_PAUSE_MS = 100
"""Longest pause before a refused attempt is made again; a new image ends it at once."""


class RoutedBrokerApis:
    """Implementation of `broker.server.requests.BrokerApis`, on the broker's loop.

    Owned by the `BrokerServer`. Stateless but for the rotation of keyless requests over partitions,
    and the forwards under way.
    """

    def __init__(  # noqa: PLR0913, PLR0917 the parts of a broker
        self,
        config: BrokerConfig,
        local: LocalPartitions,
        loader: MetadataLoader,
        lifecycle: Lifecycle,
        controllers: ControllerChannel,
        peers: PeerChannel,
        coordinator: GroupCoordinator,
        clock: Clock,
        random_bytes: Callable[[int], bytes],
    ) -> None:
        self.follower_reads: FollowerReads | None = None
        """Reads for clients that name their rack; None: leaders serve all reads."""
        self.deletion: RecordDeletion | None = None
        """Deletion of records; the `BrokerServer` sets it before the first request."""
        self._config = config
        self._local = local
        self._loader = loader
        self._lifecycle = lifecycle
        self._peers = peers
        self._clock = clock
        self._configs = LiveConfigs(config)
        self._static_configs = config.static()
        self._topics = TopicRequests(config, loader, controllers, peers, clock, random_bytes)
        self._admin = AdminRequests(
            config, local, loader, controllers, peers, self.local_facts, self._topics
        )
        self._groups = GroupRequests(
            config, self, coordinator, loader, self._topics, clock, random_bytes
        )
        self._metadata = MetadataRequests(config, loader, controllers, self._damage_of)
        self._rotation = int.from_bytes(random_bytes(4), "little")
        self._producer_ids = ProducerIds(config.broker_id, lifecycle, controllers)
        self.forwarded = ForwardedProduces(
            config.broker_id, lambda: self.image, local, self._producer_ids,
            self.forward, clock, peers.post,
        )  # fmt: skip
        self.direct = DirectRequests(config, local, loader, self._configs, self.forwarded)
        self._produces = ProduceRouting(config.broker_id, local, self, self.forwarded, clock)
        self._reads = ReadRouting(config, local, self._existing, self, clock)
        self._forwards: dict[TopicIdPartition, set[asyncio.Timeout]] = defaultdict(set)

    # facts

    @property
    def broker_id(self) -> BrokerId:
        return self._config.broker_id

    @property
    def cluster_id(self) -> ClusterId:
        return self._config.cluster_id

    @property
    def image(self) -> MetadataImage:
        return self._loader.image

    @property
    def controller_id(self) -> int | None:
        return self._loader.leader_id

    @property
    def metadata(self) -> MetadataRequests:
        return self._metadata

    def readiness(self) -> list[tuple[str, bool]]:
        state = self._lifecycle.state
        named = state.value if state else "not registered"
        return [
            ("node", True),
            ("metadata", self._loader.loaded.is_set()),
            (f"broker {named}", named == "unfenced"),
        ]

    def topic_defaults(self) -> dict[str, str]:
        layers = broker_layers(self.image, self._config.broker_id, self._static_configs)
        return {name: layers.describe(row).value for name, row in TOPIC_CONFIGS.items()}

    # topics

    async def catch_up_with_topic(self, topic: TopicName, partition: int = 0) -> None:
        await self._topics.catch_up_with(topic, partition)

    async def create_topic(self, command: CreateTopic) -> TopicCreated:
        return await self._topics.create(command)

    async def delete_topic(self, command: DeleteTopic) -> TopicDeleted:
        return await self._topics.delete(command)

    # requests of operators

    async def admin(self, command: Command[AdminAnswer]) -> AdminAnswer:
        return await self._admin.ask(command)

    async def replication_progress(
        self, partitions: Sequence[TopicIdPartition]
    ) -> Mapping[TopicIdPartition, PartitionProgress]:
        return await self._admin.progress(partitions)

    async def own_facts(self, broker_id: BrokerId) -> OwnFacts:
        return await self._admin.own_facts(broker_id)

    def local_facts(self) -> OwnFacts:
        """Return the facts that only this broker knows of itself."""
        return OwnFacts(
            static_configs=self._static_configs,
            shutdown_blocked_by=self._lifecycle.shutdown_blocked_by,
            damage=damage_led_here(self._local.damaged(), self._local.leads),
        )

    async def _damage_of(self, broker_id: BrokerId) -> Damage:
        return (await self.own_facts(broker_id)).damage

    # groups

    async def group(self, request: GroupRequest[A]) -> A:
        return await self._groups.ask(request)

    async def list_groups(self) -> list[GroupDescription]:
        return await self._groups.list_groups()

    # produce

    async def producer_id(self) -> int:
        return await self._producer_ids.next()

    async def produce(self, request: ProduceRequest) -> list[RecordResult]:
        timeout_ms = max(1, min(request.timeout_ms, self._config.limits.max_produce_timeout_ms))
        deadline_ms = self._clock.monotonic_ms() + timeout_ms
        topic = await self._topics.for_produce(request.topic, deadline_ms)
        if request.claim is not None:
            check_claimed(request, topic)
        results: list[RecordResult | None] = [None] * len(request.records)
        try:
            groups = self._group(request, topic, results)
        except KafkaError:
            # Perhaps a new partition, which this broker's image does not have yet.
            await self._topics.catch_up_with(topic.name, topic.partitions_count)
            topic = self.image.topics.get(topic.topic_id, topic)
            results = [None] * len(request.records)
            groups = self._group(request, topic, results)
        if len(groups) == 1:
            [(partition, indexes)] = groups.items()
            await self._produce_group(request, topic, partition, indexes, results, deadline_ms)
        elif groups:
            async with asyncio.TaskGroup() as tasks:
                for partition, indexes in groups.items():
                    tasks.create_task(
                        self._produce_group(
                            request, topic, partition, indexes, results, deadline_ms
                        )
                    )
        return [result for result in results if result is not None]

    def _group(
        self, request: ProduceRequest, topic: TopicImage, results: list[RecordResult | None]
    ) -> dict[PartitionId, Sequence[int]]:
        """Return the indexes of the records of each partition, in request order.

        Records that the topic's configs refuse get their errors in `results`.
        """
        count = topic.routed_count
        now_ms = self._lifecycle.controller_clock.wall_ms()
        refused = refusals(request.records, self._configs, self.image, topic, now_ms)
        for index, error in refused.items():
            results[index] = RecordResult(None, None, error)
        if request.claim is not None:
            refused = {}  # all go to the leader, which recognises a repeat: see `Append.refused`
        if request.partition is not None:
            self._check_partition(topic, request.partition)
            wanted = [i for i in range(len(request.records)) if i not in refused]
            return {request.partition: wanted} if wanted else {}
        self._rotation += 1
        keyless = PartitionId(self._rotation % count)
        groups: dict[PartitionId, list[int]] = {}
        for index, record in enumerate(request.records):
            if index in refused:
                continue
            if record.partition is not None:
                partition = PartitionId(record.partition)
                self._check_partition(topic, partition)
            else:
                key = key_view(record, request.key_format)
                partition = keyless if key is None else PartitionId(partition_for_key(key, count))
            groups.setdefault(partition, []).append(index)
        return dict(groups)

    def _check_partition(self, topic: TopicImage, partition: PartitionId) -> None:
        if not 0 <= partition < topic.partitions_count:
            raise KafkaError(
                ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
                f"Topic {topic.name} has no partition {partition}: it has "
                f"{topic.partitions_count}, numbered from 0",
            )

    async def _produce_group(
        self,
        request: ProduceRequest,
        topic: TopicImage,
        number: PartitionId,
        indexes: Sequence[int],
        results: list[RecordResult | None],
        deadline_ms: int,
    ) -> None:
        partition = TopicIdPartition(topic.topic_id, number)
        all_records = len(indexes) == len(request.records)
        records: Sequence[ProduceRecord] = (
            request.records if all_records else [request.records[i] for i in indexes]
        )

        append = Append(
            partition=partition,
            records=records,
            key_format=request.key_format,
            value_format=request.value_format,
            acks=request.acks,
            timeout_ms=request.timeout_ms,
            claim=request.claim,
            refused=None if request.claim is None else refused_whole(results),
        )
        try:
            placed = await self._produces.place(append, deadline_ms)
        except KafkaError as error:
            if request.claim is not None and error.code in REFUSED_WHOLE:
                raise
            placed = [PlacedRecords(len(indexes), -1, error)]
        rest = iter(indexes)
        for count, base, error_of_piece in placed:
            for at, index in enumerate(islice(rest, count)):
                offset = base + at if base >= 0 else -1
                results[index] = RecordResult(
                    number, None if error_of_piece else offset, error_of_piece
                )

    # routing

    async def _routed(
        self,
        partition: TopicIdPartition,
        attempt: Callable[[PartitionRegistration, int], Awaitable[T]],
        deadline_ms: int,
    ) -> T:
        """Call `attempt` with the present leader and the time left until one attempt succeeds.

        Only refusals that surely appended nothing are repeated. Raises LEADER_NOT_AVAILABLE at
        `deadline_ms`, on the monotonic clock.
        """
        last = KafkaError(ErrorCode.LEADER_NOT_AVAILABLE, "the partition has no leader")
        while True:
            registration = self.image.partition(*partition)
            if registration is None and partition.topic_id not in self.image.topics:
                raise KafkaError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, "the topic was deleted")
            remaining_ms = deadline_ms - self._clock.monotonic_ms()
            if registration is not None and registration.has_leader:
                try:
                    return await attempt(registration, max(1, remaining_ms))
                except KafkaError as error:
                    if error.outcome is Outcome.UNKNOWN or error.code not in RETRIABLE_REFUSALS:
                        raise
                    last = error
            if deadline_ms - self._clock.monotonic_ms() <= 0:
                text = f"no leader took the request in time: {last.message}"
                raise KafkaError(ErrorCode.LEADER_NOT_AVAILABLE, text, outcome=last.outcome)
            await self._pause(deadline_ms)

    async def routed(
        self,
        partition: TopicIdPartition,
        attempt: Callable[[PartitionRegistration, int], Awaitable[T]],
        deadline_ms: int,
        *,
        pure: bool,
    ) -> T:
        """Call `attempt` with the leader of a partition until it succeeds or the deadline has come.

        A `pure` attempt only reads, so it is repeated after an unknown outcome as well.
        """
        if pure:
            return await self._routed_read(partition, attempt, deadline_ms)
        return await self._routed(partition, attempt, deadline_ms)

    async def _pause(self, deadline_ms: int) -> None:
        """Wait for a new image, `REROUTE_PAUSE_MS` or the deadline, whichever comes first."""
        pause_ms = min(REROUTE_PAUSE_MS, max(1, deadline_ms - self._clock.monotonic_ms()))
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(pause_ms / 1000):
                await self._loader.changed()

    async def forward(
        self,
        partition: TopicIdPartition,
        registration: PartitionRegistration,
        kind: int,
        body: bytes,
        timeout_ms: int,
    ) -> bytes:
        """Send a request to the leader in `registration`, once, and return the body of its answer.

        If a newer leader epoch appears meanwhile, the answer is awaited for `DEPOSED_GRACE_MS`
        only.
        """
        leader = self.image.brokers.get(registration.leader)
        if leader is None:
            raise KafkaError(ErrorCode.LEADER_NOT_AVAILABLE, "the leader is not registered")
        forwards = self._forwards[partition]
        scope = asyncio.timeout(timeout_ms / 1000 + 1)
        try:
            async with scope:
                forwards.add(scope)
                return await self._peers.call(leader.broker_id, leader.peer, kind, body, timeout_ms)
        except TimeoutError:
            text = f"broker {leader.broker_id} did not answer"
            raise KafkaError(ErrorCode.REQUEST_TIMED_OUT, text) from None
        finally:
            forwards.discard(scope)
            if not forwards:
                self._forwards.pop(partition, None)

    def on_leader_changed(self, partition: TopicIdPartition, _epoch: LeaderEpoch) -> None:
        """Wait for answers of the older leader for `DEPOSED_GRACE_MS` at most."""
        soon = asyncio.get_running_loop().time() + DEPOSED_GRACE_MS / 1000
        for scope in self._forwards.get(partition, ()):
            when = scope.when()
            if when is None or when > soon:
                scope.reschedule(soon)

    @property
    def forwarded_partitions(self) -> Sequence[TopicIdPartition]:
        """Partitions with a forward under way."""
        return list(self._forwards)

    # reads

    async def fetch(self, request: FetchRequest) -> FetchResult:
        return await self._reads.fetch(request, self.follower_reads)

    async def offsets(self, topic: TopicName, partition: PartitionId) -> OffsetsResult:
        return await self._reads.offsets(topic, partition)

    async def delete_records(self, topic: TopicName, partition: PartitionId, before: int) -> int:
        assert self.deletion is not None, "the broker set it before it listened"
        return await self.deletion.delete(await self._existing(topic, partition), before)

    async def _routed_read(
        self,
        partition: TopicIdPartition,
        attempt: Callable[[PartitionRegistration, int], Awaitable[T]],
        deadline_ms: int,
    ) -> T:
        """Call `attempt` as `_routed` does, and also repeat it after an unknown outcome."""

        async def pure(registration: PartitionRegistration, timeout_ms: int) -> T:
            try:
                return await attempt(registration, timeout_ms)
            except KafkaError as error:
                if error.outcome is Outcome.UNKNOWN:
                    raise KafkaError(
                        ErrorCode.LEADER_NOT_AVAILABLE, error.message, outcome=Outcome.NOT_WRITTEN
                    ) from error
                raise

        return await self._routed(partition, pure, deadline_ms)

    async def _existing(self, name: TopicName, number: PartitionId) -> TopicIdPartition:
        await self._topics.catch_up_with(name, number)
        topic = self.image.topic(name)
        if topic is None:
            raise KafkaError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"Topic {name} not found")
        self._check_partition(topic, number)
        return TopicIdPartition(topic.topic_id, number)
