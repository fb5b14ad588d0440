"""Calls that move replicas and leaders (v3; the writing ones are our own paths)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import orjson

from http_api.client.admin import CREATE_TIMEOUT_S, PartitionInfo, partition_of, v3_path
from http_api.client.calls import Answer, Call, Request

ALL = "-"
Place = tuple[str, int]
"""(topic, partition)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AddingReplica:
    """How far a replica on its way in is; None: its leader has not heard of it yet."""

    broker_id: int
    log_end_offset: int | None
    lag: int | None
    is_in_sync: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class ReassignmentInfo:
    """A partition whose replicas move, or just moved: then nothing is added or removed."""

    topic: str
    partition: int
    replicas: tuple[int, ...]
    adding: tuple[int, ...]
    removing: tuple[int, ...]
    leader_end_offset: int | None
    progress: tuple[AddingReplica, ...]

    @property
    def is_under_way(self) -> bool:
        """Whether it goes on."""
        return bool(self.adding or self.removing)


@dataclass(frozen=True, slots=True, kw_only=True)
class ElectionInfo:
    """What became of one partition's election."""

    topic: str
    partition: int
    leader: int | None
    error_code: int | None
    error: str | None


def reassignments(cluster_id: str, topic: str | None = None) -> Call[list[ReassignmentInfo]]:
    """All that are under way, of one topic or of the cluster."""
    request = Request(method="GET", path=_moves(cluster_id, topic or ALL))
    return Call(request, _parse_moves)


def reassign(
    cluster_id: str,
    replicas: Mapping[Place, Sequence[int] | None],
    *,
    validate_only: bool = False,
) -> Call[list[ReassignmentInfo]]:
    """Start to move replicas; None cancels. All, or none where one is refused.

    They go on moving after the answer; `reassignments` tells how far.
    """
    rows = [
        {
            "topic_name": topic,
            "partition_id": number,
            "replicas": None if ids is None else list(ids),
        }
        for (topic, number), ids in replicas.items()
    ]
    request = Request(
        method="POST",
        path=_moves(cluster_id, ALL),
        body=orjson.dumps({"data": rows, "validate_only": validate_only}),
        timeout_s=CREATE_TIMEOUT_S,
    )
    return Call(request, _parse_moves)


def cancel_reassignments(
    cluster_id: str, topic: str | None = None, partition: int | None = None
) -> Call[None]:
    """Cancel one (`ApiError` 404 if it is not under way), a topic's, or all."""
    path = v3_path(
        cluster_id,
        *("topics", topic or ALL, "partitions"),
        *(ALL if partition is None else partition, "reassignment"),
    )
    request = Request(method="DELETE", path=path, timeout_s=CREATE_TIMEOUT_S)
    return Call(request, lambda _: None)


def elect_leader(
    cluster_id: str, topic: str, partition: int, election: str = "preferred"
) -> Call[PartitionInfo]:
    """Elect a ``preferred`` or an ``unclean`` leader; `ApiError` 50302 where nobody can be."""
    path = v3_path(cluster_id, "topics", topic, "partitions", partition, "leader:elect")
    return Call(_elect(path, election), lambda answer: partition_of(answer.json()))


def elect_leaders(
    cluster_id: str, topic: str | None = None, election: str = "preferred"
) -> Call[list[ElectionInfo]]:
    """Elect for every partition of a topic or of the cluster; a row for each that was tried."""

    def parse(answer: Answer) -> list[ElectionInfo]:
        return [
            ElectionInfo(
                topic=row["topic_name"],
                partition=row["partition_id"],
                leader=row["leader_id"],
                error_code=row["error_code"],
                error=row["error"],
            )
            for row in answer.resources()
        ]

    path = v3_path(cluster_id, "topics", topic or ALL, "partitions", ALL, "leader:elect")
    return Call(_elect(path, election), parse)


def delete_records(cluster_id: str, topic: str, partition: int, before_offset: int) -> Call[int]:
    """Delete what lies below an offset (-1: all that is committed); where the partition begins."""
    path = v3_path(cluster_id, "topics", topic, "partitions", f"{partition}:delete-records")
    body = orjson.dumps({"before_offset": before_offset})
    request = Request(method="POST", path=path, body=body, timeout_s=CREATE_TIMEOUT_S)
    return Call(request, lambda answer: int(answer.json()["log_start_offset"]))


def _elect(path: str, election: str) -> Request:
    body = orjson.dumps({"election": election})
    return Request(method="POST", path=path, body=body, timeout_s=CREATE_TIMEOUT_S)


def _moves(cluster_id: str, topic: str) -> str:
    return v3_path(cluster_id, "topics", topic, "partitions", ALL, "reassignment")


def _parse_moves(answer: Answer) -> list[ReassignmentInfo]:
    if answer.status == 204:  # only asked whether it could be
        return []
    return [_move(row) for row in answer.resources()]


def _move(row: Mapping[str, Any]) -> ReassignmentInfo:
    return ReassignmentInfo(
        topic=row["topic_name"],
        partition=row["partition_id"],
        replicas=tuple(row["replica_ids"]),
        adding=tuple(row["adding_replicas"]),
        removing=tuple(row["removing_replicas"]),
        leader_end_offset=row["leader_end_offset"],
        progress=tuple(
            AddingReplica(
                broker_id=one["broker_id"],
                log_end_offset=one["log_end_offset"],
                lag=one["lag"],
                is_in_sync=one["is_in_sync"],
            )
            for one in row["progress"]
        ),
    )
