"""Input of a request: path and query parameters, the body within its limits, fields of a v3 body.

Routes call these functions; every refusal is a `RestError` that names the value and the
expectation. Only types are checked here: ranges and meaning are checked by the controller or broker
that carries the command out.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import orjson
from aiohttp import hdrs, web

from http_api.contract.errors import RestCode, RestError, envelope, excerpt, excerpt_of_value
from http_api.contract.media_types import JSON, choose_reply, essence
from http_api.contract.operations.parameters import INT32_MAX as INT32_MAX
from http_api.contract.operations.parameters import OFFSET_MAX as OFFSET_MAX
from http_api.contract.operations.parameters import bad_parameter as bad_parameter
from http_api.contract.operations.parameters import parse_integer as parse_integer
from http_api.contract.v2 import check_name
from http_api.server.answers import error_type, reply
from raft_metadata.common.ids import BrokerId, PartitionId, TopicName

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence


_TRUE = {"true": True, "false": False}


def topic_name(raw: str) -> TopicName:
    """Return a topic's name from a path; `check_name` raises the refusals."""
    return TopicName(check_name("topic_name", raw))


def partition_id(raw: str) -> PartitionId:
    """Return a partition's number from a path; no number is a 404, as no such resource exists."""
    return PartitionId(_path_integer(raw))


def broker_id(raw: str) -> BrokerId:
    """Return a broker's id from a path; no number is a 404."""
    return BrokerId(_path_integer(raw))


def _path_integer(raw: str) -> int:
    number = parse_integer(raw)
    if number is None:
        text = f"HTTP 404 Not Found: '{excerpt(raw)}' is not a number"
        raise RestError(404, RestCode.NOT_FOUND, text)
    if number > INT32_MAX:
        text = f"HTTP 404 Not Found: {raw} is over {INT32_MAX}, the largest number of its kind"
        raise RestError(404, RestCode.NOT_FOUND, text)
    return number


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


async def read_body(
    request: web.Request, limit: int, refusal: Callable[[int], RestError] = too_large
) -> bytes:
    """Return the whole body; refuse it by its Content-Length before reading, else as it grows.

    ``refusal`` makes the 413 of the limit.

    Raises:
        RestError: 413 over ``limit``, 400 a body that cannot be decoded, 408 too slow.
    """
    length = request.content_length
    if length is not None and length > limit:
        raise refusal(limit)
    try:
        if request.content.is_eof():  # it arrived with its headers: no timer needed
            body = await request.read()
        else:
            async with asyncio.timeout(BODY_READ_TIMEOUT_S):
                body = await request.read()
    except web.HTTPRequestEntityTooLarge:
        raise refusal(limit) from None
    except web.RequestPayloadError as error:
        text = f"the request body can't be read: {excerpt(' '.join(str(error).split()))}"
        raise RestError(400, RestCode.BAD_REQUEST, text) from None
    except TimeoutError:
        raise RestError(
            408,
            RestCode.REQUEST_TIMEOUT,
            f"the request body did not arrive within {BODY_READ_TIMEOUT_S:g} s",
        ) from None
    if len(body) > limit:  # in chunks or packed, of a path whose limit is below max_body_bytes
        raise refusal(limit)
    return body


def refuse_doubled(request: web.Request, names: Iterable[str]) -> None:
    """Refuse a header of one value that comes twice: which of them counts is not known.

    Raises:
        RestError: 400/40002, naming the header.
    """
    for name in names:
        if name in request.headers and len(request.headers.getall(name)) > 1:
            text = f"Header '{name}' is given twice: expected once"
            raise RestError(400, RestCode.KAFKA_BAD_REQUEST, text)


def continue_unless_too_large(
    limit: int, takes_any_length: Callable[[str, str], bool]
) -> Callable[[web.Request], Awaitable[web.StreamResponse | None]]:
    """Return a handler of ``Expect: 100-continue``, which curl sends from 1 MB on: go on or 413.

    ``takes_any_length(method, path)`` returns True where the limit does not hold.
    """

    async def expect(request: web.Request) -> web.StreamResponse | None:
        if request.headers[hdrs.EXPECT].lower() != "100-continue":
            got = excerpt(request.headers[hdrs.EXPECT])
            text = f"Expect '{got}' is unknown: expected 100-continue"
            return reply(envelope(RestCode.EXPECTATION_FAILED, text), error_type(request), 417)
        length = request.content_length
        if (
            length is not None
            and length > limit
            and not takes_any_length(request.method, request.rel_url.raw_path)
        ):
            error = too_large(limit)
            response = reply(envelope(error.code, error.message), error_type(request), 413)
            response.force_close()
            return response
        await request.writer.write(_CONTINUE)
        request.writer.output_size = 0  # nothing of the answer itself has been written yet
        return None

    return expect


def object_in(body: bytes, shape: str) -> dict[str, Any]:
    """Return the JSON object of a body; ``shape`` shows one that is expected, on one line.

    Raises:
        RestError: 400 for a body that is not a JSON object.
    """
    try:
        value = orjson.loads(body)
    except orjson.JSONDecodeError as error:
        text = f"Bad Request: body is not JSON: {error}"
        raise RestError(400, RestCode.BAD_REQUEST, text) from None
    if not isinstance(value, dict):
        got = "null" if value is None else excerpt_of_value(value)
        text = f"Bad Request: the body is {got}, expected an object: {shape}"
        raise RestError(400, RestCode.BAD_REQUEST, text)
    return value


async def read_json_object(request: web.Request, limit: int, shape: str) -> dict[str, Any]:
    """Return the JSON object of a v3 request body; ``shape`` as of `object_in`.

    Raises:
        RestError: 415 for another Content-Type, 400 for a body that is not a JSON object.
    """
    content_type = request.headers.get(hdrs.CONTENT_TYPE, "")
    if essence(content_type) != JSON:
        raise unsupported_media_type(content_type, JSON)
    return object_in(await read_body(request, limit), shape)


async def read_optional_json_object(request: web.Request, limit: int, shape: str) -> dict[str, Any]:
    """Return the JSON object of the body; {} for no body, whatever its Content-Type.

    Raises as `read_json_object`.
    """
    if not request.can_read_body:
        return {}
    return await read_json_object(request, limit, shape)


def unsupported_media_type(content_type: str | None, send: str) -> RestError:
    """Return the 415 that names the header to send."""
    got = (
        f"Content-Type '{excerpt(content_type)}'"
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
    accept = excerpt(accept_of(request) or "")
    return RestError(
        406,
        RestCode.NOT_ACCEPTABLE,
        f"HTTP 406 Not Acceptable: Accept '{accept}' takes nothing this path answers with, "
        f"which is {', '.join(taken)}",
    )


def check_accept(request: web.BaseRequest, replies: Mapping[str, str]) -> None:
    """Raise the 406 unless Accept allows one of the types in ``replies``."""
    if choose_reply(accept_of(request), replies) is None:
        raise not_acceptable(request, *dict.fromkeys(replies.values()))


def check_fields(fields: dict[str, Any], known: Sequence[str], where: str = "") -> None:
    """Refuse unknown fields: an ignored field is more likely mistyped than superfluous.

    ``where`` is a prefix for the field's name in the message.
    """
    for name in sorted(fields):
        if name not in known:
            said = f"unknown field '{excerpt(where + name)}': expected {', '.join(known)}"
            raise RestError(400, RestCode.BAD_REQUEST, said)


def wrong_kind(field: str, value: object, expected: str) -> RestError:
    """Return the 400 that names the field, its value and the expectation."""
    said = f"Bad Request: '{field}' is {excerpt_of_value(value)}, expected {expected}"
    return RestError(400, RestCode.BAD_REQUEST, said)


def integer(fields: dict[str, Any], name: str) -> int | None:
    """Return a 32-bit integer, or None where the field is absent or null."""
    value = fields.get(name)
    if value is None:
        return None
    if not is_integer(value):
        raise wrong_kind(name, value, "an integer")
    return int(value)


def needed_integer(fields: dict[str, Any], name: str) -> int:
    """Return a 32-bit integer that must be present."""
    value = fields.get(name)
    if not is_integer(value):
        raise wrong_kind(name, value, "an integer")
    return int(value)  # type: ignore[arg-type] # it is an integer


def is_integer(value: object) -> bool:
    """Return True for a 32-bit integer that is no boolean."""
    return isinstance(value, int) and not isinstance(value, bool) and abs(value) <= INT32_MAX


def flag(fields: dict[str, Any], name: str) -> bool:
    """Return a boolean; absent or null is false."""
    value = fields.get(name)
    if value is None:
        return False
    if not isinstance(value, bool):
        raise wrong_kind(name, value, "true or false")
    return value


def word(fields: dict[str, Any], name: str, words: Sequence[str], default: str | None) -> str:
    """Return one of a few words; the field is mandatory if ``default`` is None."""
    value = fields.get(name, default)
    if not isinstance(value, str) or value not in words:
        raise wrong_kind(name, value, " or ".join(f'"{each}"' for each in words))
    return value


def rows(fields: dict[str, Any], limit: int, expected: str) -> list[dict[str, Any]]:
    """Return the objects of ``data``: at least one, at most ``limit`` (else 413)."""
    data = fields.get("data")
    if not isinstance(data, list) or not data:
        raise wrong_kind("data", data, f"a list of at least one {expected}")
    if len(data) > limit:
        said = f"{len(data)} rows of data, expected at most {limit}: send several requests"
        raise RestError(413, RestCode.TOO_LARGE, said)
    for row in data:
        if not isinstance(row, dict):
            raise wrong_kind("data", row, expected)
    return data


def topic_in(fields: dict[str, Any]) -> TopicName:
    """Return ``topic_name`` of a body, checked."""
    name = fields.get("topic_name")
    if not isinstance(name, str):
        raise wrong_kind("topic_name", name, "a string")
    return TopicName(check_name("topic_name", name))


def broker_ids(field: str, value: object) -> tuple[BrokerId, ...]:
    """Return a list of broker ids as a tuple."""
    if not isinstance(value, list) or not all(map(is_integer, value)):
        raise wrong_kind(field, value, "a list of broker ids like [1, 2, 3]")
    return tuple(map(BrokerId, value))


def config_text(name: str, value: object) -> str | None:
    """Return a config's value as text; numbers and booleans are taken in their JSON spelling."""
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, int | float):
        return str(value)
    if not isinstance(value, str | None):
        raise wrong_kind(name, value, "a string")
    return value
