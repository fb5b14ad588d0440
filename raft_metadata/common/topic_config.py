"""The one table of topic configs: name, type, range, meaning, and the default each falls back to.

Only what is kept stands here; any other name is refused as unknown until it exists. Controllers
validate by this table and brokers read by it, so the two can't disagree.
"""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from dataclasses import dataclass

from raft_metadata.common.errors import ErrorCode, KafkaError

MIN_INSYNC_REPLICAS = "min.insync.replicas"
MAX_MESSAGE_BYTES = "max.message.bytes"
FLUSH = "flush"
MESSAGE_TIMESTAMP_TYPE = "message.timestamp.type"
SEGMENT_BYTES = "segment.bytes"
SEGMENT_MS = "segment.ms"

_INT32_MAX = 2_147_483_647
_INT64_MAX = 9_223_372_036_854_775_807
_MAX_MESSAGE_BYTES_MAX = 16_777_216
"""A record can't be larger than the largest request body (``max_body_bytes``)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class IntegerConfig:
    """A whole number within ``minimum .. maximum``, both included."""

    name: str
    default_key: str
    """Key in ``[defaults]`` of config.toml that holds where the topic says nothing."""
    default: int
    """What that key is when the file says nothing either."""
    minimum: int
    maximum: int
    meaning: str

    def parse(self, value: str) -> int:
        """The value as a number. INVALID_CONFIG names the range."""
        try:
            number = int(value)
        except ValueError:
            raise self._refusal(value) from None
        if not self.minimum <= number <= self.maximum:
            raise self._refusal(value)
        return number

    def _refusal(self, value: str) -> KafkaError:
        message = (
            f"invalid value {value!r} for {self.name}: "
            f"expected a whole number from {self.minimum} to {self.maximum}"
        )
        return KafkaError(ErrorCode.INVALID_CONFIG, message)


@dataclass(frozen=True, slots=True, kw_only=True)
class ChoiceConfig:
    """One of a few words."""

    name: str
    default_key: str
    default: str
    choices: tuple[str, ...]
    meaning: str

    def parse(self, value: str) -> str:
        """The word itself. INVALID_CONFIG names the choices."""
        if value not in self.choices:
            message = (
                f"invalid value {value!r} for {self.name}: expected {' or '.join(self.choices)}"
            )
            raise KafkaError(ErrorCode.INVALID_CONFIG, message)
        return value


TopicConfig = IntegerConfig | ChoiceConfig

_TABLE: tuple[TopicConfig, ...] = (
    IntegerConfig(
        name=MIN_INSYNC_REPLICAS,
        default_key="min_insync_replicas",
        default=1,
        minimum=1,
        maximum=_INT32_MAX,
        meaning="acks=all is refused while fewer replicas than this are in sync",
    ),
    IntegerConfig(
        name=MAX_MESSAGE_BYTES,
        default_key="max_message_bytes",
        default=1_048_576,
        minimum=1,
        maximum=_MAX_MESSAGE_BYTES_MAX,
        meaning="the largest record, in bytes",
    ),
    ChoiceConfig(
        name=FLUSH,
        default_key="flush",
        default="ack",
        choices=("ack", "os"),
        meaning="ack: on disk before it is acknowledged; os: Kafka's page-cache rule",
    ),
    ChoiceConfig(
        name=MESSAGE_TIMESTAMP_TYPE,
        default_key="message_timestamp_type",
        default="create",
        choices=("create", "append"),
        meaning="whose clock look-up by time uses: the producer's or the broker's",
    ),
    IntegerConfig(
        name=SEGMENT_BYTES,
        default_key="segment_bytes",
        default=1_073_741_824,
        minimum=1_024,
        maximum=_INT32_MAX,
        meaning="a segment is rolled before it grows past this many bytes",
    ),
    IntegerConfig(
        name=SEGMENT_MS,
        default_key="segment_ms",
        default=604_800_000,
        minimum=1,
        maximum=_INT64_MAX,
        meaning="a segment is rolled when its first batch is this old, in milliseconds",
    ),
)

TOPIC_CONFIGS: Mapping[str, TopicConfig] = {config.name: config for config in _TABLE}


def topic_config(name: str) -> TopicConfig:
    """The row of this name. INVALID_CONFIG names the nearest one that exists."""
    known = TOPIC_CONFIGS.get(name)
    if known is not None:
        return known
    nearest = difflib.get_close_matches(name, TOPIC_CONFIGS, n=1, cutoff=0)
    hint = f"; did you mean {nearest[0]}?" if nearest else ""
    raise KafkaError(ErrorCode.INVALID_CONFIG, f"unknown topic config {name!r}{hint}")


def integer_value(configs: Mapping[str, str], name: str, default: int) -> int:
    """The topic's own number of this name, or ``default``, the node's configured one."""
    row = TOPIC_CONFIGS[name]
    assert isinstance(row, IntegerConfig), name
    value = configs.get(name)
    return default if value is None else row.parse(value)


def choice_value(configs: Mapping[str, str], name: str, default: str) -> str:
    """The topic's own word of this name, or ``default``, the node's configured one."""
    row = TOPIC_CONFIGS[name]
    assert isinstance(row, ChoiceConfig), name
    value = configs.get(name)
    return default if value is None else row.parse(value)


def effective_min_isr(configs: Mapping[str, str], default: int, replication_factor: int) -> int:
    """The min in-sync replicas of a topic: what it says itself, else the configured default.

    The default is capped by the replication factor, so that a topic with one replica can be
    written to in a cluster whose default is two; what a topic says itself is never bent, and
    refused above its replication factor when it is set (rule M8). Never depends on who is alive.
    """
    explicit = configs.get(MIN_INSYNC_REPLICAS)
    if explicit is not None:
        return integer_value(configs, MIN_INSYNC_REPLICAS, default)
    return max(1, min(default, replication_factor))
