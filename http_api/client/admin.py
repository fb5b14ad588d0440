"""Calls that administer a cluster: its brokers, topics, partitions, configs and features.

Used by the command line, the Spark source, chaos tests and programs of users. Each function
returns a `Call`, which `transport.Client` or `async_client.AsyncClient` runs; nothing here does
I/O. In order: cluster and topics; brokers, drains and ``metadata.version``; configs, whose
resource a `ConfigPlace` names; reassignments, elections and deletion of records. Paths are those of
Confluent's v3 API or extend it, and of v2 where v3 gives less (a topic's layout).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import orjson

from http_api.client.calls import Answer, Call, Place, ProtocolError, Request, path_of
from http_api.contract.resources import (
    AddingReplica,
    BrokerInfo,
    ConfigInfo,
    DrainProgress,
    Features,
    PartitionInfo,
    ReassignmentInfo,
    StuckPartition,
    broker_of,
    config_of,
    features_of,
    partition_of,
    progress_of,
    reassignment_of,
)

__all__ = [
    "AddingReplica",
    "BrokerInfo",
    "ConfigInfo",
    "DrainProgress",
    "Features",
    "PartitionInfo",
    "Place",
    "ReassignmentInfo",
    "StuckPartition",
]  # of the contract and of `calls`, for users of these calls

CREATE_TIMEOUT_S = 60.0
"""Seconds that one attempt may take at a request which the controller has to carry out."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterInfo:
    """The cluster behind the URL that a client was given."""

    cluster_id: str
    controller_id: int | None
    """Node id of the active controller, as last known to the answering broker."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicInfo:
    """A topic, without its partitions."""

    name: str
    topic_id: str
    partitions_count: int
    replication_factor: int
    is_internal: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicLayout:
    """A topic's replicas by partition and its effective configs, as the v2 API shows them."""

    name: str
    configs: Mapping[str, str]
    replicas: tuple[tuple[int, ...], ...]


def cluster() -> Call[ClusterInfo]:
    """Return the call that reads which cluster answers; `ProtocolError` unless exactly one does."""

    def parse(answer: Answer) -> ClusterInfo:
        rows = answer.resources()
        if len(rows) != 1:
            msg = f"expected one cluster, got {len(rows)}"
            raise ProtocolError(msg)
        found = rows[0]
        return ClusterInfo(cluster_id=found["cluster_id"], controller_id=found.get("controller_id"))

    return Call(Request(method="GET", path="/v3/clusters"), parse)


def brokers(cluster_id: str, *, include_all: bool = False) -> Call[list[BrokerInfo]]:
    """Return the call that lists the live brokers, or all registered ones with ``include_all``."""
    query = {"include": "all"} if include_all else None
    path = v3_path(cluster_id, "brokers", query=query)
    request = Request(method="GET", path=path)
    return Call(request, lambda answer: [broker_of(row) for row in answer.resources()])


def topics(cluster_id: str) -> Call[list[TopicInfo]]:
    """Return the call that lists every topic, internal ones included."""

    def parse(answer: Answer) -> list[TopicInfo]:
        return [_topic(row) for row in answer.resources()]

    return Call(Request(method="GET", path=v3_path(cluster_id, "topics")), parse)


def topic(cluster_id: str, name: str) -> Call[TopicInfo]:
    """Return the call that reads a topic; `ApiError` 40403 if it does not exist."""
    path = v3_path(cluster_id, "topics", name)
    return Call(Request(method="GET", path=path), lambda answer: _topic(answer.json()))


def create_topic(
    cluster_id: str,
    name: str,
    *,
    partitions: int | None = None,
    replication_factor: int | None = None,
    configs: Mapping[str, str] | None = None,
    assignments: Sequence[Sequence[int]] | None = None,
    validate_only: bool = False,
) -> Call[TopicInfo]:
    """Return the call that creates a topic and answers once each partition has a ready leader.

    Args:
        cluster_id: The cluster's id, as `cluster` returns it.
        name: The topic's name.
        partitions: Number of partitions; None takes the cluster's default.
        replication_factor: Replicas of each partition; None takes the cluster's default.
        configs: Configs of the topic, by name.
        assignments: Broker ids of each partition's replicas, in place of the two numbers.
        validate_only: Check the request and change nothing.
    """
    body: dict[str, Any] = {"topic_name": name}
    if partitions is not None:
        body["partitions_count"] = partitions
    if replication_factor is not None:
        body["replication_factor"] = replication_factor
    if configs:
        body["configs"] = [{"name": key, "value": value} for key, value in configs.items()]
    if assignments:
        body["replicas_assignments"] = {str(at): list(ids) for at, ids in enumerate(assignments)}
    if validate_only:
        body["validate_only"] = True
    request = Request(
        method="POST",
        path=v3_path(cluster_id, "topics"),
        body=orjson.dumps(body),
        timeout_s=CREATE_TIMEOUT_S,
    )
    return Call(request, lambda answer: _topic(answer.json()))


def add_partitions(
    cluster_id: str,
    name: str,
    count: int,
    *,
    assignments: Mapping[int, Sequence[int]] | None = None,
    validate_only: bool = False,
) -> Call[TopicInfo]:
    """Return the call that grows a topic to ``count`` partitions in all.

    The broker answers once each new partition has a ready leader. ``assignments`` maps a new
    partition's number to the broker ids of its replicas; with ``validate_only`` nothing changes.
    """
    body: dict[str, Any] = {"partitions_count": count, "validate_only": validate_only}
    if assignments:
        body["replicas_assignments"] = {str(at): list(ids) for at, ids in assignments.items()}
    request = Request(
        method="PATCH",
        path=v3_path(cluster_id, "topics", name),
        body=orjson.dumps(body),
        timeout_s=CREATE_TIMEOUT_S,
    )
    return Call(request, lambda answer: _topic(answer.json()))


def delete_topic(cluster_id: str, name: str) -> Call[None]:
    """Return the call that deletes a topic and answers once the answering broker has removed it."""
    request = Request(
        method="DELETE", path=v3_path(cluster_id, "topics", name), timeout_s=CREATE_TIMEOUT_S
    )
    return Call(request, lambda _: None)


def topic_layout(name: str) -> Call[TopicLayout]:
    """Return the call that reads the replicas and the effective configs of a topic."""

    def parse(answer: Answer) -> TopicLayout:
        found = answer.json()
        replicas = (tuple(r["broker"] for r in row["replicas"]) for row in found["partitions"])
        return TopicLayout(name=found["name"], configs=found["configs"], replicas=tuple(replicas))

    return Call(Request(method="GET", path=path_of("topics", name)), parse)


def partitions(cluster_id: str, topic: str) -> Call[list[PartitionInfo]]:
    """Return the call that lists a topic's partitions with leaders, epochs, replicas and ISR."""
    path = v3_path(cluster_id, "topics", topic, "partitions")
    request = Request(method="GET", path=path)
    return Call(request, lambda answer: [partition_of(row) for row in answer.resources()])


def partition(cluster_id: str, topic: str, number: int) -> Call[PartitionInfo]:
    """Return the call that reads a partition; `ApiError` 40401 or 40402 if it does not exist."""
    path = v3_path(cluster_id, "topics", topic, "partitions", number)
    return Call(Request(method="GET", path=path), lambda answer: partition_of(answer.json()))


def partition_ids(topic: str) -> Call[list[int]]:
    """Return the call that lists the partition numbers of a topic, in ascending order."""

    def parse(answer: Answer) -> list[int]:
        return sorted(row["partition"] for row in answer.json())

    return Call(Request(method="GET", path=path_of("topics", topic, "partitions")), parse)


def v3_path(cluster_id: str, *parts: object, query: Mapping[str, object] | None = None) -> str:
    """Return the path of a resource below the cluster in the v3 API."""
    return path_of("v3", "clusters", cluster_id, *parts, query=query)


def _topic(row: Mapping[str, Any]) -> TopicInfo:
    return TopicInfo(
        name=row["topic_name"],
        topic_id=row["topic_id"],
        partitions_count=row["partitions_count"],
        replication_factor=row["replication_factor"],
        is_internal=row["is_internal"],
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class BrokerDetails:
    """A registered broker; ``progress`` is None unless the broker is being drained."""

    info: BrokerInfo
    progress: DrainProgress | None


def broker(cluster_id: str, broker_id: int) -> Call[BrokerDetails]:
    """Return the call that reads a registered broker, live or not; `ApiError` 404 if unknown."""
    request = Request(method="GET", path=v3_path(cluster_id, "brokers", broker_id))
    return Call(request, lambda answer: _details(answer.json()))


def drain(cluster_id: str, broker_id: int, scope: str) -> Call[BrokerDetails]:
    """Return the call that starts or ends the drain of a broker.

    ``scope`` is ``leaders`` or ``replicas``, the partitions to move away, or ``none``, which ends
    the drain. The moves continue after the answer; `broker` reports their progress.
    """
    request = Request(
        method="POST",
        path=v3_path(cluster_id, "brokers", f"{broker_id}:drain"),
        body=orjson.dumps({"scope": scope}),
        timeout_s=CREATE_TIMEOUT_S,
    )
    return Call(request, lambda answer: _details(answer.json()))


def unregister(cluster_id: str, broker_id: int) -> Call[None]:
    """Return the call that removes a broker for good.

    Raises `ApiError` 40002 if the broker is live or holds replicas.
    """
    request = Request(
        method="DELETE",
        path=v3_path(cluster_id, "brokers", broker_id),
        timeout_s=CREATE_TIMEOUT_S,
    )
    return Call(request, lambda _: None)


def features(cluster_id: str) -> Call[Features]:
    """Return the call that reads ``metadata.version`` and the levels that the brokers support."""
    request = Request(method="GET", path=v3_path(cluster_id, "features"))
    return Call(request, lambda answer: features_of(answer.json()))


def upgrade(
    cluster_id: str, level: int | None = None, *, validate_only: bool = False
) -> Call[Features]:
    """Return the call that raises ``metadata.version`` to ``level``; the level is never lowered.

    None raises it to the highest level that every node supports. ``validate_only`` changes nothing.
    """
    request = Request(
        method="PATCH",
        path=v3_path(cluster_id, "features"),
        body=orjson.dumps({"metadata_version": level, "validate_only": validate_only}),
        timeout_s=CREATE_TIMEOUT_S,
    )
    return Call(request, lambda answer: features_of(answer.json()))


def _details(row: Mapping[str, Any]) -> BrokerDetails:
    progress = row.get("drain_progress")
    return BrokerDetails(
        info=broker_of(row), progress=None if progress is None else progress_of(progress)
    )


@dataclass(frozen=True, slots=True)
class ConfigPlace:
    """Resource that owns configs: a topic, a broker, or the cluster.

    Made by `of_topic` and `of_broker`, or taken from `OF_BROKERS` and `OF_CLUSTER`.
    """

    path: tuple[str | int, ...]


def of_topic(name: str) -> ConfigPlace:
    """Return the place of a topic's configs."""
    return ConfigPlace(("topics", name, "configs"))


def of_broker(broker_id: int) -> ConfigPlace:
    """Return the place of a broker's configs."""
    return ConfigPlace(("brokers", broker_id, "configs"))


OF_BROKERS = ConfigPlace(("brokers", "-", "configs"))
"""Configs of every live broker; this place can only be read."""
OF_CLUSTER = ConfigPlace(("broker-configs",))
"""Configs that hold for all brokers, and defaults for topics."""


def configs(cluster_id: str, place: ConfigPlace) -> Call[list[ConfigInfo]]:
    """Return the call that lists all configs in force at a place."""
    request = Request(method="GET", path=v3_path(cluster_id, *place.path))
    return Call(request, lambda answer: [config_of(row) for row in answer.resources()])


def config(cluster_id: str, place: ConfigPlace, name: str) -> Call[ConfigInfo]:
    """Return the call that reads a config; `ApiError` 404 if no config has this name."""
    request = Request(method="GET", path=v3_path(cluster_id, *place.path, name))
    return Call(request, lambda answer: config_of(answer.json()))


def alter_configs(
    cluster_id: str,
    place: ConfigPlace,
    changes: Mapping[str, str | None],
    *,
    validate_only: bool = False,
) -> Call[None]:
    """Return the call that sets each config to its value, or resets it where the value is None.

    The changes are made together: if any is refused, none is made. ``validate_only`` makes none.
    """
    rows: list[dict[str, Any]] = [
        {"name": name, "operation": "DELETE"}
        if value is None
        else {"name": name, "operation": "SET", "value": value}
        for name, value in changes.items()
    ]
    request = Request(
        method="POST",
        path=v3_path(cluster_id, *place.path) + ":alter",
        body=orjson.dumps({"data": rows, "validate_only": validate_only}),
        timeout_s=CREATE_TIMEOUT_S,
    )
    return Call(request, _ignore_answer)


def _ignore_answer(_: Answer) -> None:
    return None


ALL = "-"
"""Stands in a path for every topic or every partition."""


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
    request = Request(method="GET", path=_reassignments_path(cluster_id, topic or ALL))
    return Call(request, _parse_reassignments)


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
        path=_reassignments_path(cluster_id, ALL),
        body=orjson.dumps({"data": rows, "validate_only": validate_only}),
        timeout_s=CREATE_TIMEOUT_S,
    )
    return Call(request, _parse_reassignments)


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


def _reassignments_path(cluster_id: str, topic: str) -> str:
    return v3_path(cluster_id, "topics", topic, "partitions", ALL, "reassignment")


def _parse_reassignments(answer: Answer) -> list[ReassignmentInfo]:
    if answer.status == 204:  # validate_only: nothing was started
        return []
    return [reassignment_of(row) for row in answer.resources()]
