"""Reads with an end: `end_offset` and `end_timestamp` of the direct fetch."""

from __future__ import annotations

import pytest

from broker.server.requests import FetchRequest
from tests.support.http_door import Answer, Door

JSON_V2 = "application/vnd.kafka.json.v2+json"
NDJSON = "application/x-ndjson"
RECORDS = "/topics/flights/partitions/0/records"
TYPES = [None, NDJSON, "application/vnd.quorumlog.lines+json"]


async def fill(door: Door) -> None:
    """Ten records in two batches; record N has the time N × 100."""
    for first in (0, 5):
        rows = [{"value": number, "timestamp": number * 100} for number in range(first, first + 5)]
        answer = await door.post("/topics/flights/partitions/0", {"records": rows}, JSON_V2)
        assert answer.status == 200


def ours(answer: Answer) -> tuple[str | None, str | None, str | None]:
    found = answer.headers
    names = ("end-offset", "end-reached", "next-offset")
    end, reached, following = (found.get(f"quorumlog-{name}") for name in names)
    return end, reached, following


def offsets(answer: Answer) -> list[int]:
    assert answer.status == 200, answer.body
    if answer.type == NDJSON:
        return [
            int(line.split(b'"offset":')[1].split(b",")[0]) for line in answer.body.splitlines()
        ]
    return [record["offset"] for record in answer.json]


@pytest.mark.parametrize("accept", TYPES)
@pytest.mark.parametrize("zstd", [False, True])
@pytest.mark.parametrize(
    ("query", "read", "end", "reached"),
    [
        ("offset=0&end_offset=10", range(10), "10", "true"),
        ("offset=0&end_offset=7", range(7), "7", "true"),
        ("offset=2&end_offset=5", range(2, 5), "5", "true"),
        ("offset=2&end_offset=3", range(2, 3), "3", "true"),
        ("offset=4&end_offset=4", range(0), "4", "true"),
        ("offset=8&end_offset=99", range(8, 10), "99", None),
        ("timestamp=250&end_timestamp=650", range(3, 7), "7", "true"),
        ("timestamp=300&end_timestamp=600", range(3, 6), "6", "true"),
        ("timestamp=310&end_timestamp=320", range(0), "4", "true"),
        ("timestamp=310&end_timestamp=310", range(0), "4", "true"),
        ("timestamp=5000&end_timestamp=6000", range(0), "10", "true"),
        ("timestamp=800&end_timestamp=6000", range(8, 10), "10", "true"),
        ("offset=earliest&end_timestamp=200", range(2), "2", "true"),
        ("offset=-3&end_offset=9", range(7, 9), "9", "true"),
        ("offset=-3&end_offset=5", range(0), "5", "true"),
        ("offset=latest&end_offset=10", range(0), "10", "true"),
        ("offset=1&end_offset=8&end_timestamp=300", range(1, 3), "3", "true"),
        ("offset=1&end_offset=2&end_timestamp=300", range(1, 2), "2", "true"),
        ("offset=1970-01-01T00:00:00.2Z&end_offset=4", range(2, 4), "4", "true"),
    ],
)
async def test_a_read_holds_what_is_before_its_end(
    door: Door, accept: str | None, zstd: bool, query: str, read: range, end: str, reached: str
) -> None:
    door.apis.logs["flights", 0].zstd = zstd
    await fill(door)
    headers = {"Accept-Encoding": "zstd"} if zstd else {}
    if accept is not None:
        headers["Accept"] = accept
    answer = await door.call("GET", f"{RECORDS}?{query}&timeout=0", headers=headers)
    assert answer.status == 200, answer.body
    if "content-encoding" not in answer.headers:
        assert offsets(answer) == list(read)
    following = end if reached else "10"
    assert ours(answer) == (end, reached, following)


async def test_pages_up_to_a_time_hold_each_record_once(door: Door) -> None:
    await fill(door)
    found: list[int] = []
    query = "timestamp=100&end_timestamp=800"
    while True:
        answer = await door.get(f"{RECORDS}?{query}&max_bytes=1")
        found += offsets(answer)
        end, reached, following = ours(answer)
        if reached:
            break
        query = f"offset={following}&end_offset={end}"
    assert found == list(range(1, 8))


async def test_a_read_at_its_end_waits_for_nothing(door: Door) -> None:
    await fill(door)
    await door.get(f"{RECORDS}?offset=10&end_offset=10&timeout=60000")
    await door.get(f"{RECORDS}?offset=latest&end_timestamp=900&timeout=60000")
    waits = {r.max_wait_ms for r in door.apis.requests if isinstance(r, FetchRequest)}
    assert waits == {0}


@pytest.mark.parametrize(
    ("query", "text"),
    [
        ("offset=5&end_offset=4", "Parameter 'end_offset' is '4': expected at least the start of "),
        ("timestamp=5&end_timestamp=4", "Parameter 'end_timestamp' is '4': expected at least the"),
        ("offset=5&end_timestamp=200", "Parameter 'end_timestamp' is '2': expected at least the"),
        ("offset=5&end_offset=-1", "Parameter 'end_offset' is '-1': expected an integer from 0"),
        ("offset=5&end_offset=latest", "expected an integer from 0"),
        ("offset=5&end_timestamp=", "expected an integer from 0"),
    ],
)
async def test_an_end_that_can_t_be_is_refused(door: Door, query: str, text: str) -> None:
    await fill(door)
    answer = await door.get(f"{RECORDS}?{query}")
    assert (answer.status, answer.json["error_code"]) == (400, 40002)
    assert text in answer.json["message"]
