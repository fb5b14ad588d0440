"""Validation of configs, and the consequences of setting them. Pure deciders.

``topics`` validates the configs of a new topic here; `decide_alter_configs` answers an operator's
command. The table of configs is ``common.configs.table``. Before a lower min ISR is recorded, the
eligible leader replicas of the partitions that reach it are cleared.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import TypeAlias

from raft_metadata.common.configs.layers import ConfigLayers
from raft_metadata.common.configs.rows import Scope, text_of
from raft_metadata.common.configs.table import (
    DEFAULT_REPLICATION_FACTOR,
    MIN_INSYNC_REPLICAS,
    find_config,
)
from raft_metadata.common.errors import ErrorCode, KafkaError
from raft_metadata.common.ids import (
    BrokerId,
    TopicId,
    TopicName,
)
from raft_metadata.common.internal_topics import INTERNAL_CONFIGS, INTERNAL_TOPICS
from raft_metadata.controller.partition_draft import PartitionDraft, partition_at
from raft_metadata.controller.topic_rules import TopicDefaults, eligibility_defaults
from raft_metadata.image.metadata_image import (
    ConfigKey,
    MetadataImage,
    TopicImage,
    find_topic,
    topic_layers,
)
from raft_metadata.records.commands import AlterAnswer, AlterConfigs, ConfigChange
from raft_metadata.records.records import (
    ConfigRecord,
    MetadataRecord,
    PartitionChangeRecord,
    ResourceType,
)

CONFIG_CHANGES_MAX = 1_000
"""Config changes in one command: their records (150 bytes each) fit one batch with room to
spare."""
ELIGIBLE_CLEARED_MAX = 10_000
"""Partitions whose eligible leader replicas one command may clear: 2 MB of records at once."""

BROKER_ID_DIGITS_MAX = 10

CLUSTER_KEY: ConfigKey = (ResourceType.CLUSTER, "")
_Configs: TypeAlias = dict[ConfigKey, dict[str, str]]
"""All configs of the changed resources, with the changes made."""
_SCOPES = {
    ResourceType.TOPIC: Scope.TOPIC,
    ResourceType.BROKER: Scope.BROKER,
    ResourceType.CLUSTER: Scope.CLUSTER,
}


# ---- creation


def validated_topic_configs(
    configs: Mapping[str, str | None], replication_factor: int
) -> dict[str, str]:
    """Return the configs that are set, as they are stored; None means the default and is left out.

    Raises INVALID_CONFIG for an unknown name (with the nearest known one), a value out of range,
    and a ``min.insync.replicas`` that the topic could never reach (rule M8).
    """
    valid: dict[str, str] = {}
    for name, value in configs.items():
        row = find_config(name, Scope.TOPIC)
        if value is not None:
            valid[name] = text_of(row.parse(value))
    _check_own_min_isr(valid, replication_factor)
    return valid


def topic_config_records(topic_id: TopicId, configs: Mapping[str, str]) -> list[ConfigRecord]:
    """Return the records that set these configs, in a fixed order."""
    return [
        ConfigRecord(
            resource_type=ResourceType.TOPIC, resource_name=topic_id, name=name, value=value
        )
        for name, value in sorted(configs.items())
    ]


def _check_own_min_isr(configs: Mapping[str, str], replication_factor: int) -> None:
    """Raise INVALID_CONFIG if a topic's own min ISR is above its replication factor (rule M8)."""
    own = configs.get(MIN_INSYNC_REPLICAS)
    if own is not None and int(own) > replication_factor:
        message = (
            f"{MIN_INSYNC_REPLICAS} {own} is larger than the replication factor "
            f"{replication_factor}"
        )
        raise KafkaError(ErrorCode.INVALID_CONFIG, message)


# ---- alteration


def decide_alter_configs(
    image: MetadataImage, command: AlterConfigs, *, defaults: TopicDefaults
) -> tuple[tuple[MetadataRecord, ...], AlterAnswer]:
    """Make all changes or none; a change that alters nothing adds no record.

    A lower min ISR clears the eligible leader replicas of partitions that reach it now, *before* it
    is in force: with it their leaders acknowledge without the replicas that left (invariant P2).

    Raises:
        KafkaError: INVALID_CONFIG (name, value, place, min ISR above a replication factor),
            UNKNOWN_TOPIC_OR_PARTITION, BROKER_ID_NOT_REGISTERED, POLICY_VIOLATION (internal
            topics), INVALID_REQUEST (too many changes, one config twice).
    """
    _check_shape(command)
    after: _Configs = {}
    for change in command.changes:
        key = _resource(image, change)
        configs = after.setdefault(key, dict(image.configs.get(key, {})))
        row = find_config(change.name, _SCOPES[change.resource_type])
        if change.value is None:
            configs.pop(change.name, None)
        else:
            configs[change.name] = text_of(row.parse(change.value))
    _check_cluster(after, defaults)
    cleared: tuple[MetadataRecord, ...] = tuple(_cleared_elrs(image, after, defaults))
    if len(cleared) > ELIGIBLE_CLEARED_MAX:
        message = (
            f"{len(cleared)} partitions below their min ISR would lose their eligible leader "
            f"replicas, at most {ELIGIBLE_CLEARED_MAX} may: bring brokers back, or go by topic"
        )
        raise KafkaError(ErrorCode.POLICY_VIOLATION, message)
    records: tuple[MetadataRecord, ...] = (*cleared, *_config_records(image, after))
    return records, AlterAnswer(next_offset=image.offset_after(len(records)))


def _check_shape(command: AlterConfigs) -> None:
    """Raise INVALID_REQUEST for too many changes, or two changes of one config."""
    if len(command.changes) > CONFIG_CHANGES_MAX:
        message = f"{len(command.changes)} changes of configs, at most {CONFIG_CHANGES_MAX} at once"
        raise KafkaError(ErrorCode.INVALID_REQUEST, message)
    seen = set()
    for change in command.changes:
        place = (change.resource_type, change.resource_name, change.name)
        if place in seen:
            where = f"{change.resource_type.value} {change.resource_name}".strip()
            message = f"{change.name[:100]} of {where[:300]} is changed twice"
            raise KafkaError(ErrorCode.INVALID_REQUEST, message)
        seen.add(place)


def _resource(image: MetadataImage, change: ConfigChange) -> ConfigKey:
    """Return the key of the changed resource; raise KafkaError if it may not be changed."""
    name = change.resource_name
    match change.resource_type:
        case ResourceType.TOPIC:
            topic = find_topic(image, TopicName(name))
            if name in INTERNAL_TOPICS and change.name not in INTERNAL_CONFIGS:
                allowed = ", ".join(sorted(INTERNAL_CONFIGS))
                message = f"{name} is the cluster's own: only {allowed} of it can be set"
                raise KafkaError(ErrorCode.POLICY_VIOLATION, message)
            return change.resource_type, topic.topic_id
        case ResourceType.BROKER:
            broker_id = BrokerId(int(name)) if _is_number(name) else None
            if broker_id is None or broker_id not in image.brokers:
                message = f"broker {name[:100]} is not registered"
                raise KafkaError(ErrorCode.BROKER_ID_NOT_REGISTERED, message)
            return change.resource_type, str(broker_id)
        case ResourceType.CLUSTER:
            if name:
                message = f"a cluster config has no resource name, got {name[:100]!r}"
                raise KafkaError(ErrorCode.INVALID_REQUEST, message)
            return change.resource_type, ""


def _is_number(name: str) -> bool:
    return name.isascii() and name.isdigit() and len(name) <= BROKER_ID_DIGITS_MAX


def _check_cluster(after: _Configs, defaults: TopicDefaults) -> None:
    """Raise INVALID_CONFIG if the cluster's min ISR would be above its replication factor.

    No new topic could reach such defaults (rule M8).
    """
    cluster = after.get(CLUSTER_KEY)
    if cluster is None:
        return
    wanted = defaults.under(cluster)
    if wanted.min_insync_replicas > wanted.default_replication_factor:
        message = (
            f"the cluster's {MIN_INSYNC_REPLICAS} would be {wanted.min_insync_replicas}, larger "
            f"than its {DEFAULT_REPLICATION_FACTOR} {wanted.default_replication_factor}"
        )
        raise KafkaError(ErrorCode.INVALID_CONFIG, message)


def _config_records(image: MetadataImage, after: _Configs) -> Iterator[ConfigRecord]:
    """Yield the records of all differences from the image, in a fixed order."""
    for key in sorted(after, key=lambda each: (each[0].value, each[1])):
        before = image.configs.get(key, {})
        for name in sorted(before.keys() | after[key].keys()):
            value = after[key].get(name)
            if value != before.get(name):
                yield ConfigRecord(
                    resource_type=key[0], resource_name=key[1], name=name, value=value
                )


# ---- what a change of min ISR means


def _topics_concerned(
    image: MetadataImage, after: _Configs, defaults: TopicDefaults
) -> Iterator[tuple[TopicImage, ConfigLayers, ConfigLayers]]:
    """Yield topics whose min ISR may change, with their config layers before and after."""
    static = eligibility_defaults(image, defaults)
    cluster = after.get(CLUSTER_KEY)
    for topic_id, topic in image.topics.items():
        own = after.get((ResourceType.TOPIC, topic_id))
        if own is None and cluster is None:
            continue
        before = topic_layers(image, topic_id, static)
        then = replace(
            before,
            topic=before.topic if own is None else own,
            cluster=before.cluster if cluster is None else cluster,
        )
        yield topic, before, then


def _cleared_elrs(
    image: MetadataImage, after: _Configs, defaults: TopicDefaults
) -> Iterator[PartitionChangeRecord]:
    """Yield changes that clear the eligible leader replicas where a lower min ISR is reached."""
    for topic, before, then in _topics_concerned(image, after, defaults):
        if then.topic is not before.topic:
            fewest = min((each.replication_factor for each in topic.partitions), default=1)
            _check_own_min_isr(then.topic, fewest)
        if then.strongest_value(MIN_INSYNC_REPLICAS) == before.strongest_value(MIN_INSYNC_REPLICAS):
            continue
        for index, partition in enumerate(topic.partitions):
            if not (partition.elr or partition.last_known_elr):
                continue
            factor = partition.replication_factor
            min_isr = then.min_isr(factor)
            if before.min_isr(factor) > min_isr <= len(partition.isr):
                draft = PartitionDraft.of(partition)
                draft.keep_eligible(min_isr)
                yield draft.record(partition_at(topic.topic_id, index))
