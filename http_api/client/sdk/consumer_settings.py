"""Settings of `Consumer` and `AsyncConsumer`: kinds, defaults, bounds, and their typed keywords.

`ConsumerConfig` declares each setting once. `ConsumerKeywords` repeats the names for type checkers
only, so that ``Consumer(group_id=…)`` is checked; a test compares the two.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from http_api.client.client_errors import ConfigError
from http_api.client.sdk.settings import (
    BYTES_MAX,
    DAY_MS,
    CommonConfig,
    CommonKeywords,
    custom,
    flag,
    function,
    given_settings,
    integer,
    read_settings,
    text,
    word,
)

if TYPE_CHECKING:
    pass

RESETS: Final = ("earliest", "latest", "none")
AS_STORED: Final = "bytes"
"""Word of a deserializer that returns the bytes view itself."""
HOUR_MS: Final = 3_600_000
WAIT_MS_MAX: Final = 60_000
POLL_BYTES_MAX: Final = 64 << 20
BYTES_LEAST: Final = 1_024


def _read_deserializer(name: str, value: object) -> object:
    if value is None or value == AS_STORED or callable(value):
        return value
    msg = f"setting {name}={value!r}: expected a function of bytes, or {AS_STORED!r}"
    raise ConfigError(msg)


def deserializer() -> Any:
    """Return a dataclass field for a function of the bytes view, ``"bytes"``, or None."""
    return custom(None, _read_deserializer)


@dataclass(frozen=True, slots=True, kw_only=True)
class ConsumerConfig(CommonConfig):
    """Settings of a consumer. Times are in milliseconds, sizes in bytes."""

    group_id: str | None = text()
    """Group to join with `subscribe`, and for commits; None: neither is possible."""
    group_instance_id: str | None = text()
    """Static member id: a restarted process with the same id owns the same partitions."""
    auto_offset_reset: str = word("latest", RESETS)
    """Start of a partition without a commit, or whose position is out of range."""
    enable_auto_commit: bool = flag(default=True)
    enable_auto_offset_store: bool = flag(default=True)
    """False: only what `store_offsets` stores is committed."""
    auto_commit_interval_ms: int = integer(5_000, 1, DAY_MS)
    session_timeout_ms: int = integer(45_000, 1_000, HOUR_MS)
    max_poll_interval_ms: int = integer(300_000, 1, HOUR_MS)
    """Longest time between two polls; a slower consumer leaves its group until its next poll."""
    fetch_min_bytes: int = integer(1, 1, POLL_BYTES_MAX)
    fetch_max_wait_ms: int = integer(30_000, 1, WAIT_MS_MAX)
    fetch_max_bytes: int = integer(52_428_800, BYTES_LEAST, POLL_BYTES_MAX)
    """Most bytes of one answer."""
    max_partition_fetch_bytes: int = integer(1_048_576, BYTES_LEAST, POLL_BYTES_MAX)
    """Most bytes of one partition in an answer; a longer first record comes whole."""
    queued_max_bytes: int = integer(67_108_864, BYTES_LEAST, BYTES_MAX)
    """Most bytes of all pages that were fetched and not yet returned; beyond, each broker may bring
    one page, as a request that waits must not hold up other brokers'."""
    assignor: str | None = text()
    """``"uniform"`` or ``"range"``; None: the group's default."""
    rack: str | None = text()
    isolation_level: str = word("read_uncommitted", ("read_uncommitted", "read_committed"))
    """Both words have one effect: only committed records are ever read."""
    large_messages: str = word("join", ("join", "parts"))
    """``"join"``: a value that a producer split is returned as one record; ``"parts"``: as is."""
    on_commit: Callable[..., Any] | None = function()
    """Called with ``(error, offsets)`` after each automatic or asynchronous commit."""
    on_unreadable: str = word("raise", ("raise", "mark"))
    key_deserializer: Callable[[bytes], Any] | str | None = deserializer()
    value_deserializer: Callable[[bytes], Any] | str | None = deserializer()


class ConsumerKeywords(CommonKeywords, total=False):
    """Keywords of a consumer; see `ConsumerConfig`."""

    group_id: str | None
    group_instance_id: str | None
    auto_offset_reset: str
    enable_auto_commit: bool
    enable_auto_offset_store: bool
    auto_commit_interval_ms: int
    session_timeout_ms: int
    max_poll_interval_ms: int
    fetch_min_bytes: int
    fetch_max_wait_ms: int
    fetch_max_bytes: int
    max_partition_fetch_bytes: int
    queued_max_bytes: int
    assignor: str | None
    rack: str | None
    isolation_level: str
    large_messages: str
    on_commit: Callable[..., Any] | None
    on_unreadable: str
    key_deserializer: Callable[[bytes], Any] | str | None
    value_deserializer: Callable[[bytes], Any] | str | None


def consumer_config(
    first: str | Sequence[str] | Mapping[str, object] | None, keywords: Mapping[str, object]
) -> ConsumerConfig:
    """Return the settings that a program gives; raises `ConfigError` naming a wrong one."""
    config = read_settings(ConsumerConfig, given_settings(first, keywords))
    if config.group_instance_id is not None and config.group_id is None:
        msg = "setting group_instance_id needs group_id: a static member is one of a group"
        raise ConfigError(msg)
    return config
