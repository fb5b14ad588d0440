"""Request bodies and content negotiation: bounded reads, v3's JSON bodies, 406, 413, 415.

Routes call these functions; every refusal is a `RestError`.
"""

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
"""Longest time for a body to arrive, else 408: a silent client holds memory. The largest body takes
this long at 300 KB/s."""
MAX_ADMIN_BODY_BYTES = 1_048_576
"""Largest admin body: a thousand changes with the longest names. Decoding more would block the
loop for too long."""
_CONTINUE = b"HTTP/1.1 100 Continue\r\n\r\n"


def too_large(limit: int) -> RestError:
    """Return the 413 for a body over ``max_body_bytes``."""
    return RestError(
        413,
        RestCode.TOO_LARGE,
        f"the request body is over max_body_bytes={limit}: send fewer records per request",
    )


async def read_body(request: web.Request, limit: int) -> bytes:
    """Return the whole body; refuse it by its Content-Length before reading, else as it grows.

    Raises:
        RestError: 413 over ``limit``, 400 a body that cannot be decoded, 408 too slow.
    """
    length = request.content_length
    if length is not None and length > limit:
        raise too_large(limit)
    try:
        if request.content.is_eof():  # it arrived with its headers: no timer needed
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
    """Return a handler of ``Expect: 100-continue``, which curl sends from 1 MB on: go on or 413."""

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
        request.writer.output_size = 0  # nothing of the answer itself has been written yet
        return None

    return expect


async def read_json_object(request: web.Request, limit: int) -> dict[str, Any]:
    """Return the JSON object of a v3 request body.

    Raises:
        RestError: 415 for another Content-Type, 400 for a body that is not a JSON object.
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
    """Return the JSON object of the body; {} for no body, whatever its Content-Type.

    Raises as `read_json_object`.
    """
    if not request.can_read_body:
        return {}
    return await read_json_object(request, limit)


def unsupported_media_type(content_type: str | None, send: str) -> RestError:
    """Return the 415 that names the header to send."""
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
    """Return the Accept header, or None; several lines of it are one list (RFC 9110, 5.3)."""
    lines = request.headers.getall(hdrs.ACCEPT, ())
    return ", ".join(lines) if lines else None


def not_acceptable(request: web.BaseRequest, *taken: str) -> RestError:
    """Return the 406 that names the types this path can answer with."""
    accept = shown(accept_of(request) or "")
    return RestError(
        406,
        RestCode.NOT_ACCEPTABLE,
        f"HTTP 406 Not Acceptable: Accept '{accept}' takes nothing this path answers with, "
        f"which is {', '.join(taken)}",
    )
