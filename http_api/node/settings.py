"""The one table of settings: section, key, range, meaning. Defaults live in the dataclasses.

Every key of ``[defaults]``, ``[limits]`` and ``[timeouts]`` is a row here and a field of a
configuration dataclass (a test compares the two). Times are milliseconds, sizes bytes.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable
from dataclasses import dataclass

from broker.config import BrokerDefaults, BrokerLimits, BrokerTimeouts
from http_api.node.exits import ConfigError

SettingValue = bool | int | str

MAX_MS = 31_536_000_000
"""One year: a longer wait is a mistake in the unit."""
MAX_BYTES = 1 << 40


@dataclass(frozen=True, slots=True, kw_only=True)
class RaftTimeouts:
    """The part of ``[timeouts]`` that only controllers use."""

    election_timeout_ms: int = 500
    raft_heartbeat_ms: int = 100
    raft_step_down_ms: int = 1_000


_HOMES = {
    "defaults": (BrokerDefaults(),),
    "limits": (BrokerLimits(),),
    "timeouts": (BrokerTimeouts(), RaftTimeouts()),
}


@dataclass(frozen=True, slots=True)
class Setting:
    """One key. Numbers lie in ``low..high``; texts are one of ``choices``."""

    section: str
    name: str
    meaning: str
    low: int = 0
    high: int = 0
    choices: tuple[str, ...] = ()

    @property
    def default(self) -> SettingValue:
        """The value the dataclass of its section starts with."""
        for home in _HOMES[self.section]:
            if hasattr(home, self.name):
                value: SettingValue = getattr(home, self.name)
                return value
        msg = f"setting {self.section}.{self.name} has no field"
        raise AssertionError(msg)

    @property
    def expected(self) -> str:
        """What a value must be, for messages and comments."""
        if isinstance(self.default, bool):
            return "true or false"
        if self.choices:
            return " or ".join(self.choices)
        return f"a whole number from {self.low} to {self.high}"

    def check(self, value: object, origin: str) -> SettingValue:
        """The value if it has the type and range of this setting; else a `ConfigError`."""
        default = self.default
        if isinstance(default, bool):
            if isinstance(value, bool):
                return value
        elif isinstance(default, int):
            if type(value) is int and self.low <= value <= self.high:
                return value
        elif isinstance(value, str) and value in self.choices:
            return value
        msg = f"{origin}: {self.section}.{self.name} = {value!r}, expected {self.expected}"
        raise ConfigError(msg)

    def parse(self, text: str, origin: str) -> SettingValue:
        """Read the value from an environment variable or a ``--set``."""
        value: object = text
        if isinstance(self.default, bool):
            value = {"true": True, "false": False}.get(text.strip().lower(), text)
        elif isinstance(self.default, int):
            try:
                value = int(text.strip())
            except ValueError:
                value = text
        return self.check(value, origin)


def _rows(section: str, rows: Iterable[tuple[str, int, int, str]]) -> tuple[Setting, ...]:
    return tuple(Setting(section, name, text, low, high) for name, low, high, text in rows)


SETTINGS: tuple[Setting, ...] = (
    *_rows(
        "defaults",
        [
            ("num_partitions", 1, 10_000, "partitions of a topic created without a number"),
            ("default_replication_factor", 1, 1_000, "replicas of a topic created without one"),
            ("min_insync_replicas", 1, 1_000, "in-sync replicas an acks=all write needs"),
            ("auto_create_topics_enable", 0, 1, "a produce to an unknown topic creates it"),
        ],
    ),
    Setting(
        "defaults",
        "flush",
        "ack: fdatasync before an acknowledgement; os: Kafka's page-cache rule",
        choices=("ack", "os"),
    ),
    *_rows(
        "defaults",
        [("max_message_bytes", 64, 1 << 30, "largest record a topic takes (max.message.bytes)")],
    ),
    Setting(
        "defaults",
        "message_timestamp_type",
        "whose time look-ups by time use: the producer's (create) or the broker's (append)",
        choices=("create", "append"),
    ),
    *_rows(
        "defaults",
        [
            ("segment_bytes", 1 << 12, (1 << 31) - 1, "a segment is rolled at this size"),
            ("segment_ms", 1_000, MAX_MS, "a segment is rolled at this age"),
        ],
    ),
    *_rows(
        "limits",
        [
            ("max_body_bytes", 1 << 10, 1 << 30, "largest request body; above: 413"),
            ("max_header_bytes", 1 << 10, 1 << 20, "largest header field of a request"),
            ("max_records_per_request", 1, 10_000_000, "records of one produce; above: 413"),
            ("max_objects_per_request", 1, 100_000_000, "JSON objects in one produce; above: 413"),
            ("max_partitions_per_topic", 1, 1_000_000, "partitions one topic may have"),
            ("max_fetch_bytes", 1 << 10, 1 << 30, "largest max_bytes of a fetch"),
            ("max_fetch_wait_ms", 1, 3_600_000, "longest timeout of a fetch"),
            ("max_produce_timeout_ms", 1, 3_600_000, "longest timeout of a produce"),
            ("max_parked_produces", 1, 10_000_000, "produces waiting for the high watermark"),
            ("max_parked_fetches", 1, 10_000_000, "fetches waiting for a record"),
            ("replication_push_bytes", 1 << 10, 1 << 30, "bytes pushed before another's turn"),
            ("replication_buffer_bytes", 1 << 10, 1 << 32, "unsent bytes per follower stream"),
            ("max_open_segments", 16, 1_000_000, "open segment files of a broker"),
            ("topic_delete_grace_ms", 0, MAX_MS, "deleted data stays this long (rule M5)"),
        ],
    ),
    *_rows(
        "timeouts",
        [
            ("broker_session_timeout_ms", 100, 600_000, "a silent broker is fenced after this"),
            ("broker_heartbeat_interval_ms", 10, 60_000, "how often a broker says it lives"),
            ("broker_disconnect_grace_ms", 10, 600_000, "a closed connection counts as death"),
            ("replica_lag_time_max_ms", 100, 1_500_000, "a lagging replica leaves the ISR"),
            ("replication_heartbeat_ms", 10, 60_000, "stream heartbeats; three missed: closed"),
            ("high_watermark_interval_ms", 1, 10_000, "idle followers learn the high watermark"),
            ("reconnect_backoff_ms", 1, 60_000, "pause before a connection is tried again"),
            ("controlled_shutdown_ms", 0, 600_000, "a leaving broker waits for its leave"),
            ("metadata_fetch_wait_ms", 10, 60_000, "long poll for metadata"),
            ("topic_ready_ms", 100, 600_000, "a create waits for its leaders"),
            ("group_rebalance_timeout_ms", 100, MAX_MS, "a silent member may keep partitions"),
            ("log_flush_interval_ms", 10, MAX_MS, "background sync of flush=os logs"),
            ("election_timeout_ms", 50, 60_000, "shortest Raft election time-out; longest: twice"),
            ("raft_heartbeat_ms", 5, 10_000, "Raft heartbeats of the active controller"),
            ("raft_step_down_ms", 100, 60_000, "a cut-off controller stops leading after this"),
        ],
    ),
)

BY_NAME = {setting.name: setting for setting in SETTINGS}
SETTING_SECTIONS = tuple(_HOMES)


def nearest(name: str, known: Iterable[str]) -> str:
    """The known name most like ``name``: a message that says "no" also says what was meant."""
    names = sorted(known)
    match = difflib.get_close_matches(name, names, n=1, cutoff=0.0)
    return match[0] if match else names[0]


def find_setting(key: str, origin: str) -> Setting:
    """The setting called ``key`` or ``section.key``; else a `ConfigError` naming the nearest."""
    section, dot, name = key.rpartition(".")
    setting = BY_NAME.get(name)
    if setting is not None and (not dot or setting.section == section):
        return setting
    msg = f"{origin}: unknown key {key!r}, the nearest is {nearest(name, BY_NAME)!r}"
    raise ConfigError(msg)


def split_assignment(text: str) -> tuple[str, str]:
    """``key=value`` of a ``--set``."""
    key, equals, value = text.partition("=")
    if not equals or not key.strip():
        msg = f"--set {text!r}: expected key=value"
        raise ConfigError(msg)
    return key.strip(), value.strip()
