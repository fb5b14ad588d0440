"""`KafkaError`, `KafkaException` and their kinds, as confluent-kafka has them.

Numbers, names and texts are those of librdkafka 2.16: Kafka's own from 0 on, and below -1 those of
a client itself. `kafka_error` makes one of an error of our client, by the table of `kafka_codes`,
and keeps the text of our error, which has the facts.
"""

from __future__ import annotations

import builtins
import contextlib
from collections.abc import Iterator
from typing import Any, Final

from typing_extensions import override

from http_api.client.client_errors import ClosedError, QuorumlogError
from http_api.client.compat.kafka_codes import LocalCode, kafka_number

text = str  # `str` is a method of `KafkaError`


class KafkaError:
    """An error by its number; equal to another one, and to an integer, by the number."""

    __slots__ = ("_code", "_is_fatal", "_is_retriable", "_reason", "_requires_abort")

    UNKNOWN: Final = -1
    NO_ERROR: Final = 0
    OFFSET_OUT_OF_RANGE: Final = 1
    INVALID_MSG: Final = 2
    UNKNOWN_TOPIC_OR_PART: Final = 3
    INVALID_MSG_SIZE: Final = 4
    LEADER_NOT_AVAILABLE: Final = 5
    NOT_LEADER_FOR_PARTITION: Final = 6
    REQUEST_TIMED_OUT: Final = 7
    BROKER_NOT_AVAILABLE: Final = 8
    REPLICA_NOT_AVAILABLE: Final = 9
    MSG_SIZE_TOO_LARGE: Final = 10
    STALE_CTRL_EPOCH: Final = 11
    OFFSET_METADATA_TOO_LARGE: Final = 12
    NETWORK_EXCEPTION: Final = 13
    COORDINATOR_LOAD_IN_PROGRESS: Final = 14
    COORDINATOR_NOT_AVAILABLE: Final = 15
    NOT_COORDINATOR: Final = 16
    TOPIC_EXCEPTION: Final = 17
    RECORD_LIST_TOO_LARGE: Final = 18
    NOT_ENOUGH_REPLICAS: Final = 19
    NOT_ENOUGH_REPLICAS_AFTER_APPEND: Final = 20
    INVALID_REQUIRED_ACKS: Final = 21
    ILLEGAL_GENERATION: Final = 22
    INCONSISTENT_GROUP_PROTOCOL: Final = 23
    INVALID_GROUP_ID: Final = 24
    UNKNOWN_MEMBER_ID: Final = 25
    INVALID_SESSION_TIMEOUT: Final = 26
    REBALANCE_IN_PROGRESS: Final = 27
    INVALID_COMMIT_OFFSET_SIZE: Final = 28
    TOPIC_AUTHORIZATION_FAILED: Final = 29
    GROUP_AUTHORIZATION_FAILED: Final = 30
    CLUSTER_AUTHORIZATION_FAILED: Final = 31
    INVALID_TIMESTAMP: Final = 32
    UNSUPPORTED_SASL_MECHANISM: Final = 33
    ILLEGAL_SASL_STATE: Final = 34
    UNSUPPORTED_VERSION: Final = 35
    TOPIC_ALREADY_EXISTS: Final = 36
    INVALID_PARTITIONS: Final = 37
    INVALID_REPLICATION_FACTOR: Final = 38
    INVALID_REPLICA_ASSIGNMENT: Final = 39
    INVALID_CONFIG: Final = 40
    NOT_CONTROLLER: Final = 41
    INVALID_REQUEST: Final = 42
    UNSUPPORTED_FOR_MESSAGE_FORMAT: Final = 43
    POLICY_VIOLATION: Final = 44
    OUT_OF_ORDER_SEQUENCE_NUMBER: Final = 45
    DUPLICATE_SEQUENCE_NUMBER: Final = 46
    INVALID_PRODUCER_EPOCH: Final = 47
    INVALID_TXN_STATE: Final = 48
    INVALID_PRODUCER_ID_MAPPING: Final = 49
    INVALID_TRANSACTION_TIMEOUT: Final = 50
    CONCURRENT_TRANSACTIONS: Final = 51
    TRANSACTION_COORDINATOR_FENCED: Final = 52
    TRANSACTIONAL_ID_AUTHORIZATION_FAILED: Final = 53
    SECURITY_DISABLED: Final = 54
    OPERATION_NOT_ATTEMPTED: Final = 55
    KAFKA_STORAGE_ERROR: Final = 56
    LOG_DIR_NOT_FOUND: Final = 57
    SASL_AUTHENTICATION_FAILED: Final = 58
    UNKNOWN_PRODUCER_ID: Final = 59
    REASSIGNMENT_IN_PROGRESS: Final = 60
    DELEGATION_TOKEN_AUTH_DISABLED: Final = 61
    DELEGATION_TOKEN_NOT_FOUND: Final = 62
    DELEGATION_TOKEN_OWNER_MISMATCH: Final = 63
    DELEGATION_TOKEN_REQUEST_NOT_ALLOWED: Final = 64
    DELEGATION_TOKEN_AUTHORIZATION_FAILED: Final = 65
    DELEGATION_TOKEN_EXPIRED: Final = 66
    INVALID_PRINCIPAL_TYPE: Final = 67
    NON_EMPTY_GROUP: Final = 68
    GROUP_ID_NOT_FOUND: Final = 69
    FETCH_SESSION_ID_NOT_FOUND: Final = 70
    INVALID_FETCH_SESSION_EPOCH: Final = 71
    LISTENER_NOT_FOUND: Final = 72
    TOPIC_DELETION_DISABLED: Final = 73
    FENCED_LEADER_EPOCH: Final = 74
    UNKNOWN_LEADER_EPOCH: Final = 75
    UNSUPPORTED_COMPRESSION_TYPE: Final = 76
    STALE_BROKER_EPOCH: Final = 77
    OFFSET_NOT_AVAILABLE: Final = 78
    MEMBER_ID_REQUIRED: Final = 79
    PREFERRED_LEADER_NOT_AVAILABLE: Final = 80
    GROUP_MAX_SIZE_REACHED: Final = 81
    FENCED_INSTANCE_ID: Final = 82
    ELIGIBLE_LEADERS_NOT_AVAILABLE: Final = 83
    ELECTION_NOT_NEEDED: Final = 84
    NO_REASSIGNMENT_IN_PROGRESS: Final = 85
    GROUP_SUBSCRIBED_TO_TOPIC: Final = 86
    INVALID_RECORD: Final = 87
    UNSTABLE_OFFSET_COMMIT: Final = 88
    THROTTLING_QUOTA_EXCEEDED: Final = 89
    PRODUCER_FENCED: Final = 90
    RESOURCE_NOT_FOUND: Final = 91
    DUPLICATE_RESOURCE: Final = 92
    UNACCEPTABLE_CREDENTIAL: Final = 93
    INCONSISTENT_VOTER_SET: Final = 94
    INVALID_UPDATE_VERSION: Final = 95
    FEATURE_UPDATE_FAILED: Final = 96
    PRINCIPAL_DESERIALIZATION_FAILURE: Final = 97
    UNKNOWN_TOPIC_ID: Final = 100
    INCONSISTENT_TOPIC_ID: Final = 103
    FENCED_MEMBER_EPOCH: Final = 110
    UNRELEASED_INSTANCE_ID: Final = 111
    UNSUPPORTED_ASSIGNOR: Final = 112
    STALE_MEMBER_EPOCH: Final = 113
    MISMATCHED_ENDPOINT_TYPE: Final = 114
    UNSUPPORTED_ENDPOINT_TYPE: Final = 115
    UNKNOWN_CONTROLLER_ID: Final = 116
    UNKNOWN_SUBSCRIPTION_ID: Final = 117
    TELEMETRY_TOO_LARGE: Final = 118
    INVALID_REGISTRATION: Final = 119
    TRANSACTION_ABORTABLE: Final = 120
    INVALID_RECORD_STATE: Final = 121
    SHARE_SESSION_NOT_FOUND: Final = 122
    INVALID_SHARE_SESSION_EPOCH: Final = 123
    FENCED_STATE_EPOCH: Final = 124
    INVALID_VOTER_KEY: Final = 125
    DUPLICATE_VOTER: Final = 126
    VOTER_NOT_FOUND: Final = 127
    INVALID_REGULAR_EXPRESSION: Final = 128
    REBOOTSTRAP_REQUIRED: Final = 129
    STREAMS_INVALID_TOPOLOGY: Final = 130
    STREAMS_INVALID_TOPOLOGY_EPOCH: Final = 131
    STREAMS_TOPOLOGY_FENCED: Final = 132
    SHARE_SESSION_LIMIT_REACHED: Final = 133
    _BAD_MSG: Final = -199
    _BAD_COMPRESSION: Final = -198
    _DESTROY: Final = -197
    _FAIL: Final = -196
    _TRANSPORT: Final = -195
    _CRIT_SYS_RESOURCE: Final = -194
    _RESOLVE: Final = -193
    _MSG_TIMED_OUT: Final = -192
    _PARTITION_EOF: Final = -191
    _UNKNOWN_PARTITION: Final = -190
    _FS: Final = -189
    _UNKNOWN_TOPIC: Final = -188
    _ALL_BROKERS_DOWN: Final = -187
    _INVALID_ARG: Final = -186
    _TIMED_OUT: Final = -185
    _QUEUE_FULL: Final = -184
    _ISR_INSUFF: Final = -183
    _NODE_UPDATE: Final = -182
    _SSL: Final = -181
    _WAIT_COORD: Final = -180
    _UNKNOWN_GROUP: Final = -179
    _IN_PROGRESS: Final = -178
    _PREV_IN_PROGRESS: Final = -177
    _EXISTING_SUBSCRIPTION: Final = -176
    _ASSIGN_PARTITIONS: Final = -175
    _REVOKE_PARTITIONS: Final = -174
    _CONFLICT: Final = -173
    _STATE: Final = -172
    _UNKNOWN_PROTOCOL: Final = -171
    _NOT_IMPLEMENTED: Final = -170
    _AUTHENTICATION: Final = -169
    _NO_OFFSET: Final = -168
    _OUTDATED: Final = -167
    _TIMED_OUT_QUEUE: Final = -166
    _UNSUPPORTED_FEATURE: Final = -165
    _WAIT_CACHE: Final = -164
    _INTR: Final = -163
    _KEY_SERIALIZATION: Final = -162
    _VALUE_SERIALIZATION: Final = -161
    _KEY_DESERIALIZATION: Final = -160
    _VALUE_DESERIALIZATION: Final = -159
    _PARTIAL: Final = -158
    _READ_ONLY: Final = -157
    _NOENT: Final = -156
    _UNDERFLOW: Final = -155
    _INVALID_TYPE: Final = -154
    _RETRY: Final = -153
    _PURGE_QUEUE: Final = -152
    _PURGE_INFLIGHT: Final = -151
    _FATAL: Final = -150
    _INCONSISTENT: Final = -149
    _GAPLESS_GUARANTEE: Final = -148
    _MAX_POLL_EXCEEDED: Final = -147
    _UNKNOWN_BROKER: Final = -146
    _NOT_CONFIGURED: Final = -145
    _FENCED: Final = -144
    _APPLICATION: Final = -143
    _ASSIGNMENT_LOST: Final = -142
    _NOOP: Final = -141
    _AUTO_OFFSET_RESET: Final = -140
    _LOG_TRUNCATION: Final = -139
    _INVALID_DIFFERENT_RECORD: Final = -138
    _DESTROY_BROKER: Final = -137

    def __init__(
        self,
        error: int,
        reason: text | None = None,
        fatal: bool = False,
        retriable: bool = False,
        txn_requires_abort: bool = False,
    ) -> None:
        given: object = reason
        if given is not None and not isinstance(given, text):
            msg = f"argument 2 must be str or None, not {type(given).__name__}"
            raise TypeError(msg)
        self._code = int(error)
        self._reason = reason
        self._is_fatal = fatal
        self._is_retriable = retriable
        self._requires_abort = txn_requires_abort

    def code(self) -> int:
        """Return the number, such as `KafkaError.UNKNOWN_TOPIC_OR_PART`."""
        return self._code

    def name(self) -> text:
        """Return the name of the number."""
        return _NAMES.get(self._code, f"ERR_{self._code}?")

    def str(self) -> text:
        """Return the text: the reason that was given, else that of the number."""
        return self._reason if self._reason is not None else _TEXTS.get(self._code, "Err?")

    def fatal(self) -> bool:
        """Return True if the client can't go on."""
        return self._is_fatal

    def retriable(self) -> bool:
        """Return True if the same call may succeed later."""
        return self._is_retriable

    def txn_requires_abort(self) -> bool:
        """Return True if the transaction has to be aborted."""
        return self._requires_abort

    @override
    def __repr__(self) -> builtins.str:
        fatal = "FATAL," if self._is_fatal else ""
        return f'KafkaError{{{fatal}code={self.name()},val={self._code},str="{self.str()}"}}'

    __str__ = __repr__

    def __bool__(self) -> bool:
        return self._code != 0

    @override
    def __hash__(self) -> int:
        return self._code

    @override
    def __eq__(self, other: object) -> bool:
        return self._code == _code_of(other)

    def __lt__(self, other: KafkaError | int) -> bool:
        return self._code < _number(other)

    def __le__(self, other: KafkaError | int) -> bool:
        return self._code <= _number(other)

    def __gt__(self, other: KafkaError | int) -> bool:
        return self._code > _number(other)

    def __ge__(self, other: KafkaError | int) -> bool:
        return self._code >= _number(other)


def _code_of(other: object) -> int | None:
    if isinstance(other, KafkaError):
        return other.code()
    return other if isinstance(other, int) else None


def _number(other: KafkaError | int) -> int:
    return other if isinstance(other, int) else other.code()


_NAMES: Final = {
    value: name
    for name, value in vars(KafkaError).items()
    if isinstance(value, int) and name.isupper()
}
_TEXTS: Final = {
    -1: "Unknown broker error",
    0: "Success",
    1: "Broker: Offset out of range",
    2: "Broker: Invalid message",
    3: "Broker: Unknown topic or partition",
    4: "Broker: Invalid message size",
    5: "Broker: Leader not available",
    6: "Broker: Not leader for partition",
    7: "Broker: Request timed out",
    8: "Broker: Broker not available",
    9: "Broker: Replica not available",
    10: "Broker: Message size too large",
    11: "Broker: StaleControllerEpochCode",
    12: "Broker: Offset metadata string too large",
    13: "Broker: Broker disconnected before response received",
    14: "Broker: Coordinator load in progress",
    15: "Broker: Coordinator not available",
    16: "Broker: Not coordinator",
    17: "Broker: Invalid topic",
    18: "Broker: Message batch larger than configured server segment size",
    19: "Broker: Not enough in-sync replicas",
    20: "Broker: Message(s) written to insufficient number of in-sync replicas",
    21: "Broker: Invalid required acks value",
    22: "Broker: Specified group generation id is not valid",
    23: "Broker: Inconsistent group protocol",
    24: "Broker: Invalid group.id",
    25: "Broker: Unknown member",
    26: "Broker: Invalid session timeout",
    27: "Broker: Group rebalance in progress",
    28: "Broker: Commit offset data size is not valid",
    29: "Broker: Topic authorization failed",
    30: "Broker: Group authorization failed",
    31: "Broker: Cluster authorization failed",
    32: "Broker: Invalid timestamp",
    33: "Broker: Unsupported SASL mechanism",
    34: "Broker: Request not valid in current SASL state",
    35: "Broker: API version not supported",
    36: "Broker: Topic already exists",
    37: "Broker: Invalid number of partitions",
    38: "Broker: Invalid replication factor",
    39: "Broker: Invalid replica assignment",
    40: "Broker: Configuration is invalid",
    41: "Broker: Not controller for cluster",
    42: "Broker: Invalid request",
    43: "Broker: Message format on broker does not support request",
    44: "Broker: Policy violation",
    45: "Broker: Broker received an out of order sequence number",
    46: "Broker: Broker received a duplicate sequence number",
    47: "Broker: Producer attempted an operation with an old epoch",
    48: "Broker: Producer attempted a transactional operation in an invalid state",
    49: (
        "Broker: Producer attempted to use a producer id which is not currently assigned "
        "to its transactional id"
    ),
    50: (
        "Broker: Transaction timeout is larger than the maximum value allowed by the "
        "broker's max.transaction.timeout.ms"
    ),
    51: (
        "Broker: Producer attempted to update a transaction while another concurrent "
        "operation on the same transaction was ongoing"
    ),
    52: (
        "Broker: Indicates that the transaction coordinator sending a WriteTxnMarker is "
        "no longer the current coordinator for a given producer"
    ),
    53: "Broker: Transactional Id authorization failed",
    54: "Broker: Security features are disabled",
    55: "Broker: Operation not attempted",
    56: "Broker: Disk error when trying to access log file on disk",
    57: "Broker: The user-specified log directory is not found in the broker config",
    58: "Broker: SASL Authentication failed",
    59: "Broker: Unknown Producer Id",
    60: "Broker: Partition reassignment is in progress",
    61: "Broker: Delegation Token feature is not enabled",
    62: "Broker: Delegation Token is not found on server",
    63: "Broker: Specified Principal is not valid Owner/Renewer",
    64: "Broker: Delegation Token requests are not allowed on this connection",
    65: "Broker: Delegation Token authorization failed",
    66: "Broker: Delegation Token is expired",
    67: "Broker: Supplied principalType is not supported",
    68: "Broker: The group is not empty",
    69: "Broker: The group id does not exist",
    70: "Broker: The fetch session ID was not found",
    71: "Broker: The fetch session epoch is invalid",
    72: "Broker: No matching listener",
    73: "Broker: Topic deletion is disabled",
    74: "Broker: Leader epoch is older than broker epoch",
    75: "Broker: Leader epoch is newer than broker epoch",
    76: "Broker: Unsupported compression type",
    77: "Broker: Broker epoch has changed",
    78: "Broker: Leader high watermark is not caught up",
    79: "Broker: Group member needs a valid member ID",
    80: "Broker: Preferred leader was not available",
    81: "Broker: Consumer group has reached maximum size",
    82: "Broker: Static consumer fenced by other consumer with same group.instance.id",
    83: "Broker: Eligible partition leaders are not available",
    84: "Broker: Leader election not needed for topic partition",
    85: "Broker: No partition reassignment is in progress",
    86: "Broker: Deleting offsets of a topic while the consumer group is subscribed to it",
    87: "Broker: Broker failed to validate record",
    88: "Broker: There are unstable offsets that need to be cleared",
    89: "Broker: Throttling quota has been exceeded",
    90: (
        "Broker: There is a newer producer with the same transactionalId which fences "
        "the current one"
    ),
    91: "Broker: Request illegally referred to resource that does not exist",
    92: "Broker: Request illegally referred to the same resource twice",
    93: "Broker: Requested credential would not meet criteria for acceptability",
    94: (
        "Broker: Indicates that the either the sender or recipient of a voter-only "
        "request is not one of the expected voters"
    ),
    95: "Broker: Invalid update version",
    96: "Broker: Unable to update finalized features due to server error",
    97: "Broker: Request principal deserialization failed during forwarding",
    100: "Broker: Unknown topic id",
    103: "Broker: The log's topic ID did not match the topic ID in the request",
    110: "Broker: The member epoch is fenced by the group coordinator",
    111: "Broker: The instance ID is still used by another member in the consumer group",
    112: "Broker: The assignor or its version range is not supported by the consumer group",
    113: "Broker: The member epoch is stale",
    114: "Broker: The request was sent to an endpoint of the wrong type",
    115: "Broker: This endpoint type is not supported yet",
    116: "Broker: This controller ID is not known",
    117: "Broker: Client sent a push telemetry request with an invalid or outdated subscription ID",
    118: (
        "Broker: Client sent a push telemetry request larger than the maximum size the "
        "broker will accept"
    ),
    119: "Broker: The controller has considered the broker registration to be invalid",
    120: "Broker: The server encountered an error with the transaction",
    121: "Broker: The record state is invalid",
    122: "Broker: The share session was not found",
    123: "Broker: The share session epoch is invalid",
    124: "Broker: The share-group state epoch did not match",
    125: "Broker: The voter key doesn't match the receiving replica's key",
    126: "Broker: The voter is already part of the set of voters",
    127: "Broker: The voter is not part of the set of voters",
    128: "Broker: The regular expression is not valid",
    129: "Broker: Client metadata is stale, client should rebootstrap to obtain new metadata",
    130: "Broker: The supplied topology is invalid",
    131: "Broker: The supplied topology epoch is invalid",
    132: "Broker: The supplied topology epoch is outdated",
    133: "Broker: The limit of share sessions has been reached",
    -199: "Local: Bad message format",
    -198: "Local: Invalid compressed data",
    -197: "Local: Broker handle destroyed for termination",
    -196: "Local: Communication failure with broker",
    -195: "Local: Broker transport failure",
    -194: "Local: Critical system resource failure",
    -193: "Local: Host resolution failure",
    -192: "Local: Message timed out",
    -191: "Broker: No more messages",
    -190: "Local: Unknown partition",
    -189: "Local: File or filesystem error",
    -188: "Local: Unknown topic",
    -187: "Local: All broker connections are down",
    -186: "Local: Invalid argument or configuration",
    -185: "Local: Timed out",
    -184: "Local: Queue full",
    -183: "Local: ISR count insufficient",
    -182: "Local: Broker node update",
    -181: "Local: SSL error",
    -180: "Local: Waiting for coordinator",
    -179: "Local: Unknown group",
    -178: "Local: Operation in progress",
    -177: "Local: Previous operation in progress",
    -176: "Local: Existing subscription",
    -175: "Local: Assign partitions",
    -174: "Local: Revoke partitions",
    -173: "Local: Conflicting use",
    -172: "Local: Erroneous state",
    -171: "Local: Unknown protocol",
    -170: "Local: Not implemented",
    -169: "Local: Authentication failure",
    -168: "Local: No offset stored",
    -167: "Local: Outdated",
    -166: "Local: Timed out in queue",
    -165: "Local: Required feature not supported by broker",
    -164: "Local: Awaiting cache update",
    -163: "Local: Operation interrupted",
    -162: "Local: Key serialization error",
    -161: "Local: Value serialization error",
    -160: "Local: Key deserialization error",
    -159: "Local: Value deserialization error",
    -158: "Local: Partial response",
    -157: "Local: Read-only object",
    -156: "Local: No such entry",
    -155: "Local: Read underflow",
    -154: "Local: Invalid type",
    -153: "Local: Retry operation",
    -152: "Local: Purged in queue",
    -151: "Local: Purged in flight",
    -150: "Local: Fatal error",
    -149: "Local: Inconsistent state",
    -148: "Local: Gap-less ordering would not be guaranteed if proceeding",
    -147: "Local: Maximum application poll interval (max.poll.interval.ms) exceeded",
    -146: "Local: Unknown broker",
    -145: "Local: Functionality not configured",
    -144: "Local: This instance has been fenced by a newer instance",
    -143: "Local: Application generated error",
    -142: "Local: Group partition assignment lost",
    -141: "Local: No operation performed",
    -140: "Local: No offset to automatically reset to",
    -139: "Local: Partition log truncation detected",
    -138: "Local: an invalid record in the same batch caused the failure of this message too",
    -137: "Local: Broker handle destroyed without termination",
}


class KafkaException(Exception):
    """Raised by every class; ``args[0]`` is the `KafkaError`."""


class IllegalStateException(RuntimeError):
    """A share consumer is used in a state that forbids it."""


class ConcurrentModificationException(RuntimeError):
    """A consumer is used by two threads at once."""


class SerializationError(KafkaException):
    """A key or value can't be serialized or deserialized."""


class _ClientError(KafkaException):
    def __init__(
        self,
        kafka_error: KafkaError,
        exception: Exception | None = None,
        kafka_message: Any = None,
    ) -> None:
        super().__init__(kafka_error)
        self.exception = exception
        """The error that caused this one, if one did."""
        self.kafka_message = kafka_message
        """The `Message` that could not be consumed, if there is one."""

    @property
    def code(self) -> int:
        """Number of the error."""
        number: int = self.args[0].code()
        return number

    @property
    def name(self) -> str:
        """Name of the error's number."""
        found: str = self.args[0].name()
        return found


class ConsumeError(_ClientError):
    """A message that a `DeserializingConsumer` could not return."""


class ProduceError(_ClientError):
    """A message that a `SerializingProducer` could not take."""

    def __init__(self, kafka_error: KafkaError, exception: Exception | None = None) -> None:
        super().__init__(kafka_error, exception, None)


def _because(code: LocalCode, exception: Exception | None) -> KafkaError:
    return KafkaError(code, str(exception))


class KeyDeserializationError(ConsumeError, SerializationError):
    """The key deserializer failed."""

    def __init__(self, exception: Exception | None = None, kafka_message: Any = None) -> None:
        error = _because(LocalCode.KEY_DESERIALIZATION, exception)
        super().__init__(error, exception, kafka_message)


class ValueDeserializationError(ConsumeError, SerializationError):
    """The value deserializer failed."""

    def __init__(self, exception: Exception | None = None, kafka_message: Any = None) -> None:
        error = _because(LocalCode.VALUE_DESERIALIZATION, exception)
        super().__init__(error, exception, kafka_message)


class KeySerializationError(ProduceError, SerializationError):
    """The key serializer failed."""

    def __init__(self, exception: Exception | None = None) -> None:
        super().__init__(_because(LocalCode.KEY_SERIALIZATION, exception), exception)


class ValueSerializationError(ProduceError, SerializationError):
    """The value serializer failed."""

    def __init__(self, exception: Exception | None = None) -> None:
        super().__init__(_because(LocalCode.VALUE_SERIALIZATION, exception), exception)


def kafka_error(error: BaseException, *, number: int | None = None) -> KafkaError:
    """Return an error of our client as a `KafkaError` with its text and Kafka's number for it.

    ``number`` is given where the call knows better than the table.
    """
    if isinstance(error, KafkaException):
        found = error.args[0]
        return found if isinstance(found, KafkaError) else KafkaError(LocalCode.FAIL, str(error))
    code = kafka_number(error) if number is None else number
    is_retriable = isinstance(error, QuorumlogError) and error.retriable
    return KafkaError(code, str(error) or None, code in FATAL, is_retriable)


FATAL: Final = frozenset({KafkaError.FENCED_INSTANCE_ID, LocalCode.FATAL})
"""Numbers after which a client has to be made anew."""


def argument_error(message: str) -> KafkaException:
    """Return the exception for an argument or setting that can't be used."""
    return KafkaException(KafkaError(LocalCode.INVALID_ARG, message))


def not_implemented(call: str) -> KafkaException:
    """Return the exception for a call that has no counterpart here."""
    return KafkaException(KafkaError(LocalCode.NOT_IMPLEMENTED, f"{call} is not supported"))


@contextlib.contextmanager
def kafka_exceptions(kind: str) -> Iterator[None]:
    """Raise errors of our client as `KafkaException`, and use after close as RuntimeError.

    ``kind`` is the word for the object: ``Consumer``, ``Producer`` or ``AdminClient``.
    """
    try:
        yield
    except ClosedError as error:
        msg = f"{kind} closed: {error}"
        raise RuntimeError(msg) from error
    except QuorumlogError as error:
        raise KafkaException(kafka_error(error)) from error
