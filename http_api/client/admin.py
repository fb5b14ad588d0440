"""Calls about the cluster and its topics (v3, and v2 where v3 says less)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import orjson

from http_api.client.calls import Answer, Call, ProtocolError, Request, path_of

CREATE_TIMEOUT_S = 60.0


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterInfo:
    """The cluster that answers."""

    cluster_id: str
    controller_id: int | None
    """The active controller as the answering broker last heard."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BrokerInfo:
    """A registered broker and the URL clients use."""

    broker_id: int
    url: str
    rack: str | None


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
    """``leader`` is None while nobody leads."""

    topic: str
    partition: int
    leader: int | None
    leader_epoch: int
    replicas: tuple[int, ...]
    isr: tuple[int, ...]
    elr: tuple[int, ...]

    @property
    def out_of_sync(self) -> tuple[int, ...]:
        """Replicas that lag: empty when all is well."""
        return tuple(broker for broker in self.replicas if broker not in self.isr)


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicLayout:
    """A topic's replicas by partition, and its effective configs, as v2 tells them."""

    name: str
    configs: Mapping[str, str]
    replicas: tuple[tuple[int, ...], ...]


def cluster() -> Call[ClusterInfo]:
    """The one cluster behind the URL."""

    def parse(answer: Answer) -> ClusterInfo:
        rows = answer.resources()
        if len(rows) != 1:
            msg = f"expected one cluster, got {len(rows)}"
            raise ProtocolError(msg)
        found = rows[0]
        return ClusterInfo(cluster_id=found["cluster_id"], controller_id=found.get("controller_id"))

    return Call(Request(method="GET", path="/v3/clusters"), parse)


def brokers(cluster_id: str) -> Call[list[BrokerInfo]]:
    """The brokers, with the URLs clients use."""

    def parse(answer: Answer) -> list[BrokerInfo]:
        return [
            BrokerInfo(
                broker_id=row["broker_id"],
                url=f"http://{_in_brackets(row['host'])}:{row['port']}",
                rack=row.get("rack"),
            )
            for row in answer.resources()
        ]

    return Call(Request(method="GET", path=_v3(cluster_id, "brokers")), parse)


def topics(cluster_id: str) -> Call[list[TopicInfo]]:
    """Every topic, internal ones too."""

    def parse(answer: Answer) -> list[TopicInfo]:
        return [_topic(row) for row in answer.resources()]

    return Call(Request(method="GET", path=_v3(cluster_id, "topics")), parse)


def topic(cluster_id: str, name: str) -> Call[TopicInfo]:
    """One topic; `ApiError` 40403 if there is none."""
    path = _v3(cluster_id, "topics", name)
    return Call(Request(method="GET", path=path), lambda answer: _topic(answer.json()))


def create_topic(
    cluster_id: str,
    name: str,
    *,
    partitions: int | None = None,
    replication_factor: int | None = None,
    configs: Mapping[str, str] | None = None,
) -> Call[TopicInfo]:
    """Answers once every partition has a ready leader. None = the cluster's default."""
    body: dict[str, Any] = {"topic_name": name}
    if partitions is not None:
        body["partitions_count"] = partitions
    if replication_factor is not None:
        body["replication_factor"] = replication_factor
    if configs:
        body["configs"] = [{"name": key, "value": value} for key, value in configs.items()]
    request = Request(
        method="POST",
        path=_v3(cluster_id, "topics"),
        body=orjson.dumps(body),
        timeout_s=CREATE_TIMEOUT_S,
    )
    return Call(request, lambda answer: _topic(answer.json()))


def delete_topic(cluster_id: str, name: str) -> Call[None]:
    """Answers once the answering broker has lost the topic."""
    request = Request(
        method="DELETE", path=_v3(cluster_id, "topics", name), timeout_s=CREATE_TIMEOUT_S
    )
    return Call(request, lambda _: None)


def topic_layout(name: str) -> Call[TopicLayout]:
    """Replicas and effective configs of one topic."""

    def parse(answer: Answer) -> TopicLayout:
        found = answer.json()
        replicas = (tuple(r["broker"] for r in row["replicas"]) for row in found["partitions"])
        return TopicLayout(name=found["name"], configs=found["configs"], replicas=tuple(replicas))

    return Call(Request(method="GET", path=path_of("topics", name)), parse)


def partitions(cluster_id: str, layout: TopicLayout) -> Call[list[PartitionInfo]]:
    """Leaders, epochs and ISR of a topic, beside the replicas of ``layout``."""

    def parse(answer: Answer) -> list[PartitionInfo]:
        return [
            PartitionInfo(
                topic=layout.name,
                partition=row["partition_id"],
                leader=_leader(row["leader"]),
                leader_epoch=row["leader_epoch"],
                replicas=layout.replicas[row["partition_id"]],
                isr=tuple(row["isr"]),
                elr=tuple(row["elr"]),
            )
            for row in answer.resources()
            if row["partition_id"] < len(layout.replicas)
        ]

    path = _v3(cluster_id, "topics", layout.name, "partitions")
    return Call(Request(method="GET", path=path), parse)


def partition_ids(topic: str) -> Call[list[int]]:
    """The partitions a topic has."""

    def parse(answer: Answer) -> list[int]:
        return sorted(row["partition"] for row in answer.json())

    return Call(Request(method="GET", path=path_of("topics", topic, "partitions")), parse)


def _v3(cluster_id: str, *parts: object) -> str:
    return path_of("v3", "clusters", cluster_id, *parts)


def _topic(row: Mapping[str, Any]) -> TopicInfo:
    return TopicInfo(
        name=row["topic_name"],
        topic_id=row["topic_id"],
        partitions_count=row["partitions_count"],
        replication_factor=row["replication_factor"],
        is_internal=row["is_internal"],
    )


def _leader(link: Mapping[str, str] | None) -> int | None:
    """``leader.related`` ends in ``/replicas/<id>``."""
    return None if link is None else int(link["related"].rpartition("/")[2])


def _in_brackets(host: str) -> str:
    return f"[{host}]" if ":" in host else host
