"""Groups as their records describe them, and the soft state of their instances. Pure.

A `Shard` replays records into `GroupsState`, and decisions add new records to it. Positions that
were delivered and not committed are soft state of this coordinator only: a new coordinator
continues from the committed offset (rule G2).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TypeVar, cast

from broker.coordinator.assignors import UNIFORM, ReplicaRacks, choose_assignor
from broker.coordinator.group_messages import MOVES_KEPT, Move
from broker.coordinator.positions import OffsetAndEpoch, ReadPosition
from broker.coordinator.read_tokens import ReadTokens
from broker.coordinator.records import (
    GroupFactKey,
    GroupKey,
    GroupValue,
    InstanceKey,
    InstanceValue,
    Key,
    LeftOutKey,
    LeftOutValue,
    MemberKey,
    MemberValue,
    OffsetKey,
    OffsetValue,
    ProbeKey,
    Seat,
    SeekKey,
    SeekValue,
    ShardRecord,
    SkipKey,
    SkipValue,
    StartKey,
    StartValue,
    StoredRecord,
    UndecodableRecord,
    UnknownKey,
    partitions_of,
)
from broker.transactions.home_records import HOME_KEYS, HomeRecord, HomeValue
from broker.transactions.home_state import HomeState
from raft_metadata.common.errors import ErrorCode, KafkaError
from raft_metadata.common.ids import GroupId, InstanceId, TopicId, TopicName, TopicPartition

V = TypeVar("V", StartValue, SkipValue)
NOTHING: frozenset[TopicPartition] = frozenset()
Found = TypeVar("Found")


@dataclass(frozen=True, slots=True)
class TopicFacts:
    """The properties of a topic that matter to groups."""

    topic_id: TopicId
    partitions_count: int


EVERY_GROUP = GroupKey(GroupId(""))
"""Key of the record of `GroupsState.forgotten_epoch`; no group has an empty name."""

Topics = Mapping[TopicName, TopicFacts]
"""Every topic of the image, internal ones included."""


def _no_racks(_topic: TopicName) -> Sequence[ReplicaRacks]:
    return ()


@dataclass(slots=True, kw_only=True, eq=False)
class GroupEnvironment:
    """Facts about the cluster, besides its topics, on which assignments depend.

    Owned by the `GroupCoordinator`, which updates it with each image; its shards share it.
    """

    default_assignor: str = UNIFORM
    """The assignor of groups whose members name none; the config `group.consumer.assignors`."""
    offsets_partitions: int = 0
    """Number of partitions of the offsets topic; 0: not known."""
    racks: Callable[[TopicName], Sequence[ReplicaRacks]] = _no_racks
    """Return the racks of the replicas of each partition of a topic; empty if none is known."""


@dataclass(frozen=True, slots=True, eq=False)
class BlockedRecord:
    """The record of a partition that an instance's format can't show."""

    position: ReadPosition
    """The position from which it was found; another object in its place ends the block."""
    record: StoredRecord
    message: str
    since_ms: int
    """Wall time at which a read found it first."""

    @property
    def offset(self) -> int:
        """The offset of the record."""
        return self.record.offset


@dataclass(slots=True, eq=False)
class Session:
    """The soft state of an instance on this coordinator, from creation or load to removal."""

    heard_ms: int
    """Judge time (`GroupsState.judge_ms`) of its last call."""
    tokens: ReadTokens
    calls: int = 0
    """Number of calls in progress, waiting reads included; the session can't expire meanwhile."""
    positions: dict[TopicPartition, ReadPosition] = field(default_factory=dict)
    auto_committed_ms: int = 0
    revoking_since_ms: int | None = None
    """Judge time since which it owns partitions that it must give up; None if there are none."""
    unreported_moves: list[Move] = field(default_factory=list)
    """Moves of its positions of which its client may not know; at most one for each partition."""
    reported_moves: dict[str, tuple[Move, ...]] = field(default_factory=dict)
    """By token, the moves that an answer reported which a token reader has not acknowledged."""
    blocked: dict[TopicPartition, BlockedRecord] = field(default_factory=dict)
    """Records that a read found and its format can't show; `blocked` decides if one still stops
    the instance."""
    rotation: int = 0
    """Index of the partition with which its next read begins, modulo their number."""
    ended: bool = False
    has_open_join: bool = False
    """True while no call has shown that the member received the answer to its join."""
    high_watermarks: dict[TopicPartition, tuple[TopicId, int]] = field(default_factory=dict)
    """By partition of a commit, the topic's id and the high watermark that was seen for it."""

    def position(self, partition: TopicPartition, topics: Topics) -> ReadPosition | None:
        """Return the position in a partition, unless it is of a deleted topic of the same name."""
        found = self.positions.get(partition)
        facts = topics.get(partition.topic)
        if found is None or facts is None or facts.topic_id != found.topic_id:
            return None
        return found

    def moves_to_report(self, at_most: int, token: str | None) -> tuple[Move, ...]:
        """Return the moves for an answer; with a token, again until it is acknowledged."""
        reported = tuple(self.unreported_moves[:at_most])
        if token is None:
            del self.unreported_moves[:at_most]
        elif reported:
            self.reported_moves[token] = reported
        return reported

    def acknowledge_moves(self, token: str) -> None:
        """Forget the moves that the answer with this token reported: its client knows of them."""
        known = self.reported_moves.get(token, ())
        self.unreported_moves = [one for one in self.unreported_moves if one not in known]
        self.reported_moves.clear()

    def high_watermark(self, partition: TopicPartition, topics: Topics) -> int | None:
        """Return the high watermark seen in a partition, unless its topic was deleted since."""
        found, facts = self.high_watermarks.get(partition), topics.get(partition.topic)
        if found is None or facts is None or facts.topic_id != found[0]:
            return None
        return found[1]


@dataclass(slots=True)
class Instance:
    """A consumer instance as its records describe it."""

    name: InstanceId
    value: InstanceValue
    member: MemberValue | None = None
    owned: frozenset[TopicPartition] = NOTHING
    """Partitions owned by subscription; those assigned by hand are in ``manual``."""
    target: frozenset[TopicPartition] = NOTHING
    manual: frozenset[TopicPartition] = NOTHING
    seeks: dict[TopicPartition, SeekValue] = field(default_factory=dict)

    @property
    def assignment(self) -> frozenset[TopicPartition]:
        """All partitions that the instance may read."""
        return self.owned | self.manual

    @property
    def member_epoch(self) -> int:
        """The member epoch; -1 without a subscription."""
        return -1 if self.member is None else self.member.epoch


@dataclass(slots=True)
class Group:
    """A group as its records describe it. Invariant: no partition is owned by two members."""

    name: GroupId
    epoch: int = 0
    instances: dict[InstanceId, Instance] = field(default_factory=dict)
    offsets: dict[TopicPartition, OffsetValue] = field(default_factory=dict)
    starts: dict[TopicPartition, StartValue] = field(default_factory=dict)
    skips: dict[TopicPartition, SkipValue] = field(default_factory=dict)
    """Records that readers step over if they can't show them, until a commit passes them."""
    default_assignor: str = UNIFORM
    """The assignor if no member names one: the cluster's default when the group was last empty."""
    has_record: bool = False
    """True if a record holds its epoch; else its epoch began at `GroupsState.forgotten_epoch`."""
    empty_since_ms: int | None = None
    """Wall time at which the last instance left, if that is known."""
    orphans: dict[InstanceId, dict[MemberKey | SeekKey, ShardRecord]] = field(default_factory=dict)
    """Memberships and seeks that were read before their instance, the newest of each. Compaction
    keeps only the newest record of the instance, which may be the later one."""
    owners: dict[TopicPartition, InstanceId] = field(default_factory=dict)
    """The member that owns each partition by subscription."""
    assignees: dict[TopicPartition, InstanceId] = field(default_factory=dict)
    """The member whose target holds each partition."""
    started_with: Topics | None = None
    """Topics for which new partitions of the members' subscriptions got a start; None: none yet."""

    @property
    def exists(self) -> bool:
        """True if the group has instances or offsets. Its epoch is kept beyond that."""
        return bool(self.instances or self.offsets)

    @property
    def members(self) -> dict[InstanceId, Instance]:
        """The subscribed instances, sorted by name."""
        return {
            name: self.instances[name]
            for name in sorted(self.instances)
            if self.instances[name].value.is_subscribed
        }

    @property
    def assignor(self) -> str:
        """The assignor that most members name first, else the group's default."""
        wishes = (one.value.settings.assignors for one in self.members.values())
        return choose_assignor(wishes, self.default_assignor)

    def committed(self, partition: TopicPartition, topics: Topics) -> OffsetValue | None:
        """Return the committed offset, unless it is of a deleted topic of the same name."""
        found = self.offsets.get(partition)
        return found if found is not None and is_present(partition, found, topics) else None

    def restart(
        self, instance: Instance, partition: TopicPartition, topics: Topics
    ) -> OffsetAndEpoch | None:
        """Return the place at which an instance begins: its seek, commit, or resolved start."""
        for found in (
            instance.seeks.get(partition),
            self.offsets.get(partition),
            self.starts.get(partition),
        ):
            if found is not None and is_present(partition, found, topics):
                return OffsetAndEpoch(found.offset, found.leader_epoch)
        return None


@dataclass(slots=True)
class HeldGroup:
    """A group that is held, as it was folded, and the records that hold it."""

    group: Group
    sessions: dict[InstanceKey, Session]
    records: list[UndecodableRecord]


def is_present(
    partition: TopicPartition,
    value: OffsetValue | StartValue | SeekValue | SkipValue,
    topics: Topics,
) -> bool:
    """Return True if an offset belongs to the topic that has the name now."""
    facts = topics.get(partition.topic)
    return facts is not None and facts.topic_id == value.topic_id


def ends_seek(commit: OffsetValue, seek: SeekValue) -> bool:
    """Return True if a commit is of what was read behind a seek: it holds in its place.

    One of an offset below it was sent before the seek.
    """
    return commit.topic_id != seek.topic_id or commit.offset >= seek.offset


def of_present_life(
    places: Mapping[TopicPartition, Found], before: Topics, now: Topics
) -> dict[TopicPartition, Found]:
    """Return what was found out about partitions, but of topics that were made anew meanwhile."""
    return {
        place: value
        for place, value in places.items()
        if (facts := now.get(place.topic)) is not None
        and (known := before.get(place.topic)) is not None
        and known.topic_id == facts.topic_id
    }


class GroupsState:
    """All groups of one partition of the offsets topic. Owned by its `Shard`, on its event loop.

    ``entries`` are the records that were decided and not written yet, in order; `take` empties it.
    """

    def __init__(self, environment: GroupEnvironment | None = None, life: str = "a") -> None:
        """Begin empty; ``life`` names this state: no other, on any coordinator, has the same."""
        self.environment = environment or GroupEnvironment()
        self._life = life
        self._sessions_made = 0
        self.groups: dict[GroupId, Group] = {}
        self.held: dict[GroupId, HeldGroup] = {}
        """Groups that nothing may change, because a record of them can't be decoded."""
        self.left_out: LeftOutValue | None = None
        """Undecodable records without a group that a load left out; None if there never were."""
        self.sessions: dict[InstanceKey, Session] = {}
        self.home = HomeState()
        """Transactions that commit offsets of these groups."""
        self.entries: list[ShardRecord] = []
        self.ticked = 0
        """Index of the session with which the next tick continues."""
        self.forgotten_epoch = 0
        """Highest epoch of a forgotten group. New groups begin with it, so that no epoch of a name
        goes back."""
        self.groups_in_use = 0
        """Number of groups with instances."""
        self.trusted_ms: int | None = None
        """Wall time of the present decision; None while this broker's clock is not trusted."""
        self.to_check: list[GroupId] = []
        """Groups that are still to be looked through for expired offsets in this round."""
        self.moves: dict[GroupId, deque[Move]] = {}
        """The last `MOVES_KEPT` moved positions of each group that exists. Soft state."""
        self.awaiting_targets: set[GroupId] = set()
        """Groups whose new targets are still to be computed, because that takes long."""
        self.concerned: set[InstanceKey] = set()
        """Members to which a decision since the last `take_concerned` may give or deny a
        partition."""
        self.judge_ms = 0
        """Time by which sessions are judged, in ms: it stands still while this process does, or
        can't record (rule M7)."""

    # ---- records

    def apply(self, *entries: ShardRecord) -> None:
        """Fold records that were just decided, and keep them to be written."""
        for entry in entries:
            is_of_group = not isinstance(entry.key, HOME_KEYS)
            assert not is_of_group or entry.key.group not in self.held, (
                "a held group must not change"
            )
            self.fold(entry)
            self.entries.append(entry)

    def take(self) -> list[ShardRecord]:
        """Return the records to be written since the last call."""
        taken, self.entries = self.entries, []
        return taken

    def take_concerned(self) -> set[InstanceKey]:
        """Return the members that decisions since the last call concern."""
        taken, self.concerned = self.concerned, set()
        return taken

    def fold(self, entry: ShardRecord) -> None:
        """Apply a record that was decided here or read from the log."""
        key, value = entry
        if isinstance(key, HOME_KEYS):
            self.home.fold(HomeRecord(key, cast("HomeValue | None", value)))
            return
        if not key.group:
            self._fold_without_group(key, value)
            return
        self._fold_of_group(key, value)

    def _fold_of_group(self, key: GroupFactKey, value: object) -> None:
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
                self._fold_member(group, key, value)
            case OffsetKey():
                _fold_offset(group, key, value)
            case StartKey():
                _fold_place(group.starts, key, value, StartValue)
            case SeekKey():
                self._fold_seek(group, key, value)
            case SkipKey():
                _fold_place(group.skips, key, value, SkipValue)
            case UnknownKey() | LeftOutKey() | ProbeKey():
                pass  # the null of an unknown key says that its fact is gone

    def _fold_without_group(self, key: Key, value: object) -> None:
        if isinstance(key, LeftOutKey):
            self.left_out = value if isinstance(value, LeftOutValue) else None
        elif key == EVERY_GROUP and isinstance(value, GroupValue):
            self.forgotten_epoch = max(self.forgotten_epoch, value.epoch)
            for group in self.groups.values():
                if not group.has_record:
                    group.epoch = max(group.epoch, self.forgotten_epoch)

    def _fold_group(self, group: Group, value: object) -> None:
        if isinstance(value, GroupValue):
            group.epoch, group.has_record = value.epoch, True
            group.default_assignor = value.default_assignor
            group.empty_since_ms = value.empty_since_ms
            return
        self.forgotten_epoch = max(self.forgotten_epoch, group.epoch)
        self.groups_in_use -= bool(group.instances)
        self.moves.pop(group.name, None)
        self.awaiting_targets.discard(group.name)
        del self.groups[group.name]

    def _fold_instance(self, group: Group, key: InstanceKey, value: object) -> None:
        self.concerned.add(key)
        if not isinstance(value, InstanceValue):
            removed = group.instances.pop(key.instance, None)
            if removed is not None:
                self._hold(group, removed, NOTHING, NOTHING)
            self.groups_in_use -= removed is not None and not group.instances
            group.orphans.pop(key.instance, None)
            self._end_session(key)
            return
        instance = group.instances.get(key.instance)
        if instance is None:
            self.groups_in_use += not group.instances
            instance = group.instances[key.instance] = Instance(key.instance, value)
            self.begin_session(key)
        instance.value = value
        instance.manual = NOTHING if value.manual is None else partitions_of(value.manual)
        for orphan in group.orphans.pop(key.instance, {}).values():
            self.fold(orphan)

    def begin_session(self, key: InstanceKey) -> None:
        """Begin a new session of an instance; one that it has is that of an earlier client."""
        self._end_session(key)
        self._sessions_made += 1
        self.sessions[key] = Session(
            self.judge_ms,
            ReadTokens(f"{self._life}.{self._sessions_made}"),
            auto_committed_ms=self.judge_ms,
        )

    def _end_session(self, key: InstanceKey) -> None:
        ended = self.sessions.pop(key, None)
        if ended is not None:
            ended.ended = True

    def _fold_member(self, group: Group, key: MemberKey, value: object) -> None:
        instance = group.instances.get(key.instance)
        if instance is None:
            _fold_orphan(group, key, value if isinstance(value, MemberValue) else None)
            return
        if not isinstance(value, MemberValue):
            instance.member = None
            self._hold(group, instance, NOTHING, NOTHING)
            return
        before, instance.member = instance.member, value
        owned, target = instance.owned, instance.target
        if before is None or value.owned is not before.owned:
            owned = partitions_of(value.owned)
        if before is None or value.target is not before.target:
            target = partitions_of(value.target)
        self._hold(group, instance, owned, target)

    def _hold(
        self,
        group: Group,
        instance: Instance,
        owned: frozenset[TopicPartition],
        target: frozenset[TopicPartition],
    ) -> None:
        """Set what a member owns and its target, and note which members that concerns."""
        name, freed = instance.name, instance.owned - owned
        _move(group.owners, name, instance.owned, owned)
        _move(group.assignees, name, instance.target, target)
        if freed or instance.target != target:
            self.concerned.add(InstanceKey(group.name, name))
        for partition in freed:
            waiting = group.assignees.get(partition)
            if waiting is not None:
                self.concerned.add(InstanceKey(group.name, waiting))
        instance.owned, instance.target = owned, target

    def _fold_seek(self, group: Group, key: SeekKey, value: object) -> None:
        instance = group.instances.get(key.instance)
        if instance is None:
            _fold_orphan(group, key, value if isinstance(value, SeekValue) else None)
            return
        partition = TopicPartition(key.topic, key.partition)
        if isinstance(value, SeekValue):
            instance.seeks[partition] = value
        else:
            instance.seeks.pop(partition, None)

    def note_move(self, group: GroupId, session: Session, move: Move) -> None:
        """Keep a move for the session's next answer and for the group's description."""
        place = (move.topic, move.partition)
        session.unreported_moves = [
            one for one in session.unreported_moves if (one.topic, one.partition) != place
        ]
        session.unreported_moves.append(move)
        self.moves.setdefault(group, deque(maxlen=MOVES_KEPT)).append(move)

    # ---- look-up

    def find(self, key: InstanceKey) -> tuple[Group, Instance, Session]:
        """Return an instance that may be called, with its group and session.

        Raises:
            KafkaError: UNKNOWN_MEMBER_ID if there is none, or it has closed; FENCED_INSTANCE_ID if
                a newer instance with its static id has its seat.
        """
        group = self.groups.get(key.group)
        instance = None if group is None else group.instances.get(key.instance)
        if group is None or instance is None or instance.value.seat is Seat.VACANT:
            text = f"Consumer instance {key.instance} of group {key.group} not found."
            raise KafkaError(ErrorCode.UNKNOWN_MEMBER_ID, text)
        if instance.value.seat is Seat.LOST:
            static_id = instance.value.settings.static_id
            text = f"a newer consumer of group {key.group} has group.instance.id {static_id}"
            raise KafkaError(ErrorCode.FENCED_INSTANCE_ID, text)
        return group, instance, self.sessions[key]

    def existing_groups(self) -> Iterator[Group]:
        """Yield the groups that have instances or offsets, sorted by name."""
        for name in sorted(self.groups):
            if self.groups[name].exists:
                yield self.groups[name]


def _move(
    holders: dict[TopicPartition, InstanceId],
    name: InstanceId,
    before: frozenset[TopicPartition],
    after: frozenset[TopicPartition],
) -> None:
    """Update the holder of each partition. A member that follows in the log may have it already."""
    for partition in before - after:
        if holders.get(partition) == name:
            del holders[partition]
    for partition in after - before:
        holders[partition] = name


def _fold_place(
    facts: dict[TopicPartition, V], key: StartKey | SkipKey, value: object, kind: type[V]
) -> None:
    partition = TopicPartition(key.topic, key.partition)
    if isinstance(value, kind):
        facts[partition] = value
    else:
        facts.pop(partition, None)


def _fold_orphan(
    group: Group, key: MemberKey | SeekKey, value: MemberValue | SeekValue | None
) -> None:
    """Keep a fact whose instance comes later in the log, or forget one that no longer holds.

    Older facts of the key may be read too: while the cleaner works, it has replaced the first
    segments only, and a record there may be gone for one behind all of them.
    """
    if value is not None:
        group.orphans.setdefault(key.instance, {})[key] = ShardRecord(key, value)
    elif key.instance in group.orphans:
        group.orphans[key.instance].pop(key, None)


def _fold_offset(group: Group, key: OffsetKey, value: object) -> None:
    partition = TopicPartition(key.topic, key.partition)
    if not isinstance(value, OffsetValue):
        group.offsets.pop(partition, None)
        return
    group.offsets[partition] = value
    if value.instance is not None:
        instance = group.instances.get(value.instance)
        seek = None if instance is None else instance.seeks.get(partition)
        if instance is not None and seek is not None and ends_seek(value, seek):
            del instance.seeks[partition]
