"""Cluster, topics and groups as ``list_topics`` and ``list_groups`` of confluent-kafka return them.

`read_cluster` asks for them with calls of the client; it needs four requests, and one more for each
topic. Used by the producer, the consumer and the admin client.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar
from urllib.parse import urlsplit

from typing_extensions import override

from http_api.client import admin
from http_api.client.calls import Call
from http_api.client.client_errors import ApiError
from http_api.client.compat.confluent_errors import KafkaError, kafka_error

T = TypeVar("T")

Ask = Callable[[Call[Any]], Any]
"""Makes a call and returns its result, within the time that the program gives."""
NO_LEADER = -1


class BrokerMetadata:
    """A broker by its id and address."""

    def __init__(self) -> None:
        self.id = -1
        self.host = ""
        self.port = -1

    @override
    def __repr__(self) -> str:
        return f"BrokerMetadata({self.id}, {self.host}:{self.port})"

    @override
    def __str__(self) -> str:
        return f"{self.host}:{self.port}/{self.id}"


class PartitionMetadata:
    """A partition with its leader and replicas by broker id; the leader is -1 if there is none."""

    def __init__(self) -> None:
        self.id = -1
        self.leader = NO_LEADER
        self.replicas: list[int] = []
        self.isrs: list[int] = []
        self.error: KafkaError | None = None

    @override
    def __repr__(self) -> str:
        if self.error is not None:
            return f"PartitionMetadata({self.id}, {self.error})"
        return f"PartitionMetadata({self.id})"

    @override
    def __str__(self) -> str:
        return f"{self.id}"


class TopicMetadata:
    """A topic with its partitions by number; ``error`` is set for one that does not exist."""

    def __init__(self) -> None:
        self.topic = ""
        self.partitions: dict[int, PartitionMetadata] = {}
        self.error: KafkaError | None = None

    @override
    def __repr__(self) -> str:
        count = len(self.partitions)
        if self.error is not None:
            return f"TopicMetadata({self.topic}, {count} partitions, {self.error})"
        return f"TopicMetadata({self.topic}, {count} partitions)"

    @override
    def __str__(self) -> str:
        return self.topic


class ClusterMetadata:
    """Brokers by id and topics by name, as the answering broker knows them."""

    def __init__(self) -> None:
        self.cluster_id: str | None = None
        self.controller_id = -1
        self.brokers: dict[int, BrokerMetadata] = {}
        self.topics: dict[str, TopicMetadata] = {}
        self.orig_broker_id = -1
        self.orig_broker_name: str | None = None

    @override
    def __repr__(self) -> str:
        return f"ClusterMetadata({self.cluster_id})"

    @override
    def __str__(self) -> str:
        return str(self.cluster_id)


class GroupMember:
    """A member of a group in `GroupMetadata`; ``metadata`` and ``assignment`` are empty here."""

    def __init__(self) -> None:
        self.id = ""
        self.client_id = ""
        self.client_host = ""
        self.metadata = b""
        self.assignment = b""


class GroupMetadata:
    """A group, as ``list_groups`` returns it."""

    def __init__(self) -> None:
        self.broker: BrokerMetadata | None = None
        self.id = ""
        self.error: KafkaError | None = None
        self.state = ""
        self.protocol_type = ""
        self.protocol = ""
        self.members: list[GroupMember] = []

    @override
    def __repr__(self) -> str:
        if self.error is not None:
            return f"GroupMetadata({self.id}, {self.error})"
        return f"GroupMetadata({self.id})"

    @override
    def __str__(self) -> str:
        return self.id


def read_cluster(ask: Ask, topic: str | None) -> ClusterMetadata:
    """Return the cluster with one topic, or with all but internal ones."""
    found = ClusterMetadata()
    cluster = ask(admin.cluster())
    found.cluster_id = cluster.cluster_id
    found.controller_id = -1 if cluster.controller_id is None else cluster.controller_id
    for one in ask(admin.brokers(cluster.cluster_id)):
        found.brokers[one.broker_id] = broker_metadata(one)
    if topic is not None:
        found.topics[topic] = _topic(ask, cluster.cluster_id, topic)
        return found
    for info in ask(admin.topics(cluster.cluster_id)):
        if not info.is_internal:
            found.topics[info.name] = _topic(ask, cluster.cluster_id, info.name)
    return found


def broker_metadata(info: admin.BrokerInfo) -> BrokerMetadata:
    """Return a broker with its address."""
    made = BrokerMetadata()
    address = urlsplit(info.url)
    made.id, made.host, made.port = info.broker_id, address.hostname or "", address.port or -1
    return made


def _topic(ask: Ask, cluster_id: str, name: str) -> TopicMetadata:
    made = TopicMetadata()
    made.topic = name
    try:
        rows = ask(admin.partitions(cluster_id, name))
    except ApiError as error:
        if error.status != 404:
            raise
        made.error = kafka_error(error)
        return made
    for row in sorted(rows, key=lambda one: int(one.partition)):
        partition = PartitionMetadata()
        partition.id = row.partition
        partition.leader = NO_LEADER if row.leader is None else row.leader
        partition.replicas, partition.isrs = list(row.replicas), list(row.isr)
        if row.leader is None:
            partition.error = KafkaError(KafkaError.LEADER_NOT_AVAILABLE)
        made.partitions[row.partition] = partition
    return made
