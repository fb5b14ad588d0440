"""JSON shapes of the v3 API (Confluent's admin API), without groups and quorum.

The routes of `http_api.server.routes.v3` fill the dataclasses of `contract.resources` from the
metadata image, and the functions below turn them into resources. Each resource names itself by its
URL and its crn (Confluent resource name), both made by `Links`. In order: clusters, brokers,
topics, partitions; moves of replicas, elections, features, drains; configs, of which ``meaning``,
``expected`` and ``update`` (live | restart) extend Confluent's fields; the cluster's health.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from raft_metadata.common.internal_topics import INTERNAL_TOPICS

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from http_api.contract.resources import (
        BrokerInfo,
        ConfigInfo,
        DrainProgress,
        Features,
        PartitionInfo,
        ReassignmentInfo,
    )


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

    def resource(self, kind: str, crn: str, *path: object) -> JsonObject:
        """Return what every resource begins with; ``crn`` is like ``topic=t/partition=0``."""
        name = f"crn:///kafka={self.cluster_id}" + (f"/{crn}" if crn else "")
        return {
            "kind": kind,
            "metadata": {"self": self.url(*path), "resource_name": name},
            "cluster_id": self.cluster_id,
        }

    def collection(
        self, kind: str, data: list[JsonObject], *path: object, next_url: str | None = None
    ) -> JsonObject:
        """Return a list of resources; ``next_url`` is that of the next page, None at the end."""
        return {
            "kind": f"{kind}List",
            "metadata": {"self": self.url(*path), "next": next_url},
            "data": data,
        }


def clusters(base_url: str, data: list[JsonObject]) -> JsonObject:
    """Return the list of clusters, which always has one entry."""
    return {
        "kind": "KafkaClusterList",
        "metadata": {"self": f"{base_url}/v3/clusters", "next": None},
        "data": data,
    }


def cluster(links: Links, controller_id: int | None) -> JsonObject:
    """Return the cluster.

    Confluent's ``controller`` links to a broker; here controllers are no brokers, so it is left
    out and ``controller_id`` is added.
    """
    return links.resource("KafkaCluster", "") | {
        "controller_id": controller_id,
        "acls": links.related("acls"),
        "brokers": links.related("brokers"),
        "broker_configs": links.related("broker-configs"),
        "consumer_groups": links.related("consumer-groups"),
        "topics": links.related("topics"),
        "partition_reassignments": links.related("topics", "-", "partitions", "-", "reassignment"),
    }


def broker(links: Links, info: BrokerInfo) -> JsonObject:
    """Return a broker: Confluent's fields, and its state and share of the partitions."""
    host, _, port = info.url.removeprefix("http://").rpartition(":")
    path = ("brokers", info.broker_id)
    return links.resource("KafkaBroker", f"broker={info.broker_id}", *path) | {
        "broker_id": info.broker_id,
        "host": host.strip("[]"),
        "port": int(port),
        "rack": info.rack,
        "configs": links.related(*path, "configs"),
        "partition_replicas": links.related(*path, "partition-replicas"),
        "state": info.state,
        "broker_epoch": info.broker_epoch,
        "drain": info.drain,
        "leader_count": info.leader_count,
        "replica_count": info.replica_count,
    }


def topic(
    links: Links, name: str, topic_id: str, replication_factor: int, partitions_count: int
) -> JsonObject:
    """Return a topic."""
    path = ("topics", name)
    return links.resource("KafkaTopic", f"topic={name}", *path) | {
        "topic_name": name,
        "topic_id": topic_id,
        "is_internal": name in INTERNAL_TOPICS,
        "replication_factor": replication_factor,
        "partitions_count": partitions_count,
        "partitions": links.related(*path, "partitions"),
        "configs": links.related(*path, "configs"),
        "partition_reassignments": links.related(*path, "partitions", "-", "reassignment"),
    }


def partition(links: Links, info: PartitionInfo) -> JsonObject:
    """Return a partition: Confluent's fields, and our epochs, replicas and ISR."""
    path = ("topics", info.topic, "partitions", info.partition)
    return links.resource(
        "KafkaPartition", f"topic={info.topic}/partition={info.partition}", *path
    ) | {
        "topic_name": info.topic,
        "partition_id": info.partition,
        "leader": (None if info.leader is None else links.related(*path, "replicas", info.leader)),
        "replicas": links.related(*path, "replicas"),
        "reassignment": links.related(*path, "reassignment"),
        "leader_epoch": info.leader_epoch,
        "partition_epoch": info.partition_epoch,
        "isr": list(info.isr),
        "elr": list(info.elr),
        "replica_ids": list(info.replicas),
        "out_of_sync": list(info.out_of_sync),
        "adding_replicas": list(info.adding),
        "removing_replicas": list(info.removing),
        "last_known_leader": info.last_known_leader,
    }


def replica(links: Links, info: PartitionInfo, broker_id: int) -> JsonObject:
    """Return a replica of a partition; ``is_eligible`` if it is in the ISR or the ELR (KIP-966)."""
    crn = f"topic={info.topic}/partition={info.partition}/replica={broker_id}"
    path = ("topics", info.topic, "partitions", info.partition, "replicas", broker_id)
    return links.resource("KafkaReplica", crn, *path) | {
        "topic_name": info.topic,
        "partition_id": info.partition,
        "broker_id": broker_id,
        "is_leader": broker_id == info.leader,
        "is_in_sync": broker_id in info.isr,
        "is_eligible": broker_id in info.isr or broker_id in info.elr,
        "broker": links.related("brokers", broker_id),
    }


def partition_offsets(
    links: Links, topic_name: str, partition_id: int, earliest: int, latest: int
) -> JsonObject:
    """Return both ends of a partition."""
    path = ("topics", topic_name, "partitions", partition_id, "offset")
    return links.resource(
        "KafkaPartitionWithOffsets", f"topic={topic_name}/partition={partition_id}", *path
    ) | {
        "topic_name": topic_name,
        "partition_id": partition_id,
        "earliest_offset": earliest,
        "latest_offset": latest,
    }


def log_start(links: Links, topic_name: str, partition_id: int, offset: int) -> JsonObject:
    """Return a partition's log start offset after records were deleted."""
    path = ("topics", topic_name, "partitions", partition_id)
    return links.resource(
        "KafkaPartitionLogStart", f"topic={topic_name}/partition={partition_id}", *path
    ) | {
        "topic_name": topic_name,
        "partition_id": partition_id,
        "log_start_offset": offset,
    }


NO_AUTHORIZER = "No Authorizer is configured."
"""Kafka's text for any request about ACLs while security is off; error 40002 as Confluent's."""


def reassignment(links: Links, info: ReassignmentInfo) -> JsonObject:
    """Return a reassignment; ``replica_ids``, ``leader_end_offset`` and ``progress`` are ours."""
    place = ("topics", info.topic, "partitions", info.partition)
    crn = f"topic={info.topic}/partition={info.partition}/reassignment"
    return links.resource("KafkaReassignment", crn, *place, "reassignment") | {
        "topic_name": info.topic,
        "partition_id": info.partition,
        "adding_replicas": list(info.adding),
        "removing_replicas": list(info.removing),
        "replicas": links.related(*place, "replicas"),
        "replica_ids": list(info.replicas),
        "leader_end_offset": info.leader_end_offset,
        "progress": [asdict(one) for one in info.progress],
    }


def election(
    links: Links, topic: str, partition: int, leader: int | None, failure: tuple[int, str] | None
) -> JsonObject:
    """Return the result of a partition's election; ``failure`` is (REST code, message)."""
    place = ("topics", topic, "partitions", partition)
    return links.resource("KafkaLeaderElection", f"topic={topic}/partition={partition}", *place) | {
        "topic_name": topic,
        "partition_id": partition,
        "leader": None if leader is None else links.related(*place, "replicas", leader),
        "leader_id": leader,
        "error_code": None if failure is None else failure[0],
        "error": None if failure is None else failure[1],
    }


def features(links: Links, info: Features) -> JsonObject:
    """Return the finalized level, and the levels that each broker supports."""
    return links.resource("KafkaFeatures", "feature=metadata.version", "features") | {
        "metadata_version": info.metadata_version,
        "supported_min": info.supported_min,
        "supported_max": info.supported_max,
        "brokers": [
            {"broker_id": broker_id, "supported_min": info.supported_min, "supported_max": level}
            for broker_id, level in sorted(info.brokers.items())
        ],
    }


def drain_progress(progress: DrainProgress) -> JsonObject:
    """Return the leaderships and replicas that a drain still has to move."""
    return {
        "is_done": progress.is_done,
        "leaders_left": progress.leaders_left,
        "replicas_left": progress.replicas_left,
        "stuck": [
            {"topic_name": one.topic, "partition_id": one.partition, "reason": one.reason}
            for one in progress.stuck
        ],
    }


@dataclass(frozen=True, slots=True)
class ConfigOwner:
    """Resource that owns configs, and the names that its configs' resources get."""

    kind: str
    path: tuple[str | int, ...]
    """Path below the cluster, without the config's name."""
    crn: str
    """Resource name up to the config's name."""
    fields: tuple[tuple[str, str | int], ...]
    """Fields of a config that name its owner."""
    message_name: str
    """Name of the owner in a message, in Kafka's form: ``TOPIC flights``."""


def topic_owner(name: str) -> ConfigOwner:
    """Return a topic as the owner of configs."""
    return ConfigOwner(
        "KafkaTopicConfig",
        ("topics", name, "configs"),
        f"topic={name}/config=",
        (("topic_name", name),),
        f"TOPIC {name}",
    )


def broker_owner(broker_id: int) -> ConfigOwner:
    """Return a broker as the owner of configs."""
    return ConfigOwner(
        "KafkaBrokerConfig",
        ("brokers", broker_id, "configs"),
        f"broker={broker_id}/config=",
        (("broker_id", broker_id),),
        f"BROKER {broker_id}",
    )


CLUSTER_OWNER = ConfigOwner(
    "KafkaClusterConfig",
    ("broker-configs",),
    "broker-config=",
    (("config_type", "BROKER"),),
    "BROKER ",
)
"""Owner of the configs of all brokers and controllers, and of the defaults of topics."""


def config(links: Links, owner: ConfigOwner, info: ConfigInfo) -> JsonObject:
    """Return a config of a topic, a broker or the cluster."""
    return links.resource(owner.kind, owner.crn + info.name, *owner.path, info.name) | {
        **dict(owner.fields),
        "name": info.name,
        "value": info.value,
        "is_default": info.is_default,
        "is_read_only": info.is_read_only,
        "is_sensitive": False,
        "source": info.source,
        "synonyms": [
            {"name": info.name, "value": value, "source": source} for value, source in info.synonyms
        ],
        "meaning": info.meaning,
        "expected": info.expected,
        "update": info.update,
    }


def health_reason(
    code: str, status: str, message: str, count: int, examples: Sequence[str]
) -> JsonObject:
    """Return a reason why the cluster is not healthy."""
    return {
        "code": code,
        "status": status,
        "message": message,
        "count": count,
        "examples": list(examples),
    }


def health(
    links: Links,
    status: str,
    reasons: list[JsonObject],
    counts: Mapping[str, int],
    controller_id: int | None,
    metadata_offset: int,
) -> JsonObject:
    """Return the cluster's health; ``status`` is healthy, degraded or unhealthy."""
    return {
        "kind": "KafkaClusterHealth",
        "metadata": {
            "self": f"{links.url()}:health",
            "resource_name": f"crn:///kafka={links.cluster_id}/health",
        },
        "cluster_id": links.cluster_id,
        "status": status,
        "reasons": reasons,
        "counts": dict(counts),
        "controller_id": controller_id,
        "metadata_offset": metadata_offset,
    }
