"""Steps of an admin's methods about consumer groups: their states, offsets and members.

`Admin` and `AsyncAdmin` run them; each function checks its arguments before the first request.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Final

import orjson

from http_api.client import groups
from http_api.client.calls import Call, Request, read_nothing, v3_path
from http_api.client.client_errors import QuorumlogError
from http_api.client.sdk.admin_resources import (
    CommittedOffset,
    ConsumerGroupDescription,
    ConsumerGroupListing,
    check_integer,
    check_name,
    group_description,
)
from http_api.client.sdk.admin_steps import (
    AdminCall,
    is_missing,
    list_of,
    list_of_names,
    list_of_partitions,
    place_of,
)
from http_api.client.sdk.admin_topic_steps import OFFSET_MAX
from http_api.client.sdk.record_types import TopicPartition
from http_api.client.sdk.steps import Steps

GROUP_STATES: Final = ("EMPTY", "RECONCILING", "STABLE", "HELD")


def list_consumer_groups(
    call: AdminCall, states: Iterable[str] | None
) -> Steps[dict[str, ConsumerGroupListing]]:
    """List groups by name: all, or those in one of the states."""
    wanted = GROUP_STATES if states is None else list_of_names("state", states)
    for state in wanted:
        if state not in GROUP_STATES:
            msg = f"state {state!r}: expected one of {', '.join(GROUP_STATES)}"
            raise ValueError(msg)
    cluster_id = yield from call.cluster_id()
    found = yield from call.request(groups.list_groups(cluster_id))
    return {one.group: one for one in found if states is None or one.state in wanted}


def describe_consumer_groups(
    call: AdminCall, names: Iterable[str]
) -> Steps[dict[str, ConsumerGroupDescription]]:
    """Describe each group with its members and lags."""
    wanted = list_of_names("group", names)
    cluster_id = yield from call.cluster_id()

    def describe(name: str) -> Steps[ConsumerGroupDescription]:
        info = yield from call.request(groups.describe_group(cluster_id, name))
        members = yield from call.request(groups.members(cluster_id, name))
        lags = yield from call.request(groups.lags(cluster_id, name))
        return group_description(info, members, lags)

    return (yield from call.each(wanted, describe))


def delete_consumer_groups(call: AdminCall, names: Iterable[str]) -> Steps[dict[str, None]]:
    """Delete each group with its offsets."""
    wanted = list_of_names("group", names)
    cluster_id = yield from call.cluster_id()
    return (
        yield from call.each(
            wanted, lambda name: call.request(groups.delete_group(cluster_id, name))
        )
    )


def list_consumer_group_offsets(
    call: AdminCall, group: str, partitions: Iterable[TopicPartition] | None
) -> Steps[dict[TopicPartition, CommittedOffset | None]]:
    """List a group's committed offsets: all, or those of the partitions, None without a commit."""
    check_name("group", group)
    wanted = None if partitions is None else list_of_partitions(partitions)
    cluster_id = yield from call.cluster_id()
    rows = yield from call.request(groups.group_offsets(cluster_id, group))
    found = {TopicPartition(row.topic, row.partition): row for row in rows}
    if wanted is None:
        return {**found}
    return {partition: found.get(partition) for partition in wanted}


def alter_consumer_group_offsets(
    call: AdminCall, group: str, offsets: Iterable[TopicPartition]
) -> Steps[dict[TopicPartition, None]]:
    """Commit offsets for a group without live members, all of them or none."""
    check_name("group", group)
    wanted = list_of(TopicPartition, offsets)
    rows = [_offset_row(one) for one in wanted]
    if len(set(wanted)) != len(wanted):
        msg = f"offsets {wanted}: expected each partition once"
        raise ValueError(msg)
    if not wanted:
        return {}
    cluster_id = yield from call.cluster_id()
    yield from call.together(wanted, _commit(cluster_id, group, rows))
    return dict.fromkeys(wanted)


def _offset_row(partition: TopicPartition) -> dict[str, Any]:
    topic, number = place_of(partition)
    offset = check_integer(f"{(topic, number)}: offset", partition.offset, 0, OFFSET_MAX)
    row: dict[str, Any] = {"topic_name": topic, "partition_id": number, "offset": offset}
    if partition.leader_epoch is not None:
        row["leader_epoch"] = partition.leader_epoch
    if partition.metadata:
        row["metadata"] = partition.metadata
    return row


def _commit(cluster_id: str, group: str, rows: list[dict[str, Any]]) -> Call[None]:
    """Return the call of `groups.commit_group`, with each offset's leader epoch and metadata.

    A lost request is not sent again: another commit may have followed it (rule F1).
    """
    request = Request(
        method="PATCH",
        path=v3_path(cluster_id, groups.GROUPS, group, "offsets"),
        body=orjson.dumps({"data": rows}),
        timeout_s=groups.GROUP_TIMEOUT_S,
    )
    return read_nothing(request)


def delete_consumer_group_offsets(
    call: AdminCall, group: str, partitions: Iterable[TopicPartition]
) -> Steps[dict[TopicPartition, None]]:
    """Delete a group's committed offset in each partition."""
    check_name("group", group)
    wanted = list_of_partitions(partitions)
    cluster_id = yield from call.cluster_id()
    return (
        yield from call.each(
            wanted,
            lambda one: call.request(groups.delete_offsets(cluster_id, group, *place_of(one))),
        )
    )


def remove_members(
    call: AdminCall,
    group: str,
    members: Iterable[str] | None,
    static_ids: Iterable[str] | None,
) -> Steps[dict[str, None]]:
    """Remove members by their ids and static ids, or all; their partitions move at once."""
    check_name("group", group)
    by_id = [] if members is None else list_of_names("member", members)
    by_static = [] if static_ids is None else list_of_names("static id", static_ids)
    both = sorted(set(by_id) & set(by_static))
    if both:
        msg = f"{both[0]!r} is given as a member and as a static id: expected it in one list"
        raise ValueError(msg)
    is_all = members is None and static_ids is None
    cluster_id = yield from call.cluster_id()
    if is_all:
        found = yield from call.request(groups.members(cluster_id, group))
        by_id = [one.member_id for one in found]

    def remove(name: str) -> Steps[None]:
        evict = groups.evict_static if name in static else groups.evict
        try:
            yield from call.request(evict(cluster_id, group, name))
        except QuorumlogError as error:
            if not is_all or not is_missing(error):  # it left by itself in the meantime
                raise

    static = set(by_static)
    return (yield from call.each([*by_id, *by_static], remove))
