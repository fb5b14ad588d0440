"""JSON shapes of the v3 door (Confluent's admin API): a resource names itself by URL and crn."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from http_api.contract.v2 import INTERNAL_TOPICS

if TYPE_CHECKING:
    from collections.abc import Sequence

JsonObject = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Links:
    """URLs and crns under one cluster, as the answering broker is advertised."""

    base_url: str
    """Without a slash at the end: ``http://127.0.0.1:8082``."""
    cluster_id: str

    def url(self, *path: object) -> str:
        """The URL of something in the cluster."""
        return "/".join((f"{self.base_url}/v3/clusters/{self.cluster_id}", *map(str, path)))

    def related(self, *path: object) -> JsonObject:
        """A link to something in the cluster."""
        return {"related": self.url(*path)}

    def metadata(self, crn: str, *path: object) -> JsonObject:
        """What every resource says of itself; ``crn`` is ``topic=t/partition=0`` or empty."""
        name = f"crn:///kafka={self.cluster_id}" + (f"/{crn}" if crn else "")
        return {"self": self.url(*path), "resource_name": name}

    def collection(self, kind: str, data: list[JsonObject], *path: object) -> JsonObject:
        """A list of resources. Never cut into pages, so ``next`` is always null."""
        return {
            "kind": f"{kind}List",
            "metadata": {"self": self.url(*path), "next": None},
            "data": data,
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionFacts:
    """What the image says of a partition, in the words of the API."""

    partition_id: int
    leader: int | None
    leader_epoch: int
    partition_epoch: int
    replicas: Sequence[int]
    """In order of preference."""
    isr: Sequence[int]
    elr: Sequence[int]
    adding: Sequence[int] = ()
    removing: Sequence[int] = ()
    last_known_leader: int | None = None

    @property
    def out_of_sync(self) -> list[int]:
        """Replicas that lag: empty when all is well."""
        return [replica for replica in self.replicas if replica not in self.isr]


@dataclass(frozen=True, slots=True, kw_only=True)
class BrokerFacts:
    """What the image says of a registered broker."""

    broker_id: int
    http: str
    """Its advertised ``host:port``."""
    rack: str | None
    state: str
    broker_epoch: int
    drain: str
    leader_count: int
    replica_count: int


def clusters(base_url: str, data: list[JsonObject]) -> JsonObject:
    """The list of clusters: always one."""
    return {
        "kind": "KafkaClusterList",
        "metadata": {"self": f"{base_url}/v3/clusters", "next": None},
        "data": data,
    }


def cluster(links: Links, controller_id: int | None) -> JsonObject:
    """``controller`` is a link to a broker in Kafka; ours is none, so its id stands beside it."""
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
    """A broker, with its state and its share of the partitions beside Confluent's fields."""
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
    """A topic."""
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
    """A partition, with our epochs, replicas and ISR beside Confluent's fields."""
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
    """A replica of a partition. ``is_eligible``: in sync, or known to hold as much (KIP-966)."""
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
    """Both ends of a partition."""
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
    """Where a partition begins, now that records were deleted."""
    path = ("topics", topic_name, "partitions", partition_id)
    return {
        "kind": "KafkaPartitionLogStart",
        "metadata": links.metadata(f"topic={topic_name}/partition={partition_id}", *path),
        "cluster_id": links.cluster_id,
        "topic_name": topic_name,
        "partition_id": partition_id,
        "log_start_offset": offset,
    }
