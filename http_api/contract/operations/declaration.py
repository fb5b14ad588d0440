"""Operation: the declaration of one method of one path.

Each module beside this one declares the operations of one noun. A route is added to the router with
its operation (`PathRouter.serve`), which takes from it the names of the query parameters and the
Content-Type of the errors. `document.py` renders all operations into ``/openapi.json``. The tests
compare every answer with its operation: an undeclared status, code or header fails them.
"""

from __future__ import annotations

import re
from dataclasses import KW_ONLY, dataclass, field
from typing import TYPE_CHECKING, Any, Final

from http_api.contract.errors import RestCode, status_of
from http_api.contract.media_types import JSON

if TYPE_CHECKING:
    from collections.abc import Mapping

    from http_api.contract.operations.parameters import Parameter

ALWAYS: Final = (
    RestCode.BAD_REQUEST,
    RestCode.KAFKA_BAD_REQUEST,
    RestCode.FOREIGN_PAGE,
    RestCode.KAFKA_ERROR,
)
"""Codes that any operation may answer with: malformed HTTP or names, an unknown parameter, a web
page of another site, a failure that the broker's log explains."""
OF_A_BODY: Final = (
    RestCode.REQUEST_TIMEOUT,
    RestCode.TOO_LARGE,
    RestCode.UNSUPPORTED_MEDIA_TYPE,
)
"""Codes of reading a body: too slow, over a limit, another Content-Type."""
OF_A_CLUSTER: Final = (RestCode.NOT_FOUND, RestCode.NOT_ACCEPTABLE)
"""Codes of every path below ``/v3/clusters/C``: another cluster id, another Accept."""

CLUSTER: Final = "/v3/clusters/{cluster_id}"
"""Path of this cluster, below which the v3 API lies."""
_SEGMENT = re.compile(r"\{(\w+)\}")


@dataclass(frozen=True, slots=True)
class Header:
    """Header of an answer."""

    name: str
    description: str
    example: str | int
    _: KW_ONLY
    is_constant: bool = False
    """Every answer with this status has it."""


@dataclass(frozen=True, slots=True)
class Reply:
    """Answer of an operation that is no error."""

    status: int
    description: str
    content: Mapping[str, Any] = field(default_factory=dict)
    """Example of the body for each Content-Type; the schema of the body is read off the example."""
    _: KW_ONLY
    headers: tuple[Header, ...] = ()


def reply(
    example: Any,
    description: str = "The answer.",
    status: int = 200,
    *,
    headers: tuple[Header, ...] = (),
    content_type: str = JSON,
) -> Reply:
    """Return an answer with one Content-Type, by default that of the v3 API."""
    return Reply(status, description, {content_type: example}, headers=headers)


def no_content(
    description: str = "Done.", content_type: str = JSON, *, headers: tuple[Header, ...] = ()
) -> Reply:
    """Return a 204, which names the Content-Type of the path's errors though it has no body."""
    return Reply(204, description, {content_type: None}, headers=headers)


@dataclass(frozen=True, slots=True, kw_only=True)
class Body:
    """JSON object that a request carries."""

    fields: Mapping[str, Mapping[str, Any]]
    """JSON Schema of each field, by name; the route refuses other names unless `is_open`."""
    example: Any
    needed: tuple[str, ...] = ()
    """Fields that must be present."""
    media_types: tuple[str, ...] = (JSON,)
    """Content-Types that clients should send; routes may take older spellings, too."""
    description: str = ""
    is_optional: bool = False
    """A request without a body is taken."""
    is_open: bool = False
    """Fields of other names are taken."""
    is_stream: bool = False
    """The body is read as a stream, so its length has no limit."""

    @property
    def schema(self) -> dict[str, Any]:
        """JSON Schema of the object."""
        found: dict[str, Any] = {"type": "object", "properties": dict(self.fields)}
        if self.needed:
            found["required"] = list(self.needed)
        return found if self.is_open else found | {"additionalProperties": False}


@dataclass(frozen=True, slots=True)
class Operation:
    """One method of one path. Immutable; made when its module is imported."""

    method: str
    path: str
    """Path with its variable segments in braces, named as in `segments.py`."""
    _: KW_ONLY
    tag: str
    """Heading under which the pages list it."""
    summary: str
    replies: tuple[Reply, ...]
    """Answers that are no errors."""
    parameters: tuple[Parameter, ...] = ()
    """Query parameters; any other is refused before the handler runs."""
    headers: tuple[Parameter, ...] = ()
    """Request headers that change what is done."""
    body: Body | None = None
    errors: tuple[RestCode, ...] = ()
    """Codes besides those in `codes` that every operation has."""
    error_headers: tuple[Header, ...] = ()
    """Headers that an answer with an error may have."""
    description: str = ""
    carries_records: bool = False
    """True if answers hold records or a row for each: only ``http.gzip=all`` packs them."""
    error_type: str = ""
    """Content-Type of errors, if it is not the first one of the first answer."""

    @property
    def reply_type(self) -> str:
        """Content-Type of its errors until the request's Accept is known."""
        return self.error_type or next(iter(self.replies[0].content))

    @property
    def parameter_names(self) -> frozenset[str]:
        """Names that a query may have."""
        return frozenset(parameter.name for parameter in self.parameters)

    @property
    def segments(self) -> tuple[str, ...]:
        """Names of the path's variable segments, in order."""
        return tuple(_SEGMENT.findall(self.path))

    @property
    def codes(self) -> frozenset[RestCode]:
        """Error codes that an answer may have."""
        found = {*ALWAYS, *self.errors}
        if self.body is not None:
            found.update(OF_A_BODY)
        if self.path.startswith(CLUSTER):
            found.update(OF_A_CLUSTER)
        return frozenset(found)

    @property
    def statuses(self) -> frozenset[int]:
        """HTTP statuses that an answer may have."""
        return frozenset({one.status for one in self.replies} | set(map(status_of, self.codes)))

    def reply_headers(self, status: int) -> frozenset[str]:
        """Return the names of the headers that an answer with this status may have."""
        found = (one.headers for one in self.replies if one.status == status)
        return frozenset(header.name for headers in found for header in headers)


def fields_of(operation: Operation) -> tuple[str, ...]:
    """Return the names of the fields that the body of an operation may have."""
    assert operation.body is not None, f"{operation.method} {operation.path} declares no body"
    return tuple(operation.body.fields)
