"""Reads that name the epoch of their offset (KIP-320), an epoch seen, or the topic's id."""

from __future__ import annotations

import orjson
import pytest

from tests.support.http_door import Answer, Door

JSON_V2 = "application/vnd.kafka.json.v2+json"
NDJSON = "application/x-ndjson"
RECORDS = "/topics/flights/partitions/0/records"
EPOCH = "quorumlog-next-leader-epoch"


async def fill(door: Door, *epochs: int) -> None:
    """Write ten records in each of these leader epochs."""
    log = door.apis.logs["flights", 0]
    for epoch in epochs:
        log.leader_epoch = epoch
        rows = [{"value": number} for number in range(10)]
        answer = await door.post("/topics/flights/partitions/0", {"records": rows}, JSON_V2)
        assert answer.status == 200


async def read(door: Door, query: str, accept: str = NDJSON) -> Answer:
    return await door.call("GET", f"{RECORDS}?{query}&timeout=0", headers={"Accept": accept})


@pytest.mark.parametrize("accept", [NDJSON, JSON_V2, "application/vnd.quorumlog.lines+json"])
async def test_an_answer_names_the_epoch_of_its_next_offset(door: Door, accept: str) -> None:
    await fill(door, 4, 6)
    for query, following, epoch in (
        ("offset=0", "20", "6"),
        ("offset=20", "20", "6"),
        ("offset=5&end_offset=10", "10", "4"),
        ("offset=5&end_offset=11", "11", "6"),
        ("offset=10&end_offset=10", "10", None),
    ):
        answer = await read(door, query, accept)
        assert answer.status == 200, answer.body
        assert answer.headers["quorumlog-next-offset"] == following
        assert answer.headers.get(EPOCH) == epoch, query
    door.apis.logs["flights", 0].start = 20
    assert EPOCH not in (await read(door, "offset=20", accept)).headers


async def test_lines_about_batches_name_the_epoch(door: Door) -> None:
    await fill(door, 4, 6)
    answer = await read(door, "offset=0&include=batches")
    about = [orjson.loads(line) for line in answer.body.splitlines() if line[:3] == b'{"b']
    assert [line["batch"]["leader_epoch"] for line in about] == [4] * 10 + [6] * 10


@pytest.mark.parametrize("query", ["offset=10&leader_epoch=4", "offset=15&leader_epoch=6"])
async def test_a_position_of_this_log_is_read_on(door: Door, query: str) -> None:
    await fill(door, 4, 6)
    assert (await read(door, query)).status == 200
    assert (await read(door, query + "&seen_epoch=6")).status == 200
    assert door.apis.direct.taken >= 2, "both are reads of the fast lane"


async def test_a_truncated_log_is_409_with_the_place(door: Door) -> None:
    await fill(door, 4, 6)
    answer = await read(door, "offset=15&leader_epoch=4")
    assert (answer.status, answer.json["error_code"]) == (409, 40950)
    assert answer.headers["quorumlog-diverging-offset"] == "10"
    assert answer.headers["quorumlog-diverging-epoch"] == "4"
    assert "truncated" in answer.json["message"]
    assert set(answer.json) == {"error_code", "message"}


async def test_a_position_behind_the_end_is_truncated_when_it_names_its_epoch(door: Door) -> None:
    await fill(door, 4)
    assert (await read(door, "offset=15")).json["error_code"] == 40002
    answer = await read(door, "offset=15&leader_epoch=4")
    assert (answer.status, answer.json["error_code"]) == (409, 40950)
    assert answer.headers["quorumlog-diverging-offset"] == "10"


async def test_a_log_that_never_saw_the_epoch_is_409_with_the_place(door: Door) -> None:
    await fill(door, 4, 6)
    answer = await read(door, "offset=15&leader_epoch=7")
    assert (answer.status, answer.json["error_code"]) == (409, 40950)
    assert answer.headers["quorumlog-diverging-offset"] == "10"
    assert answer.headers["quorumlog-diverging-epoch"] == "6"
    assert "diverged" in answer.json["message"]


async def test_a_leader_older_than_one_that_was_seen_does_not_answer(door: Door) -> None:
    await fill(door, 4)
    answer = await read(door, "offset=0&seen_epoch=5")
    assert answer.status == 503
    assert answer.headers["retry-after"] == "1"
    assert answer.json["outcome"] == "not_written"
    for path in (
        "/topics/flights/partitions/0/offsets",
        f"/v3/clusters/{door.apis.cluster_id}/topics/flights/partitions/0/offset",
    ):
        assert (await door.call("GET", path + "?seen_epoch=4")).status == 200
        assert (await door.call("GET", path + "?seen_epoch=5")).status == 503


async def test_another_topic_of_the_name_is_409(door: Door) -> None:
    await fill(door, 4)
    mine = (await read(door, "offset=0")).headers["quorumlog-topic-id"]
    assert (await read(door, f"offset=0&topic_id={mine}")).status == 200
    answer = await read(door, f"offset=0&topic_id={'A' * 22}")
    assert (answer.status, answer.json["error_code"]) == (409, 40951)


@pytest.mark.parametrize(
    ("query", "text"),
    [
        ("offset=1&leader_epoch=-1", "leader_epoch"),
        ("offset=1&leader_epoch=x", "leader_epoch"),
        ("offset=1&leader_epoch=2147483648", "2147483647"),
        ("offset=1&leader_epoch=99999999999999999999", "leader_epoch"),
        ("offset=earliest&leader_epoch=1", "belongs to an offset"),
        ("timestamp=1&leader_epoch=1", "belongs to an offset"),
        ("offset=1&seen_epoch=1.5", "seen_epoch"),
        ("offset=1&topic_id=short", "22 characters"),
        ("offset=1&topic_id=" + "%0d" * 22, "22 characters"),
    ],
)
async def test_bad_epochs_and_ids_are_named(door: Door, query: str, text: str) -> None:
    await fill(door, 4)
    answer = await read(door, query)
    assert (answer.status, answer.json["error_code"]) == (400, 40002)
    assert text in answer.json["message"]
