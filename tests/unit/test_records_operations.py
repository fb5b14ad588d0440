"""Records of feature level 2 and operators' commands: through JSON, through the image, and back."""

from __future__ import annotations

from typing import Any

import orjson
import pytest

from raft_metadata.common.ids import (
    NO_LEADER,
    BrokerEpoch,
    BrokerId,
    ControllerEpoch,
    DirectoryId,
    IncarnationId,
    LeaderEpoch,
    MetadataOffset,
    PartitionEpoch,
    PartitionId,
    TopicId,
    TopicName,
)
from raft_metadata.image.metadata_delta import MetadataDelta, delta_between
from raft_metadata.image.metadata_image import MetadataImage
from raft_metadata.image.snapshot import image_from_records, image_records
from raft_metadata.records.commands import (
    COMMANDS,
    AddPartitions,
    AllocateProducerIds,
    AlterAcls,
    AlterAnswer,
    AlterClientQuotas,
    AlterConfigs,
    AlterPartitionAnswer,
    AlterReassignments,
    AlterUsers,
    BrokerRegistered,
    Command,
    ConfigChange,
    DrainBroker,
    Election,
    ElectionResult,
    ElectLeaders,
    LeadersElected,
    MetadataUpgraded,
    PartitionPlace,
    PartitionsAdded,
    PartitionsAltered,
    ProducerIdBlock,
    Reassignment,
    TopicCreated,
    TopicDeleted,
    UnregisterBroker,
    UpgradeMetadata,
    UserScram,
)
from raft_metadata.records.records import (
    AclRecord,
    BrokerDrainRecord,
    ClientQuotaRecord,
    ConfigRecord,
    DrainScope,
    FeatureLevelRecord,
    MetadataRecord,
    PartitionChangeRecord,
    PartitionRecord,
    PartitionsCountRecord,
    ProducerIdsRecord,
    QuotaEntity,
    QuotaEntityType,
    RegisterBrokerRecord,
    RemoveAclRecord,
    RemoveUserScramRecord,
    ResourceType,
    TopicRecord,
    UnregisterBrokerRecord,
    UserScramRecord,
)
from raft_metadata.records.serde import decode_record, encode_record, from_json, to_json
from tests.support.peer_controllers import ALTERS, CREATE, DELETE, REGISTER

T = TopicId("t" * 22)
D = DirectoryId("d")
ONE, TWO, THREE = BrokerId(1), BrokerId(2), BrokerId(3)
ALICE = (QuotaEntity(QuotaEntityType.USER, "alice"),)
EVERY_CLIENT = (QuotaEntity(QuotaEntityType.CLIENT_ID, None),)
RULE = AclRecord(
    acl_id="a" * 22,
    resource_type="topic",
    resource_name="orders",
    pattern_type="literal",
    principal="User:alice",
    host="*",
    operation="read",
    permission="allow",
)
SCRAM = UserScramRecord(
    name="alice",
    mechanism="SCRAM-SHA-256",
    salt="c2FsdA==",
    stored_key="a2V5",
    server_key="c2tleQ==",
    iterations=8192,
)


def register(broker_id: BrokerId, epoch: int) -> RegisterBrokerRecord:
    return RegisterBrokerRecord(
        broker_id=broker_id,
        broker_epoch=BrokerEpoch(epoch),
        incarnation_id=IncarnationId(f"i{epoch}"),
        directory_id=D,
        http="h:1",
        peer="h:2",
        feature_level_max=1,
        min_insync_replicas=1,
    )


def change(**fields: object) -> PartitionChangeRecord:
    plain: dict[str, object] = {
        "topic_id": T,
        "partition": PartitionId(0),
        "directories": (D, D),
        "isr": (ONE, TWO),
        "elr": (),
        "leader": ONE,
        "leader_epoch": LeaderEpoch(0),
        "partition_epoch": PartitionEpoch(1),
    }
    return PartitionChangeRecord(**(plain | fields))  # type: ignore[arg-type]  # by name


HISTORY: tuple[MetadataRecord, ...] = (
    FeatureLevelRecord(level=1),
    register(ONE, 1),
    register(TWO, 2),
    register(THREE, 3),
    TopicRecord(name=TopicName("orders"), topic_id=T, partitions_count=1),
    PartitionRecord(
        topic_id=T,
        partition=PartitionId(0),
        replicas=(ONE, TWO),
        directories=(D, D),
        isr=(ONE, TWO),
        elr=(),
        leader=ONE,
        leader_epoch=LeaderEpoch(0),
        partition_epoch=PartitionEpoch(0),
    ),
    PartitionsCountRecord(topic_id=T, partitions_count=2),
    change(replicas=(TWO, THREE, ONE), directories=(D, D, D), adding=(THREE,), removing=(ONE,)),
    BrokerDrainRecord(broker_id=ONE, scope=DrainScope.REPLICAS),
    ProducerIdsRecord(broker_id=ONE, broker_epoch=BrokerEpoch(1), next_producer_id=1000),
    ClientQuotaRecord(entity=ALICE, key="producer_byte_rate", value=1.5),
    ClientQuotaRecord(entity=ALICE, key="consumer_byte_rate", value=2.0),
    ClientQuotaRecord(entity=EVERY_CLIENT, key="request_percentage", value=50.0),
    ClientQuotaRecord(entity=ALICE, key="producer_byte_rate", value=None),
    RULE,
    SCRAM,
)
FURTHER: tuple[MetadataRecord, ...] = (
    UnregisterBrokerRecord(broker_id=TWO, broker_epoch=BrokerEpoch(2)),
    RemoveAclRecord(acl_id=RULE.acl_id),
    RemoveUserScramRecord(name="alice", mechanism="SCRAM-SHA-256"),
    change(
        isr=(),
        leader=NO_LEADER,
        leader_epoch=LeaderEpoch(1),
        last_known_leader=ONE,
        last_known_elr=(ONE, TWO),
        unclean=True,
    ),
)

TRIED: tuple[Command[Any], ...] = (
    REGISTER,
    ALTERS,
    CREATE,
    DELETE,
    AddPartitions(topic=TopicName("t"), partitions_count=3, replicas_assignments={2: (ONE,)}),
    AlterConfigs(
        changes=(
            ConfigChange(
                resource_type=ResourceType.CLUSTER, resource_name="", name="flush", value=None
            ),
        ),
        validate_only=True,
    ),
    AlterReassignments(
        changes=(Reassignment(topic=TopicName("t"), partition=PartitionId(0), replicas=None),)
    ),
    ElectLeaders(
        election=Election.UNCLEAN,
        partitions=(PartitionPlace(topic=TopicName("t"), partition=PartitionId(0)),),
    ),
    DrainBroker(broker_id=ONE, scope=DrainScope.LEADERS),
    UnregisterBroker(broker_id=ONE),
    AllocateProducerIds(broker_id=ONE, broker_epoch=BrokerEpoch(7)),
    AlterClientQuotas(entity=ALICE, changes={"producer_byte_rate": 1.5, "gone": None}),
    AlterAcls(add=(RULE,), remove=("b" * 22,)),
    AlterUsers(put=(SCRAM,), remove=(UserScram(name="bob", mechanism="SCRAM-SHA-512"),)),
    UpgradeMetadata(level=None),
)
ANSWERS: tuple[object, ...] = (
    BrokerRegistered(broker_epoch=BrokerEpoch(7)),
    PartitionsAltered(answers=(AlterPartitionAnswer(error=3, message="no"),)),
    TopicCreated(
        topic_id=T, partitions_count=1, replication_factor=1, next_offset=MetadataOffset(3)
    ),
    TopicDeleted(topic_id=T, next_offset=MetadataOffset(4)),
    AlterAnswer(next_offset=MetadataOffset(3)),
    PartitionsAdded(topic_id=T, partitions_count=3, next_offset=MetadataOffset(9)),
    LeadersElected(
        results=(ElectionResult(topic=TopicName("t"), partition=PartitionId(0), error=80),),
        next_offset=MetadataOffset(9),
    ),
    ProducerIdBlock(first_producer_id=0, count=10),
    MetadataUpgraded(level_before=1, level=2, next_offset=MetadataOffset(4)),
)


def folded(
    records: tuple[MetadataRecord, ...], before: MetadataImage | None = None
) -> MetadataImage:
    image = before or MetadataImage()
    delta = MetadataDelta(image)
    delta.replay_all(records, image.next_offset)
    return delta.apply(MetadataOffset(image.next_offset + len(records)), ControllerEpoch(1))


@pytest.mark.parametrize("record", HISTORY + FURTHER, ids=lambda record: type(record).__name__)
def test_a_record_survives_json(record: MetadataRecord) -> None:
    assert decode_record(orjson.loads(encode_record(record))) == record


@pytest.mark.parametrize("command", TRIED, ids=lambda command: type(command).__name__)
def test_a_command_survives_json(command: Command[Any]) -> None:
    assert from_json(to_json(command), type(command)) == command


@pytest.mark.parametrize("answer", ANSWERS, ids=lambda answer: type(answer).__name__)
def test_an_answer_survives_json(answer: object) -> None:
    assert from_json(to_json(answer), type(answer)) == answer


def test_every_command_of_the_table_was_tried() -> None:
    assert {type(command) for command in TRIED} == {row.command for row in COMMANDS.values()}
    assert {row.answer for row in COMMANDS.values()} == {type(answer) for answer in ANSWERS}


def test_a_field_that_is_rarely_set_costs_no_bytes() -> None:
    assert b"adding" not in encode_record(change())
    assert b'"adding":[3]' in encode_record(change(adding=(THREE,)))


def test_the_image_holds_what_the_history_says() -> None:
    image = folded(HISTORY)
    partition = image.topics[T].partitions[0]
    assert (partition.replicas, partition.adding) == ((TWO, THREE, ONE), (THREE,))
    assert partition.is_reassigning
    assert not image.topics[T].is_complete
    assert image.brokers[ONE].drain is DrainScope.REPLICAS
    assert image.next_producer_id == 1000
    assert image.quotas[ALICE] == {"consumer_byte_rate": 2.0}
    assert image.acls == {RULE.acl_id: RULE}
    assert image.users == {("alice", "SCRAM-SHA-256"): SCRAM}
    after = folded((*FURTHER[:3], change(partition_epoch=PartitionEpoch(2))), image)
    assert TWO not in after.brokers
    assert (dict(after.acls), dict(after.users)) == ({}, {})
    assert not after.topics[T].partitions[0].is_reassigning


def test_a_drain_outlives_the_brokers_restart_and_ends_with_its_registration() -> None:
    image = folded((register(ONE, 20),), folded(HISTORY))
    assert image.brokers[ONE].drain is DrainScope.REPLICAS
    gone = (
        ConfigRecord(
            resource_type=ResourceType.BROKER, resource_name="1", name="flush", value="os"
        ),
        UnregisterBrokerRecord(broker_id=ONE, broker_epoch=BrokerEpoch(20)),
    )
    image = folded(gone, image)
    assert image.broker_configs(ONE) == {}
    assert folded((register(ONE, 30),), image).brokers[ONE].drain is DrainScope.NONE


def test_a_snapshot_says_it_all() -> None:
    """Mutant M30 of the design: a snapshot that forgets what is under way."""
    for image in (folded(HISTORY), folded(FURTHER[:3], folded(HISTORY)), _leaderless()):
        again = image_from_records(image_records(image), image.next_offset, image.epoch)
        assert again == image


def _leaderless() -> MetadataImage:
    plain = (*HISTORY[:6], *FURTHER[3:])
    image = folded(plain)
    assert image.topics[T].partitions[0].last_known_elr == (ONE, TWO)
    return image


def test_the_epoch_of_an_unclean_election_is_remembered() -> None:
    image = folded((*HISTORY[:6], change(unclean=True, leader_epoch=LeaderEpoch(1))))
    image = folded((change(leader_epoch=LeaderEpoch(2), partition_epoch=PartitionEpoch(2)),), image)
    partition = image.topics[T].partitions[0]
    assert (partition.leader_epoch, partition.unclean_epoch) == (2, 1)
    records = tuple(image_records(image))
    assert image_from_records(records, image.next_offset, image.epoch) == image


def test_a_delta_between_images_leads_from_one_to_the_other() -> None:
    before, after = folded(HISTORY), folded(FURTHER[:3], folded(HISTORY))
    for start, end in ((before, after), (after, before), (MetadataImage(), after)):
        delta = delta_between(start, end)
        assert not delta.is_empty
        assert delta.apply(end.next_offset, end.epoch) == end
    assert delta_between(after, after).is_empty
