"""The interface of confluent-kafka 2.16 over quorumlog: `Producer`, `Consumer` and what they use.

A program for confluent-kafka runs after one changed import line:

    from quorumlog.compat.confluent_kafka import Consumer, KafkaError, Producer

Keys and values are bytes. A key lands by its crc32, as with librdkafka's default partitioner
(``consistent_random``), not by Java's murmur2; an empty key is hashed, too. Other differences are
named in `http_api.client.compat.confluent_producer`, `confluent_consumer` and `confluent_admin`.
`quorumlog.compat.confluent_kafka.admin`, ``.serialization`` and ``.error`` are there, too; the
asyncio classes of ``confluent_kafka.aio`` are not: `quorumlog.AsyncProducer` is for that.
"""

from __future__ import annotations

from http_api.client.compat.confluent_consumer import Consumer
from http_api.client.compat.confluent_errors import (
    ConcurrentModificationException,
    IllegalStateException,
    KafkaError,
    KafkaException,
)
from http_api.client.compat.confluent_messages import (
    OFFSET_BEGINNING,
    OFFSET_END,
    OFFSET_INVALID,
    OFFSET_STORED,
    TIMESTAMP_CREATE_TIME,
    TIMESTAMP_LOG_APPEND_TIME,
    TIMESTAMP_NOT_AVAILABLE,
    AcknowledgeType,
    ConsumerGroupState,
    ConsumerGroupTopicPartitions,
    ConsumerGroupType,
    ElectionType,
    IsolationLevel,
    Message,
    Messages,
    Node,
    ThrottleEvent,
    TopicCollection,
    TopicPartition,
    TopicPartitionInfo,
    Uuid,
    consistent,
    fnv1a,
    libversion,
    murmur2,
    version,
)
from http_api.client.compat.confluent_producer import Producer
from http_api.client.compat.confluent_serialization import (
    DeserializingConsumer,
    DeserializingShareConsumer,
    SerializingProducer,
    ShareConsumer,
)

__version__ = version()

__all__ = [
    "OFFSET_BEGINNING",
    "OFFSET_END",
    "OFFSET_INVALID",
    "OFFSET_STORED",
    "TIMESTAMP_CREATE_TIME",
    "TIMESTAMP_LOG_APPEND_TIME",
    "TIMESTAMP_NOT_AVAILABLE",
    "AcknowledgeType",
    "ConcurrentModificationException",
    "Consumer",
    "ConsumerGroupState",
    "ConsumerGroupTopicPartitions",
    "ConsumerGroupType",
    "DeserializingConsumer",
    "DeserializingShareConsumer",
    "ElectionType",
    "IllegalStateException",
    "IsolationLevel",
    "KafkaError",
    "KafkaException",
    "Message",
    "Messages",
    "Node",
    "Producer",
    "SerializingProducer",
    "ShareConsumer",
    "ThrottleEvent",
    "TopicCollection",
    "TopicPartition",
    "TopicPartitionInfo",
    "Uuid",
    "consistent",
    "fnv1a",
    "libversion",
    "murmur2",
    "version",
]
