"""Calls about consumer groups: those of a member that reads for itself, and those from outside.

Used by the SDK's consumers and admin, and by `quorumlog group`. A member joins, sends heartbeats,
commits and leaves. Offsets are always the next one to read. Each function returns a `Call`; nothing
here does I/O.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from typing import Any
from urllib.parse import quote

import orjson

from http_api.client.calls import (
    Call,
    Place,
    Request,
    read_list,
    read_nothing,
    read_one,
    v3_path,
)
from http_api.contract.group_resources import (
    CommittedOffset,
    GroupInfo,
    GroupLag,
    GroupMember,
    GroupMembership,
    GroupRepair,
    committed_of,
    group_of,
    lag_of,
    member_of,
    membership_of,
    repair_of,
)

__all__ = [
    "CommittedOffset",
    "GroupInfo",
    "GroupLag",
    "GroupMember",
    "GroupMembership",
    "Place",
]  # for users of these calls


GROUPS = "consumer-groups"
GROUP_TIMEOUT_S = 15.0
"""Seconds for one attempt; a coordinator that is taking over answers within a few."""


# calls of a member that reads for itself


@dataclass(frozen=True, slots=True, kw_only=True)
class MemberSettings:
    """The subscription and settings of a member that reads for itself. Times in milliseconds."""

    topics: tuple[str, ...] | None = None
    topic_pattern: str | None = None
    """Exactly one of the two is set."""
    instance_id: str | None = None
    """The static id, by which a member that comes back within its session owns the same."""
    client_id: str | None = None
    rack: str | None = None
    assignor: str | None = None
    auto_offset_reset: str = "latest"
    session_timeout_ms: int = 45_000
    rebalance_timeout_ms: int = 300_000


def join(
    cluster_id: str, group: str, member_id: str, settings: MemberSettings
) -> Call[GroupMembership]:
    """Return the call that joins a group. It may be repeated; 409/40902 for another's name."""
    given = {name: value for name, value in asdict(settings).items() if value is not None}
    request = Request(
        method="POST",
        path=v3_path(cluster_id, GROUPS, group, "consumers"),
        body=orjson.dumps({"consumer_id": member_id} | given),
        timeout_s=GROUP_TIMEOUT_S,
        repeatable=True,
    )
    return read_one(request, membership_of)


def heartbeat(
    cluster_id: str,
    group: str,
    member_id: str,
    *,
    member_epoch: int,
    owned: Iterable[Place],
    wait_ms: int = 0,
    topics: Iterable[str] | None = None,
    topic_pattern: str | None = None,
) -> Call[GroupMembership]:
    """Return the call that reports what a member owns, and reads what it is to own.

    It waits up to ``wait_ms`` while both are the same. 409/40903 and 404/40403: join again;
    409/40952: another member has the static id.
    """
    by_topic: dict[str, list[int]] = {}
    for topic, number in owned:
        by_topic.setdefault(topic, []).append(number)
    body: dict[str, Any] = {
        "member_epoch": member_epoch,
        "owned": [{"topic_name": name, "partitions": ids} for name, ids in by_topic.items()],
        "wait_ms": wait_ms,
    }
    if topics is not None:
        body["topics"] = list(topics)
    if topic_pattern is not None:
        body["topic_pattern"] = topic_pattern
    path = v3_path(cluster_id, GROUPS, group, "consumers")
    request = Request(
        method="POST",
        path=f"{path}/{quote(member_id, safe='')}:heartbeat",
        body=orjson.dumps(body),
        timeout_s=wait_ms / 1000 + GROUP_TIMEOUT_S,
        repeatable=True,
    )
    return read_one(request, membership_of)


def leave(cluster_id: str, group: str, member_id: str, *, keep_seat: bool = False) -> Call[None]:
    """Return the call that leaves a group without a commit; a repeat gets a 404.

    ``keep_seat``: a static member comes back within its session, and owns the same then.
    """
    query = "?keep_seat=true" if keep_seat else ""
    return read_nothing(_delete(v3_path(cluster_id, GROUPS, group, "consumers", member_id) + query))


# calls about groups, made from outside


def list_groups(cluster_id: str) -> Call[list[GroupInfo]]:
    """Return the call that lists every consumer group of the cluster."""
    return read_list(_get(cluster_id), group_of)


def describe_group(cluster_id: str, group: str) -> Call[GroupInfo]:
    """Return the call that reads a group; 404/40405 if it does not exist."""
    return read_one(_get(cluster_id, group), group_of)


def members(cluster_id: str, group: str) -> Call[list[GroupMember]]:
    """Return the call that lists the live instances of a group."""
    return read_list(_get(cluster_id, group, "consumers"), member_of)


def member_assignment(cluster_id: str, group: str, member_id: str) -> Call[list[Place]]:
    """Return the call that lists the partitions that a live instance owns."""
    request = _get(cluster_id, group, "consumers", member_id, "assignments")
    return read_list(request, lambda row: (row["topic_name"], row["partition_id"]))


def group_offsets(cluster_id: str, group: str) -> Call[list[CommittedOffset]]:
    """Return the call that lists all committed offsets of a group with their lag.

    The list is empty for a group that does not exist.
    """
    return read_list(_get(cluster_id, group, "offsets"), committed_of)


def lags(cluster_id: str, group: str) -> Call[list[GroupLag]]:
    """Return the call that lists the lag of each partition that a group committed or reads."""
    return read_list(_get(cluster_id, group, "lags"), lag_of)


def commit_group(
    cluster_id: str,
    group: str,
    offsets: Mapping[Place, int],
    *,
    member: tuple[str, int] | None = None,
) -> Call[None]:
    """Return the call that commits offsets of a group from outside its instances.

    While the group has live members the commit must be made as one of them: ``member`` is its
    (member id, member epoch).
    """
    body: dict[str, Any] = {
        "data": [
            {"topic_name": topic, "partition_id": number, "offset": offset}
            for (topic, number), offset in offsets.items()
        ]
    }
    if member is not None:
        body["member_id"], body["member_epoch"] = member
    request = Request(
        method="PATCH",
        path=v3_path(cluster_id, "consumer-groups", group, "offsets"),
        body=orjson.dumps(body),
        timeout_s=GROUP_TIMEOUT_S,
    )
    return read_nothing(request)


def delete_group(cluster_id: str, group: str) -> Call[None]:
    """Return the call that deletes a group; 409/40903 if it has live members, naming them."""
    return read_nothing(_delete(v3_path(cluster_id, GROUPS, group)))


def delete_offsets(
    cluster_id: str, group: str, topic: str | None = None, partition: int | None = None
) -> Call[None]:
    """Return the call that deletes committed offsets: of a partition, of a topic, or all.

    409/40903 if a live member reads one of the topics.
    """
    parts: list[object] = ["offsets"]
    if topic is not None:
        parts.append(topic)
    if partition is not None:
        parts += ["partitions", partition]
    return read_nothing(_delete(v3_path(cluster_id, GROUPS, group, *parts)))


def skip_records(
    cluster_id: str, group: str, records: Iterable[tuple[str, int, int]]
) -> Call[None]:
    """Return the call that steps over records, each (topic, partition, offset).

    409/40903 if one of them stops no member of the group: then nothing is done.
    """
    body = {
        "data": [
            {"topic_name": topic, "partition_id": number, "offset": offset}
            for topic, number, offset in records
        ]
    }
    path = v3_path(cluster_id, GROUPS, group, "offsets:skip")
    return read_nothing(_post(path, body, repeatable=True))


def repair_group(cluster_id: str, group: str, *, validate_only: bool = False) -> Call[GroupRepair]:
    """Return the call that lets a held group go on; 409/40903 if the group is not held."""
    path = v3_path(cluster_id, GROUPS, f"{group}:repair")
    body = {"validate_only": validate_only}
    return read_one(_post(path, body, repeatable=validate_only), repair_of)


def evict(cluster_id: str, group: str, member_id: str) -> Call[None]:
    """Return the call that removes a member without a commit; 404/40403 if there is none."""
    return leave(cluster_id, group, member_id)


def evict_static(cluster_id: str, group: str, static_id: str) -> Call[None]:
    """Return the call that removes the member with a static id, and its seat; 404/40403 if none."""
    path = v3_path(cluster_id, GROUPS, group, "consumers")
    return read_nothing(_delete(f"{path}?instance_id={quote(static_id, safe='')}"))


def _delete(path: str) -> Request:
    return Request(method="DELETE", path=path, timeout_s=GROUP_TIMEOUT_S)


def _post(path: str, body: object, *, repeatable: bool) -> Request:
    return Request(
        method="POST",
        path=path,
        body=orjson.dumps(body),
        timeout_s=GROUP_TIMEOUT_S,
        repeatable=repeatable,
    )


def _get(cluster_id: str, *parts: object) -> Request:
    return Request(
        method="GET", path=v3_path(cluster_id, GROUPS, *parts), timeout_s=GROUP_TIMEOUT_S
    )
