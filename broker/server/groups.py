"""Requests of consumer groups: checks, the offsets topic, the way to the coordinator, lags.

`RoutedBrokerApis` calls `GroupRequests` for every request of a group. It checks names, has
`__consumer_offsets` created on first use, finds the broker that leads the group's partition of that
topic and forwards the request there once. The coordinator does not know the ends of other topics,
so lags are added here.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import TYPE_CHECKING, Any, TypeVar, cast

from broker.coordinator import group_messages
from broker.coordinator.group_messages import (
    MAY_REPEAT,
    A,
    Assign,
    Commit,
    CommitGroup,
    CreateInstance,
    DeleteGroup,
    DeleteOffsets,
    DescribeGroup,
    GroupDescription,
    GroupOffsetRow,
    GroupOffsets,
    GroupRequest,
    Heartbeat,
    JoinGroup,
    Poll,
    RepairGroup,
    SkipRecords,
    wait_ms_of,
    with_wait,
)
from broker.coordinator.records import OFFSETS_TOPIC, partition_of_group
from broker.server import peer_codec
from broker.server.internal_topics import check_no_group_reads
from broker.server.peer_codec import PeerRequestKind
from broker.server.topics import TOPIC_NAME
from raft_metadata.common.errors import ErrorCode, KafkaError, Outcome
from raft_metadata.common.ids import (
    InstanceId,
    PartitionId,
    TopicIdPartition,
    TopicPartition,
    id_from_bytes,
)

if TYPE_CHECKING:
    from broker.config import BrokerConfig
    from broker.coordinator.group_coordinator import GroupCoordinator
    from broker.server.fetch import ReadRouting
    from broker.server.internal_topics import InternalTopics
    from broker.server.metadata_loader import MetadataLoader
    from broker.server.router import Attempt, LeaderRouter
    from broker.server.topics import TopicRequests
    from raft_metadata.common.clock import Clock
    from raft_metadata.image.metadata_image import PartitionRegistration, TopicImage


T = TypeVar("T")

GROUP_TIMEOUT_MS = 10_000
"""Time to find a coordinator and to get its answer."""
READ_TIMEOUT_MS = 5_000
"""Time for a read, and the least time for a poll: clients give up on reads sooner."""
NAME_MADE_UP = "rest-consumer-"
LAGS_AT_ONCE = 32
"""Partitions whose end offsets are requested at the same time."""


class GroupRequests:
    """Requests of groups on the broker that received them.

    Owned by `RoutedBrokerApis`, on its loop. Stateless between requests.
    """

    def __init__(  # noqa: PLR0913, PLR0917 the parts of a broker
        self,
        config: BrokerConfig,
        router: LeaderRouter,
        reads: ReadRouting,
        coordinator: GroupCoordinator,
        loader: MetadataLoader,
        topics: TopicRequests,
        internal_topics: InternalTopics,
        clock: Clock,
        random_bytes: Callable[[int], bytes],
    ) -> None:
        self._config = config
        self._router = router
        self._reads = reads
        self._coordinator = coordinator
        self._loader = loader
        self._topics = topics
        self._internal_topics = internal_topics
        self._clock = clock
        self._random_bytes = random_bytes

    async def ask(self, request: GroupRequest[A]) -> A:
        """Have the group's coordinator answer a request.

        An instance without a name gets one; rows of offsets get the end offsets of their
        partitions.
        """
        _check_names(request)
        check_no_group_reads(request)
        await self._check_partitions(request)
        wait_ms = GROUP_TIMEOUT_MS
        named_request: GroupRequest[A] = request
        if isinstance(request, CreateInstance) and request.instance is None:
            made_up = NAME_MADE_UP + id_from_bytes(self._random_bytes(16))
            named_request = cast("GroupRequest[A]", replace(request, instance=InstanceId(made_up)))
        if isinstance(request, Poll):
            wait_ms = max(READ_TIMEOUT_MS, wait_ms_of(request))
        elif isinstance(request, Heartbeat):
            wait_ms += wait_ms_of(request)
        topic = await self._offsets_topic(request)
        if topic is None:
            return _answer_without_groups(request)
        deadline_ms = self._clock.monotonic_ms() + wait_ms
        partition = TopicIdPartition(
            topic.topic_id, partition_of_group(request.group, topic.partitions_count)
        )
        answer = await self._routed(partition, named_request, deadline_ms)
        if isinstance(request, GroupOffsets):
            rows = cast("tuple[GroupOffsetRow, ...]", answer)
            return cast(A, await self._with_ends(rows))
        return answer

    async def _check_partitions(self, request: GroupRequest[Any]) -> None:
        """Refuse unknown partitions here.

        The coordinator's refusal would only show that its image is behind.
        """
        named: Iterable[TopicPartition] = ()
        if isinstance(request, Assign):
            named = request.partitions
        elif isinstance(request, Commit | CommitGroup):
            named = [TopicPartition(one.topic, one.partition) for one in request.offsets or ()]
        for name, number in named:
            topic = self._loader.image.topic(name)
            if topic is None or number >= topic.partitions_count:
                await self._topics.catch_up_with(name, number)
                topic = self._loader.image.topic(name)
            if topic is None or not 0 <= number < topic.routed_count:
                text = f"Partition {number} of topic {name} not found"
                raise KafkaError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, text)

    async def _routed(
        self, partition: TopicIdPartition, request: GroupRequest[A], deadline_ms: int
    ) -> A:
        wait_until_ms = self._clock.monotonic_ms() + wait_ms_of(request)

        async def attempt(registration: PartitionRegistration, timeout_ms: int) -> A:
            sent = with_wait(request, max(0, wait_until_ms - self._clock.monotonic_ms()))
            if registration.leader == self._config.broker_id:
                return await self._coordinator.answer(sent)
            body = group_messages.encode_request(sent)
            extra_ms = self._config.limits.max_fetch_wait_ms if isinstance(request, Poll) else 0
            answer = await self._router.forward(
                partition, registration, PeerRequestKind.GROUP, body, timeout_ms + extra_ms
            )
            return group_messages.decode_answer(sent, answer)

        may_repeat = isinstance(request, MAY_REPEAT)
        return await self._until_led(partition, attempt, deadline_ms, may_repeat=may_repeat)

    async def _until_led(
        self,
        partition: TopicIdPartition,
        attempt: Attempt[T],
        deadline_ms: int,
        *,
        may_repeat: bool,
    ) -> T:
        async def patient(registration: PartitionRegistration, timeout_ms: int) -> T:
            try:
                return await attempt(registration, timeout_ms)
            except KafkaError as error:
                late = error.outcome is Outcome.UNKNOWN
                if late or error.code is not ErrorCode.NOT_ENOUGH_REPLICAS:
                    raise
                raise KafkaError(ErrorCode.NOT_COORDINATOR, error.message) from error

        try:
            return await self._router.routed(
                partition, patient, deadline_ms, repeat_unknown=may_repeat
            )
        except KafkaError as error:
            if error.code is not ErrorCode.LEADER_NOT_AVAILABLE:
                raise
            text = f"no group coordinator took the request in time: {error.message}"
            code = ErrorCode.COORDINATOR_NOT_AVAILABLE
            raise KafkaError(code, text, outcome=error.outcome) from error

    # the offsets topic

    async def _offsets_topic(self, request: GroupRequest[Any] | None) -> TopicImage | None:
        """Return `__consumer_offsets`, creating it for the first write; None if no group exists."""
        if isinstance(request, CreateInstance | CommitGroup | JoinGroup):
            return await self._internal_topics.for_first_write(OFFSETS_TOPIC)
        return await self._internal_topics.existing(OFFSETS_TOPIC)

    # every group

    async def list_groups(self) -> list[GroupDescription]:
        """Return the groups of all coordinators, sorted by name."""
        topic = await self._offsets_topic(None)
        if topic is None:
            return []
        deadline_ms = self._clock.monotonic_ms() + READ_TIMEOUT_MS
        found = await asyncio.gather(
            *(
                self._list(TopicIdPartition(topic.topic_id, PartitionId(number)), deadline_ms)
                for number in range(topic.partitions_count)
            )
        )
        return sorted((group for groups in found for group in groups), key=lambda one: one.group)

    async def _list(
        self, partition: TopicIdPartition, deadline_ms: int
    ) -> tuple[GroupDescription, ...]:
        async def attempt(
            registration: PartitionRegistration, timeout_ms: int
        ) -> tuple[GroupDescription, ...]:
            if registration.leader == self._config.broker_id:
                return tuple(await self._coordinator.list_groups(partition.partition))
            body = peer_codec.encode_list_groups(partition.partition)
            answer = await self._router.forward(
                partition, registration, PeerRequestKind.LIST_GROUPS, body, timeout_ms
            )
            return group_messages.decode_groups(answer)

        return await self._until_led(partition, attempt, deadline_ms, may_repeat=True)

    # lags

    async def _with_ends(self, rows: tuple[GroupOffsetRow, ...]) -> tuple[GroupOffsetRow, ...]:
        """Add the end offsets that leaders report in time; without one the lag is unknown."""
        done: list[GroupOffsetRow] = []
        deadline_ms = self._clock.monotonic_ms() + READ_TIMEOUT_MS
        for at in range(0, len(rows), LAGS_AT_ONCE):
            if self._clock.monotonic_ms() >= deadline_ms:
                return (*done, *rows[at:])
            wave = rows[at : at + LAGS_AT_ONCE]
            done += await asyncio.gather(*map(self._with_end, wave))
        return tuple(done)

    async def _with_end(self, row: GroupOffsetRow) -> GroupOffsetRow:
        try:
            ends = await self._reads.offsets(row.topic, row.partition)
        except KafkaError:
            return row
        return replace(row, end_offset=ends.end_offset)


def _check_names(request: GroupRequest[Any]) -> None:
    names = {"group": request.group}
    instance = getattr(request, "instance", None)
    if instance is not None:
        names["instance"] = instance
    for kind, name in names.items():
        if not TOPIC_NAME.match(name) or name in {".", ".."}:
            text = f"invalid {kind} name {name[:249]!r}: expected 1 to 249 of A-Z a-z 0-9 . _ -"
            raise KafkaError(ErrorCode.INVALID_GROUP_ID, text)


def _answer_without_groups(request: GroupRequest[A]) -> A:
    """Answer a request in a cluster that never had a group."""
    if isinstance(request, GroupOffsets):
        return cast(A, ())
    if isinstance(request, DescribeGroup | DeleteGroup | DeleteOffsets | SkipRecords | RepairGroup):
        text = f"Consumer group {request.group} cannot be found."
        raise KafkaError(ErrorCode.GROUP_ID_NOT_FOUND, text)
    raise KafkaError(ErrorCode.UNKNOWN_MEMBER_ID, "Consumer instance not found.")
