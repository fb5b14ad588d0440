"""Pages of a whole topic, and v3's lists of records: a token or a URL leads to the next one."""

from __future__ import annotations

import asyncio
from typing import Any

import orjson
import pytest

from http_api.contract.tail_tokens import Place, ReadToken, decode_token, encode_token
from http_api.server import topic_reader
from raft_metadata.common.errors import ErrorCode, KafkaError
from tests.support.http_door import ADVERTISED, V3, V3_URL, Answer, Door
from tests.support.waiting import until

JSON_V2 = "application/vnd.kafka.json.v2+json"
BINARY_V2 = "application/vnd.kafka.binary.v2+json"
LINES = "application/vnd.quorumlog.lines+json"
NDJSON = "application/x-ndjson"
TOPIC = "/topics/flights/records"
PARTITION = "/topics/flights/partitions/0/records"


async def write(door: Door, *values: Any, partition: int = 0) -> None:
    rows = [{"value": value} for value in values]
    path = f"/topics/flights/partitions/{partition}"
    assert (await door.post(path, {"records": rows}, JSON_V2)).status == 200


async def page(door: Door, query: str, accept: str | None = None) -> Answer:
    answer = await door.get(f"{TOPIC}?{query}", accept)
    assert answer.status == 200, answer.body
    return answer


async def test_a_page_has_the_shape_that_accept_names(door: Door) -> None:
    await write(door, 1)
    await write(door, "b", partition=1)
    query = "offset=earliest&timeout=0"
    v2 = await page(door, query)
    assert v2.type == JSON_V2
    rows = sorted(v2.json, key=lambda row: row["partition"])
    assert [(row["topic"], row["partition"], row["offset"], row["value"]) for row in rows] == [
        ("flights", 0, 0, 1),
        ("flights", 1, 0, "b"),
    ]
    binary = await page(door, query, BINARY_V2)
    assert sorted(row["value"] for row in binary.json) == ["ImIi", "MQ=="]
    lines = await page(door, query, NDJSON)
    assert sorted(lines.body.splitlines()) == [
        b'{"partition":0,"offset":0,"key":null,"value":1}',
        b'{"partition":1,"offset":0,"key":null,"value":"b"}',
    ]
    array = await page(door, query, LINES)
    stored = [orjson.loads(line) for line in lines.body.splitlines()]
    assert sorted(array.json, key=str) == sorted(stored, key=str)
    timed = await page(door, query + "&include=timestamp", NDJSON)
    assert b',"timestamp":1700000000000,"key"' in timed.body
    for answer in (v2, binary, lines, array):
        assert answer.headers["quorumlog-topic-id"].startswith("flights")
        token = decode_token(answer.headers["quorumlog-next"])
        assert token.places == (Place(1, 4), Place(1, 4))
    empty = await page(door, "timeout=0", LINES)
    assert empty.json == []


@pytest.mark.parametrize("max_bytes", [1, 200, 1_000_000])
async def test_pages_hold_every_record_once(door: Door, max_bytes: int) -> None:
    for number in range(40):
        await write(door, number, partition=number % 3 // 2)
    query, seen = "offset=earliest", []
    for _ in range(60):
        answer = await page(door, f"{query}&timeout=0&max_bytes={max_bytes}", NDJSON)
        seen += [orjson.loads(line)["value"] for line in answer.body.splitlines()]
        query = f"after={answer.headers['quorumlog-next']}"
        if not answer.body:
            break
    assert sorted(seen) == list(range(40))


async def test_the_partitions_take_turns_to_come_first(door: Door) -> None:
    await write(door, 1)
    await write(door, 2, partition=1)
    firsts = {
        (await page(door, "offset=earliest&max_bytes=1", NDJSON)).json["partition"]
        for _ in range(2)
    }
    assert firsts == {0, 1}


async def test_a_page_waits_for_the_first_record_of_any_partition(door: Door) -> None:
    waiting = asyncio.create_task(page(door, "timeout=5000", NDJSON))
    requests = door.apis.requests
    await until(lambda: any(getattr(each, "max_wait_ms", 0) > 1_000 for each in requests))
    await write(door, "late", partition=1)
    assert (await waiting).json["value"] == "late"


async def test_a_page_up_to_a_time_says_when_it_is_reached(door: Door) -> None:
    await write(door, 1, 2, 3)
    end = "end_timestamp=1900000000000"
    first = await page(door, f"offset=earliest&{end}&max_bytes=1", NDJSON)
    last = await page(door, f"after={first.headers['quorumlog-next']}&{end}", NDJSON)
    again = await page(door, f"after={last.headers['quorumlog-next']}&{end}&timeout=9000", NDJSON)
    assert last.headers["quorumlog-end-reached"] == "true"
    assert (again.headers["quorumlog-end-reached"], again.body) == ("true", b"")


async def test_a_partition_without_a_leader_holds_up_none_of_the_others(door: Door) -> None:
    await write(door, 1, partition=1)
    token = (await page(door, "timeout=0")).headers["quorumlog-next"]
    await write(door, 2, partition=1)
    door.apis.without_leader("flights")
    assert (await page(door, f"after={token}&timeout=300", NDJSON)).body == b""
    door.apis.change_partition("flights", 1, leader=1)
    assert (await page(door, f"after={token}&timeout=2000", NDJSON)).json["value"] == 2


async def test_partitions_whose_leaders_are_not_reached_end_no_page_late(
    door: Door, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each takes longer to fail than until the other is tried again."""
    monkeypatch.setattr(topic_reader, "RETRY_S", 0.01)
    door.apis.fetch_error = KafkaError(ErrorCode.LEADER_NOT_AVAILABLE)
    door.apis.fetch_error_after_s = 0.05
    for query in ("offset=0&timeout=0", "offset=0&timeout=100"):
        assert (await asyncio.wait_for(page(door, query, NDJSON), 2)).body == b""


@pytest.mark.parametrize("path", [TOPIC, PARTITION, V3 + TOPIC, V3 + PARTITION])
async def test_a_token_that_is_none_of_this_read_is_refused(door: Door, path: str) -> None:
    await write(door, *range(9))
    alone = 0 if path.endswith(PARTITION) else None
    places = (Place(3, 4),) if alone == 0 else (Place(3, 4), Place(0))
    topic_id = door.apis.image.topic_ids["flights"]  # type: ignore[index]
    good = encode_token(ReadToken(topic_id, places, alone))

    async def refusal(token: str) -> tuple[int, int, str]:
        answer = await door.get(f"{path}?timeout=0&after={token}")
        return answer.status, answer.json["error_code"], answer.json["message"]

    assert (await door.get(f"{path}?timeout=0&after={good}")).status == 200
    for length in range(len(good)):
        status, code, message = await refusal(good[:length])
        assert (status, code) == (400, 40002)
        assert "expected a token as it was sent" in message
    for at in (0, 5, 25, len(good) - 1):
        other = "A" if good[at] != "A" else "B"
        assert (await refusal(good[:at] + other + good[at + 1 :]))[:2] == (400, 40002)
    partition = 1 if alone == 0 else 0
    wrong = encode_token(ReadToken(topic_id, (Place(0),), partition))
    assert "is the token of partition" in (await refusal(wrong))[2]
    another_life = encode_token(ReadToken("A" * 22, places, alone))
    assert (await refusal(another_life))[:2] == (409, 40951)
    beyond = encode_token(ReadToken(topic_id, (Place(99, 4), *places[1:]), alone))
    assert (await refusal(beyond))[:2] == (409, 40950)
    unknown_epoch = encode_token(ReadToken(topic_id, (Place(99), *places[1:]), alone))
    assert (await refusal(unknown_epoch))[:2] == (400, 40002)


@pytest.mark.parametrize("path", [V3 + TOPIC, V3 + PARTITION])
async def test_v3_s_lists_name_their_next_page(door: Door, path: str) -> None:
    for number in range(6):
        await write(door, number)
    url: str | None = f"{path}?offset=earliest&max_bytes=1&timeout=0&end_timestamp=1900000000000"
    seen: list[int] = []
    while url is not None:
        answer = await door.get(url.removeprefix(ADVERTISED))
        assert answer.type == "application/json"
        body = answer.json
        assert list(body) == ["kind", "metadata", "data"]
        assert body["kind"] == "KafkaRecordList"
        assert body["metadata"]["self"] == ADVERTISED + path
        seen += [record["value"]["data"] for record in body["data"]]
        url = body["metadata"]["next"]
        assert url is None or url.startswith(V3_URL)
    assert seen == list(range(6))
    last = await door.get(f"{path}?offset=latest&timeout=0")
    assert last.json["data"] == []
    assert last.json["metadata"]["next"] is not None


async def test_v3_s_lists_take_no_other_type(door: Door) -> None:
    for path in (V3 + TOPIC, V3 + PARTITION):
        for accept in (NDJSON, JSON_V2):
            assert (await door.get(f"{path}?offset=earliest", accept)).status == 406


async def test_a_failed_read_is_the_status_of_a_page(door: Door) -> None:
    door.apis.fetch_error = KafkaError(ErrorCode.LEADER_NOT_AVAILABLE)
    answer = await door.get(f"{V3}{PARTITION}?offset=0&timeout=0")
    assert answer.status == 503
    assert (await door.get("/topics/none/records?timeout=0")).json["error_code"] == 40401
