"""The context that every route is constructed with, and helpers to build an answer."""

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
"""Value of the ``Server`` header of every answer."""
ERROR_TYPE = web.RequestKey("error_type", str)
"""Content-Type of an error answer to this request; set once the route is known."""
MOVES_POSITIONS = web.RequestKey("moves_positions", bool)
"""True where a GET is no pure read: an error answer then states that the outcome is unknown."""


@dataclass(frozen=True, slots=True)
class ApiContext:
    """The broker that answers, its limits and its address. Immutable; shared by all routes."""

    apis: BrokerApis
    limits: BrokerLimits
    advertised_url: str
    """Address ``http://host:port`` at which clients reach this broker, without a final slash."""


def reply(
    body: bytes, content_type: str, status: int = 200, headers: Mapping[str, str] | None = None
) -> web.Response:
    """Return an answer with exactly this Content-Type; no charset is added."""
    merged = {hdrs.CONTENT_TYPE: content_type, **(headers or {})}
    return web.Response(status=status, body=body, headers=merged)


def json_reply(
    value: Any, content_type: str, status: int = 200, headers: Mapping[str, str] | None = None
) -> web.Response:
    """Return an answer with ``value`` as JSON."""
    return reply(orjson.dumps(value), content_type, status, headers)
