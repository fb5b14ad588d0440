"""Records, commands and answers as JSON."""

from __future__ import annotations

import orjson
import pytest

from raft_metadata.common.errors import ErrorCode, KafkaError
from raft_metadata.common.ids import (
    BrokerEpoch,
    BrokerId,
    ClusterId,
    ControllerEpoch,
    DirectoryId,
    IncarnationId,
    LeaderEpoch,
    MetadataOffset,
    NodeId,
    PartitionEpoch,
    PartitionId,
    TopicId,
    TopicName,
)
from raft_metadata.records.commands import (
    AlterPartition,
    BrokerHeartbeat,
    BrokerRegistered,
    CreateTopic,
    DeleteTopic,
    FetchMetadata,
    FetchMetadataAnswer,
    HeartbeatAnswer,
    IsrMember,
    MetadataBatch,
    MetadataSnapshot,
    PartitionAltered,
    RegisterBroker,
    TopicCreated,
    TopicDeleted,
)
from raft_metadata.records.partition_set import PartitionRange
from raft_metadata.records.records import (
    BrokerRegistrationChangeRecord,
    BrokerState,
    ConfigRecord,
    FeatureLevelRecord,
    MetadataRecord,
    PartitionChangeRecord,
    PartitionRecord,
    RegisterBrokerRecord,
    RemoveTopicRecord,
    ResourceType,
    TopicRecord,
)
from raft_metadata.records.serde import (
    UnreadableMetadataError,
    decode_batch,
    decode_record,
    encode_batch,
    encode_record,
    from_json,
    to_json,
)

T = TopicId("t" * 22)
D = DirectoryId("d")
RECORDS: tuple[MetadataRecord, ...] = (
    FeatureLevelRecord(level=1),
    RegisterBrokerRecord(
        broker_id=BrokerId(1),
        broker_epoch=BrokerEpoch(1),
        incarnation_id=IncarnationId("i"),
        directory_id=D,
        http="h:1",
        peer="h:2",
        rack="r",
        unclean_ranges=(PartitionRange(T, PartitionId(3), PartitionId(3)),),
        feature_level_max=1,
        min_insync_replicas=2,
    ),
    BrokerRegistrationChangeRecord(
        broker_id=BrokerId(1),
        broker_epoch=BrokerEpoch(1),
        state=BrokerState.CONTROLLED_SHUTDOWN,
        settled=True,
    ),
    TopicRecord(name=TopicName("t"), topic_id=T, partitions_count=1),
    PartitionRecord(
        topic_id=T,
        partition=PartitionId(0),
        replicas=(BrokerId(1), BrokerId(2)),
        directories=(D, DirectoryId("")),
        isr=(BrokerId(1),),
        elr=(BrokerId(2),),
        leader=BrokerId(1),
        leader_epoch=LeaderEpoch(0),
        partition_epoch=PartitionEpoch(0),
    ),
    PartitionChangeRecord(
        topic_id=T,
        partition=PartitionId(0),
        directories=(D, D),
        isr=(),
        elr=(BrokerId(1),),
        leader=BrokerId(-1),
        leader_epoch=LeaderEpoch(1),
        partition_epoch=PartitionEpoch(1),
    ),
    ConfigRecord(resource_type=ResourceType.TOPIC, resource_name=T, name="flush", value=None),
    RemoveTopicRecord(topic_id=T),
)

BATCH = MetadataBatch(base_offset=MetadataOffset(0), epoch=ControllerEpoch(7), records=RECORDS)

MESSAGES: tuple[object, ...] = (
    RegisterBroker(
        broker_id=BrokerId(1),
        cluster_id=ClusterId("c"),
        incarnation_id=IncarnationId("i"),
        directory_id=D,
        http="h:1",
        peer="h:2",
        unclean_ranges=(PartitionRange(T, PartitionId(0), PartitionId(0)),),
        feature_level_max=1,
        min_insync_replicas=2,
    ),
    BrokerRegistered(broker_epoch=BrokerEpoch(9)),
    BrokerHeartbeat(
        broker_id=BrokerId(1), broker_epoch=BrokerEpoch(9), metadata_offset=MetadataOffset(3)
    ),
    HeartbeatAnswer(
        is_active=True,
        state=BrokerState.FENCED,
        should_shut_down=False,
        committed_offset=MetadataOffset(3),
        shutdown_blocked_by="x",
    ),
    AlterPartition(
        broker_id=BrokerId(1),
        broker_epoch=BrokerEpoch(9),
        topic_id=T,
        partition=PartitionId(0),
        leader_epoch=LeaderEpoch(1),
        partition_epoch=PartitionEpoch(2),
        new_isr=(IsrMember(broker_id=BrokerId(1), broker_epoch=BrokerEpoch(9)),),
    ),
    PartitionAltered(
        leader_epoch=LeaderEpoch(1), partition_epoch=PartitionEpoch(3), isr=(BrokerId(1),)
    ),
    CreateTopic(
        name=TopicName("t"),
        topic_id=T,
        replicas_assignments={0: (BrokerId(1),), 1: (BrokerId(2),)},
        configs={"flush": "os", "segment.ms": None},
    ),
    TopicCreated(
        topic_id=T, partitions_count=1, replication_factor=1, next_offset=MetadataOffset(4)
    ),
    DeleteTopic(name=TopicName("t")),
    TopicDeleted(topic_id=T, next_offset=MetadataOffset(5)),
    FetchMetadata(cluster_id=ClusterId("c"), broker_id=BrokerId(1), from_offset=MetadataOffset(0)),
    BATCH,
    MetadataSnapshot(next_offset=MetadataOffset(8), epoch=ControllerEpoch(7), records=RECORDS),
    FetchMetadataAnswer(
        leader_id=NodeId(101),
        epoch=ControllerEpoch(7),
        leader_contact_age_ms=3,
        end_offset=MetadataOffset(8),
        batches=(BATCH, BATCH),
    ),
    FetchMetadataAnswer(
        leader_id=None,
        epoch=ControllerEpoch(7),
        leader_contact_age_ms=3,
        end_offset=MetadataOffset(8),
        snapshot=MetadataSnapshot(
            next_offset=MetadataOffset(8), epoch=ControllerEpoch(7), records=RECORDS
        ),
    ),
)


@pytest.mark.parametrize("record", RECORDS, ids=lambda record: type(record).__name__)
def test_a_record_survives_json(record: MetadataRecord) -> None:
    assert decode_record(orjson.loads(encode_record(record))) == record


@pytest.mark.parametrize("message", MESSAGES, ids=lambda message: type(message).__name__)
def test_a_command_or_answer_survives_json(message: object) -> None:
    assert from_json(to_json(message), type(message)) == message


def test_a_record_names_its_type_and_version() -> None:
    assert encode_record(RemoveTopicRecord(topic_id=T)) == (
        b'{"type":"remove_topic","v":0,"topic_id":"%s"}' % T.encode()
    )


def test_an_unknown_field_is_ignored() -> None:
    value = orjson.loads(encode_record(RECORDS[0])) | {"from_the_future": [1]}
    assert decode_record(value) == RECORDS[0]


@pytest.mark.parametrize(
    "value",
    [
        {"type": "from_the_future", "v": 0},
        {"type": "feature_level", "v": 1, "level": 1},
        {"type": "feature_level", "v": 0, "level": "high"},
        {"type": "feature_level", "v": 0},
        {},
        ["feature_level"],
        None,
    ],
)
def test_a_record_that_is_not_understood_is_never_skipped(value: object) -> None:
    with pytest.raises(UnreadableMetadataError):
        decode_record(value)


@pytest.mark.parametrize("payload", [b"", b"[]", b"{}", b"null", b'{"records":[]}', b"\xff"])
def test_bytes_that_are_no_batch_are_refused(payload: bytes) -> None:
    with pytest.raises(UnreadableMetadataError):
        decode_batch(payload)


@pytest.mark.parametrize("payload", [b"", b"[]", b"null", b'{"name":1}', b'{"name":"t"}'])
def test_a_malformed_command_is_refused(payload: bytes) -> None:
    with pytest.raises(KafkaError) as refused:
        from_json(payload, CreateTopic)
    assert refused.value.code is ErrorCode.INVALID_REQUEST


@pytest.mark.parametrize(
    "payload", [b"", b"[]", b"null", b"{}", b'{"leader_id":1,"epoch":1,"batches":[1]}']
)
def test_a_malformed_answer_is_refused(payload: bytes) -> None:
    with pytest.raises(KafkaError) as refused:
        from_json(payload, FetchMetadataAnswer)
    assert refused.value.code is ErrorCode.INVALID_REQUEST


def test_a_batch_is_encoded_once_for_everybody() -> None:
    payload = encode_batch(0, 7, RECORDS)
    batch = decode_batch(payload)
    assert batch == BATCH
    assert to_json(batch) is payload
    answer = FetchMetadataAnswer(
        leader_id=None,
        epoch=ControllerEpoch(7),
        leader_contact_age_ms=0,
        end_offset=MetadataOffset(8),
        batches=(batch,),
    )
    assert payload in to_json(answer)
