"""PathRouter of the public listener: from a method and a path to a handler.

`app.py` fills the router once and resolves every request with it. aiohttp's own dispatcher is not
used: it accepts no double slashes, and words its own 404 and 405. This router walks a tree over the
path's segments, so empty ones (trailing and double slashes) have no effect, and a look-up costs one
dict access per segment. A variable segment may end in an action, as in ``/brokers/3:drain``.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol
from urllib.parse import unquote

from aiohttp import web

from http_api.contract.errors import RestCode, RestError, excerpt

if TYPE_CHECKING:
    from http_api.contract.operations.declaration import Operation

COLON_SEGMENTS = frozenset({"transactional_id"})
"""Segments whose values may hold colons: with a method of the value's own that the action has not,
the whole segment is the value."""
Handler = Callable[..., Awaitable[web.StreamResponse]]
"""Signature ``async handler(request, *parameters)``: the path's variable segments, decoded."""


@dataclass(frozen=True, slots=True)
class Route:
    """The handler of one operation, and what each request needs of its declaration."""

    operation: Operation
    handler: Handler
    reply_type: str
    """Content-Type of its answers, and therefore of its errors."""
    parameters: frozenset[str]
    """Names of the query parameters it takes; any other is refused before the handler runs."""
    takes_any_length: bool
    """The body is read as a stream, so its length has no limit."""


@dataclass(slots=True)
class _Node:
    fixed: dict[str, _Node] = field(default_factory=dict)
    variable: _Node | None = None
    actions: dict[str, _Node] = field(default_factory=dict)
    """Node behind a variable segment that ends in ``:action``, by action."""
    routes: dict[str, Route] = field(default_factory=dict)
    holds_colons: bool = False
    """The value of the variable segment may hold colons."""


class PathRouter:
    """The tree of paths. Filled while the app is built, then only read."""

    def __init__(self) -> None:
        self._root = _Node()
        self.operations: list[Operation] = []
        """Declarations of all routes, in the order in which they were added."""

    def serve(self, operation: Operation, handler: Handler) -> None:
        """Serve a declared operation; GET serves HEAD too."""
        method, path = operation.method, operation.path
        node = self._root
        for segment in path.split("/"):
            if not segment:
                continue
            if segment.startswith("{") and not segment.endswith("}"):
                node = node.actions.setdefault(segment.rpartition(":")[2], _Node())
            elif segment.startswith("{"):
                node.holds_colons |= segment[1:-1] in COLON_SEGMENTS
                node.variable = node.variable or _Node()
                node = node.variable
            else:
                node = node.fixed.setdefault(segment, _Node())
        assert method not in node.routes, f"{method} {path} is served twice"
        body = operation.body
        node.routes[method] = Route(
            operation=operation,
            handler=handler,
            reply_type=operation.reply_type,
            parameters=operation.parameter_names,
            takes_any_length=body is not None and body.is_stream,
        )
        if method == "GET":
            node.routes["HEAD"] = node.routes[method]
        self.operations.append(operation)

    def resolve(self, method: str, raw_path: str) -> tuple[Route, list[str]]:
        """Return the route of a path as sent over the wire, and the path's parameters, decoded.

        Raises:
            RestError: 404 for an unknown path, 405 (with ``Allow``) for another method.
        """
        routes, parameters = self._at(raw_path, method)
        route = routes.get(method)
        if route is not None:
            return route, parameters
        allowed = ", ".join(sorted(routes))
        raise RestError(
            405,
            RestCode.METHOD_NOT_ALLOWED,
            f"HTTP 405 Method Not Allowed: got {method}, expected {allowed}",
            headers={"Allow": allowed},
        )

    def methods(self, raw_path: str) -> list[str]:
        """Return the methods of a path, sorted.

        Raises:
            RestError: 404 for an unknown path.
        """
        return sorted(self._at(raw_path)[0])

    def _at(self, raw_path: str, method: str = "") -> tuple[dict[str, Route], list[str]]:
        """Return the routes of a path by method, at least one, and the path's parameters.

        ``method``: the one that is wanted, if a route of it is.
        """
        node = self._root
        parameters: list[str] = []
        for raw_segment in raw_path.split("/"):
            if not raw_segment:
                continue
            segment = unquote(raw_segment) if "%" in raw_segment else raw_segment
            following = node.fixed.get(segment)
            if following is None:
                following, parameter = _variable(node, segment, method)
                parameters.append(parameter)
            if following is None:
                raise _not_found(raw_path)
            node = following
        if not node.routes:
            raise _not_found(raw_path)
        return node.routes, parameters

    def takes_any_length(self, method: str, raw_path: str) -> bool:
        """Return True if the route of this path reads its body as a stream."""
        try:
            return self.resolve(method, raw_path)[0].takes_any_length
        except RestError:
            return False


class RouteGroup(Protocol):
    """Paths of one noun and their handlers."""

    def add_to(self, router: PathRouter) -> None:
        """Add the paths to the router."""
        ...


def _variable(node: _Node, segment: str, method: str) -> tuple[_Node | None, str]:
    """Return the node behind a segment that is not fixed, and the parameter in the segment."""
    if node.actions:
        name, _, action = segment.rpartition(":")
        following = node.actions.get(action)
        if name and following is not None and not _is_value(node, following, method):
            return following, name
    return node.variable, segment


def _is_value(node: _Node, action: _Node, method: str) -> bool:
    """Return True if a segment that ends like an action is a value with a colon all the same."""
    if not node.holds_colons or node.variable is None:
        return False
    return method in node.variable.routes and method not in action.routes


def _not_found(raw_path: str) -> RestError:
    return RestError(
        404, RestCode.NOT_FOUND, f"HTTP 404 Not Found: no resource at {excerpt(raw_path)}"
    )
