"""Entry point of all client requests: routes each to the partition's leader, here or one hop away.

`http_api.server` calls `RoutedBrokerApis`. A request for a partition that is led elsewhere is
forwarded once (decision D7) by the `LeaderRouter`. Each kind of request has its own module in this
folder.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from itertools import islice
from typing import TYPE_CHECKING, Any

from broker.record.lines import key_view
from broker.server.admin import AdminRequests, RecordDeletion
from broker.server.direct_requests import DirectRequests
from broker.server.drains import DrainWatch, StuckDrain
from broker.server.fetch import ReadRouting
from broker.server.forwarded_produce import (
    ForwardedProduces,
    PlacedRecords,
    ProducerIds,
)
from broker.server.groups import GroupRequests
from broker.server.health import damage_led_here
from broker.server.internal_topics import InternalTopics
from broker.server.local_partitions import Append, LocalPartitions
from broker.server.metadata_requests import MetadataRequests
from broker.server.poll_routing import PollRouting
from broker.server.produce import (
    REFUSED_WHOLE,
    KeylessPlacement,
    ProduceRouting,
    check_claimed,
    refusals,
    refused_whole,
)
from broker.server.requests import (
    UNKNOWN_EPOCH,
    FetchRequest,
    FetchResult,
    OffsetsResult,
    OwnFacts,
    PartitionProgress,
    PollPage,
    PollRequest,
    ProduceRequest,
    RecordResult,
)
from broker.server.router import LeaderRouter
from broker.server.row_targets import RowTargets
from broker.server.topics import LiveConfigs, TopicRequests, check_not_internal
from broker.server.transaction_ports import HomeImage
from broker.server.transactions import TransactionRequests
from raft_metadata.common.configs.table import TOPIC_CONFIGS
from raft_metadata.common.errors import ErrorCode, KafkaError
from raft_metadata.common.ids import (
    BrokerId,
    ClusterId,
    PartitionId,
    TopicIdPartition,
    TopicName,
)
from raft_metadata.common.record_placement import partition_of
from raft_metadata.image.metadata_image import broker_layers
from raft_metadata.records.commands import CreateTopic, DeleteTopic, TopicCreated, TopicDeleted

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from broker.config import BrokerConfig
    from broker.coordinator.group_messages import A, GroupDescription, GroupRequest
    from broker.ports import ControllerChannel, PeerChannel
    from broker.record.lines import ProduceRecord
    from broker.replication.log_start_manager import LogTrimming
    from broker.server.fetch import FollowerReads
    from broker.server.lifecycle import Lifecycle
    from broker.server.local_polls import LocalPolls
    from broker.server.metadata_loader import MetadataLoader
    from broker.server.transaction_apis import TransactionApis
    from broker.server.transactions import Coordinators
    from raft_metadata.common.clock import Clock
    from raft_metadata.common.record_placement import Partitioner
    from raft_metadata.image.metadata_image import (
        MetadataImage,
        TopicImage,
    )
    from raft_metadata.records.commands import A as AdminAnswer
    from raft_metadata.records.commands import Command


class RoutedBrokerApis:
    """Implementation of `broker.server.requests.BrokerApis`, on the broker's loop.

    Owned by the `BrokerServer`. Stateless but for the rotation of keyless records over partitions,
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
        make_coordinators: Callable[[RoutedBrokerApis], Coordinators],
        follower_reads: FollowerReads,
        local_polls: LocalPolls,
        trimming: LogTrimming,
        clock: Clock,
        random_bytes: Callable[[int], bytes],
    ) -> None:
        """Take ``make_coordinators``, called once: coordinators read through this object."""
        self._config, self._local = config, local
        self._loader = loader
        self._lifecycle, self._clock = lifecycle, clock
        self._configs = LiveConfigs(config)
        self._static_configs = config.static()
        self._topics = TopicRequests(config, loader, controllers, peers, clock, random_bytes)
        self.internal_topics = InternalTopics(config, loader, self._topics, clock, random_bytes)
        self._admin = AdminRequests(
            config, local, loader, controllers, peers, self.local_facts, self._topics
        )
        self._drains = DrainWatch()
        self._metadata = MetadataRequests(
            config, loader, controllers, self.own_facts, self._stuck_drains
        )
        self.router = LeaderRouter(loader, peers, clock)
        self._keyless = KeylessPlacement(random_bytes)
        self._producer_ids = ProducerIds(config.broker_id, lifecycle, controllers)
        self.forwarded = ForwardedProduces(
            config.broker_id, lambda: self.image, local, self._producer_ids,
            self.router, peers, clock,
        )  # fmt: skip
        self.direct = DirectRequests(
            config, local, loader, self._configs, self.forwarded, self._keyless
        )
        self._produces = ProduceRouting(config.broker_id, local, self.router, self.forwarded, clock)
        self._reads = ReadRouting(
            config, local, self._existing, self.router, follower_reads, clock,
            self._topics.catch_up,
        )  # fmt: skip
        self.polls = PollRouting(
            config, local_polls, follower_reads, loader, peers, clock, self._topics.catch_up,
            random_bytes,
        )  # fmt: skip
        self._deletion = RecordDeletion(config.broker_id, self.router, trimming, clock)
        self.row_targets = RowTargets(loader, self._topics, self._configs, self._stamp_ms)
        self.home_image = HomeImage(loader, self._topics, self._configs)
        self.coordinators = make_coordinators(self)
        self._groups = GroupRequests(
            config, self.router, self._reads, self.coordinators.groups, loader, self._topics,
            self.internal_topics, clock, random_bytes,
        )  # fmt: skip
        self._transactions = TransactionRequests(
            config, self.router, self.coordinators, loader, self.internal_topics,
            self.row_targets, self._keyless, clock,
        )  # fmt: skip

    def _stamp_ms(self) -> int:
        """Return the time that rows without one would get (rule R10)."""
        return self._lifecycle.controller_clock.wall_ms()

    def _stuck_drains(self, image: MetadataImage) -> list[StuckDrain]:
        return self._drains.stuck(image, self._clock.monotonic_ms())

    def observe_drains(self, image: MetadataImage) -> None:
        """Note how far drains are; called for each image, in order."""
        self._drains.observe(image, self._clock.monotonic_ms())

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

    @property
    def transactions(self) -> TransactionApis:
        return self._transactions

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
            troubles=(
                *self.coordinators.groups.troubles(),
                *self.coordinators.transactions.troubles(),
            ),
        )

    # groups

    def group(self, request: GroupRequest[A]) -> Coroutine[Any, Any, A]:
        return self._groups.ask(request)

    async def list_groups(self) -> list[GroupDescription]:
        return await self._groups.list_groups()

    # produce

    async def producer_id(self) -> int:
        return await self._producer_ids.next()

    async def topic_for_produce(self, topic: TopicName, timeout_ms: int) -> TopicImage:
        return await self._topics.for_produce(topic, self._produce_deadline_ms(timeout_ms))

    def next_keyless(self, topic: TopicImage, partitioner: Partitioner) -> Callable[[], int]:
        return self._keyless.for_request(topic, partitioner)

    def record_time_ms(self, topic: TopicImage) -> int | None:
        if self._configs.has_append_times(self.image, topic.topic_id):
            return None
        return self._lifecycle.controller_clock.wall_ms()

    def _produce_deadline_ms(self, timeout_ms: int) -> int:
        most_ms = self._config.limits.max_produce_timeout_ms
        return self._clock.monotonic_ms() + max(1, min(timeout_ms, most_ms))

    async def produce(self, request: ProduceRequest) -> list[RecordResult]:
        deadline_ms = self._produce_deadline_ms(request.timeout_ms)
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
        next_keyless = self.next_keyless(topic, request.partitioner)
        groups: dict[PartitionId, list[int]] = {}
        for index, record in enumerate(request.records):
            if index in refused:
                continue
            named = record.partition
            key = None if named is not None else key_view(record, request.key_format)
            partition = PartitionId(partition_of(named, key, count, next_keyless))
            if named is not None:
                self._check_partition(topic, partition)
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

    # reads

    def fetch(self, request: FetchRequest) -> Coroutine[Any, Any, FetchResult]:
        return self._reads.fetch(request)

    async def poll(self, request: PollRequest) -> list[PollPage]:
        return await self.polls.poll(request)

    async def offsets(
        self, topic: TopicName, partition: PartitionId, seen_epoch: int = UNKNOWN_EPOCH
    ) -> OffsetsResult:
        return await self._reads.offsets(topic, partition, seen_epoch)

    async def delete_records(self, topic: TopicName, partition: PartitionId, before: int) -> int:
        check_not_internal(topic)
        return await self._deletion.delete(await self._existing(topic, partition), before)

    async def _existing(self, name: TopicName, number: PartitionId) -> TopicIdPartition:
        await self._topics.catch_up_with(name, number)
        topic = self.image.topic(name)
        if topic is None:
            raise KafkaError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"Topic {name} not found")
        self._check_partition(topic, number)
        return TopicIdPartition(topic.topic_id, number)
