"""Requests of foreign web pages are refused before anything is done, by the fast lane, too."""

from __future__ import annotations

import asyncio

import pytest
from hypothesis import given
from hypothesis import strategies as st

from http_api.contract.errors import RestError
from http_api.contract.foreign_pages import TrustedHosts
from tests.support.http_door import V3, Door, read_answer

V2_JSON = "application/vnd.kafka.json.v2+json"
RECORDS = b'{"records":[{"value":1}]}'


@pytest.mark.parametrize(
    "origin",
    ["https://evil.example", "null", "http://127.0.0.1:1", "file://", "https://log.test:9"],
)
@pytest.mark.parametrize(
    ("method", "path"),
    [
        ("POST", "/topics/flights"),
        ("POST", "/consumers/g"),
        ("POST", f"{V3}/topics/flights/partitions/0/leader:elect"),
        ("DELETE", f"{V3}/topics/flights"),
        ("OPTIONS", "/topics"),
    ],
)
async def test_a_page_of_another_site_changes_nothing(
    door: Door, method: str, path: str, origin: str
) -> None:
    headers = {"Origin": origin, "Content-Type": V2_JSON}
    answer = await door.call(method, path, RECORDS, headers)
    assert (answer.status, answer.json["error_code"]) == (403, 403)
    assert "hosts in [listeners]" in answer.json["message"]
    assert door.apis.requests == []


@pytest.mark.parametrize("host", ["evil.example", "evil.example:8082", "127.0.0.1.evil.example"])
async def test_a_rebound_host_name_reads_and_changes_nothing(door: Door, host: str) -> None:
    produce = {"Host": host, "Content-Type": V2_JSON}
    for answer in (
        await door.call("GET", "/topics", headers={"Host": host}),
        await door.call("GET", "/topics/flights/partitions/0/records?offset=0", headers=produce),
        await door.call("POST", "/topics/flights", RECORDS, produce),
        await door.call("DELETE", f"{V3}/topics/flights", headers={"Host": host}),
    ):
        assert (answer.status, answer.json["error_code"]) == (403, 403)
        assert host in answer.json["message"]
    assert door.apis.requests == []


@pytest.mark.parametrize(
    "host",
    ["127.0.0.1", "[::1]:8082", "localhost:1", "broker-1.test:8082", "LOG.test", "log.test:1"],
)
async def test_the_names_of_this_listener_are_served(door: Door, host: str) -> None:
    headers = {"Host": host, "Content-Type": V2_JSON}
    assert (await door.call("GET", "/topics", headers=headers)).status == 200
    assert (await door.call("POST", "/topics/flights", RECORDS, headers)).status == 200


@pytest.mark.parametrize(
    "origin", ["http://{address}", "https://log.test", "http://log.test", "https://log.test:8443"]
)
async def test_a_page_of_this_listener_or_of_a_named_host_is_served(
    door: Door, origin: str
) -> None:
    headers = {"Origin": origin.format(address=door.address), "Content-Type": V2_JSON}
    assert (await door.call("POST", "/topics/flights", RECORDS, headers)).status == 200


async def test_a_page_of_another_site_may_ask_what_its_browser_will_not_show(door: Door) -> None:
    answer = await door.call("GET", "/topics", headers={"Origin": "https://evil.example"})
    assert answer.status == 200
    assert "access-control-allow-origin" not in answer.headers


async def test_a_remembered_head_is_checked_as_any_other(door: Door) -> None:
    head = "POST /topics/flights HTTP/1.1\r\nHost: {host}\r\nContent-Type: " + V2_JSON
    head += f"\r\nContent-Length: {len(RECORDS)}\r\n\r\n"
    host, _, port = door.address.rpartition(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    statuses = []
    for name in ("localhost", "localhost", "evil.example", "evil.example", "localhost"):
        writer.write(head.format(host=name).encode() + RECORDS)
        statuses.append((await read_answer(reader)).status)
    writer.close()
    assert statuses == [200, 200, 403, 403, 200]


def test_a_listener_for_a_network_serves_any_host_and_still_compares_origins() -> None:
    trusted = TrustedHosts(is_loopback=False)
    trusted.check("DELETE", ["log.example"], ["http://log.example"])
    with pytest.raises(RestError, match="another site"):
        trusted.check("DELETE", ["log.example"], ["https://log.example:8443"])


@given(host=st.text(max_size=300), origin=st.text(max_size=300))
def test_no_text_is_taken_for_a_name_that_is_not_listed(host: str, origin: str) -> None:
    trusted = TrustedHosts(is_loopback=True, advertised="broker-1.test")
    if trusted.is_trusted_host(host):
        name = host.lower().rpartition(":")[0] or host.lower()
        assert name.strip("[]").strip(".0123456789abcdef:") == "" or "localhost" in host.lower()
    with pytest.raises(RestError):
        trusted.check("POST", ["localhost"], [origin])
