"""Query parameters over HTTP: each route's own are taken, all others are refused by name."""

from __future__ import annotations

import pytest

from tests.support.http_door import V3, Door

RECORDS = "/topics/flights/partitions/0/records"
INSTANCE = "/consumers/g/instances/i"
READ = (
    "after, end_offset, end_timestamp, follow, frames, heartbeat_ms, include, isolation, "
    "leader_epoch, max_bytes, offset, rack, seen_epoch, timeout, timestamp, topic_id"
)
PRODUCE = "acks, async, key_format, {}receipts, timeout, value_format"
JSON_V2 = "application/vnd.kafka.json.v2+json"


@pytest.mark.parametrize(
    ("method", "path", "known"),
    [
        ("GET", RECORDS, READ),
        ("HEAD", RECORDS, None),
        ("POST", "/topics/flights", PRODUCE.format("partitioner, ")),
        ("POST", "/topics/flights/partitions/0", PRODUCE.format("")),
        ("POST", f"{V3}/topics/flights/records", "acks, partitioner, receipts, timeout"),
        ("POST", f"{V3}/topics/flights/records:batch", "acks, partitioner, timeout"),
        ("GET", f"{INSTANCE}/records", "after, isolation, max_bytes, timeout"),
        ("POST", f"{INSTANCE}/offsets", "after, async"),
        ("GET", f"{V3}/topics/flights", "include_authorized_operations"),
        ("GET", f"{V3}/topics/flights/partitions/0/offset", "offset_type, seen_epoch"),
        ("GET", f"{V3}/brokers", "include, page_size, page_token"),
        ("GET", f"{V3}/metadata/log", "max, offset, timeout"),
    ],
)
async def test_an_undeclared_parameter_is_refused_and_nothing_is_done(
    door: Door, method: str, path: str, known: str | None
) -> None:
    answer = await door.call(method, f"{path}?limit=10")
    assert answer.status == 400
    if known is not None:
        text = f"Parameter 'limit' is not known here. Known: {known}"
        assert answer.json == {"error_code": 40002, "message": text}
    assert door.apis.requests == []


@pytest.mark.parametrize(
    "path",
    ["/", "/topics", "/topics/flights", "/brokers", "/healthz", f"{V3}/features"],
)
async def test_a_path_without_parameters_reports_so(door: Door, path: str) -> None:
    answer = await door.get(f"{path}?x=1")
    text = "Parameter 'x' is not known here: this path takes none"
    assert (answer.status, answer.json["message"]) == (400, text)


@pytest.mark.parametrize(
    ("query", "says"),
    [
        ("offset=0&timeot=0", "did you mean 'timeout'?"),
        ("offset=0&offset=1", "Parameter 'offset' is given twice: expected once"),
        ("offset=0&%6Fffset=1", "Parameter 'offset' is given twice: expected once"),
        ("offset=0&=1", "Parameter '' is not known here"),
        ("offset=0&%ff=1", "is not known here"),
    ],
)
async def test_a_misspelled_or_repeated_parameter_of_a_read(
    door: Door, query: str, says: str
) -> None:
    answer = await door.get(f"{RECORDS}?{query}")
    assert (answer.status, answer.json["error_code"]) == (400, 40002)
    assert says in answer.json["message"]


async def test_names_with_an_underscore_are_ignored_and_named_in_a_header(door: Door) -> None:
    answer = await door.get(f"{RECORDS}?_=17&offset=0&_%0d%0aX:1=&timeout=0&_=18")
    assert (answer.status, answer.json) == (200, [])
    assert answer.headers["quorumlog-ignored-parameters"] == "_, _%0D%0AX%3A1"
    record = {"records": [{"value": 1}]}
    answer = await door.post("/topics/flights?_=1", record, JSON_V2)
    assert answer.status == 200
    assert answer.headers["quorumlog-ignored-parameters"] == "_"


async def test_names_that_an_operator_lists_are_ignored_where_they_are_not_known(
    door: Door,
) -> None:
    path = f"{RECORDS}?offset=0&trace=7&timeot=1"
    assert (await door.get(path)).status == 400
    door.apis.set_cluster_configs(http_ignored_parameters="trace,timeot,offset")
    answer = await door.get(path)
    assert answer.status == 200
    assert answer.headers["quorumlog-ignored-parameters"] == "trace, timeot"
    assert (await door.get(f"{RECORDS}?offset=x")).status == 400, "a known name keeps its meaning"
    assert (await door.get(f"{RECORDS}?offset=0&tracing=7")).status == 400
    written = await door.post("/topics/flights?trace=7", {"records": [{"value": 1}]}, JSON_V2)
    assert written.headers["quorumlog-ignored-parameters"] == "trace"
    door.apis.set_cluster_configs()
    assert (await door.get(path)).status == 400


async def test_a_refusal_names_what_was_ignored_too(door: Door) -> None:
    answer = await door.get(f"{RECORDS}?_=17&offset=x")
    assert (answer.status, answer.headers["quorumlog-ignored-parameters"]) == (400, "_")
    answer = await door.get("/topics")
    assert "quorumlog-ignored-parameters" not in answer.headers


@pytest.mark.parametrize(
    "path",
    [
        RECORDS, "/topics/flights/records", f"{V3}/topics/flights/records",
        f"{V3}/topics/flights/partitions/0/records", f"{INSTANCE}/records",
    ],
)  # fmt: skip
@pytest.mark.parametrize("query", ["offset=0&timeout=0", "offset=0&follow=true"])
async def test_each_read_takes_both_of_kafkas_words_for_isolation(
    door: Door, path: str, query: str
) -> None:
    """Only committed records are ever read, so both mean the same; another word is refused."""
    query = "timeout=0" if path.startswith(INSTANCE) else query
    answer = await door.get(f"{path}?{query}&isolation=serializable")
    text = "Parameter 'isolation' is 'serializable': expected read_uncommitted or read_committed"
    assert (answer.status, answer.json) == (400, {"error_code": 40002, "message": text})
    if "follow" in query or path.startswith(INSTANCE):
        return  # a tail that begins has no end, an instance is not there
    query = query.replace("offset=0", "offset=earliest")
    for word in ("read_committed", "read_uncommitted"):
        answer = await door.get(f"{path}?{query}&isolation={word}")
        assert answer.status == 200, answer


@pytest.mark.parametrize(
    ("method", "path", "status"),
    [
        ("POST", "/topics/flights?async=true", 204),
        ("POST", "/topics/flights/partitions/0?async=false&acks=1", 200),
        ("GET", f"{V3}/topics?includeAuthorizedOperations=true", 200),
        ("GET", f"{V3}/topics/flights?include_authorized_operations=true", 200),
        ("GET", f"{V3}/topics/flights/partitions/0/offset?offset_type=latest", 200),
        ("GET", f"{V3}/acls?resource_type=TOPIC&operation=READ&permission=ALLOW", 400),
        ("DELETE", f"{V3}/acls?principal=User:a&host=*&pattern_type=LITERAL&resource_name=x", 400),
    ],
)
async def test_parameters_of_confluent_and_strimzi_stay_known(
    door: Door, method: str, path: str, status: int
) -> None:
    body = '{"records":[{"value":1}]}' if method == "POST" else None
    answer = await door.call(method, path, body, {"Content-Type": JSON_V2} if body else None)
    assert answer.status == status
    assert b"not known here" not in answer.body
