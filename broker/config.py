"""What one broker is told: identity, defaults, limits, timeouts. Composed by ``http_api.node``."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from raft_metadata.common.ids import BrokerId, ClusterId, DirectoryId


@dataclass(frozen=True, slots=True, kw_only=True)
class BrokerDefaults:
    """The ``[defaults]`` section: cluster-wide, written by ``up`` for its size (rule M8)."""

    num_partitions: int = 1
    default_replication_factor: int = 1
    min_insync_replicas: int = 1
    auto_create_topics_enable: bool = True
    flush: str = "ack"
    """``ack``: fdatasync before an acknowledgement; ``os``: Kafka's page-cache rule."""
    max_message_bytes: int = 1_048_576
    message_timestamp_type: str = "create"
    segment_bytes: int = 1_073_741_824
    segment_ms: int = 604_800_000


@dataclass(frozen=True, slots=True, kw_only=True)
class BrokerLimits:
    """Every queue, body and wait has a name and a bound."""

    max_body_bytes: int = 16_777_216
    max_header_bytes: int = 32_768
    max_records_per_request: int = 100_000
    """A body of empty records may hold millions: decoding them would hold the loop for seconds."""
    max_objects_per_request: int = 500_000
    """Opening braces of a produce body, counted before it is decoded: the same, for nested ones."""
    max_partitions_per_topic: int = 10_000
    max_fetch_bytes: int = 67_108_864
    max_fetch_wait_ms: int = 60_000
    max_produce_timeout_ms: int = 60_000
    max_parked_produces: int = 20_000
    """Produce requests waiting for the high watermark, per broker."""
    max_parked_fetches: int = 20_000
    replication_push_bytes: int = 1_048_576
    """Bytes pushed for one partition before another one has its turn (rule R9)."""
    replication_buffer_bytes: int = 8_388_608
    """Unsent bytes per follower stream before pushing pauses and catch-up reads take over."""
    max_open_segments: int = 4_096
    topic_delete_grace_ms: int = 60_000
    """Deleted data stays quarantined this long before it is unlinked (rule M5)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BrokerTimeouts:
    """All in milliseconds, on monotonic time."""

    broker_session_timeout_ms: int = 1_200
    broker_heartbeat_interval_ms: int = 250
    broker_disconnect_grace_ms: int = 300
    replica_lag_time_max_ms: int = 3_000
    """At most 2.5 x the session, not Kafka's 30 s (rule R9)."""
    replication_heartbeat_ms: int = 300
    """A stream is closed after three of these without a frame (rule R9)."""
    high_watermark_interval_ms: int = 100
    """The high watermark reaches idle followers at least this often (rule R9)."""
    reconnect_backoff_ms: int = 100
    controlled_shutdown_ms: int = 10_000
    metadata_fetch_wait_ms: int = 500
    topic_ready_ms: int = 15_000
    group_rebalance_timeout_ms: int = 30_000
    """A member keeps what it is to give up this long at most, if it does not call again."""
    log_flush_interval_ms: int = 1_000
    """How often a ``flush=os`` log is synced in the background."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BrokerConfig:
    """Everything one broker process is told."""

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
