"""Options of the source and the sink: names, defaults, and errors that name the nearest. Pure.

The names are those of Spark's Kafka source where it has the option. Spark passes options as text,
with the keys in lower case.
"""

from __future__ import annotations

import difflib
import json
from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING

from spark_source.errors import OptionError

if TYPE_CHECKING:
    from collections.abc import Mapping

URL_VARIABLE = "QUORUMLOG_URL"
"""The environment variable that replaces the option `url`."""

EARLIEST = -2
LATEST = -1
"""Numbers for the earliest and the latest offset, as in Kafka's JSON offsets."""

LONG_POLL_MS_DEFAULT = 1_000
"""Wait of an idle stream: its cost is one request a wait. Stopping a query never waits for it."""
LONG_POLL_MS_MAX = 30_000
METADATA_REFRESH_MS_DEFAULT = 5_000
"""Time after which new partitions and topics created anew are looked for."""
METADATA_REFRESH_MS_MAX = 3_600_000
RETRY_TIMEOUT_MS_DEFAULT = 60_000
"""Time for retries: a leader change takes one or two seconds, the restart of a whole cluster about
ten."""
ROWS_PER_TASK_DEFAULT = 20_000
"""Rows worth a task of their own: a Python task costs some 50 ms on two busy cores."""
FETCH_BYTES_DEFAULT = 4 << 20
"""Size of an answer, which becomes one Arrow batch: Arrow offsets have 32 bits, and a few MB suit
the JVM's buffers."""
FETCH_BYTES_MAX = 64 << 20

COMMON = ("url", "servers", "retryTimeoutMs")
SOURCE = (
    "subscribe",
    "startingOffsets",
    "endingOffsets",
    "maxOffsetsPerTrigger",
    "minPartitions",
    "maxRecordsPerPartition",
    "failOnDataLoss",
    "includeHeaders",
    "valueFormat",
    "longPollMs",
    "metadataRefreshMs",
    "rowsPerTask",
    "fetchBytes",
)
SINK = ("topic", "keyFormat", "valueFormat", "deliveryGuarantee")
NOT_YET_SUPPORTED = (
    "assign",
    "subscribePattern",
    "startingTimestamp",
    "startingOffsetsByTimestamp",
    "endingTimestamp",
    "endingOffsetsByTimestamp",
    "minOffsetsPerTrigger",
    "maxTriggerDelay",
)
"""Options of Spark's Kafka source that this source does not have yet."""
_SPARKS_OWN = frozenset({"checkpointlocation", "path", "queryname"})
"""Options that Spark passes to every source; they are not checked here."""

PartialOffsets = dict[str, dict[int, int]]
"""Topic → partition → offset, `EARLIEST` or `LATEST`. A partition not named has the default."""


class TextFormat(Enum):
    """Format of the bytes to write."""

    BINARY = "binary"
    """Any bytes, stored unchanged."""
    JSON = "json"
    """JSON text, stored as JSON: every reader gets JSON."""
    STRING = "string"
    """Plain text, only for keys, stored as a JSON string."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Connection:
    """The brokers' URLs and the time for retries in seconds."""

    urls: tuple[str, ...]
    retry_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceOptions:
    """The checked options of a read."""

    connection: Connection
    topics: tuple[str, ...]
    starting: PartialOffsets
    starting_default: int
    ending: PartialOffsets
    max_offsets_per_trigger: int | None
    min_partitions: int | None
    max_records_per_partition: int | None
    fail_on_data_loss: bool
    include_headers: bool
    typed_values: bool
    long_poll_ms: int
    metadata_refresh_ms: int
    rows_per_task: int
    fetch_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class SinkOptions:
    """The checked options of a write."""

    connection: Connection
    topic: str | None
    key_format: TextFormat
    value_format: TextFormat


def source_options(
    given: Mapping[str, str], environment: Mapping[str, str], *, streaming: bool
) -> SourceOptions:
    """Return the options of a read.

    Raises:
        OptionError: names the option, the value and the expectation.
    """
    options = _lowered(given)
    _check_names(options, (*COMMON, *SOURCE))
    if streaming and "endingoffsets" in options:
        msg = "option endingOffsets is for batch queries; a stream ends by trigger or stop()"
        raise OptionError(msg)
    default = LATEST if streaming else EARLIEST
    starting, starting_default = _offsets(options, "startingOffsets", default)
    ending, ending_default = _offsets(options, "endingOffsets", LATEST)
    if ending_default == EARLIEST or any(
        offset == EARLIEST for partitions in ending.values() for offset in partitions.values()
    ):
        msg = "option endingOffsets can't be earliest: expected latest, or JSON with offsets or -1"
        raise OptionError(msg)
    topics = _topics(options)
    for name, offsets in (("startingOffsets", starting), ("endingOffsets", ending)):
        if other := sorted(offsets.keys() - set(topics)):
            msg = f"option {name} names {other[0]!r}, which subscribe={','.join(topics)} does not"
            raise OptionError(msg)
    return SourceOptions(
        connection=_connection(options, environment),
        topics=topics,
        starting=starting,
        starting_default=starting_default,
        ending=ending,
        max_offsets_per_trigger=_integer(options, "maxOffsetsPerTrigger", None, 1),
        min_partitions=_integer(options, "minPartitions", None, 1),
        max_records_per_partition=_integer(options, "maxRecordsPerPartition", None, 1),
        fail_on_data_loss=_boolean(options, "failOnDataLoss", default=True),
        include_headers=_boolean(options, "includeHeaders", default=False),
        typed_values=_choice(options, "valueFormat", ("binary", "json"), "binary") == "json",
        long_poll_ms=_number(options, "longPollMs", LONG_POLL_MS_DEFAULT, 0, LONG_POLL_MS_MAX),
        metadata_refresh_ms=_number(
            options, "metadataRefreshMs", METADATA_REFRESH_MS_DEFAULT, 100, METADATA_REFRESH_MS_MAX
        ),
        rows_per_task=_number(options, "rowsPerTask", ROWS_PER_TASK_DEFAULT, 1),
        fetch_bytes=_number(options, "fetchBytes", FETCH_BYTES_DEFAULT, 1024, FETCH_BYTES_MAX),
    )


def sink_options(given: Mapping[str, str], environment: Mapping[str, str]) -> SinkOptions:
    """Return the options of a write.

    Raises:
        OptionError: names the option, the value and the expectation.
    """
    options = _lowered(given)
    _check_names(options, (*COMMON, *SINK))
    guarantee = options.get("deliveryguarantee", "at-least-once")
    if guarantee != "at-least-once":
        msg = (
            f"option deliveryGuarantee={guarantee}: this sink is at-least-once; exactly-once "
            "comes in a later version"
        )
        raise OptionError(msg)
    value = TextFormat(_choice(options, "valueFormat", ("binary", "json"), "binary"))
    keys = ("binary",) if value is TextFormat.BINARY else ("json", "string")
    if value is TextFormat.BINARY and options.get("keyformat", "binary") in {"json", "string"}:
        msg = f"option keyFormat={options['keyformat']} goes only with valueFormat=json"
        raise OptionError(msg)
    return SinkOptions(
        connection=_connection(options, environment),
        topic=options.get("topic", "").strip() or None,
        key_format=TextFormat(_choice(options, "keyFormat", keys, keys[0])),
        value_format=value,
    )


# ---------------------------------------------------------------- parts


def _lowered(given: Mapping[str, str]) -> dict[str, str]:
    return {name.lower(): value for name, value in given.items()}


def _check_names(options: Mapping[str, str], known: tuple[str, ...]) -> None:
    names = {name.lower(): name for name in known}
    later = {name.lower(): name for name in NOT_YET_SUPPORTED}
    for name in options:
        if name in names or name in _SPARKS_OWN:
            continue
        if name.startswith("kafka."):
            msg = f"option {name} is Kafka's: say url=http://host:port[,…] for the brokers"
            raise OptionError(msg)
        if name in later:
            msg = f"option {later[name]} comes in a later version; subscribe=topic[,…] is there"
            raise OptionError(msg)
        nearest = difflib.get_close_matches(name, names, n=1, cutoff=0.5)
        hint = f"did you mean {names[nearest[0]]}?" if nearest else f"known: {', '.join(known)}"
        msg = f"unknown option {name}: {hint}"
        raise OptionError(msg)


def _connection(options: Mapping[str, str], environment: Mapping[str, str]) -> Connection:
    text = options.get("url") or options.get("servers") or environment.get(URL_VARIABLE, "")
    urls = tuple(part.strip().rstrip("/") for part in text.split(",") if part.strip())
    if not urls:
        msg = (
            "no broker is named: set option url=http://host:port[,http://host:port…] or the "
            f"environment variable {URL_VARIABLE}"
        )
        raise OptionError(msg)
    urls = tuple(url if "://" in url else f"http://{url}" for url in urls)
    retry_ms = _number(options, "retryTimeoutMs", RETRY_TIMEOUT_MS_DEFAULT, 1)
    return Connection(urls=urls, retry_s=retry_ms / 1000)


def _topics(options: Mapping[str, str]) -> tuple[str, ...]:
    names = [part.strip() for part in options.get("subscribe", "").split(",")]
    topics = tuple(dict.fromkeys(name for name in names if name))
    if not topics:
        msg = "no topic is named: set option subscribe=topic[,topic…]"
        raise OptionError(msg)
    return topics


def _offsets(options: Mapping[str, str], name: str, default: int) -> tuple[PartialOffsets, int]:
    """Return (the offsets the option names, the default for all others)."""
    text = options.get(name.lower(), "").strip()
    words = {"": default, "earliest": EARLIEST, "latest": LATEST}
    if text.lower() in words:
        return {}, words[text.lower()]
    try:
        found = json.loads(text)
        return {
            str(topic): {int(p): _offset(offset) for p, offset in partitions.items()}
            for topic, partitions in found.items()
        }, default
    except (ValueError, AttributeError):
        msg = (
            f"option {name}={text[:100]}: expected earliest, latest, or JSON such as "
            '{"topic":{"0":23,"1":-2}} with offsets, -2 (earliest) or -1 (latest)'
        )
        raise OptionError(msg) from None


def _offset(value: object) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or value < EARLIEST:
        raise ValueError
    return value


def _integer(
    options: Mapping[str, str], name: str, default: int | None, low: int, high: int = 2**63 - 1
) -> int | None:
    text = options.get(name.lower())
    if text is None:
        return default
    try:
        value = int(text)
    except ValueError:
        value = low - 1
    if not low <= value <= high:
        upper = "" if high == 2**63 - 1 else f" and at most {high}"
        msg = f"option {name}={text[:100]}: expected an integer of at least {low}{upper}"
        raise OptionError(msg)
    return value


def _number(
    options: Mapping[str, str], name: str, default: int, low: int, high: int = 2**63 - 1
) -> int:
    found = _integer(options, name, default, low, high)
    assert found is not None
    return found


def _boolean(options: Mapping[str, str], name: str, *, default: bool) -> bool:
    return _choice(options, name, ("true", "false"), str(default).lower()) == "true"


def _choice(options: Mapping[str, str], name: str, choices: tuple[str, ...], default: str) -> str:
    value = options.get(name.lower(), default).strip().lower()
    if value not in choices:
        msg = f"option {name}={value[:100]}: expected {' or '.join(choices)}"
        raise OptionError(msg)
    return value
