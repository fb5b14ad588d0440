"""A topic's own configs over a node's default: reading what ``common.configs`` says of topics."""

from __future__ import annotations

from collections.abc import Mapping

from raft_metadata.common.configs.layers import ConfigLayers
from raft_metadata.common.configs.rows import text_of
from raft_metadata.common.configs.table import FLUSH as FLUSH
from raft_metadata.common.configs.table import MAX_MESSAGE_BYTES as MAX_MESSAGE_BYTES
from raft_metadata.common.configs.table import MESSAGE_TIMESTAMP_TYPE as MESSAGE_TIMESTAMP_TYPE
from raft_metadata.common.configs.table import MIN_INSYNC_REPLICAS as MIN_INSYNC_REPLICAS
from raft_metadata.common.configs.table import SEGMENT_BYTES as SEGMENT_BYTES
from raft_metadata.common.configs.table import SEGMENT_MS as SEGMENT_MS
from raft_metadata.common.configs.table import TOPIC_CONFIGS as TOPIC_CONFIGS


def integer_value(configs: Mapping[str, str], name: str, default: int) -> int:
    """The topic's own number of this name, or ``default``, the node's configured one."""
    return ConfigLayers(topic=configs, static={name: text_of(default)}).number(name)


def choice_value(configs: Mapping[str, str], name: str, default: str) -> str:
    """The topic's own word of this name, or ``default``, the node's configured one."""
    return ConfigLayers(topic=configs, static={name: default}).word(name)


def effective_min_isr(configs: Mapping[str, str], default: int, replication_factor: int) -> int:
    """See `ConfigLayers.min_isr` (rule M8)."""
    layers = ConfigLayers(topic=configs, static={MIN_INSYNC_REPLICAS: text_of(default)})
    return layers.min_isr(replication_factor)
