"""The interface of aiokafka 0.14: its programs run here after one changed import line.

    from quorumlog.compat.aiokafka import AIOKafkaConsumer, AIOKafkaProducer

The classes have aiokafka's names, signatures, defaults and meanings, over `AsyncProducer`,
`AsyncConsumer` and `AsyncAdmin`. Values and keys are bytes in both directions. The docstrings of
`http_api.client.compat.aiokafka_producer` and ``aiokafka_consumer`` list the differences; the first
of them: **a key lands in the partition of its crc32, and not of its murmur2**, so another partition
than a Kafka client chooses.
"""

from http_api.client.compat.aiokafka_client import AIOKafkaClient
from http_api.client.compat.aiokafka_consumer import AIOKafkaConsumer
from http_api.client.compat.aiokafka_errors import ConsumerStoppedError, IllegalOperation
from http_api.client.compat.aiokafka_producer import AIOKafkaProducer
from http_api.client.compat.aiokafka_settings import LIBRARY_VERSION
from http_api.client.compat.aiokafka_types import (
    ConsumerRebalanceListener,
    ConsumerRecord,
    OffsetAndMetadata,
    OffsetAndTimestamp,
    TopicPartition,
)

__version__ = LIBRARY_VERSION

__all__ = [
    "AIOKafkaClient",
    "AIOKafkaConsumer",
    "AIOKafkaProducer",
    "ConsumerRebalanceListener",
    "ConsumerRecord",
    "ConsumerStoppedError",
    "IllegalOperation",
    "OffsetAndMetadata",
    "OffsetAndTimestamp",
    "TopicPartition",
    "__version__",
]
