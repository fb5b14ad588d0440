"""Steps of an admin's methods about the cluster: brokers, quorum, health, leaders and replicas.

`Admin` and `AsyncAdmin` run them; each function checks its arguments before the first request.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Final

from http_api.client import admin, cluster_state
from http_api.client.client_errors import AdminError, QuorumlogError, api_error
from http_api.client.sdk.admin_resources import (
    ClusterDescription,
    ClusterHealth,
    QuorumDescription,
    Reassignment,
    check_replicas,
    health_of,
    quorum_description,
)
from http_api.client.sdk.admin_steps import (
    AdminCall,
    list_of_partitions,
    mapping_of,
    place_of,
)
from http_api.client.sdk.record_types import TopicPartition
from http_api.client.sdk.steps import Steps

PREFERRED: Final = "preferred"
UNCLEAN: Final = "unclean"


def describe_cluster(call: AdminCall) -> Steps[ClusterDescription]:
    """Describe the cluster with all registered brokers, live or not."""
    found = yield from call.request(admin.cluster())
    brokers = yield from call.request(admin.brokers(found.cluster_id, include_all=True))
    return ClusterDescription(
        cluster_id=found.cluster_id, controller_id=found.controller_id, brokers=tuple(brokers)
    )


def describe_quorum(call: AdminCall) -> Steps[QuorumDescription]:
    """Describe the controllers' quorum and the brokers that follow it."""
    cluster_id = yield from call.cluster_id()
    row = yield from call.request(cluster_state.quorum(cluster_id))
    return quorum_description(row)


def cluster_health(call: AdminCall) -> Steps[ClusterHealth]:
    """Return the cluster's health with its reasons."""
    cluster_id = yield from call.cluster_id()
    row = yield from call.request(cluster_state.health(cluster_id))
    return health_of(row)


def elect_leaders(
    call: AdminCall, partitions: Iterable[TopicPartition] | None, *, unclean: bool
) -> Steps[dict[TopicPartition, int | None]]:
    """Elect the leader of each partition, or of all that need it; return the leaders' ids."""
    wanted = None if partitions is None else list_of_partitions(partitions)
    election = UNCLEAN if unclean else PREFERRED
    cluster_id = yield from call.cluster_id()
    if wanted is None:
        rows = yield from call.request(admin.elect_leaders(cluster_id, election=election))
        return election_results(rows)

    def elect(partition: TopicPartition) -> Steps[int | None]:
        topic, number = place_of(partition)
        found = yield from call.request(admin.elect_leader(cluster_id, topic, number, election))
        return found.leader

    return (yield from call.each(wanted, elect))


def election_results(rows: Sequence[admin.ElectionInfo]) -> dict[TopicPartition, int | None]:
    """Return the leaders of the partitions of an election; raises `AdminError` if one failed."""
    done: dict[TopicPartition, int | None] = {}
    failed: dict[TopicPartition, QuorumlogError] = {}
    for row in rows:
        partition = TopicPartition(row.topic, row.partition)
        if row.error_code is None:
            done[partition] = row.leader
        else:
            status = int(str(row.error_code)[:3])  # a code is its status and two more digits
            message = row.error or f"error {row.error_code}"
            envelope = {"outcome": "not_written"}  # the row of a decision that was not made
            failed[partition] = api_error(status, row.error_code, message, envelope)
    if failed:
        raise AdminError(done, failed)
    return done


def alter_reassignments(
    call: AdminCall,
    replicas: Mapping[TopicPartition, Sequence[int] | None],
    *,
    validate_only: bool,
) -> Steps[dict[TopicPartition, Reassignment | None]]:
    """Start to move replicas, all or none; None cancels a partition's reassignment."""
    given = mapping_of(TopicPartition, replicas, "a list of broker ids, or None")
    wanted = {
        place_of(one): None if ids is None else check_replicas(f"replicas of {place_of(one)}", ids)
        for one, ids in given.items()
    }
    if not wanted:
        return {}
    cluster_id = yield from call.cluster_id()
    request = admin.reassign(cluster_id, wanted, validate_only=validate_only)
    rows = yield from call.together(list(given), request)
    found = {(row.topic, row.partition): row for row in rows}
    return {partition: found.get(place_of(partition)) for partition in given}


def list_reassignments(
    call: AdminCall, partitions: Iterable[TopicPartition] | None
) -> Steps[dict[TopicPartition, Reassignment]]:
    """List the reassignments under way, of the partitions or of the cluster."""
    wanted = None if partitions is None else set(list_of_partitions(partitions))
    cluster_id = yield from call.cluster_id()
    rows = yield from call.request(admin.reassignments(cluster_id))
    found = {TopicPartition(row.topic, row.partition): row for row in rows}
    return {
        partition: row for partition, row in found.items() if wanted is None or partition in wanted
    }
