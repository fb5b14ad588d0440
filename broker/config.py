"""Configuration of one broker: identity, defaults, limits and timeouts.

``http_api.node`` composes a `BrokerConfig` from config.toml, the environment and ``--set``; the
broker reads it and never changes it. Names, ranges, meanings and defaults of the configs are
defined in one table, ``raft_metadata.common.configs.table``.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from pathlib import Path

from raft_metadata.common.configs.rows import text_of
from raft_metadata.common.configs.table import (
    CONFIGS,
    default_flag,
    default_number,
    default_ratio,
    default_word,
)
from raft_metadata.common.ids import BrokerId, ClusterId, DirectoryId


@dataclass(frozen=True, slots=True, kw_only=True)
class BrokerDefaults:
    """The ``[defaults]`` section, the same in the whole cluster; written by ``up`` (rule M8)."""

    num_partitions: int = default_number("num.partitions")
    default_replication_factor: int = default_number("default.replication.factor")
    min_insync_replicas: int = default_number("min.insync.replicas")
    auto_create_topics_enable: bool = default_flag("auto.create.topics.enable")
    flush: str = default_word("flush")
    """``ack``: fdatasync before an acknowledgement; ``os``: Kafka's page-cache rule."""
    max_message_bytes: int = default_number("max.message.bytes")
    message_timestamp_type: str = default_word("message.timestamp.type")
    segment_bytes: int = default_number("segment.bytes")
    segment_ms: int = default_number("segment.ms")
    retention_ms: int = default_number("retention.ms")
    retention_bytes: int = default_number("retention.bytes")
    cleanup_policy: str = default_word("cleanup.policy")
    min_cleanable_dirty_ratio: float = default_ratio("min.cleanable.dirty.ratio")
    delete_retention_ms: int = default_number("delete.retention.ms")
    min_compaction_lag_ms: int = default_number("min.compaction.lag.ms")
    max_compaction_lag_ms: int = default_number("max.compaction.lag.ms")
    unclean_leader_election_enable: bool = default_flag("unclean.leader.election.enable")


@dataclass(frozen=True, slots=True, kw_only=True)
class BrokerLimits:
    """Limits of queues, bodies and buffers. No queue of the broker is without one."""

    max_body_bytes: int = default_number("max.body.bytes")
    max_header_bytes: int = default_number("max.header.bytes")
    max_records_per_request: int = default_number("max.records.per.request")
    """A body may hold millions of empty records: decoding them would hold the loop for seconds."""
    max_objects_per_request: int = default_number("max.objects.per.request")
    """Opening braces of a produce body, counted before it is decoded: bounds nested objects too."""
    produce_batch_maximum_entries: int = default_number("produce.batch.maximum.entries")
    max_streams: int = default_number("max.streams")
    """Requests at a time whose body or answer has no end of its own. Each holds a connection, its
    buffers and a task, for a day at most."""
    max_connections: int = default_number("max.connections")
    max_connections_per_ip: int = default_number("max.connections.per.ip")
    max_partitions_per_topic: int = default_number("max.partitions.per.topic")
    max_fetch_bytes: int = default_number("max.fetch.bytes")
    max_fetch_wait_ms: int = default_number("max.fetch.wait.ms")
    max_produce_timeout_ms: int = default_number("max.produce.timeout.ms")
    max_parked_produces: int = default_number("max.parked.produces")
    """Produce requests waiting for the high watermark, per broker."""
    max_producers_per_partition: int = default_number("max.producers.per.partition")
    """Producer ids that have written to a partition within ``producer.id.expiration.ms``."""
    max_parked_fetches: int = default_number("max.parked.fetches")
    max_polled_partitions: int = default_number("max.polled.partitions")
    """Rows of ``records:poll`` requests under way, those of other brokers for what is led here too.
    Each takes about a kilobyte while it waits."""
    replication_push_bytes: int = default_number("replication.push.bytes")
    """Bytes pushed for one partition before the next partition has its turn (rule R9)."""
    replication_buffer_bytes: int = default_number("replication.buffer.bytes")
    """Unsent bytes per follower stream before pushing pauses and catch-up reads take over."""
    replication_unsynced_bytes: int = default_number("replication.unsynced.bytes")
    """Bytes that one follower stream may push ahead of the follower's acknowledgements. A follower
    whose disk hangs therefore holds at most this many unsynced bytes."""
    max_open_segments: int = default_number("max.open.segments")
    log_cleaner_dedupe_buffer_size: int = default_number("log.cleaner.dedupe.buffer.size")
    """Memory for the keys of one pass of compaction; keys that do not fit wait for the next
    pass."""
    log_cleaner_io_max_bytes_per_second: int = default_number("log.cleaner.io.max.bytes.per.second")
    topic_delete_grace_ms: int = default_number("topic.delete.grace.ms")
    """Deleted data stays quarantined this long before it is unlinked (rule M5)."""
    http_fast_lane: bool = default_flag("http.fast.lane")
    """Plain produces and fetches skip aiohttp's request handling: see `http_api.server`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BrokerTimeouts:
    """Timeouts and intervals in milliseconds, on the monotonic clock."""

    broker_session_timeout_ms: int = default_number("broker.session.timeout.ms")
    broker_heartbeat_interval_ms: int = default_number("broker.heartbeat.interval.ms")
    broker_disconnect_grace_ms: int = default_number("broker.disconnect.grace.ms")
    replica_lag_time_max_ms: int = default_number("replica.lag.time.max.ms")
    """At most 2.5 x the session, not Kafka's 30 s (rule R9)."""
    replication_heartbeat_ms: int = default_number("replication.heartbeat.ms")
    """A stream is closed after three of these without a frame (rule R9)."""
    reconnect_backoff_ms: int = default_number("reconnect.backoff.ms")
    controlled_shutdown_ms: int = default_number("controlled.shutdown.ms")
    metadata_fetch_wait_ms: int = default_number("metadata.fetch.wait.ms")
    topic_ready_ms: int = default_number("topic.ready.ms")
    group_rebalance_timeout_ms: int = default_number("group.rebalance.timeout.ms")
    """Longest time that a member without a call keeps partitions which it must give up."""
    producer_id_expiration_ms: int = default_number("producer.id.expiration.ms")
    """Time without a batch after which a log forgets a producer; any sequence is accepted then."""
    log_flush_interval_ms: int = default_number("log.flush.interval.ms")
    """The interval at which a ``flush=os`` log is synced in the background."""
    log_retention_check_interval_ms: int = default_number("log.retention.check.interval.ms")
    log_segment_delete_delay_ms: int = default_number("log.segment.delete.delay.ms")
    clock_difference_max_ms: int = default_number("clock.difference.max.ms")
    """Largest difference to the active controller's clock at which records are deleted for their
    age (rule R10)."""
    log_cleaner_backoff_ms: int = default_number("log.cleaner.backoff.ms")
    first_byte_ms: int = default_number("first.byte.ms")
    header_ms: int = default_number("header.ms")
    answer_progress_ms: int = default_number("answer.progress.ms")


ACCESS_OFF, ACCESS_ERRORS, ACCESS_ALL = ACCESS_MODES = ("off", "errors", "all")
"""Values of ``[log] access``."""
ACCESS_SLOW_MS_DEFAULT = 1_000
LOG_BYTES_DEFAULT = 64 << 20
LOG_KEEP_DEFAULT = 5


@dataclass(frozen=True, slots=True, kw_only=True)
class AccessLogConfig:
    """The ``[log]`` section. Immutable."""

    file: Path
    mode: str = ACCESS_ERRORS
    """``errors``: requests that failed or were slow; ``all``: every one; ``off``: none."""
    slow_ms: int = ACCESS_SLOW_MS_DEFAULT
    """A request that took this much longer than it asked to wait is slow."""
    max_bytes: int = LOG_BYTES_DEFAULT
    """Size at which the file is renamed to ``FILE.1``, that to ``FILE.2``, and so on."""
    keep: int = LOG_KEEP_DEFAULT
    """Number of files besides the present one; older ones are deleted."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BrokerConfig:
    """The configuration of one broker process. Immutable."""

    broker_id: BrokerId
    cluster_id: ClusterId
    directory_id: DirectoryId
    data_dir: Path
    """The node's folder: ``log/`` lives in it."""
    advertised_http: str
    advertised_peer: str
    rack: str | None = None
    defaults: BrokerDefaults = BrokerDefaults()
    limits: BrokerLimits = BrokerLimits()
    timeouts: BrokerTimeouts = BrokerTimeouts()
    stated: frozenset[str] = frozenset()
    """Names of the configs that config.toml, the environment or ``--set`` gave a value."""

    def static(self) -> Mapping[str, str]:
        """Return this node's own configuration by config name. Compute it once and keep it.

        A config that was not set and has the table's default is left out.
        """
        values = {
            item.name.replace("_", "."): getattr(part, item.name)
            for part in (self.defaults, self.limits, self.timeouts)
            for item in fields(part)
        }
        return {
            name: text_of(value)
            for name, value in values.items()
            if name in self.stated or value != CONFIGS[name].default
        }
