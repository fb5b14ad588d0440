"""JSON shapes of the v3 API for operators: reassignments, elections, features and drains."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from http_api.contract.v3 import Links

JsonObject = dict[str, Any]

NO_AUTHORIZER = "No Authorizer is configured."
"""Kafka's text for any request about ACLs while security is off; error 40002 as Confluent's."""


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
class ReassignmentFacts:
    """A partition whose replicas are being moved (KIP-455)."""

    topic: str
    partition_id: int
    replicas: Sequence[int]
    adding: Sequence[int]
    removing: Sequence[int]
    leader_end_offset: int | None
    progress: Sequence[AddingReplica]


def reassignment(links: Links, facts: ReassignmentFacts) -> JsonObject:
    """Return a reassignment; ``replica_ids``, ``leader_end_offset`` and ``progress`` are ours."""
    place = ("topics", facts.topic, "partitions", facts.partition_id)
    crn = f"topic={facts.topic}/partition={facts.partition_id}/reassignment"
    return {
        "kind": "KafkaReassignment",
        "metadata": links.metadata(crn, *place, "reassignment"),
        "cluster_id": links.cluster_id,
        "topic_name": facts.topic,
        "partition_id": facts.partition_id,
        "adding_replicas": list(facts.adding),
        "removing_replicas": list(facts.removing),
        "replicas": links.related(*place, "replicas"),
        "replica_ids": list(facts.replicas),
        "leader_end_offset": facts.leader_end_offset,
        "progress": [
            {
                "broker_id": one.broker_id,
                "log_end_offset": one.log_end_offset,
                "lag": one.lag,
                "is_in_sync": one.is_in_sync,
            }
            for one in facts.progress
        ],
    }


def election(
    links: Links, topic: str, partition: int, leader: int | None, failure: tuple[int, str] | None
) -> JsonObject:
    """Return the result of a partition's election; ``failure`` is (REST code, message)."""
    place = ("topics", topic, "partitions", partition)
    return {
        "kind": "KafkaLeaderElection",
        "metadata": links.metadata(f"topic={topic}/partition={partition}", *place),
        "cluster_id": links.cluster_id,
        "topic_name": topic,
        "partition_id": partition,
        "leader": None if leader is None else links.related(*place, "replicas", leader),
        "leader_id": leader,
        "error_code": None if failure is None else failure[0],
        "error": None if failure is None else failure[1],
    }


@dataclass(frozen=True, slots=True, kw_only=True)
class FeatureFacts:
    """The finalized ``metadata.version`` and the levels that brokers support (KIP-584)."""

    level: int
    low: int
    high: int
    """Highest level that the answering broker supports; `low` is its lowest."""
    brokers: Mapping[int, int]
    """Broker id → highest level that this registered broker supports."""


def features(links: Links, facts: FeatureFacts) -> JsonObject:
    """Return the finalized level, and the levels that each broker supports."""
    return {
        "kind": "KafkaFeatures",
        "metadata": links.metadata("feature=metadata.version", "features"),
        "cluster_id": links.cluster_id,
        "metadata_version": facts.level,
        "supported_min": facts.low,
        "supported_max": facts.high,
        "brokers": [
            {"broker_id": broker_id, "supported_min": facts.low, "supported_max": level}
            for broker_id, level in sorted(facts.brokers.items())
        ],
    }


@dataclass(frozen=True, slots=True, kw_only=True)
class StuckPartition:
    """A partition that a drain could not move yet, and the reason."""

    topic: str
    partition_id: int
    reason: str


def drain_progress(
    leaders_left: int, replicas_left: int, stuck: Sequence[StuckPartition], *, is_done: bool
) -> JsonObject:
    """Return the leaderships and replicas that a drain still has to move."""
    return {
        "is_done": is_done,
        "leaders_left": leaders_left,
        "replicas_left": replicas_left,
        "stuck": [
            {"topic_name": one.topic, "partition_id": one.partition_id, "reason": one.reason}
            for one in stuck
        ],
    }
