"""Brokers unregistered; client quotas, access rules and users stored: what may be said of each."""

from __future__ import annotations

import base64
from dataclasses import replace

import pytest

from raft_metadata.common.errors import ErrorCode, KafkaError
from raft_metadata.common.ids import UNKNOWN_BROKER_EPOCH, BrokerId
from raft_metadata.controller import security_control
from raft_metadata.image.snapshot import image_from_records, image_records
from raft_metadata.records.commands import (
    AlterAcls,
    AlterClientQuotas,
    AlterConfigs,
    AlterUsers,
    ConfigChange,
    UnregisterBroker,
    UserScram,
)
from raft_metadata.records.records import (
    AclRecord,
    DrainScope,
    QuotaEntity,
    QuotaEntityType,
    ResourceType,
    UserScramRecord,
)
from tests.support.metadata_world import BROKERS, World, config, registration

B1, B2, B3 = BROKERS
USER, CLIENT, IP = QuotaEntityType.USER, QuotaEntityType.CLIENT_ID, QuotaEntityType.IP


@pytest.fixture
def world() -> World:
    world = World(config=config(replicas=2, min_isr=1))
    world.decide_all()
    world.join(*BROKERS)
    return world


def refusal(world: World, command: object) -> KafkaError:
    before = world.image
    with pytest.raises(KafkaError) as caught:
        world.ask(command)  # type: ignore[arg-type]
    assert world.image is before
    return caught.value


def took(world: World, command: object) -> int:
    """How many records a command took."""
    before = world.image.next_offset
    answer = world.ask(command)  # type: ignore[arg-type]
    assert answer.next_offset == world.image.next_offset
    return world.image.next_offset - before


# ---- unregistering


def test_a_broker_that_is_gone_and_empty_is_unregistered_with_its_configs(world: World) -> None:
    change = ConfigChange(
        resource_type=ResourceType.BROKER, resource_name="3", name="segment.bytes", value="4096"
    )
    world.ask(AlterConfigs(changes=(change,)))
    world.kill(B3)
    assert took(world, UnregisterBroker(broker_id=B3)) == 1
    world.decide_all()
    assert B3 not in world.image.brokers
    assert not world.image.broker_configs(B3)
    assert refusal(world, UnregisterBroker(broker_id=B3)).code is ErrorCode.BROKER_ID_NOT_REGISTERED


def test_a_broker_that_holds_replicas_is_not_unregistered(world: World) -> None:
    world.create(assignments=dict.fromkeys(range(8), (2, 3)))
    world.kill(B3)
    error = refusal(world, UnregisterBroker(broker_id=B3))
    assert error.code is ErrorCode.POLICY_VIOLATION
    assert "holds 8 replicas (t-0, t-1, t-2, t-3, t-4, …)" in error.message


def test_replicas_on_their_way_in_or_out_count(world: World) -> None:
    world.create(assignments={0: (1, 2)})
    world.reassign((1, 3))
    partition = world.partition()
    assert (partition.adding, partition.removing) == ((B3,), (B2,))
    for broker in (B2, B3):
        assert (
            "holds 1 replicas (t-0)" in refusal(world, UnregisterBroker(broker_id=broker)).message
        )


def test_a_broker_that_lives_is_not_unregistered(world: World) -> None:
    error = refusal(world, UnregisterBroker(broker_id=B3))
    assert error.code is ErrorCode.POLICY_VIOLATION
    assert "is unfenced, not fenced: stop it first" in error.message


def test_a_drained_broker_can_be_unregistered_and_its_id_register_anew(world: World) -> None:
    world.drain(B3, DrainScope.REPLICAS)
    world.kill(B3)
    before = world.image.brokers[B3].broker_epoch
    world.ask(UnregisterBroker(broker_id=B3))
    # what it saw of its old registration is no more: compare-and-set on none (rule R6)
    with pytest.raises(KafkaError) as stale:
        world.register(registration(B3, life="b", last=before))
    assert stale.value.code is ErrorCode.STALE_BROKER_EPOCH
    world.register(registration(B3, life="b", last=UNKNOWN_BROKER_EPOCH))
    world.pass_time(200)
    assert world.image.brokers[B3].broker_epoch > before
    assert world.image.brokers[B3].drain is DrainScope.NONE


# ---- quotas


def quota(*entity: tuple[QuotaEntityType, str | None], **changes: float | None) -> object:
    return AlterClientQuotas(
        entity=tuple(QuotaEntity(*part) for part in entity), changes=dict(changes)
    )


def test_quotas_are_set_changed_and_taken_away(world: World) -> None:
    both = (CLIENT, "c"), (USER, None)
    assert took(world, quota(*both, producer_byte_rate=1e6, request_percentage=12.5)) == 2
    assert took(world, quota(*reversed(both), producer_byte_rate=1e6)) == 0, "order says nothing"
    assert took(world, quota(*both, producer_byte_rate=None, consumer_byte_rate=None)) == 1
    [(entity, values)] = world.image.quotas.items()
    assert [part.type for part in entity] == [CLIENT, USER]
    assert dict(values) == {"request_percentage": 12.5}
    assert took(world, quota((IP, "::1"), connection_creation_rate=10)) == 1
    assert took(world, quota(*both, request_percentage=None)) == 1
    assert len(world.image.quotas) == 1


@pytest.mark.parametrize(
    ("command", "said"),
    [
        (quota(producer_byte_rate=1), "not for nothing"),
        (quota((USER, "a"), (USER, "b"), producer_byte_rate=1), "not for user, user"),
        (quota((USER, "a"), (IP, "::1"), producer_byte_rate=1), "not for ip, user"),
        (quota((USER, ""), producer_byte_rate=1), "1 to 255 characters"),
        (quota((USER, "x" * 256), producer_byte_rate=1), "1 to 255 characters"),
        (quota((IP, "host"), connection_creation_rate=1), "'host' is not an IP address"),
        (quota((USER, "a"), connection_creation_rate=1), "unknown quota 'connection_creation"),
        (quota((IP, "::1"), producer_byte_rate=1), "expected connection_creation_rate"),
        (quota((USER, "a"), producer_byte_rate=0), "expected a whole number above 0"),
        (quota((USER, "a"), producer_byte_rate=1.5), "expected a whole number above 0"),
        (quota((USER, "a"), request_percentage=-1.0), "expected a number above 0"),
        (quota((USER, "a"), request_percentage=float("inf")), "expected a number above 0"),
        (quota((USER, "a"), request_percentage=float("nan")), "expected a number above 0"),
    ],
)
def test_quotas_are_checked(world: World, command: object, said: str) -> None:
    error = refusal(world, command)
    assert error.code is ErrorCode.INVALID_REQUEST
    assert said in error.message


def test_entities_with_quotas_have_a_limit(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(security_control, "QUOTA_ENTITIES_MAX", 1)
    world.ask(quota((USER, "a"), producer_byte_rate=1))  # type: ignore[arg-type]
    assert "at most 1" in refusal(world, quota((USER, "b"), producer_byte_rate=1)).message
    assert took(world, quota((USER, "a"), producer_byte_rate=2)) == 1


# ---- access rules

ACL = AclRecord(
    acl_id="A" * 22,
    resource_type="topic",
    resource_name="orders",
    pattern_type="prefixed",
    principal="User:alice",
    host="*",
    operation="read",
    permission="allow",
)


def test_access_rules_are_added_once_and_taken_away(world: World) -> None:
    assert took(world, AlterAcls(add=(ACL,))) == 1
    assert took(world, AlterAcls(add=(ACL,))) == 0
    assert took(world, AlterAcls(add=(replace(ACL, acl_id="B" * 22),))) == 0, "it says the same"
    other = replace(ACL, operation="write")
    assert "with other contents" in refusal(world, AlterAcls(add=(other,))).message
    assert took(world, AlterAcls(remove=(ACL.acl_id,), add=(other,))) == 2
    assert dict(world.image.acls) == {ACL.acl_id: other}
    assert took(world, AlterAcls(remove=(ACL.acl_id, ACL.acl_id))) == 1
    assert took(world, AlterAcls(remove=(ACL.acl_id,))) == 0


@pytest.mark.parametrize(
    ("field", "value", "said"),
    [
        ("resource_type", "TOPIC", "unknown resource type 'TOPIC'"),
        ("resource_type", "cluster", "operation on a cluster"),
        ("pattern_type", "match", "expected literal, prefixed"),
        ("permission", "any", "expected allow, deny"),
        ("operation", "create_tokens", "unknown operation on a topic"),
        ("operation", "any", "expected all, alter"),
        ("acl_id", "short", "22 characters"),
        ("resource_name", "", "1 to 249"),
        ("principal", "alice", "as User:alice"),
        ("host", "somewhere", "an IP address or *"),
    ],
)
def test_access_rules_are_checked(world: World, field: str, value: str, said: str) -> None:
    error = refusal(world, AlterAcls(add=(replace(ACL, **{field: value}),)))
    assert error.code is ErrorCode.INVALID_REQUEST
    assert said in error.message


def test_there_is_one_cluster_to_rule_over(world: World) -> None:
    rule = replace(ACL, resource_type="cluster", operation="cluster_action")
    assert "the only cluster is kafka-cluster" in refusal(world, AlterAcls(add=(rule,))).message
    rule = replace(rule, resource_name="kafka-cluster")
    assert took(world, AlterAcls(add=(rule,))) == 1


@pytest.mark.parametrize("length", [1, security_control.NAME_CHARS_MAX])
def test_a_resource_name_of_the_least_and_greatest_length_is_taken(
    world: World, length: int
) -> None:
    assert took(world, AlterAcls(add=(replace(ACL, resource_name="n" * length),))) == 1


@pytest.mark.parametrize(("count", "named"), [(5, "t-0, t-1, t-2, t-3, t-4)"), (6, "t-4, …)")])
def test_a_refusal_to_unregister_names_five_partitions(
    world: World, count: int, named: str
) -> None:
    world.create(assignments=dict.fromkeys(range(count), (1, 2)))
    message = refusal(world, UnregisterBroker(broker_id=B1)).message
    assert named in message
    assert f"broker 1 holds {count} replicas (t-0," in message


def test_access_rules_have_limits(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    many = ("x" * 22,) * (security_control.ACL_CHANGES_MAX + 1)
    assert refusal(world, AlterAcls(remove=many)).code is ErrorCode.INVALID_REQUEST
    monkeypatch.setattr(security_control, "ACLS_MAX", 0)
    assert refusal(world, AlterAcls(add=(ACL,))).code is ErrorCode.POLICY_VIOLATION


# ---- users


def base64_of(length: int) -> str:
    return base64.b64encode(b"k" * length).decode()


ALICE = UserScramRecord(
    name="alice",
    mechanism="SCRAM-SHA-256",
    salt=base64_of(16),
    stored_key=base64_of(32),
    server_key=base64_of(32),
    iterations=4096,
)


def test_users_passwords_are_put_replaced_and_removed(world: World) -> None:
    assert took(world, AlterUsers(put=(ALICE,))) == 1
    assert took(world, AlterUsers(put=(ALICE,))) == 0
    long = replace(
        ALICE, mechanism="SCRAM-SHA-512", stored_key=base64_of(64), server_key=base64_of(64)
    )
    assert took(world, AlterUsers(put=(replace(ALICE, iterations=8192), long))) == 2
    assert world.image.users["alice", "SCRAM-SHA-256"].iterations == 8192
    gone = UserScram(name="alice", mechanism="SCRAM-SHA-256")
    assert took(world, AlterUsers(remove=(gone,))) == 1
    assert set(world.image.users) == {("alice", "SCRAM-SHA-512")}
    assert "has no password" in refusal(world, AlterUsers(remove=(gone,))).message


@pytest.mark.parametrize(
    ("field", "value", "said"),
    [
        ("name", "", "printable"),
        ("name", "a\nb", "printable"),
        ("mechanism", "PLAIN", "expected SCRAM-SHA-256, SCRAM-SHA-512"),
        ("mechanism", "SCRAM-SHA-512", "the stored_key of SCRAM-SHA-512 has 64 bytes"),
        ("iterations", 4095, "expected 4096 to 16384"),
        ("iterations", 16385, "expected 4096 to 16384"),
        ("salt", "", "1 to 128 bytes"),
        ("salt", base64_of(129), "1 to 128 bytes"),
        ("salt", "secret!", "the salt is not base64"),
        ("server_key", "ß", "the server_key is not base64"),
        ("stored_key", base64_of(31), "the stored_key of SCRAM-SHA-256 has 32 bytes"),
    ],
)
def test_users_are_checked_and_no_secret_is_told(
    world: World, field: str, value: object, said: str
) -> None:
    error = refusal(world, AlterUsers(put=(replace(ALICE, **{field: value}),)))  # type: ignore[arg-type]
    assert error.code is ErrorCode.INVALID_REQUEST
    assert said in error.message
    assert "secret" not in error.message


def test_a_credential_is_named_once_in_a_command(world: World) -> None:
    twice = AlterUsers(put=(ALICE,), remove=(UserScram(name="alice", mechanism="SCRAM-SHA-256"),))
    assert "named twice" in refusal(world, twice).message
    many = (UserScram(name="x", mechanism="y"),) * (security_control.USER_CHANGES_MAX + 1)
    assert "at once" in refusal(world, AlterUsers(remove=many)).message


def test_a_snapshot_holds_quotas_access_rules_and_users(world: World) -> None:
    world.ask(quota((USER, None), producer_byte_rate=1))  # type: ignore[arg-type]
    world.ask(AlterAcls(add=(ACL,)))
    world.ask(AlterUsers(put=(ALICE,)))
    image = world.image
    assert image_from_records(image_records(image), image.next_offset, image.epoch) == image


def test_an_id_that_was_never_registered(world: World) -> None:
    command = UnregisterBroker(broker_id=BrokerId(99))
    assert refusal(world, command).code is ErrorCode.BROKER_ID_NOT_REGISTERED
