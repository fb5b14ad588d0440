"""Groups as their records describe them, and the soft state of their instances. Pure.

A `Shard` replays records into it. Positions that were delivered and not committed are soft state of
this coordinator only: after its death reading goes on from the committed offset (rule G2).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from broker.coordinator.records import (
    GroupKey,
    GroupRecord,
    GroupValue,
    InstanceKey,
    InstanceValue,
    MemberKey,
    MemberValue,
    OffsetKey,
    OffsetValue,
    ProbeKey,
    SeekKey,
    SeekValue,
    StartKey,
    StartValue,
    partitions_of,
)
from raft_metadata.common.errors import ErrorCode, KafkaError
from raft_metadata.common.ids import GroupId, InstanceId, TopicId, TopicName, TopicPartition

NOTHING: frozenset[TopicPartition] = frozenset()


@dataclass(frozen=True, slots=True)
class TopicFacts:
    """A topic as groups see it."""

    topic_id: TopicId
    partitions_count: int


EVERY_GROUP = GroupKey(GroupId(""))
"""Under this key stands `GroupsState.forgotten_epoch`: no group has an empty name."""

Topics = Mapping[TopicName, TopicFacts]
"""Every topic of the image, internal ones too."""


@dataclass(slots=True, eq=False)
class ReadPosition:
    """The next offset that an instance reads in a partition, in one life of the topic's name."""

    next: int
    topic_id: TopicId
    delivered: bool = False
    """True if records were delivered since the position was last set."""
    confirmed: int | None = None
    """Everything below was returned by a read before the last one: what auto-commit may cover."""


@dataclass(slots=True, eq=False)
class Session:
    """One life of an instance on this coordinator."""

    heard_ms: int
    """Judge time of its last call."""
    calls: int = 0
    """Calls under way, a waiting read among them: none expires meanwhile."""
    positions: dict[TopicPartition, ReadPosition] = field(default_factory=dict)
    auto_committed_ms: int = 0
    revoking_since_ms: int | None = None
    """Since when it owns what it is to give up; None while it need not."""
    rotation: int = 0
    """The index of the partition with which its next read begins."""
    ended: bool = False

    def position(self, partition: TopicPartition, topics: Topics) -> ReadPosition | None:
        """Return the next offset to read, if the position is of this life of the topic."""
        found = self.positions.get(partition)
        facts = topics.get(partition.topic)
        if found is None or facts is None or facts.topic_id != found.topic_id:
            return None
        return found


@dataclass(slots=True)
class Instance:
    """A consumer instance as recorded."""

    name: InstanceId
    value: InstanceValue
    member: MemberValue | None = None
    owned: frozenset[TopicPartition] = NOTHING
    """By subscription; what is assigned by hand is in ``manual``."""
    target: frozenset[TopicPartition] = NOTHING
    manual: frozenset[TopicPartition] = NOTHING
    seeks: dict[TopicPartition, SeekValue] = field(default_factory=dict)

    @property
    def assignment(self) -> frozenset[TopicPartition]:
        """Everything it may read."""
        return self.owned | self.manual

    @property
    def member_epoch(self) -> int:
        """-1 without a subscription."""
        return -1 if self.member is None else self.member.epoch


@dataclass(slots=True)
class Group:
    """A group as recorded. Invariant: no partition is owned by two members."""

    name: GroupId
    epoch: int = 0
    instances: dict[InstanceId, Instance] = field(default_factory=dict)
    offsets: dict[TopicPartition, OffsetValue] = field(default_factory=dict)
    starts: dict[TopicPartition, StartValue] = field(default_factory=dict)
    epoch_said: bool = False
    """True if a record holds its epoch; else it began behind `GroupsState.forgotten_epoch`."""
    orphans: dict[InstanceId, list[GroupRecord]] = field(default_factory=dict)
    """Read back before their instance: compaction keeps its newest record only, which may stand
    behind those of its membership and seeks."""

    @property
    def exists(self) -> bool:
        """True if the group has anything to show; its epoch is kept beyond that."""
        return bool(self.instances or self.offsets)

    @property
    def members(self) -> dict[InstanceId, Instance]:
        """Its subscribed instances, sorted."""
        return {
            name: self.instances[name]
            for name in sorted(self.instances)
            if self.instances[name].value.is_subscribed
        }

    def committed(self, partition: TopicPartition, topics: Topics) -> OffsetValue | None:
        """The committed offset, if it is of this life of the topic."""
        found = self.offsets.get(partition)
        return found if found is not None and is_present(partition, found, topics) else None

    def restart(self, instance: Instance, partition: TopicPartition, topics: Topics) -> int | None:
        """Return the offset at which an instance begins: its seek, commit, or resolved start."""
        for found in (
            instance.seeks.get(partition),
            self.offsets.get(partition),
            self.starts.get(partition),
        ):
            if found is not None and is_present(partition, found, topics):
                return found.offset
        return None


def is_present(
    partition: TopicPartition, value: OffsetValue | StartValue | SeekValue, topics: Topics
) -> bool:
    """Return True if an offset belongs to the topic that has the name now."""
    facts = topics.get(partition.topic)
    return facts is not None and facts.topic_id == value.topic_id


class GroupsState:
    """All groups of one partition of the offsets topic. Owned by its `Shard`, on its loop.

    ``entries`` collects what was decided and is not written yet, in order; `take` empties it.
    """

    def __init__(self) -> None:
        self.groups: dict[GroupId, Group] = {}
        self.sessions: dict[InstanceKey, Session] = {}
        self.entries: list[GroupRecord] = []
        self.ticked = 0
        """The session with which the next tick continues."""
        self.forgotten_epoch = 0
        """The highest epoch of a group that is over: one of its name begins behind it."""
        self.judge_ms = 0
        """Time as sessions are judged by: it stands still while the judge does (rule M7)."""

    # ---- facts

    def apply(self, *entries: GroupRecord) -> None:
        """Facts decided just now: true here at once, and to be written."""
        for entry in entries:
            self.fold(entry)
            self.entries.append(entry)

    def take(self) -> list[GroupRecord]:
        """Return the records to be written since the last call."""
        taken, self.entries = self.entries, []
        return taken

    def fold(self, entry: GroupRecord) -> None:
        """One fact, decided here or read from the log."""
        key, value = entry
        if isinstance(key, ProbeKey):
            return
        if key == EVERY_GROUP:
            self._fold_forgotten(value)
            return
        group = self.groups.get(key.group)
        if group is None:
            if value is None:
                return
            group = self.groups[key.group] = Group(key.group, epoch=self.forgotten_epoch)
        match key:
            case GroupKey():
                self._fold_group(group, value)
            case InstanceKey():
                self._fold_instance(group, key, value)
            case MemberKey():
                _fold_member(group, key, value)
            case OffsetKey():
                _fold_offset(group, key, value)
            case StartKey():
                partition = TopicPartition(key.topic, key.partition)
                if isinstance(value, StartValue):
                    group.starts[partition] = value
                else:
                    group.starts.pop(partition, None)
            case SeekKey():
                self._fold_seek(group, key, value)

    def _fold_forgotten(self, value: object) -> None:
        if isinstance(value, GroupValue):
            self.forgotten_epoch = max(self.forgotten_epoch, value.epoch)
            for group in self.groups.values():
                if not group.epoch_said:
                    group.epoch = max(group.epoch, self.forgotten_epoch)

    def _fold_group(self, group: Group, value: object) -> None:
        if isinstance(value, GroupValue):
            group.epoch, group.epoch_said = value.epoch, True
            return
        self.forgotten_epoch = max(self.forgotten_epoch, group.epoch)
        del self.groups[group.name]

    def _fold_instance(self, group: Group, key: InstanceKey, value: object) -> None:
        if not isinstance(value, InstanceValue):
            group.instances.pop(key.instance, None)
            group.orphans.pop(key.instance, None)
            ended = self.sessions.pop(key, None)
            if ended is not None:
                ended.ended = True
            return
        instance = group.instances.get(key.instance)
        if instance is None:
            instance = group.instances[key.instance] = Instance(key.instance, value)
            self.sessions[key] = Session(self.judge_ms, auto_committed_ms=self.judge_ms)
        instance.value = value
        instance.manual = NOTHING if value.manual is None else partitions_of(value.manual)
        for orphan in group.orphans.pop(key.instance, ()):
            self.fold(orphan)

    def _fold_seek(self, group: Group, key: SeekKey, value: object) -> None:
        instance = group.instances.get(key.instance)
        if instance is None:
            if isinstance(value, SeekValue):
                group.orphans.setdefault(key.instance, []).append(GroupRecord(key, value))
            return
        partition = TopicPartition(key.topic, key.partition)
        if isinstance(value, SeekValue):
            instance.seeks[partition] = value
        else:
            instance.seeks.pop(partition, None)

    # ---- look-up

    def find(self, key: InstanceKey) -> tuple[Group, Instance, Session]:
        """A live instance. UNKNOWN_MEMBER_ID where there is none."""
        group = self.groups.get(key.group)
        instance = None if group is None else group.instances.get(key.instance)
        if group is None or instance is None:
            text = f"Consumer instance {key.instance} of group {key.group} not found."
            raise KafkaError(ErrorCode.UNKNOWN_MEMBER_ID, text)
        return group, instance, self.sessions[key]

    def existing_groups(self) -> Iterator[Group]:
        """Groups that can be seen, sorted."""
        for name in sorted(self.groups):
            if self.groups[name].exists:
                yield self.groups[name]


def _fold_member(group: Group, key: MemberKey, value: object) -> None:
    instance = group.instances.get(key.instance)
    if instance is None:
        if isinstance(value, MemberValue):
            group.orphans.setdefault(key.instance, []).append(GroupRecord(key, value))
        return
    if not isinstance(value, MemberValue):
        instance.member, instance.owned, instance.target = None, NOTHING, NOTHING
        return
    instance.member = value
    instance.owned = partitions_of(value.owned)
    instance.target = partitions_of(value.target)


def _fold_offset(group: Group, key: OffsetKey, value: object) -> None:
    partition = TopicPartition(key.topic, key.partition)
    if not isinstance(value, OffsetValue):
        group.offsets.pop(partition, None)
        return
    group.offsets[partition] = value
    if value.instance is not None:
        instance = group.instances.get(value.instance)
        if instance is not None:
            instance.seeks.pop(partition, None)  # a commit behind a seek is the newer word
