"""gzip: which answers, for which clients; the same body in the end."""

from __future__ import annotations

import asyncio
import gzip
import threading

import orjson
import pytest

from http_api.server import answer_coding
from http_api.server.answer_coding import GZIP_BYTES_MIN, THREAD_BYTES_MIN
from raft_metadata.common.ids import TopicName
from tests.support.fake_broker_apis import FakeBrokerApis
from tests.support.http_door import V3, Answer, Door, open_door

JSON_V2 = "application/vnd.kafka.json.v2+json"
NDJSON = "application/x-ndjson"
FETCH = "/topics/flights/partitions/0/records?offset=0&max_bytes=10000000"
LIST = f"{V3}/topics"
TAKES = {"Accept-Encoding": "gzip, deflate"}


def big_topics(door: Door, count: int = 20) -> None:
    for number in range(count):
        door.apis.add_topic(f"flights-{number}", 1)


async def write(door: Door, count: int, size: int = 100) -> Answer:
    body = orjson.dumps({"records": [{"value": "v" * size} for _ in range(count)]})
    headers = {**TAKES, "Content-Type": JSON_V2}
    return await door.call("POST", "/topics/flights/partitions/0", body, headers)


def coding(answer: Answer) -> tuple[str | None, str | None]:
    return answer.headers.get("content-encoding"), answer.headers.get("vary")


async def both(door: Door, path: str, accept: str = "*/*") -> tuple[Answer, Answer]:
    """The answer to a client that takes gzip, and to one that does not."""
    return (
        await door.call("GET", path, headers={"Accept": accept, **TAKES}),
        await door.call("GET", path, headers={"Accept": accept}),
    )


async def test_a_list_goes_as_gzip_to_a_client_that_takes_it(door: Door) -> None:
    big_topics(door)
    packed, plain = await both(door, LIST)
    assert coding(packed) == ("gzip", "Accept-Encoding")
    assert coding(plain) == (None, "Accept-Encoding")
    assert gzip.decompress(packed.body) == plain.body
    assert len(packed.body) < len(plain.body) / 3
    assert int(packed.headers["content-length"]) == len(packed.body)
    head = await door.call("HEAD", LIST, headers=TAKES)
    assert head.headers | {"date": "", "x-request-id": ""} == packed.headers | {
        "date": "", "x-request-id": "",
    }  # fmt: skip


@pytest.mark.parametrize(
    ("accepted", "is_packed"),
    [
        ("gzip", True),
        ("GZIP;q=0.5", True),
        ("br, zstd, gzip", True),
        ("gzip;q=0", False),
        ("gzip;q=0.5, identity", False),
        ("*", False),
        ("deflate, x-gzip", False),
        ("", False),
        (",;=" * 1_000, False),
    ],
)
async def test_gzip_is_for_clients_that_name_it(door: Door, accepted: str, is_packed: bool) -> None:
    big_topics(door)
    answer = await door.call("GET", LIST, headers={"Accept-Encoding": accepted})
    assert answer.status == 200
    assert (answer.headers.get("content-encoding") == "gzip") == is_packed


async def test_a_short_answer_and_an_error_are_sent_as_they_are(door: Door) -> None:
    short = await door.call("GET", f"{V3}/topics/flights", headers=TAKES)
    assert len(short.body) < GZIP_BYTES_MIN
    assert coding(short) == (None, None)
    assert coding(await door.call("GET", "/topics/nowhere", headers=TAKES)) == (None, None)


async def test_records_go_as_gzip_only_where_all_answers_do(door: Door) -> None:
    """As do answers with a row per record; whether the fast lane or the routes give them."""
    await write(door, 50)
    for accept in (NDJSON, "*/*", "application/vnd.quorumlog.lines+json"):
        packed, plain = await both(door, FETCH, accept)
        assert packed.headers.get("content-encoding") is None
        assert packed.body == plain.body
    assert coding(await write(door, 50)) == (None, None)

    door.apis.set_cluster_configs(http_gzip="all")
    taken = door.apis.direct.taken
    for accept in (NDJSON, "*/*", "application/vnd.quorumlog.lines+json"):
        packed, plain = await both(door, FETCH, accept)
        assert coding(packed) == ("gzip", "Accept-Encoding")
        assert coding(plain) == (None, "Accept-Encoding")
        assert gzip.decompress(packed.body) == plain.body
    written = await write(door, 50)
    assert coding(written) == ("gzip", "Accept-Encoding")
    assert len(orjson.loads(gzip.decompress(written.body))["offsets"]) == 50
    assert door.apis.direct.taken == taken, "these answers are the routes'"

    door.apis.set_cluster_configs(http_gzip="off")
    big_topics(door)
    for path in (LIST, FETCH):
        packed, _ = await both(door, path)
        assert packed.headers.get("content-encoding") is None
    assert (await door.call("GET", LIST, headers=TAKES)).headers.get("vary") is None


async def test_a_remembered_head_follows_the_config(door: Door) -> None:
    """A produce whose head was parsed before is answered as any other."""
    for mode, expected in (("lists", None), ("all", "gzip"), ("lists", None)):
        door.apis.set_cluster_configs(http_gzip=mode)
        for _ in range(2):
            assert (await write(door, 50)).headers.get("content-encoding") == expected


async def test_stored_zstd_is_left_as_it_is() -> None:
    apis = FakeBrokerApis()
    apis.add_topic("flights", 1)
    apis.logs[TopicName("flights"), 0].zstd = True
    apis.set_cluster_configs(http_gzip="all")
    async with open_door(apis) as door:
        await write(door, 2, 4_000)  # a batch each
        headers = {"Accept": NDJSON, "Accept-Encoding": "gzip, zstd"}
        answer = await door.call("GET", FETCH, headers=headers)
        assert coding(answer) == ("zstd", "Accept-Encoding")
        headers["Accept-Encoding"] = "gzip"
        answer = await door.call("GET", FETCH, headers=headers)
        assert coding(answer) == ("gzip", "Accept-Encoding")
        assert len(gzip.decompress(answer.body).splitlines()) == 2


@pytest.fixture
def threads(monkeypatch: pytest.MonkeyPatch) -> list[bool]:
    """For each body that was compressed: whether that was done on the loop."""
    found: list[bool] = []
    compress = gzip.compress

    def seen(*args: object, **more: object) -> bytes:
        found.append(threading.current_thread() is threading.main_thread())
        return compress(*args, **more)  # type: ignore[arg-type]

    monkeypatch.setattr(answer_coding.gzip, "compress", seen)
    return found


async def test_a_large_body_is_compressed_beside_the_loop(door: Door, threads: list[bool]) -> None:
    door.apis.set_cluster_configs(http_gzip="all")
    await write(door, 10, 1_000)
    threads.clear()
    packed, plain = await both(door, FETCH, NDJSON)
    assert (gzip.decompress(packed.body), threads) == (plain.body, [True])
    await write(door, 10, 100_000)
    threads.clear()
    packed, plain = await both(door, FETCH, NDJSON)
    assert len(plain.body) > THREAD_BYTES_MIN
    assert (gzip.decompress(packed.body), threads) == (plain.body, [False])


async def test_a_streamed_answer_is_never_compressed(door: Door) -> None:
    door.apis.set_cluster_configs(http_gzip="all")
    records = b'{"value":{"type":"JSON","data":1}}' * 100
    async with asyncio.timeout(10):
        answer = await door.call(
            "POST", f"{V3}/topics/flights/records", records,
            {**TAKES, "Content-Type": "application/json"},
        )  # fmt: skip
    assert len(answer.body) > GZIP_BYTES_MIN
    assert coding(answer) == (None, None)
