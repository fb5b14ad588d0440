"""Calls that move replicas, elect leaders and delete records of partitions.

Used by `quorumlog reassign`, `elect` and `topic trim`. Reading reassignments follows Confluent's
v3 API; the changing calls have quorumlog's own paths. Each function returns a `Call`; nothing here
does I/O.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import orjson

from http_api.client.admin import CREATE_TIMEOUT_S, PartitionInfo, partition_of, v3_path
from http_api.client.calls import Answer, Call, Request

ALL = "-"
"""Stands in a path for every topic or every partition."""
Place = tuple[str, int]
"""(topic, partition)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AddingReplica:
    """Progress of a replica that a reassignment adds.

    The offsets are None until the partition's leader has received a fetch from the replica.
    """

    broker_id: int
    log_end_offset: int | None
    lag: int | None
    is_in_sync: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class ReassignmentInfo:
    """A partition whose replicas are being moved.

    ``adding`` and ``removing`` are empty once the reassignment is complete.
    """

    topic: str
    partition: int
    replicas: tuple[int, ...]
    adding: tuple[int, ...]
    removing: tuple[int, ...]
    leader_end_offset: int | None
    progress: tuple[AddingReplica, ...]

    @property
    def is_under_way(self) -> bool:
        """Return True until every replica has been added or removed."""
        return bool(self.adding or self.removing)


@dataclass(frozen=True, slots=True, kw_only=True)
class ElectionInfo:
    """Result of a partition's election: the elected leader, or an error code and its text."""

    topic: str
    partition: int
    leader: int | None
    error_code: int | None
    error: str | None


def reassignments(cluster_id: str, topic: str | None = None) -> Call[list[ReassignmentInfo]]:
    """Return the call that lists the reassignments under way, of a topic or of the cluster."""
    request = Request(method="GET", path=_moves(cluster_id, topic or ALL))
    return Call(request, _parse_moves)


def reassign(
    cluster_id: str,
    replicas: Mapping[Place, Sequence[int] | None],
    *,
    validate_only: bool = False,
) -> Call[list[ReassignmentInfo]]:
    """Return the call that starts to move replicas; a value of None cancels a reassignment.

    ``replicas`` maps partitions to broker ids, the preferred leader first. The reassignments are
    started together: if any is refused, none is. They continue after the answer; `reassignments`
    reports their progress. ``validate_only`` starts none.
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
    """Return the call that cancels a partition's reassignment, all of a topic's, or all.

    Raises `ApiError` 404 if a single partition is named that is not being reassigned.
    """
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
    """Return the call that elects a partition's ``preferred`` or an ``unclean`` leader.

    Raises `ApiError` 50302 if no replica can be elected.
    """
    path = v3_path(cluster_id, "topics", topic, "partitions", partition, "leader:elect")
    return Call(_elect(path, election), lambda answer: partition_of(answer.json()))


def elect_leaders(
    cluster_id: str, topic: str | None = None, election: str = "preferred"
) -> Call[list[ElectionInfo]]:
    """Return the call that elects leaders for all partitions of a topic or of the cluster.

    The result has a row for each partition whose election was attempted.
    """

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
    """Return the call that deletes the records below ``before_offset`` (-1: all committed ones).

    The call's result is the partition's new log start offset.
    """
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
    if answer.status == 204:  # validate_only: nothing was started
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
