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

from http_api.client.calls import (
    Answer,
    Call,
    Place,
    Request,
    path_of,
    read_list,
    read_nothing,
    read_one,
    v3_path,
)
from http_api.client.client_errors import ProtocolError
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
    path = v3_path(cluster_id, "brokers", query={"include": "all"} if include_all else None)
    return read_list(Request(method="GET", path=path), broker_of)


def topics(cluster_id: str) -> Call[list[TopicInfo]]:
    """Return the call that lists every topic, internal ones included."""
    return read_list(_get(cluster_id, "topics"), _topic)


def topic(cluster_id: str, name: str) -> Call[TopicInfo]:
    """Return the call that reads a topic; `ApiError` 40403 if it does not exist."""
    return read_one(_get(cluster_id, "topics", name), _topic)


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
    return read_one(_change("POST", v3_path(cluster_id, "topics"), body), _topic)


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
    return read_one(_change("PATCH", v3_path(cluster_id, "topics", name), body), _topic)


def delete_topic(cluster_id: str, name: str) -> Call[None]:
    """Return the call that deletes a topic and answers once the answering broker has removed it."""
    return read_nothing(_change("DELETE", v3_path(cluster_id, "topics", name)))


def topic_layout(name: str) -> Call[TopicLayout]:
    """Return the call that reads the replicas and the effective configs of a topic."""

    def parse(answer: Answer) -> TopicLayout:
        found = answer.json()
        replicas = (tuple(r["broker"] for r in row["replicas"]) for row in found["partitions"])
        return TopicLayout(name=found["name"], configs=found["configs"], replicas=tuple(replicas))

    return Call(Request(method="GET", path=path_of("topics", name)), parse)


def partitions(cluster_id: str, topic: str) -> Call[list[PartitionInfo]]:
    """Return the call that lists a topic's partitions with leaders, epochs, replicas and ISR."""
    return read_list(_get(cluster_id, "topics", topic, "partitions"), partition_of)


def partition(cluster_id: str, topic: str, number: int) -> Call[PartitionInfo]:
    """Return the call that reads a partition; `ApiError` 40401 or 40402 if it does not exist."""
    return read_one(_get(cluster_id, "topics", topic, "partitions", number), partition_of)


def partition_ids(topic: str) -> Call[list[int]]:
    """Return the call that lists the partition numbers of a topic, in ascending order."""

    def parse(answer: Answer) -> list[int]:
        return sorted(row["partition"] for row in _partition_rows(topic, answer))

    return Call(Request(method="GET", path=path_of("topics", topic, "partitions")), parse)


def _partition_rows(topic: str, answer: Answer) -> list[dict[str, Any]]:
    rows = answer.json()
    if not isinstance(rows, list):
        msg = f"expected the partitions of {topic}, got {answer.body[:100]!r}"
        raise ProtocolError(msg)
    return rows


def _get(cluster_id: str, *parts: object) -> Request:
    return Request(method="GET", path=v3_path(cluster_id, *parts))


def _change(method: str, path: str, body: Mapping[str, Any] | None = None) -> Request:
    """Return a request that the controller has to carry out."""
    text = None if body is None else orjson.dumps(body)
    return Request(method=method, path=path, body=text, timeout_s=CREATE_TIMEOUT_S)


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
    return read_one(_get(cluster_id, "brokers", broker_id), _details)


def drain(cluster_id: str, broker_id: int, scope: str) -> Call[BrokerDetails]:
    """Return the call that starts or ends the drain of a broker.

    ``scope`` is ``leaders`` or ``replicas``, the partitions to move away, or ``none``, which ends
    the drain. The moves continue after the answer; `broker` reports their progress.
    """
    path = v3_path(cluster_id, "brokers", f"{broker_id}:drain")
    return read_one(_change("POST", path, {"scope": scope}), _details)


def unregister(cluster_id: str, broker_id: int) -> Call[None]:
    """Return the call that removes a broker for good.

    Raises `ApiError` 40002 if the broker is live or holds replicas.
    """
    return read_nothing(_change("DELETE", v3_path(cluster_id, "brokers", broker_id)))


def features(cluster_id: str) -> Call[Features]:
    """Return the call that reads ``metadata.version`` and the levels that the brokers support."""
    return read_one(_get(cluster_id, "features"), features_of)


def upgrade(
    cluster_id: str, level: int | None = None, *, validate_only: bool = False
) -> Call[Features]:
    """Return the call that raises ``metadata.version`` to ``level``; the level is never lowered.

    None raises it to the highest level that every node supports. ``validate_only`` changes nothing.
    """
    body = {"metadata_version": level, "validate_only": validate_only}
    return read_one(_change("PATCH", v3_path(cluster_id, "features"), body), features_of)


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
    return read_list(_get(cluster_id, *place.path), config_of)


def config(cluster_id: str, place: ConfigPlace, name: str) -> Call[ConfigInfo]:
    """Return the call that reads a config; `ApiError` 404 if no config has this name."""
    return read_one(_get(cluster_id, *place.path, name), config_of)


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
    body = {"data": rows, "validate_only": validate_only}
    return read_nothing(_change("POST", v3_path(cluster_id, *place.path) + ":alter", body))


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
    parts = ("topics", topic or ALL, "partitions", ALL, "reassignment")
    return read_list(_get(cluster_id, *parts), reassignment_of)


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
    path = v3_path(cluster_id, "topics", ALL, "partitions", ALL, "reassignment")
    request = _change("POST", path, {"data": rows, "validate_only": validate_only})
    return Call(request, _parse_reassignments)


def cancel_reassignments(
    cluster_id: str, topic: str | None = None, partition: int | None = None
) -> Call[None]:
    """Return the call that cancels a partition's reassignment, all of a topic's, or all.

    Raises `ApiError` 404 if a single partition is named that is not being reassigned.
    """
    number = ALL if partition is None else partition
    path = v3_path(cluster_id, "topics", topic or ALL, "partitions", number, "reassignment")
    return read_nothing(_change("DELETE", path))


def elect_leader(
    cluster_id: str, topic: str, partition: int, election: str = "preferred"
) -> Call[PartitionInfo]:
    """Return the call that elects a partition's ``preferred`` or an ``unclean`` leader.

    Raises `ApiError` 50302 if no replica can be elected.
    """
    path = v3_path(cluster_id, "topics", topic, "partitions", partition, "leader:elect")
    return read_one(_change("POST", path, {"election": election}), partition_of)


def elect_leaders(
    cluster_id: str, topic: str | None = None, election: str = "preferred"
) -> Call[list[ElectionInfo]]:
    """Return the call that elects leaders for all partitions of a topic or of the cluster.

    The result has a row for each partition whose election was attempted.
    """
    path = v3_path(cluster_id, "topics", topic or ALL, "partitions", ALL, "leader:elect")
    return read_list(_change("POST", path, {"election": election}), _election)


def delete_records(cluster_id: str, topic: str, partition: int, before_offset: int) -> Call[int]:
    """Return the call that deletes the records below ``before_offset`` (-1: all committed ones).

    The call's result is the partition's new log start offset.
    """
    path = v3_path(cluster_id, "topics", topic, "partitions", f"{partition}:delete-records")
    request = _change("POST", path, {"before_offset": before_offset})
    return read_one(request, lambda row: int(row["log_start_offset"]))


def _election(row: Mapping[str, Any]) -> ElectionInfo:
    return ElectionInfo(
        topic=row["topic_name"],
        partition=row["partition_id"],
        leader=row["leader_id"],
        error_code=row["error_code"],
        error=row["error"],
    )


def _parse_reassignments(answer: Answer) -> list[ReassignmentInfo]:
    if answer.status == 204:  # validate_only: nothing was started
        return []
    return [reassignment_of(row) for row in answer.resources()]
