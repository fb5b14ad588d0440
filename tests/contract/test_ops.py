"""/, /healthz, /readyz, and what holds on every path."""

from __future__ import annotations

import pytest

from tests.support.http_door import V3, Door

V2 = "application/vnd.kafka.v2+json"
TEXT = "text/plain; charset=utf-8"


@pytest.mark.parametrize("path", ["/", "//", ""])
async def test_root_is_an_empty_object(door: Door, path: str) -> None:
    answer = await door.get(path or "/?_x=1")
    assert answer.golden == (200, V2, {})


async def test_healthz(door: Door) -> None:
    door.apis.rows = [("metadata is 3 s old", False)]
    answer = await door.get("/healthz")
    assert (answer.status, answer.type, answer.body) == (200, TEXT, b"ok\n")


async def test_readyz_has_a_line_per_reason(door: Door) -> None:
    answer = await door.get("/readyz")
    assert (answer.status, answer.type) == (200, TEXT)
    assert answer.body == b"[+]node ok\n[+]metadata ok\n"
    door.apis.rows = [("node", True), ("metadata behind by 12 records", False)]
    answer = await door.get("/readyz/")
    assert (answer.status, answer.type) == (503, TEXT)
    assert answer.body == b"[+]node ok\n[-]metadata behind by 12 records\n"


@pytest.mark.parametrize(
    ("path", "content_type"),
    [
        ("/nope", V2),
        ("/topics/flights/nope", V2),
        ("/v3", "application/json"),
        ("/v3/nope", "application/json"),
        ("//v3/nope", "application/json"),
    ],
)
async def test_an_unknown_path_is_404(door: Door, path: str, content_type: str) -> None:
    answer = await door.get(path)
    message = f"HTTP 404 Not Found: no resource at {path}"
    assert answer.golden == (404, content_type, {"error_code": 404, "message": message})


@pytest.mark.parametrize(
    ("method", "path", "allowed"),
    [
        ("PUT", "/topics/flights", "GET, HEAD, POST"),
        ("POST", "/topics", "GET, HEAD"),
        ("OPTIONS", "/brokers", "GET, HEAD"),
        ("GET", "/topics/flights/partitions/0/records/", None),
        ("PATCH", f"{V3}/topics", "GET, HEAD, POST"),
        ("POST", f"{V3}/topics/flights", "DELETE, GET, HEAD, PATCH"),
    ],
)
async def test_another_method_is_405(
    door: Door, method: str, path: str, allowed: str | None
) -> None:
    answer = await door.call(method, path)
    if allowed is None:
        assert answer.status == 400
        return
    message = f"HTTP 405 Method Not Allowed: got {method}, expected {allowed}"
    assert (answer.status, answer.json) == (405, {"error_code": 405, "message": message})
    assert answer.headers["allow"] == allowed


@pytest.mark.parametrize("path", ["/topics", "/brokers", "/v3/clusters", "/readyz", "/"])
async def test_head_is_get_without_the_body(door: Door, path: str) -> None:
    get, head = await door.get(path), await door.call("HEAD", path)
    assert (head.status, head.type, head.body) == (get.status, get.type, b"")
    assert head.headers["content-length"] == get.headers["content-length"]


async def test_a_body_on_get_is_taken(door: Door) -> None:
    answer = await door.call("GET", "/topics", '{"x":1}', {"Content-Type": "text/plain"})
    assert (answer.status, answer.json) == (200, ["flights"])


async def test_a_request_id_comes_back_or_is_made(door: Door) -> None:
    answer = await door.call("GET", "/topics", headers={"X-Request-Id": "abc-1"})
    assert answer.headers["x-request-id"] == "abc-1"
    made = {(await door.get(path)).headers["x-request-id"] for path in ("/topics", "/nope")}
    assert len(made) == 2
    assert "x y" not in made
    odd = await door.call("GET", "/topics", headers={"X-Request-Id": "x y"})
    assert odd.headers["x-request-id"] != "x y"
