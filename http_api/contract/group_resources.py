"""Resources of consumer groups as both sides see them: a dataclass each, and its reading from JSON.

As in `resources`; apart from it, because members of groups need these and nothing else of v3.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupBlock:
    """A record that stops a member of a group in its partition."""

    topic: str
    partition: int
    offset: int
    member_id: str
    message: str
    since: str
    """The time at which a read found it first, like ``2026-01-31T12:00:00.000Z``."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupInfo:
    """A consumer group and the broker that coordinates it."""

    group: str
    state: str
    """EMPTY | RECONCILING | STABLE as in KIP-848, or HELD: it needs a repair."""
    assignor: str
    coordinator: int
    is_simple: bool
    """True if no member subscribes: only offsets, and perhaps instances assigned by hand."""
    moved: tuple[MovedPosition, ...] = ()
    """The last positions that were moved, oldest first."""
    blocked: tuple[GroupBlock, ...] = ()
    """Records at which members stand, because their formats can't show them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MovedPosition:
    """A position that its instance left because the log did not hold it any more."""

    topic: str
    partition: int
    consumer: str
    from_offset: int
    to_offset: int
    cause: str
    """truncated | diverged | out_of_range."""
    time_ms: int


def moved_of(row: Mapping[str, Any]) -> MovedPosition:
    """Return the moved position that a row of a group's answer describes."""
    return MovedPosition(
        topic=row["topic_name"],
        partition=row["partition_id"],
        consumer=row["consumer_id"],
        from_offset=row["from_offset"],
        to_offset=row["to_offset"],
        cause=row["cause"],
        time_ms=row["timestamp"],
    )


def group_of(row: Mapping[str, Any]) -> GroupInfo:
    """Return the consumer group that a row of a v3 answer describes."""
    return GroupInfo(
        group=row["consumer_group_id"],
        state=row["state"],
        assignor=row["partition_assignor"],
        coordinator=broker_in_link(row["coordinator"]),
        is_simple=row["is_simple"],
        moved=tuple(map(moved_of, row["moved"])),
        blocked=tuple(
            GroupBlock(
                topic=one["topic_name"],
                partition=one["partition_id"],
                offset=one["offset"],
                member_id=one["consumer_id"],
                message=one["message"],
                since=one["since"],
            )
            for one in row["blocked"]
        ),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class LostGroupRecord:
    """A record of a group's log that the cluster can't decode."""

    partition: int
    """Partition of ``__consumer_offsets``."""
    offset: int
    key: str
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupRepair:
    """The state in which a repaired group goes on, and what is forgotten."""

    forgotten: tuple[LostGroupRecord, ...]
    members: tuple[str, ...]
    offsets: Mapping[tuple[str, int], int]


def repair_of(row: Mapping[str, Any]) -> GroupRepair:
    """Return the repair that a v3 answer describes."""
    return GroupRepair(
        forgotten=tuple(
            LostGroupRecord(
                partition=one["partition_id"],
                offset=one["offset"],
                key=one["key"],
                reason=one["reason"],
            )
            for one in row["forgotten"]
        ),
        members=tuple(row["forgotten_consumers"]),
        offsets={(one["topic_name"], one["partition_id"]): one["offset"] for one in row["offsets"]},
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupMember:
    """A live instance of a group. ``member_epoch`` is -1 if it has no subscription."""

    member_id: str
    client_id: str
    member_epoch: int
    static_id: str | None = None
    """Its ``group.instance.id``."""


def member_of(row: Mapping[str, Any]) -> GroupMember:
    """Return the live instance that a row of a v3 answer describes."""
    return GroupMember(
        member_id=row["consumer_id"],
        client_id=row["client_id"],
        member_epoch=row["member_epoch"],
        static_id=row["instance_id"],
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class AssignedPartition:
    """A partition that a member owns, and where its group stands in it."""

    topic: str
    topic_id: str
    partition: int
    offset: int | None
    """The next offset to read; None without a commit where ``auto_offset_reset`` is ``none``."""
    leader_epoch: int | None
    """The epoch of the record before ``offset``; None if it is not known."""
    is_committed: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupMembership:
    """A member that reads for itself, as the answer to its join or heartbeat describes it."""

    group: str
    member_id: str
    static_id: str | None
    member_epoch: int
    group_epoch: int
    assignor: str
    heartbeat_interval_ms: int
    session_timeout_ms: int
    assignment: tuple[AssignedPartition, ...]
    revoked: tuple[tuple[str, int], ...]
    """Partitions (topic, number) that the member's next heartbeat is not to name any more."""


def membership_of(row: Mapping[str, Any]) -> GroupMembership:
    """Return the membership of an answer to a join or a heartbeat."""
    return GroupMembership(
        group=row["consumer_group_id"],
        member_id=row["consumer_id"],
        static_id=row["instance_id"],
        member_epoch=row["member_epoch"],
        group_epoch=row["group_epoch"],
        assignor=row["assignor"],
        heartbeat_interval_ms=row["heartbeat_interval_ms"],
        session_timeout_ms=row["session_timeout_ms"],
        assignment=tuple(
            AssignedPartition(
                topic=one["topic_name"],
                topic_id=one["topic_id"],
                partition=one["partition_id"],
                offset=one["offset"],
                leader_epoch=one["leader_epoch"],
                is_committed=one["is_committed"],
            )
            for one in row["assignment"]
        ),
        revoked=tuple((one["topic_name"], one["partition_id"]) for one in row["revoked"]),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class CommittedOffset:
    """A committed offset, the next one to read; ``lag`` is None if an end is not known."""

    topic: str
    partition: int
    offset: int | None
    metadata: str
    lag: int | None
    is_committed: bool = True
    """False: nothing is committed; ``offset`` is where the group starts, None without a start."""
    leader_epoch: int | None = None
    """Epoch of the offset, if it is known."""
    blocked_offset: int | None = None
    """The record that stops the member that reads the partition; None: none does."""


def committed_of(row: Mapping[str, Any]) -> CommittedOffset:
    """Return the committed offset that a row of a v3 answer describes."""
    return CommittedOffset(
        topic=row["topic_name"],
        partition=row["partition_id"],
        offset=row["offset"],
        metadata=row["metadata"],
        lag=row["lag"],
        leader_epoch=row["leader_epoch"],
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupLag:
    """The lag of a group in a partition that it committed, or that a member reads."""

    topic: str
    partition: int
    current_offset: int | None
    """The committed offset; where nothing is committed, the group's start, None without one."""
    is_committed: bool
    log_end_offset: int | None
    """None if it is not known, and so is the lag."""
    lag: int | None
    member_id: str
    """The owner; empty if no member owns the partition."""
    client_id: str
    blocked_offset: int | None = None
    """The record that stops the owner, whose format can't show it; None: none does."""


def lag_of(row: Mapping[str, Any]) -> GroupLag:
    """Return the lag that a row of a v3 answer describes."""
    return GroupLag(
        topic=row["topic_name"],
        partition=row["partition_id"],
        current_offset=row["current_offset"],
        is_committed=row["is_committed"],
        log_end_offset=row["log_end_offset"],
        lag=row["lag"],
        member_id=row["consumer_id"],
        client_id=row["client_id"],
        blocked_offset=row["blocked_offset"],
    )


def broker_in_link(link: Mapping[str, str]) -> int:
    """Return the broker id at the end of a link like ``{"related": "…/brokers/<id>"}``."""
    return int(link["related"].rpartition("/")[2])
