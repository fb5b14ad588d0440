"""Requests that a proxy passes on: the URLs of the answer are those that the client can use."""

from __future__ import annotations

import ipaddress
import json
from collections.abc import AsyncIterator

import pytest

from broker.coordinator.group_messages import CreateInstance, InstanceCreated
from broker.coordinator.records import OFFSETS_TOPIC
from http_api.contract.forwarding import TrustedProxies
from raft_metadata.common.ids import InstanceId
from tests.support.http_door import ADVERTISED, V3, V3_URL, Answer, Door, open_door

V2 = "application/vnd.kafka.v2+json"
JSON_V2 = "application/vnd.kafka.json.v2+json"
RECORDS = b'{"records":[{"value":1}]}'
FETCH = "/topics/flights/partitions/0/records?offset=0"
HERE = TrustedProxies((ipaddress.ip_network("127.0.0.0/8"),))
ELSEWHERE = TrustedProxies((ipaddress.ip_network("10.0.0.0/8"),))
SEEN = {
    "X-Forwarded-Host": "log.example",
    "X-Forwarded-Proto": "https",
    "X-Forwarded-Prefix": "/team/log",
}
SEEN_URL = "https://log.example/team/log"


@pytest.fixture
async def proxied() -> AsyncIterator[Door]:
    async with open_door(proxies=HERE) as opened:
        yield opened


async def get(door: Door, path: str, headers: dict[str, str] | None = None) -> Answer:
    answer = await door.call("GET", path, headers=headers)
    assert answer.status == 200, answer.body
    return answer


def urls_in(value: object) -> list[str]:
    """Every link of an answer."""
    if isinstance(value, list):
        return [url for each in value for url in urls_in(each)]
    if not isinstance(value, dict):
        return []
    links = [value[key] for key in ("self", "related", "next") if value.get(key) is not None]
    return links + [url for each in value.values() for url in urls_in(each)]


LISTS = [
    "/v3/clusters",
    V3,
    f"{V3}/topics",
    f"{V3}/topics/flights",
    f"{V3}/topics/flights/partitions",
    f"{V3}/topics/flights/partitions/0/replicas",
    f"{V3}/topics/flights/configs",
    f"{V3}/brokers",
    f"{V3}/broker-configs",
    f"{V3}/consumer-groups",
]


@pytest.mark.parametrize("path", LISTS)
async def test_every_link_begins_with_what_the_proxy_reports(proxied: Door, path: str) -> None:
    direct = await get(proxied, path)
    seen = await get(proxied, path, SEEN)
    urls = urls_in(seen.json)
    assert urls
    assert all(url.startswith(f"{SEEN_URL}/v3/clusters") for url in urls)
    expected = direct.body.replace(ADVERTISED.encode(), SEEN_URL.encode())
    assert seen.body == expected, "nothing but the URLs differs"


async def test_the_next_page_and_the_servers_of_the_document(proxied: Door) -> None:
    proxied.apis.add_topic("more", 1)
    page = (await get(proxied, f"{V3}/topics?page_size=1", SEEN)).json
    assert page["metadata"]["next"].startswith(f"{SEEN_URL}{V3}/topics?page_")
    following = page["metadata"]["next"].removeprefix(SEEN_URL)
    assert len((await get(proxied, following, SEEN)).json["data"]) == 1
    assert (await get(proxied, "/openapi.json", SEEN)).json["servers"] == [{"url": SEEN_URL}]
    assert (await get(proxied, "/openapi.json")).json["servers"] == [{"url": ADVERTISED}]


async def test_the_uri_of_an_instance_and_the_location_of_a_topic(proxied: Door) -> None:
    proxied.apis.group_answers[CreateInstance] = InstanceCreated(instance=InstanceId("i"))
    made = await proxied.call("POST", "/consumers/g", b"{}", {**SEEN, "Content-Type": V2})
    assert made.json["base_uri"] == f"{SEEN_URL}/consumers/g/instances/i"
    body = json.dumps({"topic_name": "new"}).encode()
    made = await proxied.call(
        "POST", f"{V3}/topics", body, {**SEEN, "Content-Type": "application/json"}
    )
    assert made.status == 201
    assert made.headers["location"] == f"{SEEN_URL}{V3}/topics/new"


@pytest.mark.parametrize(
    "headers",
    [
        SEEN,
        {"Forwarded": "for=1.1.1.1"},
        {"X-Forwarded-For": "1.1.1.1"},
        {"X-Forwarded-Host": "not a host"},
    ],
)
async def test_an_answer_through_a_proxy_names_no_broker_by_url(
    proxied: Door, headers: dict[str, str]
) -> None:
    await proxied.post("/topics/flights/partitions/0", RECORDS, JSON_V2)
    plain = await get(proxied, FETCH + "&rack=a")
    assert {"quorumlog-leader-url", "quorumlog-served-by-url"} <= set(plain.headers)
    for path in (FETCH, FETCH + "&rack=a"):
        seen = await get(proxied, path, headers)
        assert not [name for name in seen.headers if name.endswith("-url")]
        assert seen.headers["quorumlog-leader"] == plain.headers["quorumlog-leader"]
    again = await get(proxied, FETCH)
    assert "quorumlog-leader-url" in again.headers, "only the forwarded request is answered so"


async def test_a_page_of_a_poll_through_a_proxy_names_no_leader_by_url(proxied: Door) -> None:
    await proxied.call("POST", "/topics/flights/partitions/0", RECORDS, {"Content-Type": JSON_V2})
    row = b'{"topic_name":"flights","partition_id":0,"offset":0}'
    for seen, is_named in (({}, True), (SEEN, False)):
        headers = {"Content-Type": "application/json", **seen}
        body = b'{"partitions":[%b],"rack":"a"}' % row
        answer = await proxied.call("POST", f"{V3}/records:poll", body, headers)
        page = json.loads(answer.body.partition(b"\n")[0])["page"]
        assert (page["leader_url"] is not None) is is_named
        assert (page["served_by_url"] is not None) is is_named


async def test_an_answer_through_a_proxy_names_no_coordinator_by_url(proxied: Door) -> None:
    proxied.apis.add_topic(OFFSETS_TOPIC, 12)
    path = f"{V3}/consumer-groups/pilots/offsets"
    for headers, is_named in ((SEEN, False), ({}, True)):
        typed = {"Content-Type": "application/json"} | headers
        answer = await proxied.call("PATCH", path, b'{"data":[]}', typed)
        assert answer.status == 204
        assert ("quorumlog-coordinator-url" in answer.headers) is is_named


@pytest.mark.parametrize("proxies", [TrustedProxies(), ELSEWHERE])
async def test_from_anybody_else_the_headers_mean_nothing(proxies: TrustedProxies) -> None:
    headers = {**SEEN, "X-Forwarded-Host": "evil", "Forwarded": "host=evil;proto=https"}
    async with open_door(proxies=proxies) as door:
        await door.post("/topics/flights/partitions/0", RECORDS, JSON_V2)
        for path in LISTS:
            assert (await get(door, path, headers)).body == (await get(door, path)).body
        answer = await get(door, FETCH, headers)
        assert (
            answer.headers["quorumlog-leader-url"]
            == (await get(door, FETCH)).headers["quorumlog-leader-url"]
        )


@pytest.mark.parametrize(
    "host",
    ["evil.example/x", "a b", "a" * 1_000, 'a"b', "a@b", "<script>"],
)
async def test_a_bad_host_is_left_unused(proxied: Door, host: str) -> None:
    answer = await get(proxied, f"{V3}/topics/flights", {"X-Forwarded-Host": host})
    assert answer.json["metadata"]["self"] == f"{V3_URL}/topics/flights"
    assert host.encode() not in answer.body


@pytest.mark.parametrize(
    "line", [b"X-Forwarded-Host: a\rSet-Cookie: x", b"X-Forwarded-Host: a\x00b", b"X-A\x00: b"]
)
async def test_control_characters_in_a_header_are_refused_or_unused(
    proxied: Door, line: bytes
) -> None:
    request = b"GET %b HTTP/1.1\r\nHost: localhost\r\n%b\r\n\r\n" % (f"{V3}/topics".encode(), line)
    answer = await proxied.raw(request)
    assert answer.status == 400
    assert "set-cookie" not in answer.headers


async def test_a_header_smuggled_with_a_line_break_is_a_header_of_its_own(proxied: Door) -> None:
    """A client can't do this through a proxy; the proxy itself may name two hosts: the first."""
    headers = {"X-Forwarded-Host": "log.example\r\nX-Forwarded-Host: evil"}
    answer = await get(proxied, f"{V3}/topics/flights", headers)
    assert answer.json["metadata"]["self"].startswith("http://log.example/")


# foreign pages


async def test_a_page_is_compared_with_the_site_that_the_proxy_reports(proxied: Door) -> None:
    produce = {**SEEN, "Content-Type": JSON_V2}
    for origin, status in (
        ("https://log.example", 200),
        ("https://log.example:443", 200),
        ("http://log.example", 403),
        ("https://evil.example", 403),
        (f"http://{proxied.address}", 403),
        ("null", 403),
    ):
        answer = await proxied.call(
            "POST", "/topics/flights", RECORDS, {**produce, "Origin": origin}
        )
        assert answer.status == status, origin


async def test_a_proxy_that_keeps_the_host_reports_only_the_scheme(proxied: Door) -> None:
    headers = {"Host": "log.test", "X-Forwarded-Proto": "https", "Content-Type": JSON_V2}
    for origin, status in (("https://log.test", 200), ("https://other.test", 403)):
        answer = await proxied.call(
            "POST", "/topics/flights", RECORDS, {**headers, "Origin": origin}
        )
        assert answer.status == status, origin


async def test_a_rebound_name_is_refused_whatever_its_page_says_of_a_proxy(proxied: Door) -> None:
    """The page's requests come from its reader's machine, which may be a trusted proxy."""
    for named in ("localhost", "log.test", "127.0.0.1"):
        headers = {"Host": "evil.example", "X-Forwarded-Host": named}
        answer = await proxied.call("GET", "/topics", headers=headers)
        assert (answer.status, answer.json["error_code"]) == (403, 403)
