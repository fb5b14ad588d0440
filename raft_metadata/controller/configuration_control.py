"""Which configs may be set. Only topic configs so far; the table is ``common.topic_config``."""

from __future__ import annotations

from collections.abc import Mapping

from raft_metadata.common.errors import ErrorCode, KafkaError
from raft_metadata.common.ids import TopicId
from raft_metadata.common.topic_config import MIN_INSYNC_REPLICAS, integer_value, topic_config
from raft_metadata.records.records import ConfigRecord, ResourceType


def validated_topic_configs(
    configs: Mapping[str, str | None], replication_factor: int
) -> dict[str, str]:
    """The configs that are set; None means the default and is left out.

    INVALID_CONFIG names an unknown config's nearest neighbour, a value's range, and a
    ``min.insync.replicas`` that the topic could never reach (rule M8).
    """
    valid: dict[str, str] = {}
    for name, value in configs.items():
        config = topic_config(name)
        if value is not None:
            config.parse(value)
            valid[name] = value
    min_isr = integer_value(valid, MIN_INSYNC_REPLICAS, default=1)
    if min_isr > replication_factor:
        message = (
            f"{MIN_INSYNC_REPLICAS} {min_isr} is larger than "
            f"the replication factor {replication_factor}"
        )
        raise KafkaError(ErrorCode.INVALID_CONFIG, message)
    return valid


def topic_config_records(topic_id: TopicId, configs: Mapping[str, str]) -> list[ConfigRecord]:
    """The facts that set these configs, in a fixed order."""
    return [
        ConfigRecord(
            resource_type=ResourceType.TOPIC, resource_name=topic_id, name=name, value=value
        )
        for name, value in sorted(configs.items())
    ]
