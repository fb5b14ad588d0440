"""What every route is given, and the few answers all of them make."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import orjson
from aiohttp import hdrs, web

if TYPE_CHECKING:
    from collections.abc import Mapping

    from broker.config import BrokerLimits
    from broker.server.requests import BrokerApis

SERVER: Final = "quorumlog"
"""What every answer says in its ``Server`` header."""
ERROR_TYPE = web.RequestKey("error_type", str)
"""Content-Type of an error answer to this request; set once the route is known."""
MOVES_POSITIONS = web.RequestKey("moves_positions", bool)
"""Set where a GET is no pure read: what is unknown about its outcome is then said."""


@dataclass(frozen=True, slots=True)
class ApiContext:
    """The broker behind the door and how the door is set up. Shared by all routes."""

    apis: BrokerApis
    limits: BrokerLimits
    advertised_url: str
    """``http://host:port`` of this broker as clients reach it, without a slash at the end."""


def reply(
    body: bytes, content_type: str, status: int = 200, headers: Mapping[str, str] | None = None
) -> web.Response:
    """An answer with exactly this Content-Type, no charset added."""
    merged = {hdrs.CONTENT_TYPE: content_type, **(headers or {})}
    return web.Response(status=status, body=body, headers=merged)


def json_reply(
    value: Any, content_type: str, status: int = 200, headers: Mapping[str, str] | None = None
) -> web.Response:
    """An answer holding ``value`` as JSON."""
    return reply(orjson.dumps(value), content_type, status, headers)
