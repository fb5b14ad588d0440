"""The one table of configs: name, kind, default, range, meaning, where it can be set, and when.

Controllers validate by it, brokers read by it, config.toml and its dataclasses are made of it
(``broker.config``, ``http_api.node.node_config``), and docs/reference/configs.md is written from
it. Only configs that this version honours are listed; any other name is refused as unknown. Times
are milliseconds, sizes bytes.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Mapping
from typing import TypeVar

from raft_metadata.common.configs.rows import (
    ConfigRow,
    FlagConfig,
    ListConfig,
    NumberConfig,
    RatioConfig,
    Scope,
    Section,
    WordConfig,
)
from raft_metadata.common.errors import ErrorCode, KafkaError

MIN_INSYNC_REPLICAS = "min.insync.replicas"
MAX_MESSAGE_BYTES = "max.message.bytes"
FLUSH = "flush"
MESSAGE_TIMESTAMP_TYPE = "message.timestamp.type"
MESSAGE_TIMESTAMP_BEFORE_MAX_MS = "message.timestamp.before.max.ms"
MESSAGE_TIMESTAMP_AFTER_MAX_MS = "message.timestamp.after.max.ms"
COMPRESSION_TYPE = "compression.type"
SEGMENT_BYTES = "segment.bytes"
SEGMENT_MS = "segment.ms"
RETENTION_MS = "retention.ms"
RETENTION_BYTES = "retention.bytes"
CLEANUP_POLICY = "cleanup.policy"
MIN_CLEANABLE_DIRTY_RATIO = "min.cleanable.dirty.ratio"
DELETE_RETENTION_MS = "delete.retention.ms"
MIN_COMPACTION_LAG_MS = "min.compaction.lag.ms"
MAX_COMPACTION_LAG_MS = "max.compaction.lag.ms"
UNCLEAN_LEADER_ELECTION_ENABLE = "unclean.leader.election.enable"

NUM_PARTITIONS = "num.partitions"
DEFAULT_REPLICATION_FACTOR = "default.replication.factor"
AUTO_CREATE_TOPICS_ENABLE = "auto.create.topics.enable"
AUTO_LEADER_REBALANCE_ENABLE = "auto.leader.rebalance.enable"
LEADER_IMBALANCE_CHECK_INTERVAL_MS = "leader.imbalance.check.interval.ms"
LEADER_REPLICATION_THROTTLED_RATE = "leader.replication.throttled.rate"
FOLLOWER_REPLICATION_THROTTLED_RATE = "follower.replication.throttled.rate"
GROUP_CONSUMER_ASSIGNORS = "group.consumer.assignors"
OFFSETS_RETENTION_MINUTES = "offsets.retention.minutes"
OFFSETS_RETENTION_CHECK_INTERVAL_MS = "offsets.retention.check.interval.ms"
OFFSETS_TOPIC_NUM_PARTITIONS = "offsets.topic.num.partitions"
OFFSETS_TOPIC_REPLICATION_FACTOR = "offsets.topic.replication.factor"
TRANSACTION_INLINE_MAX_BYTES = "transaction.inline.max.bytes"
TRANSACTION_CHUNK_MAX_BYTES = "transaction.chunk.max.bytes"
TRANSACTION_MAX_BYTES = "transaction.max.bytes"
TRANSACTION_MAX_CHUNKS = "transaction.max.chunks"
TRANSACTION_MAX_PARTITIONS = "transaction.max.partitions"
TRANSACTION_MAX_AGE_MS = "transaction.max.age.ms"
TRANSACTION_STAGED_MAX_BYTES = "transaction.staged.max.bytes"
TRANSACTION_STAGED_MOVE_BYTES = "transaction.staged.move.bytes"
TRANSACTION_COMMITTING_MAX = "transaction.committing.max"
IDEMPOTENCY_KEY_RETENTION_MS = "idempotency.key.retention.ms"
IDEMPOTENCY_KEYS_MAX = "idempotency.keys.max"
TRANSACTIONAL_ID_EXPIRATION_MS = "transactional.id.expiration.ms"
TRANSACTIONAL_IDS_MAX = "transactional.ids.max"
REPLICA_SELECTOR = "replica.selector"
CORS_ALLOWED_ORIGINS = "cors.allowed.origins"
HTTP_GZIP = "http.gzip"
HTTP_IGNORED_PARAMETERS = "http.ignored.parameters"

MAX_MS = 31_536_000_000
"""One year: a longer wait is taken for a mistake in the unit."""
_INT32_MAX = 2_147_483_647
_INT64_MAX = 9_223_372_036_854_775_807
NO_TIMESTAMP_LIMIT = _INT64_MAX
NO_RATE_LIMIT = _INT64_MAX
_RECORD_BYTES_MAX = 67_108_864
"""64 MiB: a record sent between brokers fits one frame (72 MiB) with room for its header."""
_TRANSACTION_TEXT_MAX = 33_554_432
"""32 MiB: rows of a transaction that are one batch (65 MiB) with what each record adds to them."""

_TOPIC = frozenset({Scope.TOPIC, Scope.CLUSTER})
_TOPIC_AND_BROKER = frozenset({Scope.TOPIC, Scope.CLUSTER, Scope.BROKER})
"""Scopes of topic configs that also can be set on one broker: they affect only its own disk."""
_CLUSTER = frozenset({Scope.CLUSTER})
_CLUSTER_AND_BROKER = frozenset({Scope.CLUSTER, Scope.BROKER})

_TOPIC_ROWS: tuple[ConfigRow, ...] = (
    NumberConfig(
        name=MIN_INSYNC_REPLICAS,
        section=Section.DEFAULTS,
        scopes=_TOPIC,
        default=1,
        minimum=1,
        maximum=1_000,
        meaning="A write with acks=all is refused while fewer replicas than this are in sync.",
    ),
    NumberConfig(
        name=MAX_MESSAGE_BYTES,
        section=Section.DEFAULTS,
        scopes=_TOPIC,
        default=1_048_576,
        minimum=1,
        maximum=_RECORD_BYTES_MAX,
        meaning="The largest record that a topic accepts, in bytes.",
    ),
    WordConfig(
        name=FLUSH,
        section=Section.DEFAULTS,
        scopes=_TOPIC,
        default="ack",
        choices=("ack", "os"),
        meaning=(
            "ack: a record is on disk (fdatasync) before it is acknowledged. os: it is in the "
            "page cache, as in Kafka."
        ),
    ),
    WordConfig(
        name=MESSAGE_TIMESTAMP_TYPE,
        section=Section.DEFAULTS,
        scopes=_TOPIC,
        default="create",
        choices=("create", "append"),
        meaning="The time that look-ups by time use. create: the producer's. append: the broker's.",
    ),
    NumberConfig(  # KIP-937; set live only, so that every node can read it first
        name=MESSAGE_TIMESTAMP_BEFORE_MAX_MS,
        scopes=_TOPIC,
        default=NO_TIMESTAMP_LIMIT,
        minimum=0,
        maximum=NO_TIMESTAMP_LIMIT,
        meaning=(
            "A record is refused if its producer's timestamp is further in the past than this, in "
            "milliseconds."
        ),
    ),
    NumberConfig(
        name=MESSAGE_TIMESTAMP_AFTER_MAX_MS,
        scopes=_TOPIC,
        default=NO_TIMESTAMP_LIMIT,
        minimum=0,
        maximum=NO_TIMESTAMP_LIMIT,
        meaning=(
            "A record is refused if its producer's timestamp is further in the future than this, "
            "in milliseconds."
        ),
    ),
    WordConfig(  # set live only, so that every node can read it first
        name=COMPRESSION_TYPE,
        scopes=_TOPIC,
        default="uncompressed",
        choices=("uncompressed", "producer", "zstd"),
        meaning=(
            "zstd: new batches are stored compressed. producer and uncompressed: they are stored "
            "as sent."
        ),
    ),
    NumberConfig(
        name=SEGMENT_BYTES,
        section=Section.DEFAULTS,
        scopes=_TOPIC_AND_BROKER,
        default=1_073_741_824,
        minimum=1_024,
        maximum=_INT32_MAX,
        meaning="A new segment begins before the current one grows past this many bytes.",
    ),
    NumberConfig(
        name=SEGMENT_MS,
        section=Section.DEFAULTS,
        scopes=_TOPIC_AND_BROKER,
        default=604_800_000,
        minimum=1,
        maximum=_INT64_MAX,
        meaning=(
            "A new segment begins when the first batch of the current one is this old, in "
            "milliseconds."
        ),
    ),
    NumberConfig(
        name=RETENTION_MS,
        section=Section.DEFAULTS,
        scopes=_TOPIC,
        default=604_800_000,
        minimum=-1,
        maximum=_INT64_MAX,
        meaning=(
            "A segment is deleted once all its records were appended this long ago, in "
            "milliseconds. -1: never for its age."
        ),
    ),
    NumberConfig(
        name=RETENTION_BYTES,
        section=Section.DEFAULTS,
        scopes=_TOPIC,
        default=-1,
        minimum=-1,
        maximum=_INT64_MAX,
        meaning=(
            "The oldest segments of a partition are deleted while the others hold at least this "
            "many bytes. -1: no limit."
        ),
    ),
    WordConfig(
        name=CLEANUP_POLICY,
        section=Section.DEFAULTS,
        scopes=_TOPIC,
        default="delete",
        choices=("delete", "compact", "compact,delete", "delete,compact"),
        meaning=(
            "delete: old segments are deleted. compact: only the newest record of each key is "
            "kept. Or both."
        ),
    ),
    RatioConfig(
        name=MIN_CLEANABLE_DIRTY_RATIO,
        section=Section.DEFAULTS,
        scopes=_TOPIC,
        default=0.5,
        meaning=(
            "A log is compacted once more than this share of its closed segments, in bytes, was "
            "never compacted."
        ),
    ),
    NumberConfig(
        name=DELETE_RETENTION_MS,
        section=Section.DEFAULTS,
        scopes=_TOPIC,
        default=86_400_000,
        minimum=0,
        maximum=_INT64_MAX,
        meaning="A tombstone is kept for this long after it was compacted, in milliseconds.",
    ),
    NumberConfig(
        name=MIN_COMPACTION_LAG_MS,
        section=Section.DEFAULTS,
        scopes=_TOPIC,
        default=0,
        minimum=0,
        maximum=_INT64_MAX,
        meaning="Compaction removes no record that is younger than this, in milliseconds.",
    ),
    NumberConfig(
        name=MAX_COMPACTION_LAG_MS,
        section=Section.DEFAULTS,
        scopes=_TOPIC,
        default=_INT64_MAX,
        minimum=1,
        maximum=_INT64_MAX,
        meaning=(
            "A log is compacted at the latest when its oldest uncompacted record is this old, in "
            "milliseconds."
        ),
    ),
    FlagConfig(
        name=UNCLEAN_LEADER_ELECTION_ENABLE,
        section=Section.DEFAULTS,
        scopes=_TOPIC,
        default=False,
        meaning=(
            "If no eligible replica is left, a replica that may lack acknowledged records becomes "
            "the leader."
        ),
    ),
)

_CLUSTER_ROWS: tuple[ConfigRow, ...] = (
    NumberConfig(
        name=NUM_PARTITIONS,
        section=Section.DEFAULTS,
        scopes=_CLUSTER,
        default=1,
        minimum=1,
        maximum=10_000,
        meaning="Partitions of a topic that is created without a number of partitions.",
    ),
    NumberConfig(
        name=DEFAULT_REPLICATION_FACTOR,
        section=Section.DEFAULTS,
        scopes=_CLUSTER,
        default=1,
        minimum=1,
        maximum=1_000,
        meaning=(
            "Replicas of each partition of a topic that is created without a replication factor."
        ),
    ),
    FlagConfig(
        name=AUTO_CREATE_TOPICS_ENABLE,
        section=Section.DEFAULTS,
        scopes=_CLUSTER,
        default=True,
        meaning="A write to an unknown topic creates the topic.",
    ),
    FlagConfig(
        name=AUTO_LEADER_REBALANCE_ENABLE,
        scopes=_CLUSTER,
        default=True,
        meaning="Leadership goes back to preferred leaders once they are in sync again.",
    ),
    NumberConfig(
        name=LEADER_IMBALANCE_CHECK_INTERVAL_MS,
        scopes=_CLUSTER,
        default=10_000,
        minimum=100,
        maximum=MAX_MS,
        meaning=(
            "The time between two checks for partitions that their preferred replica does not "
            "lead, in milliseconds."
        ),
    ),
    NumberConfig(
        name=LEADER_REPLICATION_THROTTLED_RATE,
        scopes=_CLUSTER_AND_BROKER,
        default=NO_RATE_LIMIT,
        minimum=1,
        maximum=NO_RATE_LIMIT,
        meaning="Most bytes per second that a broker sends to replicas that are not in sync.",
    ),
    NumberConfig(
        name=FOLLOWER_REPLICATION_THROTTLED_RATE,
        scopes=_CLUSTER_AND_BROKER,
        default=NO_RATE_LIMIT,
        minimum=1,
        maximum=NO_RATE_LIMIT,
        meaning=(
            "Most bytes per second that a broker receives for its replicas that are not in sync."
        ),
    ),
    WordConfig(
        name=GROUP_CONSUMER_ASSIGNORS,
        scopes=_CLUSTER,
        default="uniform",
        choices=("uniform", "range"),
        meaning=(
            "The assignor of groups whose members name none; a group takes a new value when it is "
            "next empty."
        ),
    ),
    NumberConfig(
        name=OFFSETS_RETENTION_MINUTES,
        scopes=_CLUSTER,
        default=10_080,
        minimum=-1,
        maximum=_INT32_MAX,
        meaning=(
            "A committed offset that no live consumer needs is deleted after this long, in "
            "minutes. -1: never."
        ),
    ),
    NumberConfig(
        name=OFFSETS_RETENTION_CHECK_INTERVAL_MS,
        scopes=_CLUSTER,
        default=600_000,
        minimum=100,
        maximum=MAX_MS,
        meaning="The time between two checks for expired committed offsets, in milliseconds.",
    ),
    NumberConfig(
        name=OFFSETS_TOPIC_NUM_PARTITIONS,
        scopes=_CLUSTER,
        default=12,
        minimum=1,
        maximum=1_000,
        meaning=(
            "Partitions of the topic of committed offsets; read once, when the topic is created."
        ),
    ),
    NumberConfig(
        name=OFFSETS_TOPIC_REPLICATION_FACTOR,
        scopes=_CLUSTER,
        default=0,
        minimum=0,
        maximum=1_000,
        meaning=(
            "Replicas of the topic of committed offsets; read once, when the topic is created. 0: "
            "default.replication.factor."
        ),
    ),
    NumberConfig(
        name=TRANSACTION_INLINE_MAX_BYTES,
        scopes=_CLUSTER,
        default=1_048_576,
        minimum=1_024,
        maximum=_TRANSACTION_TEXT_MAX,
        meaning=(
            "The most bytes of records in the request that decides a transaction; larger ones are "
            "staged first."
        ),
    ),
    NumberConfig(
        name=TRANSACTION_CHUNK_MAX_BYTES,
        scopes=_CLUSTER,
        default=1_048_576,
        minimum=1_024,
        maximum=_TRANSACTION_TEXT_MAX,
        meaning="The most bytes of records in one staged request of a transaction.",
    ),
    NumberConfig(
        name=TRANSACTION_MAX_BYTES,
        scopes=_CLUSTER,
        default=1_073_741_824,
        minimum=1_024,
        maximum=1_099_511_627_776,
        meaning="The most bytes of records that one transaction stages.",
    ),
    NumberConfig(
        name=TRANSACTION_MAX_CHUNKS,
        scopes=_CLUSTER,
        default=10_000,
        minimum=1,
        maximum=100_000,
        meaning="The most staged requests of one transaction.",
    ),
    NumberConfig(
        name=TRANSACTION_MAX_PARTITIONS,
        scopes=_CLUSTER,
        default=1_000,
        minimum=1,
        maximum=10_000,
        meaning="The most partitions that one transaction writes to.",
    ),
    NumberConfig(
        name=TRANSACTION_MAX_AGE_MS,
        scopes=_CLUSTER,
        default=3_600_000,
        minimum=60_000,
        maximum=86_400_000,
        meaning=(
            "Staged rows of an undecided transaction may be given up after this long, in "
            "milliseconds."
        ),
    ),
    NumberConfig(
        name=TRANSACTION_STAGED_MAX_BYTES,
        scopes=_CLUSTER,
        default=4_294_967_296,
        minimum=1_048_576,
        maximum=_INT64_MAX,
        meaning=(
            "The most bytes in one partition of the topic of staged rows; more are refused until "
            "older ones are decided or given up."
        ),
    ),
    NumberConfig(
        name=TRANSACTION_STAGED_MOVE_BYTES,
        scopes=_CLUSTER,
        default=268_435_456,
        minimum=1_048_576,
        maximum=_INT64_MAX,
        meaning=(
            "Staged rows with this many bytes behind them are copied to the end of their log, so "
            "that its beginning can be deleted."
        ),
    ),
    NumberConfig(
        name=TRANSACTION_COMMITTING_MAX,
        scopes=_CLUSTER,
        default=1_000,
        minimum=1,
        maximum=100_000,
        meaning="Most transactions of a home that are decided but not complete; more are refused.",
    ),
    NumberConfig(
        name=IDEMPOTENCY_KEY_RETENTION_MS,
        scopes=_CLUSTER,
        default=600_000,
        minimum=120_000,
        maximum=MAX_MS,
        meaning=(
            "A repeat with the same idempotency key is recognised for at least this long after the "
            "decision, in milliseconds."
        ),
    ),
    NumberConfig(
        name=IDEMPOTENCY_KEYS_MAX,
        scopes=_CLUSTER,
        default=50_000,
        minimum=1,
        maximum=1_000_000,
        meaning="The most idempotency keys that one home remembers; more are refused.",
    ),
    NumberConfig(
        name=TRANSACTIONAL_ID_EXPIRATION_MS,
        scopes=_CLUSTER,
        default=604_800_000,
        minimum=120_000,
        maximum=MAX_MS,
        meaning=(
            "A producer's transactional id is forgotten after this long without use, in "
            "milliseconds."
        ),
    ),
    NumberConfig(
        name=TRANSACTIONAL_IDS_MAX,
        scopes=_CLUSTER,
        default=100_000,
        minimum=1,
        maximum=1_000_000,
        meaning="The most transactional ids that one home remembers; more are refused.",
    ),
    WordConfig(
        name=REPLICA_SELECTOR,
        scopes=_CLUSTER_AND_BROKER,
        default="leader",
        choices=("leader", "rack"),
        meaning=(
            "The replica that serves a reader which names its rack. leader: the leader. rack: a "
            "replica in that rack."
        ),
    ),
    ListConfig(
        name=CORS_ALLOWED_ORIGINS,
        scopes=_CLUSTER_AND_BROKER,
        default="",
        item=r"\*|https?://(?:\[[0-9A-Fa-f:.]{2,45}\]|[A-Za-z0-9._-]{1,255})(?::[0-9]{1,5})?",
        items_max=100,
        items="origins such as https://app.example.com:8443, or *",
        meaning=(
            "Web pages of these origins may use the HTTP listener (CORS). *: pages of any origin, "
            "without credentials. Empty: only its own pages."
        ),
    ),
    WordConfig(
        name=HTTP_GZIP,
        scopes=_CLUSTER_AND_BROKER,
        default="lists",
        choices=("off", "lists", "all"),
        meaning=(
            "Answers of 1 KiB and more that go as gzip to clients which accept it. lists: all but "
            "those to reads and writes of records. all: these, too."
        ),
    ),
    ListConfig(
        name=HTTP_IGNORED_PARAMETERS,
        scopes=_CLUSTER_AND_BROKER,
        default="",
        item=r"[A-Za-z0-9._~-]{1,100}",
        items_max=100,
        items="names of query parameters",
        meaning="Query parameters that are ignored where they are not known, and not refused.",
    ),
)


def _at_start(
    section: Section, rows: Iterable[tuple[str, int, int, int, str]]
) -> tuple[ConfigRow, ...]:
    """Return rows of numbers read at start, from (name, default, minimum, maximum, meaning)."""
    return tuple(
        NumberConfig(
            name=name,
            section=section,
            default=default,
            minimum=minimum,
            maximum=maximum,
            meaning=meaning,
        )
        for name, default, minimum, maximum, meaning in rows
    )


_LIMITS = _at_start(
    Section.LIMITS,
    [
        (
            "max.body.bytes",
            1 << 24,
            1 << 10,
            1 << 30,
            "The largest request body, in bytes; a larger one is refused with 413.",
        ),
        (
            "max.header.bytes",
            1 << 15,
            1 << 10,
            1 << 20,
            "The largest header field of a request, in bytes.",
        ),
        (
            "max.records.per.request",
            100_000,
            1,
            10**7,
            "Most records in one write; more are refused with 413.",
        ),
        (
            "max.objects.per.request",
            500_000,
            1,
            10**8,
            "Most JSON objects in one write; more are refused with 413.",
        ),
        (
            "produce.batch.maximum.entries",
            1_000,
            1,
            100_000,
            "Most entries of a POST …/records:batch; more are refused with 422.",
        ),
        (
            "max.streams",
            2_000,
            1,
            1_000_000,
            "Most streamed requests at a time; one more is answered with 503.",
        ),
        (
            "max.connections",
            10_000,
            1,
            1_000_000,
            (
                "Most connections of clients, but never more than half of the files that the "
                "process may open; one more is closed unanswered."
            ),
        ),
        (
            "max.connections.per.ip",
            1_000,
            1,
            1_000_000,
            "Most connections of clients from one address; one more is closed unanswered.",
        ),
        ("max.partitions.per.topic", 10_000, 1, 10**6, "Most partitions of one topic."),
        ("max.fetch.bytes", 1 << 26, 1 << 10, 1 << 30, "The largest max_bytes of a read."),
        (
            "max.fetch.wait.ms",
            60_000,
            1,
            3_600_000,
            "The longest timeout of a read, in milliseconds.",
        ),
        (
            "max.produce.timeout.ms",
            60_000,
            1,
            3_600_000,
            "The longest timeout of a write, in milliseconds.",
        ),
        (
            "max.parked.produces",
            20_000,
            1,
            10**7,
            "Most writes that wait for the high watermark at the same time.",
        ),
        (
            "max.producers.per.partition",
            10_000,
            1,
            10**6,
            "Most producer ids that a partition remembers.",
        ),
        (
            "max.parked.fetches",
            20_000,
            1,
            10**7,
            "Most reads that wait for a record at the same time.",
        ),
        (
            "max.polled.partitions",
            200_000,
            1,
            10**7,
            "Most partitions in the records:poll requests that wait at the same time.",
        ),
        (
            "replication.push.bytes",
            1 << 20,
            1 << 10,
            1 << 26,
            (
                "Bytes that a leader sends of one partition before the next partition of the same "
                "stream."
            ),
        ),
        (
            "replication.buffer.bytes",
            1 << 23,
            1 << 10,
            1 << 32,
            "Most unsent bytes of a replication stream to one follower.",
        ),
        (
            "replication.unsynced.bytes",
            1 << 26,
            1 << 20,
            1 << 40,
            "Most bytes sent to one follower that it has not yet reported as synced.",
        ),
        ("max.open.segments", 4_096, 16, 10**6, "Most segment files that a broker keeps open."),
        (
            "log.cleaner.dedupe.buffer.size",
            1 << 26,
            1 << 16,
            1 << 36,
            "Memory for the keys of one compaction pass, in bytes.",
        ),
        (
            "log.cleaner.io.max.bytes.per.second",
            1 << 25,
            1 << 10,
            1 << 40,
            "Most bytes per second that compaction reads and writes.",
        ),
        (
            "topic.delete.grace.ms",
            60_000,
            0,
            MAX_MS,
            "Files of a deleted topic are kept for this long, in milliseconds (rule M5).",
        ),
    ],
)

_SWITCHES: tuple[ConfigRow, ...] = (
    FlagConfig(
        name="http.fast.lane",
        section=Section.LIMITS,
        default=True,
        meaning=(
            "Plain writes and reads use a shorter path through the HTTP server, with the same "
            "answers."
        ),
    ),
)

_TIMEOUTS = _at_start(
    Section.TIMEOUTS,
    [
        (
            "first.byte.ms",
            10_000,
            100,
            3_600_000,
            "A new connection that sends nothing for this long is closed, in milliseconds.",
        ),
        (
            "header.ms",
            10_000,
            100,
            3_600_000,
            (
                "A connection is closed if the head of a request is not whole this long after its "
                "first byte, in milliseconds."
            ),
        ),
        (
            "answer.progress.ms",
            60_000,
            100,
            3_600_000,
            (
                "A connection is closed if its client takes nothing of an answer for this long, in "
                "milliseconds."
            ),
        ),
        (
            "broker.session.timeout.ms",
            1_200,
            100,
            600_000,
            "A broker is fenced after this long without a heartbeat, in milliseconds.",
        ),
        (
            "broker.heartbeat.interval.ms",
            250,
            10,
            60_000,
            "The time between two heartbeats of a broker, in milliseconds.",
        ),
        (
            "broker.disconnect.grace.ms",
            300,
            10,
            600_000,
            (
                "A broker is fenced after its connection has been closed for this long, in "
                "milliseconds."
            ),
        ),
        (
            "replica.lag.time.max.ms",
            3_000,
            100,
            1_500_000,
            "A replica that lags for this long leaves the ISR, in milliseconds.",
        ),
        (
            "replication.heartbeat.ms",
            300,
            10,
            60_000,
            (
                "The time between two heartbeats of a replication stream, in milliseconds; three "
                "missed ones close it."
            ),
        ),
        (
            "reconnect.backoff.ms",
            100,
            1,
            60_000,
            "The pause before a connection is tried again, in milliseconds.",
        ),
        (
            "controlled.shutdown.ms",
            10_000,
            0,
            600_000,
            (
                "The longest time that a broker waits at shutdown until its leaderships are "
                "moved, in milliseconds."
            ),
        ),
        (
            "metadata.fetch.wait.ms",
            500,
            10,
            60_000,
            "The longest time that a request for new metadata waits, in milliseconds.",
        ),
        (
            "topic.ready.ms",
            15_000,
            100,
            600_000,
            "The longest time that the creation of a topic waits for its leaders, in milliseconds.",
        ),
        (
            "group.rebalance.timeout.ms",
            30_000,
            100,
            MAX_MS,
            (
                "The longest time that a member keeps partitions which it should give up, in "
                "milliseconds."
            ),
        ),
        (
            "producer.id.expiration.ms",
            86_400_000,
            1,
            MAX_MS,
            "A producer id is forgotten after this long without a write, in milliseconds.",
        ),
        (
            "log.flush.interval.ms",
            1_000,
            10,
            MAX_MS,
            "The time between two background syncs of topics with flush=os, in milliseconds.",
        ),
        (
            "log.retention.check.interval.ms",
            300_000,
            10,
            MAX_MS,
            "The time between two checks for old segments, in milliseconds.",
        ),
        (
            "log.segment.delete.delay.ms",
            60_000,
            0,
            MAX_MS,
            "Files of deleted segments are kept for this long, in milliseconds.",
        ),
        (
            "clock.difference.max.ms",
            60_000,
            1,
            MAX_MS,
            (
                "Retention pauses while the broker's clock differs from the controller's by more "
                "than this, in milliseconds."
            ),
        ),
        (
            "log.cleaner.backoff.ms",
            15_000,
            1,
            MAX_MS,
            "The time between two checks for logs to compact, in milliseconds.",
        ),
        (
            "election.timeout.ms",
            500,
            50,
            60_000,
            "The shortest Raft election time-out, in milliseconds; the longest is twice that.",
        ),
        (
            "raft.heartbeat.ms",
            100,
            5,
            10_000,
            "The time between two Raft heartbeats of the active controller, in milliseconds.",
        ),
        (
            "raft.step.down.ms",
            1_000,
            100,
            60_000,
            (
                "An active controller stops leading after this long without a majority, in "
                "milliseconds."
            ),
        ),
    ],
)

CONFIGS: Mapping[str, ConfigRow] = {
    row.name: row for row in (*_TOPIC_ROWS, *_CLUSTER_ROWS, *_LIMITS, *_SWITCHES, *_TIMEOUTS)
}
"""All configs, by name."""
TOPIC_CONFIGS: Mapping[str, ConfigRow] = {row.name: row for row in _TOPIC_ROWS}
"""The configs that can be set on a topic, by name."""


def find_config(name: str, scope: Scope) -> ConfigRow:
    """Return the row of a config that can be set in this scope.

    Raises INVALID_CONFIG for a name that is unknown (with the nearest known name), that is set in
    another scope (naming it), or that is read at start only.
    """
    row = CONFIGS.get(name)
    if row is not None and scope in row.scopes:
        return row
    if row is None:
        known = [each.name for each in CONFIGS.values() if scope in each.scopes]
        nearest = difflib.get_close_matches(name[:100], known, n=1, cutoff=0)
        hint = f"; did you mean {nearest[0]}?" if nearest else ""
        message = f"unknown {scope.value} config {name[:100]!r}{hint}"
    elif row.scopes:
        where = " or ".join(each.value for each in Scope if each in row.scopes)
        message = f"{name} can be set for a {where}, not for a {scope.value}"
    else:
        section = "" if row.section is None else f" of [{row.section.value}]"
        message = (
            f"{name} is read-only: set {row.key}{section} in the node's config.toml and restart it"
        )
    raise KafkaError(ErrorCode.INVALID_CONFIG, message)


# ---- defaults of the dataclasses that hold a node's settings


K = TypeVar("K", bound=ConfigRow)


def row_of(name: str, kind: type[K]) -> K:
    """Return the row of this name, which is of this kind."""
    row = CONFIGS[name]
    assert isinstance(row, kind), name
    return row


def default_number(name: str) -> int:
    """Return the default of the config of this name, which is a number."""
    return row_of(name, NumberConfig).default


def default_ratio(name: str) -> float:
    """Return the default of the config of this name, which is a share."""
    return row_of(name, RatioConfig).default


def default_word(name: str) -> str:
    """Return the default of this word."""
    return row_of(name, WordConfig).default


def default_flag(name: str) -> bool:
    """Return the default of this flag."""
    return row_of(name, FlagConfig).default
