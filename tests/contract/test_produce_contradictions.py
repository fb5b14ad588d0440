"""What a produce says twice, or wrongly: each case is answered in words, or means nothing else.

A table of what is taken, and of what is refused with all its records: nothing is written anywhere
that nobody asked for. Both lanes answer alike, byte for byte.
"""

from __future__ import annotations

import pytest

from tests.support.http_door import Door

V2 = "application/vnd.kafka.v2+json"
JSON_V2 = "application/vnd.kafka.json.v2+json"
TO_1 = "/topics/flights/partitions/1"
TOPIC = "/topics/flights"

TAKEN = [
    pytest.param(TO_1, '{"value":1}', 1, id="the path alone"),
    pytest.param(TO_1, '{"value":1,"partition":1}', 1, id="the same number"),
    pytest.param(TO_1, '{"value":1,"partition":null}', 1, id="null is none"),
    pytest.param(TO_1, '{"value":1,"timestamp":5}', 1, id="another field"),
    pytest.param(TOPIC, '{"value":1,"partition":1}', 1, id="a record's own"),
    pytest.param(TOPIC, '{"value":1,"partition":1,"key":"k"}', 1, id="before its key"),
    pytest.param(TOPIC, '{"value":1,"partition":null}', 0, id="null is none here, too"),
    pytest.param(TOPIC, '{"value":1,"partition":7,"partition":1}', 1, id="the last of two"),
]
REFUSED = [
    pytest.param(
        TO_1, '{"value":1,"partition":0}', 422,
        "`$.records[0].partition` is 0, the path's is 1: expected the same or none", id="another",
    ),
    pytest.param(
        TO_1, '{"value":1},{"value":2,"partition":1},{"value":3,"partition":3}', 422,
        "`$.records[2].partition` is 3, the path's is 1", id="one of many",
    ),
    pytest.param(
        TO_1, '{"value":1,"partition":-1}', 422,
        "expected 0 to 2147483647 - at `$.records[0].partition`", id="negative",
    ),
    pytest.param(
        TOPIC, '{"value":1},{"value":1,"partition":-1}', 422,
        "expected 0 to 2147483647 - at `$.records[1].partition`", id="negative without a path's",
    ),
    pytest.param(
        TOPIC, '{"value":1,"partition":2147483648}', 422,
        "expected 0 to 2147483647 - at `$.records[0].partition`", id="too large",
    ),
    pytest.param(
        TOPIC, '{"value":1,"partition":1.0}', 422,
        "Expected `int | null`, got `float` - at `$.records[0].partition`", id="float",
    ),
    pytest.param(
        TOPIC, '{"value":1,"partition":"1"}', 422,
        "Expected `int | null`, got `str` - at `$.records[0].partition`", id="text",
    ),
    pytest.param(
        TOPIC, '{"value":1,"partition":true}', 422,
        "Expected `int | null`, got `bool` - at `$.records[0].partition`", id="bool",
    ),
    pytest.param(
        TOPIC, '{"value":1,"Partition":1}', 422,
        "Object contains unknown field `Partition` - at `$.records[0]`", id="misspelt",
    ),
    pytest.param(
        TOPIC, '{"value":1,"offset":4}', 422, "unknown field `offset`", id="an offset of its own",
    ),
    pytest.param(
        TOPIC, '{"value":1,"timestamp":-1}', 422,
        "expected milliseconds since 1970 - at `$.records[0].timestamp`", id="before 1970",
    ),
    pytest.param(
        TOPIC, '{"value":1,"timestamp":"2026-11-22"}', 422,
        "Expected `int | null`, got `str` - at `$.records[0].timestamp`", id="a date",
    ),
    pytest.param(
        TOPIC, '{"value":1},{"value":2,"partition":9}', 40402,
        "Topic flights has no partition 9: it has 2, numbered from 0", id="beyond the count",
    ),
    pytest.param(
        "/topics/flights/partitions/9", '{"value":1,"partition":9}', 40402,
        "Partition 9 of topic flights not found", id="beyond the count, by the path",
    ),
    pytest.param(
        "/topics/flights/partitions/9", '{"value":1,"partition":8}', 422,
        "`$.records[0].partition` is 8, the path's is 9", id="both wrong",
    ),
]  # fmt: skip


@pytest.mark.parametrize(("path", "records", "partition"), TAKEN)
async def test_a_target_named_once_or_twice_alike_is_taken(
    door: Door, path: str, records: str, partition: int
) -> None:
    answer = await door.post(path, f'{{"records":[{records}]}}', JSON_V2)
    assert answer.status == 200, answer.body
    [row] = answer.json["offsets"]
    assert (row["partition"], row["offset"], row["error_code"]) == (partition, 0, None)


@pytest.mark.parametrize(("path", "records", "code", "says"), REFUSED)
async def test_a_contradiction_is_refused_with_all_its_records(
    door: Door, path: str, records: str, code: int, says: str
) -> None:
    answer = await door.post(path, f'{{"records":[{records}]}}', JSON_V2)
    assert (answer.status, answer.type) == (int(str(code)[:3]), V2)
    assert answer.json.keys() == {"error_code", "message"}
    assert answer.json["error_code"] == code
    assert says in answer.json["message"]
    assert [log.end for log in door.apis.logs.values()] == [0, 0]


async def test_under_a_sequence_it_is_refused_likewise(door: Door) -> None:
    headers = {
        "Content-Type": JSON_V2, "Quorumlog-Producer-Id": "4",
        "Quorumlog-Producer-Epoch": "0", "Quorumlog-Sequence": "0",
    }  # fmt: skip
    body = '{"records":[{"value":1,"partition":0},{"value":2}]}'
    answer = await door.call("POST", TO_1, body, headers)
    assert answer.status == 422
    assert "the path's is 1" in answer.json["message"]
    assert door.apis.requests == []
