"""The one table from errors of the client to Kafka's error numbers, for adapters of other clients.

`kafka_number` returns Kafka's number (``Errors.java`` of apache/kafka) for an error that a broker
answered, and a negative one of librdkafka's (`LocalCode`) for an error of the client itself. Pure.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import IntEnum
from typing import Final

from http_api.client.client_errors import (
    ApiError,
    AuthenticationError,
    AuthorizationError,
    BufferFullError,
    ClosedError,
    CommitError,
    ConfigError,
    DeliveryError,
    FencedError,
    InvalidRecordError,
    LogTruncatedError,
    OffsetOutOfRangeError,
    OutcomeUnknownError,
    ProtocolError,
    QuorumlogError,
    ThrottledError,
    UnreachableError,
    UnreadableRecordError,
    WakeupError,
)
from http_api.contract.errors import RestCode
from raft_metadata.common.errors import ErrorCode, Outcome


class LocalCode(IntEnum):
    """Conditions of a client itself, by librdkafka's numbers."""

    BAD_MSG = -199
    FAIL = -196
    TRANSPORT = -195
    MSG_TIMED_OUT = -192
    PARTITION_EOF = -191
    UNKNOWN_PARTITION = -190
    ALL_BROKERS_DOWN = -187
    INVALID_ARG = -186
    TIMED_OUT = -185
    QUEUE_FULL = -184
    CONFLICT = -173
    STATE = -172
    NOT_IMPLEMENTED = -170
    AUTHENTICATION = -169
    NO_OFFSET = -168
    INTR = -163
    KEY_SERIALIZATION = -162
    VALUE_SERIALIZATION = -161
    KEY_DESERIALIZATION = -160
    VALUE_DESERIALIZATION = -159
    PURGE_QUEUE = -152
    PURGE_INFLIGHT = -151
    FATAL = -150
    MAX_POLL_EXCEEDED = -147
    AUTO_OFFSET_RESET = -140
    LOG_TRUNCATION = -139


NOT_EMPTY_GROUP: Final = 68
ILLEGAL_GENERATION: Final = 22
INVALID_TXN_STATE: Final = 48
INVALID_PRODUCER_ID_MAPPING: Final = 49
UNSUPPORTED_FOR_MESSAGE_FORMAT: Final = 43
TOPIC_AUTHORIZATION_FAILED: Final = 29
THROTTLING_QUOTA_EXCEEDED: Final = 89

_BY_REST_CODE: Final[Mapping[int, int]] = {
    RestCode.BAD_REQUEST: ErrorCode.INVALID_REQUEST.number,
    RestCode.FOREIGN_PAGE: ErrorCode.CLUSTER_AUTHORIZATION_FAILED.number,
    RestCode.NOT_FOUND: ErrorCode.INVALID_REQUEST.number,
    RestCode.METHOD_NOT_ALLOWED: ErrorCode.UNSUPPORTED_VERSION.number,
    RestCode.NOT_ACCEPTABLE: ErrorCode.UNSUPPORTED_VERSION.number,
    RestCode.REQUEST_TIMEOUT: ErrorCode.REQUEST_TIMED_OUT.number,
    RestCode.TOO_LARGE: ErrorCode.MESSAGE_TOO_LARGE.number,
    RestCode.UNSUPPORTED_MEDIA_TYPE: ErrorCode.UNSUPPORTED_VERSION.number,
    RestCode.EXPECTATION_FAILED: ErrorCode.INVALID_REQUEST.number,
    RestCode.UNPROCESSABLE: ErrorCode.INVALID_REQUEST.number,
    RestCode.HEADER_TOO_LARGE: ErrorCode.INVALID_REQUEST.number,
    RestCode.KAFKA_BAD_REQUEST: ErrorCode.INVALID_REQUEST.number,
    RestCode.CONSUMER_CONFIG: ErrorCode.INVALID_CONFIG.number,
    RestCode.FORBIDDEN: ErrorCode.CLUSTER_AUTHORIZATION_FAILED.number,
    RestCode.TOPIC_NOT_FOUND: ErrorCode.UNKNOWN_TOPIC_OR_PARTITION.number,
    RestCode.PARTITION_NOT_FOUND: ErrorCode.UNKNOWN_TOPIC_OR_PARTITION.number,
    RestCode.UNKNOWN_TOPIC_OR_PARTITION: ErrorCode.UNKNOWN_TOPIC_OR_PARTITION.number,
    RestCode.GROUP_NOT_FOUND: ErrorCode.GROUP_ID_NOT_FOUND.number,
    RestCode.FORMAT_MISMATCH: UNSUPPORTED_FOR_MESSAGE_FORMAT,
    RestCode.INSTANCE_EXISTS: ErrorCode.FENCED_INSTANCE_ID.number,
    RestCode.ILLEGAL_STATE: NOT_EMPTY_GROUP,
    RestCode.LOG_TRUNCATED: LocalCode.LOG_TRUNCATION,
    RestCode.TOPIC_CHANGED: ErrorCode.UNKNOWN_TOPIC_ID.number,
    RestCode.FENCED_INSTANCE_ID: ErrorCode.FENCED_INSTANCE_ID.number,
    RestCode.OUT_OF_ORDER_SEQUENCE: ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER.number,
    RestCode.INVALID_PRODUCER_EPOCH: ErrorCode.INVALID_PRODUCER_EPOCH.number,
    RestCode.OLD_SEQUENCE: ErrorCode.DUPLICATE_SEQUENCE_NUMBER.number,
    RestCode.TRANSACTION_NOT_FOUND: INVALID_PRODUCER_ID_MAPPING,
    RestCode.PRODUCER_FENCED: ErrorCode.PRODUCER_FENCED.number,
    RestCode.TRANSACTION_CONFLICT: INVALID_TXN_STATE,
    RestCode.STAGE_INCOMPLETE: INVALID_TXN_STATE,
    RestCode.TRANSACTION_ABORTED: INVALID_TXN_STATE,
    RestCode.TRANSACTION_SUPERSEDED: INVALID_TXN_STATE,
    RestCode.OFFSET_NOT_EXPECTED: ILLEGAL_GENERATION,
    RestCode.THROTTLED: THROTTLING_QUOTA_EXCEEDED,
    RestCode.KEY_SCHEMA_MISSING: ErrorCode.INVALID_RECORD.number,
    RestCode.VALUE_SCHEMA_MISSING: ErrorCode.INVALID_RECORD.number,
    RestCode.JSON_CONVERSION: ErrorCode.INVALID_RECORD.number,
    RestCode.INVALID_SCHEMA: ErrorCode.INVALID_RECORD.number,
    RestCode.PAYLOAD: ErrorCode.INVALID_REQUEST.number,
    RestCode.BATCH: ErrorCode.INVALID_REQUEST.number,
    RestCode.KAFKA_ERROR: ErrorCode.UNKNOWN_SERVER_ERROR.number,
    RestCode.KAFKA_RETRIABLE_ERROR: ErrorCode.LEADER_NOT_AVAILABLE.number,
    RestCode.DECIDED_ROWS_LOST: ErrorCode.UNKNOWN_SERVER_ERROR.number,
    RestCode.BROKER_NOT_AVAILABLE: ErrorCode.BROKER_NOT_AVAILABLE.number,
}
"""Kafka's number of each code of an answer."""

_BY_WORDS: Final = (
    ("already exists", ErrorCode.TOPIC_ALREADY_EXISTS),
    ("min.insync.replicas", ErrorCode.INVALID_CONFIG),
    ("replication factor", ErrorCode.INVALID_REPLICATION_FACTOR),
    ("topic name", ErrorCode.INVALID_TOPIC_EXCEPTION),
    ("topic_name", ErrorCode.INVALID_TOPIC_EXCEPTION),
    ("invalid value", ErrorCode.INVALID_CONFIG),
    ("out of range", ErrorCode.OFFSET_OUT_OF_RANGE),
    ("can't delete up to", ErrorCode.OFFSET_OUT_OF_RANGE),
    ("is outside the log", ErrorCode.OFFSET_OUT_OF_RANGE),
    ("is not being reassigned", ErrorCode.NO_REASSIGNMENT_IN_PROGRESS),
    ("the cluster's own", ErrorCode.POLICY_VIOLATION),
    ("replicas", ErrorCode.INVALID_REPLICA_ASSIGNMENT),
    ("are not live", ErrorCode.INVALID_REPLICA_ASSIGNMENT),
    ("partitions", ErrorCode.INVALID_PARTITIONS),
    ("needs a key", ErrorCode.INVALID_RECORD),
    ("config", ErrorCode.INVALID_CONFIG),
    ("INVALID_RECORD", ErrorCode.INVALID_RECORD),
    ("INVALID_TIMESTAMP", ErrorCode.INVALID_TIMESTAMP),
)
"""Words of a refusal with the code 40002, which stands for several of Kafka's; the first counts."""

_BY_WORD_FIRST: Final = {code.name: code.number for code in ErrorCode if code.number < 10_000}
"""Codes that begin the text of a failed record, by name."""

_BY_CLASS: Final[tuple[tuple[type[QuorumlogError], int], ...]] = (
    (ConfigError, LocalCode.INVALID_ARG),
    (InvalidRecordError, LocalCode.INVALID_ARG),
    (ClosedError, LocalCode.STATE),
    (UnreachableError, LocalCode.TRANSPORT),
    (OutcomeUnknownError, LocalCode.TIMED_OUT),
    (ProtocolError, LocalCode.BAD_MSG),
    (BufferFullError, LocalCode.QUEUE_FULL),
    (FencedError, ErrorCode.FENCED_INSTANCE_ID.number),
    (LogTruncatedError, LocalCode.LOG_TRUNCATION),
    (OffsetOutOfRangeError, ErrorCode.OFFSET_OUT_OF_RANGE.number),
    (UnreadableRecordError, LocalCode.VALUE_DESERIALIZATION),
    (WakeupError, LocalCode.INTR),
    (CommitError, ILLEGAL_GENERATION),
)
"""Numbers of the errors that have no answer of a broker, by class."""


def kafka_number(error: BaseException) -> int:
    """Return Kafka's number for an error of the client; `LocalCode` for one without an answer.

    An error of another kind is a `LocalCode.FAIL`.
    """
    if isinstance(error, DeliveryError):
        return kafka_number(error.first)
    if isinstance(error, ApiError):
        return _number_of_answer(error)
    for kind, number in _BY_CLASS:
        if isinstance(error, kind):
            return int(number)
    if isinstance(error, QuorumlogError):
        is_late = error.retriable or error.outcome is Outcome.UNKNOWN
        return int(LocalCode.TIMED_OUT if is_late else LocalCode.FAIL)
    if isinstance(error, ValueError | TypeError):
        return int(LocalCode.INVALID_ARG)
    return int(LocalCode.FAIL)


def _number_of_answer(error: ApiError) -> int:
    if isinstance(error, AuthenticationError):
        return int(LocalCode.AUTHENTICATION)
    if isinstance(error, AuthorizationError):
        return TOPIC_AUTHORIZATION_FAILED if "topic" in error.message else _forbidden()
    if isinstance(error, ThrottledError):
        return THROTTLING_QUOTA_EXCEEDED
    first_word = error.message.partition(":")[0]
    if first_word in _BY_WORD_FIRST:
        return _BY_WORD_FIRST[first_word]
    if error.code == RestCode.KAFKA_BAD_REQUEST:
        for words, code in _BY_WORDS:
            if words in error.message:
                return code.number
    return int(_BY_REST_CODE.get(error.code or 0, ErrorCode.UNKNOWN_SERVER_ERROR.number))


def _forbidden() -> int:
    return ErrorCode.CLUSTER_AUTHORIZATION_FAILED.number
