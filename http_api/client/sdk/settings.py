"""Settings of the SDK's classes: their kinds and defaults, and reading what a program gives. Pure.

A program gives keywords (``linger_ms=5``), or one mapping with Kafka's dotted names
(``{"linger.ms": 5}``). The classes read either with `read_settings`. It refuses what it does not
know and names the nearest setting; it warns of Kafka's settings that have no meaning here, and
refuses those that would change where or how safely records land.
"""

from __future__ import annotations

import dataclasses
import logging
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Final, TypedDict, TypeVar
from urllib.parse import urlsplit

from http_api.client.client_errors import ConfigError
from http_api.client.network import ClientSecurity

_Config = TypeVar("_Config", bound="CommonConfig")

URL_VARIABLE: Final = "QUORUMLOG_URL"
"""Environment variable with the brokers, if a program names none."""
DEFAULT_SERVERS: Final = "http://127.0.0.1:8082"
DAY_MS: Final = 86_400_000
BYTES_MAX: Final = 1 << 40
_TRUE: Final = frozenset({"true", "1", "yes"})
_FALSE: Final = frozenset({"false", "0", "no"})

_log = logging.getLogger("quorumlog.net")


# kinds of settings: each reads a value, and raises `ConfigError` naming the setting


def _wrong(name: str, value: object, expected: str) -> ConfigError:
    return ConfigError(f"setting {name}={value!r}: expected {expected}")


def _read_integer(least: int, most: int, name: str, value: object) -> int:
    expected = f"an integer from {least} to {most}"
    if isinstance(value, str):
        try:
            value = int(value)
        except ValueError:
            raise _wrong(name, value, expected) from None
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    if not isinstance(value, int) or isinstance(value, bool) or not least <= value <= most:
        raise _wrong(name, value, expected)
    return value


def _read_flag(name: str, value: object) -> bool:
    if isinstance(value, str) and value.lower() in _TRUE | _FALSE:
        return value.lower() in _TRUE
    if not isinstance(value, bool):
        raise _wrong(name, value, "True or False")
    return value


def _read_text(name: str, value: object) -> str | None:
    if value is None:
        return None
    if not isinstance(value, str) or not value:
        raise _wrong(name, value, "a text that is not empty")
    return value


def _read_word(words: Sequence[str], name: str, value: object) -> str:
    if value not in words:
        raise _wrong(name, value, f"one of {', '.join(words)}")
    return str(value)


def _read_function(name: str, value: object) -> Callable[..., Any] | None:
    if value is not None and not callable(value):
        raise _wrong(name, value, "a function")
    return value


def integer(default: int, least: int, most: int) -> Any:
    """Return a dataclass field for a whole number within bounds."""
    return field(default=default, metadata={"read": partial(_read_integer, least, most)})


def flag(*, default: bool) -> Any:
    """Return a dataclass field for True or False."""
    return field(default=default, metadata={"read": _read_flag})


def text(default: str | None = None) -> Any:
    """Return a dataclass field for a text, or None."""
    return field(default=default, metadata={"read": _read_text})


def word(default: str, words: Sequence[str]) -> Any:
    """Return a dataclass field for one of several words."""
    return field(default=default, metadata={"read": partial(_read_word, words)})


def function() -> Any:
    """Return a dataclass field for a function, or None."""
    return field(default=None, metadata={"read": _read_function})


def custom(default: object, read: Callable[[str, object], object]) -> Any:
    """Return a dataclass field whose value ``read(name, value)`` checks and returns."""
    return field(default=default, metadata={"read": read})


# settings of all classes


def read_servers(name: str, value: object) -> tuple[str, ...]:
    """Return the brokers' URLs, without a slash at the end, of a text with commas or a list.

    ``host:port`` is ``http://host:port``; a URL may have a path, the prefix of a proxy.
    """
    given = value.split(",") if isinstance(value, str) else value
    if not isinstance(given, Sequence):
        raise _wrong(name, value, "host:port, a URL, or a list of them")
    urls = [_server_url(name, one) for one in given if one != ""]
    if not urls:
        raise _wrong(name, value, "at least one host:port or URL")
    return tuple(dict.fromkeys(urls))


def _server_url(name: str, value: object) -> str:
    expected = "host:port, http://host:port or https://host:port, with a path or without"
    if not isinstance(value, str):
        raise _wrong(name, value, expected)
    url = value.strip()
    url = (url if "://" in url else f"http://{url}").rstrip("/")
    try:
        parts = urlsplit(url)
        has_port = parts.port is not None or "://" in value
    except ValueError:
        raise _wrong(name, value, expected) from None
    is_plain = not (parts.query or parts.fragment or parts.username or parts.password)
    if parts.scheme not in {"http", "https"} or not parts.hostname or not has_port or not is_plain:
        raise _wrong(name, value, expected)
    return url


def _read_headers(name: str, value: object) -> object:
    if value is None or callable(value):
        return value
    if not isinstance(value, Mapping) or not all(
        isinstance(key, str) and isinstance(one, str) for key, one in value.items()
    ):
        raise _wrong(name, value, "a mapping of texts, or a function that returns one")
    return dict(value)


def _read_security(name: str, value: object) -> object:
    if value is not None and not isinstance(value, ClientSecurity):
        raise _wrong(name, value, "a ClientSecurity")
    return value


@dataclass(frozen=True, slots=True, kw_only=True)
class CommonConfig:
    """Settings of every class. Times are in milliseconds."""

    bootstrap_servers: tuple[str, ...] = custom((), read_servers)
    """URLs of the brokers to ask first; `read_settings` fills them in where none is given."""
    client_id: str | None = text()
    """Name of this client in the brokers' access logs and in groups."""
    headers: Mapping[str, str] | Callable[[], Mapping[str, str]] | None = field(
        default=None, repr=False, metadata={"read": _read_headers}
    )
    """Headers of every request. A function is called for each new connection and after a 401."""
    security: ClientSecurity | None = custom(None, _read_security)
    follow_leaders: bool = flag(default=True)
    """Send requests about a partition to its leader, not only to the given brokers."""
    connect_timeout_ms: int = integer(3_000, 1, DAY_MS)
    request_timeout_ms: int = integer(30_000, 1, DAY_MS)
    """Longest wait for the answer to one attempt."""
    api_timeout_ms: int = integer(60_000, 1, DAY_MS)
    """Longest time for a call with its retries, if the call names no ``timeout``."""
    metadata_max_age_ms: int = integer(300_000, 1, DAY_MS)
    """Age at which partitions and topics are looked up again."""
    rebootstrap_trigger_ms: int = integer(10_000, 0, DAY_MS)
    """Without an answer for so long, only the given brokers are asked, by names resolved anew."""
    on_error: Callable[[Exception], None] | None = function()
    """Called with what went wrong and heals by itself, or moved a position."""
    on_stats: Callable[[dict[str, Any]], None] | None = function()
    """Called with `metrics()` every ``stats_interval_ms``."""
    stats_interval_ms: int = integer(0, 0, DAY_MS)


class CommonKeywords(TypedDict, total=False):
    """Keywords of every class, for type checkers: the fields of `CommonConfig`."""

    bootstrap_servers: str | Sequence[str]
    client_id: str | None
    headers: Mapping[str, str] | Callable[[], Mapping[str, str]] | None
    security: ClientSecurity | None
    follow_leaders: bool
    connect_timeout_ms: int
    request_timeout_ms: int
    api_timeout_ms: int
    metadata_max_age_ms: int
    rebootstrap_trigger_ms: int
    on_error: Callable[[Exception], None] | None
    on_stats: Callable[[dict[str, Any]], None] | None
    stats_interval_ms: int


ALIASES: Final = {
    "max_in_flight_requests_per_connection": "max_in_flight",
    "client_rack": "rack",
    "default_api_timeout_ms": "api_timeout_ms",
    "metadata_recovery_rebootstrap_trigger_ms": "rebootstrap_trigger_ms",
    "socket_connection_setup_timeout_ms": "connect_timeout_ms",
    "statistics_interval_ms": "stats_interval_ms",
    "queue_buffering_max_ms": "linger_ms",
    "fetch_wait_max_ms": "fetch_max_wait_ms",
    "message_timeout_ms": "delivery_timeout_ms",
}
"""Kafka's and librdkafka's names of settings that have a shorter or another name here."""

WITHOUT_EFFECT: Final = {
    "retries": "delivery_timeout_ms limits retries",
    "compression_type": "the topic's compression.type decides",
    "compression_codec": "the topic's compression.type decides",
    "send_buffer_bytes": "the system chooses",
    "receive_buffer_bytes": "the system chooses",
    "socket_keepalive_enable": "connections are HTTP's",
    "connections_max_idle_ms": "brokers close idle connections",
    "reconnect_backoff_ms": "retry_backoff_ms is used",
    "reconnect_backoff_max_ms": "retry_backoff_max_ms is used",
    "max_request_size": "the topic's max.message.bytes decides",
    "message_max_bytes": "the topic's max.message.bytes decides",
    "heartbeat_interval_ms": "the coordinator chooses it",
    "group_protocol": "there is one protocol, KIP-848's",
    "check_crcs": "brokers check them",
    "exclude_internal_topics": "patterns never match internal topics",
    "max_poll_records": "consume(num_messages) says how many",
    "api_version_request": "there is one version",
    "broker_version_fallback": "there is one version",
    "log_level": "use Python's logging",
    "debug": "use Python's logging",
    "queue_buffering_max_messages": "buffer_memory limits the bytes",
    "batch_num_messages": "batch_size limits the bytes",
}
"""Kafka's settings without a meaning here, by the reason; they cause a warning."""

REFUSED: Final = {
    "sasl_mechanism": "use security=ClientSecurity(user=…, password=…) or token=…",
    "sasl_mechanisms": "use security=ClientSecurity(user=…, password=…) or token=…",
    "sasl_username": "use security=ClientSecurity(user=…)",
    "sasl_password": "use security=ClientSecurity(password=…)",
    "sasl_jaas_config": "use security=ClientSecurity(user=…, password=…) or token=…",
    "ssl_ca_location": "use security=ClientSecurity(ca=…)",
    "ssl_certificate_location": "use security=ClientSecurity(certificate=…)",
    "ssl_key_location": "use security=ClientSecurity(key=…)",
    "ssl_keystore_location": "use security=ClientSecurity(certificate=…, key=…), PEM files",
    "ssl_truststore_location": "use security=ClientSecurity(ca=…), a PEM file",
    "enable_ssl_certificate_verification": "certificates are always verified",
    "partition_assignment_strategy": "use assignor='uniform' or 'range'",
    "enable_gapless_guarantee": "use enable_idempotence=True",
}
"""Kafka's settings that change where or how safely records land, by what to use instead."""


def given_settings(
    first: str | Sequence[str] | Mapping[str, object] | None, keywords: Mapping[str, object]
) -> dict[str, object]:
    """Return the settings that a program gives as first argument and as keywords, by our names.

    The first argument is the brokers, or a mapping with Kafka's dotted names.
    """
    given: dict[str, object] = {}
    if isinstance(first, Mapping):
        given.update({str(name).replace(".", "_"): value for name, value in first.items()})
    elif first is not None:
        given["bootstrap_servers"] = first
    for name, value in keywords.items():
        if name in given:
            msg = f"setting {name} is given twice"
            raise ConfigError(msg)
        given[name] = value
    return given


def read_settings(config: type[_Config], given: Mapping[str, object]) -> _Config:
    """Return the settings of a class, each given one checked, the others at their defaults.

    Raises:
        ConfigError: A setting is unknown, of the wrong kind or out of bounds, or would change where
            or how safely records land. The text names it.
    """
    fields = {one.name: one for one in dataclasses.fields(config)}
    values: dict[str, Any] = {}
    for written, value in given.items():
        name = ALIASES.get(written, written)
        if name not in fields:
            _refuse_or_warn(written, value, fields)
        elif name in values:
            msg = f"settings {name} and {written} are the same one, given twice"
            raise ConfigError(msg)
        else:
            values[name] = fields[name].metadata["read"](name, value)
    if not values.get("bootstrap_servers"):
        servers = os.environ.get(URL_VARIABLE) or DEFAULT_SERVERS
        values["bootstrap_servers"] = read_servers(URL_VARIABLE, servers)
    return config(**values)


def _refuse_or_warn(name: str, value: object, known: Mapping[str, object]) -> None:
    if name in WITHOUT_EFFECT:
        _log.warning("setting without effect name=%s reason=%s", name, WITHOUT_EFFECT[name])
        return
    if name == "security_protocol" and str(value).upper() == "PLAINTEXT":
        return
    if name in REFUSED:
        msg = f"setting {name} is not supported: {REFUSED[name]}"
    elif name == "security_protocol":
        msg = "setting security_protocol is not supported: name brokers by https:// URLs"
    else:
        from http_api.contract.grammar import nearest

        hint = nearest(name, [*known, *ALIASES])
        msg = f"unknown setting {name!r}" + (f", did you mean {hint!r}?" if hint else "")
    raise ConfigError(msg)
