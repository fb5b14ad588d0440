"""Settings, errors, batches and decoded pages of aiokafka's adapter, without a cluster."""

from __future__ import annotations

import asyncio
import logging
import ssl
from typing import Any

import pytest

from http_api.client.client_errors import (
    AuthenticationError,
    BufferFullError,
    CommitError,
    ConfigError,
    DeliveryError,
    OffsetOutOfRangeError,
    OutcomeUnknownError,
    QuorumlogError,
    UnreachableError,
    api_error,
)
from http_api.client.compat.aiokafka_batches import (
    BATCH_HEADER_BYTES,
    RECORD_OVERHEAD_BYTES,
    BatchBuilder,
    content_bytes,
)
from http_api.client.compat.aiokafka_consumer import consumer_settings
from http_api.client.compat.aiokafka_errors import kafka_error
from http_api.client.compat.aiokafka_settings import common_settings
from http_api.client.compat.aiokafka_types import (
    RangePartitionAssignor,
    RoundRobinPartitionAssignor,
    StickyPartitionAssignor,
)
from http_api.client.network import ClientNetwork, ClientSecurity
from quorumlog.compat.aiokafka import AIOKafkaConsumer, AIOKafkaProducer, errors
from quorumlog.compat.aiokafka.abc import AbstractTokenProvider
from quorumlog.compat.aiokafka.helpers import create_ssl_context

GIVEN: dict[str, Any] = {
    "api_version": None,
    "bootstrap_servers": "localhost",
    "client_id": "c",
    "metadata_max_age_ms": 1,
    "request_timeout_ms": 2,
    "sasl_mechanism": "PLAIN",
    "sasl_plain_password": None,
    "sasl_plain_username": None,
    "security_protocol": "PLAINTEXT",
    "ssl_context": None,
}
"""Settings as a constructor passes them on."""

SIZES: list[tuple[bytes | None, bytes | None, list[tuple[str, bytes | None]], int, int, int]] = [
    (None, b"v", [], 0, 8, 86),
    (b"k", b"v" * 10, [], 5, 18, 96),
    (b"k" * 200, None, [("a", b"b"), ("n", None)], -70, 217, 293),
    (b"", b"x" * 70_000, [("é", b"")], 1 << 40, 70_020, 70_091),
]
"""Key, value, headers, milliseconds after the first record; bytes as second record of a batch, and
the estimate for `send`, recorded from aiokafka 0.14.0."""


@pytest.mark.parametrize(("key", "value", "headers", "later_ms", "size", "estimate"), SIZES)
def test_sizes_are_those_of_the_library(
    key: bytes | None,
    value: bytes | None,
    headers: list[tuple[str, bytes | None]],
    later_ms: int,
    size: int,
    estimate: int,
) -> None:
    """A batch is full at the same record as with aiokafka."""
    batch = BatchBuilder(1 << 20, 0)
    batch.append(timestamp=1_000, key=b"a", value=b"b")
    before = batch.size()
    added = batch.append(timestamp=1_000 + later_ms, key=key, value=value, headers=headers)
    assert added is not None
    assert (added.offset, added.size, added.timestamp) == (1, size, 1_000 + later_ms)
    assert batch.size() == before + size
    found = BATCH_HEADER_BYTES + RECORD_OVERHEAD_BYTES + content_bytes(key, value, headers)
    assert found == estimate


def test_a_batch_takes_one_large_record_and_then_none() -> None:
    """A first record always fits; a closed batch takes nothing; only bytes are taken."""
    batch = BatchBuilder(100, 0)
    with pytest.raises(TypeError, match="bytes-like object is required, not 'str'"):
        batch.append(timestamp=None, key=None, value="text")
    assert batch.append(timestamp=None, key=None, value=b"x" * 1_000) is not None
    assert not batch.closed()
    assert batch.append(timestamp=None, key=None, value=b"x") is None
    assert batch.closed()
    assert batch.record_count() == 1
    other = BatchBuilder(100, 0)
    other.close()
    assert other.append(timestamp=None, key=None, value=b"x") is None


def test_servers() -> None:
    """Names get the scheme of the protocol and our port; URLs stay; the default is ours."""
    context = create_ssl_context()
    rows: list[tuple[dict[str, Any], list[str] | None]] = [
        ({}, None),
        ({"bootstrap_servers": "a:1, b"}, ["http://a:1", "http://b:8082"]),
        ({"bootstrap_servers": ["a:1", "https://b/p"]}, ["http://a:1", "https://b/p"]),
        ({"bootstrap_servers": "[::1]"}, ["http://[::1]:8082"]),
        (
            {"bootstrap_servers": "a:1", "security_protocol": "SSL", "ssl_context": context},
            ["https://a:1"],
        ),
    ]
    for more, expected in rows:
        assert common_settings(GIVEN | more).get("bootstrap_servers") == expected


def test_security() -> None:
    """A TLS context and SASL PLAIN are used; other mechanisms are refused by name."""
    assert common_settings(GIVEN)["security"] is None
    context = create_ssl_context()
    assert context.check_hostname
    found = common_settings(
        GIVEN
        | {
            "security_protocol": "SASL_SSL",
            "ssl_context": context,
            "sasl_plain_username": "u",
            "sasl_plain_password": "p",
        }
    )["security"]
    assert found == ClientSecurity(context=context, user="u", password="p")
    with pytest.raises(ValueError, match="ssl_context is mandatory"):
        common_settings(GIVEN | {"security_protocol": "SSL"})
    with pytest.raises(ValueError, match="security_protocol"):
        common_settings(GIVEN | {"security_protocol": "TLS"})
    with pytest.raises(ValueError, match="sasl_plain_username"):
        common_settings(GIVEN | {"security_protocol": "SASL_PLAINTEXT"})
    for mechanism in ("GSSAPI", "SCRAM-SHA-256", "SCRAM-SHA-512", "OAUTHBEARER"):
        with pytest.raises(errors.UnsupportedSaslMechanismError, match=mechanism):
            common_settings(
                GIVEN | {"security_protocol": "SASL_PLAINTEXT", "sasl_mechanism": mechanism}
            )


def test_a_context_takes_the_place_of_files() -> None:
    """Connections use a given TLS context; beside files it is refused."""
    context = ssl.create_default_context()
    assert ClientNetwork(security=ClientSecurity(context=context)).tls_context() is context
    with pytest.raises(ConfigError, match="context takes the place"):
        ClientSecurity(context=context, ca="ca.pem")


def test_settings_without_effect_warn(caplog: pytest.LogCaptureFixture) -> None:
    """Only those that a program sets to something else than the default."""
    with caplog.at_level(logging.WARNING):
        common_settings(GIVEN | {"connections_max_idle_ms": 540_000, "compression_type": None})
    assert caplog.records == []
    with caplog.at_level(logging.WARNING):
        common_settings(GIVEN | {"connections_max_idle_ms": 1, "compression_type": "gzip"})
    assert [one.getMessage().split()[3] for one in caplog.records] == [
        "name=compression_type",
        "name=connections_max_idle_ms",
    ]


async def test_settings_that_are_refused() -> None:
    """Settings that change where or how safely records land: an error that names them."""
    with pytest.raises(errors.KafkaConfigurationError, match="transactional_id"):
        AIOKafkaProducer(transactional_id="key:t")
    with pytest.raises(ValueError, match="enable_idempotence"):
        AIOKafkaProducer(acks=1, transactional_id="t")
    with pytest.raises(ValueError, match="acks"):
        AIOKafkaProducer(acks=2)
    with pytest.raises(ValueError, match="enable_idempotence"):
        AIOKafkaProducer(acks=1, enable_idempotence=True)
    with pytest.raises(ValueError, match="compression_type"):
        AIOKafkaProducer(compression_type="lzma")
    with pytest.raises(errors.KafkaConfigurationError, match="session_timeout_ms"):
        AIOKafkaConsumer(session_timeout_ms=5)
    with pytest.raises(ValueError, match="max_poll_records"):
        AIOKafkaConsumer(max_poll_records=0)
    with pytest.raises(TypeError, match="topics"):
        AIOKafkaConsumer().subscribe()
    with pytest.raises(ValueError, match="pattern"):
        AIOKafkaConsumer().subscribe(pattern="(")
    with pytest.raises(TypeError, match="listener"):
        AIOKafkaConsumer().subscribe(["t"], listener=print)  # type: ignore[arg-type]
    with pytest.raises(errors.IllegalStateError, match="not started"):
        await AIOKafkaConsumer("t").getone()
    with pytest.raises(errors.IllegalStateError, match="not started"):
        await AIOKafkaProducer().send("t", b"")
    with pytest.warns(DeprecationWarning, match="loop"):
        AIOKafkaProducer(loop=asyncio.get_running_loop())
    with pytest.warns(DeprecationWarning, match="api_version"):
        AIOKafkaConsumer(api_version="auto")


def test_no_object_without_a_loop() -> None:
    """As in the library, an object belongs to the loop that runs."""
    with pytest.raises(RuntimeError):
        AIOKafkaProducer()


def test_assignors() -> None:
    """The library's assignors by their names; one of the program is refused."""
    names = (
        "auto_commit_interval_ms auto_offset_reset client_rack enable_auto_commit fetch_max_bytes "
        "fetch_max_wait_ms fetch_min_bytes group_id group_instance_id isolation_level "
        "max_partition_fetch_bytes max_poll_interval_ms session_timeout_ms"
    )
    given: dict[str, Any] = dict.fromkeys(names.split(), 1)
    strategies = {
        RoundRobinPartitionAssignor: None,
        StickyPartitionAssignor: "uniform",
        RangePartitionAssignor: "range",
    }
    for strategy, ours in strategies.items():
        found = consumer_settings(given | {"partition_assignment_strategy": [strategy]})
        assert found["assignor"] == ours
        assert found["fetch_max_wait_ms"] == 30_000
    with pytest.raises(errors.KafkaConfigurationError, match="partition_assignment_strategy"):
        consumer_settings(given | {"partition_assignment_strategy": [print]})
    waiting = given | {"partition_assignment_strategy": ["range"], "fetch_min_bytes": 2}
    assert consumer_settings(waiting)["fetch_max_wait_ms"] == 1


def coded(error: QuorumlogError, code: int) -> QuorumlogError:
    error.code = code
    return error


@pytest.mark.parametrize(
    ("error", "kind"),
    [
        (UnreachableError("x"), errors.KafkaConnectionError),
        (OutcomeUnknownError("x"), errors.KafkaTimeoutError),
        (BufferFullError("x"), errors.KafkaTimeoutError),
        (ConfigError("x"), errors.KafkaConfigurationError),
        (CommitError("x"), errors.CommitFailedError),
        (OffsetOutOfRangeError("x"), errors.NoOffsetForPartitionError),
        (coded(OffsetOutOfRangeError("x"), 40_002), errors.OffsetOutOfRangeError),
        (AuthenticationError(401, 40_101, "x", {}), errors.AuthenticationFailedError),
        (api_error(413, 413, "x", {}), errors.MessageSizeTooLargeError),
        (api_error(404, 40_401, "x", {}), errors.UnknownTopicOrPartitionError),
        (api_error(429, 429, "x", {}), errors.QuotaViolationError),
        (DeliveryError(1, UnreachableError("x")), errors.KafkaConnectionError),
        (QuorumlogError("x"), errors.KafkaError),
    ],
)
def test_errors_of_ours_as_the_librarys(
    error: QuorumlogError, kind: type[errors.KafkaError]
) -> None:
    """Each has its class, our text, and ours as its cause."""
    found = kafka_error(error)
    assert type(found) is kind
    assert "x" in str(found)
    assert isinstance(found.__cause__, QuorumlogError)


def test_texts_of_errors() -> None:
    """Texts name the class and the number, as in the library."""
    assert str(errors.KafkaTimeoutError()) == "KafkaTimeoutError"
    assert str(errors.KafkaTimeoutError("late")) == "KafkaTimeoutError: late"
    number = errors.NotEnoughReplicasError("few")
    assert str(number) == "[Error 19] NotEnoughReplicasError: few"
    assert issubclass(errors.CommitFailedError, errors.KafkaError)


async def test_a_token_provider_can_be_written() -> None:
    """The class that programs derive from is there, though OAUTHBEARER is refused."""

    class Provider(AbstractTokenProvider):
        async def token(self) -> str:
            return "t"

    assert await Provider().token() == "t"
    assert Provider().extensions() == {}
    with pytest.raises(errors.UnsupportedSaslMechanismError):
        AIOKafkaProducer(
            security_protocol="SASL_PLAINTEXT",
            sasl_mechanism="OAUTHBEARER",
            sasl_oauth_token_provider=Provider(),
        )
