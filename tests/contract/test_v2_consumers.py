"""v2's consumer instances at the door: what is asked of the coordinator, and what is answered."""

from __future__ import annotations

import asyncio
import json
from dataclasses import replace
from typing import Any

import pytest
from typing_extensions import override

from broker.coordinator.group_messages import (
    A,
    Assign,
    AtTime,
    BlockedPlace,
    Commit,
    CommittedOffsets,
    ConsumerSettings,
    CreateInstance,
    DeleteInstance,
    DescribeInstance,
    Edge,
    GroupOffset,
    GroupRequest,
    InstanceCreated,
    InstanceDescription,
    Move,
    OffsetReset,
    OffsetsCommitted,
    Poll,
    PolledRecords,
    Positions,
    Seek,
    SeekTarget,
    Subscribe,
    UnreadableRecords,
    Unsubscribe,
)
from raft_metadata.common.errors import ErrorCode, KafkaError, Outcome
from raft_metadata.common.ids import GroupId, InstanceId, PartitionId, TopicName, TopicPartition
from tests.support.fake_broker_apis import FakeBrokerApis
from tests.support.http_door import ADVERTISED, Answer, Door, open_door
from tests.support.waiting import until

V2 = "application/vnd.kafka.v2+json"
V2_JSON = "application/vnd.kafka.json.v2+json"
V2_BINARY = "application/vnd.kafka.binary.v2+json"
GROUP = "/consumers/pilots"
INSTANCE = GROUP + "/instances/one"
NAMED: dict[str, Any] = {"group": GroupId("pilots"), "instance": InstanceId("one")}
P0 = TopicPartition(TopicName("flights"), PartitionId(0))
ROW = {"topic": "flights", "partition": 0}
RECORDS = b'[{"topic":"flights","key":null,"value":1,"partition":0,"offset":0,"timestamp":1}]'
ONE_WAY = (
    "IllegalStateError: You must choose only one way to configure your consumer:"
    " (1) subscribe to specific topics by name, (2) subscribe to topics matching a regex pattern,"
    " (3) assign itself specific topic-partitions."
)


def answers(door: Door, request: type, answer: object) -> None:
    door.apis.group_answers[request] = answer


def asked(door: Door) -> Any:
    """The one request the coordinator got."""
    (request,) = door.apis.requests
    return request


def describes(door: Door, **fields: Any) -> None:
    empty: dict[str, Any] = {
        "settings": ConsumerSettings(),
        "topics": (),
        "pattern": None,
        "assignment": (),
        "is_manual": False,
        "member_epoch": -1,
    }
    answers(door, DescribeInstance, InstanceDescription(**{**empty, **fields}))


async def create(door: Door, body: object, content_type: str | None = V2) -> Answer:
    answers(door, CreateInstance, InstanceCreated(instance=InstanceId("one")))
    return await door.post(GROUP, body, content_type)


def is_done(answer: Answer) -> bool:
    """204, exactly typed, nothing behind it."""
    return answer.golden == (204, V2, None)


# creating


async def test_create_answers_name_and_uri_of_this_broker(door: Door) -> None:
    answer = await create(door, {"name": "one", "format": "json", "auto.offset.reset": "earliest"})
    uri = f"{ADVERTISED}/consumers/pilots/instances/one"
    assert answer.golden == (200, V2, {"instance_id": "one", "base_uri": uri})
    assert "quorumlog-ignored" not in answer.headers
    assert asked(door) == CreateInstance(
        group=GroupId("pilots"),
        instance=InstanceId("one"),
        settings=ConsumerSettings(format="json", auto_offset_reset=OffsetReset.EARLIEST),
    )


@pytest.mark.parametrize("body", [b"", b"{}", b" \n"])
async def test_an_empty_create_takes_every_default(door: Door, body: bytes) -> None:
    headers = {"Content-Type": V2} if body == b"{}" else {}
    answers(door, CreateInstance, InstanceCreated(instance=InstanceId("made-up")))
    answer = await door.call("POST", GROUP, body, headers)
    assert answer.json["instance_id"] == "made-up"
    assert asked(door) == CreateInstance(group=GroupId("pilots"))
    settings = asked(door).settings
    assert (settings.format, settings.auto_commit, settings.request_timeout_ms) == (
        *("binary", True),
        1000,
    )


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        ({"auto.commit.enable": "false"}, {"auto_commit": False}),
        ({"auto.commit.enable": False}, {"auto_commit": False}),
        ({"enable.auto.commit": False}, {"auto_commit": False, "strimzi": True}),
        ({"enable.auto.commit": "True"}, {"auto_commit": True, "strimzi": True}),
        (
            {"enable.auto.commit": True, "auto.commit.enable": "false"},
            {"auto_commit": False, "strimzi": False},
        ),
        ({"fetch.min.bytes": "100"}, {"fetch_min_bytes": 100}),
        ({"responseMinBytes": -1}, {"fetch_min_bytes": -1}),
        ({"consumer.request.timeout.ms": "10000"}, {"request_timeout_ms": 10_000}),
        ({"requestWaitMs": 500}, {"request_timeout_ms": 500}),
        ({"session.timeout.ms": 6000}, {"session_timeout_ms": 6000}),
        ({"auto.commit.interval.ms": 1000}, {"auto_commit_interval_ms": 1000}),
        ({"format": "AVRO"}, {"format": "avro"}),
        ({"client.rack": "r1"}, {"rack": "r1"}),
        ({"group.instance.id": "s1"}, {"static_id": "s1"}),
        ({"max.poll.records": "500"}, {"max_poll_records": 500}),
        ({"max.poll.records": 1}, {"max_poll_records": 1}),
        ({"isolation.level": "read_committed"}, {}),
        ({"isolation.level": "READ_UNCOMMITTED"}, {}),
        ({"format": "text"}, {"format": "text"}),
        ({"partition.assignment.strategy": "range"}, {"assignors": ("range",)}),
        (
            {"partition.assignment.strategy": "cooperative-sticky, range"},
            {"assignors": ("uniform", "range")},
        ),
        (
            {"partition.assignment.strategy": ["org.apache.kafka.clients.consumer.RangeAssignor"]},
            {"assignors": ("range",)},
        ),
        ({"unreadable.records": "mark"}, {"unreadable_records": UnreadableRecords.MARK}),
        ({"unreadable.records": "STOP"}, {}),
        ({"isolation.level": "read_uncommitted"}, {}),
        ({"auto.offset.reset": None, "format": None}, {}),
    ],
)
async def test_settings_are_strings_or_real_values(
    door: Door, body: dict[str, Any], expected: dict[str, Any]
) -> None:
    assert (await create(door, body)).status == 200
    assert asked(door).settings == ConsumerSettings(**expected)


async def test_id_goes_before_name(door: Door) -> None:
    await create(door, {"name": "two", "id": "one"})
    assert asked(door).instance == "one"


async def test_kafkas_other_settings_are_ignored_and_listed(door: Door) -> None:
    body = {"max.poll.interval.ms": 10, "check.crcs": True, "client.id": "etl"}
    answer = await create(door, body)
    assert answer.headers["quorumlog-ignored"] == "check.crcs, max.poll.interval.ms"
    assert asked(door).client_id == "etl"


async def test_the_list_of_ignored_settings_is_bounded(door: Door) -> None:
    answer = await create(door, {f"a.{number}": 1 for number in range(1_000)})
    assert answer.headers["quorumlog-ignored"].endswith(", and 968 more")


@pytest.mark.parametrize(
    "body",
    [
        {"nonsense": 1},
        {"a.b\r\nSet-Cookie: x.y": 1},
        {"format": "xml"},
        {"format": 1},
        {"auto.offset.reset": "middle"},
        {"unreadable.records": "skip"},
        {"unreadable.records": 1},
        {"max.poll.records": "many"},
        {"isolation.level": "serializable"},
        {"isolation.level": ["read_committed"]},
        {"auto.commit.enable": "perhaps"},
        {"auto.commit.enable": 1},
        {"fetch.min.bytes": "many"},
        {"fetch.min.bytes": True},
        {"session.timeout.ms": 10**12},
        {"name": 7},
        {"client.id": ["x"]},
        {"client.rack": 1},
        {"group.instance.id": "s" * 250},
        {"isolation.level": 1},
        {"max.poll.records": 1.5},
        {"max.poll.records": "99999999999999999999"},
        {"client.rack": "r" * 256},
        {"partition.assignment.strategy": "mine"},
        {"partition.assignment.strategy": []},
        {"partition.assignment.strategy": ["range", 1]},
    ],
)
async def test_a_setting_that_makes_no_sense_is_40001(door: Door, body: dict[str, Any]) -> None:
    answer = await create(door, body)
    assert (answer.status, answer.type, answer.json["error_code"]) == (422, V2, 40001)
    assert set(answer.json) == {"error_code", "message"}
    assert door.apis.requests == []


async def test_ranges_are_refused_behind_the_door(door: Door) -> None:
    text = "fetch.min.bytes is -10: expected -1 or more"
    answers(door, CreateInstance, KafkaError(ErrorCode.INVALID_CONSUMER_CONFIG, text))
    answer = await door.post(GROUP, {"fetch.min.bytes": -10}, V2)
    assert answer.golden == (422, V2, {"error_code": 40001, "message": text})


async def test_a_taken_name_is_40902(door: Door) -> None:
    answers(door, CreateInstance, KafkaError(ErrorCode.INSTANCE_ALREADY_EXISTS, "one is there"))
    answer = await door.post(GROUP, {"name": "one"}, V2)
    text = "Consumer with specified consumer ID already exists in the specified consumer group."
    assert answer.golden == (409, V2, {"error_code": 40902, "message": text})


# bodies, types, names


@pytest.mark.parametrize("content_type", [None, "text/plain", "application/x-www-form-urlencoded"])
async def test_another_content_type_is_415_naming_the_header(
    door: Door, content_type: str | None
) -> None:
    posts = {
        GROUP: {"name": "one"},
        INSTANCE + "/subscription": {"topics": ["flights"]},
        INSTANCE + "/assignments": {"partitions": [ROW]},
        INSTANCE + "/offsets": {"offsets": [{**ROW, "offset": 1}]},
        INSTANCE + "/positions": {"offsets": [{**ROW, "offset": 1}]},
        INSTANCE + "/positions/end": {"partitions": [ROW]},
    }
    for path, body in posts.items():
        answer = await door.post(path, body, content_type)
        assert (answer.status, answer.json["error_code"]) == (415, 415), path
        assert f"send 'Content-Type: {V2}'" in answer.json["message"]
    assert door.apis.requests == []


@pytest.mark.parametrize(
    "content_type",
    [V2, V2_JSON, "application/vnd.kafka.avro.v2+json; charset=utf-8", "application/json"],
)
async def test_embedded_types_are_taken_everywhere(door: Door, content_type: str) -> None:
    headers = {"Content-Type": content_type, "Accept": content_type}
    body = json.dumps({"topics": ["flights"]})
    answer = await door.call("POST", INSTANCE + "/subscription", body, headers)
    assert is_done(answer)


async def test_accept_that_takes_nothing_we_have_is_406(door: Door) -> None:
    for path in ("/subscription", "/assignments", "/offsets", "/records"):
        answer = await door.get(INSTANCE + path, "text/html")
        assert (answer.status, answer.json["error_code"]) == (406, 406)
    assert door.apis.requests == []


@pytest.mark.parametrize("body", [b"[]", b'"x"', b"{", b"1"])
async def test_a_body_that_is_no_json_object_is_400(door: Door, body: bytes) -> None:
    answer = await door.post(INSTANCE + "/offsets", body, V2)
    assert (answer.status, answer.json["error_code"]) == (400, 400)


async def test_control_characters_in_names_are_shown_as_pictures(door: Door) -> None:
    path = "/consumers/My%0Dconsumer"
    expected = "Invalid parameter 'group_name' got 'My␍consumer'"
    for answer in (
        await door.post(path, {"nonsense": 1}, V2),
        await door.get(path + "/instances/x/records"),
    ):
        assert answer.golden == (400, V2, {"error_code": 400, "message": expected})

    answer = await door.get(GROUP + "/instances/a%0Ab/assignments")
    assert answer.json["message"] == "Invalid parameter 'instance' got 'a␊b'"

    for wrong, shown in (("a%00b", "a␀b"), ("a%0D%0AX:%20y", "a␍␊X: y"), ("%ED%A0%80%01", "␁")):
        answer = await door.get(f"{GROUP}/instances/{wrong}/records")
        assert (answer.status, answer.json["error_code"]) == (400, 400)
        assert answer.json["message"].startswith("Invalid parameter 'instance' got '")
        assert shown in answer.json["message"]

    answer = await door.post(GROUP, {"name": "my\nconsumer"}, V2)
    expected = "Parameter contained invalid control characters: my␊consumer"
    assert answer.golden == (400, V2, {"error_code": 400, "message": expected})
    assert door.apis.requests == []


async def test_unfit_names_are_40002(door: Door) -> None:
    for path in ("/consumers/a%20b", "/consumers/" + "g" * 250, "/consumers/.."):
        assert (await door.post(path, {}, V2)).json["error_code"] == 40002
    for body in ({"name": "a/b"}, {"name": ""}, {"id": "."}):
        assert (await create(door, body)).json["error_code"] == 40002


async def test_trailing_and_double_slashes_are_taken(door: Door) -> None:
    answer = await door.post(
        "//consumers/pilots//instances/one/positions//beginning/", {"partitions": [ROW]}, V2
    )
    assert is_done(answer)
    assert isinstance(asked(door), Seek)


async def test_an_instance_that_is_not_there_is_40403_on_every_path(door: Door) -> None:
    requests = (
        *(DeleteInstance, Subscribe, Unsubscribe, DescribeInstance, Assign),
        *(Poll, Commit, CommittedOffsets, Seek),
    )
    for request in requests:
        answers(door, request, KafkaError(ErrorCode.UNKNOWN_MEMBER_ID, "gone"))
    partitions = {"partitions": [ROW]}
    expected = {"error_code": 40403, "message": "Consumer instance not found."}
    calls: list[tuple[str, str, dict[str, Any] | None]] = [
        ("DELETE", "", None),
        ("POST", "/subscription", {"topics": ["flights"]}),
        ("GET", "/subscription", None),
        ("DELETE", "/subscription", None),
        ("POST", "/assignments", partitions),
        ("GET", "/assignments", None),
        ("GET", "/records", None),
        ("POST", "/offsets", {"offsets": []}),
        ("GET", "/offsets", partitions),
        ("POST", "/positions", {"offsets": [{**ROW, "offset": 3}]}),
        ("POST", "/positions/beginning", partitions),
        ("POST", "/positions/end", partitions),
    ]
    for method, path, body in calls:
        data = None if body is None else json.dumps(body)
        answer = await door.call(method, INSTANCE + path, data, {"Content-Type": V2})
        assert answer.golden == (404, V2, expected), (method, path)


async def test_a_body_on_delete_is_taken(door: Door) -> None:
    assert is_done(await door.call("DELETE", INSTANCE, b"{}", {"Content-Type": V2}))
    assert asked(door) == DeleteInstance(**NAMED)


async def test_nesting_and_size_are_bounded(door: Door) -> None:
    deep = b"[" * 1_000 + b"]" * 1_000
    for path, key, status in (
        (GROUP, "format", 422),
        (GROUP, "name", 422),
        (INSTANCE + "/subscription", "topic_pattern", 422),
        (INSTANCE + "/assignments", "partitions", 422),
        (INSTANCE + "/offsets", "offsets", 422),
    ):
        answer = await door.post(path, b'{"%s":%s}' % (key.encode(), deep), V2)
        assert answer.status == status, (key, answer)
    for row in (b'{"topic":%s}', b'{"topic":"t","partition":%s}'):
        body = b'{"partitions":[%s]}' % (row % deep)
        assert (await door.post(INSTANCE + "/assignments", body, V2)).status == 422
    many = {f"a.{number}": 1 for number in range(1_001)}
    assert (await create(door, many)).json["error_code"] == 40001
    large = b'{"topics":["%s"]}' % (b"t" * 4_200_000)
    assert (await door.post(INSTANCE + "/subscription", large, V2)).status == 413
    assert door.apis.requests == []


# subscription and assignment


async def test_subscribe_by_name_and_by_pattern(door: Door) -> None:
    path = INSTANCE + "/subscription"
    assert is_done(await door.post(path, {"topics": ["b", "a", "b"]}, V2))
    assert is_done(await door.post(path, {"topics": None, "topic_pattern": "fl.*"}, V2))
    assert door.apis.requests == [
        Subscribe(**NAMED, topics=(TopicName("b"), TopicName("a"))),
        Subscribe(**NAMED, pattern="fl.*"),
    ]


async def test_subscribing_to_nothing_unsubscribes(door: Door) -> None:
    assert is_done(await door.post(INSTANCE + "/subscription", {"topics": []}, V2))
    assert is_done(await door.call("DELETE", INSTANCE + "/subscription"))
    assert door.apis.requests == [Unsubscribe(**NAMED)] * 2


@pytest.mark.parametrize(
    "body",
    [
        *({}, {"topics": "flights"}, {"topics": [1]}, {"topic_pattern": ["x"]}),
        *({"topic_pattern": ""}, {"topic": ["flights"]}),
    ],
)
async def test_a_subscription_that_says_nothing_is_422(door: Door, body: dict[str, Any]) -> None:
    answer = await door.post(INSTANCE + "/subscription", body, V2)
    assert (answer.status, answer.json["error_code"]) == (422, 422)
    assert door.apis.requests == []


async def test_only_one_way_of_choosing_partitions(door: Door) -> None:
    both = {"topics": ["flights"], "topic_pattern": "baz"}
    answer = await door.post(INSTANCE + "/subscription", both, V2)
    assert answer.golden == (409, V2, {"error_code": 40903, "message": ONE_WAY})
    for request in (Subscribe, Assign):
        answers(door, request, KafkaError(ErrorCode.ILLEGAL_STATE, "other words"))
    for path, body in (
        ("/subscription", {"topics": ["flights"]}),
        ("/assignments", {"partitions": [ROW]}),
    ):
        answer = await door.post(INSTANCE + path, body, V2)
        assert answer.golden == (409, V2, {"error_code": 40903, "message": ONE_WAY})


async def test_the_subscription_shows_topics_and_in_strimzis_dialect_partitions(
    door: Door,
) -> None:
    path = INSTANCE + "/subscription"
    describes(door)
    assert (await door.get(path)).golden == (200, V2, {"topics": []})
    describes(door, topics=("flights",), pattern="fl.*", assignment=(P0,), member_epoch=2)
    assert (await door.get(path)).golden == (200, V2, {"topics": ["flights"]})
    describes(door, settings=ConsumerSettings(strimzi=True), topics=("flights",), assignment=(P0,))
    expected = {"topics": ["flights"], "partitions": [{"flights": [0]}]}
    assert (await door.get(path)).json == expected


async def test_assignments(door: Door) -> None:
    path = INSTANCE + "/assignments"
    assert is_done(await door.post(path, {"partitions": [ROW, {**ROW, "partition": "1"}]}, V2))
    p1 = TopicPartition(TopicName("flights"), PartitionId(1))
    assert asked(door) == Assign(**NAMED, partitions=(P0, p1))
    describes(door, assignment=(P0, p1), is_manual=True)
    expected = {"partitions": [ROW, {**ROW, "partition": 1}]}
    assert (await door.get(path)).golden == (200, V2, expected)


@pytest.mark.parametrize(
    "body",
    [
        *({}, {"partitions": {}}, {"partitions": [1]}, {"partitions": [{"topic": "t"}]}),
        *({"partitions": [{"partition": 0}]}, {"partitions": [{"topic": "t", "partition": -1}]}),
        *({"partitions": [ROW], "more": 1}, {"partitions": [{"topic": "t", "partition": True}]}),
    ],
)
async def test_an_assignment_that_names_no_partitions_is_422(
    door: Door, body: dict[str, Any]
) -> None:
    answer = await door.post(INSTANCE + "/assignments", body, V2)
    assert (answer.status, answer.json["error_code"]) == (422, 422)


async def test_more_rows_than_a_topic_has_partitions_are_413(door: Door) -> None:
    answer = await door.post(INSTANCE + "/assignments", {"partitions": [ROW] * 10_001}, V2)
    assert (answer.status, answer.json["error_code"]) == (413, 413)


# reading


async def test_records_carry_the_instances_type(door: Door) -> None:
    text = "application/vnd.kafka.text.v2+json"
    for form, content_type in (("json", V2_JSON), ("binary", V2_BINARY), ("text", text)):
        answers(door, Poll, PolledRecords(body=RECORDS, count=1, format=form))
        answer = await door.get(INSTANCE + "/records")
        assert (answer.status, answer.type, answer.body) == (200, content_type, RECORDS)


@pytest.mark.parametrize(
    ("accept", "accepted"),
    [
        (None, None),
        ("*/*", None),
        ("application/json", None),
        (V2, None),
        ("*/json", None),
        ("application/vnd.kafka+json", None),
        ("application/vnd.kafka.json.v1+json", {"json"}),
        (
            "application/vnd.kafka.text+json, application/vnd.kafka.binary.v1+json;q=0.2",
            {"binary", "text"},
        ),
        (f"{V2_JSON};q=0.5, */*;q=0.1", None),
        (V2_JSON, {"json"}),
        (f"{V2_BINARY};q=0.9, {V2_JSON}", {"binary", "json"}),
        (f"text/html, {V2_BINARY}", {"binary"}),
    ],
)
async def test_accept_says_which_formats_are_taken(
    door: Door, accept: str | None, accepted: set[str] | None
) -> None:
    answers(door, Poll, PolledRecords(body=b"[]", count=0, format="json"))
    assert (await door.get(INSTANCE + "/records", accept)).status == 200
    assert asked(door).accepted == accepted


async def test_another_format_than_the_instances_is_40601(door: Door) -> None:
    answers(door, Poll, KafkaError(ErrorCode.FORMAT_MISMATCH))
    answer = await door.get(INSTANCE + "/records", V2_JSON)
    text = (
        "The requested embedded data format does not match the deserializer for this consumer "
        "instance"
    )
    assert answer.golden == (406, V2_JSON, {"error_code": 40601, "message": text})


async def test_schemas_and_unreadable_records_are_422(door: Door) -> None:
    answers(door, Poll, KafkaError(ErrorCode.SCHEMAS_NOT_SUPPORTED))
    answer = await door.get(INSTANCE + "/records", "application/vnd.kafka.avro.v2+json")
    assert answer.golden == (
        422,
        "application/vnd.kafka.avro.v2+json",
        {"error_code": 42205, "message": "schemas are not supported"},
    )
    answers(door, Poll, KafkaError(ErrorCode.UNREADABLE_RECORD, "value deserialization error"))
    assert (await door.get(INSTANCE + "/records", V2_JSON)).json["error_code"] == 42203


@pytest.mark.parametrize(
    ("query", "timeout_ms", "max_bytes"),
    [
        ("", None, None),
        ("?timeout=5000&max_bytes=300000", 5000, 300_000),
        ("?timeout=0&max_bytes=0", 0, 1),
        ("?timeout=-1&max_bytes=-1", None, None),
        ("?timeout=999999999&max_bytes=999999999999", 60_000, 67_108_864),
    ],
)
async def test_timeout_and_max_bytes_are_cut_to_their_limits(
    door: Door, query: str, timeout_ms: int | None, max_bytes: int | None
) -> None:
    answers(door, Poll, PolledRecords(body=b"[]", count=0, format="binary"))
    assert (await door.get(INSTANCE + "/records" + query)).body == b"[]"
    assert (asked(door).timeout_ms, asked(door).max_bytes) == (timeout_ms, max_bytes)


async def test_a_timeout_that_is_no_number_is_40002(door: Door) -> None:
    for query in ("timeout=soon", "max_bytes=1e6", "timeout="):
        answer = await door.get(f"{INSTANCE}/records?{query}")
        assert (answer.status, answer.json["error_code"]) == (400, 40002)


async def test_rule_f2_reading_is_no_pure_read(door: Door) -> None:
    unknown = KafkaError(ErrorCode.NETWORK_EXCEPTION, "broken", outcome=Outcome.UNKNOWN)
    for request in (Poll, CommittedOffsets):
        answers(door, request, unknown)
    read = await door.get(INSTANCE + "/records")
    assert (read.status, read.json["outcome"], read.json["retriable"]) == (503, "unknown", True)
    pure = await door.get(INSTANCE + "/offsets")
    assert (pure.status, pure.json["outcome"]) == (503, "not_written")
    head = await door.call("HEAD", INSTANCE + "/records")
    assert (head.status, head.headers["allow"]) == (405, "GET")
    assert len(door.apis.requests) == 2


class SlowReads(FakeBrokerApis):
    """Reads wait until they are let go."""

    def __init__(self) -> None:
        super().__init__()
        self.waiting = asyncio.Event()
        self.let_go = asyncio.Event()

    @override
    async def group(self, request: GroupRequest[A]) -> A:
        answer = await super().group(request)
        if isinstance(request, Poll):
            self.waiting.set()
            await self.let_go.wait()
        return answer


async def test_records_that_nobody_is_there_to_take_are_read_again() -> None:
    apis = SlowReads()
    body = [{**ROW, "offset": 4}, {**ROW, "offset": 5}, {**ROW, "partition": 1, "offset": 9}]
    polled = PolledRecords(body=json.dumps(body).encode(), count=3, format="json")
    apis.group_answers[Poll] = polled
    async with open_door(apis) as door:
        host, _, port = door.address.rpartition(":")
        _, writer = await asyncio.open_connection(host, int(port))
        writer.write(f"GET {INSTANCE}/records HTTP/1.1\r\nHost: x\r\n\r\n".encode())
        await apis.waiting.wait()
        writer.close()
        await writer.wait_closed()
        await door.get("/topics")  # the server has seen the end of the other connection
        apis.let_go.set()
        await until(lambda: len(apis.requests) == 3)
    p1 = TopicPartition(TopicName("flights"), PartitionId(1))
    assert apis.requests[1:] == [
        Seek(**NAMED, targets=(SeekTarget(*P0, 4),)),
        Seek(**NAMED, targets=(SeekTarget(*p1, 9),)),
    ]


async def test_no_coordinator_is_503_with_retry_after(door: Door) -> None:
    answers(door, Subscribe, KafkaError(ErrorCode.COORDINATOR_NOT_AVAILABLE))
    answer = await door.post(INSTANCE + "/subscription", {"topics": ["flights"]}, V2)
    assert (answer.status, answer.headers["retry-after"]) == (503, "1")
    assert answer.json == {
        "error_code": 50302,
        "message": "the group coordinator is not available",
        "retriable": True,
        "outcome": "not_written",
    }


# offsets and positions


@pytest.mark.parametrize("key", ["offsets", "partitions"])
async def test_commit_answers_200_and_an_empty_list(door: Door, key: str) -> None:
    answers(door, Commit, OffsetsCommitted(strimzi=False))
    rows = [{**ROW, "offset": 20, "metadata": "m", "value": "a record that was read"}]
    answer = await door.post(INSTANCE + "/offsets", {key: rows}, V2)
    assert answer.golden == (200, V2, [])
    offset = GroupOffset(P0.topic, P0.partition, 20, "m")
    assert asked(door) == Commit(**NAMED, offsets=(offset,))


async def test_strimzis_dialect_answers_204(door: Door) -> None:
    answers(door, Commit, OffsetsCommitted(strimzi=True))
    answer = await door.post(INSTANCE + "/offsets", {"offsets": [{**ROW, "offset": 20}]}, V2)
    assert is_done(answer)


@pytest.mark.parametrize("content_type", [None, V2, "application/x-www-form-urlencoded"])
@pytest.mark.parametrize("body", [b"", b"{}", None])
async def test_an_empty_commit_commits_what_was_delivered(
    door: Door, body: bytes | None, content_type: str | None
) -> None:
    answers(door, Commit, OffsetsCommitted(strimzi=False))
    headers = {} if content_type is None else {"Content-Type": content_type}
    answer = await door.call("POST", INSTANCE + "/offsets", body, headers)
    assert answer.golden == (200, V2, [])
    assert asked(door) == Commit(**NAMED, offsets=None)


async def test_async_of_a_commit_takes_both_words_and_no_other(door: Door) -> None:
    """Both commit before the answer."""
    answers(door, Commit, OffsetsCommitted(strimzi=False))
    for word in ("true", "false"):
        answer = await door.post(f"{INSTANCE}/offsets?async={word}", {}, V2)
        assert answer.golden == (200, V2, [])
    door.apis.requests.clear()
    answer = await door.post(f"{INSTANCE}/offsets?async=maybe", {}, V2)
    text = "Parameter 'async' is 'maybe': expected true or false"
    assert answer.golden == (400, V2, {"error_code": 40002, "message": text})
    assert door.apis.requests == []


async def test_isolation_takes_both_of_kafkas_words(door: Door) -> None:
    answers(door, Poll, PolledRecords(body=b"[]", count=0, format="json"))
    for word in ("read_committed", "read_uncommitted"):
        assert (await door.get(f"{INSTANCE}/records?isolation={word}")).status == 200
    door.apis.requests.clear()
    for word in ("serializable", "", "read_committed%00"):
        answer = await door.get(f"{INSTANCE}/records?isolation={word}")
        assert (answer.status, answer.json["error_code"]) == (400, 40002)
        assert answer.json["message"].endswith(": expected read_uncommitted or read_committed")
    assert door.apis.requests == []


async def test_an_empty_list_commits_nothing(door: Door) -> None:
    answers(door, Commit, OffsetsCommitted(strimzi=False))
    await door.post(INSTANCE + "/offsets", {"offsets": []}, V2)
    assert asked(door).offsets == ()


@pytest.mark.parametrize(
    "body",
    [
        {"offset": [{**ROW, "offset": 1}]},
        {"offsets": [], "partitions": []},
        {"offsets": [ROW]},
        {"offsets": [{**ROW, "offset": -1}]},
        {"offsets": [{**ROW, "offset": 1.5}]},
        {"offsets": [{**ROW, "offset": 1, "metadata": 2}]},
        {"offsets": None},
    ],
)
async def test_a_mistyped_commit_commits_nothing(door: Door, body: dict[str, Any]) -> None:
    answer = await door.post(INSTANCE + "/offsets", body, V2)
    assert (answer.status, answer.json["error_code"]) == (422, 422)
    assert door.apis.requests == []


async def test_a_commit_outside_of_the_assignment_is_40903(door: Door) -> None:
    text = "partition 0 of flights is not assigned to this instance"
    answers(door, Commit, KafkaError(ErrorCode.ILLEGAL_STATE, text))
    answer = await door.post(INSTANCE + "/offsets", {"offsets": [{**ROW, "offset": 1}]}, V2)
    assert answer.golden == (409, V2, {"error_code": 40903, "message": text})


async def test_committed_offsets_by_body_or_of_what_is_owned(door: Door) -> None:
    found = (GroupOffset(P0.topic, P0.partition, 21, ""),)
    answers(door, CommittedOffsets, found)
    expected = {"offsets": [{**ROW, "offset": 21, "metadata": ""}]}
    body = json.dumps({"partitions": [ROW]})
    for headers in ({}, {"Content-Type": V2}):
        answer = await door.call("GET", INSTANCE + "/offsets", body, headers)
        assert answer.golden == (200, V2, expected)
    assert (await door.get(INSTANCE + "/offsets")).golden == (200, V2, expected)
    asked_for = [r.partitions for r in door.apis.requests if isinstance(r, CommittedOffsets)]
    assert asked_for == [(P0,), (P0,), None]


async def test_seek(door: Door) -> None:
    path = INSTANCE + "/positions"
    body = {
        "offsets": [{**ROW, "offset": 10, "metadata": "unused"}],
        "timestamps": [
            {**ROW, "timestamp": "1970-01-01T00:00:01.5Z"},
            {**ROW, "timestamp": "1970-01-01T01:00:00+01:00"},
            {**ROW, "timestamp": "1970-01-01"},
            {**ROW, "timestamp": 1_700_000_000_000},
        ],
    }
    assert is_done(await door.post(path, body, V2))
    assert [target.to for target in asked(door).targets] == [
        *(10, AtTime(1500), AtTime(0), AtTime(0)),
        AtTime(1_700_000_000_000),
    ]


async def test_seek_to_both_ends(door: Door) -> None:
    path = INSTANCE + "/positions"
    assert is_done(await door.post(path + "/beginning", {"partitions": [ROW]}, V2))
    assert is_done(await door.post(path + "/end", {"partitions": [ROW]}, V2))
    assert door.apis.requests == [
        Seek(**NAMED, targets=(SeekTarget(*P0, to),)) for to in (Edge.BEGINNING, Edge.END)
    ]


@pytest.mark.parametrize(
    "body",
    [
        *({}, {"offsets": None}, {"offsets": [ROW]}, {"partitions": [ROW]}),
        *({"timestamps": [{**ROW, "timestamp": "noon"}]}, {"timestamps": [ROW]}),
    ],
)
async def test_a_seek_to_nowhere_is_422(door: Door, body: dict[str, Any]) -> None:
    answer = await door.post(INSTANCE + "/positions", body, V2)
    assert (answer.status, answer.json["error_code"]) == (422, 422)


async def test_a_seek_outside_of_the_assignment_is_40903(door: Door) -> None:
    text = "No current assignment for partition faulty-0"
    answers(door, Seek, KafkaError(ErrorCode.ILLEGAL_STATE, text))
    body = {"offsets": [{"topic": "faulty", "partition": 0, "offset": 10}]}
    answer = await door.post(INSTANCE + "/positions", body, V2)
    assert answer.golden == (409, V2, {"error_code": 40903, "message": text})


async def test_an_unknown_partition_is_not_taken_for_an_unknown_instance(door: Door) -> None:
    error = KafkaError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, "partition 9 of flights not found")
    answers(door, Assign, error)
    answer = await door.post(INSTANCE + "/assignments", {"partitions": [ROW]}, V2)
    expected = {"error_code": 40402, "message": "partition 9 of flights not found"}
    assert answer.golden == (404, V2, expected)


# read tokens and static members


async def test_a_read_says_its_token_and_takes_the_one_before(door: Door) -> None:
    polled = PolledRecords(body=b"[]", count=0, format="binary", token="a.1-7")
    answers(door, Poll, polled)
    answer = await door.get(INSTANCE + "/records?after=a.1-6")
    assert answer.headers["quorumlog-read-token"] == "a.1-7"
    assert "quorumlog-resumed" not in answer.headers
    assert door.apis.requests[-1].after == "a.1-6"
    answers(door, Poll, replace(polled, is_resumed=True))
    assert (await door.get(INSTANCE + "/records")).headers["quorumlog-resumed"] == "commit"
    assert door.apis.requests[-1].after is None


async def test_a_read_names_the_records_at_which_the_instance_stands(door: Door) -> None:
    places = tuple(
        BlockedPlace(TopicName("orders"), PartitionId(number), 17) for number in range(40)
    )
    answers(door, Poll, PolledRecords(body=b"[]", count=0, format="binary", blocked=places[:2]))
    answer = await door.get(INSTANCE + "/records")
    assert answer.headers["quorumlog-blocked"] == "orders-0@17, orders-1@17"
    answers(door, Poll, PolledRecords(body=b"[]", count=0, format="binary", blocked=places))
    answer = await door.get(INSTANCE + "/records")
    assert answer.headers["quorumlog-blocked"].endswith("orders-31@17, and 8 more")
    answers(door, Poll, PolledRecords(body=b"[]", count=0, format="binary"))
    assert "quorumlog-blocked" not in (await door.get(INSTANCE + "/records")).headers


async def test_calls_of_a_group_that_is_held_say_so_and_that_no_repeat_helps(door: Door) -> None:
    text = "group faulty is held: …"
    error = KafkaError(ErrorCode.GROUP_HELD, text)
    body = {"error_code": 50002, "message": text, "retriable": False, "outcome": "not_written"}
    for asked, method, path in (
        (Poll, "GET", "/records"),
        (Commit, "POST", "/offsets"),
        (DeleteInstance, "DELETE", ""),
    ):
        answers(door, asked, error)
        refused = await door.call(method, INSTANCE + path)
        assert (refused.status, refused.json) == (500, body)
        assert "retry-after" not in refused.headers


async def test_a_commit_and_a_deletion_acknowledge_first(door: Door) -> None:
    answers(door, Commit, OffsetsCommitted(strimzi=False))
    await door.call("POST", INSTANCE + "/offsets?after=a.1-6")
    assert door.apis.requests[-1] == Commit(**NAMED, after="a.1-6")
    await door.call("DELETE", INSTANCE + "?after=a.1-6&leave=true")
    assert door.apis.requests[-1] == DeleteInstance(**NAMED, after="a.1-6", leave=True)
    refused = await door.call("DELETE", INSTANCE + "?leave=perhaps")
    assert (refused.status, refused.json["error_code"]) == (400, 40002)


async def test_a_fenced_static_member_is_40952(door: Door) -> None:
    text = "a newer consumer of group pilots has group.instance.id s1"
    answers(door, Poll, KafkaError(ErrorCode.FENCED_INSTANCE_ID, text))
    refused = await door.get(INSTANCE + "/records")
    assert (refused.status, refused.json) == (409, {"error_code": 40952, "message": text})


async def test_positions_are_the_next_offsets_to_be_delivered(door: Door) -> None:
    next_offset = GroupOffset(TopicName("flights"), PartitionId(0), 7)
    answers(door, Positions, (next_offset,))
    row = {"topic": "flights", "partition": 0, "offset": 7}
    expected = {"offsets": [row | {"leader_epoch": None}]}
    assert (await door.get(INSTANCE + "/positions")).golden == (200, V2, expected)
    answers(door, Positions, (replace(next_offset, leader_epoch=3),))
    expected = {"offsets": [row | {"leader_epoch": 3}]}
    assert (await door.get(INSTANCE + "/positions")).golden == (200, V2, expected)


async def test_commits_and_positions_take_the_epoch_of_the_offset(door: Door) -> None:
    row = {"topic": "flights", "partition": 0, "offset": 7, "leader_epoch": 3}
    answers(door, Commit, OffsetsCommitted(strimzi=False))
    assert (await door.post(INSTANCE + "/offsets", {"offsets": [row]}, V2)).status == 200
    offset = GroupOffset(TopicName("flights"), PartitionId(0), 7, leader_epoch=3)
    assert door.apis.requests[-1] == Commit(**NAMED, offsets=(offset,))
    answers(door, Seek, None)
    assert (await door.post(INSTANCE + "/positions", {"offsets": [row]}, V2)).status == 204
    target = SeekTarget(TopicName("flights"), PartitionId(0), 7, 3)
    assert door.apis.requests[-1] == Seek(**NAMED, targets=(target,))
    for path in ("/offsets", "/positions"):
        for bad in (-2, "x", 1.5, [], 2**31, True):
            body = {"offsets": [row | {"leader_epoch": bad}]}
            refused = await door.post(INSTANCE + path, body, V2)
            assert refused.status == 422, bad
            assert "leader_epoch" in refused.json["message"]


async def test_a_read_names_the_positions_that_were_moved(door: Door) -> None:
    at = (InstanceId("one"), TopicName("orders"))
    moved = (
        Move(*at, PartitionId(0), 100, 80, "truncated", 5),
        Move(*at, PartitionId(1), 70, 70, "diverged", 6),
    )
    answers(door, Poll, PolledRecords(body=b"[]", count=0, format="binary", moved=moved))
    answer = await door.get(INSTANCE + "/records")
    told = answer.headers["quorumlog-moved"]
    assert told == "orders-0 100->80 truncated, orders-1 70->70 diverged"
