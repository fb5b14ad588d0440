"""Settings of aiokafka, made into those of our classes; and `create_ssl_context`.

The adapters read their keywords with `common_settings`. One without a meaning here causes a
warning if a program sets it; one that can't be honoured raises an error of aiokafka.
"""

from __future__ import annotations

import asyncio
import logging
import ssl
import warnings
from collections.abc import Callable, Mapping, Sequence
from os import PathLike
from typing import Any, Final

from typing_extensions import Buffer

from http_api.client.client_errors import ConfigError
from http_api.client.compat.aiokafka_errors import (
    KafkaConfigurationError,
    UnsupportedSaslMechanismError,
)
from http_api.client.network import ClientSecurity

LIBRARY_VERSION: Final = "0.14.0"
"""Version of aiokafka with this interface."""
DEFAULT_HOST: Final = "localhost"
"""Stands for ``$QUORUMLOG_URL``, or else for port 8082 of this machine."""
DEFAULT_PORT: Final = 8082
PROTOCOLS: Final = ("SSL", "PLAINTEXT", "SASL_PLAINTEXT", "SASL_SSL")
MECHANISMS: Final = ("PLAIN", "GSSAPI", "SCRAM-SHA-256", "SCRAM-SHA-512", "OAUTHBEARER")

WITHOUT_EFFECT: Final[Mapping[str, tuple[object, str]]] = {
    "check_crcs": (True, "brokers check them"),
    "compression_type": (None, "the topic's compression.type decides"),
    "connections_max_idle_ms": (540_000, "brokers close idle connections"),
    "consumer_timeout_ms": (200, "a rebalance wakes a waiting call"),
    "exclude_internal_topics": (True, "patterns never match internal topics"),
    "heartbeat_interval_ms": (3_000, "the coordinator chooses it"),
    "rebalance_timeout_ms": (None, "max_poll_interval_ms is used"),
    "sasl_kerberos_domain_name": (None, "there is no Kerberos"),
    "sasl_kerberos_service_name": ("kafka", "there is no Kerberos"),
}
"""Settings without a meaning here, by their defaults and the reason."""

_log = logging.getLogger("quorumlog.net")


def running_loop(loop: asyncio.AbstractEventLoop | None) -> asyncio.AbstractEventLoop:
    """Return the loop that an object is made for; RuntimeError outside of a coroutine."""
    if loop is None:
        return asyncio.get_running_loop()
    text = "The loop argument is deprecated since 0.7.1"
    warnings.warn(text, DeprecationWarning, stacklevel=3)
    return loop


def common_settings(given: Mapping[str, Any]) -> dict[str, Any]:
    """Return the settings that all of our classes share; warn of those without effect.

    Args:
        given: All keywords of the adapter's constructor, defaults included.

    Raises:
        ValueError: A setting is wrong, as aiokafka has it.
        UnsupportedSaslMechanismError: Credentials of another kind than SASL PLAIN.
    """
    if given["api_version"] is not None:
        text = "The `api_version` parameter has been deprecated since 0.13.0"
        warnings.warn(text, DeprecationWarning, stacklevel=3)
    for name, (default, reason) in WITHOUT_EFFECT.items():
        if given.get(name, default) != default:
            _log.warning("setting without effect name=%s reason=%s", name, reason)
    protocol = given["security_protocol"]
    if protocol not in PROTOCOLS:
        msg = f"security_protocol={protocol!r}: expected one of {', '.join(PROTOCOLS)}"
        raise ValueError(msg)
    found: dict[str, Any] = {
        "client_id": given["client_id"],
        "request_timeout_ms": given["request_timeout_ms"],
        "api_timeout_ms": given["request_timeout_ms"],
        "metadata_max_age_ms": given["metadata_max_age_ms"],
        "security": _security(given),
    }
    servers = _servers(given["bootstrap_servers"], has_tls=protocol in {"SSL", "SASL_SSL"})
    if servers is not None:
        found["bootstrap_servers"] = servers
    return found


def _security(given: Mapping[str, Any]) -> ClientSecurity | None:
    protocol, context = given["security_protocol"], given["ssl_context"]
    if protocol in {"SSL", "SASL_SSL"} and context is None:
        msg = f"ssl_context is mandatory if security_protocol=={protocol!r}"
        raise ValueError(msg)
    user = password = None
    if protocol in {"SASL_PLAINTEXT", "SASL_SSL"}:
        mechanism = given["sasl_mechanism"]
        if mechanism not in MECHANISMS:
            msg = f"sasl_mechanism={mechanism!r}: expected PLAIN"
            raise ValueError(msg)
        if mechanism != "PLAIN":
            msg = f"sasl_mechanism={mechanism} is not supported: use PLAIN, user and password"
            raise UnsupportedSaslMechanismError(msg)
        user, password = given["sasl_plain_username"], given["sasl_plain_password"]
        if user is None or password is None:
            msg = "sasl_plain_username and sasl_plain_password required for PLAIN sasl"
            raise ValueError(msg)
    if context is None and user is None:
        return None
    try:
        return ClientSecurity(context=context, user=user, password=password)
    except ConfigError as error:
        raise KafkaConfigurationError(str(error)) from error


def _servers(given: str | Sequence[str], *, has_tls: bool) -> list[str] | None:
    """Return the brokers as URLs; None: those of the environment."""
    if given == DEFAULT_HOST:
        return None
    scheme = "https" if has_tls else "http"
    names = given.split(",") if isinstance(given, str) else given
    return [_server(name.strip(), scheme) for name in names if name.strip()]


def _server(name: str, scheme: str) -> str:
    if "://" in name:
        return name
    has_port = "]:" in name if name.startswith("[") else ":" in name
    return f"{scheme}://{name}" if has_port else f"{scheme}://{name}:{DEFAULT_PORT}"


def bounded(value: int, least: int, most: int) -> int:
    """Return a size or a time that Kafka allows, as the nearest that we do."""
    return min(max(value, least), most)


Path = str | bytes | PathLike[str] | PathLike[bytes]


def create_ssl_context(
    *,
    cafile: Path | None = None,
    capath: Path | None = None,
    cadata: str | Buffer | None = None,
    certfile: Path | None = None,
    keyfile: Path | None = None,
    password: Callable[[], str | bytes | bytearray] | str | bytes | bytearray | None = None,
) -> ssl.SSLContext:
    """Return TLS settings for ``ssl_context``; host names are always checked.

    Args:
        cafile: PEM file of trusted authorities; without one of the first three the system's.
        capath: Folder of such files.
        cadata: Certificates themselves, as PEM text or DER bytes.
        certfile: PEM file of the client's certificate, and of those that it depends on.
        keyfile: PEM file of the client's key.
        password: Password of the key.

    Raises:
        OSError: A file can't be read or holds something else.
    """
    context = ssl.create_default_context(
        ssl.Purpose.SERVER_AUTH, cafile=cafile, capath=capath, cadata=cadata
    )
    if certfile is not None:
        context.load_cert_chain(certfile, keyfile, password)
    return context
