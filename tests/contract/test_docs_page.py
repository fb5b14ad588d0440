"""``/openapi.json`` and ``/docs``: types, the policy, and the page where Swagger UI is missing."""

from __future__ import annotations

import re
from collections.abc import Callable

import pytest

from http_api.server.routes import api_document
from tests.support.http_door import ADVERTISED, Door, open_door

POLICY = "default-src 'self'; style-src 'self' 'unsafe-inline'; img-src 'self' data:"


async def test_the_document_is_json_and_names_the_address_of_clients(door: Door) -> None:
    answer = await door.get("/openapi.json")
    assert (answer.status, answer.type) == (200, "application/json")
    assert answer.json["openapi"] == "3.1.0"
    assert answer.json["servers"] == [{"url": ADVERTISED}]
    assert (await door.call("HEAD", "/openapi.json")).status == 200
    assert (await door.get("/openapi.json?x=1")).status == 400


@pytest.mark.parametrize(("path", "root"), [("/docs", ""), ("/docs/", "../")])
async def test_the_page_loads_its_files_from_here_and_from_nowhere_else(
    door: Door, path: str, root: str
) -> None:
    answer = await door.get(path)
    assert (answer.status, answer.type) == (200, "text/html; charset=utf-8")
    assert answer.headers["content-security-policy"] == POLICY
    loaded = re.findall(r'(?:src|href)="([^"]+)"', answer.body.decode())
    assert len(loaded) == 4
    assert all(name.startswith(f"{root}docs/") for name in loaded)
    for name in loaded:
        file = await door.get("/" + name.removeprefix("../"))
        assert (file.status, file.body != b"") == (200, True), name


@pytest.mark.parametrize(
    ("name", "content_type"),
    [
        ("swagger-ui.css", "text/css"),
        ("swagger-ui-bundle.js", "text/javascript"),
        ("start.js", "text/javascript"),
        ("favicon-32x32.png", "image/png"),
    ],
)
async def test_a_file_of_the_page_has_its_type(door: Door, name: str, content_type: str) -> None:
    answer = await door.get(f"/docs/{name}")
    assert (answer.status, answer.type) == (200, content_type)


@pytest.mark.parametrize(
    "name", ["index.html", "..%2f..%2f__init__.py", "swagger-ui.css%00", "%2fetc%2fpasswd"]
)
async def test_no_other_file_is_served(door: Door, name: str) -> None:
    answer = await door.get(f"/docs/{name}")
    assert (answer.status, answer.type, answer.json["error_code"]) == (404, "application/json", 404)


@pytest.mark.parametrize("missing", [lambda _: None, lambda _: type("Spec", (), _NO_PLACES)()])
async def test_without_swagger_ui_the_page_is_a_list_and_says_what_to_install(
    monkeypatch: pytest.MonkeyPatch, missing: Callable[[str], object]
) -> None:
    monkeypatch.setattr(api_document, "find_spec", missing)
    async with open_door() as door:
        answer = await door.get("/docs")
        paths = (await door.get("/openapi.json")).json["paths"]
        assert (await door.get("/docs/swagger-ui.css")).status == 404
        assert (await door.get("/docs/start.js")).status == 404
    page = answer.body.decode()
    assert answer.headers["content-security-policy"] == POLICY
    assert "pip install 'quorumlog[docs]'" in page
    assert "<script" not in page
    listed = re.findall(r"<dt><code>(\w+) ([^<]+)</code>", page)
    assert sorted(listed) == sorted(
        (method.upper(), path) for path, methods in paths.items() for method in methods
    )
    assert "<code>max_bytes</code>: Bytes after which the answer is cut" in page


_NO_PLACES = {"submodule_search_locations": []}
