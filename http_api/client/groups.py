"""Consumer groups as calls: an instance's life (v2), and groups seen from outside (v3).

Instances made here speak the dialect in which an offset is always the next one to read.
`http_api.client.group_consumer` puts these calls together.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import msgspec
import orjson

from http_api.client.calls import Answer, Call, ProtocolError, Request, path_of
from http_api.client.consumer import DEFAULT_MAX_BYTES, Record
from http_api.contract.media_types import V2, V2_BINARY, V2_JSON

Place = tuple[str, int]
"""Topic and partition."""

GROUP_TIMEOUT_S = 15.0
"""A coordinator that is taking over answers within a few seconds."""
_NETWORK_MARGIN_S = 15.0

_decode_records = msgspec.json.Decoder(list[Record]).decode


@dataclass(frozen=True, slots=True, kw_only=True)
class InstanceSettings:
    """How an instance reads. Times in milliseconds."""

    auto_offset_reset: str = "latest"
    """``earliest``, ``latest`` or ``none``: where a partition without a commit starts."""
    binary: bool = False
    session_timeout_ms: int = 45_000
    """Without any call for this long the instance is gone, its partitions are others'."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupInfo:
    """A group and the broker that coordinates it."""

    group: str
    state: str
    assignor: str
    coordinator: int
    is_simple: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupMember:
    """A live instance of a group. ``member_epoch`` is -1 without a subscription."""

    member_id: str
    client_id: str
    member_epoch: int


@dataclass(frozen=True, slots=True, kw_only=True)
class CommittedOffset:
    """``offset`` is the next one to read; ``lag`` is None while the end is not known."""

    topic: str
    partition: int
    offset: int
    metadata: str
    lag: int | None


# an instance's life


def create_instance(group: str, name: str, settings: InstanceSettings) -> Call[None]:
    """Make an instance; with auto-commit off, so that only what was received is committed."""
    body = {
        "name": name,
        "format": "binary" if settings.binary else "json",
        "auto.offset.reset": settings.auto_offset_reset,
        "enable.auto.commit": False,
        "session.timeout.ms": settings.session_timeout_ms,
    }
    return _done(_post(path_of("consumers", group), body))


def delete_instance(group: str, name: str) -> Call[None]:
    """Leave the group at once. Said twice, the second time is a 404."""
    path = path_of("consumers", group, "instances", name)
    return _done(Request(method="DELETE", path=path, accept=V2, timeout_s=GROUP_TIMEOUT_S))


def subscribe(group: str, name: str, topics: Iterable[str]) -> Call[None]:
    """Join the group for these topics; answers after the join."""
    body = {"topics": list(topics)}
    return _done(_post(_path(group, name, "subscription"), body, repeatable=True))


def assign(group: str, name: str, partitions: Iterable[Place]) -> Call[None]:
    """Read these partitions, outside of the group's rebalancing."""
    body = {"partitions": [{"topic": topic, "partition": number} for topic, number in partitions]}
    return _done(_post(_path(group, name, "assignments"), body, repeatable=True))


def assignment(group: str, name: str) -> Call[list[Place]]:
    """What the instance owns now."""

    def parse(answer: Answer) -> list[Place]:
        return [(row["topic"], row["partition"]) for row in answer.json()["partitions"]]

    path = _path(group, name, "assignments")
    return Call(Request(method="GET", path=path, accept=V2, timeout_s=GROUP_TIMEOUT_S), parse)


def poll(
    group: str,
    name: str,
    *,
    wait_ms: int,
    max_bytes: int = DEFAULT_MAX_BYTES,
    binary: bool = False,
) -> Call[list[Record]]:
    """Read on. It moves positions, so it is never sent again: a lost answer is lost (rule F2)."""
    query = {"timeout": wait_ms, "max_bytes": max_bytes}
    request = Request(
        method="GET",
        path=path_of("consumers", group, "instances", name, "records", query=query),
        accept=V2_BINARY if binary else V2_JSON,
        timeout_s=wait_ms / 1000 + _NETWORK_MARGIN_S,
        repeatable=False,
    )

    def parse(answer: Answer) -> list[Record]:
        try:
            return _decode_records(answer.body)
        except msgspec.MsgspecError as error:
            msg = f"expected records, got {answer.body[:100]!r}"
            raise ProtocolError(msg) from error

    return Call(request, parse)


def commit(group: str, name: str, offsets: Mapping[Place, int]) -> Call[None]:
    """Commit the next offsets to read. A late older commit takes no newer one back."""
    return _done(_post(_path(group, name, "offsets"), _offsets(offsets), repeatable=True))


def committed(group: str, name: str, partitions: Iterable[Place]) -> Call[dict[Place, int]]:
    """Committed offsets (the next to read); partitions without one are left out."""

    def parse(answer: Answer) -> dict[Place, int]:
        rows = answer.json()["offsets"]
        return {(row["topic"], row["partition"]): row["offset"] for row in rows}

    rows = [{"topic": topic, "partition": number} for topic, number in partitions]
    request = Request(
        method="GET",
        path=_path(group, name, "offsets"),
        body=orjson.dumps({"partitions": rows}),
        content_type=V2,
        accept=V2,
        timeout_s=GROUP_TIMEOUT_S,
    )
    return Call(request, parse)


def seek(group: str, name: str, offsets: Mapping[Place, int]) -> Call[None]:
    """Read on at these offsets."""
    return _done(_post(_path(group, name, "positions"), _offsets(offsets), repeatable=True))


def seek_to_edge(group: str, name: str, partitions: Iterable[Place], edge: str) -> Call[None]:
    """Read on at the ``beginning`` or behind the ``end``."""
    body = {"partitions": [{"topic": topic, "partition": number} for topic, number in partitions]}
    path = path_of("consumers", group, "instances", name, "positions", edge)
    return _done(_post(path, body, repeatable=True))


# groups seen from outside


def list_groups(cluster_id: str) -> Call[list[GroupInfo]]:
    """Every group of the cluster."""
    return Call(_get(cluster_id), lambda answer: [_group(row) for row in answer.resources()])


def describe_group(cluster_id: str, group: str) -> Call[GroupInfo]:
    """One group; 404/40405 if there is none."""
    return Call(_get(cluster_id, group), lambda answer: _group(answer.json()))


def members(cluster_id: str, group: str) -> Call[list[GroupMember]]:
    """The live instances of a group."""

    def parse(answer: Answer) -> list[GroupMember]:
        return [
            GroupMember(
                member_id=row["consumer_id"],
                client_id=row["client_id"],
                member_epoch=row["member_epoch"],
            )
            for row in answer.resources()
        ]

    return Call(_get(cluster_id, group, "consumers"), parse)


def member_assignment(cluster_id: str, group: str, member_id: str) -> Call[list[Place]]:
    """The partitions a live instance owns."""

    def parse(answer: Answer) -> list[Place]:
        return [(row["topic_name"], row["partition_id"]) for row in answer.resources()]

    return Call(_get(cluster_id, group, "consumers", member_id, "assignments"), parse)


def group_offsets(cluster_id: str, group: str) -> Call[list[CommittedOffset]]:
    """Everything the group has committed, with its lag; empty for an unknown group."""

    def parse(answer: Answer) -> list[CommittedOffset]:
        return [
            CommittedOffset(
                topic=row["topic_name"],
                partition=row["partition_id"],
                offset=row["offset"],
                metadata=row["metadata"],
                lag=row["lag"],
            )
            for row in answer.resources()
        ]

    return Call(_get(cluster_id, group, "offsets"), parse)


def commit_group(
    cluster_id: str,
    group: str,
    offsets: Mapping[Place, int],
    *,
    member: tuple[str, int] | None = None,
) -> Call[None]:
    """Commit without an instance; while members live only as one of them: (member id, epoch)."""
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
        path=_v3(cluster_id, group, "offsets"),
        body=orjson.dumps(body),
        timeout_s=GROUP_TIMEOUT_S,
    )
    return _done(request)


def _path(group: str, name: str, what: str) -> str:
    return path_of("consumers", group, "instances", name, what)


def _v3(cluster_id: str, *parts: object) -> str:
    return path_of("v3", "clusters", cluster_id, "consumer-groups", *parts)


def _get(cluster_id: str, *parts: object) -> Request:
    return Request(method="GET", path=_v3(cluster_id, *parts), timeout_s=GROUP_TIMEOUT_S)


def _post(path: str, body: object, *, repeatable: bool | None = None) -> Request:
    return Request(
        method="POST",
        path=path,
        body=orjson.dumps(body),
        content_type=V2,
        accept=V2,
        timeout_s=GROUP_TIMEOUT_S,
        repeatable=repeatable,
    )


def _done(request: Request) -> Call[None]:
    return Call(request, lambda _: None)


def _offsets(offsets: Mapping[Place, int]) -> dict[str, Any]:
    return {
        "offsets": [
            {"topic": topic, "partition": number, "offset": offset}
            for (topic, number), offset in offsets.items()
        ]
    }


def _group(row: Mapping[str, Any]) -> GroupInfo:
    return GroupInfo(
        group=row["consumer_group_id"],
        state=row["state"],
        assignor=row["partition_assignor"],
        coordinator=int(row["coordinator"]["related"].rpartition("/")[2]),
        is_simple=row["is_simple"],
    )
