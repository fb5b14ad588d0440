"""v3's consumer groups at the door: Confluent's views, and offsets to read and to commit."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import orjson
import pytest

from broker.coordinator.group_messages import (
    BlockedPartition,
    CommitGroup,
    DeleteGroup,
    DeleteOffsets,
    DescribeGroup,
    EvictInstance,
    ForgottenRecord,
    GroupDescription,
    GroupOffset,
    GroupOffsetRow,
    GroupOffsets,
    GroupRepaired,
    GroupState,
    MemberDescription,
    RepairGroup,
    SkippedRecord,
    SkipRecords,
)
from raft_metadata.common.errors import ErrorCode, KafkaError
from raft_metadata.common.ids import (
    BrokerId,
    GroupId,
    InstanceId,
    PartitionId,
    TopicName,
    TopicPartition,
)
from tests.support.fake_broker_apis import CLUSTER_ID, NOW_MS
from tests.support.http_door import V3, V3_URL, Answer, Door

JSON = "application/json"
GROUPS = V3 + "/consumer-groups"
GROUP = GROUPS + "/pilots"
URL = V3_URL + "/consumer-groups"
CRN = f"crn:///kafka={CLUSTER_ID}"
FLIGHTS = TopicName("flights")


def places(*numbers: int) -> tuple[TopicPartition, ...]:
    return tuple(TopicPartition(FLIGHTS, PartitionId(number)) for number in numbers)


MEMBER = MemberDescription(
    instance=InstanceId("one"),
    client_id="etl",
    assignment=places(0),
    is_manual=False,
    member_epoch=3,
    topics=(FLIGHTS,),
)


def group(name: str = "pilots", *members: MemberDescription) -> GroupDescription:
    return GroupDescription(
        group=GroupId(name),
        state=GroupState.STABLE if members else GroupState.EMPTY,
        assignor="range",
        coordinator=BrokerId(2),
        group_epoch=3,
        members=members,
    )


def row(partition: int, offset: int, end: int | None, metadata: str = "") -> GroupOffsetRow:
    return GroupOffsetRow(FLIGHTS, PartitionId(partition), offset, metadata, end)


@pytest.fixture
def pilots(door: Door) -> Door:
    """A group with one member and offsets in three partitions, the end of one not known."""
    door.apis.group_answers[DescribeGroup] = group("pilots", MEMBER)
    door.apis.group_answers[GroupOffsets] = (
        *(row(0, 5, 7, "note"), row(1, 1, 11), row(2, 4, None)),
    )
    return door


def as_json(group_name: str = "pilots", *, state: str = "STABLE") -> dict[str, Any]:
    url = f"{URL}/{group_name}"
    return {
        "kind": "KafkaConsumerGroup",
        "metadata": {"self": url, "resource_name": f"{CRN}/consumer-group={group_name}"},
        "cluster_id": CLUSTER_ID,
        "consumer_group_id": group_name,
        "is_simple": state == "EMPTY",
        "is_mixed_consumer_group": False,
        "partition_assignor": "range",
        "state": state,
        "type": "CONSUMER",
        "coordinator": {"related": V3_URL + "/brokers/2"},
        "consumers": {"related": url + "/consumers"},
        "lag_summary": {"related": url + "/lag-summary"},
        "group_epoch": 3,
        "moved": [],
        "blocked": [],
    }


CONSUMER = {
    "kind": "KafkaConsumer",
    "metadata": {
        "self": URL + "/pilots/consumers/one",
        "resource_name": CRN + "/consumer-group=pilots/consumer=one",
    },
    "cluster_id": CLUSTER_ID,
    "consumer_group_id": "pilots",
    "consumer_id": "one",
    "instance_id": None,
    "client_id": "etl",
    "assignments": {"related": URL + "/pilots/consumers/one/assignments"},
    "member_epoch": 3,
    "is_manual": False,
}
ASSIGNMENT = {
    "kind": "KafkaConsumerAssignment",
    "metadata": {
        "self": URL + "/pilots/consumers/one/assignments/flights/partitions/0",
        "resource_name": (
            CRN + "/consumer-group=pilots/consumer=one/assignment=flights/partition=0"
        ),
    },
    "cluster_id": CLUSTER_ID,
    "consumer_group_id": "pilots",
    "consumer_id": "one",
    "topic_name": "flights",
    "partition_id": 0,
    "partition": {"related": V3_URL + "/topics/flights/partitions/0"},
    "lag": {"related": URL + "/pilots/lags/flights/partitions/0"},
}
LAG = {
    "kind": "KafkaConsumerLag",
    "metadata": {
        "self": URL + "/pilots/lags/flights/partitions/0",
        "resource_name": CRN + "/consumer-group=pilots/lag=flights/partition=0",
    },
    "cluster_id": CLUSTER_ID,
    "consumer_group_id": "pilots",
    "topic_name": "flights",
    "partition_id": 0,
    "consumer_id": "one",
    "instance_id": None,
    "client_id": "etl",
    "current_offset": 5,
    "log_end_offset": 7,
    "lag": 2,
    "is_committed": True,
    "leader_epoch": None,
    "blocked_offset": None,
}


def collection(kind: str, path: str, *data: dict[str, Any]) -> dict[str, Any]:
    return {"kind": kind, "metadata": {"self": path, "next": None}, "data": list(data)}


async def patch(door: Door, body: object, content_type: str | None = JSON) -> Answer:
    headers = {} if content_type is None else {"Content-Type": content_type}
    data = body if isinstance(body, bytes) else orjson.dumps(body)
    return await door.call("PATCH", GROUP + "/offsets", data, headers)


async def test_all_groups(door: Door) -> None:
    assert (await door.get(GROUPS)).json == collection("KafkaConsumerGroupList", URL)
    door.apis.groups = [group("idle"), group("pilots", MEMBER)]
    expected = collection(
        "KafkaConsumerGroupList", URL, as_json("idle", state="EMPTY"), as_json("pilots")
    )
    assert (await door.get(GROUPS)).golden == (200, JSON, expected)


async def test_a_group_names_its_coordinator(pilots: Door) -> None:
    assert (await pilots.get(GROUP)).golden == (200, JSON, as_json())


async def test_the_consumers_of_a_group(pilots: Door) -> None:
    expected = collection("KafkaConsumerList", URL + "/pilots/consumers", CONSUMER)
    assert (await pilots.get(GROUP + "/consumers")).golden == (200, JSON, expected)
    assert (await pilots.get(GROUP + "/consumers/one")).golden == (200, JSON, CONSUMER)


async def test_the_assignments_of_a_consumer(pilots: Door) -> None:
    path = "/consumers/one/assignments"
    expected = collection("KafkaConsumerAssignmentList", f"{URL}/pilots{path}", ASSIGNMENT)
    assert (await pilots.get(GROUP + path)).golden == (200, JSON, expected)
    one = await pilots.get(f"{GROUP}{path}/flights/partitions/0")
    assert one.golden == (200, JSON, ASSIGNMENT)


async def test_the_lags_of_a_group(pilots: Door) -> None:
    rows = (await pilots.get(GROUP + "/lags")).json
    assert rows["kind"] == "KafkaConsumerLagList"
    assert rows["data"][0] == LAG
    assert [item["lag"] for item in rows["data"]] == [2, 10, None]
    assert [item["consumer_id"] for item in rows["data"]] == ["one", "", ""]
    assert (await pilots.get(GROUP + "/lags/flights/partitions/0")).golden == (200, JSON, LAG)


async def test_the_lag_summary_of_a_group(pilots: Door) -> None:
    path = "/lag-summary"
    assert (await pilots.get(GROUP + path)).json == {
        "kind": "KafkaConsumerGroupLagSummary",
        "metadata": {
            "self": f"{URL}/pilots{path}",
            "resource_name": f"{CRN}/consumer-group=pilots{path}",
        },
        "cluster_id": CLUSTER_ID,
        "consumer_group_id": "pilots",
        "max_lag_consumer_id": "",
        "max_lag_instance_id": None,
        "max_lag_client_id": "",
        "max_lag_topic_name": "flights",
        "max_lag_partition_id": 1,
        "max_lag": 10,
        "total_lag": None,  # the end of one partition is not known
        "max_lag_consumer": None,
        "max_lag_partition": {"related": V3_URL + "/topics/flights/partitions/1"},
    }
    pilots.apis.group_answers[GroupOffsets] = (row(0, 5, 7),)
    found = (await pilots.get(GROUP + path)).json
    assert found["max_lag_consumer"] == {"related": URL + "/pilots/consumers/one"}
    assert (found["max_lag"], found["total_lag"]) == (2, 2)
    pilots.apis.group_answers[GroupOffsets] = ()
    found = (await pilots.get(GROUP + path)).json
    assert (found["max_lag"], found["total_lag"], found["max_lag_partition"]) == (0, 0, None)


async def test_committed_offsets_are_the_next_to_read(pilots: Door) -> None:
    answer = await pilots.get(GROUP + "/offsets")
    rows = [
        {
            "topic_name": "flights",
            "partition_id": number,
            "offset": offset,
            "metadata": m,
            "lag": lag,
            "leader_epoch": None,
        }
        for number, offset, m, lag in ((0, 5, "note", 2), (1, 1, "", 10), (2, 4, "", None))
    ]
    expected = collection("KafkaConsumerGroupOffsetList", URL + "/pilots/offsets", *rows)
    assert answer.golden == (200, JSON, expected)


async def test_commit_without_an_instance(door: Door) -> None:
    rows = [
        {"topic_name": "flights", "partition_id": 0, "offset": 7, "metadata": "m"},
        {"topic_name": "flights", "partition_id": 1, "offset": 0},
        {"topic_name": "flights", "partition_id": 2, "offset": 9, "leader_epoch": 6},
    ]
    assert (await patch(door, {"data": rows})).golden == (204, JSON, None)
    offsets = (
        GroupOffset(FLIGHTS, PartitionId(0), 7, "m"),
        GroupOffset(FLIGHTS, PartitionId(1), 0),
        GroupOffset(FLIGHTS, PartitionId(2), 9, leader_epoch=6),
    )
    assert door.apis.requests == [CommitGroup(group=GroupId("pilots"), offsets=offsets)]
    await patch(door, {"data": [], "member_id": "one", "member_epoch": 3})
    assert door.apis.requests[1] == CommitGroup(
        group=GroupId("pilots"), offsets=(), member_id=InstanceId("one"), member_epoch=3
    )


async def test_a_commit_past_live_members_is_40903(door: Door) -> None:
    text = "group pilots has live members: member_id and member_epoch are required"
    door.apis.group_answers[CommitGroup] = KafkaError(ErrorCode.FENCED_MEMBER_EPOCH, text)
    answer = await patch(door, {"data": []})
    assert answer.golden == (409, JSON, {"error_code": 40903, "message": text})


GOOD = {"topic_name": "flights", "partition_id": 0, "offset": 7}


@pytest.mark.parametrize(
    "body",
    [
        *({}, {"data": {}}, {"data": [1]}, {"data": [], "more": 1}, b"[]", b"{"),
        *({"data": [{**GOOD, "offset": -1}]}, {"data": [{**GOOD, "offset": "7"}]}),
        *({"data": [{**GOOD, "topic_name": None}]}, {"data": [{**GOOD, "partition_id": True}]}),
        *({"data": [{**GOOD, "metadata": 1}]}, {"data": [], "member_id": 1}),
        {"data": [], "member_epoch": "3"},
    ],
)
async def test_a_commit_that_makes_no_sense_is_400(door: Door, body: object) -> None:
    answer = await patch(door, body)
    assert (answer.status, answer.json["error_code"]) == (400, 400)
    assert door.apis.requests == []


async def test_limits_and_types_of_a_commit(door: Door) -> None:
    assert (await patch(door, {"data": [GOOD] * 10_001})).json["error_code"] == 413
    assert (await patch(door, {"data": [GOOD]}, None)).json["error_code"] == 415
    unfit = await patch(door, {"data": [{**GOOD, "topic_name": "a b"}]})
    assert unfit.json["error_code"] == 40002


async def test_unknown_groups_members_and_offsets_are_not_found(pilots: Door) -> None:
    door = pilots
    for path, code in (
        ("/consumers/two", 404),
        ("/consumers/two/assignments", 404),
        ("/consumers/one/assignments/flights/partitions/1", 404),
        ("/lags/flights/partitions/9", 40403),
        ("/lags/flights/partitions/x", 404),
        ("/nothing", 404),
    ):
        answer = await door.get(GROUP + path)
        assert (answer.status, answer.json["error_code"]) == (404, code), path
    door.apis.group_answers[DescribeGroup] = KafkaError(ErrorCode.GROUP_ID_NOT_FOUND)
    expected = {"error_code": 40405, "message": "Consumer group pilots cannot be found."}
    for path in ("", "/consumers", "/consumers/one", "/lags", "/lag-summary"):
        assert (await door.get(GROUP + path)).golden == (404, JSON, expected)


async def test_names_cluster_and_accept_are_checked(door: Door) -> None:
    answer = await door.get(GROUPS + "/a%0Ab")
    text = "Invalid parameter 'group_name' got 'a␊b'"
    assert answer.golden == (400, JSON, {"error_code": 400, "message": text})
    assert (await door.get(GROUPS + "/a%20b")).json["error_code"] == 40002
    other = await door.get("/v3/clusters/other/consumer-groups")
    assert other.json == {"error_code": 404, "message": "Cluster other cannot be found."}
    assert (await door.get(GROUPS, "text/html")).status == 406


async def test_no_coordinator_is_503(door: Door) -> None:
    door.apis.group_answers[GroupOffsets] = KafkaError(ErrorCode.COORDINATOR_NOT_AVAILABLE)
    answer = await door.get(GROUP + "/offsets")
    assert (answer.status, answer.headers["retry-after"]) == (503, "1")
    assert answer.json["outcome"] == "not_written"


# removal


@pytest.mark.parametrize(
    ("path", "expected"),
    [
        ("", DeleteGroup(group=GroupId("pilots"))),
        ("/offsets", DeleteOffsets(group=GroupId("pilots"))),
        ("/offsets/flights", DeleteOffsets(group=GroupId("pilots"), topic=FLIGHTS)),
        (
            "/offsets/flights/partitions/1",
            DeleteOffsets(group=GroupId("pilots"), topic=FLIGHTS, partition=PartitionId(1)),
        ),
        (
            "/consumers/one",
            EvictInstance(group=GroupId("pilots"), instance=InstanceId("one")),
        ),
    ],
)
async def test_groups_offsets_and_members_are_removed(
    door: Door, path: str, expected: object
) -> None:
    removed = await door.call("DELETE", GROUP + path)
    assert removed.golden == (204, JSON, None)
    assert door.apis.requests == [expected]


async def test_a_static_member_is_evicted_by_its_id(pilots: Door) -> None:
    members = pilots.apis.group_answers[DescribeGroup].members
    pilots.apis.group_answers[DescribeGroup] = replace(
        pilots.apis.group_answers[DescribeGroup],
        members=(replace(members[0], static_id="s1"), *members[1:]),
    )
    assert (await pilots.get(GROUP + "/consumers")).json["data"][0]["instance_id"] == "s1"
    assert (await pilots.call("DELETE", GROUP + "/consumers?instance_id=s1")).status == 204
    assert pilots.apis.requests[-1] == EvictInstance(group=GroupId("pilots"), static_id="s1")
    pilots.apis.group_answers[EvictInstance] = KafkaError(ErrorCode.UNKNOWN_MEMBER_ID, "none")
    unknown = await pilots.call("DELETE", GROUP + "/consumers?instance_id=s2")
    assert (unknown.status, unknown.json["error_code"]) == (404, 40403)
    assert (await pilots.call("DELETE", GROUP + "/consumers")).status == 400


async def test_a_group_with_live_members_is_not_deleted(door: Door) -> None:
    text = "group pilots has live members: one; close or evict them first"
    door.apis.group_answers[DeleteGroup] = KafkaError(ErrorCode.ILLEGAL_STATE, text)
    refused = await door.call("DELETE", GROUP)
    assert refused.golden == (409, JSON, {"error_code": 40903, "message": text})
    door.apis.group_answers[DeleteGroup] = KafkaError(ErrorCode.GROUP_ID_NOT_FOUND)
    assert (await door.call("DELETE", GROUP)).json["error_code"] == 40405


async def test_a_partition_that_was_never_committed_has_its_start(pilots: Door) -> None:
    start = replace(row(1, 3, 7), is_committed=False)
    pilots.apis.group_answers[GroupOffsets] = (row(0, 5, 7), start)
    found = (await pilots.get(GROUP + "/lags")).json["data"][1]
    assert (found["is_committed"], found["current_offset"], found["lag"]) == (False, 3, 4)
    assert [one.with_starts for one in pilots.apis.requests if isinstance(one, GroupOffsets)] == [
        True
    ]
    assert (await pilots.get(GROUP + "/lag-summary")).json["total_lag"] == 6


# a group that stands still

SKIP = {"data": [{"topic_name": "flights", "partition_id": 0, "offset": 17}]}


async def test_a_group_and_its_lag_name_what_a_member_stands_at(pilots: Door) -> None:
    blocked = BlockedPartition(
        topic=FLIGHTS,
        partition=PartitionId(0),
        offset=17,
        instance=InstanceId("one"),
        message="value deserialization error for format json at offset 17",
        since_ms=NOW_MS,
    )
    answers = pilots.apis.group_answers
    answers[DescribeGroup] = replace(answers[DescribeGroup], blocked=(blocked,))
    answers[GroupOffsets] = (replace(row(0, 17, 20), blocked_offset=17),)
    assert (await pilots.get(GROUP)).json["blocked"] == [
        {
            "topic_name": "flights",
            "partition_id": 0,
            "offset": 17,
            "consumer_id": "one",
            "error_code": 42203,
            "message": "value deserialization error for format json at offset 17",
            "since": "2023-11-14T22:13:20.000Z",
        }
    ]
    assert (await pilots.get(GROUP + "/lags")).json["data"][0]["blocked_offset"] == 17


async def test_a_record_is_stepped_over(door: Door) -> None:
    done = await door.post(GROUP + "/offsets:skip", SKIP, JSON)
    assert done.golden == (204, JSON, None)
    assert door.apis.requests == [
        SkipRecords(group=GroupId("pilots"), records=(SkippedRecord(FLIGHTS, PartitionId(0), 17),))
    ]
    text = "offset 17 of flights-0 stops no member of group pilots"
    door.apis.group_answers[SkipRecords] = KafkaError(ErrorCode.ILLEGAL_STATE, text)
    refused = await door.post(GROUP + "/offsets:skip", SKIP, JSON)
    assert refused.golden == (409, JSON, {"error_code": 40903, "message": text})
    door.apis.group_answers[SkipRecords] = KafkaError(ErrorCode.GROUP_ID_NOT_FOUND)
    assert (await door.post(GROUP + "/offsets:skip", SKIP, JSON)).json["error_code"] == 40405


@pytest.mark.parametrize(
    ("body", "said"),
    [
        ({}, "'data' is missing or null"),
        ({"data": []}, "'data'"),
        ({"data": [1]}, "data"),
        ({"data": SKIP["data"], "more": 1}, "unknown field 'more'"),
        ({"data": [SKIP["data"][0] | {"why": 1}]}, "unknown field 'data[0].why'"),
        ({"data": [SKIP["data"][0] | {"offset": "17"}]}, "'data[0].offset'"),
        ({"data": [SKIP["data"][0] | {"offset": -1}]}, "'data[0].offset'"),
        ({"data": [SKIP["data"][0] | {"offset": True}]}, "'data[0].offset'"),
        ({"data": [SKIP["data"][0] | {"offset": 2**63}]}, "'data[0].offset'"),
        ({"data": [SKIP["data"][0] | {"partition_id": None}]}, "partition_id"),
        ({"data": [SKIP["data"][0] | {"partition_id": -1}]}, "'data[0].partition_id'"),
        ({"data": [SKIP["data"][0] | {"topic_name": 1}]}, "'data[0].topic_name'"),
    ],
)
async def test_a_wrong_record_to_step_over_is_refused(
    door: Door, body: dict[str, Any], said: str
) -> None:
    refused = await door.post(GROUP + "/offsets:skip", body, JSON)
    assert refused.status == 400
    assert said in refused.json["message"]
    assert door.apis.requests == []


async def test_more_records_than_one_request_may_name(door: Door) -> None:
    body = {"data": SKIP["data"] * 1_001}
    assert (await door.post(GROUP + "/offsets:skip", body, JSON)).status == 413


async def test_a_held_group_is_repaired(door: Door) -> None:
    forgotten = ForgottenRecord(partition=PartitionId(3), offset=812, key='["lease"]', reason="why")
    door.apis.group_answers[RepairGroup] = GroupRepaired(
        forgotten=(forgotten,),
        members=(InstanceId("one"),),
        offsets=(GroupOffset(FLIGHTS, PartitionId(0), 4, "note"),),
    )
    done = await door.post(GROUP + ":repair", {"validate_only": True}, JSON)
    assert (done.status, done.json) == (
        200,
        {
            "kind": "KafkaConsumerGroupRepair",
            "metadata": {
                "self": URL + "/pilots:repair",
                "resource_name": CRN + "/consumer-group=pilots/repair",
            },
            "cluster_id": CLUSTER_ID,
            "consumer_group_id": "pilots",
            "validate_only": True,
            "forgotten": [{"partition_id": 3, "offset": 812, "key": '["lease"]', "reason": "why"}],
            "forgotten_consumers": ["one"],
            "offsets": [
                {"topic_name": "flights", "partition_id": 0, "offset": 4, "metadata": "note"}
            ],
        },
    )
    assert (await door.call("POST", GROUP + ":repair")).status == 200
    asked = [request.validate_only for request in door.apis.requests]
    assert asked == [True, False]
    wrong = await door.post(GROUP + ":repair", {"validate_only": "yes"}, JSON)
    assert (wrong.status, "'validate_only'" in wrong.json["message"]) == (400, True)
    text = "group pilots is not held: it needs no repair"
    door.apis.group_answers[RepairGroup] = KafkaError(ErrorCode.ILLEGAL_STATE, text)
    refused = await door.call("POST", GROUP + ":repair")
    assert refused.golden == (409, JSON, {"error_code": 40903, "message": text})
    door.apis.group_answers[RepairGroup] = KafkaError(ErrorCode.GROUP_ID_NOT_FOUND)
    assert (await door.call("POST", GROUP + ":repair")).json["error_code"] == 40405


async def test_a_group_that_is_held_is_listed_and_answers_nothing_else(door: Door) -> None:
    door.apis.groups = [replace(group(), state=GroupState.HELD)]
    assert (await door.get(GROUPS)).json["data"][0]["state"] == "HELD"
    error = KafkaError(ErrorCode.GROUP_HELD, "group pilots is held: …")
    for asked in (DescribeGroup, GroupOffsets):
        door.apis.group_answers[asked] = error
    for path in (GROUP, GROUP + "/lags", GROUP + "/offsets", GROUP + "/consumers"):
        refused = await door.get(path)
        assert (refused.status, refused.json["error_code"]) == (500, 50002)
        assert refused.json["retriable"] is False
