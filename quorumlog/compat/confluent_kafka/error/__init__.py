"""Errors with the interface of ``confluent_kafka.error``."""

from __future__ import annotations

from http_api.client.compat.confluent_errors import (
    ConsumeError,
    KafkaError,
    KafkaException,
    KeyDeserializationError,
    KeySerializationError,
    ProduceError,
    ValueDeserializationError,
    ValueSerializationError,
)

__all__ = [
    "ConsumeError",
    "KafkaError",
    "KafkaException",
    "KeyDeserializationError",
    "KeySerializationError",
    "ProduceError",
    "ValueDeserializationError",
    "ValueSerializationError",
]
