"""Names, numbers and values of confluent-kafka's interface, without a cluster.

The tables are those of confluent-kafka 2.16.1, recorded from the library itself.
"""

from __future__ import annotations

import copy
import importlib
import inspect
import logging
import pickle
from typing import Any

import pytest

from http_api.client.client_errors import (
    AuthenticationError,
    BufferFullError,
    ClosedError,
    ConfigError,
    DeliveryError,
    FencedError,
    OutcomeUnknownError,
    QuorumlogError,
    UnreachableError,
    api_error,
)
from http_api.client.compat.confluent_consumer import subscription_of
from http_api.client.compat.confluent_errors import kafka_error
from http_api.client.compat.confluent_settings import (
    OF_CONSUMER,
    OF_PRODUCER,
    client_settings,
    given_config,
    stats_json,
)
from http_api.client.compat.kafka_codes import LocalCode, kafka_number
from http_api.client.compat.polled_producer import report_error
from http_api.contract.errors import RestCode, status_of
from quorumlog.compat import confluent_kafka
from quorumlog.compat.confluent_kafka import (
    OFFSET_INVALID,
    TIMESTAMP_CREATE_TIME,
    TIMESTAMP_NOT_AVAILABLE,
    Consumer,
    KafkaError,
    KafkaException,
    Message,
    Messages,
    Node,
    Producer,
    ShareConsumer,
    ThrottleEvent,
    TopicPartition,
    Uuid,
)
from quorumlog.compat.confluent_kafka.admin import (
    AclBinding,
    AclOperation,
    AclPermissionType,
    AdminClient,
    ConfigEntry,
    ConfigResource,
    NewPartitions,
    NewTopic,
    OffsetSpec,
    ResourcePatternType,
    ResourceType,
    ScramMechanism,
    UserScramCredentialDeletion,
)
from quorumlog.compat.confluent_kafka.serialization import (
    DoubleDeserializer,
    DoubleSerializer,
    IntegerDeserializer,
    IntegerSerializer,
    MessageField,
    SerializationContext,
    SerializationError,
    StringDeserializer,
    StringSerializer,
)

NAMES = {
    "": """
        AcknowledgeType ConcurrentModificationException Consumer ConsumerGroupState
        ConsumerGroupTopicPartitions ConsumerGroupType DeserializingConsumer
        DeserializingShareConsumer ElectionType IllegalStateException IsolationLevel
        KafkaError KafkaException Message Messages Node OFFSET_BEGINNING OFFSET_END
        OFFSET_INVALID OFFSET_STORED Producer SerializingProducer ShareConsumer
        TIMESTAMP_CREATE_TIME TIMESTAMP_LOG_APPEND_TIME TIMESTAMP_NOT_AVAILABLE
        ThrottleEvent TopicCollection TopicPartition TopicPartitionInfo Uuid consistent
        fnv1a libversion murmur2 version
    """,
    "admin": """
        AclBinding AclBindingFilter AclOperation AclPermissionType AdminClient
        AlterConfigOpType BrokerMetadata CONFIG_SOURCE_DEFAULT_CONFIG
        CONFIG_SOURCE_DYNAMIC_BROKER_CONFIG CONFIG_SOURCE_DYNAMIC_DEFAULT_BROKER_CONFIG
        CONFIG_SOURCE_DYNAMIC_TOPIC_CONFIG CONFIG_SOURCE_GROUP_CONFIG
        CONFIG_SOURCE_STATIC_BROKER_CONFIG CONFIG_SOURCE_UNKNOWN_CONFIG ClusterMetadata
        ConfigEntry ConfigResource ConfigSource ConsumerGroupDescription
        ConsumerGroupListing DeletedRecords DescribeClusterResult GroupMember GroupMetadata
        KafkaError KafkaException ListConsumerGroupsResult ListOffsetsResultInfo
        MemberAssignment MemberDescription NewPartitions NewTopic OFFSET_INVALID OffsetSpec
        PartitionMetadata RESOURCE_ANY RESOURCE_BROKER RESOURCE_GROUP RESOURCE_TOPIC
        RESOURCE_TRANSACTIONAL_ID RESOURCE_UNKNOWN ResourcePatternType ResourceType
        ScramCredentialInfo ScramMechanism TopicDescription TopicMetadata
        UserScramCredentialAlteration UserScramCredentialDeletion
        UserScramCredentialUpsertion UserScramCredentialsDescription
    """,
    "serialization": """
        Deserializer DeserializerBuilder DoubleDeserializer DoubleSerializer
        IntegerDeserializer IntegerSerializer MessageField SerializationContext
        SerializationError Serializer SerializerBuilder StringDeserializer StringSerializer
    """,
    "error": """
        ConsumeError KeyDeserializationError KeySerializationError ProduceError
        ValueDeserializationError ValueSerializationError KafkaError KafkaException
    """,
}
CALLS = """
    AclBinding: restype name resource_pattern_type principal host operation permission_type
    AclBindingFilter: restype name resource_pattern_type principal host operation permission_type
    AdminClient.alter_configs: resources
    AdminClient.alter_consumer_group_offsets: alter_consumer_group_offsets_request
    AdminClient.alter_user_scram_credentials: alterations
    AdminClient.cluster_id:
    AdminClient.create_acls: acls
    AdminClient.create_partitions: new_partitions
    AdminClient.create_topics: new_topics
    AdminClient.delete_acls: acl_binding_filters
    AdminClient.delete_consumer_groups: group_ids
    AdminClient.delete_records: topic_partition_offsets
    AdminClient.delete_topics: topics
    AdminClient.describe_acls: acl_binding_filter
    AdminClient.describe_cluster:
    AdminClient.describe_configs: resources
    AdminClient.describe_consumer_groups: group_ids
    AdminClient.describe_topics: topics
    AdminClient.describe_user_scram_credentials: users
    AdminClient.elect_leaders: election_type partitions
    AdminClient.incremental_alter_configs: resources
    AdminClient.list_consumer_group_offsets: list_consumer_group_offsets_request
    AdminClient.list_consumer_groups:
    AdminClient.list_groups:
    AdminClient.list_offsets: topic_partition_offsets
    AdminClient.list_topics:
    AdminClient.poll:
    AdminClient.set_sasl_credentials: username password
    ConfigEntry: name value source is_read_only is_default is_sensitive is_synonym synonyms
        incremental_operation
    ConfigResource: restype name set_config described_configs error incremental_configs
    ConfigResource.add_incremental_config: config_entry
    ConfigResource.set_config: name value overwrite
    ConsumeError: kafka_error exception kafka_message
    Consumer.assign: partitions
    Consumer.assignment:
    Consumer.close:
    Consumer.cluster_id: timeout
    Consumer.commit: message offsets asynchronous
    Consumer.committed: partitions timeout
    Consumer.consume: num_messages timeout
    Consumer.consumer_group_metadata:
    Consumer.get_watermark_offsets: partition timeout cached
    Consumer.incremental_assign: partitions
    Consumer.incremental_unassign: partitions
    Consumer.list_topics: topic timeout
    Consumer.memberid:
    Consumer.offsets_for_times: partitions timeout
    Consumer.pause: partitions
    Consumer.poll: timeout
    Consumer.position: partitions
    Consumer.resume: partitions
    Consumer.seek: partition
    Consumer.set_sasl_credentials: username password
    Consumer.store_offsets: message offsets
    Consumer.subscribe: topics on_assign on_revoke on_lost
    Consumer.unassign:
    Consumer.unsubscribe:
    ConsumerGroupDescription: group_id is_simple_consumer_group members partition_assignor state
        coordinator authorized_operations type
    ConsumerGroupListing: group_id is_simple_consumer_group state type
    ConsumerGroupTopicPartitions: group_id topic_partitions
    DeletedRecords: low_watermark
    DescribeClusterResult: controller nodes cluster_id authorized_operations
    DeserializingConsumer.poll: timeout
    KafkaError: error reason fatal retriable txn_requires_abort
    KafkaError.code:
    KafkaError.fatal:
    KafkaError.name:
    KafkaError.retriable:
    KafkaError.str:
    KafkaError.txn_requires_abort:
    KeyDeserializationError: exception kafka_message
    KeySerializationError: exception
    ListConsumerGroupsResult: valid errors
    ListOffsetsResultInfo: offset timestamp leader_epoch
    MemberAssignment: topic_partitions
    MemberDescription: member_id client_id host assignment group_instance_id target_assignment
    Message: topic partition offset key value headers error timestamp latency leader_epoch
        delivery_count
    Message.delivery_count:
    Message.deserialized_key:
    Message.deserialized_value:
    Message.error:
    Message.headers:
    Message.key:
    Message.latency:
    Message.leader_epoch:
    Message.offset:
    Message.partition:
    Message.set_error: error
    Message.set_headers: headers
    Message.set_key: key
    Message.set_value: value
    Message.timestamp:
    Message.topic:
    Message.value:
    NewPartitions: topic new_total_count replica_assignment
    NewTopic: topic num_partitions replication_factor replica_assignment config
    Node: id host port rack
    ProduceError: kafka_error exception
    Producer.abort_transaction: timeout
    Producer.begin_transaction:
    Producer.close:
    Producer.cluster_id: timeout
    Producer.commit_transaction: timeout
    Producer.flush: timeout
    Producer.init_transactions: timeout
    Producer.list_topics: topic timeout
    Producer.poll: timeout
    Producer.produce: topic value key partition callback on_delivery timestamp headers
    Producer.produce_batch: topic messages partition callback on_delivery
    Producer.purge: in_queue in_flight blocking
    Producer.send_offsets_to_transaction: positions group_metadata timeout
    Producer.set_sasl_credentials: username password
    ScramCredentialInfo: mechanism iterations
    SerializationContext: topic field headers
    SerializingProducer.produce: topic key value partition on_delivery timestamp headers
    StringDeserializer: codec
    StringSerializer: codec
    ThrottleEvent: broker_name broker_id throttle_time
    TopicCollection: topic_names
    TopicDescription: name topic_id is_internal partitions authorized_operations
    TopicPartition: topic partition offset metadata leader_epoch
    TopicPartitionInfo: id leader replicas isr
    UserScramCredentialDeletion: user mechanism
    UserScramCredentialUpsertion: user scram_credential_info password salt
    UserScramCredentialsDescription: user scram_credential_infos
    Uuid: most_significant_bits least_significant_bits
"""
NUMBERS = """
    _BAD_MSG=-199 _BAD_COMPRESSION=-198 _DESTROY=-197 _FAIL=-196 _TRANSPORT=-195
    _CRIT_SYS_RESOURCE=-194 _RESOLVE=-193 _MSG_TIMED_OUT=-192 _PARTITION_EOF=-191
    _UNKNOWN_PARTITION=-190 _FS=-189 _UNKNOWN_TOPIC=-188 _ALL_BROKERS_DOWN=-187 _INVALID_ARG=-186
    _TIMED_OUT=-185 _QUEUE_FULL=-184 _ISR_INSUFF=-183 _NODE_UPDATE=-182 _SSL=-181 _WAIT_COORD=-180
    _UNKNOWN_GROUP=-179 _IN_PROGRESS=-178 _PREV_IN_PROGRESS=-177 _EXISTING_SUBSCRIPTION=-176
    _ASSIGN_PARTITIONS=-175 _REVOKE_PARTITIONS=-174 _CONFLICT=-173 _STATE=-172
    _UNKNOWN_PROTOCOL=-171 _NOT_IMPLEMENTED=-170 _AUTHENTICATION=-169 _NO_OFFSET=-168
    _OUTDATED=-167 _TIMED_OUT_QUEUE=-166 _UNSUPPORTED_FEATURE=-165 _WAIT_CACHE=-164 _INTR=-163
    _KEY_SERIALIZATION=-162 _VALUE_SERIALIZATION=-161 _KEY_DESERIALIZATION=-160
    _VALUE_DESERIALIZATION=-159 _PARTIAL=-158 _READ_ONLY=-157 _NOENT=-156 _UNDERFLOW=-155
    _INVALID_TYPE=-154 _RETRY=-153 _PURGE_QUEUE=-152 _PURGE_INFLIGHT=-151 _FATAL=-150
    _INCONSISTENT=-149 _GAPLESS_GUARANTEE=-148 _MAX_POLL_EXCEEDED=-147 _UNKNOWN_BROKER=-146
    _NOT_CONFIGURED=-145 _FENCED=-144 _APPLICATION=-143 _ASSIGNMENT_LOST=-142 _NOOP=-141
    _AUTO_OFFSET_RESET=-140 _LOG_TRUNCATION=-139 _INVALID_DIFFERENT_RECORD=-138
    _DESTROY_BROKER=-137 UNKNOWN=-1 NO_ERROR=0 OFFSET_OUT_OF_RANGE=1 INVALID_MSG=2
    UNKNOWN_TOPIC_OR_PART=3 INVALID_MSG_SIZE=4 LEADER_NOT_AVAILABLE=5 NOT_LEADER_FOR_PARTITION=6
    REQUEST_TIMED_OUT=7 BROKER_NOT_AVAILABLE=8 REPLICA_NOT_AVAILABLE=9 MSG_SIZE_TOO_LARGE=10
    STALE_CTRL_EPOCH=11 OFFSET_METADATA_TOO_LARGE=12 NETWORK_EXCEPTION=13
    COORDINATOR_LOAD_IN_PROGRESS=14 COORDINATOR_NOT_AVAILABLE=15 NOT_COORDINATOR=16
    TOPIC_EXCEPTION=17 RECORD_LIST_TOO_LARGE=18 NOT_ENOUGH_REPLICAS=19
    NOT_ENOUGH_REPLICAS_AFTER_APPEND=20 INVALID_REQUIRED_ACKS=21 ILLEGAL_GENERATION=22
    INCONSISTENT_GROUP_PROTOCOL=23 INVALID_GROUP_ID=24 UNKNOWN_MEMBER_ID=25
    INVALID_SESSION_TIMEOUT=26 REBALANCE_IN_PROGRESS=27 INVALID_COMMIT_OFFSET_SIZE=28
    TOPIC_AUTHORIZATION_FAILED=29 GROUP_AUTHORIZATION_FAILED=30 CLUSTER_AUTHORIZATION_FAILED=31
    INVALID_TIMESTAMP=32 UNSUPPORTED_SASL_MECHANISM=33 ILLEGAL_SASL_STATE=34
    UNSUPPORTED_VERSION=35 TOPIC_ALREADY_EXISTS=36 INVALID_PARTITIONS=37
    INVALID_REPLICATION_FACTOR=38 INVALID_REPLICA_ASSIGNMENT=39 INVALID_CONFIG=40
    NOT_CONTROLLER=41 INVALID_REQUEST=42 UNSUPPORTED_FOR_MESSAGE_FORMAT=43 POLICY_VIOLATION=44
    OUT_OF_ORDER_SEQUENCE_NUMBER=45 DUPLICATE_SEQUENCE_NUMBER=46 INVALID_PRODUCER_EPOCH=47
    INVALID_TXN_STATE=48 INVALID_PRODUCER_ID_MAPPING=49 INVALID_TRANSACTION_TIMEOUT=50
    CONCURRENT_TRANSACTIONS=51 TRANSACTION_COORDINATOR_FENCED=52
    TRANSACTIONAL_ID_AUTHORIZATION_FAILED=53 SECURITY_DISABLED=54 OPERATION_NOT_ATTEMPTED=55
    KAFKA_STORAGE_ERROR=56 LOG_DIR_NOT_FOUND=57 SASL_AUTHENTICATION_FAILED=58
    UNKNOWN_PRODUCER_ID=59 REASSIGNMENT_IN_PROGRESS=60 DELEGATION_TOKEN_AUTH_DISABLED=61
    DELEGATION_TOKEN_NOT_FOUND=62 DELEGATION_TOKEN_OWNER_MISMATCH=63
    DELEGATION_TOKEN_REQUEST_NOT_ALLOWED=64 DELEGATION_TOKEN_AUTHORIZATION_FAILED=65
    DELEGATION_TOKEN_EXPIRED=66 INVALID_PRINCIPAL_TYPE=67 NON_EMPTY_GROUP=68 GROUP_ID_NOT_FOUND=69
    FETCH_SESSION_ID_NOT_FOUND=70 INVALID_FETCH_SESSION_EPOCH=71 LISTENER_NOT_FOUND=72
    TOPIC_DELETION_DISABLED=73 FENCED_LEADER_EPOCH=74 UNKNOWN_LEADER_EPOCH=75
    UNSUPPORTED_COMPRESSION_TYPE=76 STALE_BROKER_EPOCH=77 OFFSET_NOT_AVAILABLE=78
    MEMBER_ID_REQUIRED=79 PREFERRED_LEADER_NOT_AVAILABLE=80 GROUP_MAX_SIZE_REACHED=81
    FENCED_INSTANCE_ID=82 ELIGIBLE_LEADERS_NOT_AVAILABLE=83 ELECTION_NOT_NEEDED=84
    NO_REASSIGNMENT_IN_PROGRESS=85 GROUP_SUBSCRIBED_TO_TOPIC=86 INVALID_RECORD=87
    UNSTABLE_OFFSET_COMMIT=88 THROTTLING_QUOTA_EXCEEDED=89 PRODUCER_FENCED=90
    RESOURCE_NOT_FOUND=91 DUPLICATE_RESOURCE=92 UNACCEPTABLE_CREDENTIAL=93
    INCONSISTENT_VOTER_SET=94 INVALID_UPDATE_VERSION=95 FEATURE_UPDATE_FAILED=96
    PRINCIPAL_DESERIALIZATION_FAILURE=97 UNKNOWN_TOPIC_ID=100 INCONSISTENT_TOPIC_ID=103
    FENCED_MEMBER_EPOCH=110 UNRELEASED_INSTANCE_ID=111 UNSUPPORTED_ASSIGNOR=112
    STALE_MEMBER_EPOCH=113 MISMATCHED_ENDPOINT_TYPE=114 UNSUPPORTED_ENDPOINT_TYPE=115
    UNKNOWN_CONTROLLER_ID=116 UNKNOWN_SUBSCRIPTION_ID=117 TELEMETRY_TOO_LARGE=118
    INVALID_REGISTRATION=119 TRANSACTION_ABORTABLE=120 INVALID_RECORD_STATE=121
    SHARE_SESSION_NOT_FOUND=122 INVALID_SHARE_SESSION_EPOCH=123 FENCED_STATE_EPOCH=124
    INVALID_VOTER_KEY=125 DUPLICATE_VOTER=126 VOTER_NOT_FOUND=127 INVALID_REGULAR_EXPRESSION=128
    REBOOTSTRAP_REQUIRED=129 STREAMS_INVALID_TOPOLOGY=130 STREAMS_INVALID_TOPOLOGY_EPOCH=131
    STREAMS_TOPOLOGY_FENCED=132 SHARE_SESSION_LIMIT_REACHED=133
"""


def module(name: str) -> Any:
    """Return a module of the interface; "" is the package itself."""
    return importlib.import_module(".".join(filter(None, [confluent_kafka.__name__, name])))


def found(name: str) -> Any:
    """Return what a dotted name of any of the modules stands for."""
    first, *rest = name.split(".")
    home = next(one for one in map(module, NAMES) if hasattr(one, first))
    value = getattr(home, first)
    for part in rest:
        value = getattr(value, part)
    return value


@pytest.mark.parametrize("name", NAMES)
def test_every_public_name_is_there(name: str) -> None:
    """Each name that confluent-kafka's documentation lists can be imported from the same place."""
    missing = [one for one in NAMES[name].split() if not hasattr(module(name), one)]
    assert missing == []


def test_every_call_takes_the_same_arguments() -> None:
    """Each class and method takes the library's arguments, in the library's order."""
    rows = CALLS.replace("\n        ", " ").strip().splitlines()
    assert len(rows) > 100
    wrong = []
    for row in rows:
        name, _, expected = row.strip().partition(":")
        parameters = inspect.signature(found(name)).parameters
        given = [one for one in parameters if one not in {"self", "kwargs", "keywords"}]
        if given[: len(expected.split())] != expected.split():
            wrong.append(f"{name}: {given}, expected {expected.split()}")
    assert wrong == []


def test_every_error_has_its_number() -> None:
    """The constants of `KafkaError` have librdkafka's numbers, a name and a text each."""
    for row in NUMBERS.split():
        name, _, number = row.partition("=")
        assert getattr(KafkaError, name) == int(number), name
        error = KafkaError(int(number))
        assert (error.code(), error.name()) == (int(number), name)
        assert error.str() not in {"", f"Err-{number}?"}, name


def test_asyncio_classes_are_named_as_missing() -> None:
    """An import of the asyncio module says what to use instead."""
    with pytest.raises(ImportError, match="AsyncProducer"):
        importlib.import_module("quorumlog.compat.confluent_kafka.aio")
    with pytest.raises(KafkaException, match="ShareConsumer") as caught:
        ShareConsumer({"group.id": "g"})
    assert caught.value.args[0] == LocalCode.NOT_IMPLEMENTED


def test_errors_compare_by_their_numbers() -> None:
    """A `KafkaError` equals its number, and shows code, name and text as the library does."""
    error = KafkaError(KafkaError.UNKNOWN_TOPIC_OR_PART)
    assert error == 3
    assert error == KafkaError(3, "another text")
    assert error != KafkaError.NO_ERROR
    assert error not in {None, "3"}
    assert LocalCode.PARTITION_EOF < error < KafkaError(4)
    assert KafkaError(4) >= 4 > error
    assert hash(error) == 3
    assert bool(error)
    assert not KafkaError(KafkaError.NO_ERROR)
    assert str(error) == (
        'KafkaError{code=UNKNOWN_TOPIC_OR_PART,val=3,str="Broker: Unknown topic or partition"}'
    )
    fatal = KafkaError(82, "gone", fatal=True, retriable=True, txn_requires_abort=True)
    assert repr(fatal) == 'KafkaError{FATAL,code=FENCED_INSTANCE_ID,val=82,str="gone"}'
    assert (fatal.fatal(), fatal.retriable(), fatal.txn_requires_abort()) == (True, True, True)
    assert not error.fatal()
    with pytest.raises(TypeError, match="argument 2 must be str or None"):
        KafkaError(1, 2)  # type: ignore[arg-type]


def test_errors_of_answers_have_kafkas_numbers() -> None:
    """Each code of the HTTP API becomes a number of Kafka; words tell apart what 40002 covers."""

    def number(code: int, message: str = "no") -> int:
        return kafka_number(api_error(status_of(RestCode(code)), code, message, {}))

    for code in RestCode:
        assert not KafkaError(number(code)).str().startswith("Err-"), code
    assert number(40401) == number(40402) == number(40403) == KafkaError.UNKNOWN_TOPIC_OR_PART
    assert number(40405) == KafkaError.GROUP_ID_NOT_FOUND
    assert number(40903) == KafkaError.NON_EMPTY_GROUP
    assert number(413) == KafkaError.MSG_SIZE_TOO_LARGE
    assert number(40002, "topic t already exists") == KafkaError.TOPIC_ALREADY_EXISTS
    assert number(40002, "0 partitions: a topic has 1 to 9") == KafkaError.INVALID_PARTITIONS
    factor = "replication factor 9 must be at least 1 and at most 3"
    assert number(40002, factor) == KafkaError.INVALID_REPLICATION_FACTOR
    assert number(40002, "topic name 'a/b' is invalid") == KafkaError.TOPIC_EXCEPTION
    assert number(40002, "unknown topic config 'x'") == KafkaError.INVALID_CONFIG
    assert number(40002, "offset 9 is out of range") == KafkaError.OFFSET_OUT_OF_RANGE
    assert number(40002, "INVALID_TIMESTAMP: too early") == KafkaError.INVALID_TIMESTAMP
    assert number(40002, "something else") == KafkaError.INVALID_REQUEST


def test_errors_of_the_client_have_librdkafkas_numbers() -> None:
    """Errors without an answer become librdkafka's own; time that ran out is told by its call."""
    assert kafka_number(UnreachableError("no broker")) == LocalCode.TRANSPORT
    assert kafka_number(OutcomeUnknownError("late")) == LocalCode.TIMED_OUT
    assert kafka_number(ConfigError("bad")) == LocalCode.INVALID_ARG
    assert kafka_number(ClosedError("closed")) == LocalCode.STATE
    assert kafka_number(BufferFullError("full")) == LocalCode.QUEUE_FULL
    assert kafka_number(FencedError("other")) == KafkaError.FENCED_INSTANCE_ID
    assert kafka_error(FencedError("other")).fatal()
    assert kafka_number(QuorumlogError("some")) == LocalCode.FAIL
    assert kafka_number(ValueError("x")) == LocalCode.INVALID_ARG
    assert kafka_number(KeyError("x")) == LocalCode.FAIL
    assert kafka_number(AuthenticationError(401, 401, "no", {})) == LocalCode.AUTHENTICATION
    refused = api_error(413, 413, "too large", {})
    assert kafka_number(DeliveryError(2, refused)) == KafkaError.MSG_SIZE_TOO_LARGE
    assert report_error(refused) == KafkaError.MSG_SIZE_TOO_LARGE
    assert report_error(OutcomeUnknownError("late")) == LocalCode.MSG_TIMED_OUT
    assert report_error(UnreachableError("no broker")) == LocalCode.MSG_TIMED_OUT
    assert kafka_error(UnreachableError("no broker")).retriable()
    kept = KafkaError(LocalCode.STATE)
    assert kafka_error(KafkaException(kept)) is kept


def test_partitions_are_equal_by_topic_and_number() -> None:
    """A `TopicPartition` has the library's defaults, text and order."""
    one = TopicPartition("t", 1, 5)
    assert one == TopicPartition("t", 1, 6)
    assert hash(one) == hash(TopicPartition("t", 1))
    assert TopicPartition("t", 0) < one < TopicPartition("u", 0)
    assert one >= TopicPartition("t", 1) <= one
    assert TopicPartition("u", 0) > one
    assert one != ("t", 1)
    default = TopicPartition("t")
    assert (default.partition, default.offset) == (-1, OFFSET_INVALID)
    assert (default.metadata, default.leader_epoch, default.error) == (None, None, None)
    assert str(one) == "TopicPartition{topic=t,partition=1,offset=5,leader_epoch=None,error=None}"
    assert TopicPartition("t", 0, leader_epoch=-1).leader_epoch is None
    with pytest.raises(TypeError):
        TopicPartition(1)  # type: ignore[arg-type]


def test_messages_made_by_hand() -> None:
    """A `Message` for a program's own tests has what it was given, and can be changed."""
    empty = Message()
    assert (empty.topic(), empty.partition(), empty.offset(), empty.error()) == (None,) * 4
    assert empty.timestamp() == (TIMESTAMP_NOT_AVAILABLE, 0)
    assert (empty.headers(), empty.latency(), empty.leader_epoch()) == (None,) * 3
    assert (len(empty), bool(empty), empty.delivery_count()) == (0, True, None)
    message = Message(
        "t", 1, 2, b"k", b"value", [("h", b"x")], None, (TIMESTAMP_CREATE_TIME, 9), 0.5, 3
    )
    assert (message.topic(), message.partition(), message.offset()) == ("t", 1, 2)
    assert (message.key(), message.value(), len(message)) == (b"k", b"value", 5)
    assert message.headers() == [("h", b"x")]
    assert message.timestamp() == (TIMESTAMP_CREATE_TIME, 9)
    assert (message.latency(), message.leader_epoch()) == (0.5, 3)
    message.set_key("key")
    message.set_value({"a": 1})
    message.set_topic("u")
    message.set_headers([])
    message.set_error(KafkaError(LocalCode.PARTITION_EOF))
    key: Any = message.deserialized_key()
    value: Any = message.deserialized_value()
    assert (key, value) == ("key", {"a": 1})
    assert (message.topic(), message.headers()) == ("u", None)
    assert message.error() == LocalCode.PARTITION_EOF
    assert Message("t", 1, 2, b"k") == Message("t", 1, 2, b"k") != Message("t", 1, 2, b"z")
    assert message != 1
    assert copy.copy(message) == message
    assert pickle.loads(pickle.dumps(message)) == message
    assert len({empty, Message()}) == 1
    batch = Messages([message, empty])
    assert (batch.count(), len(batch), batch.is_empty()) == (2, 2, False)
    assert batch[0] is message
    assert batch[1:].records() == [empty]
    assert list(batch) == [message, empty]


def test_hashes_of_keys_are_the_librarys() -> None:
    """The three hash functions give what the library gives for the same keys."""
    keys = [b"", b"a", b"ab", b"abc", b"abcd", b"hello world", b"\xff\xfe\x80"]
    rows = [(confluent_kafka.murmur2(key, 97), confluent_kafka.fnv1a(key, 97)) for key in keys]
    assert rows == [(35, 68), (49, 49), (36, 73), (77, 41), (5, 48), (70, 15), (50, 14)]
    assert [confluent_kafka.consistent(key, 97) for key in keys] == [0, 80, 87, 62, 50, 62, 68]
    with pytest.raises(ValueError, match="partition_count"):
        confluent_kafka.murmur2(b"key", 0)
    with pytest.raises(TypeError):
        confluent_kafka.consistent("key", 1)  # type: ignore[arg-type]
    assert confluent_kafka.version() == confluent_kafka.__version__ == "2.16.1"
    assert confluent_kafka.libversion()[0] == "2.16.0"


def test_small_values() -> None:
    """Ids, nodes, topics and configs show and compare as the library's."""
    both = Uuid(1, 2)
    assert str(both) == repr(both) == "AAAAAAAAAAEAAAAAAAAAAg"
    assert (both.get_most_significant_bits(), both.get_least_significant_bits()) == (1, 2)
    assert both == Uuid(1, 2)
    assert hash(both) == hash(Uuid(1, 2))
    assert int(Uuid(0, -1)) == (1 << 64) - 1
    assert str(Node(1, "h", 9, "r")) == "(1) h:9 (Rack - r)"
    assert str(ThrottleEvent("b", 1, 0.5)) == "b/1 throttled for 500 ms"
    assert str(NewTopic("a", 1)) == "NewTopic(topic=a,num_partitions=1)"
    assert NewTopic("a", 1) != NewTopic("a", 2)
    assert str(NewPartitions("a", 3)) == "NewPartitions(topic=a,new_total_count=3)"
    resource = ConfigResource("topic", "x", {"a": "b"})
    assert repr(resource) == "ConfigResource(ResourceType.TOPIC,x)"
    assert resource == ConfigResource(ResourceType.TOPIC, "x") == ConfigResource(2, "x")
    assert resource < ConfigResource(ResourceType.BROKER, "1")
    resource.set_config("a", "c", overwrite=False)
    resource.set_config("d", "e")
    assert (resource.set_config_dict, len(resource)) == ({"a": "b", "d": "e"}, 2)
    assert repr(ConfigEntry("n", "v")) == 'ConfigEntry(n="v")'
    with pytest.raises(ValueError, match="nope"):
        ConfigResource("nope", "x")
    assert OffsetSpec.earliest() < OffsetSpec.latest() < OffsetSpec.for_timestamp(0)
    assert ResourceType.TOPIC < ResourceType.BROKER


def test_serializers() -> None:
    """The serializers of the library write and read the same bytes, and None as None."""
    assert IntegerSerializer()(7) == b"\0\0\0\x07"
    assert IntegerDeserializer()(b"\0\0\0\x07") == 7
    assert DoubleDeserializer()(DoubleSerializer()(1.5)) == 1.5
    assert StringSerializer()("é") == "é".encode()
    assert StringDeserializer("latin_1")(b"\xe9") == "é"
    for one in (IntegerSerializer(), DoubleSerializer(), StringSerializer()):
        assert one(None) is None
        one.set_cluster_id_resolver(str)
        one.close()
    for each in (IntegerDeserializer(), DoubleDeserializer(), StringDeserializer()):
        assert each(None) is None
    with pytest.raises(SerializationError):
        IntegerSerializer()(1 << 40)
    with pytest.raises(SerializationError):
        IntegerDeserializer()(b"1")
    with pytest.raises(SerializationError):
        StringDeserializer()(b"\xff")
    with pytest.raises(SerializationError):
        StringSerializer("ascii")("é")
    context = SerializationContext("t", MessageField.KEY)
    assert (context.topic, str(context.field), context.headers) == ("t", "key", None)


# settings


def test_settings_are_translated() -> None:
    """librdkafka's names, units and words become the SDK's."""
    given = {
        "bootstrap.servers": "h:1",
        "acks": -1,
        "linger.ms": 0.5,
        "queue.buffering.max.kbytes": 100,
        "queue.buffering.max.messages": 7,
        "message.timeout.ms": 0,
        "max.in.flight": 1_000_000,
        "enable.idempotence": "true",
        "delivery.report.only.error": True,
        "partitioner": "consistent_random",
    }
    settings = client_settings(given, OF_PRODUCER)
    assert settings.sdk == {
        "bootstrap_servers": ["http://h:1"],
        "acks": "-1",
        "linger_ms": 0,
        "buffer_memory": 102_400,
        "delivery_timeout_ms": 86_400_000,
        "max_in_flight": 5,
        "enable_idempotence": "true",
    }
    assert (settings.messages_max, settings.reports_errors_only) == (7, True)
    reader = client_settings(
        {
            "group.id": "g",
            "auto.offset.reset": "smallest",
            "partition.assignment.strategy": "cooperative-sticky,range",
            "enable.partition.eof": "true",
            "queued.max.messages.kbytes": 1,
        },
        OF_CONSUMER,
    )
    assert reader.sdk == {
        "group_id": "g",
        "auto_offset_reset": "earliest",
        "assignor": "uniform",
        "queued_max_bytes": 1_024,
    }
    assert reader.reports_partition_end
    for word, expected in {"largest": "latest", "end": "latest", "error": "none"}.items():
        found_word = client_settings({"auto.offset.reset": word}, OF_CONSUMER).sdk
        assert found_word["auto_offset_reset"] == expected


def test_numbers_beyond_the_sdks_bounds(caplog: pytest.LogCaptureFixture) -> None:
    """Limits of time and size that librdkafka allows become the nearest that is possible here."""
    given = {
        "max.poll.interval.ms": 86_400_000,
        "fetch.max.bytes": "2147483135",
        "auto.commit.interval.ms": 0,
    }
    with caplog.at_level(logging.WARNING):
        settings = client_settings(given, OF_CONSUMER)
    assert settings.sdk == {
        "max_poll_interval_ms": 3_600_000,
        "fetch_max_bytes": 64 << 20,
        "auto_commit_interval_ms": 86_400_000,
    }
    assert "name=max.poll.interval.ms value=86400000: used value=3600000" in caplog.text


def test_a_refused_secret_is_not_shown() -> None:
    """The text of a refused setting names it, and never repeats a password."""
    for name in ("ssl.key.password", "sasl.jaas.config", "ssl.keystore.password"):
        with pytest.raises(KafkaException) as caught:
            client_settings({name: "hunter2"}, OF_PRODUCER)
        assert name in str(caught.value)
        assert "hunter2" not in str(caught.value)


def test_keywords_and_topic_settings_are_read() -> None:
    """Keywords replace the dict's settings, and ``default.topic.config`` both."""
    given = given_config(
        {"group.id": "a", "default.topic.config": {"acks": 1}},
        {"group_id": "b", "error_cb": print},
        "Consumer",
    )
    assert given == {"group.id": "b", "acks": 1, "error_cb": print}
    assert given_config({"bootstrap.servers": None}, {}, "Consumer") == {}
    with pytest.raises(TypeError):
        given_config(None, {}, "Consumer")
    with pytest.raises(TypeError):
        given_config("h:1", {}, "Consumer")  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("partitioner", "murmur2"),
        ("partitioner", "murmur2_random"),
        ("partitioner_cb", print),
        ("security.protocol", "nope"),
        ("ssl.keystore.location", "x.jks"),
        ("enable.ssl.certificate.verification", False),
        ("ssl.endpoint.identification.algorithm", "none"),
        ("compression.typ", "gzip"),
        ("auto.offset.reset", "somewhere"),
        ("batch.size", "many"),
    ],
)
def test_settings_that_can_not_be_honoured_are_refused(name: str, value: object) -> None:
    """A setting that would change where or how safely records land is refused by its name."""
    kind = Consumer if name == "auto.offset.reset" else Producer
    with pytest.raises(KafkaException) as caught:
        kind({"bootstrap.servers": "h:1", "group.id": "g", name: value})
    error = caught.value.args[0]
    assert error == LocalCode.INVALID_ARG
    assert name.replace(".", "_") in error.str().replace(".", "_")


def test_a_consumer_needs_a_group() -> None:
    """Without ``group.id`` a consumer is refused, as by the library."""
    with pytest.raises(ValueError, match=r"group\.id must be set"):
        Consumer({"bootstrap.servers": "h:1"})
    with pytest.raises(TypeError, match="callable"):
        Consumer({"group.id": "g", "error_cb": "no"})


def test_settings_without_a_meaning_are_logged(caplog: pytest.LogCaptureFixture) -> None:
    """A setting of librdkafka that means nothing here causes a warning that names it."""
    with caplog.at_level(logging.WARNING):
        client_settings({"compression.type": "gzip", "throttle_cb": print}, OF_PRODUCER)
        client_settings({"group.id": "g"}, OF_PRODUCER)
    assert "name=compression.type" in caplog.text
    assert "name=throttle_cb" in caplog.text
    assert "name=group.id" in caplog.text


def test_security_settings() -> None:
    """TLS makes https URLs; SASL's PLAIN and OAUTHBEARER become HTTP credentials."""
    files = {"ssl.ca.location": "/ca", "bootstrap.servers": "h:1,https://i:2, PLAINTEXT://j:3"}
    settings = client_settings({"security.protocol": "SSL", **files}, OF_PRODUCER)
    assert settings.sdk["bootstrap_servers"] == [
        "https://h:1",
        "https://i:2",
        "http://j:3",
    ]
    assert settings.sdk["security"].ca == "/ca"
    plain = {
        "security.protocol": "sasl_plaintext",
        "sasl.mechanisms": "PLAIN",
        "sasl.username": "u",
        "sasl.password": "p",
    }
    settings = client_settings(plain, OF_PRODUCER)
    assert settings.sdk["headers"]() == {"Authorization": "Basic dTpw"}
    settings.credentials.replace("u", "q")
    assert settings.sdk["headers"]() == {"Authorization": "Basic dTpx"}
    bearer = {
        "security.protocol": "sasl_ssl",
        "sasl.mechanism": "OAUTHBEARER",
        "sasl.oauthbearer.config": "c",
        "oauth_cb": lambda config: (f"token-{config}", 0),
    }
    assert client_settings(bearer, OF_PRODUCER).sdk["headers"]() == {
        "Authorization": "Bearer token-c"
    }
    for mechanism in ("GSSAPI", "SCRAM-SHA-256"):
        with pytest.raises(KafkaException, match="mechanisms"):
            client_settings({**plain, "sasl.mechanisms": mechanism}, OF_PRODUCER)


def test_subscriptions_with_expressions() -> None:
    """Names stay names; expressions match the beginning of a name, as librdkafka's do."""
    assert subscription_of(["a", "b"]) == ["a", "b"]
    assert subscription_of(["^a"]) == "^a.*"
    assert subscription_of(["^a.*"]) == "^a.*"
    assert subscription_of(["^a[0-9]$"]) == "^a[0-9]"
    assert subscription_of(["^a", "b.c"]) == r"^(?:a.*|b\.c)"


def test_statistics_are_json() -> None:
    """``stats_cb`` gets a text with librdkafka's first fields."""
    text = stats_json("producer", "me", 5_000, {"records_waiting": 3})
    assert '"name": "me#producer"' in text
    assert '"msg_cnt": 3' in text
    assert '"time": 5,' in text


def test_calls_that_are_not_supported_say_so() -> None:
    """Access rules and SCRAM credentials raise an exception that names the call."""
    admin: Any = AdminClient({"bootstrap.servers": "127.0.0.1:1"})
    rule = AclBinding(
        ResourceType.TOPIC,
        "t",
        ResourcePatternType.LITERAL,
        "User:u",
        "*",
        AclOperation.READ,
        AclPermissionType.ALLOW,
    )
    deletion = UserScramCredentialDeletion("u", ScramMechanism.SCRAM_SHA_256)
    calls: list[tuple[Any, tuple[Any, ...]]] = [
        (admin.create_acls, ([rule],)),
        (admin.describe_acls, (rule,)),
        (admin.delete_acls, ([rule],)),
        (admin.describe_user_scram_credentials, ()),
        (admin.alter_user_scram_credentials, ([deletion],)),
    ]
    with admin:
        for call, arguments in calls:
            with pytest.raises(KafkaException, match=call.__name__) as caught:
                call(*arguments)
            assert caught.value.args[0] == LocalCode.NOT_IMPLEMENTED


def test_transactions_need_an_id_and_a_begin() -> None:
    """Without ``transactional.id`` a call says so; without a begin it is out of order."""
    with Producer({"bootstrap.servers": "127.0.0.1:1"}) as plain:
        for name in ("init_transactions", "begin_transaction", "commit_transaction"):
            with pytest.raises(KafkaException, match=r"transactional\.id") as caught:
                getattr(plain, name)()
            assert caught.value.args[0] == KafkaError._NOT_CONFIGURED  # noqa: SLF001 librdkafka's name
    with Producer({"bootstrap.servers": "127.0.0.1:1", "transactional.id": "t"}) as producer:
        with pytest.raises(KafkaException) as caught:
            producer.commit_transaction()
        assert caught.value.args[0] == KafkaError._STATE  # noqa: SLF001 librdkafka's name
