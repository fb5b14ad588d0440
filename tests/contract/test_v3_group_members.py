"""Members that read for themselves, at the door: joins, heartbeats, ends, and bad input."""

from __future__ import annotations

from typing import Any

import orjson
import pytest

from broker.coordinator.group_messages import (
    CommitGroup,
    ConsumerSettings,
    EvictInstance,
    Heartbeat,
    JoinGroup,
    MemberPartition,
    Membership,
    OffsetReset,
)
from broker.coordinator.records import OFFSETS_TOPIC
from http_api.client import calls as client_calls
from http_api.client import groups
from raft_metadata.common.errors import ErrorCode, KafkaError
from raft_metadata.common.ids import GroupId, InstanceId, PartitionId, TopicId, TopicName
from raft_metadata.common.ids import TopicPartition as Place
from tests.support.fake_broker_apis import CLUSTER_ID
from tests.support.http_door import V3, V3_URL, Answer, Door

JSON = "application/json"
CONSUMERS = V3 + "/consumer-groups/pilots/consumers"
BEAT = CONSUMERS + "/one:heartbeat"
PILOTS, ONE, FLIGHTS = GroupId("pilots"), InstanceId("one"), TopicName("flights")
FOUND = Membership(
    instance=ONE,
    static_id="s1",
    member_epoch=4,
    group_epoch=3,
    assignor="uniform",
    heartbeat_interval_ms=5_000,
    session_timeout_ms=45_000,
    assignment=(
        MemberPartition(
            topic=FLIGHTS,
            topic_id=TopicId("f" * 22),
            partition=PartitionId(0),
            offset=7,
            is_committed=True,
        ),
    ),
    revoked=(Place(FLIGHTS, PartitionId(1)),),
)
SHAPE = {
    "kind": "KafkaConsumerMembership",
    "metadata": {
        "self": f"{V3_URL}/consumer-groups/pilots/consumers/one",
        "resource_name": f"crn:///kafka={CLUSTER_ID}/consumer-group=pilots/consumer=one",
    },
    "cluster_id": CLUSTER_ID,
    "consumer_group_id": "pilots",
    "consumer_id": "one",
    "instance_id": "s1",
    "member_epoch": 4,
    "group_epoch": 3,
    "assignor": "uniform",
    "heartbeat_interval_ms": 5_000,
    "session_timeout_ms": 45_000,
    "assignment": [
        {
            "topic_name": "flights",
            "topic_id": "f" * 22,
            "partition_id": 0,
            "offset": 7,
            "leader_epoch": None,
            "is_committed": True,
        }
    ],
    "revoked": [{"topic_name": "flights", "partition_id": 1}],
}


@pytest.fixture
def pilots(door: Door) -> Door:
    door.apis.group_answers[JoinGroup] = FOUND
    door.apis.group_answers[Heartbeat] = FOUND
    return door


async def post(door: Door, path: str, body: object) -> Answer:
    data = body if isinstance(body, bytes) else orjson.dumps(body)
    return await door.call("POST", path, data, {"Content-Type": JSON})


async def test_a_join_with_all_its_fields(pilots: Door) -> None:
    body = {
        "consumer_id": "one",
        "instance_id": "s1",
        "client_id": "etl",
        "rack": "r1",
        "topics": ["flights"],
        "assignor": "org.apache.kafka.clients.consumer.RangeAssignor",
        "auto_offset_reset": "earliest",
        "session_timeout_ms": 6_000,
        "rebalance_timeout_ms": 9_000,
    }
    assert (await post(pilots, CONSUMERS, body)).golden == (200, JSON, SHAPE)
    expected = JoinGroup(
        group=PILOTS,
        instance=ONE,
        settings=ConsumerSettings(
            auto_commit=False,
            auto_offset_reset=OffsetReset.EARLIEST,
            session_timeout_ms=6_000,
            rack="r1",
            static_id="s1",
            assignors=("range",),
        ),
        rebalance_timeout_ms=9_000,
        client_id="etl",
        topics=(FLIGHTS,),
    )
    assert pilots.apis.requests == [expected]


async def test_a_join_with_its_defaults(pilots: Door) -> None:
    await post(pilots, CONSUMERS, {"consumer_id": "one", "topic_pattern": "f.*"})
    settings = ConsumerSettings(auto_commit=False, session_timeout_ms=45_000)
    expected = JoinGroup(
        group=PILOTS,
        instance=ONE,
        settings=settings,
        rebalance_timeout_ms=300_000,
        pattern="f.*",
    )
    assert pilots.apis.requests == [expected]
    assert settings.auto_offset_reset is OffsetReset.LATEST


async def test_a_heartbeat(pilots: Door) -> None:
    body = {
        "member_epoch": 4,
        "owned": [{"topic_name": "flights", "partitions": [0, 1]}],
        "wait_ms": 900,
    }
    assert (await post(pilots, BEAT, body)).golden == (200, JSON, SHAPE)
    owned = (Place(FLIGHTS, PartitionId(0)), Place(FLIGHTS, PartitionId(1)))
    expected = Heartbeat(group=PILOTS, instance=ONE, member_epoch=4, owned=owned, wait_ms=900)
    assert pilots.apis.requests == [expected]
    await post(pilots, BEAT, {"member_epoch": 4, "owned": [], "topics": ["flights"]})
    assert pilots.apis.requests[1] == Heartbeat(
        group=PILOTS, instance=ONE, member_epoch=4, owned=(), topics=(FLIGHTS,)
    )


@pytest.mark.parametrize(
    ("path", "instance", "static_id", "keep_seat"),
    [
        ("/one", ONE, None, False),
        ("/one?keep_seat=true", ONE, None, True),
        ("?instance_id=s1", None, "s1", False),
        ("?instance_id=s1&keep_seat=true", None, "s1", True),
    ],
)
async def test_members_leave_and_are_evicted(
    door: Door, path: str, instance: InstanceId | None, static_id: str | None, keep_seat: bool
) -> None:
    assert (await door.call("DELETE", CONSUMERS + path)).golden == (204, JSON, None)
    expected = EvictInstance(
        group=PILOTS, instance=instance, static_id=static_id, keep_seat=keep_seat
    )
    assert door.apis.requests == [expected]


async def test_answers_name_the_coordinator(pilots: Door) -> None:
    join = {"consumer_id": "one", "topics": ["flights"]}
    beat = {"member_epoch": 4, "owned": []}
    assert "quorumlog-coordinator-url" not in (await post(pilots, CONSUMERS, join)).headers
    pilots.apis.add_topic(OFFSETS_TOPIC, 12)
    for answer in (
        await post(pilots, CONSUMERS, join),
        await post(pilots, BEAT, beat),
        await pilots.call("DELETE", CONSUMERS + "/one"),
        await pilots.call(
            "PATCH", V3 + "/consumer-groups/pilots/offsets", b'{"data":[]}', {"Content-Type": JSON}
        ),
    ):
        assert answer.headers["quorumlog-coordinator-url"].startswith("http://"), answer
    assert isinstance(pilots.apis.requests[-1], CommitGroup)


@pytest.mark.parametrize(
    ("code", "status", "error_code"),
    [
        (ErrorCode.FENCED_MEMBER_EPOCH, 409, 40903),
        (ErrorCode.ILLEGAL_STATE, 409, 40903),
        (ErrorCode.UNKNOWN_MEMBER_ID, 404, 40403),
        (ErrorCode.FENCED_INSTANCE_ID, 409, 40952),
        (ErrorCode.GROUP_MAX_SIZE_REACHED, 400, 40002),
    ],
)
async def test_refusals(door: Door, code: ErrorCode, status: int, error_code: int) -> None:
    door.apis.group_answers[Heartbeat] = KafkaError(code, "why")
    answer = await post(door, BEAT, {"member_epoch": 4, "owned": []})
    assert answer.golden == (status, JSON, {"error_code": error_code, "message": "why"})


async def test_the_name_of_another_member_is_refused(door: Door) -> None:
    door.apis.group_answers[JoinGroup] = KafkaError(ErrorCode.INSTANCE_ALREADY_EXISTS, "why")
    answer = await post(door, CONSUMERS, JOIN)
    assert answer.golden == (409, JSON, {"error_code": 40902, "message": "why"})


JOIN = {"consumer_id": "one", "topics": ["flights"]}
ROW = {"topic_name": "flights", "partitions": [0]}
GOOD_BEAT = {"member_epoch": 4, "owned": [ROW]}


@pytest.mark.parametrize(
    "body",
    [
        *(b"", b"[]", b"{", {}, {"consumer_id": "one"}, {"topics": ["flights"]}),
        *({**JOIN, "consumer_id": 1}, {**JOIN, "consumer_id": None}, {**JOIN, "topics": "flights"}),
        *({**JOIN, "topics": [1]}, {**JOIN, "topic_pattern": "f.*"}, {**JOIN, "more": 1}),
        *({**JOIN, "session_timeout_ms": "1"}, {**JOIN, "rebalance_timeout_ms": 1.5}),
        *({**JOIN, "session_timeout_ms": True}, {**JOIN, "assignor": "best"}),
        *(
            {**JOIN, "auto_offset_reset": "middle"},
            {**JOIN, "rack": 1},
            {**JOIN, "rack": "r" * 250},
        ),
        *(
            {**JOIN, field: "a\x00b"}
            for field in ("consumer_id", "instance_id", "client_id", "rack")
        ),
        *(
            {**JOIN, field: "a\r\nb"}
            for field in ("consumer_id", "instance_id", "client_id", "rack")
        ),
        b'{"consumer_id":"one","topics":["flights"],"session_timeout_ms":1e400}',
        b'{"consumer_id":"\\ud800","topics":["flights"]}',
    ],
)
async def test_a_join_that_makes_no_sense_is_400(door: Door, body: object) -> None:
    answer = await post(door, CONSUMERS, body)
    assert answer.status == 400, answer
    assert answer.json["message"]
    assert door.apis.requests == []


@pytest.mark.parametrize(
    "body",
    [
        *({}, {"member_epoch": 4}, {"owned": []}, {**GOOD_BEAT, "member_epoch": "4"}),
        *({**GOOD_BEAT, "member_epoch": 4.0}, b'{"member_epoch":99999999999999999999,"owned":[]}'),
        *({**GOOD_BEAT, "owned": {}}, {**GOOD_BEAT, "owned": [1]}, {**GOOD_BEAT, "owned": [{}]}),
        *(
            {**GOOD_BEAT, "owned": [{**ROW, "partitions": [value]}]}
            for value in (-1, "0", True, None)
        ),
        *({**GOOD_BEAT, "owned": [{**ROW, "topic_name": name}]} for name in (1, "a b", "a\r\nb")),
        *({**GOOD_BEAT, "wait_ms": "9"}, {**GOOD_BEAT, "consumer_id": "one"}),
    ],
)
async def test_a_heartbeat_that_makes_no_sense_is_400(door: Door, body: object) -> None:
    answer = await post(door, BEAT, body)
    assert answer.status == 400, answer
    assert door.apis.requests == []


async def test_rows_and_types_have_limits(pilots: Door) -> None:
    for rows in (
        [{**ROW, "partitions": list(range(10_001))}],
        [{**ROW, "partitions": []}] * 10_001,
    ):
        answer = await post(pilots, BEAT, {"member_epoch": 4, "owned": rows})
        assert (answer.status, answer.json["error_code"]) == (413, 413)
        assert "10000" in answer.json["message"]
    most = {"member_epoch": 4, "owned": [{**ROW, "partitions": list(range(10_000))}]}
    assert (await post(pilots, BEAT, most)).status == 200
    typed = await pilots.call("POST", BEAT, b"{}", {"Content-Type": "text/plain"})
    assert typed.status == 415


@pytest.mark.parametrize("name", ["a%00b", "a%0D%0Ab", "%2E%2E", "n" * 250])
async def test_names_in_paths_are_checked(door: Door, name: str) -> None:
    body: dict[str, Any] = {"member_epoch": 4, "owned": []}
    assert 400 <= (await post(door, f"{CONSUMERS}/{name}:heartbeat", body)).status < 500
    assert 400 <= (await door.call("DELETE", f"{CONSUMERS}/{name}")).status < 500
    assert door.apis.requests == []


async def test_the_clients_calls_of_a_member(pilots: Door) -> None:
    settings = groups.MemberSettings(
        topics=("flights",), instance_id="s1", session_timeout_ms=6_000
    )
    join = groups.join(CLUSTER_ID, "pilots", "one", settings)
    beat = groups.heartbeat(
        CLUSTER_ID,
        "pilots",
        "one",
        member_epoch=4,
        owned=[("flights", 0), ("flights", 1)],
        wait_ms=9,
    )
    for call in (join, beat):
        answer = await sent(pilots, call)
        found = call.parse(client_calls.Answer(status=200, body=answer.body))
        assert (found.member_epoch, found.revoked) == (4, (("flights", 1),))
        assert found.assignment[0].offset == 7
        assert call.request.may_repeat
    asked = pilots.apis.requests
    assert isinstance(asked[0], JoinGroup)
    assert (asked[0].settings.static_id, asked[0].settings.session_timeout_ms) == ("s1", 6_000)
    assert isinstance(asked[1], Heartbeat)
    assert ([one.partition for one in asked[1].owned], asked[1].wait_ms) == ([0, 1], 9)
    for end in (
        groups.leave(CLUSTER_ID, "pilots", "one", keep_seat=True),
        groups.evict(CLUSTER_ID, "pilots", "one"),
        groups.evict_static(CLUSTER_ID, "pilots", "s 1"),
    ):
        assert (await sent(pilots, end)).status == 204
        assert not end.request.may_repeat
    assert pilots.apis.requests[2:] == [
        EvictInstance(group=PILOTS, instance=ONE, keep_seat=True),
        EvictInstance(group=PILOTS, instance=ONE),
        EvictInstance(group=PILOTS, static_id="s 1"),
    ]


async def sent(door: Door, call: client_calls.Call[Any]) -> Answer:
    request = call.request
    return await door.call(request.method, request.path, request.body or b"", request.headers)
