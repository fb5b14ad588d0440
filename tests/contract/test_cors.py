"""CORS: off by default; on for the origins that an operator names, live, through both ways."""

from __future__ import annotations

import pytest

from http_api.contract.origins import ALLOWED_HEADERS, allowed_origins
from tests.support.http_door import V3, Answer, Door

JSON_V2 = "application/vnd.kafka.json.v2+json"
RECORDS = b'{"records":[{"value":1}]}'
FETCH = "/topics/flights/partitions/0/records?offset=0"
APP = "https://app.example"
PREFLIGHT = {"Origin": APP, "Access-Control-Request-Method": "POST"}


def cors(answer: Answer) -> dict[str, str]:
    found = {
        name.removeprefix("access-control-"): value
        for name, value in answer.headers.items()
        if name.startswith("access-control-")
    }
    return found | ({"vary": answer.headers["vary"]} if "vary" in answer.headers else {})


async def test_off_by_default_there_is_no_cors_header_and_no_preflight(door: Door) -> None:
    for origin in (APP, f"http://{door.address}"):
        answer = await door.call("GET", "/topics", headers={"Origin": origin})
        assert (answer.status, cors(answer)) == (200, {})
    refused = await door.call("OPTIONS", "/topics", headers=PREFLIGHT)
    assert (refused.status, cors(refused)) == (403, {})
    for headers in ({}, {**PREFLIGHT, "Origin": f"http://{door.address}"}):
        refused = await door.call("OPTIONS", "/topics", headers=headers)
        assert (refused.status, cors(refused)) == (405, {})
        assert refused.headers["allow"] == "GET, HEAD"


async def test_a_preflight_names_the_methods_of_its_path_and_every_header(door: Door) -> None:
    door.apis.set_cluster_configs(cors_allowed_origins=APP)
    for path, methods in (
        ("/topics/flights", "GET, HEAD, POST"),
        (f"{V3}/topics/flights", "DELETE, GET, HEAD, PATCH"),
    ):
        answer = await door.call("OPTIONS", path, headers=PREFLIGHT)
        assert (answer.status, answer.body) == (204, b"")
        assert cors(answer) == {
            "allow-origin": APP,
            "allow-credentials": "true",
            "allow-methods": methods,
            "allow-headers": ", ".join(ALLOWED_HEADERS),
            "max-age": "600",
            "vary": "Origin",
        }
    assert not any("*" in name for name in ALLOWED_HEADERS), "browsers know no such pattern"
    assert (await door.call("OPTIONS", "/nowhere", headers=PREFLIGHT)).status == 404
    assert (await door.call("OPTIONS", "/topics", headers={"Origin": APP})).status == 405
    other = {**PREFLIGHT, "Origin": "https://evil.example"}
    refused = await door.call("OPTIONS", "/topics", headers=other)
    assert refused.status == 403
    assert "allow-origin" not in cors(refused)


async def test_answers_to_an_allowed_origin_expose_our_headers_they_carry(door: Door) -> None:
    door.apis.set_cluster_configs(cors_allowed_origins=f"https://other.example,{APP}:443")
    headers = {"Origin": APP, "Content-Type": JSON_V2}
    written = await door.call("POST", "/topics/flights/partitions/0", RECORDS, headers)
    assert written.status == 200
    read = await door.call("GET", FETCH, headers={"Origin": APP, "Accept": "application/x-ndjson"})
    exposed = cors(read)["expose-headers"].lower().split(", ")
    assert exposed == [name for name in read.headers if name.startswith("quorumlog-")]
    assert "quorumlog-next-offset" in exposed
    assert cors(read)["allow-origin"] == APP
    assert cors(read)["allow-credentials"] == "true"
    assert cors(read)["vary"] == "Accept-Encoding, Origin"
    failed = await door.call("GET", "/topics/nowhere", headers={"Origin": APP})
    assert failed.status == 404
    assert cors(failed)["allow-origin"] == APP, "a page may read why it was refused"


async def test_any_origin_gets_no_credentials_unless_it_is_named(door: Door) -> None:
    door.apis.set_cluster_configs(cors_allowed_origins="*")
    for origin in ("https://any.example", "null"):
        headers = {"Origin": origin, "Content-Type": JSON_V2}
        answer = await door.call("POST", "/topics/flights", RECORDS, headers)
        exposed = "Quorumlog-Topic-Id, Quorumlog-Partitions"
        assert answer.status == 200
        assert cors(answer) == {"allow-origin": "*", "expose-headers": exposed}
    door.apis.set_cluster_configs(cors_allowed_origins=f"*,{APP}")
    named = await door.call("GET", "/topics", headers={"Origin": APP})
    assert cors(named) == {"allow-origin": APP, "allow-credentials": "true", "vary": "Origin"}
    other = await door.call("GET", "/topics", headers={"Origin": "https://any.example"})
    assert cors(other) == {"allow-origin": "*", "vary": "Origin"}


@pytest.mark.parametrize(
    "origin",
    ["https://evil.example", "http://app.example", "https://app.example:8443", "null",
     "https://app.example.evil.example", "https://app.example@evil.example", "https://a\tb"],
)  # fmt: skip
async def test_another_origin_is_refused_and_told_nothing(door: Door, origin: str) -> None:
    door.apis.set_cluster_configs(cors_allowed_origins=APP)
    headers = {"Origin": origin, "Content-Type": JSON_V2}
    answer = await door.call("POST", "/topics/flights", RECORDS, headers)
    assert (answer.status, cors(answer)) == (403, {"vary": "Origin"})
    assert door.apis.requests == []
    assert cors(await door.call("GET", "/topics", headers=headers)) == {"vary": "Origin"}


async def test_two_origins_are_no_origin(door: Door) -> None:
    door.apis.set_cluster_configs(cors_allowed_origins=APP)
    answer = await door.call("GET", "/topics", headers={"Origin": f"{APP}\r\nOrigin: {APP}"})
    assert cors(answer) == {}


async def test_an_origin_is_allowed_live_and_the_lane_goes_on_without_it(door: Door) -> None:
    async def status(origin: str | None) -> int:
        headers = {"Content-Type": JSON_V2} | ({"Origin": origin} if origin else {})
        return (await door.call("POST", "/topics/flights", RECORDS, headers)).status

    assert await status(APP) == 403
    door.apis.set_cluster_configs(cors_allowed_origins=APP)
    assert await status(APP) == 200
    taken = door.apis.direct.taken
    assert await status(None) == 200
    assert door.apis.direct.taken == taken + 1
    door.apis.set_cluster_configs()
    assert await status(APP) == 403


async def test_a_host_that_is_not_known_is_refused_to_an_allowed_page_too(door: Door) -> None:
    door.apis.set_cluster_configs(cors_allowed_origins=APP)
    for headers in ({"Origin": APP}, PREFLIGHT):
        method = "OPTIONS" if headers is PREFLIGHT else "GET"
        answer = await door.call(method, "/topics", headers={**headers, "Host": "evil.example"})
        assert answer.status == 403


def test_origins_are_compared_by_scheme_host_and_port() -> None:
    allowed = allowed_origins(["https://App.example:443", "http://[::1]:8082"])
    assert allowed.allows("https://app.example")
    assert allowed.allows("http://[::1]:8082")
    assert not allowed.allows("http://app.example")
    assert not allowed.allows("http://[::1]")
    assert not allowed_origins([])
