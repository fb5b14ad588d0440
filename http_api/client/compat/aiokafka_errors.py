"""The errors of aiokafka, by its names and with Kafka's numbers; and the one for each of ours.

`kafka_error` makes the error that an adapter raises in place of an error of the client, which stays
its cause. `for_code` finds the class of one of Kafka's numbers. Pure.
"""

from __future__ import annotations

from typing import Any, Final

from typing_extensions import override

from http_api.client.client_errors import (
    ApiError,
    AuthenticationError,
    BufferFullError,
    CommitError,
    ConfigError,
    DeliveryError,
    OutcomeUnknownError,
    QuorumlogError,
    ThrottledError,
    UnreachableError,
    UnreadableRecordError,
)
from http_api.client.client_errors import (
    OffsetOutOfRangeError as PositionError,
)
from http_api.client.compat.kafka_codes import kafka_number


class KafkaError(RuntimeError):
    """Base of all errors but `ConsumerStoppedError` and `IllegalOperation`."""

    retriable = False
    invalid_metadata = False
    """True if metadata should be looked up again after it."""

    @override
    def __str__(self) -> str:
        if not self.args:
            return type(self).__name__
        return f"{type(self).__name__}: {super().__str__()}"


class ConsumerStoppedError(Exception):
    """The consumer is stopped, or was stopped while the call waited."""


class IllegalOperation(Exception):
    """The call is not possible with these settings, such as a commit without a group."""


class CommitFailedError(KafkaError):
    """The group has rebalanced: partitions of the commit are not this consumer's any more."""

    def __init__(self, *args: Any) -> None:
        text = (
            "the group has rebalanced, and partitions of this commit may belong to another member; "
            "process fewer records between two reads, or raise max_poll_interval_ms"
        )
        super().__init__(text, *args)


class ProducerFenced(KafkaError):
    """Another producer with the same transactional id is there."""

    def __init__(self, msg: str = "another producer uses the transactional_id") -> None:
        super().__init__(msg)


class IllegalStateError(KafkaError):
    """The call is not possible in the present state, such as for an unassigned partition."""


class IllegalArgumentError(KafkaError):
    """An argument that is not possible."""


class NoBrokersAvailable(KafkaError):
    """No broker is known."""

    retriable = True
    invalid_metadata = True


class NodeNotReadyError(KafkaError):
    """The connection to a broker is not ready."""

    retriable = True


class KafkaProtocolError(KafkaError):
    """An answer that the protocol does not define."""

    retriable = True


class CorrelationIdError(KafkaProtocolError):
    """An answer to another request."""

    retriable = True


class Cancelled(KafkaError):
    """The request was cancelled."""

    retriable = True


class TooManyInFlightRequests(KafkaError):
    """Too many requests are under way."""

    retriable = True


class StaleMetadata(KafkaError):
    """The metadata are out of date."""

    retriable = True
    invalid_metadata = True


class MetadataEmptyBrokerList(KafkaError):
    """The metadata name no broker."""

    retriable = True


class UnrecognizedBrokerVersion(KafkaError):
    """The version of the broker is not known."""


class IncompatibleBrokerVersion(KafkaError):
    """The version of the broker is not supported."""


class AuthenticationMethodNotSupported(KafkaError):
    """The way of authentication is not supported."""


class AuthenticationFailedError(KafkaError):
    """The credentials are missing or wrong."""


class KafkaUnavailableError(KafkaError):
    """The cluster is not available."""


class KafkaTimeoutError(KafkaError):
    """The outcome is not known in time; a write may have happened."""


class KafkaConnectionError(KafkaError):
    """No broker accepts a connection."""

    retriable = True
    invalid_metadata = True


class UnsupportedCodecError(KafkaError):
    """The codec of compression is not supported."""


class KafkaConfigurationError(KafkaError):
    """A setting is not supported, or wrong; the text names it."""


class QuotaViolationError(KafkaError):
    """Too many requests."""


class NoOffsetForPartitionError(KafkaError):
    """The partition has no commit, and auto_offset_reset is none."""


class RecordTooLargeError(KafkaError):
    """A record is larger than a fetch; quorumlog never raises it, as a first record comes whole."""


class ProducerClosed(KafkaError):
    """The producer is stopped."""


class BrokerResponseError(KafkaError):
    """Base of the errors with one of Kafka's numbers."""

    errno: int
    message: str
    description: str = ""

    @override
    def __init_subclass__(cls) -> None:
        """Take the docstring as the description."""
        cls.description = cls.__doc__ or ""

    @override
    def __str__(self) -> str:
        return f"[Error {self.errno}] {super().__str__()}"


class NoError(BrokerResponseError):
    """No error."""

    errno = 0
    message = "NO_ERROR"


class UnknownError(BrokerResponseError):
    """An error of the broker that has no number here."""

    errno = -1
    message = "UNKNOWN"


class OffsetOutOfRangeError(BrokerResponseError):
    """The offset is outside of the partition's log."""

    errno = 1
    message = "OFFSET_OUT_OF_RANGE"


class CorruptRecordException(BrokerResponseError):
    """A record that can't be read."""

    errno = 2
    message = "CORRUPT_MESSAGE"


class UnknownTopicOrPartitionError(BrokerResponseError):
    """The topic or the partition does not exist."""

    errno = 3
    message = "UNKNOWN_TOPIC_OR_PARTITION"
    retriable = True
    invalid_metadata = True


class InvalidFetchRequestError(BrokerResponseError):
    """A fetch of an impossible size."""

    errno = 4
    message = "INVALID_FETCH_SIZE"


class LeaderNotAvailableError(BrokerResponseError):
    """The partition has no leader now."""

    errno = 5
    message = "LEADER_NOT_AVAILABLE"
    retriable = True
    invalid_metadata = True


class NotLeaderForPartitionError(BrokerResponseError):
    """The broker does not lead the partition."""

    errno = 6
    message = "NOT_LEADER_FOR_PARTITION"
    retriable = True
    invalid_metadata = True


class RequestTimedOutError(BrokerResponseError):
    """The broker did not answer in time."""

    errno = 7
    message = "REQUEST_TIMED_OUT"
    retriable = True


class BrokerNotAvailableError(BrokerResponseError):
    """The broker is not available."""

    errno = 8
    message = "BROKER_NOT_AVAILABLE"


class ReplicaNotAvailableError(BrokerResponseError):
    """The replica is not on this broker."""

    errno = 9
    message = "REPLICA_NOT_AVAILABLE"


class MessageSizeTooLargeError(BrokerResponseError):
    """The record is larger than the topic's max.message.bytes, or than max_request_size."""

    errno = 10
    message = "MESSAGE_SIZE_TOO_LARGE"


class StaleControllerEpochError(BrokerResponseError):
    """A controller with an older epoch."""

    errno = 11
    message = "STALE_CONTROLLER_EPOCH"


class OffsetMetadataTooLargeError(BrokerResponseError):
    """The metadata of a commit is too long."""

    errno = 12
    message = "OFFSET_METADATA_TOO_LARGE"


class StaleLeaderEpochCodeError(BrokerResponseError):
    """An older leader epoch."""

    errno = 13
    message = "STALE_LEADER_EPOCH_CODE"


class GroupLoadInProgressError(BrokerResponseError):
    """The coordinator still loads the group."""

    errno = 14
    message = "COORDINATOR_LOAD_IN_PROGRESS"
    retriable = True


class GroupCoordinatorNotAvailableError(BrokerResponseError):
    """The group has no coordinator now."""

    errno = 15
    message = "COORDINATOR_NOT_AVAILABLE"
    retriable = True


class NotCoordinatorForGroupError(BrokerResponseError):
    """The broker does not coordinate the group."""

    errno = 16
    message = "NOT_COORDINATOR"
    retriable = True


class InvalidTopicError(BrokerResponseError):
    """The topic's name is not allowed, or it is an internal topic."""

    errno = 17
    message = "INVALID_TOPIC"


class RecordListTooLargeError(BrokerResponseError):
    """A batch is larger than a segment."""

    errno = 18
    message = "RECORD_LIST_TOO_LARGE"


class NotEnoughReplicasError(BrokerResponseError):
    """Too few in-sync replicas; nothing was written."""

    errno = 19
    message = "NOT_ENOUGH_REPLICAS"
    retriable = True


class NotEnoughReplicasAfterAppendError(BrokerResponseError):
    """Written, but to too few in-sync replicas."""

    errno = 20
    message = "NOT_ENOUGH_REPLICAS_AFTER_APPEND"
    retriable = True


class InvalidRequiredAcksError(BrokerResponseError):
    """A value of acks other than -1, 1 and 0."""

    errno = 21
    message = "INVALID_REQUIRED_ACKS"


class IllegalGenerationError(BrokerResponseError):
    """The member's generation is not the group's."""

    errno = 22
    message = "ILLEGAL_GENERATION"


class InconsistentGroupProtocolError(BrokerResponseError):
    """The member's protocol is not the group's."""

    errno = 23
    message = "INCONSISTENT_GROUP_PROTOCOL"


class InvalidGroupIdError(BrokerResponseError):
    """The name of the group is not allowed."""

    errno = 24
    message = "INVALID_GROUP_ID"


class UnknownMemberIdError(BrokerResponseError):
    """The group does not know the member."""

    errno = 25
    message = "UNKNOWN_MEMBER_ID"


class InvalidSessionTimeoutError(BrokerResponseError):
    """The session time-out is out of bounds."""

    errno = 26
    message = "INVALID_SESSION_TIMEOUT"


class RebalanceInProgressError(BrokerResponseError):
    """The group rebalances."""

    errno = 27
    message = "REBALANCE_IN_PROGRESS"


class InvalidCommitOffsetSizeError(BrokerResponseError):
    """A commit is too large."""

    errno = 28
    message = "INVALID_COMMIT_OFFSET_SIZE"


class TopicAuthorizationFailedError(BrokerResponseError):
    """The topic may not be used with these credentials."""

    errno = 29
    message = "TOPIC_AUTHORIZATION_FAILED"


class GroupAuthorizationFailedError(BrokerResponseError):
    """The group may not be used with these credentials."""

    errno = 30
    message = "GROUP_AUTHORIZATION_FAILED"


class ClusterAuthorizationFailedError(BrokerResponseError):
    """The cluster may not be used with these credentials."""

    errno = 31
    message = "CLUSTER_AUTHORIZATION_FAILED"


class InvalidTimestampError(BrokerResponseError):
    """The timestamp of a record is out of bounds."""

    errno = 32
    message = "INVALID_TIMESTAMP"


class UnsupportedSaslMechanismError(BrokerResponseError):
    """The SASL mechanism is not supported."""

    errno = 33
    message = "UNSUPPORTED_SASL_MECHANISM"


class IllegalSaslStateError(BrokerResponseError):
    """A step of SASL out of order."""

    errno = 34
    message = "ILLEGAL_SASL_STATE"


class UnsupportedVersionError(BrokerResponseError):
    """The version of a request, or a feature, is not supported."""

    errno = 35
    message = "UNSUPPORTED_VERSION"


class TopicAlreadyExistsError(BrokerResponseError):
    """The topic exists already."""

    errno = 36
    message = "TOPIC_ALREADY_EXISTS"


class InvalidPartitionsError(BrokerResponseError):
    """The number of partitions is not possible."""

    errno = 37
    message = "INVALID_PARTITIONS"


class InvalidReplicationFactorError(BrokerResponseError):
    """The replication factor is not possible."""

    errno = 38
    message = "INVALID_REPLICATION_FACTOR"


class InvalidReplicationAssignmentError(BrokerResponseError):
    """The assignment of replicas is not possible."""

    errno = 39
    message = "INVALID_REPLICATION_ASSIGNMENT"


class InvalidConfigurationError(BrokerResponseError):
    """The configuration is not possible."""

    errno = 40
    message = "INVALID_CONFIG"


class NotControllerError(BrokerResponseError):
    """The node is not the active controller."""

    errno = 41
    message = "NOT_CONTROLLER"
    retriable = True


class InvalidRequestError(BrokerResponseError):
    """The request can't be understood."""

    errno = 42
    message = "INVALID_REQUEST"


class UnsupportedForMessageFormatError(BrokerResponseError):
    """The stored format does not allow the request."""

    errno = 43
    message = "UNSUPPORTED_FOR_MESSAGE_FORMAT"


class PolicyViolationError(BrokerResponseError):
    """The request breaks a policy."""

    errno = 44
    message = "POLICY_VIOLATION"


class OutOfOrderSequenceNumber(BrokerResponseError):
    """A sequence number is missing before this one."""

    errno = 45
    message = "OUT_OF_ORDER_SEQUENCE_NUMBER"


class DuplicateSequenceNumber(BrokerResponseError):
    """The sequence number was written before."""

    errno = 46
    message = "DUPLICATE_SEQUENCE_NUMBER"


class InvalidProducerEpoch(BrokerResponseError):
    """The producer epoch is older than the last one."""

    errno = 47
    message = "INVALID_PRODUCER_EPOCH"


class InvalidTxnState(BrokerResponseError):
    """The state of the transaction does not allow the call."""

    errno = 48
    message = "INVALID_TXN_STATE"


class InvalidProducerIdMapping(BrokerResponseError):
    """The producer id belongs to another transactional id."""

    errno = 49
    message = "INVALID_PRODUCER_ID_MAPPING"


class InvalidTransactionTimeout(BrokerResponseError):
    """The transaction time-out is too long."""

    errno = 50
    message = "INVALID_TRANSACTION_TIMEOUT"


class ConcurrentTransactions(BrokerResponseError):
    """Another call on the same transaction is under way."""

    errno = 51
    message = "CONCURRENT_TRANSACTIONS"


class TransactionCoordinatorFenced(BrokerResponseError):
    """Another coordinator has the transaction."""

    errno = 52
    message = "TRANSACTION_COORDINATOR_FENCED"


class TransactionalIdAuthorizationFailed(BrokerResponseError):
    """The transactional id may not be used with these credentials."""

    errno = 53
    message = "TRANSACTIONAL_ID_AUTHORIZATION_FAILED"


class SecurityDisabled(BrokerResponseError):
    """Security is off."""

    errno = 54
    message = "SECURITY_DISABLED"


class OperationNotAttempted(BrokerResponseError):
    """Not attempted, because another part of the request failed."""

    errno = 55
    message = "OPERATION_NOT_ATTEMPTED"


class KafkaStorageError(BrokerResponseError):
    """The disk of the broker failed."""

    errno = 56
    message = "KAFKA_STORAGE_ERROR"
    retriable = True
    invalid_metadata = True


class LogDirNotFound(BrokerResponseError):
    """The directory of logs was not found."""

    errno = 57
    message = "LOG_DIR_NOT_FOUND"


class SaslAuthenticationFailed(BrokerResponseError):
    """The credentials are wrong."""

    errno = 58
    message = "SASL_AUTHENTICATION_FAILED"


class UnknownProducerId(BrokerResponseError):
    """The producer id is not known."""

    errno = 59
    message = "UNKNOWN_PRODUCER_ID"


class ReassignmentInProgress(BrokerResponseError):
    """The partition is being reassigned."""

    errno = 60
    message = "REASSIGNMENT_IN_PROGRESS"


class DelegationTokenAuthDisabled(BrokerResponseError):
    """Delegation tokens are off."""

    errno = 61
    message = "DELEGATION_TOKEN_AUTH_DISABLED"


class DelegationTokenNotFound(BrokerResponseError):
    """The delegation token does not exist."""

    errno = 62
    message = "DELEGATION_TOKEN_NOT_FOUND"


class DelegationTokenOwnerMismatch(BrokerResponseError):
    """The delegation token has another owner."""

    errno = 63
    message = "DELEGATION_TOKEN_OWNER_MISMATCH"


class DelegationTokenRequestNotAllowed(BrokerResponseError):
    """Delegation tokens are not allowed on this connection."""

    errno = 64
    message = "DELEGATION_TOKEN_REQUEST_NOT_ALLOWED"


class DelegationTokenAuthorizationFailed(BrokerResponseError):
    """The delegation token may not be used."""

    errno = 65
    message = "DELEGATION_TOKEN_AUTHORIZATION_FAILED"


class DelegationTokenExpired(BrokerResponseError):
    """The delegation token is expired."""

    errno = 66
    message = "DELEGATION_TOKEN_EXPIRED"


class InvalidPrincipalType(BrokerResponseError):
    """The type of the principal is not supported."""

    errno = 67
    message = "INVALID_PRINCIPAL_TYPE"


class NonEmptyGroup(BrokerResponseError):
    """The group has members."""

    errno = 68
    message = "NON_EMPTY_GROUP"


class GroupIdNotFound(BrokerResponseError):
    """The group does not exist."""

    errno = 69
    message = "GROUP_ID_NOT_FOUND"


class FetchSessionIdNotFound(BrokerResponseError):
    """The fetch session does not exist."""

    errno = 70
    message = "FETCH_SESSION_ID_NOT_FOUND"


class InvalidFetchSessionEpoch(BrokerResponseError):
    """The epoch of the fetch session is wrong."""

    errno = 71
    message = "INVALID_FETCH_SESSION_EPOCH"


class ListenerNotFound(BrokerResponseError):
    """The leader has no such listener."""

    errno = 72
    message = "LISTENER_NOT_FOUND"


class MemberIdRequired(BrokerResponseError):
    """A member id is needed before a join."""

    errno = 79
    message = "MEMBER_ID_REQUIRED"


InvalidMessageError = CorruptRecordException
CoordinatorLoadInProgressError = GroupLoadInProgressError
CoordinatorNotAvailableError = GroupCoordinatorNotAvailableError
NotCoordinatorError = NotCoordinatorForGroupError

kafka_errors: Final = {each.errno: each for each in BrokerResponseError.__subclasses__()}
"""The classes by Kafka's numbers."""


def for_code(error_code: int) -> type[BrokerResponseError]:
    """Return the class of one of Kafka's numbers; `UnknownError` for one that has none."""
    return kafka_errors.get(error_code, UnknownError)


_BY_CLASS: Final[tuple[tuple[type[QuorumlogError], type[KafkaError]], ...]] = (
    (CommitError, CommitFailedError),
    (UnreachableError, KafkaConnectionError),
    (AuthenticationError, AuthenticationFailedError),
    (ThrottledError, QuotaViolationError),
    (BufferFullError, KafkaTimeoutError),
    (OutcomeUnknownError, KafkaTimeoutError),
    (UnreadableRecordError, CorruptRecordException),
    (ConfigError, KafkaConfigurationError),
)
"""Classes of errors that Kafka has no number for, or aiokafka another class."""


def kafka_error(error: QuorumlogError) -> KafkaError:
    """Return the error of aiokafka for one of the client, which is set as its cause."""
    if isinstance(error, DeliveryError):
        return kafka_error(error.first)
    kind = next((mine for theirs, mine in _BY_CLASS if isinstance(error, theirs)), None)
    if kind is CommitFailedError:
        found: KafkaError = CommitFailedError(str(error))
    elif kind is None and isinstance(error, PositionError) and error.code is None:
        found = NoOffsetForPartitionError(str(error))
    elif kind is None and isinstance(error, PositionError):
        found = OffsetOutOfRangeError(str(error))
    else:
        found = (kind or _numbered(error))(str(error))
    found.__cause__ = error
    return found


def _numbered(error: QuorumlogError) -> type[KafkaError]:
    number = kafka_number(error)
    if number < UnknownError.errno and not isinstance(error, ApiError):
        return KafkaTimeoutError if error.retriable else KafkaError
    return for_code(number)
