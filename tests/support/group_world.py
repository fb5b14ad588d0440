"""A group coordinator's pure core with its log as a list: decide, write, and load again."""

from __future__ import annotations

from broker.coordinator import commits, direct_members, instances, membership
from broker.coordinator.group_messages import (
    CommitGroup,
    ConsumerSettings,
    CreateInstance,
    GroupOffset,
    Heartbeat,
    JoinGroup,
    Membership,
    OffsetReset,
    Subscribe,
)
from broker.coordinator.group_state import Group, GroupsState, Instance, TopicFacts
from broker.coordinator.positions import OffsetAndEpoch
from broker.coordinator.read_tokens import DeliveredPart
from broker.coordinator.records import InstanceKey, ShardRecord
from raft_metadata.common.ids import GroupId, InstanceId, PartitionId, TopicId, TopicName
from raft_metadata.common.ids import TopicPartition as Place

G = GroupId("g")
T = TopicName("t")
EARLIEST = ConsumerSettings(auto_offset_reset=OffsetReset.EARLIEST)
BY_HAND = ConsumerSettings(auto_offset_reset=OffsetReset.EARLIEST, auto_commit=False)


def place(number: int, topic: str = "t") -> Place:
    return Place(TopicName(topic), PartitionId(number))


def facts(count: int, topic_id: str = "A") -> TopicFacts:
    return TopicFacts(TopicId(topic_id * 22), count)


class GroupWorld:
    """One coordinator after the other over one log. Every start is offset ``start``."""

    def __init__(self, partitions: int = 4, start: int = 0) -> None:
        self.topics = {T: facts(partitions)}
        self.start = start
        self.log: list[ShardRecord] = []
        self.lives = 0
        self.state = GroupsState()

    def write(self) -> list[ShardRecord]:
        entries = self.state.take()
        self.log += entries
        return entries

    def fail_over(self) -> None:
        """Another coordinator: positions and sessions are gone, records are not."""
        self.lives += 1
        self.state = GroupsState(self.state.environment, f"life{self.lives}")
        for entry in self.log:
            self.state.fold(entry)

    @property
    def group(self) -> Group:
        return self.state.groups[G]

    def instance(self, name: str) -> Instance:
        return self.group.instances[InstanceId(name)]

    def owned(self, name: str) -> set[int]:
        return {partition.partition for partition in self.instance(name).assignment}

    def committed(self, number: int) -> int | None:
        found = self.group.committed(place(number), self.topics)
        return None if found is None else found.offset

    def key(self, name: str) -> InstanceKey:
        return InstanceKey(G, InstanceId(name))

    # calls

    def create(self, name: str, settings: ConsumerSettings = EARLIEST) -> None:
        request = CreateInstance(group=G, instance=InstanceId(name), settings=settings)
        instances.create_instance(self.state, request, instances.GroupLimits())
        self.write()

    def subscribe(self, name: str, *topics: str, pattern: str | None = None) -> None:
        names = None if pattern is not None else tuple(map(TopicName, topics or ("t",)))
        request = Subscribe(group=G, instance=InstanceId(name), topics=names, pattern=pattern)
        key = self.key(name)
        self.call(name)
        missing = instances.unresolved_partitions(self.state, key, self.topics, request)
        starts = dict.fromkeys(missing, OffsetAndEpoch(self.start))
        instances.subscribe(self.state, request, starts, self.topics)
        self.write()

    def join(self, name: str, settings: ConsumerSettings = EARLIEST) -> None:
        self.create(name, settings)
        self.subscribe(name)

    def assign(self, name: str, *numbers: int) -> None:
        key, wanted = self.key(name), tuple(place(number) for number in numbers)
        self.call(name)
        missing = instances.unresolved_partitions(self.state, key, self.topics, manual=wanted)
        starts = dict.fromkeys(missing, OffsetAndEpoch(self.start))
        instances.assign(self.state, key, wanted, starts, self.topics)
        self.write()

    def delete(self, name: str) -> None:
        self.call(name)
        instances.delete_instance(self.state, self.key(name), self.topics)
        self.write()

    def call(self, name: str, *, done: bool = True) -> None:
        instances.begin_call(self.state, self.key(name), self.topics, done=done)
        self.write()

    def position(self, name: str, number: int) -> int | None:
        found = instances.position_of(self.state, self.key(name), place(number), self.topics)
        return None if found is None else found.next

    # calls of members that read for themselves

    def join_directly(
        self,
        name: str,
        settings: ConsumerSettings = BY_HAND,
        *topics: str,
        timeout_ms: int = 30_000,
    ) -> Membership:
        request = JoinGroup(
            group=G,
            instance=InstanceId(name),
            settings=settings,
            rebalance_timeout_ms=timeout_ms,
            topics=tuple(map(TopicName, topics or ("t",))),
        )
        missing = direct_members.unresolved_partitions(self.state, request, self.topics)
        starts = dict.fromkeys(missing, OffsetAndEpoch(self.start))
        limits = instances.GroupLimits()
        direct_members.join(self.state, request, starts, self.topics, limits)
        self.write()
        return direct_members.membership(self.state, self.key(name), self.topics)

    def beat(
        self, name: str, epoch: int, *owned: int, topics: tuple[str, ...] | None = None
    ) -> Membership:
        """A heartbeat that arrives, and does not wait."""
        request = Heartbeat(
            group=G,
            instance=InstanceId(name),
            member_epoch=epoch,
            owned=tuple(map(place, owned)),
            topics=None if topics is None else tuple(map(TopicName, topics)),
        )
        missing = direct_members.unresolved_partitions(self.state, request, self.topics)
        starts = dict.fromkeys(missing, OffsetAndEpoch(self.start))
        direct_members.touch_member(self.state, request)
        direct_members.heartbeat(self.state, request, starts, self.topics)
        self.write()
        return direct_members.heartbeat_answer(self.state, request, self.topics)

    def leave(self, name: str, *, keep_seat: bool = False) -> None:
        membership.evict(self.state, self.key(name), self.topics, keep_seat=keep_seat)
        self.write()

    def read(self, name: str, count: int = 10, *numbers: int) -> dict[int, tuple[int, int]]:
        """Deliver so many records of each partition it owns: partition → (from, to)."""
        self.call(name)
        instances.begin_read(self.state, self.key(name), self.topics)
        self.write()
        delivered = {}
        for number in sorted(self.owned(name)):
            if numbers and number not in numbers:
                continue
            position = instances.position_of(self.state, self.key(name), place(number), self.topics)
            if position is not None:
                delivered[number] = (position.next, position.next + count)
                position.next += count
                position.delivered = True
        return delivered

    def read_after(self, name: str, after: str, count: int = 10) -> tuple[str, dict[int, range]]:
        """Read with a token: return the answer's token and the offsets that it holds."""
        key = self.key(name)
        instances.acknowledge_answer(self.state, key, after)
        self.call(name)
        instances.begin_read(self.state, key, self.topics)
        self.write()
        _, _, session = self.state.find(key)
        parts = []
        for number in sorted(self.owned(name)):
            position = instances.position_of(self.state, key, place(number), self.topics)
            if position is not None:
                begin, position.next = position.next, position.next + count
                position.sent = max(position.sent, position.next)
                position.delivered = True
                parts.append(DeliveredPart(place(number), position, begin, position.next))
        token = session.tokens.note(parts)
        return token, {one.partition.partition: range(one.begin, one.next) for one in parts}

    def commit_after(self, name: str, after: str) -> None:
        instances.acknowledge_before(self.state, self.key(name), after)
        self.commit_all(name)

    def commit(self, name: str, number: int, next_offset: int) -> None:
        """As a Confluent client says it: the last one processed."""
        offset = GroupOffset(T, PartitionId(number), next_offset - 1)
        commits.commit_offsets(self.state, self.key(name), (offset,), self.topics)
        self.call(name, done=False)

    def commit_all(self, name: str) -> None:
        commits.commit_delivered(self.state, self.key(name), self.topics)
        self.call(name, done=False)

    def commit_group(
        self,
        number: int,
        offset: int,
        member: str | None = None,
        epoch: int | None = None,
        high_watermark: int | None = None,
        leader_epoch: int = -1,
    ) -> None:
        seen = {} if high_watermark is None else {place(number): high_watermark}
        request = CommitGroup(
            group=G,
            offsets=(GroupOffset(T, PartitionId(number), offset, leader_epoch=leader_epoch),),
            member_id=None if member is None else InstanceId(member),
            member_epoch=epoch,
        )
        commits.commit_without_instance(self.state, request, self.topics, seen)
        self.write()

    def seek(self, name: str, number: int, offset: int) -> None:
        self.call(name, done=False)
        instances.seek(
            self.state, self.key(name), {place(number): OffsetAndEpoch(offset)}, self.topics
        )
        self.write()

    def pass_time(self, ms: int, rebalance_timeout_ms: int = 30_000) -> list[InstanceKey]:
        self.state.judge_ms += ms
        expired = instances.tick(self.state, self.topics, rebalance_timeout_ms)
        self.write()
        return expired
