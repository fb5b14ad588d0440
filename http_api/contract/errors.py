"""The table from error codes to HTTP statuses and REST codes, and the bodies of errors.

Below HTTP, errors are `KafkaError`: a code and facts, never a status. Here every code gets its HTTP
status and its REST code (Confluent's numbers: the status times 100 plus a detail, or the status
itself). A refusal that only HTTP can cause (a media type, a method, a body) is a `RestError`.
`http_api.server.answers` applies the table.

The body of an error is ``{"error_code", "message"}``, and nothing else on a 4xx, because clients
compare whole bodies; a 5xx, a 429, a failed record and every 409 of a transaction add
``retriable`` and ``outcome``.
"""

from __future__ import annotations

from enum import IntEnum
from typing import TYPE_CHECKING, NamedTuple

import orjson

from raft_metadata.common.errors import ErrorCode, KafkaError, Outcome

if TYPE_CHECKING:
    from collections.abc import Mapping

RETRY_AFTER_S = 1
"""Seconds in ``Retry-After`` of a 503 and a 429; leadership moves within a second."""
RETRY_LATER: Mapping[str, str] = {"Retry-After": str(RETRY_AFTER_S)}
"""Headers of a 503 and a 429."""


SHOWN_CHARS_MAX = 300
"""Characters of a client's value that a message repeats; longer than any legal name."""


class RestCode(IntEnum):
    """Value of ``error_code`` in an answer; each number has one meaning."""

    BAD_REQUEST = 400
    FOREIGN_PAGE = 403
    """A web page of another site made the request, or reached this listener by its own name."""
    NOT_FOUND = 404
    METHOD_NOT_ALLOWED = 405
    NOT_ACCEPTABLE = 406
    REQUEST_TIMEOUT = 408
    TOO_LARGE = 413
    UNSUPPORTED_MEDIA_TYPE = 415
    EXPECTATION_FAILED = 417
    UNPROCESSABLE = 422
    HEADER_TOO_LARGE = 431
    KAFKA_BAD_REQUEST = 40002
    """Refusal by a rule of the log: topic exists, invalid name, factor, config or parameter."""
    CONSUMER_CONFIG = 40001
    """Invalid setting of a consumer instance; answered with a 422, on which clients rely."""
    FORBIDDEN = 40301
    TOPIC_NOT_FOUND = 40401
    PARTITION_NOT_FOUND = 40402
    UNKNOWN_TOPIC_OR_PARTITION = 40403
    """Also Confluent's number for a consumer instance that does not exist."""
    GROUP_NOT_FOUND = 40405
    TRANSACTION_NOT_FOUND = 40406
    FORMAT_MISMATCH = 40601
    INSTANCE_EXISTS = 40902
    ILLEGAL_STATE = 40903
    LOG_TRUNCATED = 40950
    """The log does not hold what was read before the position that a reader names (KIP-320)."""
    TOPIC_CHANGED = 40951
    """The topic was deleted, and another one has its name."""
    FENCED_INSTANCE_ID = 40952
    OUT_OF_ORDER_SEQUENCE = 40904
    """The sequence of an idempotent produce leaves a gap; nothing was written."""
    INVALID_PRODUCER_EPOCH = 40905
    """A newer epoch of the producer id has written already; this request wrote nothing."""
    OLD_SEQUENCE = 40906
    """The sequence of an idempotent produce is too old to be looked up; outcome unknown."""
    PRODUCER_FENCED = 40907
    """A newer producer has the transactional id."""
    TRANSACTION_CONFLICT = 40908
    """The position or the key was decided with another content."""
    STAGE_INCOMPLETE = 40909
    """A commit names chunks or rows that its stage does not hold (rule S9)."""
    TRANSACTION_ABORTED = 40910
    TRANSACTION_SUPERSEDED = 40911
    """A newer position of the transactional id was decided."""
    OFFSET_NOT_EXPECTED = 40912
    """The group's committed offset is not the one that the client expects (rule S8)."""
    KEY_SCHEMA_MISSING = 42201
    VALUE_SCHEMA_MISSING = 42202
    JSON_CONVERSION = 42203
    """Stored bytes cannot be represented as JSON."""
    INVALID_SCHEMA = 42205
    PAYLOAD = 42206
    """The body of a v3 produce is empty."""
    BATCH = 42208
    """A ``records:batch`` that is empty, too large, or whose ids are not distinct; none written."""
    THROTTLED = 42901
    """A named limit is reached; nothing was written, and there is room later."""
    KAFKA_ERROR = 50002
    KAFKA_RETRIABLE_ERROR = 50003
    DECIDED_ROWS_LOST = 50004
    """A transaction is committed, and an unclean election took some of its staged rows."""
    BROKER_NOT_AVAILABLE = 50302


MEANINGS: Mapping[RestCode, str] = {
    RestCode.BAD_REQUEST: "not JSON, a wrong type, not base64, or a control character in a name",
    RestCode.FOREIGN_PAGE: "a web page of another site, or an unknown Host",
    RestCode.NOT_FOUND: "no such endpoint, cluster, broker, config or reassignment",
    RestCode.METHOD_NOT_ALLOWED: "the path has other methods",
    RestCode.NOT_ACCEPTABLE: "Accept takes nothing that the path answers with",
    RestCode.REQUEST_TIMEOUT: "the body did not arrive in time",
    RestCode.TOO_LARGE: "the body, or what it holds, is over a limit",
    RestCode.UNSUPPORTED_MEDIA_TYPE: "another Content-Type is to be sent",
    RestCode.EXPECTATION_FAILED: "Expect is not 100-continue",
    RestCode.UNPROCESSABLE: "well-formed JSON that is not such a request",
    RestCode.HEADER_TOO_LARGE: "a header is over max_header_bytes, or there are too many",
    RestCode.KAFKA_BAD_REQUEST: "a bad parameter, name, number or config, or an existing topic",
    RestCode.CONSUMER_CONFIG: "a wrong setting of a consumer instance",
    RestCode.FORBIDDEN: "the cluster forbids it",
    RestCode.TOPIC_NOT_FOUND: "topic not found",
    RestCode.PARTITION_NOT_FOUND: "partition not found",
    RestCode.UNKNOWN_TOPIC_OR_PARTITION: "topic, partition or consumer instance not found",
    RestCode.GROUP_NOT_FOUND: "no such consumer group",
    RestCode.TRANSACTION_NOT_FOUND: "no such transaction",
    RestCode.FORMAT_MISMATCH: "Accept names another format than the consumer instance's",
    RestCode.INSTANCE_EXISTS: "the name of an instance is taken",
    RestCode.ILLEGAL_STATE: "the instance's state, or the group's live members, forbid it",
    RestCode.LOG_TRUNCATED: "the log does not hold what was read before this position",
    RestCode.TOPIC_CHANGED: "the topic was deleted, and another one has its name",
    RestCode.FENCED_INSTANCE_ID: "a newer consumer has the same group.instance.id",
    RestCode.OUT_OF_ORDER_SEQUENCE: "the sequence leaves a gap; nothing was written",
    RestCode.INVALID_PRODUCER_EPOCH: "a newer epoch of the producer has written",
    RestCode.OLD_SEQUENCE: "the sequence is too old to be known; the outcome is unknown",
    RestCode.PRODUCER_FENCED: "a newer producer has the transactional id",
    RestCode.TRANSACTION_CONFLICT: "this position or key holds another content",
    RestCode.STAGE_INCOMPLETE: "staged chunks or rows are missing, too old or not as named",
    RestCode.TRANSACTION_ABORTED: "the position was aborted",
    RestCode.TRANSACTION_SUPERSEDED: "a newer position of the transactional id was decided",
    RestCode.OFFSET_NOT_EXPECTED: "the committed offset is not the expected one",
    RestCode.KEY_SCHEMA_MISSING: "the format needs a key schema",
    RestCode.VALUE_SCHEMA_MISSING: "the format needs a value schema",
    RestCode.JSON_CONVERSION: "stored bytes are not what the format can show",
    RestCode.INVALID_SCHEMA: "schemas are not supported",
    RestCode.PAYLOAD: "the body is empty",
    RestCode.BATCH: "the batch is empty, too large, or its ids are wrong; nothing is written",
    RestCode.THROTTLED: "a named limit is reached; nothing is written",
    RestCode.KAFKA_ERROR: "the cluster could not do it",
    RestCode.KAFKA_RETRIABLE_ERROR: "the cluster could not do it at present",
    RestCode.DECIDED_ROWS_LOST: "committed, but rows of it are lost; a repeat says the same",
    RestCode.BROKER_NOT_AVAILABLE: "a broker or a controller is not available at present",
}
"""Meaning of each code, in a few words."""


def status_of(code: RestCode) -> int:
    """Return the HTTP status of an answer with this code."""
    if code is RestCode.CONSUMER_CONFIG:
        return 422
    return int(code) if code < 1_000 else int(code) // 100


class RestStatus(NamedTuple):
    """HTTP status and REST code of an error."""

    status: int
    code: RestCode


_BAD_REQUEST = RestStatus(400, RestCode.KAFKA_BAD_REQUEST)
_NOT_FOUND = RestStatus(404, RestCode.UNKNOWN_TOPIC_OR_PARTITION)
_ILLEGAL_STATE = RestStatus(409, RestCode.ILLEGAL_STATE)
_FAILED = RestStatus(500, RestCode.KAFKA_ERROR)
_FAILED_RETRIABLE = RestStatus(500, RestCode.KAFKA_RETRIABLE_ERROR)
_UNAVAILABLE = RestStatus(503, RestCode.BROKER_NOT_AVAILABLE)

REST_STATUS: Mapping[ErrorCode, RestStatus] = {
    ErrorCode.UNKNOWN_SERVER_ERROR: _FAILED,
    ErrorCode.OFFSET_OUT_OF_RANGE: _BAD_REQUEST,
    ErrorCode.CORRUPT_MESSAGE: _FAILED_RETRIABLE,
    ErrorCode.UNKNOWN_TOPIC_OR_PARTITION: _NOT_FOUND,
    ErrorCode.LEADER_NOT_AVAILABLE: _UNAVAILABLE,
    ErrorCode.NOT_LEADER_OR_FOLLOWER: _UNAVAILABLE,
    ErrorCode.REQUEST_TIMED_OUT: _UNAVAILABLE,
    ErrorCode.BROKER_NOT_AVAILABLE: _UNAVAILABLE,
    ErrorCode.REPLICA_NOT_AVAILABLE: _UNAVAILABLE,
    ErrorCode.MESSAGE_TOO_LARGE: RestStatus(413, RestCode.TOO_LARGE),
    ErrorCode.NETWORK_EXCEPTION: _UNAVAILABLE,
    ErrorCode.COORDINATOR_NOT_AVAILABLE: _UNAVAILABLE,
    ErrorCode.INVALID_TOPIC_EXCEPTION: _BAD_REQUEST,
    ErrorCode.NOT_ENOUGH_REPLICAS: _UNAVAILABLE,
    ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND: _UNAVAILABLE,
    ErrorCode.CLUSTER_AUTHORIZATION_FAILED: RestStatus(403, RestCode.FORBIDDEN),
    ErrorCode.UNSUPPORTED_VERSION: _BAD_REQUEST,
    ErrorCode.TOPIC_ALREADY_EXISTS: _BAD_REQUEST,
    ErrorCode.INVALID_PARTITIONS: _BAD_REQUEST,
    ErrorCode.INVALID_REPLICATION_FACTOR: _BAD_REQUEST,
    ErrorCode.INVALID_REPLICA_ASSIGNMENT: _BAD_REQUEST,
    ErrorCode.INVALID_CONFIG: _BAD_REQUEST,
    ErrorCode.NOT_CONTROLLER: _UNAVAILABLE,
    ErrorCode.INVALID_REQUEST: _BAD_REQUEST,
    ErrorCode.POLICY_VIOLATION: _BAD_REQUEST,
    ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER: RestStatus(409, RestCode.OUT_OF_ORDER_SEQUENCE),
    ErrorCode.DUPLICATE_SEQUENCE_NUMBER: RestStatus(409, RestCode.OLD_SEQUENCE),
    ErrorCode.INVALID_PRODUCER_EPOCH: RestStatus(409, RestCode.INVALID_PRODUCER_EPOCH),
    ErrorCode.KAFKA_STORAGE_ERROR: _UNAVAILABLE,
    ErrorCode.FENCED_LEADER_EPOCH: _UNAVAILABLE,
    ErrorCode.UNKNOWN_LEADER_EPOCH: _UNAVAILABLE,
    ErrorCode.STALE_BROKER_EPOCH: _FAILED,
    ErrorCode.OFFSET_NOT_AVAILABLE: _UNAVAILABLE,
    ErrorCode.PREFERRED_LEADER_NOT_AVAILABLE: _UNAVAILABLE,
    ErrorCode.ELIGIBLE_LEADERS_NOT_AVAILABLE: _UNAVAILABLE,
    ErrorCode.NO_REASSIGNMENT_IN_PROGRESS: _BAD_REQUEST,
    ErrorCode.INVALID_RECORD: _BAD_REQUEST,
    ErrorCode.INVALID_TIMESTAMP: _BAD_REQUEST,
    ErrorCode.INVALID_UPDATE_VERSION: _FAILED_RETRIABLE,
    ErrorCode.UNKNOWN_TOPIC_ID: _NOT_FOUND,
    ErrorCode.DUPLICATE_BROKER_REGISTRATION: _FAILED_RETRIABLE,
    ErrorCode.BROKER_ID_NOT_REGISTERED: _FAILED_RETRIABLE,
    ErrorCode.INCONSISTENT_TOPIC_ID: _FAILED,
    ErrorCode.INCONSISTENT_CLUSTER_ID: _FAILED,
    ErrorCode.INELIGIBLE_REPLICA: _FAILED_RETRIABLE,
    ErrorCode.NEW_LEADER_ELECTED: _FAILED_RETRIABLE,
    ErrorCode.OUTCOME_UNKNOWN: _UNAVAILABLE,
    ErrorCode.METADATA_BEHIND: _UNAVAILABLE,
    ErrorCode.METADATA_STALE_SOURCE: _UNAVAILABLE,
    ErrorCode.QUEUE_FULL: _UNAVAILABLE,
    ErrorCode.OFFSET_METADATA_TOO_LARGE: _BAD_REQUEST,
    ErrorCode.COORDINATOR_LOAD_IN_PROGRESS: _UNAVAILABLE,
    ErrorCode.NOT_COORDINATOR: _UNAVAILABLE,
    ErrorCode.INVALID_GROUP_ID: _BAD_REQUEST,
    ErrorCode.UNKNOWN_MEMBER_ID: _NOT_FOUND,
    ErrorCode.GROUP_ID_NOT_FOUND: RestStatus(404, RestCode.GROUP_NOT_FOUND),
    ErrorCode.GROUP_MAX_SIZE_REACHED: _BAD_REQUEST,
    ErrorCode.FENCED_MEMBER_EPOCH: _ILLEGAL_STATE,
    ErrorCode.FENCED_INSTANCE_ID: RestStatus(409, RestCode.FENCED_INSTANCE_ID),
    ErrorCode.INSTANCE_ALREADY_EXISTS: RestStatus(409, RestCode.INSTANCE_EXISTS),
    ErrorCode.ILLEGAL_STATE: _ILLEGAL_STATE,
    ErrorCode.FORMAT_MISMATCH: RestStatus(406, RestCode.FORMAT_MISMATCH),
    ErrorCode.SCHEMAS_NOT_SUPPORTED: RestStatus(422, RestCode.INVALID_SCHEMA),
    ErrorCode.UNREADABLE_RECORD: RestStatus(422, RestCode.JSON_CONVERSION),
    ErrorCode.INVALID_CONSUMER_CONFIG: RestStatus(422, RestCode.CONSUMER_CONFIG),
    ErrorCode.LOG_TRUNCATED: RestStatus(409, RestCode.LOG_TRUNCATED),
    ErrorCode.TOPIC_CHANGED: RestStatus(409, RestCode.TOPIC_CHANGED),
    ErrorCode.GROUP_HELD: _FAILED,
    ErrorCode.PRODUCER_FENCED: RestStatus(409, RestCode.PRODUCER_FENCED),
    ErrorCode.TRANSACTION_CONFLICT: RestStatus(409, RestCode.TRANSACTION_CONFLICT),
    ErrorCode.STAGE_INCOMPLETE: RestStatus(409, RestCode.STAGE_INCOMPLETE),
    ErrorCode.TRANSACTION_ABORTED: RestStatus(409, RestCode.TRANSACTION_ABORTED),
    ErrorCode.TRANSACTION_SUPERSEDED: RestStatus(409, RestCode.TRANSACTION_SUPERSEDED),
    ErrorCode.OFFSET_NOT_EXPECTED: RestStatus(409, RestCode.OFFSET_NOT_EXPECTED),
    ErrorCode.DECIDED_ROWS_LOST: RestStatus(500, RestCode.DECIDED_ROWS_LOST),
    ErrorCode.TRANSACTIONAL_ID_NOT_FOUND: RestStatus(404, RestCode.TRANSACTION_NOT_FOUND),
    ErrorCode.CONCURRENT_TRANSACTIONS: RestStatus(503, RestCode.KAFKA_RETRIABLE_ERROR),
    ErrorCode.THROTTLING_QUOTA_EXCEEDED: RestStatus(429, RestCode.THROTTLED),
}

_NO_LEADER_FOUND = frozenset(
    {
        ErrorCode.NOT_LEADER_OR_FOLLOWER,
        ErrorCode.FENCED_LEADER_EPOCH,
        ErrorCode.UNKNOWN_LEADER_EPOCH,
        ErrorCode.BROKER_NOT_AVAILABLE,
        ErrorCode.NETWORK_EXCEPTION,
        ErrorCode.OUTCOME_UNKNOWN,
    }
)
"""Codes of not reaching the leader that a client need not distinguish."""


class RestError(Exception):
    """Refusal of a request by the HTTP server itself. Nothing was written."""

    def __init__(
        self, status: int, code: RestCode, message: str, *, headers: Mapping[str, str] | None = None
    ) -> None:
        super().__init__(message)
        self.status = status
        self.code = code
        self.message = message
        self.headers = headers or {}


def excerpt(value: str) -> str:
    """Return the start of a client's value for a message, in characters that UTF-8 can encode."""
    start = value[:SHOWN_CHARS_MAX].encode(errors="replace").decode()
    return start if len(value) <= SHOWN_CHARS_MAX else start + "…"


def excerpt_of_value(value: object) -> str:
    """Return a decoded value for a message, spelled as in JSON.

    A list or an object is only named by its kind: it may be nested deeper than ``repr`` can go.
    """
    if value is None:
        return "missing or null"
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, list | dict):
        kind = "list" if isinstance(value, list) else "object"
        return f"{'a' if kind == 'list' else 'an'} {kind}" if value else f"an empty {kind}"
    return excerpt(repr(value))


def envelope(code: int, message: str) -> bytes:
    """Return the body of a 4xx."""
    return orjson.dumps({"error_code": int(code), "message": message})


def failure_envelope(code: int, message: str, *, retriable: bool, outcome: Outcome) -> bytes:
    """Return the body of a 5xx."""
    return orjson.dumps(
        {
            "error_code": int(code),
            "message": message,
            "retriable": retriable,
            "outcome": outcome.value,
        }
    )


def record_error_name(error: KafkaError) -> str:
    """Return the name that begins the error text of a failed record.

    All ways of not reaching the leader are shown as the two documented names that matter to a
    client: LEADER_NOT_AVAILABLE (certainly not written) and REQUEST_TIMED_OUT (outcome unknown).
    """
    if error.code not in _NO_LEADER_FOUND:
        return error.code.name
    written = error.outcome is Outcome.UNKNOWN
    return (ErrorCode.REQUEST_TIMED_OUT if written else ErrorCode.LEADER_NOT_AVAILABLE).name


def record_error_code(error: KafkaError) -> RestCode:
    """Return ``error_code`` of a failed record: 50003 if a retry may succeed."""
    status, code = REST_STATUS[error.code]
    if status < 500:
        return code
    return RestCode.KAFKA_RETRIABLE_ERROR if error.code.retriable else RestCode.KAFKA_ERROR
