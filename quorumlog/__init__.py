"""The Python client of quorumlog, a replicated commit log with Kafka's semantics over HTTP.

    from quorumlog import Consumer, Producer

    with Producer("127.0.0.1:8082") as producer:
        producer.produce("orders", {"id": 1}, key="alice")
        receipt = producer.send("orders", {"id": 2}, key="alice")

    with Consumer("127.0.0.1:8082", group_id="g", auto_offset_reset="earliest") as consumer:
        consumer.subscribe(["orders"])
        for record in consumer:
            print(record.key, record.value)

`Producer`, `Consumer` and `Admin` work in threads. `AsyncProducer`, `AsyncConsumer` and
`AsyncAdmin` are their asyncio twins, and need aiohttp. Each is imported when it is first used. The
guide is docs/guides/python-sdk.md.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from http_api.client.client_errors import (
    AdminError,
    ApiError,
    AuthenticationError,
    AuthorizationError,
    BufferFullError,
    ClosedError,
    CommitError,
    CommittingError,
    ConfigError,
    DeliveryError,
    FencedError,
    InvalidRecordError,
    LogTruncatedError,
    OffsetOutOfRangeError,
    OutcomeUnknownError,
    ProtocolError,
    QuorumlogError,
    ThrottledError,
    TransactionAbortedError,
    TransactionStateError,
    UnreachableError,
    UnreadableRecordError,
    WakeupError,
)
from http_api.client.network import ClientSecurity
from http_api.client.sdk.record_types import (
    OFFSET_BEGINNING,
    OFFSET_END,
    ConsumerGroupMetadata,
    NewRecord,
    Receipt,
    Record,
    TopicPartition,
)

if TYPE_CHECKING:
    from http_api.client.sdk.admin_client import Admin as Admin
    from http_api.client.sdk.admin_resources import ClusterDescription as ClusterDescription
    from http_api.client.sdk.admin_resources import ClusterHealth as ClusterHealth
    from http_api.client.sdk.admin_resources import ClusterHealthReason as ClusterHealthReason
    from http_api.client.sdk.admin_resources import ConfigResource as ConfigResource
    from http_api.client.sdk.admin_resources import (
        ConsumerGroupDescription as ConsumerGroupDescription,
    )
    from http_api.client.sdk.admin_resources import ConsumerGroupMember as ConsumerGroupMember
    from http_api.client.sdk.admin_resources import NewTopic as NewTopic
    from http_api.client.sdk.admin_resources import QuorumDescription as QuorumDescription
    from http_api.client.sdk.admin_resources import QuorumObserver as QuorumObserver
    from http_api.client.sdk.admin_resources import QuorumVoter as QuorumVoter
    from http_api.client.sdk.admin_resources import TopicDescription as TopicDescription
    from http_api.client.sdk.async_admin_client import AsyncAdmin as AsyncAdmin
    from http_api.client.sdk.async_consumer import AsyncConsumer as AsyncConsumer
    from http_api.client.sdk.async_producer import AsyncProducer as AsyncProducer
    from http_api.client.sdk.consumer import Consumer as Consumer
    from http_api.client.sdk.one_shot import atransact as atransact
    from http_api.client.sdk.one_shot import transact as transact
    from http_api.client.sdk.producer import Producer as Producer

__all__ = [
    "OFFSET_BEGINNING",
    "OFFSET_END",
    "Admin",
    "AdminError",
    "ApiError",
    "AsyncAdmin",
    "AsyncConsumer",
    "AsyncProducer",
    "AuthenticationError",
    "AuthorizationError",
    "BufferFullError",
    "ClientSecurity",
    "ClosedError",
    "ClusterDescription",
    "ClusterHealth",
    "ClusterHealthReason",
    "CommitError",
    "CommittingError",
    "ConfigError",
    "ConfigResource",
    "Consumer",
    "ConsumerGroupDescription",
    "ConsumerGroupMember",
    "ConsumerGroupMetadata",
    "DeliveryError",
    "FencedError",
    "InvalidRecordError",
    "LogTruncatedError",
    "NewRecord",
    "NewTopic",
    "OffsetOutOfRangeError",
    "OutcomeUnknownError",
    "Producer",
    "ProtocolError",
    "QuorumDescription",
    "QuorumObserver",
    "QuorumVoter",
    "QuorumlogError",
    "Receipt",
    "Record",
    "ThrottledError",
    "TopicDescription",
    "TopicPartition",
    "TransactionAbortedError",
    "TransactionStateError",
    "UnreachableError",
    "UnreadableRecordError",
    "WakeupError",
    "atransact",
    "transact",
]

_RESOURCES = "http_api.client.sdk.admin_resources"
_LAZY = {
    "Admin": "http_api.client.sdk.admin_client",
    "AsyncAdmin": "http_api.client.sdk.async_admin_client",
    "AsyncConsumer": "http_api.client.sdk.async_consumer",
    "AsyncProducer": "http_api.client.sdk.async_producer",
    "ClusterDescription": _RESOURCES,
    "ClusterHealth": _RESOURCES,
    "ClusterHealthReason": _RESOURCES,
    "ConfigResource": _RESOURCES,
    "ConsumerGroupDescription": _RESOURCES,
    "ConsumerGroupMember": _RESOURCES,
    "NewTopic": _RESOURCES,
    "QuorumDescription": _RESOURCES,
    "QuorumObserver": _RESOURCES,
    "QuorumVoter": _RESOURCES,
    "TopicDescription": _RESOURCES,
    "Consumer": "http_api.client.sdk.consumer",
    "Producer": "http_api.client.sdk.producer",
    "atransact": "http_api.client.sdk.one_shot",
    "transact": "http_api.client.sdk.one_shot",
}
"""The classes, by their modules: a program pays for those that it uses."""


if not TYPE_CHECKING:  # a checker would take any name for one of the module

    def __getattr__(name: str) -> object:
        """Import a class when it is first used."""
        module = _LAZY.get(name)
        if module is None:
            msg = f"module 'quorumlog' has no attribute {name!r}"
            raise AttributeError(msg)
        import importlib

        found: object = getattr(importlib.import_module(module), name)
        globals()[name] = found
        return found
