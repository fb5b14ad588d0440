"""Serializers of confluent-kafka, and the two classes that use them.

`SerializingProducer` and `DeserializingConsumer` call serializers with a `SerializationContext`.
Those for texts, integers and doubles are here; any callable serves for others, such as JSON. Schema
registries are not supported.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Mapping
from enum import StrEnum
from typing import Any, Final, Generic

from typing_extensions import TypeVar, override

from http_api.client.compat.confluent_consumer import Consumer
from http_api.client.compat.confluent_errors import (
    ConsumeError,
    KeyDeserializationError,
    KeySerializationError,
    SerializationError,
    ValueDeserializationError,
    ValueSerializationError,
    argument_error,
    not_implemented,
)
from http_api.client.compat.confluent_messages import ANY_PARTITION, Message
from http_api.client.compat.confluent_producer import DeliveryCallback, Producer

K = TypeVar("K", default=Any)
V = TypeVar("V", default=Any)
Serde = Callable[..., Any]
BUILDER: Final = ".builder"


class MessageField(StrEnum):
    """The half of a message that is serialized."""

    NONE = "none"
    KEY = "key"
    VALUE = "value"


class SerializationContext:
    """Topic, half and headers of the message that is serialized."""

    def __init__(self, topic: str, field: MessageField, headers: Any = None) -> None:
        self.topic = topic
        self.field = field
        self.headers = headers


class Serializer:
    """Base of serializers: a callable from an object to bytes."""

    __slots__: tuple[str, ...] = ()

    def __call__(self, obj: Any, ctx: SerializationContext | None = None) -> bytes | None:
        """Return the object as bytes; None for None. Raises `SerializationError`."""
        raise NotImplementedError

    def set_cluster_id_resolver(self, resolver: Callable[[], Any]) -> None:
        """Take a function that returns the cluster's id; the base does nothing with it."""

    def close(self) -> None:
        """Release what the serializer made for itself; the base has nothing."""


class Deserializer:
    """Base of deserializers: a callable from bytes to an object."""

    __slots__: tuple[str, ...] = ()

    def __call__(self, value: bytes | None, ctx: SerializationContext | None = None) -> Any:
        """Return the object of some bytes; None for None. Raises `SerializationError`."""
        raise NotImplementedError

    def set_cluster_id_resolver(self, resolver: Callable[[], Any]) -> None:
        """Take a function that returns the cluster's id; the base does nothing with it."""

    def close(self) -> None:
        """Release what the deserializer made for itself; the base has nothing."""


class SerializerBuilder:
    """Base of what makes a serializer of a client's settings."""

    __slots__: tuple[str, ...] = ()

    def build(
        self,
        conf: dict[str, Any],
        is_key: bool,
    ) -> tuple[Serializer, dict[str, Any]]:
        """Return the serializer, and the settings that are left for the client."""
        raise NotImplementedError


class DeserializerBuilder:
    """Base of what makes a deserializer of a client's settings."""

    __slots__: tuple[str, ...] = ()

    def build(
        self,
        conf: dict[str, Any],
        is_key: bool,
    ) -> tuple[Deserializer, dict[str, Any]]:
        """Return the deserializer, and the settings that are left for the client."""
        raise NotImplementedError


class DoubleSerializer(Serializer):
    """Writes a float as 8 bytes, big-endian."""

    @override
    def __call__(self, obj: float | None, ctx: SerializationContext | None = None) -> bytes | None:
        return None if obj is None else _packed(">d", obj)


class DoubleDeserializer(Deserializer):
    """Reads a float of 8 bytes, big-endian."""

    @override
    def __call__(self, value: bytes | None, ctx: SerializationContext | None = None) -> Any:
        return None if value is None else _unpacked(">d", value)


class IntegerSerializer(Serializer):
    """Writes an integer as 4 bytes, signed, big-endian."""

    @override
    def __call__(self, obj: int | None, ctx: SerializationContext | None = None) -> bytes | None:
        return None if obj is None else _packed(">i", obj)


class IntegerDeserializer(Deserializer):
    """Reads an integer of 4 bytes, signed, big-endian."""

    @override
    def __call__(self, value: bytes | None, ctx: SerializationContext | None = None) -> Any:
        return None if value is None else _unpacked(">i", value)


class StringSerializer(Serializer):
    """Writes a text, as UTF-8 by default."""

    def __init__(self, codec: str = "utf_8") -> None:
        self.codec = codec

    @override
    def __call__(self, obj: str | None, ctx: SerializationContext | None = None) -> bytes | None:
        if obj is None:
            return None
        try:
            return obj.encode(self.codec)
        except UnicodeError as error:
            raise SerializationError(str(error)) from error


class StringDeserializer(Deserializer):
    """Reads a text, as UTF-8 by default."""

    def __init__(self, codec: str = "utf_8") -> None:
        self.codec = codec

    @override
    def __call__(self, value: bytes | None, ctx: SerializationContext | None = None) -> Any:
        if value is None:
            return None
        try:
            return value.decode(self.codec)
        except UnicodeError as error:
            raise SerializationError(str(error)) from error


def _packed(form: str, number: float) -> bytes:
    try:
        return struct.pack(form, number)
    except struct.error as error:
        raise SerializationError(str(error)) from error


def _unpacked(form: str, value: bytes) -> Any:
    try:
        return struct.unpack(form, value)[0]
    except struct.error as error:
        raise SerializationError(str(error)) from error


def _take_serde(conf: dict[str, Any], name: str) -> tuple[Serde | None, bool]:
    """Take a serializer or its builder out of the settings; return True if it was built here."""
    serde, builder = conf.pop(name, None), conf.pop(name + BUILDER, None)
    if serde is not None and builder is not None:
        msg = f"{name} and {name + BUILDER} are both set"
        raise ValueError(msg)
    if builder is None:
        if serde is not None and not callable(serde):
            raise argument_error(f"setting {name}: expected a callable")
        return serde, False
    built, left = builder.build(dict(conf), name.startswith("key"))
    conf.clear()
    conf.update(left)
    return built, True


class SerializingProducer(Producer, Generic[K, V]):
    """Producer that serializes keys and values by ``key.serializer`` and ``value.serializer``."""

    def __init__(self, conf: Mapping[str, Any]) -> None:
        """Take the settings of `Producer`, and the two serializers or their builders."""
        given = dict(conf)
        self._key_serializer, owns_key = _take_serde(given, "key.serializer")
        self._value_serializer, owns_value = _take_serde(given, "value.serializer")
        super().__init__(given)
        self._owned = _owned((self._key_serializer, owns_key), (self._value_serializer, owns_value))

    @override
    def produce(  # type: ignore[override]  # key before value, as confluent-kafka has it
        self,
        topic: str,
        key: K | None = None,
        value: V | None = None,
        partition: int = ANY_PARTITION,
        on_delivery: DeliveryCallback | None = None,
        timestamp: int = 0,
        headers: Any = None,
    ) -> None:
        """Serialize a key and a value, and take the message as `Producer.produce` does.

        Raises:
            KeySerializationError: The key serializer failed.
            ValueSerializationError: The value serializer failed.
            BufferError: The queue is full.
            KafkaException: As `Producer.produce`.
        """
        self._check_open()
        context = SerializationContext(topic, MessageField.KEY, headers)
        key_bytes: Any = key
        if self._key_serializer is not None:
            try:
                key_bytes = self._key_serializer(key, context)
            except Exception as error:
                raise KeySerializationError(error) from error
        context.field = MessageField.VALUE
        value_bytes: Any = value
        if self._value_serializer is not None:
            try:
                value_bytes = self._value_serializer(value, context)
            except Exception as error:
                raise ValueSerializationError(error) from error
        super().produce(
            topic,
            value_bytes,
            key_bytes,
            partition,
            on_delivery=on_delivery,
            timestamp=timestamp,
            headers=headers,
        )

    @override
    def close(self) -> bool:
        """Close the producer, then the serializers that builders made for it."""
        super().close()
        _close_all(self._owned)
        return True


class DeserializingConsumer(Consumer, Generic[K, V]):
    """Consumer that deserializes by ``key.deserializer`` and ``value.deserializer``."""

    def __init__(self, conf: Mapping[str, Any]) -> None:
        """Take the settings of `Consumer`, and the two deserializers or their builders."""
        given = dict(conf)
        self._key_deserializer, owns_key = _take_serde(given, "key.deserializer")
        self._value_deserializer, owns_value = _take_serde(given, "value.deserializer")
        super().__init__(given)
        self._owned = _owned(
            (self._key_deserializer, owns_key), (self._value_deserializer, owns_value)
        )

    @override
    def poll(self, timeout: float | None = -1) -> Message[K, V] | None:  # type: ignore[override]
        """Return the next message with its key and value deserialized, or None.

        Raises:
            ConsumeError: An event, such as the end of a partition.
            KeyDeserializationError: The key deserializer failed.
            ValueDeserializationError: The value deserializer failed.
        """
        message: Any = super().poll(timeout)
        if message is None:
            return None
        failure = message.error()
        if failure is not None:
            raise ConsumeError(failure, kafka_message=message)
        context = SerializationContext(message.topic(), MessageField.KEY, message.headers())
        key, value = message.key(), message.value()
        if self._key_deserializer is not None:
            try:
                key = self._key_deserializer(key, context)
            except Exception as error:
                raise KeyDeserializationError(error, message) from error
        context.field = MessageField.VALUE
        if self._value_deserializer is not None:
            try:
                value = self._value_deserializer(value, context)
            except Exception as error:
                raise ValueDeserializationError(error, message) from error
        message.set_key(key)
        message.set_value(value)
        found: Message[K, V] = message
        return found

    @override
    def consume(self, num_messages: int = 1, timeout: float | None = -1) -> list[Message]:
        """Raise NotImplementedError: use `poll`."""
        raise NotImplementedError

    @override
    def close(self) -> None:
        """Close the consumer, then the deserializers that builders made for it."""
        super().close()
        _close_all(self._owned)


def _owned(*serdes: tuple[Serde | None, bool]) -> list[Any]:
    return [serde for serde, is_owned in serdes if is_owned and serde is not None]


def _close_all(owned: list[Any]) -> None:
    while owned:
        owned.pop().close()


class ShareConsumer:
    """Consumer of a share group (KIP-932), which is not supported."""

    def __init__(self, config: Mapping[str, Any] | None = None, /, **keywords: Any) -> None:
        """Raise `KafkaException` with ``_NOT_IMPLEMENTED``."""
        raise not_implemented(type(self).__name__)


class DeserializingShareConsumer(ShareConsumer):
    """Share consumer with deserializers, which is not supported."""
