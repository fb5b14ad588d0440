"""Settings as confluent-kafka takes them, translated to those of the SDK. Pure.

A program gives one dict with librdkafka's dotted names, keywords with underscores, or both.
`client_settings` returns keywords for the SDK's class, and what the adapter itself needs: callbacks
and limits. A setting without a meaning here is logged as a warning; one that changes where or how
safely records land, and can't be honoured, raises `KafkaException` with ``_INVALID_ARG``.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from http_api.client.compat.confluent_errors import argument_error
from http_api.client.network import ClientSecurity
from http_api.client.sdk.consumer_settings import (
    BYTES_LEAST,
    HOUR_MS,
    POLL_BYTES_MAX,
    WAIT_MS_MAX,
)
from http_api.client.sdk.settings import DAY_MS

KIB: Final = 1_024
IN_FLIGHT_MAX: Final = 5
MESSAGES_MAX: Final = 100_000
"""librdkafka's default of ``queue.buffering.max.messages``."""
_log = logging.getLogger("quorumlog.compat")


@dataclass(slots=True)
class ClientSettings:
    """Settings of one client: the SDK's keywords, and what the adapter does itself."""

    sdk: dict[str, Any]
    callbacks: dict[str, Callable[..., Any]]
    """``error_cb``, ``stats_cb``, ``on_delivery``, ``on_commit``, by name; only those given."""
    logger: logging.Logger | None = None
    messages_max: int = MESSAGES_MAX
    reports_errors_only: bool = False
    reports_partition_end: bool = False
    credentials: Credentials = field(default_factory=lambda: Credentials())  # noqa: PLW0108 defined below


@dataclass(slots=True)
class Credentials:
    """User and password, or a token of ``oauth_cb``, asked for each new connection."""

    user: str | None = None
    password: str | None = field(default=None, repr=False)
    oauth: Callable[[str], Any] | None = None
    oauth_config: str = ""

    def replace(self, user: object, password: object) -> None:
        """Take another user and password for new connections."""
        if not isinstance(user, str) or not isinstance(password, str):
            msg = "expected username and password as str"
            raise TypeError(msg)
        self.user, self.password = user, password

    def headers(self) -> Mapping[str, str]:
        """Return the header with the credentials as of now."""
        if self.oauth is not None:
            return ClientSecurity(token=str(self.oauth(self.oauth_config)[0])).headers()
        return ClientSecurity(user=self.user, password=self.password).headers()


COMMON: Final = {
    "bootstrap.servers": "bootstrap_servers",
    "metadata.broker.list": "bootstrap_servers",
    "client.id": "client_id",
    "socket.timeout.ms": "request_timeout_ms",
    "socket.connection.setup.timeout.ms": "connect_timeout_ms",
    "metadata.max.age.ms": "metadata_max_age_ms",
    "metadata.recovery.rebootstrap.trigger.ms": "rebootstrap_trigger_ms",
    "statistics.interval.ms": "stats_interval_ms",
}
"""Settings of all clients, by the SDK's name."""
OF_PRODUCER: Final = {
    "acks": "acks",
    "request.required.acks": "acks",
    "enable.idempotence": "enable_idempotence",
    "linger.ms": "linger_ms",
    "queue.buffering.max.ms": "linger_ms",
    "batch.size": "batch_size",
    "queue.buffering.max.kbytes": "buffer_memory",
    "message.timeout.ms": "delivery_timeout_ms",
    "delivery.timeout.ms": "delivery_timeout_ms",
    "transactional.id": "transactional_id",
    "max.in.flight": "max_in_flight",
    "max.in.flight.requests.per.connection": "max_in_flight",
    "retry.backoff.ms": "retry_backoff_ms",
    "retry.backoff.max.ms": "retry_backoff_max_ms",
    "allow.auto.create.topics": "allow_auto_create_topics",
    "request.timeout.ms": "request_timeout_ms",
}
OF_CONSUMER: Final = {
    "group.id": "group_id",
    "group.instance.id": "group_instance_id",
    "client.rack": "rack",
    "auto.offset.reset": "auto_offset_reset",
    "enable.auto.commit": "enable_auto_commit",
    "auto.commit.enable": "enable_auto_commit",
    "enable.auto.offset.store": "enable_auto_offset_store",
    "auto.commit.interval.ms": "auto_commit_interval_ms",
    "session.timeout.ms": "session_timeout_ms",
    "max.poll.interval.ms": "max_poll_interval_ms",
    "fetch.min.bytes": "fetch_min_bytes",
    "fetch.wait.max.ms": "fetch_max_wait_ms",
    "fetch.max.bytes": "fetch_max_bytes",
    "fetch.message.max.bytes": "max_partition_fetch_bytes",
    "max.partition.fetch.bytes": "max_partition_fetch_bytes",
    "queued.max.messages.kbytes": "queued_max_bytes",
    "partition.assignment.strategy": "assignor",
    "group.remote.assignor": "assignor",
    "isolation.level": "isolation_level",
}
LIMITS: Final = {
    "linger_ms": (0, DAY_MS),
    "batch_size": (1, 8 << 20),
    "buffer_memory": (1 << 16, 1 << 40),
    "delivery_timeout_ms": (1, DAY_MS),
    "max_in_flight": (1, IN_FLIGHT_MAX),
    "retry_backoff_ms": (0, DAY_MS),
    "retry_backoff_max_ms": (0, DAY_MS),
    "request_timeout_ms": (1, DAY_MS),
    "connect_timeout_ms": (1, DAY_MS),
    "metadata_max_age_ms": (1, DAY_MS),
    "auto_commit_interval_ms": (1, DAY_MS),
    "session_timeout_ms": (1_000, HOUR_MS),
    "max_poll_interval_ms": (1, HOUR_MS),
    "fetch_min_bytes": (1, POLL_BYTES_MAX),
    "fetch_max_wait_ms": (1, WAIT_MS_MAX),
    "fetch_max_bytes": (BYTES_LEAST, POLL_BYTES_MAX),
    "max_partition_fetch_bytes": (BYTES_LEAST, POLL_BYTES_MAX),
    "queued_max_bytes": (BYTES_LEAST, 1 << 40),
}
"""Bounds of the SDK's settings that only decide how fast or how long; others are an error."""
WITHOUT_EFFECT: Final = frozenset(
    {
        "api.version.fallback.ms",
        "api.version.request",
        "api.version.request.timeout.ms",
        "auto.offset.store",
        "background_event_cb",
        "batch.num.messages",
        "broker.address.family",
        "broker.address.ttl",
        "broker.version.fallback",
        "builtin.features",
        "check.crcs",
        "client.dns.lookup",
        "closesocket_cb",
        "compression.codec",
        "compression.level",
        "compression.type",
        "connect_cb",
        "connections.max.idle.ms",
        "consume.callback.max.messages",
        "coordinator.query.interval.ms",
        "debug",
        "enable.metrics.push",
        "enable.random.seed",
        "enable.sparse.connections",
        "fetch.error.backoff.ms",
        "fetch.queue.backoff.ms",
        "group.protocol",
        "group.protocol.type",
        "heartbeat.interval.ms",
        "https.ca.location",
        "https.ca.pem",
        "internal.termination.signal",
        "log.connection.close",
        "log.queue",
        "log.thread.name",
        "log_level",
        "max.in.flight.requests",
        "max.poll.records",
        "message.copy.max.bytes",
        "message.max.bytes",
        "message.send.max.retries",
        "metadata.recovery.strategy",
        "metadata.request.timeout.ms",
        "offset.store.method",
        "offset.store.path",
        "offset.store.sync.interval.ms",
        "open_cb",
        "plugin.library.paths",
        "produce.offset.report",
        "queue.buffering.backpressure.threshold",
        "queued.min.messages",
        "queuing.strategy",
        "receive.message.max.bytes",
        "reconnect.backoff.jitter.ms",
        "reconnect.backoff.max.ms",
        "reconnect.backoff.ms",
        "resolve_cb",
        "retries",
        "sasl.oauthbearer.extensions",
        "share.acknowledgement.mode",
        "socket.blocking.max.ms",
        "socket.keepalive.enable",
        "socket.max.fails",
        "socket.nagle.disable",
        "socket.receive.buffer.bytes",
        "socket.send.buffer.bytes",
        "socket_cb",
        "ssl.cipher.suites",
        "ssl.curves.list",
        "ssl.providers",
        "ssl.sigalgs.list",
        "sticky.partitioning.linger.ms",
        "throttle_cb",
        "topic.blacklist",
        "topic.metadata.propagation.max.ms",
        "topic.metadata.refresh.fast.cnt",
        "topic.metadata.refresh.fast.interval.ms",
        "topic.metadata.refresh.interval.ms",
        "topic.metadata.refresh.sparse",
        "transaction.timeout.ms",
    }
)
"""librdkafka's settings that mean nothing here; they cause a warning."""
REFUSED: Final = {
    "enable.gapless.guarantee": "use enable.idempotence",
    "partitioner_cb": "keys land by crc32; pass partition= to produce",
    "msg_order_cmp": "records of a partition keep their order",
    "ssl.key.password": "use a key without a password",
    "ssl.key.pem": "use ssl.key.location",
    "ssl.certificate.pem": "use ssl.certificate.location",
    "ssl.ca.pem": "use ssl.ca.location",
    "ssl.ca.certificate.stores": "use ssl.ca.location",
    "ssl.crl.location": "revocation lists are not read",
    "ssl.keystore.location": "use ssl.certificate.location and ssl.key.location, PEM files",
    "ssl.keystore.password": "use ssl.certificate.location and ssl.key.location, PEM files",
    "ssl.truststore.location": "use ssl.ca.location, a PEM file",
    "ssl.engine.location": "OpenSSL engines are not used",
    "ssl.engine.id": "OpenSSL engines are not used",
    "sasl.jaas.config": "use sasl.username and sasl.password",
    "ssl_cert_verify_cb": "certificates are always verified by ssl.ca.location",
}
"""Settings that change where or how safely records land, by what to do instead."""
PARTITIONERS: Final = ("consistent_random", "sticky")
"""Keys by crc32, which is librdkafka's default; ``sticky`` is our name of it."""
_RESETS: Final = {
    "smallest": "earliest",
    "earliest": "earliest",
    "beginning": "earliest",
    "largest": "latest",
    "latest": "latest",
    "end": "latest",
    "error": "none",
    "none": "none",
}
_ASSIGNORS: Final = {
    "range": "range",
    "uniform": "uniform",
    "roundrobin": "uniform",
    "cooperative-sticky": "uniform",
    "sticky": "uniform",
}
_KEYWORDS: Final = frozenset(
    {
        "error_cb",
        "throttle_cb",
        "stats_cb",
        "oauth_cb",
        "on_delivery",
        "dr_cb",
        "dr_msg_cb",
        "delivery.report.only.error",
        "on_commit",
        "logger",
        "enable.partition.eof",
        "queue.buffering.max.messages",
        "partitioner",
    }
)
"""Settings of the adapter itself, or checked by it."""
_SECURITY: Final = ("security.protocol", "ssl.", "sasl.", "enable.ssl.")
_LIST: Final = "bootstrap_servers"


def given_config(
    first: Mapping[str, Any] | None, keywords: Mapping[str, Any], kind: str
) -> dict[str, Any]:
    """Return all settings by dotted names; keywords replace those of the mapping.

    Those in ``default.topic.config`` replace both, as in the library.
    """
    whole: object = first
    if whole is not None and not isinstance(whole, Mapping):
        msg = f"expected configuration dict, got {type(whole).__name__}"
        raise TypeError(msg)
    if first is None and not keywords:
        msg = f"expected configuration dict for {kind}"
        raise TypeError(msg)
    given = {str(name): value for name, value in (first or {}).items()}
    for name, value in keywords.items():
        given[name if name in _KEYWORDS or name in WITHOUT_EFFECT else _dotted(name)] = value
    topic = given.pop("default.topic.config", None)
    if topic is not None:
        _log.warning("setting default.topic.config is deprecated: its settings are read as others")
        given |= topic
    return {name: value for name, value in given.items() if value is not None}


def _dotted(name: str) -> str:
    return name.replace("_", ".")


def client_settings(given: Mapping[str, Any], names: Mapping[str, str]) -> ClientSettings:
    """Translate settings for a class whose own settings are ``names``, beside those of all.

    Raises:
        KafkaException: With ``_INVALID_ARG``: a setting is unknown or can't be honoured.
    """
    known = {**COMMON, **names}
    settings = ClientSettings(sdk={}, callbacks={})
    others = OF_CONSUMER.keys() | OF_PRODUCER.keys()
    for name, value in given.items():
        if name in known:
            settings.sdk[known[name]] = _value_of(known[name], name, value)
        elif name in _KEYWORDS:
            _take_own(settings, name, value)
        elif name in REFUSED:
            raise _refusal(name, REFUSED[name])
        elif name.startswith(_SECURITY):
            continue
        elif name in WITHOUT_EFFECT or name in others:
            _log.warning("setting without effect name=%s", name)
        else:
            raise _unknown(name, known)
    _take_security(settings, given)
    if settings.callbacks.get("stats_cb") is None:
        settings.sdk.pop("stats_interval_ms", None)
    return settings


def _refusal(name: str, reason: str) -> Exception:
    """Return the exception for a setting; its value may be a secret, and is not shown."""
    return argument_error(f"setting {name} is not supported: {reason}")


def _unknown(name: str, known: Mapping[str, str]) -> Exception:
    from http_api.contract.grammar import nearest

    hint = nearest(name, [*known, *WITHOUT_EFFECT])
    more = f", did you mean {hint!r}?" if hint else ""
    return argument_error(f'No such configuration property: "{name}"{more}')


def _value_of(target: str, name: str, value: Any) -> Any:
    """Return a setting's value in the SDK's unit and words."""
    if target in LIMITS:
        number = round(float(value)) if target == "linger_ms" else _integer(name, value)
        if target in {"buffer_memory", "queued_max_bytes"}:
            number *= KIB
        if number == 0 and target in {"delivery_timeout_ms", "auto_commit_interval_ms"}:
            number = DAY_MS  # 0 stands for no limit, and for no automatic commit
        return _limited(target, name, number)
    if target == "auto_offset_reset":
        return _word(name, value, _RESETS)
    if target == "assignor":
        return _word(name, str(value).split(",", maxsplit=1)[0].strip(), _ASSIGNORS)
    if target == "acks":
        return str(value)
    return value


def _limited(target: str, name: str, number: int) -> int:
    """Return the nearest number that the SDK takes; librdkafka's bounds are wider."""
    least, most = LIMITS[target]
    nearest = min(max(number, least), most)
    if nearest != number and target != "max_in_flight":  # whose default there is a million
        _log.warning("setting name=%s value=%d: used value=%d", name, number, nearest)
    return nearest


def _integer(name: str, value: Any) -> int:
    try:
        return int(value)
    except (TypeError, ValueError):
        raise argument_error(f"setting {name}={value!r}: expected a number") from None


def _word(name: str, value: Any, words: Mapping[str, str]) -> str:
    found = words.get(str(value))
    if found is None:
        raise argument_error(f"setting {name}={value!r}: expected one of {', '.join(words)}")
    return found


def _flag(name: str, value: Any) -> bool:
    words = {"true": True, "1": True, "t": True, "false": False, "0": False, "f": False}
    found = words.get(str(value).lower())
    if found is None:
        raise argument_error(f"setting {name}={value!r}: expected True or False")
    return found


def _take_own(settings: ClientSettings, name: str, value: Any) -> None:
    """Take a setting that the adapter honours itself."""
    if name == "partitioner":
        if value not in PARTITIONERS:
            raise _refusal(name, f"{value!r}: keys land by crc32; leave it out, or pass partition=")
    elif name == "queue.buffering.max.messages":
        settings.messages_max = _integer(name, value) or (1 << 31)
    elif name == "delivery.report.only.error":
        settings.reports_errors_only = _flag(name, value)
    elif name == "enable.partition.eof":
        settings.reports_partition_end = _flag(name, value)
    elif name == "logger":
        settings.logger = value
    elif value is not None:
        if not callable(value):
            msg = f"expected {name} property as a callable function"
            raise TypeError(msg)
        if name == "throttle_cb":
            _log.warning("setting without effect name=throttle_cb: brokers never delay requests")
        key = "on_delivery" if name in {"dr_cb", "dr_msg_cb"} else name
        settings.callbacks[key] = value


def _take_security(settings: ClientSettings, given: Mapping[str, Any]) -> None:
    """Take TLS files and credentials, and make the brokers' URLs https where TLS is asked for."""
    protocol = str(given.get("security.protocol", "plaintext")).lower()
    if protocol not in {"plaintext", "ssl", "sasl_plaintext", "sasl_ssl"}:
        raise argument_error(f"setting security.protocol={protocol!r}: unknown protocol")
    allowed = {
        "security.protocol",
        "ssl.ca.location",
        "ssl.certificate.location",
        "ssl.key.location",
        "ssl.endpoint.identification.algorithm",
        "enable.ssl.certificate.verification",
        "sasl.mechanism",
        "sasl.mechanisms",
        "sasl.username",
        "sasl.password",
        "sasl.oauthbearer.config",
        *WITHOUT_EFFECT,
    }
    for name in given:
        if name.startswith(_SECURITY) and name not in allowed:
            raise _refusal(name, "use PEM files, and PLAIN or OAUTHBEARER with oauth_cb")
    if not _flag("", given.get("enable.ssl.certificate.verification", True)):
        raise _refusal("enable.ssl.certificate.verification", "certificates are verified")
    if given.get("ssl.endpoint.identification.algorithm", "https") != "https":
        raise _refusal("ssl.endpoint.identification.algorithm", "it is always https")
    servers = settings.sdk.get(_LIST)
    if servers is not None:
        is_tls = protocol.endswith("ssl")
        names = str(servers).split(",")
        settings.sdk[_LIST] = [_url(one.strip(), is_tls=is_tls) for one in names if one.strip()]
    if protocol.endswith("ssl"):
        settings.sdk["security"] = ClientSecurity(
            ca=given.get("ssl.ca.location"),
            certificate=given.get("ssl.certificate.location"),
            key=given.get("ssl.key.location"),
        )
    if protocol.startswith("sasl"):
        settings.credentials = _credentials(settings, given)
        settings.sdk["headers"] = settings.credentials.headers


def _url(server: str, *, is_tls: bool) -> str:
    """Return a broker's URL; ``server`` may begin with a protocol, as librdkafka takes it."""
    protocol, _, address = server.rpartition("://")
    if protocol.lower() in {"http", "https"}:
        return server
    is_tls = protocol.lower().endswith("ssl") if protocol else is_tls
    return f"{'https' if is_tls else 'http'}://{address}"


def _credentials(settings: ClientSettings, given: Mapping[str, Any]) -> Credentials:
    mechanism = str(given.get("sasl.mechanisms", given.get("sasl.mechanism", "GSSAPI"))).upper()
    if mechanism == "PLAIN":
        user, password = given.get("sasl.username"), given.get("sasl.password")
        if user is None or password is None:
            raise argument_error("sasl.username and sasl.password must be set")
        return Credentials(str(user), str(password))
    oauth = settings.callbacks.pop("oauth_cb", None)
    if mechanism == "OAUTHBEARER" and oauth is not None:
        return Credentials(oauth=oauth, oauth_config=str(given.get("sasl.oauthbearer.config", "")))
    reason = f"{mechanism}: use PLAIN, or OAUTHBEARER with oauth_cb"
    raise _refusal("sasl.mechanisms", reason)


def stats_json(kind: str, client_id: str | None, time_ms: int, metrics: Mapping[str, Any]) -> str:
    """Return the text that ``stats_cb`` gets: librdkafka's first fields, then our `metrics`."""
    waiting = metrics.get("records_waiting", 0)
    return json.dumps(
        {
            "name": f"{client_id or 'quorumlog'}#{kind}",
            "client_id": client_id or "quorumlog",
            "type": kind,
            "ts": time_ms * 1_000,
            "time": time_ms // 1_000,
            "replyq": 0,
            "msg_cnt": waiting,
            "msg_size": metrics.get("buffered_bytes", metrics.get("queued_bytes", 0)),
            "tx": metrics.get("requests", metrics.get("fetch_and_heartbeat_requests", 0)),
            "tx_bytes": metrics.get("bytes_sent", 0),
            "txmsgs": metrics.get("records_sent", 0),
            "rxmsg_bytes": metrics.get("fetched_bytes", 0),
            "brokers": {},
            "topics": {},
            "quorumlog": dict(metrics),
        }
    )
