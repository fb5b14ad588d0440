"""Steps of an admin's methods about topics, partitions' offsets and records, and configs.

`Admin` and `AsyncAdmin` run them; each function checks its arguments before the first request.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Final

from http_api.client import admin
from http_api.client.consumer import ends, offset_at
from http_api.client.sdk.admin_resources import (
    ConfigDescription,
    ConfigResource,
    ConfigValue,
    NewTopic,
    TopicDescription,
    TopicListing,
    check_integer,
    check_name,
    config_text,
    topic_description,
)
from http_api.client.sdk.admin_steps import (
    AdminCall,
    list_of,
    list_of_names,
    mapping_of,
    place_of,
)
from http_api.client.sdk.record_types import OFFSET_END, TopicPartition
from http_api.client.sdk.steps import Steps

OFFSET_MAX: Final = (1 << 63) - 1
EARLIEST: Final = "earliest"
LATEST: Final = "latest"


def create_topics(
    call: AdminCall, topics: Sequence[NewTopic], *, validate_only: bool
) -> Steps[dict[str, TopicListing]]:
    """Create each topic, or only check that it can be created."""
    wanted = {one.name: one for one in list_of(NewTopic, topics)}
    if len(wanted) != len(topics):
        msg = f"topics {[one.name for one in topics]}: expected each name once"
        raise ValueError(msg)
    cluster_id = yield from call.cluster_id()

    def create(name: str) -> Steps[TopicListing]:
        new = wanted[name]
        request = admin.create_topic(
            cluster_id,
            name,
            partitions=new.num_partitions,
            replication_factor=new.replication_factor,
            configs=new.config_texts(),
            assignments=new.assignments,
            validate_only=validate_only,
        )
        return (yield from call.request(request))

    return (yield from call.each(wanted, create))


def create_partitions(
    call: AdminCall, totals: Mapping[str, int], *, validate_only: bool
) -> Steps[dict[str, TopicListing]]:
    """Grow each topic to a total number of partitions."""
    wanted = mapping_of(str, totals, "the total number of partitions")
    for name, total in wanted.items():
        check_integer(f"topic {check_name('topic', name)}: total", total, 1)
    cluster_id = yield from call.cluster_id()
    return (
        yield from call.each(
            wanted,
            lambda name: call.request(
                admin.add_partitions(cluster_id, name, wanted[name], validate_only=validate_only)
            ),
        )
    )


def delete_topics(call: AdminCall, topics: Iterable[str]) -> Steps[dict[str, None]]:
    """Delete each topic."""
    names = list_of_names("topic", topics)
    cluster_id = yield from call.cluster_id()
    return (
        yield from call.each(names, lambda name: call.request(admin.delete_topic(cluster_id, name)))
    )


def list_topics(call: AdminCall, *, internal: bool) -> Steps[dict[str, TopicListing]]:
    """List topics by name, internal ones only on request."""
    cluster_id = yield from call.cluster_id()
    found = yield from call.request(admin.topics(cluster_id))
    return {one.name: one for one in found if internal or not one.is_internal}


def describe_topics(call: AdminCall, topics: Iterable[str]) -> Steps[dict[str, TopicDescription]]:
    """Describe each topic with its partitions."""
    names = list_of_names("topic", topics)
    cluster_id = yield from call.cluster_id()

    def describe(name: str) -> Steps[TopicDescription]:
        info = yield from call.request(admin.topic(cluster_id, name))
        partitions = yield from call.request(admin.partitions(cluster_id, name))
        return topic_description(info, partitions)

    return (yield from call.each(names, describe))


# configs


def _config_place(resource: ConfigResource) -> admin.ConfigPlace:
    if resource.type == "topic":
        return admin.of_topic(resource.name)
    if resource.type == "broker":
        return admin.of_broker(int(resource.name))
    return admin.OF_CLUSTER


def describe_configs(
    call: AdminCall, resources: Iterable[ConfigResource], names: Iterable[str] | None
) -> Steps[dict[ConfigResource, dict[str, ConfigDescription]]]:
    """Describe the configs of each resource: all of them, or those with the given names."""
    wanted = list_of(ConfigResource, resources)
    only = None if names is None else list_of_names("config", names)
    cluster_id = yield from call.cluster_id()

    def describe(resource: ConfigResource) -> Steps[dict[str, ConfigDescription]]:
        place = _config_place(resource)
        if only is None:
            rows = yield from call.request(admin.configs(cluster_id, place))
            return {row.name: row for row in rows}
        found = {}
        for name in only:
            found[name] = yield from call.request(admin.config(cluster_id, place, name))
        return found

    return (yield from call.each(wanted, describe))


def alter_configs(
    call: AdminCall,
    changes: Mapping[ConfigResource, Mapping[str, ConfigValue | None]],
    *,
    validate_only: bool,
) -> Steps[dict[ConfigResource, None]]:
    """Set or reset configs of each resource; the changes of one resource are made together."""
    given = mapping_of(ConfigResource, changes, "values by name")
    wanted: dict[ConfigResource, dict[str, str | None]] = {}
    for resource, values in given.items():
        texts = mapping_of(str, values, "a value or None")
        wanted[resource] = {
            name: None if value is None else config_text(name, value)
            for name, value in texts.items()
        }
    cluster_id = yield from call.cluster_id()

    def alter(resource: ConfigResource) -> Steps[None]:
        request = admin.alter_configs(
            cluster_id, _config_place(resource), wanted[resource], validate_only=validate_only
        )
        return (yield from call.request(request))

    return (yield from call.each(wanted, alter))


# offsets and records


def list_offsets(
    call: AdminCall, positions: Mapping[TopicPartition, str | int]
) -> Steps[dict[TopicPartition, int]]:
    """Find an offset in each partition: its first, its end, or the first at or after a time."""
    wanted = mapping_of(TopicPartition, positions, "'earliest', 'latest' or milliseconds")
    for partition, position in wanted.items():
        place = place_of(partition)
        if isinstance(position, str) and position not in {EARLIEST, LATEST}:
            msg = f"{place}: {position!r}: expected 'earliest', 'latest' or milliseconds"
            raise ValueError(msg)
        if not isinstance(position, str):
            check_integer(f"{place}: milliseconds", position, 0, OFFSET_MAX)

    def find(partition: TopicPartition) -> Steps[int]:
        position = wanted[partition]
        topic, number = place_of(partition)
        if not isinstance(position, str):
            return (yield from call.request(offset_at(topic, number, position)))
        found = yield from call.request(ends(topic, number))
        return found.beginning if position == EARLIEST else found.end

    yield from call.cluster_id()  # one error, not one per partition, if no broker answers
    return (yield from call.each(wanted, find))


def delete_records(
    call: AdminCall, before: Mapping[TopicPartition, int]
) -> Steps[dict[TopicPartition, int]]:
    """Delete the records of each partition below an offset; return the new log starts."""
    wanted = mapping_of(TopicPartition, before, "the offset of the first record to keep")
    for partition, offset in wanted.items():
        check_integer(f"{place_of(partition)}: offset", offset, OFFSET_END, OFFSET_MAX)
    cluster_id = yield from call.cluster_id()

    def delete(partition: TopicPartition) -> Steps[int]:
        topic, number = place_of(partition)
        request = admin.delete_records(cluster_id, topic, number, wanted[partition])
        return (yield from call.request(request))

    return (yield from call.each(wanted, delete))
