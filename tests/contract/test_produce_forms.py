"""The forms of a v2 produce and of its answer: formats, receipts, async, the topic's headers."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from broker.coordinator.group_messages import CreateInstance, InstanceCreated
from raft_metadata.common.errors import ErrorCode, KafkaError, Outcome
from raft_metadata.common.ids import InstanceId
from tests.support.fake_broker_apis import FakeBrokerApis
from tests.support.http_door import V3, Answer, Door, open_door

V2 = "application/vnd.kafka.v2+json"
JSON_V2 = "application/vnd.kafka.json.v2+json"
BINARY_V2 = "application/vnd.kafka.binary.v2+json"
TEXT_V2 = "application/vnd.kafka.text.v2+json"
PATHS = ["/topics/flights", "/topics/flights/partitions/0"]
ID = "flightsxxxxxxxxxxxxxxx"


def formats(door: Door) -> list[tuple[str, str]]:
    requests: list[Any] = door.apis.requests
    return [(one.key_format.name.lower(), one.value_format.name.lower()) for one in requests]


def stored(door: Door, partition: int = 0) -> list[bytes]:
    slices = door.apis.logs["flights", partition].slices
    return [line for piece in slices for line in bytes(piece.lines).splitlines()]


# ---------------------------------------------------------------- receipts=range


async def test_ranges_stand_for_the_rows_of_each_partition(door: Door) -> None:
    records = [{"value": n, "partition": place} for n, place in enumerate([1, 0, 1, 1, 0])]
    answer = await door.post("/topics/flights?receipts=range", {"records": records}, JSON_V2)
    assert (answer.status, answer.type) == (200, V2)
    assert answer.body == (
        b'{"ranges":[{"partition":1,"base_offset":0,"count":3},'
        b'{"partition":0,"base_offset":0,"count":2}]}'
    )


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize(("acks", "base"), [("all", 0), ("1", 0), ("0", -1)])
async def test_one_range_for_one_partition(door: Door, path: str, acks: str, base: int) -> None:
    body = {"records": [{"value": n} for n in range(3)]}
    answer = await door.post(f"{path}?receipts=range&acks={acks}", body, JSON_V2)
    expected = {"ranges": [{"partition": 0, "base_offset": base, "count": 3}]}
    assert answer.golden == (200, V2, expected)
    assert door.apis.logs["flights", 0].end == 3


@pytest.mark.parametrize("query", ["receipts=range", "async=true", "async=true&receipts=range"])
async def test_a_failed_record_brings_the_rows_back(door: Door, query: str) -> None:
    door.apis.max_message_bytes = 10
    body = {"records": [{"value": 1}, {"value": "x" * 20}]}
    answer = await door.post(f"/topics/flights?{query}", body, JSON_V2)
    assert answer.status == 200
    assert [row["error_code"] for row in answer.json["offsets"]] == [None, 413]


# ---------------------------------------------------------------- async


@pytest.mark.parametrize("path", PATHS)
async def test_async_answers_without_a_body_once_all_is_written(door: Door, path: str) -> None:
    for word in ("true", "True"):
        answer = await door.post(f"{path}?async={word}", {"records": [{"value": 1}]}, JSON_V2)
        assert (answer.status, answer.type, answer.body) == (204, V2, b"")
    assert door.apis.logs["flights", 0].end + door.apis.logs["flights", 1].end == 2
    answer = await door.post(f"{path}?async=false", {"records": [{"value": 1}]}, JSON_V2)
    assert (answer.status, len(answer.json["offsets"])) == (200, 1)


async def test_async_tells_that_nothing_was_written(door: Door) -> None:
    door.apis.without_leader("flights")
    answer = await door.post("/topics/flights?async=true", {"records": [{"value": 1}]}, JSON_V2)
    assert (answer.status, answer.json["offsets"][0]["outcome"]) == (503, "not_written")


# ---------------------------------------------------------------- formats


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize(
    ("content_type", "query", "expected"),
    [
        (JSON_V2, "key_format=string", ("string", "json")),
        (JSON_V2, "value_format=binary", ("json", "binary")),
        (BINARY_V2, "key_format=string&value_format=json", ("string", "json")),
        (TEXT_V2, "", ("string", "string")),
        (TEXT_V2, "value_format=json", ("string", "json")),
        ("application/vnd.kafka.text.v1+json", "key_format=binary", ("binary", "string")),
        ("application/vnd.kafka.text+json", "", ("string", "string")),
    ],
)
async def test_each_half_has_its_format(
    door: Door, path: str, content_type: str, query: str, expected: tuple[str, str]
) -> None:
    body = {"records": [{"key": "YQ==", "value": "Yg=="}, {}]}
    answer = await door.post(f"{path}?{query}", body, content_type)
    assert answer.status == 200
    assert formats(door) == [expected]


async def test_a_string_key_has_the_place_of_its_text(door: Door) -> None:
    """crc32 of the UTF-8: with quotes, as JSON, it would be another one."""
    body = {"records": [{"key": "a", "value": 1}]}
    answers = [
        await door.post(f"/topics/flights{query}", body, JSON_V2)
        for query in ("", "?key_format=string", "?key_format=json")
    ]
    assert [answer.json["offsets"][0]["partition"] for answer in answers] == [0, 1, 0]


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("1", "1"), ("true", "true"), ('{"a":1}', '{"a":1}'), ("[]", "[]"), ("1e400", "1e400"),
        ("12345678901234567890", "12345678901234567890"),
    ],
)  # fmt: skip
@pytest.mark.parametrize("half", ["key", "value"])
async def test_text_that_is_no_string_is_422_naming_it(
    door: Door, half: str, text: str, shown: str
) -> None:
    body = f'{{"records":[{{"value":"fine"}},{{"{half}":{text}}}]}}'
    answer = await door.post("/topics/flights", body, TEXT_V2)
    assert (answer.status, answer.json["error_code"]) == (422, 422)
    expected = f"expected a JSON string or null, got {shown} - at `$.records[1].{half}`; "
    assert answer.json["message"].startswith(expected)
    answer = await door.post(f"/topics/flights?{half}_format=string", body, JSON_V2)
    assert (answer.status, answer.json["error_code"]) == (422, 422)
    assert door.apis.requests == []


async def test_text_is_stored_as_it_was_sent(door: Door) -> None:
    texts = [r'"\u0000"', r'"a\r\nb"', r'"\ud83d\ude00"', '"ä"', '""', "null"]
    body = '{{"records":[{}]}}'.format(",".join(f'{{"value":{text}}}' for text in texts))
    assert (await door.post(PATHS[1], body, TEXT_V2)).status == 200
    assert [line.partition(b'"value":')[2][:-1].decode() for line in stored(door)] == texts


@pytest.mark.parametrize("text", [r'"\ud800"', r'"\udc00x"', r'"\ud800\u0041"', '"a\x00"', '"\n"'])
@pytest.mark.parametrize("query", ["", "?key_format=binary", "?value_format=string"])
async def test_text_that_no_client_can_read_is_refused(door: Door, text: str, query: str) -> None:
    body = f'{{"records":[{{"key":"YQ==","value":{text}}}]}}'
    answer = await door.post(PATHS[1] + query, body, TEXT_V2)
    assert (answer.status, answer.json["error_code"]) == (400, 400)
    assert "JSON" in answer.json["message"]
    assert door.apis.requests == []


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize(
    ("parameter", "expected"),
    [
        ("key_format", "json, string or binary"),
        ("value_format", "json, string or binary"),
        ("receipts", "all or range"),
        ("async", "true or false"),
    ],
)
async def test_a_wrong_value_is_refused_and_nothing_written(
    door: Door, path: str, parameter: str, expected: str
) -> None:
    for value in ("avro", "", "1", "%00", "a%0D%0AX:%20y", "x" * 5_000):
        answer = await door.post(f"{path}?{parameter}={value}", {"records": [{}]}, JSON_V2)
        assert (answer.status, answer.json["error_code"]) == (400, 40002), value
        said = answer.json["message"]
        assert said.startswith(f"Parameter '{parameter}' is '")
        assert said.endswith(f": expected {expected}")
        assert len(said) < 500
    assert door.apis.requests == []


async def test_formats_with_schemas_stay_refused(door: Door) -> None:
    avro = "application/vnd.kafka.avro.v2+json"
    query = "?key_format=json&value_format=json"
    answer = await door.post(PATHS[0] + query, {"records": [{"value": 1}]}, avro)
    assert (answer.status, answer.json["error_code"]) == (422, 42202)


# ---------------------------------------------------------------- the topic's headers


def described(answer: Answer) -> tuple[str | None, str | None]:
    headers = answer.headers
    return headers.get("quorumlog-topic-id"), headers.get("quorumlog-partitions")


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize("query", ["", "?acks=0", "?receipts=range", "?async=true"])
async def test_each_answer_describes_the_topic(door: Door, path: str, query: str) -> None:
    answer = await door.post(path + query, {"records": [{"value": 1}]}, JSON_V2)
    assert described(answer) == (ID, "2")
    door.apis.without_leader("flights")
    answer = await door.post(path + query, {"records": [{"value": 1}]}, JSON_V2)
    assert (answer.status, *described(answer)) == (503, ID, "2")


@pytest.mark.parametrize("outcome", list(Outcome))
async def test_a_refusal_describes_it_too(door: Door, outcome: Outcome) -> None:
    door.apis.direct.fate = door.apis.produce_error = KafkaError(
        ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER, "a gap", outcome=outcome
    )
    answer = await door.post("/topics/flights", {"records": [{"value": 1}]}, JSON_V2)
    assert described(answer) == (ID, "2")
    for path, body in ((PATHS[0], "nonsense"), (f"{PATHS[0]}/partitions/7", '{"records":[{}]}')):
        door.apis.direct.fate = door.apis.produce_error = None
        assert described(await door.post(path, body, JSON_V2)) == (ID, "2")


async def test_a_topic_that_grows_is_described_by_the_partitions_that_keys_go_to(
    door: Door,
) -> None:
    """A client that places records itself must not use partitions before the broker does."""
    topic = next(iter(door.apis.image.topics.values()))
    more = topic.partitions * 2
    door.apis.set_topics(
        {topic.topic_id: replace(topic, partitions_count=4, partitions=more, grown_from=2)}
    )
    body = {"records": [{"value": 1}]}
    assert described(await door.post(PATHS[1], body, JSON_V2)) == (ID, "2")
    door.apis.set_topics({topic.topic_id: replace(topic, partitions_count=4, partitions=more)})
    assert described(await door.post(PATHS[1], body, JSON_V2)) == (ID, "4")


async def test_a_topic_that_is_made_is_described_one_that_is_not_there_is_not() -> None:
    async with open_door(FakeBrokerApis(auto_create=True)) as door:
        made = await door.post("/topics/fresh", {"records": [{"value": 1}]}, JSON_V2)
        assert described(made) == (f"{'fresh':x<22}", "1")
        door.apis.auto_create = False
        missing = await door.post("/topics/nope", {"records": [{"value": 1}]}, JSON_V2)
        assert (missing.status, *described(missing)) == (404, None, None)


async def test_v3_describes_it_on_the_head_and_in_a_batch(door: Door) -> None:
    path = f"{V3}/topics/flights/records"
    for body in ("{}", "{}nonsense", ""):
        assert described(await door.post(path, body, "application/json")) == (ID, "2")
    for body in ('{"entries":[{"id":"1"}]}', '{"entries":[]}', "nonsense"):
        answer = await door.post(f"{path}:batch", body, "application/json")
        assert described(answer) == (ID, "2"), answer
    assert described(await door.get("/topics/flights")) == (None, None)


# ---------------------------------------------------------------- Accept


@pytest.mark.parametrize(
    "accept",
    [
        "application/vnd.kafka.v1+json", "application/vnd.kafka+json", "*/json",
        "application/vnd.kafka.json.v1+json", "application/vnd.kafka.binary+json", TEXT_V2,
        "text/html, */json;q=0.1", "APPLICATION/VND.KAFKA+JSON",
    ],
)  # fmt: skip
@pytest.mark.parametrize("path", ["/topics/flights", "/topics", "/brokers", "/consumers/g"])
async def test_older_spellings_of_accept_get_v2(door: Door, path: str, accept: str) -> None:
    body = '{"records":[{"value":1}]}' if path == "/topics/flights" else None
    method = "GET" if path in {"/topics", "/brokers"} else "POST"
    headers = {"Accept": accept} | ({"Content-Type": JSON_V2} if body else {})
    if path == "/consumers/g":
        door.apis.group_answers[CreateInstance] = InstanceCreated(instance=InstanceId("i"))
    answer = await door.call(method, path, body, headers)
    assert (answer.status, answer.type) == (200, V2)
