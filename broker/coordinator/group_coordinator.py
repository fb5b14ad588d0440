"""The coordinator of every group whose partition of `__consumer_offsets` this broker leads.

Requests arrive from `BrokerApis.group` of any broker. Each partition of the offsets topic that is
led here has a `Shard`, which is loaded from its log before it answers (rule G1). A request becomes
one or more decisions of its shard (`instances`, `commits`); it is answered once their records are
committed. Reads are run by the `InstanceReader`. Descriptions and refusals are answered only with
proof that this broker still leads (rule G3).
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import logging
from collections.abc import Awaitable, Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, TypeVar, cast

from broker.coordinator import (
    commits,
    direct_members,
    held_groups,
    instances,
    membership,
    rebalance,
    removal,
)
from broker.coordinator.assignors import UNIFORM, ReplicaRacks
from broker.coordinator.blocked import blocked_offsets, blocked_partitions, step_over
from broker.coordinator.group_messages import (
    A,
    Assign,
    AtTime,
    Commit,
    CommitGroup,
    CommittedOffsets,
    CreateInstance,
    DeleteGroup,
    DeleteInstance,
    DeleteOffsets,
    DescribeGroup,
    DescribeInstance,
    Edge,
    EvictInstance,
    GroupDescription,
    GroupOffset,
    GroupOffsetRow,
    GroupOffsets,
    GroupRepaired,
    GroupRequest,
    GroupState,
    Heartbeat,
    InstanceCreated,
    InstanceDescription,
    JoinGroup,
    MemberDescription,
    OffsetsCommitted,
    Poll,
    Positions,
    RepairGroup,
    Seek,
    SeekTarget,
    SkipRecords,
    Subscribe,
    Unsubscribe,
)
from broker.coordinator.group_state import (
    Group,
    GroupEnvironment,
    GroupsState,
    Instance,
    TopicFacts,
    Topics,
    of_present_life,
)
from broker.coordinator.instances import topic_names
from broker.coordinator.led_shards import Leading, LedShards, MakeLog
from broker.coordinator.member_requests import MemberRequests
from broker.coordinator.positions import OffsetAndEpoch
from broker.coordinator.reader import DataReader, InstanceReader
from broker.coordinator.records import OFFSETS_TOPIC, InstanceKey, partition_of_group
from broker.coordinator.runtime import Proof
from broker.coordinator.shard import OffsetsRetention, Shard
from broker.coordinator.target_worker import TargetWorker
from broker.coordinator.targets import TargetInput, Targets
from broker.coordinator.transaction_coordinator import LOGGED_ERRORS, word_proven
from broker.coordinator.transaction_offsets import TransactionOffsets
from broker.coordinator.troubles import (
    ShardTroubles,
    loading_troubles,
    shard_troubles,
    with_waiting,
)
from broker.log.leader_epoch_cache import NO_EPOCH
from broker.record.numbering import HomeKind
from raft_metadata.common.errors import ErrorCode, KafkaError
from raft_metadata.common.ids import (
    BrokerId,
    GroupId,
    InstanceId,
    LeaderEpoch,
    PartitionId,
    TopicIdPartition,
    TopicName,
    TopicPartition,
)
from raft_metadata.common.internal_topics import INTERNAL_TOPICS

if TYPE_CHECKING:
    from broker.coordinator.home import Home
    from broker.coordinator.transaction_coordinator import HomeFactory
    from broker.transactions.home_decisions import ChunkPlaced
    from broker.transactions.home_messages import HomeRequest
    from broker.transactions.messages import TransactionDescription, TransactionState
    from raft_metadata.common.clock import Clock
    from raft_metadata.image.metadata_image import MetadataImage, TopicImage


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupConfigs:
    """Cluster configs of groups, as one image has them."""

    default_assignor: str = UNIFORM
    retention: OffsetsRetention | None = None
    """None: offsets never expire."""


def racks_of_replicas(image: MetadataImage, name: TopicName) -> Sequence[ReplicaRacks]:
    """Return the racks of the replicas of each partition of a topic; empty if none is known."""
    topic = image.topic(name)
    racks = {
        broker_id: broker.rack
        for broker_id, broker in image.brokers.items()
        if broker.rack is not None
    }
    if topic is None or not racks:
        return ()
    return [
        frozenset(racks[broker_id] for broker_id in partition.target if broker_id in racks)
        for partition in topic.partitions
    ]


def describe_group(
    state: GroupsState, name: GroupId, coordinator: BrokerId, topics: Topics
) -> GroupDescription:
    """Return a group with all its members; raise GROUP_ID_NOT_FOUND if it does not exist."""
    group = removal.find_group(state, name)
    return GroupDescription(
        group=name,
        state=_state_of(state, group),
        assignor=group.assignor,
        coordinator=coordinator,
        group_epoch=group.epoch,
        members=tuple(
            _describe_member(group.instances[instance], topics)
            for instance in sorted(group.instances)
        ),
        moved=tuple(state.moves.get(name, ())),
        blocked=blocked_partitions(state, group, topics),
    )


def describe_held(group: Group, coordinator: BrokerId) -> GroupDescription:
    """Return a row for a group that is held; its members are not shown, nothing reaches them."""
    return GroupDescription(
        group=group.name,
        state=GroupState.HELD,
        assignor=group.assignor,
        coordinator=coordinator,
        group_epoch=group.epoch,
        members=(),
    )


def _state_of(state: GroupsState, group: Group) -> GroupState:
    members = group.members
    if not members:
        return GroupState.EMPTY
    settled = group.name not in state.awaiting_targets and all(
        direct_members.is_settled(group, one) for one in members.values()
    )
    return GroupState.STABLE if settled else GroupState.RECONCILING


def _describe_member(instance: Instance, topics: Topics) -> MemberDescription:
    return MemberDescription(
        instance=instance.name,
        client_id=instance.value.client_id,
        assignment=tuple(sorted(instance.assignment)),
        is_manual=instance.value.manual is not None,
        member_epoch=instance.member_epoch,
        topics=topic_names(instance, topics),
        target=tuple(sorted(instance.target)),
        static_id=instance.value.settings.static_id,
    )


def describe_instance(state: GroupsState, key: InstanceKey, topics: Topics) -> InstanceDescription:
    """Return the description of an instance; raise UNKNOWN_MEMBER_ID if there is none."""
    _, instance, _ = state.find(key)
    return InstanceDescription(
        settings=instance.value.settings,
        topics=topic_names(instance, topics),
        pattern=instance.value.pattern,
        assignment=tuple(sorted(instance.assignment)),
        is_manual=instance.value.manual is not None,
        member_epoch=instance.member_epoch,
    )


def committed_offsets(
    state: GroupsState,
    key: InstanceKey,
    partitions: tuple[TopicPartition, ...] | None,
    topics: Topics,
) -> tuple[GroupOffset, ...]:
    """Return the committed offsets of these partitions, or of those that the instance owns.

    Partitions without a committed offset are left out.
    """
    group, instance, _ = state.find(key)
    wanted = tuple(sorted(instance.assignment)) if partitions is None else partitions
    return tuple(
        GroupOffset(*partition, found.offset, found.metadata, found.leader_epoch)
        for partition in wanted
        if (found := group.committed(partition, topics)) is not None
    )


def group_offsets(
    state: GroupsState, request: GroupOffsets, topics: Topics
) -> tuple[GroupOffsetRow, ...]:
    """Return everything that the group committed; the receiving broker adds the ends."""
    group = state.groups.get(request.group)
    if group is None:
        return ()
    rows = {
        partition: GroupOffsetRow(
            *partition, found.offset, found.metadata, None, leader_epoch=found.leader_epoch
        )
        for partition in group.offsets
        if (found := group.committed(partition, topics)) is not None
    }
    if request.with_starts:
        for one in group.instances.values():
            for partition in one.assignment - rows.keys():
                start = group.restart(one, partition, topics)
                rows[partition] = GroupOffsetRow(
                    *partition,
                    None if start is None else start.offset,
                    "",
                    None,
                    is_committed=False,
                    leader_epoch=NO_EPOCH if start is None else start.leader_epoch,
                )
    blocked = blocked_offsets(blocked_partitions(state, group, topics))
    return tuple(
        replace(rows[partition], blocked_offset=blocked.get(partition))
        for partition in sorted(rows)
        if request.topics is None or partition.topic in request.topics
    )


def positions(state: GroupsState, key: InstanceKey, topics: Topics) -> tuple[GroupOffset, ...]:
    """Return the next offset to be delivered of each partition that the instance owns.

    A partition whose start is not resolved yet is left out.
    """
    group, instance, session = state.find(key)
    found = []
    for partition in sorted(instance.assignment):
        position = session.position(partition, topics)
        place = group.restart(instance, partition, topics)
        if position is not None:
            place = OffsetAndEpoch(position.next, position.epoch_of(position.next))
        if place is not None:
            offset, epoch = place
            found.append(GroupOffset(*partition, offset, leader_epoch=epoch))
    return tuple(found)


_log = logging.getLogger("broker.coordinator")

TICK_MS = 100
ENDS_AT_ONCE = 64
"""Most partitions whose high watermark is asked for at the same time for one commit."""


STATE_ERRORS = frozenset(
    {
        ErrorCode.UNKNOWN_MEMBER_ID,
        ErrorCode.GROUP_ID_NOT_FOUND,
        ErrorCode.GROUP_HELD,
        ErrorCode.INSTANCE_ALREADY_EXISTS,
        ErrorCode.ILLEGAL_STATE,
        ErrorCode.FENCED_MEMBER_EPOCH,
        ErrorCode.FENCED_INSTANCE_ID,
        ErrorCode.GROUP_MAX_SIZE_REACHED,
    }
)
"""Errors that describe the group's state. A newer coordinator might not return them, so they need
proof of leadership. Where one is raised, nothing was done."""

T = TypeVar("T")


class GroupCoordinator:
    """The shards of the led partitions of the offsets topic, and the requests to them.

    Owned by the `BrokerServer`, on its event loop; `run` owns every task.
    """

    def __init__(  # noqa: PLR0913 the ports of a coordinator
        self,
        broker_id: BrokerId,
        clock: Clock,
        proof: Proof,
        leading: Leading,
        make_log: MakeLog,
        reader: DataReader,
        *,
        poll_wait_ms_max: int,
        rebalance_timeout_ms: int,
        limits: instances.GroupLimits | None = None,
        homes: HomeFactory | None = None,
        configs: Callable[[MetadataImage], GroupConfigs] = lambda _: GroupConfigs(),
        is_clock_trusted: Callable[[], bool] = lambda: True,
    ) -> None:
        self._broker_id = broker_id
        self._clock = clock
        self._proof = proof
        self._make_log = make_log
        self._rebalance_timeout_ms = rebalance_timeout_ms
        self._limits = limits or instances.GroupLimits()
        self._shards = LedShards(OFFSETS_TOPIC, leading, self._make_shard, self._close_shard)
        self._home_factory = homes
        self._homes: dict[PartitionId, Home] = {}
        self._topics: Topics = {}
        self._environment = GroupEnvironment()
        self._read_configs = configs
        self._configs = GroupConfigs()
        self._is_clock_trusted = is_clock_trusted
        self._seen: object = None
        """The image's topics from which ``_topics`` was computed."""
        self._tasks: asyncio.TaskGroup | None = None
        self._data = reader
        self._reader = InstanceReader(
            reader, clock, lambda: self._topics, lambda shard: shard.prove(proof), poll_wait_ms_max
        )
        self._members = MemberRequests(
            clock,
            lambda: self._topics,
            self._reader.resolve,
            self._know_topics,
            self._read_proven,
            self._limits,
        )
        self._targets = TargetWorker(self._target_input, self._apply_targets)

    # ---- image and time

    def on_metadata_update(self, image: MetadataImage) -> None:
        """Open and close shards by this broker's roles; follow the topics.

        Called after the `ReplicaManager` has taken the roles of the image.
        """
        changed = image.topics is not self._seen and self._follow_topics(image)
        self._configs = self._read_configs(image)
        self._environment.default_assignor = self._configs.default_assignor
        self._environment.racks = functools.partial(racks_of_replicas, image)
        offsets_topic = image.topic(OFFSETS_TOPIC)
        if offsets_topic is not None:
            self._environment.offsets_partitions = offsets_topic.partitions_count
        self._shards.follow(image)
        if changed:
            self._tick()

    def _follow_topics(self, image: MetadataImage) -> bool:
        """Return True if topics were created or deleted, or grew; leaders do not matter."""
        self._seen = image.topics
        topics = {
            topic.name: TopicFacts(topic.topic_id, topic.routed_count)
            for topic in image.topics.values()
            if topic.name not in INTERNAL_TOPICS
        }
        if topics == self._topics:
            return False
        self._topics = topics
        return True

    def _make_shard(self, topic: TopicImage, partition: PartitionId, epoch: LeaderEpoch) -> Shard:
        shard = Shard(
            partition,
            epoch,
            self._make_log(TopicIdPartition(topic.topic_id, partition), epoch),
            self._clock,
            self._environment,
            present_topics=lambda: self._topics,
            is_clock_trusted=self._is_clock_trusted,
        )
        if self._home_factory is not None:
            offsets = TransactionOffsets(
                self._know_topics,
                functools.partial(self._undelivered_ends, shard),
                lambda: self._topics,
                self._limits,
            )
            kind = HomeKind.GROUPS
            self._homes[partition] = self._home_factory.make(shard, kind, topic, offsets)
        return shard

    def _close_shard(self, shard: Shard) -> None:
        home = self._homes.pop(shard.partition, None)
        if home is not None:
            home.close()

    async def run(self) -> None:
        """Own the shards' tasks and pass time to them, until cancelled."""
        async with asyncio.TaskGroup() as tasks:
            self._tasks = tasks
            self._shards.start(tasks)
            while True:
                self._tick()
                await asyncio.sleep(TICK_MS / 1000)

    @property
    def homes(self) -> list[tuple[PartitionId, Home]]:
        """The homes of the partitions that are led here."""
        return sorted(self._homes.items())

    async def descriptions(
        self, partition: PartitionId, state: TransactionState | None
    ) -> list[TransactionDescription]:
        """Return the ids under the groups of one partition in a state, or all."""
        shard = self._shards.find(partition)
        found = self._homes[partition].descriptions(state)
        await shard.settled()
        return found

    async def may_go(self, partition: PartitionId, chunk: ChunkPlaced) -> bool:
        """Return whether a stage may let a chunk go: see `word_proven`."""
        shard = self._shards.find(partition)
        return await word_proven(shard, self._homes[partition], self._proof, chunk)

    async def answer_home(self, partition: PartitionId, request: HomeRequest[A]) -> A:
        """Return the answer to a request about an id under a group that is coordinated here.

        Raises KafkaError NOT_COORDINATOR or COORDINATOR_LOAD_IN_PROGRESS (nothing was done), or an
        error of the request.
        """
        shard = self._shards.find(partition)
        try:
            held_groups.check_not_held(shard.state(), request.id.group, partition)
            return await self._homes[partition].answer(request)
        except KafkaError as error:
            if error.code not in STATE_ERRORS | LOGGED_ERRORS:
                raise
            refusal = error
        await shard.confirm(self._proof)
        raise refusal

    def _tick(self) -> None:
        now_ms = self._clock.monotonic_ms()
        for shard in self._shards.by_partition.values():
            shard.tick(now_ms, self._topics, self._rebalance_timeout_ms, self._configs.retention)
            if shard.partition in self._homes:
                self._homes[shard.partition].tick()
            if self._tasks is not None:
                self._targets.start(shard, self._tasks)

    def _target_input(self, state: GroupsState, name: GroupId) -> TargetInput | None:
        group = state.groups.get(name)
        return None if group is None else rebalance.target_input(state, group, self._topics)

    def _apply_targets(self, state: GroupsState, name: GroupId, targets: Targets) -> None:
        rebalance.apply_targets(state, state.groups[name], targets, self._topics)

    def troubles(self) -> tuple[ShardTroubles, ...]:
        """Return the reports on the shards that have something to report."""
        now_ms = self._clock.wall_ms()
        reports = [
            shard_troubles(number, shard.state(), self._topics, now_ms)
            if shard.is_ready
            else loading_troubles(number, shard.loading_ms)
            for number, shard in sorted(self._shards.by_partition.items())
        ]
        with_homes = (
            with_waiting(one, self._homes[one.partition].waiting())
            if one.partition in self._homes
            else one
            for one in reports
        )
        return tuple(one for one in with_homes if one.is_any)

    # ---- requests

    async def answer(self, request: GroupRequest[A]) -> A:
        """Return the answer to a request of a group that is coordinated here.

        Raises KafkaError NOT_COORDINATOR or COORDINATOR_LOAD_IN_PROGRESS (nothing was done), or an
        error of the request.
        """
        if not self._shards.partitions_count:
            raise KafkaError(ErrorCode.NOT_COORDINATOR)
        shard = self._shards.find(partition_of_group(request.group, self._shards.partitions_count))
        try:
            if isinstance(request, RepairGroup):
                return cast(A, await self._repair(shard, request))
            held_groups.check_not_held(shard.state(), request.group, shard.partition)
            return cast(A, await self._answer(shard, request))
        except KafkaError as error:
            if error.code not in STATE_ERRORS:
                raise
            refusal = error
        await shard.confirm(self._proof)
        raise refusal

    async def list_groups(self, partition: PartitionId) -> list[GroupDescription]:
        """Return the groups of one partition of the offsets topic."""
        topics = self._topics

        def look(state: GroupsState) -> list[GroupDescription]:
            held = [describe_held(one.group, self._broker_id) for one in state.held.values()]
            return held + [
                describe_group(state, group.name, self._broker_id, topics)
                for group in state.existing_groups()
            ]

        return await self._read_proven(self._shards.find(partition), look)

    def _answer(self, shard: Shard, request: GroupRequest[Any]) -> Awaitable[Any]:
        match request:
            case Poll():
                return self._reader.poll(shard, request)
            case JoinGroup():
                return self._members.join(shard, request)
            case Heartbeat():
                return self._members.heartbeat(shard, request)
            case CommitGroup():
                return self._commit_group(shard, request)
            case GroupOffsets() | DescribeGroup():
                return self._read_proven(shard, lambda s: self._describe(s, request))
            case EvictInstance() | DeleteGroup() | DeleteOffsets() | SkipRecords():
                return self._remove(shard, request)
            case _:
                return self._answer_instance(shard, request)

    async def _answer_instance(self, shard: Shard, request: GroupRequest[Any]) -> Any:
        match request:
            case CreateInstance():
                shard.decide(lambda s: instances.create_instance(s, request, self._limits))
                await shard.settled()
                assert request.instance is not None
                return InstanceCreated(instance=request.instance)
            case DeleteInstance() | Unsubscribe():
                return await self._leave(shard, request)
            case Subscribe():
                return await self._subscribe(shard, request)
            case Assign():
                return await self._assign(shard, request)
            case Seek():
                return await self._seek(shard, request)
            case Commit():
                return await self._commit(shard, request)
            case DescribeInstance() | CommittedOffsets() | Positions():
                self._call(shard, _key(request), done=False)
                return await self._read_proven(shard, lambda s: self._describe(s, request))
            case _:
                text = f"unknown group request {type(request).__name__}"
                raise KafkaError(ErrorCode.INVALID_REQUEST, text)

    def _call(self, shard: Shard, key: InstanceKey, *, done: bool = True) -> None:
        shard.decide(lambda state: instances.begin_call(state, key, self._topics, done=done))

    def _describe(self, state: GroupsState, request: GroupRequest[Any]) -> object:
        topics = self._topics
        match request:
            case DescribeGroup():
                return describe_group(state, request.group, self._broker_id, topics)
            case GroupOffsets():
                return group_offsets(state, request, topics)
            case DescribeInstance():
                return describe_instance(state, _key(request), topics)
            case Positions():
                return positions(state, _key(request), topics)
            case _:
                assert isinstance(request, CommittedOffsets)
                key = _key(request)
                return committed_offsets(state, key, request.partitions, topics)

    async def _remove(
        self, shard: Shard, request: EvictInstance | DeleteGroup | DeleteOffsets | SkipRecords
    ) -> None:
        topics = self._topics

        def decision(state: GroupsState) -> None:
            match request:
                case EvictInstance():
                    key, keep_seat = _evicted(state, request), request.keep_seat
                    membership.evict(state, key, topics, keep_seat=keep_seat)
                case DeleteGroup():
                    removal.delete_group(state, request.group)
                case DeleteOffsets():
                    removal.delete_offsets(
                        state, request.group, request.topic, request.partition, topics
                    )
                case SkipRecords():
                    group = removal.find_group(state, request.group)
                    step_over(state, group, request.records, topics)

        shard.decide(decision)
        await shard.settled()

    async def _repair(self, shard: Shard, request: RepairGroup) -> GroupRepaired:
        topics, where = self._topics, (request.group, shard.partition)
        if request.validate_only:
            return await self._read_proven(shard, lambda s: held_groups.repaired(s, *where, topics))
        answer = shard.decide(lambda state: held_groups.repair(state, *where, topics))
        await shard.settled()
        _log.warning(
            "consumer group repaired group=%s partition=%d records_forgotten=%d",
            *where, len(answer.forgotten),
        )  # fmt: skip
        return answer

    async def _leave(self, shard: Shard, request: DeleteInstance | Unsubscribe) -> None:
        key, topics = _key(request), self._topics
        if isinstance(request, DeleteInstance):
            token = request.after
            shard.decide(lambda state: instances.acknowledge_before(state, key, token))
        self._call(shard, key)
        if isinstance(request, DeleteInstance):
            leave = request.leave
            shard.decide(lambda state: instances.delete_instance(state, key, topics, leave=leave))
        else:
            shard.decide(lambda state: instances.unsubscribe(state, key, topics))
        await shard.settled()

    async def _subscribe(self, shard: Shard, request: Subscribe) -> None:
        """Subscribe; starts are resolved first and recorded with the subscription (rule G2)."""
        key, generation = _key(request), shard.generation
        self._call(shard, key)
        await self._know_topics(request.topics or ())
        instances.check_subscription(shard.state(generation), key, request)
        starts = await self._starts(
            shard, key, lambda s: instances.unresolved_partitions(s, key, self._topics, request)
        )
        shard.decide(lambda s: instances.subscribe(s, request, starts, self._topics), generation)
        await shard.settled()

    async def _starts(
        self,
        shard: Shard,
        key: InstanceKey,
        unresolved: Callable[[GroupsState], list[TopicPartition]],
    ) -> dict[TopicPartition, OffsetAndEpoch]:
        """Return starts for the partitions that have none on return (rule G2).

        Starts that the group had may be dropped, with their last reader, while others are resolved,
        and what was resolved in the last life of a topic means nothing in the present one.
        """
        generation = shard.generation
        starts: dict[TopicPartition, OffsetAndEpoch] = {}
        while True:
            state = shard.state(generation)
            missing = [one for one in unresolved(state) if one not in starts]
            if not missing:
                return starts
            _, instance, _ = state.find(key)
            reset, before = instance.value.settings.auto_offset_reset, self._topics
            starts |= await self._reader.resolve(missing, reset)
            starts = of_present_life(starts, before, self._topics)

    async def _assign(self, shard: Shard, request: Assign) -> None:
        key, generation = _key(request), shard.generation
        self._call(shard, key)
        await self._know_topics([partition.topic for partition in request.partitions])
        wanted = tuple(sorted(set(request.partitions)))
        instances.check_assignment(shard.state(generation), key, wanted, self._topics)
        starts = await self._starts(
            shard,
            key,
            lambda s: instances.unresolved_partitions(s, key, self._topics, manual=wanted),
        )
        shard.decide(lambda s: instances.assign(s, key, wanted, starts, self._topics), generation)
        await shard.settled()

    async def _commit(self, shard: Shard, request: Commit) -> OffsetsCommitted:
        key = _key(request)
        instances.touch(shard.state(), key)
        offsets = request.offsets
        if offsets is not None:
            await self._know_topics([one.topic for one in offsets])
        generation = shard.generation
        ends = await self._undelivered_ends(shard, key.group, key.instance, offsets or ())
        topics = self._topics

        def decision(state: GroupsState) -> bool:
            _, instance, _ = state.find(key)
            if offsets is None:
                commits.check_may_commit(state, key)
                commits.commit_delivered(state, key, topics)
            else:
                commits.commit_offsets(state, key, offsets, topics, ends)
            # After the commit: partitions whose records it covers may be given up; those with
            # uncommitted records may still be processed.
            instances.begin_call(state, key, topics, done=False)
            return instance.value.settings.strimzi

        # A decision of its own: a refusal of the offsets leaves the client's word as it is.
        shard.decide(
            lambda state: instances.acknowledge_before(state, key, request.after), generation
        )
        strimzi = shard.decide(decision, generation)
        await shard.settled()
        return OffsetsCommitted(strimzi=strimzi)

    async def _undelivered_ends(
        self,
        shard: Shard,
        group: GroupId,
        member: InstanceId | None,
        offsets: Iterable[GroupOffset],
    ) -> dict[TopicPartition, int]:
        """Return the high watermarks up to which a member may commit unknown deliveries (G4).

        Those of a topic that was made anew meanwhile are left out.
        """
        topics = self._topics
        places = commits.undelivered_here(shard.state(), group, member, offsets, topics)
        found: dict[TopicPartition, int] = {}
        for at in range(0, len(places), ENDS_AT_ONCE):
            wave = places[at : at + ENDS_AT_ONCE]
            ends = await asyncio.gather(*map(self._data.ends, wave))
            found.update((place, one.end) for place, one in zip(wave, ends, strict=True))
        return of_present_life(found, topics, self._topics)

    async def _commit_group(self, shard: Shard, request: CommitGroup) -> None:
        await self._know_topics([one.topic for one in request.offsets])
        generation, member = shard.generation, request.member_id
        ends = await self._undelivered_ends(shard, request.group, member, request.offsets)
        topics = self._topics

        def decision(state: GroupsState) -> None:
            instances.check_room(state, request.group, self._limits, is_in_use=False)
            commits.commit_without_instance(state, request, topics, ends)
            instances.make_room(state, self._limits)

        shard.decide(decision, generation)
        await shard.settled()

    async def _seek(self, shard: Shard, request: Seek) -> None:
        key, generation = _key(request), shard.generation
        self._call(shard, key, done=False)
        asked = {TopicPartition(one.topic, one.partition): one for one in request.targets}
        targets: dict[TopicPartition, OffsetAndEpoch] = {}
        while len(targets) < len(asked):  # again for a topic that was made anew meanwhile
            before = self._topics
            instances.check_seek(shard.state(generation), key, asked, before)
            found = {place: await self._place_of(one) for place, one in asked.items()}
            targets = of_present_life(found, before, self._topics)
        topics = self._topics
        shard.decide(lambda state: instances.seek(state, key, targets, topics), generation)
        await shard.settled()

    async def _place_of(self, target: SeekTarget) -> OffsetAndEpoch:
        place = TopicPartition(target.topic, target.partition)
        match target.to:
            case Edge():
                ends = await self._data.ends(place)
                at_start = target.to is Edge.BEGINNING
                return OffsetAndEpoch(ends.beginning) if at_start else ends.latest
            case AtTime():
                return OffsetAndEpoch(await self._data.offset_at(place, target.to.timestamp_ms))
            case _:
                if target.to < 0:
                    text = f"offset {target.to} of {target.topic}-{target.partition} is negative"
                    raise KafkaError(ErrorCode.INVALID_REQUEST, text)
                return OffsetAndEpoch(target.to, target.leader_epoch)

    async def _know_topics(self, names: Sequence[TopicName]) -> None:
        """Wait once for a topic that another broker created a moment ago.

        One that is not found, or of which no controller tells, may be subscribed all the same.
        """
        unknown = next((name for name in names if name not in self._topics), None)
        if unknown is not None:
            with contextlib.suppress(KafkaError):
                await self._data.catch_up_with_topic(unknown)

    # ---- proof

    async def _read_proven(self, shard: Shard, look: Callable[[GroupsState], T]) -> T:
        """Return what ``look`` reads, once it is committed and proven to be the newest state.

        Later decisions are not part of the result, since they may still be lost.
        """
        found = look(shard.state())
        await shard.settled()
        await shard.prove(self._proof)
        shard.state()  # the proof is of the broker, which may lead in another epoch by now
        return found


def _evicted(state: GroupsState, request: EvictInstance) -> InstanceKey:
    """Return the key of the instance that a request evicts, by its name or its static id."""
    name = request.instance
    if name is None:
        name = membership.static_member(state, request.group, request.static_id or "")
    return InstanceKey(request.group, name)


def _key(
    request: DeleteInstance
    | Subscribe
    | Unsubscribe
    | DescribeInstance
    | Assign
    | Commit
    | CommittedOffsets
    | Positions
    | Seek,
) -> InstanceKey:
    return InstanceKey(request.group, request.instance)
