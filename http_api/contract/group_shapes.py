"""JSON shapes of consumer groups: instances in the v2 API, groups in the v3 API.

The routes `server/routes/v2/consumer_instances.py` use the first part, with the error texts that
clients compare; those in `server/routes/v3/consumer_groups.py` turn the coordinator's answers into
the dataclasses of `contract.resources`, and the functions of the second part turn those into
Confluent's resources and our list of offsets.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

from http_api.contract.errors import RestCode, RestError, excerpt
from http_api.contract.v2 import as_pictures, check_name, has_control_characters

if TYPE_CHECKING:
    from collections.abc import Sequence

    from http_api.contract.group_resources import (
        CommittedOffset,
        GroupBlock,
        GroupInfo,
        GroupMember,
        GroupMembership,
    )
    from http_api.contract.v3 import Links


JsonObject = dict[str, Any]

IGNORED_HEADER = "Quorumlog-Ignored"
"""Header with the settings of a new instance that have no effect here, separated by commas."""
READ_TOKEN_HEADER = "Quorumlog-Read-Token"  # noqa: S105 the name of a header
"""Header with the token of a read's answer, which the next read sends as ``after`` (rule G5)."""
RESUMED_HEADER = "Quorumlog-Resumed"
"""Header of an answer that goes on from the commit, because its token is not known any more."""
MOVED_HEADER = "Quorumlog-Moved"
"""Header of an answer that names positions which were moved: the log does not hold them any more.
"""
COORDINATOR_URL_HEADER = "Quorumlog-Coordinator-Url"
"""Header with the URL of the broker that coordinates the group."""
BLOCKED_HEADER = "Quorumlog-Blocked"
"""Header with the records at which an instance stands, because its format can't show them."""
BLOCKED_NAMED_MAX = 32
"""Most records named in that header, to limit its size; the group's description names all."""
IGNORED_NAMED_MAX = 32
"""Most settings named in that header, to limit its size; Kafka's consumer has about eighty."""
_SETTING = re.compile(r"[A-Za-z0-9_-]+(\.[A-Za-z0-9_-]+)+")
"""Matches the dotted names of Kafka's settings."""

INSTANCE_NOT_FOUND = "Consumer instance not found."
INSTANCE_EXISTS = (
    "Consumer with specified consumer ID already exists in the specified consumer group."
)
FORMAT_MISMATCH = (
    "The requested embedded data format does not match the deserializer for this consumer instance"
)
ONE_SUBSCRIPTION_ONLY = (
    "IllegalStateError: You must choose only one way to configure your consumer: (1) subscribe to "
    "specific topics by name, (2) subscribe to topics matching a regex pattern, (3) assign itself "
    "specific topic-partitions."
)
"""The four texts above are Confluent's and Karapace's, because clients compare whole bodies."""


def is_setting_name(key: str) -> bool:
    """Return True if a key has the form of Kafka's consumer settings, whether known here or not."""
    return len(key) <= 100 and _SETTING.fullmatch(key) is not None


def check_name_in_body(parameter: str, name: str) -> str:
    """Return a valid name from a body.

    Raises:
        RestError: as `check_name`, with the text for control characters that bodies get.
    """
    if has_control_characters(name):
        text = f"Parameter contained invalid control characters: {as_pictures(excerpt(name))}"
        raise RestError(400, RestCode.BAD_REQUEST, text)
    return check_name(parameter, name)


def created_instance(instance: str, base_uri: str) -> JsonObject:
    """Return the answer to a create: the instance's id and URL; all brokers serve the same path."""
    return {"instance_id": instance, "base_uri": base_uri}


def partitions(rows: Iterable[tuple[str, int]]) -> JsonObject:
    """Return an assignment, given as (topic, partition)."""
    return {"partitions": [{"topic": topic, "partition": number} for topic, number in rows]}


def positions(rows: Iterable[tuple[str, int, int, int]]) -> JsonObject:
    """Return the next offsets to be delivered, given as (topic, partition, offset, its epoch)."""
    return {
        "offsets": [
            {
                "topic": topic,
                "partition": number,
                "offset": offset,
                "leader_epoch": None if epoch < 0 else epoch,
            }
            for topic, number, offset, epoch in rows
        ]
    }


class MovedRow(Protocol):
    """A moved position, as the coordinator describes it."""

    @property
    def topic(self) -> str: ...
    @property
    def partition(self) -> int: ...
    @property
    def from_offset(self) -> int: ...
    @property
    def to_offset(self) -> int: ...
    @property
    def cause(self) -> str: ...


def moved_header(moves: Iterable[MovedRow]) -> str:
    """Return the value of `MOVED_HEADER`: ``orders-0 100->80 truncated, …``."""
    return ", ".join(
        f"{one.topic}-{one.partition} {one.from_offset}->{one.to_offset} {one.cause}"
        for one in moves
    )


def blocked_records(rows: Sequence[tuple[str, int, int]]) -> str:
    """Return the value of `BLOCKED_HEADER` for (topic, partition, offset): ``orders-0@17, …``."""
    named = [f"{topic}-{number}@{offset}" for topic, number, offset in rows[:BLOCKED_NAMED_MAX]]
    if len(rows) > BLOCKED_NAMED_MAX:
        named.append(f"and {len(rows) - BLOCKED_NAMED_MAX} more")
    return ", ".join(named)


def offsets(rows: Iterable[tuple[str, int, int, str]]) -> JsonObject:
    """Return committed offsets, given as (topic, partition, offset, metadata)."""
    return {
        "offsets": [
            {"topic": topic, "partition": number, "offset": offset, "metadata": metadata}
            for topic, number, offset, metadata in rows
        ]
    }


def strimzi_subscription(topics: Iterable[str], owned: Iterable[tuple[str, int]]) -> JsonObject:
    """Return a subscription in Strimzi's dialect: topics, and partitions as ``[{"T": [0, 1]}]``."""
    by_topic: dict[str, list[int]] = {}
    for topic, number in owned:
        by_topic.setdefault(topic, []).append(number)
    return {"topics": list(topics), "partitions": [{name: ids} for name, ids in by_topic.items()]}


GROUPS = "consumer-groups"


@dataclass(frozen=True, slots=True, kw_only=True)
class ConsumerLag:
    """A committed offset with the partition's end and the instance that reads it."""

    committed: CommittedOffset
    end_offset: int | None
    consumer: str
    """Id of the instance that owns the partition; empty if none does."""
    client_id: str


def blocked_partition(found: GroupBlock) -> JsonObject:
    """Return a record that stops a member of a group."""
    return {
        "topic_name": found.topic,
        "partition_id": found.partition,
        "offset": found.offset,
        "consumer_id": found.member_id,
        "error_code": int(RestCode.JSON_CONVERSION),
        "message": found.message,
        "since": found.since,
    }


def group(links: Links, info: GroupInfo, group_epoch: int) -> JsonObject:
    """Return a group; ``group_epoch``, ``moved`` and ``blocked`` extend Confluent's fields."""
    path = (GROUPS, info.group)
    return links.resource("KafkaConsumerGroup", f"consumer-group={info.group}", *path) | {
        "consumer_group_id": info.group,
        "is_simple": info.is_simple,
        "is_mixed_consumer_group": False,
        "partition_assignor": info.assignor,
        "state": info.state,
        "type": "CONSUMER",
        "coordinator": links.related("brokers", info.coordinator),
        "consumers": links.related(*path, "consumers"),
        "lag_summary": links.related(*path, "lag-summary"),
        "group_epoch": group_epoch,
        "moved": [
            {
                "topic_name": move.topic,
                "partition_id": move.partition,
                "consumer_id": move.consumer,
                "from_offset": move.from_offset,
                "to_offset": move.to_offset,
                "cause": move.cause,
                "timestamp": move.time_ms,
            }
            for move in info.moved
        ],
        "blocked": [blocked_partition(one) for one in info.blocked],
    }


def group_repair(
    links: Links,
    group_id: str,
    *,
    validate_only: bool,
    forgotten: Sequence[JsonObject],
    members: Sequence[str],
    offsets: Sequence[JsonObject],
) -> JsonObject:
    """Return how a repaired group goes on; with ``validate_only`` nothing was changed."""
    crn = f"consumer-group={group_id}/repair"
    return links.resource("KafkaConsumerGroupRepair", crn, GROUPS, f"{group_id}:repair") | {
        "consumer_group_id": group_id,
        "validate_only": validate_only,
        "forgotten": list(forgotten),
        "forgotten_consumers": list(members),
        "offsets": list(offsets),
    }


def consumer(links: Links, group_id: str, member: GroupMember, *, is_manual: bool) -> JsonObject:
    """Return a live instance. ``instance_id`` is its static id, None without one."""
    path = (GROUPS, group_id, "consumers", member.member_id)
    crn = f"consumer-group={group_id}/consumer={member.member_id}"
    return links.resource("KafkaConsumer", crn, *path) | {
        "consumer_group_id": group_id,
        "consumer_id": member.member_id,
        "instance_id": member.static_id,
        "client_id": member.client_id,
        "assignments": links.related(*path, "assignments"),
        "member_epoch": member.member_epoch,
        "is_manual": is_manual,
    }


def assignment(
    links: Links, group_id: str, consumer_id: str, topic: str, partition: int
) -> JsonObject:
    """Return a partition that an instance owns."""
    path = (GROUPS, group_id, "consumers", consumer_id, "assignments", topic)
    crn = (
        f"consumer-group={group_id}/consumer={consumer_id}/assignment={topic}/partition={partition}"
    )
    return links.resource("KafkaConsumerAssignment", crn, *path, "partitions", partition) | {
        "consumer_group_id": group_id,
        "consumer_id": consumer_id,
        "topic_name": topic,
        "partition_id": partition,
        "partition": links.related("topics", topic, "partitions", partition),
        "lag": links.related(GROUPS, group_id, "lags", topic, "partitions", partition),
    }


def membership(links: Links, found: GroupMembership) -> JsonObject:
    """Return what a member that reads for itself is to own, and where its group stands there."""
    path = (GROUPS, found.group, "consumers", found.member_id)
    crn = f"consumer-group={found.group}/consumer={found.member_id}"
    return links.resource("KafkaConsumerMembership", crn, *path) | {
        "consumer_group_id": found.group,
        "consumer_id": found.member_id,
        "instance_id": found.static_id,
        "member_epoch": found.member_epoch,
        "group_epoch": found.group_epoch,
        "assignor": found.assignor,
        "heartbeat_interval_ms": found.heartbeat_interval_ms,
        "session_timeout_ms": found.session_timeout_ms,
        "assignment": [
            {
                "topic_name": one.topic,
                "topic_id": one.topic_id,
                "partition_id": one.partition,
                "offset": one.offset,
                "leader_epoch": one.leader_epoch,
                "is_committed": one.is_committed,
            }
            for one in found.assignment
        ],
        "revoked": [
            {"topic_name": topic, "partition_id": number} for topic, number in found.revoked
        ],
    }


def lag(links: Links, group_id: str, found: ConsumerLag) -> JsonObject:
    """Return the lag of a group in a partition."""
    at = found.committed
    path = (GROUPS, group_id, "lags", at.topic, "partitions", at.partition)
    crn = f"consumer-group={group_id}/lag={at.topic}/partition={at.partition}"
    return links.resource("KafkaConsumerLag", crn, *path) | {
        "consumer_group_id": group_id,
        "topic_name": at.topic,
        "partition_id": at.partition,
        "consumer_id": found.consumer,
        "instance_id": None,
        "client_id": found.client_id,
        "current_offset": at.offset,
        "log_end_offset": found.end_offset,
        "lag": at.lag,
        "is_committed": at.is_committed,
        "leader_epoch": at.leader_epoch,
        "blocked_offset": at.blocked_offset,
    }


def lag_summary(links: Links, group_id: str, lags: Sequence[ConsumerLag]) -> JsonObject:
    """Return the largest known lag and the sum of all lags.

    The sum is null if a lag is not known; the largest lag is null if no lag is known.
    """
    path = (GROUPS, group_id)
    known = [row for row in lags if row.committed.lag is not None]
    longest = max(known, key=lambda row: row.committed.lag or 0, default=None)
    owner = longest.consumer if longest is not None else ""
    worst = longest.committed if longest is not None else None
    return links.resource(
        "KafkaConsumerGroupLagSummary",
        f"consumer-group={group_id}/lag-summary",
        *path,
        "lag-summary",
    ) | {
        "consumer_group_id": group_id,
        "max_lag_consumer_id": owner,
        "max_lag_instance_id": None,
        "max_lag_client_id": longest.client_id if longest is not None else "",
        "max_lag_topic_name": worst.topic if worst is not None else None,
        "max_lag_partition_id": worst.partition if worst is not None else None,
        "max_lag": worst.lag if worst is not None else None if lags else 0,
        "total_lag": (
            sum(row.committed.lag or 0 for row in known) if len(known) == len(lags) else None
        ),
        "max_lag_consumer": links.related(*path, "consumers", owner) if owner else None,
        "max_lag_partition": (
            links.related("topics", worst.topic, "partitions", worst.partition)
            if worst is not None
            else None
        ),
    }


def offset(committed: CommittedOffset) -> JsonObject:
    """Return a committed offset, which is the next one to read."""
    return {
        "topic_name": committed.topic,
        "partition_id": committed.partition,
        "offset": committed.offset,
        "metadata": committed.metadata,
        "lag": committed.lag,
        "leader_epoch": committed.leader_epoch,
    }
