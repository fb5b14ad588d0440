"""The Python client of quorumlog, a replicated commit log with Kafka's semantics over HTTP.

    from quorumlog import Producer

    with Producer("127.0.0.1:8082") as producer:
        producer.produce("orders", {"id": 1}, key="alice")
        receipt = producer.send("orders", {"id": 2}, key="alice")

`Producer` works in threads; `AsyncProducer` is its asyncio twin and needs the extra ``asyncio``
(aiohttp), which is imported on first use. The guide is docs/guides/python-sdk.md.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from http_api.client.client_errors import (
    ApiError,
    AuthenticationError,
    AuthorizationError,
    BufferFullError,
    ClosedError,
    ConfigError,
    DeliveryError,
    InvalidRecordError,
    OutcomeUnknownError,
    ProtocolError,
    QuorumlogError,
    ThrottledError,
    UnreachableError,
)
from http_api.client.network import ClientSecurity
from http_api.client.sdk.producer import Producer
from http_api.client.sdk.record_types import (
    OFFSET_BEGINNING,
    OFFSET_END,
    NewRecord,
    Receipt,
    TopicPartition,
)

if TYPE_CHECKING:
    from http_api.client.sdk.async_producer import AsyncProducer as AsyncProducer

__all__ = [
    "OFFSET_BEGINNING",
    "OFFSET_END",
    "ApiError",
    "AsyncProducer",
    "AuthenticationError",
    "AuthorizationError",
    "BufferFullError",
    "ClientSecurity",
    "ClosedError",
    "ConfigError",
    "DeliveryError",
    "InvalidRecordError",
    "NewRecord",
    "OutcomeUnknownError",
    "Producer",
    "ProtocolError",
    "QuorumlogError",
    "Receipt",
    "ThrottledError",
    "TopicPartition",
    "UnreachableError",
]

_LAZY = {"AsyncProducer": "http_api.client.sdk.async_producer"}
"""Names that need aiohttp, by their modules."""


def __getattr__(name: str) -> object:
    """Import an asyncio class when it is first used."""
    module = _LAZY.get(name)
    if module is None:
        msg = f"module 'quorumlog' has no attribute {name!r}"
        raise AttributeError(msg)
    import importlib

    found: object = getattr(importlib.import_module(module), name)
    globals()[name] = found
    return found
