"""The one table of error codes: Kafka's numbers and names, and whether a retry can help.

Every package raises `KafkaError` with one of these codes for a condition that its caller can
handle; `StorageError` and its kinds end the process. Numbers are Kafka's (``Errors.java`` of
apache/kafka): a name may change, a number can't. Codes from 10000 on belong to this project. HTTP
statuses live in ``http_api.contract.errors`` only.
"""

from __future__ import annotations

from enum import Enum, StrEnum


class Outcome(StrEnum):
    """The effect of a write that failed: surely none, or unknown. Chaos checkers classify by it."""

    NOT_WRITTEN = "not_written"
    UNKNOWN = "unknown"


class ErrorCode(Enum):
    """An error condition: Kafka's number, whether a retry can help, the default message."""

    UNKNOWN_SERVER_ERROR = (-1, False, "the server met an unexpected error")
    OFFSET_OUT_OF_RANGE = (1, False, "the offset is outside the log")
    CORRUPT_MESSAGE = (2, True, "a batch failed its checksum")
    UNKNOWN_TOPIC_OR_PARTITION = (3, True, "this cluster does not hold this topic or partition")
    LEADER_NOT_AVAILABLE = (5, True, "the partition has no leader at the moment")
    NOT_LEADER_OR_FOLLOWER = (6, True, "this broker is not the leader of the partition")
    REQUEST_TIMED_OUT = (7, True, "the request timed out")
    BROKER_NOT_AVAILABLE = (8, False, "the broker is not available")
    REPLICA_NOT_AVAILABLE = (9, True, "the replica is not available")
    MESSAGE_TOO_LARGE = (10, False, "the record is larger than max.message.bytes")
    OFFSET_METADATA_TOO_LARGE = (12, False, "the metadata of an offset is too large")
    NETWORK_EXCEPTION = (13, True, "the connection to another node broke")
    COORDINATOR_LOAD_IN_PROGRESS = (14, True, "the group coordinator is loading its log")
    COORDINATOR_NOT_AVAILABLE = (15, True, "the group coordinator is not available")
    NOT_COORDINATOR = (16, True, "this broker is not the group's coordinator")
    INVALID_TOPIC_EXCEPTION = (17, False, "the topic name is invalid")
    NOT_ENOUGH_REPLICAS = (19, True, "fewer in-sync replicas than min.insync.replicas")
    NOT_ENOUGH_REPLICAS_AFTER_APPEND = (
        20,
        True,
        "appended, but to fewer in-sync replicas than min.insync.replicas",
    )
    INVALID_GROUP_ID = (24, False, "the group or instance name is invalid")
    UNKNOWN_MEMBER_ID = (25, False, "the consumer instance does not exist")
    CLUSTER_AUTHORIZATION_FAILED = (31, False, "not authorized")
    INVALID_TIMESTAMP = (32, False, "the record's timestamp is too far from now for its topic")
    UNSUPPORTED_VERSION = (35, False, "this version can't follow the cluster's metadata.version")
    TOPIC_ALREADY_EXISTS = (36, False, "the topic already exists")
    INVALID_PARTITIONS = (37, False, "the number of partitions is invalid")
    INVALID_REPLICATION_FACTOR = (38, False, "the replication factor is invalid")
    INVALID_REPLICA_ASSIGNMENT = (39, False, "the replica assignment is invalid")
    INVALID_CONFIG = (40, False, "the configuration is invalid")
    NOT_CONTROLLER = (41, True, "this node is not the active controller; nothing was appended")
    INVALID_REQUEST = (42, False, "the request is malformed")
    POLICY_VIOLATION = (44, False, "the request violates a policy")
    OUT_OF_ORDER_SEQUENCE_NUMBER = (45, False, "the sequence is not the one behind the last")
    DUPLICATE_SEQUENCE_NUMBER = (46, False, "the sequence is older than what is remembered")
    INVALID_PRODUCER_EPOCH = (47, False, "the producer wrote with a newer epoch already")
    CONCURRENT_TRANSACTIONS = (51, True, "the id's last decision is not complete yet")
    KAFKA_STORAGE_ERROR = (56, True, "the log directory is offline")
    GROUP_ID_NOT_FOUND = (69, False, "the group does not exist")
    FENCED_LEADER_EPOCH = (74, True, "the leader epoch is older than the present one")
    UNKNOWN_LEADER_EPOCH = (75, True, "the leader epoch is newer than this broker knows")
    STALE_BROKER_EPOCH = (77, False, "the broker epoch is not the registered one")
    OFFSET_NOT_AVAILABLE = (78, True, "the high watermark has not reached the epoch's start yet")
    PREFERRED_LEADER_NOT_AVAILABLE = (80, True, "the preferred leader is not in sync")
    GROUP_MAX_SIZE_REACHED = (81, False, "the group, or the broker, has as many as it may have")
    FENCED_INSTANCE_ID = (82, False, "a newer consumer has this static id")
    ELIGIBLE_LEADERS_NOT_AVAILABLE = (83, True, "no eligible leader is alive")
    NO_REASSIGNMENT_IN_PROGRESS = (85, False, "the partition is not being reassigned")
    INVALID_RECORD = (87, False, "the record is refused by its topic's configuration")
    THROTTLING_QUOTA_EXCEEDED = (89, True, "a named limit is reached")
    PRODUCER_FENCED = (90, False, "a newer producer has this transactional id")
    INVALID_UPDATE_VERSION = (95, True, "the partition epoch is not the present one")
    UNKNOWN_TOPIC_ID = (100, True, "this cluster does not hold this topic id")
    DUPLICATE_BROKER_REGISTRATION = (
        101,
        True,
        "another process is registered under this id and its session is still valid",
    )
    BROKER_ID_NOT_REGISTERED = (102, True, "the broker id is not registered")
    INCONSISTENT_TOPIC_ID = (103, False, "the topic id does not belong to this topic name")
    INCONSISTENT_CLUSTER_ID = (104, False, "the node belongs to another cluster")
    TRANSACTIONAL_ID_NOT_FOUND = (105, False, "there is no such transaction")
    INELIGIBLE_REPLICA = (107, True, "a proposed in-sync replica is not eligible")
    NEW_LEADER_ELECTED = (108, True, "the change was made and another leader elected")
    FENCED_MEMBER_EPOCH = (110, False, "the member epoch is not the present one")
    OUTCOME_UNKNOWN = (10001, True, "the write may or may not have happened")
    METADATA_BEHIND = (10002, True, "this controller has not reached that metadata offset")
    METADATA_STALE_SOURCE = (10003, True, "this controller has lost contact with the quorum")
    QUEUE_FULL = (10004, True, "a queue has reached its limit; nothing was appended")

    INSTANCE_ALREADY_EXISTS = (10005, False, "the group has a consumer instance of this name")
    ILLEGAL_STATE = (10006, False, "the consumer instance can't do this in its present state")
    FORMAT_MISMATCH = (10007, False, "the consumer instance has another format")
    SCHEMAS_NOT_SUPPORTED = (10008, False, "schemas are not supported")
    UNREADABLE_RECORD = (10009, False, "a record can't be shown in this format")
    INVALID_CONSUMER_CONFIG = (10010, False, "a setting of the consumer instance is invalid")
    GROUP_HELD = (10011, False, "a record of the group can't be decoded: it needs a repair")
    LOG_TRUNCATED = (10020, False, "the log does not hold what was read before this position")
    TOPIC_CHANGED = (10021, False, "another topic has this name now")
    TRANSACTION_CONFLICT = (10030, False, "the position was decided with another content")
    STAGE_INCOMPLETE = (10031, False, "staged chunks or rows are missing")
    TRANSACTION_ABORTED = (10032, False, "the position was aborted")
    TRANSACTION_SUPERSEDED = (10033, False, "a newer position of the id was decided")
    OFFSET_NOT_EXPECTED = (10034, False, "the committed offset is not the expected one")
    DECIDED_ROWS_LOST = (10035, False, "rows of the committed transaction are lost")

    def __init__(self, number: int, retriable: bool, message: str) -> None:  # noqa: FBT001 enum row
        self.number = number
        self.retriable = retriable
        self.message = message

    @classmethod
    def from_number(cls, number: int) -> ErrorCode:
        """Return the code with this number; UNKNOWN_SERVER_ERROR for an unknown number."""
        return _BY_NUMBER.get(number, cls.UNKNOWN_SERVER_ERROR)


_BY_NUMBER = {code.number: code for code in ErrorCode}

_UNKNOWN_OUTCOME = frozenset(
    {
        ErrorCode.REQUEST_TIMED_OUT,
        ErrorCode.NETWORK_EXCEPTION,
        ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND,
        ErrorCode.OUTCOME_UNKNOWN,
        ErrorCode.UNKNOWN_SERVER_ERROR,
        ErrorCode.DUPLICATE_SEQUENCE_NUMBER,
        ErrorCode.DECIDED_ROWS_LOST,
    }
)


class KafkaError(Exception):
    """A condition that a caller can handle: a code, a message with the facts, an outcome.

    ``outcome`` is the effect of a failed *write*. Without an explicit one, codes of uncertain
    outcome default to UNKNOWN and all others to NOT_WRITTEN; pass it wherever more is known.
    """

    def __init__(
        self, code: ErrorCode, message: str | None = None, *, outcome: Outcome | None = None
    ) -> None:
        super().__init__(message or code.message)
        self.code = code
        self.message = message or code.message
        self.outcome = outcome or (
            Outcome.UNKNOWN if code in _UNKNOWN_OUTCOME else Outcome.NOT_WRITTEN
        )


class StorageError(Exception):
    """A file that can't be written, synced or trusted; names the file and, if known, the offset.

    A node that can't continue without the file exits 74 with this message (interfaces, exits).
    """


class NewerVersionError(StorageError):
    """A metadata log whose ``metadata.version`` is above the highest that this version can follow.

    The log is intact: start a newer version. A node exits 74, as for any log it can't read.
    """


class CorruptionError(StorageError):
    """Bytes that were proven durable and are missing or changed now (rule Q5)."""
