"""From a path to a handler."""

from __future__ import annotations

import pytest
from aiohttp import web

from http_api.contract.errors import RestError
from http_api.contract.operations.declaration import Operation, no_content
from http_api.server.routing import Handler, PathRouter


async def topic(request: web.Request) -> web.Response:
    raise NotImplementedError


async def partition(request: web.Request) -> web.Response:
    raise NotImplementedError


@pytest.fixture
def router() -> PathRouter:
    router = PathRouter()
    serve(router, "GET", "/topics/{topic}", topic)
    serve(router, "POST", "/topics/{topic}", topic)
    serve(router, "GET", "/topics/{topic}/partitions/{partition}", partition)
    return router


def serve(router: PathRouter, method: str, path: str, handler: Handler) -> None:
    operation = Operation(method, path, tag="t", summary="s", replies=(no_content(),))
    router.serve(operation, handler)


@pytest.mark.parametrize(
    ("path", "parameters"),
    [
        ("/topics/a", ["a"]),
        ("//topics//a//", ["a"]),
        ("/topics/a%20b", ["a b"]),
        ("/topics/a%2Fb", ["a/b"]),
        ("/topics/partitions", ["partitions"]),
        ("/topics/%ff", ["\ufffd"]),
        ("/topics/..", [".."]),
    ],
)
def test_a_path_is_its_segments(router: PathRouter, path: str, parameters: list[str]) -> None:
    route, found = router.resolve("GET", path)
    assert (route.handler, found) == (topic, parameters)


def test_parameters_come_in_order(router: PathRouter) -> None:
    route, found = router.resolve("HEAD", "/topics/a/partitions/3/")
    assert (route.handler, found) == (partition, ["a", "3"])


@pytest.mark.parametrize(
    ("path", "handler", "parameters"),
    [
        ("/topics/a:close", partition, ["a"]),
        ("/topics/a%3Aclose/", partition, ["a"]),
        ("/topics/a:b:close", partition, ["a:b"]),
        ("/topics/a:open", topic, ["a:open"]),
        ("/topics/:close", topic, [":close"]),
        ("/topics/close", topic, ["close"]),
    ],
)
def test_a_variable_segment_may_end_in_an_action(
    router: PathRouter, path: str, handler: Handler, parameters: list[str]
) -> None:
    serve(router, "POST", "/topics/{topic}:close", partition)
    route, found = router.resolve("POST", path)
    assert (route.handler, found) == (handler, parameters)


async def act(request: web.Request) -> web.Response:
    raise NotImplementedError


def test_an_id_with_colons_may_end_like_an_action(router: PathRouter) -> None:
    serve(router, "POST", "/transactions/{transactional_id}:init", act)
    serve(router, "GET", "/transactions/{transactional_id}", topic)
    post, name = router.resolve("POST", "/transactions/key:a:init")
    assert (post.handler, name) == (act, ["key:a"])
    for method in ("GET", "HEAD"):
        route, name = router.resolve(method, "/transactions/key:a:init")
        assert (route.handler, name) == (topic, ["key:a:init"])
    with pytest.raises(RestError) as error:
        router.resolve("DELETE", "/transactions/key:a:init")
    assert error.value.headers == {"Allow": "POST"}
    assert router.methods("/transactions/key:a:init") == ["POST"]


def test_a_name_without_colons_of_its_own_is_never_taken_for_a_value(router: PathRouter) -> None:
    serve(router, "POST", "/topics/{topic}:close", partition)
    with pytest.raises(RestError) as error:
        router.resolve("GET", "/topics/a:close")
    assert error.value.headers == {"Allow": "POST"}


@pytest.mark.parametrize("path", ["/", "/nope", "/topics", "/topics/a/b", "/topics/a/partitions"])
def test_an_unknown_path_is_404(router: PathRouter, path: str) -> None:
    with pytest.raises(RestError) as error:
        router.resolve("GET", path)
    assert (error.value.status, error.value.code) == (404, 404)


def test_another_method_is_405_and_says_which(router: PathRouter) -> None:
    with pytest.raises(RestError) as error:
        router.resolve("DELETE", "/topics/a")
    assert error.value.status == 405
    assert error.value.headers == {"Allow": "GET, HEAD, POST"}
