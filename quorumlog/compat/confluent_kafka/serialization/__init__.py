"""Serializers with the interface of ``confluent_kafka.serialization``."""

from __future__ import annotations

from http_api.client.compat.confluent_errors import SerializationError
from http_api.client.compat.confluent_serialization import (
    Deserializer,
    DeserializerBuilder,
    DoubleDeserializer,
    DoubleSerializer,
    IntegerDeserializer,
    IntegerSerializer,
    MessageField,
    SerializationContext,
    Serializer,
    SerializerBuilder,
    StringDeserializer,
    StringSerializer,
)

__all__ = [
    "Deserializer",
    "DeserializerBuilder",
    "DoubleDeserializer",
    "DoubleSerializer",
    "IntegerDeserializer",
    "IntegerSerializer",
    "MessageField",
    "SerializationContext",
    "SerializationError",
    "Serializer",
    "SerializerBuilder",
    "StringDeserializer",
    "StringSerializer",
]
