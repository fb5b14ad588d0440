"""Calls about the cluster, its brokers, its topics and their partitions.

Used by the command line, the Spark source, chaos tests and programs of users. Each function
returns a `Call`, which `transport.Client` or `async_client.AsyncClient` runs; nothing here does
I/O. Paths are those of the v3 API, and of v2 where v3 gives less (configs with a topic's layout).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import orjson

from http_api.client.calls import Answer, Call, ProtocolError, Request, path_of

CREATE_TIMEOUT_S = 60.0
"""Seconds that one attempt may take at a request which the controller has to carry out."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterInfo:
    """The cluster behind the URL that a client was given."""

    cluster_id: str
    controller_id: int | None
    """Node id of the active controller, as last known to the answering broker."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BrokerInfo:
    """A registered broker, the URL that clients use for it, and its share of the partitions."""

    broker_id: int
    url: str
    rack: str | None
    state: str
    """starting | unfenced | controlled_shutdown | fenced."""
    broker_epoch: int
    drain: str
    """none | leaders | replicas."""
    leader_count: int
    replica_count: int


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicInfo:
    """A topic, without its partitions."""

    name: str
    topic_id: str
    partitions_count: int
    replication_factor: int
    is_internal: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionInfo:
    """A partition with its leader, epochs and replicas. ``leader`` is None if it has none."""

    topic: str
    partition: int
    leader: int | None
    leader_epoch: int
    partition_epoch: int
    replicas: tuple[int, ...]
    """In order of preference: the first is the preferred leader."""
    isr: tuple[int, ...]
    elr: tuple[int, ...]
    """Eligible leader replicas: out of sync, and known to hold all committed records (KIP-966)."""
    adding: tuple[int, ...]
    removing: tuple[int, ...]
    last_known_leader: int | None

    @property
    def out_of_sync(self) -> tuple[int, ...]:
        """Replicas that are not in the ISR; empty for a healthy partition."""
        return tuple(broker for broker in self.replicas if broker not in self.isr)


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


def broker_of(row: Mapping[str, Any]) -> BrokerInfo:
    """Return the broker that a row of a v3 answer describes."""
    return BrokerInfo(
        broker_id=row["broker_id"],
        url=f"http://{_in_brackets(row['host'])}:{row['port']}",
        rack=row.get("rack"),
        state=row["state"],
        broker_epoch=row["broker_epoch"],
        drain=row["drain"],
        leader_count=row["leader_count"],
        replica_count=row["replica_count"],
    )


def partition_of(row: Mapping[str, Any]) -> PartitionInfo:
    """Return the partition that a row of a v3 answer describes."""
    return PartitionInfo(
        topic=row["topic_name"],
        partition=row["partition_id"],
        leader=_leader(row["leader"]),
        leader_epoch=row["leader_epoch"],
        partition_epoch=row["partition_epoch"],
        replicas=tuple(row["replica_ids"]),
        isr=tuple(row["isr"]),
        elr=tuple(row["elr"]),
        adding=tuple(row["adding_replicas"]),
        removing=tuple(row["removing_replicas"]),
        last_known_leader=row["last_known_leader"],
    )


def _topic(row: Mapping[str, Any]) -> TopicInfo:
    return TopicInfo(
        name=row["topic_name"],
        topic_id=row["topic_id"],
        partitions_count=row["partitions_count"],
        replication_factor=row["replication_factor"],
        is_internal=row["is_internal"],
    )


def _leader(link: Mapping[str, str] | None) -> int | None:
    """Return the broker id at the end of ``leader.related`` (``…/replicas/<id>``), or None."""
    return None if link is None else int(link["related"].rpartition("/")[2])


def _in_brackets(host: str) -> str:
    return f"[{host}]" if ":" in host else host
