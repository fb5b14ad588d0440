"""The public names, signatures and error numbers of aiokafka 0.14.0, recorded, beside ours.

A default that is an object of the library's own is recorded as …, for which any object passes.
"""

from __future__ import annotations

import importlib
import inspect
from collections.abc import Callable
from typing import Any

import pytest

from http_api.client.compat.aiokafka_batches import BatchBuilder
from quorumlog.compat import aiokafka
from quorumlog.compat.aiokafka import abc, errors, helpers, structs

CLASSES: dict[str, dict[str, str]] = {
    "AIOKafkaProducer": {
        "__aenter__": "async (self)",
        "__aexit__": "async (self, exc_type, exc, tb)",
        "__init__": (
            "(*, loop=None, bootstrap_servers='localhost', client_id=None, "
            "metadata_max_age_ms=300000, request_timeout_ms=40000, api_version=None, "
            "acks=…, key_serializer=None, value_serializer=None, compression_type=None, "
            "max_batch_size=16384, partitioner=…, max_request_size=1048576, linger_ms=0, "
            "retry_backoff_ms=100, security_protocol='PLAINTEXT', ssl_context=None, "
            "connections_max_idle_ms=540000, enable_idempotence=False, "
            "transactional_id=None, transaction_timeout_ms=60000, sasl_mechanism='PLAIN', "
            "sasl_plain_password=None, sasl_plain_username=None, "
            "sasl_kerberos_service_name='kafka', sasl_kerberos_domain_name=None, "
            "sasl_oauth_token_provider=None)"
        ),
        "abort_transaction": "async (self)",
        "begin_transaction": "async (self)",
        "commit_transaction": "async (self)",
        "create_batch": "(self)",
        "flush": "async (self)",
        "partitions_for": "async (self, topic)",
        "send": (
            "async (self, topic, value=None, key=None, partition=None, timestamp_ms=None, "
            "headers=None)"
        ),
        "send_and_wait": (
            "async (self, topic, value=None, key=None, partition=None, timestamp_ms=None, "
            "headers=None)"
        ),
        "send_batch": "async (self, batch, topic, *, partition)",
        "send_offsets_to_transaction": "async (self, offsets, group_id)",
        "start": "async (self)",
        "stop": "async (self)",
        "transaction": "(self)",
    },
    "AIOKafkaConsumer": {
        "__aenter__": "async (self)",
        "__aexit__": "async (self, exc_type, exc, tb)",
        "__aiter__": "(self)",
        "__anext__": "async (self)",
        "__init__": (
            "(*topics, loop=None, bootstrap_servers='localhost', "
            "client_id='aiokafka-0.14.0', group_id=None, group_instance_id=None, "
            "key_deserializer=None, value_deserializer=None, fetch_max_wait_ms=500, "
            "fetch_max_bytes=52428800, fetch_min_bytes=1, "
            "max_partition_fetch_bytes=1048576, request_timeout_ms=40000, "
            "retry_backoff_ms=100, auto_offset_reset='latest', enable_auto_commit=True, "
            "auto_commit_interval_ms=5000, check_crcs=True, metadata_max_age_ms=300000, "
            "partition_assignment_strategy=…, max_poll_interval_ms=300000, "
            "rebalance_timeout_ms=None, session_timeout_ms=10000, "
            "heartbeat_interval_ms=3000, consumer_timeout_ms=200, max_poll_records=None, "
            "ssl_context=None, security_protocol='PLAINTEXT', api_version=None, "
            "exclude_internal_topics=True, connections_max_idle_ms=540000, "
            "isolation_level='read_uncommitted', sasl_mechanism='PLAIN', "
            "sasl_plain_password=None, sasl_plain_username=None, "
            "sasl_kerberos_service_name='kafka', sasl_kerberos_domain_name=None, "
            "sasl_oauth_token_provider=None, client_rack=None)"
        ),
        "assign": "(self, partitions)",
        "assignment": "(self)",
        "beginning_offsets": "async (self, partitions)",
        "commit": "async (self, offsets=None)",
        "committed": "async (self, partition)",
        "end_offsets": "async (self, partitions)",
        "getmany": "async (self, *partitions, timeout_ms=0, max_records=None)",
        "getone": "async (self, *partitions)",
        "highwater": "(self, partition)",
        "last_poll_timestamp": "(self, partition)",
        "last_stable_offset": "(self, partition)",
        "offsets_for_times": "async (self, timestamps)",
        "partitions_for_topic": "(self, topic)",
        "pause": "(self, *partitions)",
        "paused": "(self)",
        "position": "async (self, partition)",
        "resume": "(self, *partitions)",
        "seek": "(self, partition, offset)",
        "seek_to_beginning": "async (self, *partitions)",
        "seek_to_committed": "async (self, *partitions)",
        "seek_to_end": "async (self, *partitions)",
        "start": "async (self)",
        "stop": "async (self)",
        "subscribe": "(self, topics=(), pattern=None, listener=None)",
        "subscription": "(self)",
        "topics": "async (self)",
        "unsubscribe": "(self)",
    },
    "BatchBuilder": {
        "__init__": (
            "(batch_size, compression_type, *, is_transactional=0, key_serializer=None, "
            "value_serializer=None)"
        ),
        "append": "(self, *, timestamp, key, value, headers=())",
        "close": "(self)",
        "closed": "(self)",
        "record_count": "(self)",
        "size": "(self)",
    },
    "ConsumerRebalanceListener": {
        "__init__": "()",
        "on_partitions_assigned": "(self, assigned)",
        "on_partitions_revoked": "(self, revoked)",
    },
    "AbstractTokenProvider": {
        "__init__": "()",
        "extensions": "(self)",
        "token": "async (self)",
    },
}
CLIENT = (
    "(*, loop=None, bootstrap_servers='localhost', client_id='aiokafka-0.14.0', "
    "metadata_max_age_ms=300000, request_timeout_ms=40000, retry_backoff_ms=100, "
    "ssl_context=None, security_protocol='PLAINTEXT', api_version=None, "
    "connections_max_idle_ms=540000, sasl_mechanism='PLAIN', sasl_plain_username=None, "
    "sasl_plain_password=None, sasl_kerberos_service_name='kafka', "
    "sasl_kerberos_domain_name=None, sasl_oauth_token_provider=None)"
)
STRUCTS = {
    "TopicPartition": "(topic, partition)",
    "BrokerMetadata": "(nodeId, host, port, rack)",
    "PartitionMetadata": "(topic, partition, leader, replicas, isr, error)",
    "OffsetAndMetadata": "(offset, metadata)",
    "RecordMetadata": (
        "(topic, partition, topic_partition, offset, timestamp, timestamp_type, log_start_offset)"
    ),
    "ConsumerRecord": (
        "(topic, partition, offset, timestamp, timestamp_type, key, value, checksum, "
        "serialized_key_size, serialized_value_size, headers)"
    ),
    "OffsetAndTimestamp": "(offset, timestamp)",
}
ERRORS: dict[str, tuple[str, int | None, str | None, bool]] = {
    "KafkaError": ("RuntimeError", None, None, False),
    "IllegalStateError": ("KafkaError", None, None, False),
    "IllegalArgumentError": ("KafkaError", None, None, False),
    "NoBrokersAvailable": ("KafkaError", None, None, True),
    "NodeNotReadyError": ("KafkaError", None, None, True),
    "KafkaProtocolError": ("KafkaError", None, None, True),
    "CorrelationIdError": ("KafkaProtocolError", None, None, True),
    "Cancelled": ("KafkaError", None, None, True),
    "TooManyInFlightRequests": ("KafkaError", None, None, True),
    "StaleMetadata": ("KafkaError", None, None, True),
    "MetadataEmptyBrokerList": ("KafkaError", None, None, True),
    "UnrecognizedBrokerVersion": ("KafkaError", None, None, False),
    "IncompatibleBrokerVersion": ("KafkaError", None, None, False),
    "CommitFailedError": ("KafkaError", None, None, False),
    "AuthenticationMethodNotSupported": ("KafkaError", None, None, False),
    "AuthenticationFailedError": ("KafkaError", None, None, False),
    "KafkaUnavailableError": ("KafkaError", None, None, False),
    "KafkaTimeoutError": ("KafkaError", None, None, False),
    "KafkaConnectionError": ("KafkaError", None, None, True),
    "UnsupportedCodecError": ("KafkaError", None, None, False),
    "KafkaConfigurationError": ("KafkaError", None, None, False),
    "QuotaViolationError": ("KafkaError", None, None, False),
    "ConsumerStoppedError": ("Exception", None, None, False),
    "IllegalOperation": ("Exception", None, None, False),
    "NoOffsetForPartitionError": ("KafkaError", None, None, False),
    "RecordTooLargeError": ("KafkaError", None, None, False),
    "ProducerClosed": ("KafkaError", None, None, False),
    "ProducerFenced": ("KafkaError", None, None, False),
    "BrokerResponseError": ("KafkaError", None, None, False),
    "NoError": ("BrokerResponseError", 0, "NO_ERROR", False),
    "UnknownError": ("BrokerResponseError", -1, "UNKNOWN", False),
    "OffsetOutOfRangeError": ("BrokerResponseError", 1, "OFFSET_OUT_OF_RANGE", False),
    "CorruptRecordException": ("BrokerResponseError", 2, "CORRUPT_MESSAGE", False),
    "InvalidMessageError": ("BrokerResponseError", 2, "CORRUPT_MESSAGE", False),
    "UnknownTopicOrPartitionError": ("BrokerResponseError", 3, "UNKNOWN_TOPIC_OR_PARTITION", True),
    "InvalidFetchRequestError": ("BrokerResponseError", 4, "INVALID_FETCH_SIZE", False),
    "LeaderNotAvailableError": ("BrokerResponseError", 5, "LEADER_NOT_AVAILABLE", True),
    "NotLeaderForPartitionError": ("BrokerResponseError", 6, "NOT_LEADER_FOR_PARTITION", True),
    "RequestTimedOutError": ("BrokerResponseError", 7, "REQUEST_TIMED_OUT", True),
    "BrokerNotAvailableError": ("BrokerResponseError", 8, "BROKER_NOT_AVAILABLE", False),
    "ReplicaNotAvailableError": ("BrokerResponseError", 9, "REPLICA_NOT_AVAILABLE", False),
    "MessageSizeTooLargeError": ("BrokerResponseError", 10, "MESSAGE_SIZE_TOO_LARGE", False),
    "StaleControllerEpochError": ("BrokerResponseError", 11, "STALE_CONTROLLER_EPOCH", False),
    "OffsetMetadataTooLargeError": ("BrokerResponseError", 12, "OFFSET_METADATA_TOO_LARGE", False),
    "StaleLeaderEpochCodeError": ("BrokerResponseError", 13, "STALE_LEADER_EPOCH_CODE", False),
    "GroupLoadInProgressError": ("BrokerResponseError", 14, "COORDINATOR_LOAD_IN_PROGRESS", True),
    "CoordinatorLoadInProgressError": (
        "BrokerResponseError",
        14,
        "COORDINATOR_LOAD_IN_PROGRESS",
        True,
    ),
    "GroupCoordinatorNotAvailableError": (
        "BrokerResponseError",
        15,
        "COORDINATOR_NOT_AVAILABLE",
        True,
    ),
    "CoordinatorNotAvailableError": ("BrokerResponseError", 15, "COORDINATOR_NOT_AVAILABLE", True),
    "NotCoordinatorForGroupError": ("BrokerResponseError", 16, "NOT_COORDINATOR", True),
    "NotCoordinatorError": ("BrokerResponseError", 16, "NOT_COORDINATOR", True),
    "InvalidTopicError": ("BrokerResponseError", 17, "INVALID_TOPIC", False),
    "RecordListTooLargeError": ("BrokerResponseError", 18, "RECORD_LIST_TOO_LARGE", False),
    "NotEnoughReplicasError": ("BrokerResponseError", 19, "NOT_ENOUGH_REPLICAS", True),
    "NotEnoughReplicasAfterAppendError": (
        "BrokerResponseError",
        20,
        "NOT_ENOUGH_REPLICAS_AFTER_APPEND",
        True,
    ),
    "InvalidRequiredAcksError": ("BrokerResponseError", 21, "INVALID_REQUIRED_ACKS", False),
    "IllegalGenerationError": ("BrokerResponseError", 22, "ILLEGAL_GENERATION", False),
    "InconsistentGroupProtocolError": (
        "BrokerResponseError",
        23,
        "INCONSISTENT_GROUP_PROTOCOL",
        False,
    ),
    "InvalidGroupIdError": ("BrokerResponseError", 24, "INVALID_GROUP_ID", False),
    "UnknownMemberIdError": ("BrokerResponseError", 25, "UNKNOWN_MEMBER_ID", False),
    "InvalidSessionTimeoutError": ("BrokerResponseError", 26, "INVALID_SESSION_TIMEOUT", False),
    "RebalanceInProgressError": ("BrokerResponseError", 27, "REBALANCE_IN_PROGRESS", False),
    "InvalidCommitOffsetSizeError": (
        "BrokerResponseError",
        28,
        "INVALID_COMMIT_OFFSET_SIZE",
        False,
    ),
    "TopicAuthorizationFailedError": (
        "BrokerResponseError",
        29,
        "TOPIC_AUTHORIZATION_FAILED",
        False,
    ),
    "GroupAuthorizationFailedError": (
        "BrokerResponseError",
        30,
        "GROUP_AUTHORIZATION_FAILED",
        False,
    ),
    "ClusterAuthorizationFailedError": (
        "BrokerResponseError",
        31,
        "CLUSTER_AUTHORIZATION_FAILED",
        False,
    ),
    "InvalidTimestampError": ("BrokerResponseError", 32, "INVALID_TIMESTAMP", False),
    "UnsupportedSaslMechanismError": (
        "BrokerResponseError",
        33,
        "UNSUPPORTED_SASL_MECHANISM",
        False,
    ),
    "IllegalSaslStateError": ("BrokerResponseError", 34, "ILLEGAL_SASL_STATE", False),
    "UnsupportedVersionError": ("BrokerResponseError", 35, "UNSUPPORTED_VERSION", False),
    "TopicAlreadyExistsError": ("BrokerResponseError", 36, "TOPIC_ALREADY_EXISTS", False),
    "InvalidPartitionsError": ("BrokerResponseError", 37, "INVALID_PARTITIONS", False),
    "InvalidReplicationFactorError": (
        "BrokerResponseError",
        38,
        "INVALID_REPLICATION_FACTOR",
        False,
    ),
    "InvalidReplicationAssignmentError": (
        "BrokerResponseError",
        39,
        "INVALID_REPLICATION_ASSIGNMENT",
        False,
    ),
    "InvalidConfigurationError": ("BrokerResponseError", 40, "INVALID_CONFIG", False),
    "NotControllerError": ("BrokerResponseError", 41, "NOT_CONTROLLER", True),
    "InvalidRequestError": ("BrokerResponseError", 42, "INVALID_REQUEST", False),
    "UnsupportedForMessageFormatError": (
        "BrokerResponseError",
        43,
        "UNSUPPORTED_FOR_MESSAGE_FORMAT",
        False,
    ),
    "PolicyViolationError": ("BrokerResponseError", 44, "POLICY_VIOLATION", False),
    "OutOfOrderSequenceNumber": ("BrokerResponseError", 45, "OUT_OF_ORDER_SEQUENCE_NUMBER", False),
    "DuplicateSequenceNumber": ("BrokerResponseError", 46, "DUPLICATE_SEQUENCE_NUMBER", False),
    "InvalidProducerEpoch": ("BrokerResponseError", 47, "INVALID_PRODUCER_EPOCH", False),
    "InvalidTxnState": ("BrokerResponseError", 48, "INVALID_TXN_STATE", False),
    "InvalidProducerIdMapping": ("BrokerResponseError", 49, "INVALID_PRODUCER_ID_MAPPING", False),
    "InvalidTransactionTimeout": ("BrokerResponseError", 50, "INVALID_TRANSACTION_TIMEOUT", False),
    "ConcurrentTransactions": ("BrokerResponseError", 51, "CONCURRENT_TRANSACTIONS", False),
    "TransactionCoordinatorFenced": (
        "BrokerResponseError",
        52,
        "TRANSACTION_COORDINATOR_FENCED",
        False,
    ),
    "TransactionalIdAuthorizationFailed": (
        "BrokerResponseError",
        53,
        "TRANSACTIONAL_ID_AUTHORIZATION_FAILED",
        False,
    ),
    "SecurityDisabled": ("BrokerResponseError", 54, "SECURITY_DISABLED", False),
    "OperationNotAttempted": ("BrokerResponseError", 55, "OPERATION_NOT_ATTEMPTED", False),
    "KafkaStorageError": ("BrokerResponseError", 56, "KAFKA_STORAGE_ERROR", True),
    "LogDirNotFound": ("BrokerResponseError", 57, "LOG_DIR_NOT_FOUND", False),
    "SaslAuthenticationFailed": ("BrokerResponseError", 58, "SASL_AUTHENTICATION_FAILED", False),
    "UnknownProducerId": ("BrokerResponseError", 59, "UNKNOWN_PRODUCER_ID", False),
    "ReassignmentInProgress": ("BrokerResponseError", 60, "REASSIGNMENT_IN_PROGRESS", False),
    "DelegationTokenAuthDisabled": (
        "BrokerResponseError",
        61,
        "DELEGATION_TOKEN_AUTH_DISABLED",
        False,
    ),
    "DelegationTokenNotFound": ("BrokerResponseError", 62, "DELEGATION_TOKEN_NOT_FOUND", False),
    "DelegationTokenOwnerMismatch": (
        "BrokerResponseError",
        63,
        "DELEGATION_TOKEN_OWNER_MISMATCH",
        False,
    ),
    "DelegationTokenRequestNotAllowed": (
        "BrokerResponseError",
        64,
        "DELEGATION_TOKEN_REQUEST_NOT_ALLOWED",
        False,
    ),
    "DelegationTokenAuthorizationFailed": (
        "BrokerResponseError",
        65,
        "DELEGATION_TOKEN_AUTHORIZATION_FAILED",
        False,
    ),
    "DelegationTokenExpired": ("BrokerResponseError", 66, "DELEGATION_TOKEN_EXPIRED", False),
    "InvalidPrincipalType": ("BrokerResponseError", 67, "INVALID_PRINCIPAL_TYPE", False),
    "NonEmptyGroup": ("BrokerResponseError", 68, "NON_EMPTY_GROUP", False),
    "GroupIdNotFound": ("BrokerResponseError", 69, "GROUP_ID_NOT_FOUND", False),
    "FetchSessionIdNotFound": ("BrokerResponseError", 70, "FETCH_SESSION_ID_NOT_FOUND", False),
    "InvalidFetchSessionEpoch": ("BrokerResponseError", 71, "INVALID_FETCH_SESSION_EPOCH", False),
    "ListenerNotFound": ("BrokerResponseError", 72, "LISTENER_NOT_FOUND", False),
    "MemberIdRequired": ("BrokerResponseError", 79, "MEMBER_ID_REQUIRED", False),
}

MODULES = {
    "": [
        "AIOKafkaProducer", "AIOKafkaConsumer", "AIOKafkaClient", "ConsumerRebalanceListener",
        "ConsumerStoppedError", "IllegalOperation", "ConsumerRecord", "TopicPartition",
        "OffsetAndTimestamp", "OffsetAndMetadata", "__version__",
    ],
    ".structs": [*STRUCTS],
    ".abc": ["AbstractTokenProvider", "ConsumerRebalanceListener"],
    ".errors": [*ERRORS, "for_code", "kafka_errors"],
    ".helpers": ["create_ssl_context"],
    ".producer": ["AIOKafkaProducer"],
    ".consumer": ["AIOKafkaConsumer"],
    ".client": ["AIOKafkaClient"],
    ".coordinator.assignors.roundrobin": ["RoundRobinPartitionAssignor"],
    ".coordinator.assignors.range": ["RangePartitionAssignor"],
    ".coordinator.assignors.sticky.sticky_assignor": ["StickyPartitionAssignor"],
}  # fmt: skip
SHOWN = ("__init__", "__aiter__", "__anext__", "__aenter__", "__aexit__")
OURS = {"BatchBuilder": BatchBuilder, "AbstractTokenProvider": abc.AbstractTokenProvider}
"""Classes that the library has in other modules than its first."""


def plain(function: Callable[..., Any]) -> str:
    """Return a signature without types; a default that is an object of a class is …."""
    found = inspect.signature(function)
    parameters = []
    for one in found.parameters.values():
        default = one.default
        is_plain = default is one.empty or isinstance(default, int | str | None) or default == ()
        kept = default if is_plain else "…"
        parameters.append(one.replace(annotation=one.empty, default=kept))
    text = str(found.replace(parameters=parameters, return_annotation=found.empty))
    return text.replace("'…'", "…")


def methods(cls: type) -> dict[str, str]:
    """Return the signatures of a class's public methods."""
    found = {}
    for name in dir(cls):
        member = inspect.getattr_static(cls, name)
        if name == "__init__":
            found[name] = plain(cls)
        elif callable(member) and (not name.startswith("_") or name in SHOWN):
            is_async = inspect.iscoroutinefunction(member)
            found[name] = ("async " if is_async else "") + plain(member)
    return found


@pytest.mark.parametrize("module", MODULES)
def test_each_module_has_the_names_of_the_library(module: str) -> None:
    """An import line of a program works once its first word is changed."""
    ours = importlib.import_module(f"quorumlog.compat.aiokafka{module}")
    assert [name for name in MODULES[module] if not hasattr(ours, name)] == []
    assert [name for name in MODULES[module] if name not in ours.__all__] == []


@pytest.mark.parametrize("name", CLASSES)
def test_each_class_has_the_methods_of_the_library(name: str) -> None:
    """Names, parameters, defaults, and which of them are coroutines."""
    assert methods(OURS.get(name) or getattr(aiokafka, name)) == CLASSES[name]


@pytest.mark.parametrize("name", STRUCTS)
def test_each_struct_has_the_fields_of_the_library(name: str) -> None:
    """Fields in the library's order, as programs unpack them."""
    assert plain(getattr(structs, name)) == STRUCTS[name]


def test_the_client_and_the_helper() -> None:
    """Settings of the client, and of TLS."""
    assert plain(aiokafka.AIOKafkaClient) == CLIENT
    assert plain(helpers.create_ssl_context) == (
        "(*, cafile=None, capath=None, cadata=None, certfile=None, keyfile=None, password=None)"
    )


@pytest.mark.parametrize("name", ERRORS)
def test_each_error_has_the_number_of_the_library(name: str) -> None:
    """Base class, number, word, and if a repeat may help."""
    cls = getattr(errors, name)
    base, errno, word, retriable = ERRORS[name]
    assert cls.__bases__[0].__name__ == base
    assert getattr(cls, "errno", None) == errno
    assert getattr(cls, "message", None) == word
    assert getattr(cls, "retriable", False) == retriable
    if errno is not None:
        assert errors.for_code(errno) is cls
        assert cls.description


def test_an_unknown_number_is_an_unknown_error() -> None:
    """As in the library, a number without a class is `UnknownError`."""
    assert errors.for_code(9_999) is errors.UnknownError
