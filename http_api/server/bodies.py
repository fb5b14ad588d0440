"""Reading a request body inside its limits, and v3's JSON bodies."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import orjson
from aiohttp import hdrs, web

from http_api.contract.errors import RestCode, RestError, envelope, shown
from http_api.contract.media_types import JSON, essence
from http_api.server.context import reply
from http_api.server.error_middleware import error_type

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

BODY_READ_TIMEOUT_S = 60.0
"""A body arrives within this time or the request is given up: a silent client holds memory. The
largest body at 300 KB/s takes as long."""
MAX_ADMIN_BODY_BYTES = 1_048_576
"""Of what operators send: a thousand changes with the longest names. Decoding more would hold the
loop."""
_CONTINUE = b"HTTP/1.1 100 Continue\r\n\r\n"


def too_large(limit: int) -> RestError:
    """413: the body is over ``max_body_bytes``."""
    return RestError(
        413,
        RestCode.TOO_LARGE,
        f"the request body is over max_body_bytes={limit}: send fewer records per request",
    )


async def read_body(request: web.Request, limit: int) -> bytes:
    """The whole body; refused by its Content-Length before a byte is read, else as it grows."""
    length = request.content_length
    if length is not None and length > limit:
        raise too_large(limit)
    try:
        if request.content.is_eof():  # arrived with its headers: nothing to wait for
            return await request.read()
        async with asyncio.timeout(BODY_READ_TIMEOUT_S):
            return await request.read()
    except web.HTTPRequestEntityTooLarge:
        raise too_large(limit) from None
    except web.RequestPayloadError as error:
        text = f"the request body can't be read: {shown(' '.join(str(error).split()))}"
        raise RestError(400, RestCode.BAD_REQUEST, text) from None
    except TimeoutError:
        raise RestError(
            408,
            RestCode.REQUEST_TIMEOUT,
            f"the request body did not arrive within {BODY_READ_TIMEOUT_S:g} s",
        ) from None


def continue_unless_too_large(
    limit: int,
) -> Callable[[web.Request], Awaitable[web.StreamResponse | None]]:
    """Answer ``Expect: 100-continue`` (curl says it from 1 MB on): go on, or 413 right away."""

    async def expect(request: web.Request) -> web.StreamResponse | None:
        if request.headers[hdrs.EXPECT].lower() != "100-continue":
            got = shown(request.headers[hdrs.EXPECT])
            text = f"Expect '{got}' is unknown: expected 100-continue"
            return reply(envelope(RestCode.EXPECTATION_FAILED, text), error_type(request), 417)
        if request.content_length is not None and request.content_length > limit:
            error = too_large(limit)
            response = reply(envelope(error.code, error.message), error_type(request), 413)
            response.force_close()
            return response
        await request.writer.write(_CONTINUE)
        request.writer.output_size = 0  # nothing of the answer itself is out yet
        return None

    return expect


async def read_json_object(request: web.Request, limit: int) -> dict[str, Any]:
    """A v3 request body.

    Raises:
        RestError: 415 for another Content-Type, 400 for what is not a JSON object.
    """
    content_type = request.headers.get(hdrs.CONTENT_TYPE, "")
    if essence(content_type) != JSON:
        raise unsupported_media_type(content_type, JSON)
    body = await read_body(request, limit)
    try:
        value = orjson.loads(body)
    except orjson.JSONDecodeError as error:
        raise RestError(400, RestCode.BAD_REQUEST, f"Bad Request: body is not JSON: {error}") from (
            None
        )
    if not isinstance(value, dict):
        raise RestError(400, RestCode.BAD_REQUEST, "Bad Request: expected a JSON object")
    return value


async def read_optional_json_object(request: web.Request, limit: int) -> dict[str, Any]:
    """As `read_json_object`; no body at all, whatever its Content-Type, is an empty object."""
    if not request.can_read_body:
        return {}
    return await read_json_object(request, limit)


def unsupported_media_type(content_type: str | None, send: str) -> RestError:
    """415, naming the header to send."""
    got = (
        f"Content-Type '{shown(content_type)}'"
        if content_type
        else "a request without Content-Type"
    )
    return RestError(
        415,
        RestCode.UNSUPPORTED_MEDIA_TYPE,
        f"HTTP 415 Unsupported Media Type: {got} is not taken here, send 'Content-Type: {send}'",
    )


def accept_of(request: web.BaseRequest) -> str | None:
    """What the client takes: lines of one name are one list (RFC 9110, 5.3)."""
    lines = request.headers.getall(hdrs.ACCEPT, ())
    return ", ".join(lines) if lines else None


def not_acceptable(request: web.BaseRequest, *taken: str) -> RestError:
    """406, naming what could be asked for."""
    accept = shown(accept_of(request) or "")
    return RestError(
        406,
        RestCode.NOT_ACCEPTABLE,
        f"HTTP 406 Not Acceptable: Accept '{accept}' takes nothing this path answers with, "
        f"which is {', '.join(taken)}",
    )
