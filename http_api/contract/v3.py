"""JSON shapes of the v3 API (Confluent's admin API) for clusters, brokers, topics and partitions.

The routes of `http_api.server.routes.v3` fill the facts below from the metadata image, and the
functions turn them into resources. Each resource names itself by its URL and its crn (Confluent
resource name), both made by `Links`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from http_api.contract.v2 import INTERNAL_TOPICS

if TYPE_CHECKING:
    from collections.abc import Sequence

JsonObject = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Links:
    """URLs and crns below the cluster, at the advertised address of the answering broker."""

    base_url: str
    """URL without a slash at the end, like ``http://127.0.0.1:8082``."""
    cluster_id: str

    def url(self, *path: object) -> str:
        """Return the URL of a resource of the cluster."""
        return "/".join((f"{self.base_url}/v3/clusters/{self.cluster_id}", *map(str, path)))

    def related(self, *path: object) -> JsonObject:
        """Return a link to a resource of the cluster."""
        return {"related": self.url(*path)}

    def metadata(self, crn: str, *path: object) -> JsonObject:
        """Return a resource's ``metadata``; ``crn`` is like ``topic=t/partition=0``, or empty."""
        name = f"crn:///kafka={self.cluster_id}" + (f"/{crn}" if crn else "")
        return {"self": self.url(*path), "resource_name": name}

    def collection(self, kind: str, data: list[JsonObject], *path: object) -> JsonObject:
        """Return a list of resources. There are no pages, so ``next`` is always null."""
        return {
            "kind": f"{kind}List",
            "metadata": {"self": self.url(*path), "next": None},
            "data": data,
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionFacts:
    """Properties of a partition in the metadata image, named as in the API."""

    partition_id: int
    leader: int | None
    leader_epoch: int
    partition_epoch: int
    replicas: Sequence[int]
    """Broker ids in order of preference; the first is the preferred leader."""
    isr: Sequence[int]
    elr: Sequence[int]
    adding: Sequence[int] = ()
    removing: Sequence[int] = ()
    last_known_leader: int | None = None

    @property
    def out_of_sync(self) -> list[int]:
        """Replicas that are not in the ISR; empty for a healthy partition."""
        return [replica for replica in self.replicas if replica not in self.isr]


@dataclass(frozen=True, slots=True, kw_only=True)
class BrokerFacts:
    """Properties of a registered broker in the metadata image."""

    broker_id: int
    http: str
    """Advertised ``host:port`` of the broker's HTTP listener."""
    rack: str | None
    state: str
    broker_epoch: int
    drain: str
    leader_count: int
    replica_count: int


def clusters(base_url: str, data: list[JsonObject]) -> JsonObject:
    """Return the list of clusters, which always has one entry."""
    return {
        "kind": "KafkaClusterList",
        "metadata": {"self": f"{base_url}/v3/clusters", "next": None},
        "data": data,
    }


def cluster(links: Links, controller_id: int | None) -> JsonObject:
    """Return the cluster.

    Confluent's ``controller`` links to a broker; here controllers are no brokers, so the link is
    null and ``controller_id`` is added.
    """
    return {
        "kind": "KafkaCluster",
        "metadata": links.metadata(""),
        "cluster_id": links.cluster_id,
        "controller": None,
        "controller_id": controller_id,
        "acls": links.related("acls"),
        "brokers": links.related("brokers"),
        "broker_configs": links.related("broker-configs"),
        "consumer_groups": links.related("consumer-groups"),
        "topics": links.related("topics"),
        "partition_reassignments": links.related("topics", "-", "partitions", "-", "reassignment"),
    }


def broker(links: Links, facts: BrokerFacts) -> JsonObject:
    """Return a broker: Confluent's fields, and its state and share of the partitions."""
    host, _, port = facts.http.rpartition(":")
    path = ("brokers", facts.broker_id)
    return {
        "kind": "KafkaBroker",
        "metadata": links.metadata(f"broker={facts.broker_id}", *path),
        "cluster_id": links.cluster_id,
        "broker_id": facts.broker_id,
        "host": host.strip("[]"),
        "port": int(port),
        "rack": facts.rack,
        "configs": links.related(*path, "configs"),
        "partition_replicas": links.related(*path, "partition-replicas"),
        "state": facts.state,
        "broker_epoch": facts.broker_epoch,
        "drain": facts.drain,
        "leader_count": facts.leader_count,
        "replica_count": facts.replica_count,
    }


def topic(
    links: Links, name: str, topic_id: str, replication_factor: int, partitions_count: int
) -> JsonObject:
    """Return a topic."""
    path = ("topics", name)
    return {
        "kind": "KafkaTopic",
        "metadata": links.metadata(f"topic={name}", *path),
        "cluster_id": links.cluster_id,
        "topic_name": name,
        "topic_id": topic_id,
        "is_internal": name in INTERNAL_TOPICS,
        "replication_factor": replication_factor,
        "partitions_count": partitions_count,
        "partitions": links.related(*path, "partitions"),
        "configs": links.related(*path, "configs"),
        "partition_reassignments": links.related(*path, "partitions", "-", "reassignment"),
    }


def partition(links: Links, topic_name: str, facts: PartitionFacts) -> JsonObject:
    """Return a partition: Confluent's fields, and our epochs, replicas and ISR."""
    path = ("topics", topic_name, "partitions", facts.partition_id)
    return {
        "kind": "KafkaPartition",
        "metadata": links.metadata(f"topic={topic_name}/partition={facts.partition_id}", *path),
        "cluster_id": links.cluster_id,
        "topic_name": topic_name,
        "partition_id": facts.partition_id,
        "leader": (
            None if facts.leader is None else links.related(*path, "replicas", facts.leader)
        ),
        "replicas": links.related(*path, "replicas"),
        "reassignment": links.related(*path, "reassignment"),
        "leader_epoch": facts.leader_epoch,
        "partition_epoch": facts.partition_epoch,
        "isr": list(facts.isr),
        "elr": list(facts.elr),
        "replica_ids": list(facts.replicas),
        "out_of_sync": facts.out_of_sync,
        "adding_replicas": list(facts.adding),
        "removing_replicas": list(facts.removing),
        "last_known_leader": facts.last_known_leader,
    }


def replica(links: Links, topic_name: str, facts: PartitionFacts, broker_id: int) -> JsonObject:
    """Return a replica of a partition; ``is_eligible`` if it is in the ISR or the ELR (KIP-966)."""
    crn = f"topic={topic_name}/partition={facts.partition_id}/replica={broker_id}"
    path = ("topics", topic_name, "partitions", facts.partition_id, "replicas", broker_id)
    return {
        "kind": "KafkaReplica",
        "metadata": links.metadata(crn, *path),
        "cluster_id": links.cluster_id,
        "topic_name": topic_name,
        "partition_id": facts.partition_id,
        "broker_id": broker_id,
        "is_leader": broker_id == facts.leader,
        "is_in_sync": broker_id in facts.isr,
        "is_eligible": broker_id in facts.isr or broker_id in facts.elr,
        "broker": links.related("brokers", broker_id),
    }


def partition_offsets(
    links: Links, topic_name: str, partition_id: int, earliest: int, latest: int
) -> JsonObject:
    """Return both ends of a partition."""
    path = ("topics", topic_name, "partitions", partition_id, "offset")
    return {
        "kind": "KafkaPartitionWithOffsets",
        "metadata": links.metadata(f"topic={topic_name}/partition={partition_id}", *path),
        "cluster_id": links.cluster_id,
        "topic_name": topic_name,
        "partition_id": partition_id,
        "earliest_offset": earliest,
        "latest_offset": latest,
    }


def log_start(links: Links, topic_name: str, partition_id: int, offset: int) -> JsonObject:
    """Return a partition's log start offset after records were deleted."""
    path = ("topics", topic_name, "partitions", partition_id)
    return {
        "kind": "KafkaPartitionLogStart",
        "metadata": links.metadata(f"topic={topic_name}/partition={partition_id}", *path),
        "cluster_id": links.cluster_id,
        "topic_name": topic_name,
        "partition_id": partition_id,
        "log_start_offset": offset,
    }
