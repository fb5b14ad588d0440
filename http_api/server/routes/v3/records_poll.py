"""``POST /v3/clusters/C/records:poll``: many partitions and topics in one waiting read.

A pure read, though its method is POST: ten thousand positions fit no URL. `read_poll` checks the
body, the broker waits and reads, and each page is a line about it followed by exactly the bytes
that the line names. The rest of a page is what a fetch with ``include=batches`` answers.
"""

from __future__ import annotations

import asyncio
import re
from typing import TYPE_CHECKING, Annotated, Any, Final, TypeVar

import msgspec
import orjson
from aiohttp import hdrs, web

from broker.log.read_positions import PositionTruncatedError
from broker.record.compression import framed
from broker.record.render import batch_line, batch_pieces
from broker.server.poll_messages import is_final
from broker.server.requests import UNKNOWN_EPOCH, PollPage, PollRequest, PollRow
from http_api.contract.errors import REST_STATUS, RestCode, RestError
from http_api.contract.media_types import JSON, NDJSON, PAGES, ZSTD, choose_reply, essence
from http_api.contract.operations import poll_operations as declared
from http_api.contract.operations.fetch_operations import RACK_CHARS_MAX
from http_api.contract.operations.shared import ISOLATION
from http_api.contract.v2 import check_name
from http_api.server.access_log import ASKED_WAIT_MS
from http_api.server.answers import EnvelopeRequestHandler, reply
from http_api.server.query_parameters import TOPIC_ID
from http_api.server.request_parsing import (
    INT32_MAX,
    OFFSET_MAX,
    accept_of,
    not_acceptable,
    read_body,
    unsupported_media_type,
    wrong_kind,
)
from http_api.server.request_site import broker_url
from http_api.server.routes.v3.clusters import V3Routes
from raft_metadata.common.errors import ErrorCode, KafkaError
from raft_metadata.common.ids import PartitionId, TopicId, TopicName

if TYPE_CHECKING:
    from collections.abc import Coroutine

    from broker.config import BrokerLimits
    from broker.server.requests import FetchResult
    from http_api.server.answers import ApiContext
    from http_api.server.routing import PathRouter

T = TypeVar("T")

SEPARATE_WRITE_BYTES: Final = 65_536
"""Answers of this size or more are written piece by piece: joining would copy them."""
SHAPE: Final = '{"partitions":[{"topic_name","partition_id","offset"}]}'

_Offset = Annotated[int, msgspec.Meta(ge=0, le=OFFSET_MAX)]
_Int32 = Annotated[int, msgspec.Meta(ge=0, le=INT32_MAX)]


class _Row(msgspec.Struct, gc=False, forbid_unknown_fields=True):
    topic_name: str
    partition_id: _Int32
    offset: _Offset
    leader_epoch: _Int32 | None = None
    topic_id: str | None = None


class _Body(msgspec.Struct, gc=False, forbid_unknown_fields=True):
    partitions: list[_Row]
    wait_ms: int = declared.WAIT_MS_DEFAULT
    min_bytes: int = 1
    max_bytes: int = declared.MAX_BYTES_DEFAULT
    max_partition_bytes: int = declared.MAX_PARTITION_BYTES_DEFAULT
    news_only: bool = False
    rack: str | None = None
    zstd: bool = False
    isolation: str | None = None


_decode = msgspec.json.Decoder(_Body).decode
_PLACE = re.compile(r"(.*?)(?: - at `\$(.*)`)?", re.DOTALL)
"""The decoder's message: what is wrong, and the path to it."""
_STEP = re.compile(r"\.(\w+)|\[(\d+)\]")


class PollRoutes(V3Routes):
    """The read of many partitions."""

    def __init__(self, context: ApiContext) -> None:
        super().__init__(context)
        self._poll_bytes_max = min(context.limits.max_body_bytes, declared.BODY_BYTES_MAX)

    def add_to(self, router: PathRouter) -> None:
        self._serve(router, declared.POLL, self.poll, {NDJSON: NDJSON, PAGES: PAGES})

    async def poll(self, request: web.Request) -> web.StreamResponse:
        """Answer the pages of all partitions that have one; wait for the first."""
        content_type = request.headers.get(hdrs.CONTENT_TYPE, "")
        if essence(content_type) != JSON:
            raise unsupported_media_type(content_type, JSON)
        wanted = read_poll(await read_body(request, self._poll_bytes_max), self._limits)
        answer_type = PAGES if wanted.packed else NDJSON
        if choose_reply(accept_of(request), {answer_type: answer_type}) is None:
            raise not_acceptable(request, answer_type)
        request[ASKED_WAIT_MS] = wanted.max_wait_ms
        pages = await _while_connected(request, self._apis.poll(wanted))
        parts: list[bytes | memoryview] = []
        for page in pages:
            parts += self._parts(wanted, page)
        return await _send(request, parts, answer_type)

    def _parts(self, wanted: PollRequest, page: PollPage) -> list[bytes | memoryview]:
        """Return the line about a page, and its bytes."""
        row = wanted.rows[page.row]
        head: dict[str, Any] = {
            "topic_name": row.topic,
            "topic_id": page.topic_id,
            "partition_id": row.partition,
            "offset": row.offset,
        }
        if isinstance(page.found, KafkaError):
            return [_line(head | {"bytes": 0} | _error_fields(page.found))]
        result, coding = page.found, None
        if result.packed:
            body, coding = framed(result.packed, batch_line).parts, ZSTD
        else:
            body = batch_pieces(result.slices)
        head |= {
            "next_offset": result.next_offset,
            "next_leader_epoch": _known(result.next_leader_epoch),
            "leader_id": result.leader_id,
            "leader_epoch": result.leader_epoch,
            "leader_url": broker_url(self._apis.image, result.leader_id),
            "high_watermark": result.high_watermark,
            "log_start_offset": result.log_start_offset,
            "records": _count(result),
            "bytes": sum(map(len, body)),
            "coding": coding,
        }
        if wanted.rack is not None:
            served_by = result.leader_id if result.served_by is None else result.served_by
            head["served_by"] = served_by
            head["served_by_url"] = broker_url(self._apis.image, served_by)
        if wanted.news_only:
            head["epochs"] = page.epochs
        return [_line(head), *body]


async def _while_connected(request: web.Request, polling: Coroutine[Any, Any, T]) -> T:
    """Return the result of a poll; end it once its client is gone, which gives its rows back.

    Raises:
        ConnectionResetError: the client is gone.
    """
    connection = request.protocol
    assert isinstance(connection, EnvelopeRequestHandler), "the listener's connections are ours"
    task = asyncio.get_running_loop().create_task(polling)
    connection.when_lost = task.cancel
    try:
        return await task
    except asyncio.CancelledError:
        if request.transport is None:
            raise ConnectionResetError from None
        raise
    finally:
        connection.when_lost = None
        task.cancel()


def read_poll(body: bytes, limits: BrokerLimits) -> PollRequest:
    """Return the poll that a body describes.

    Raises:
        RestError: 400 a body of another shape, naming what is wrong; 413 more than `ROWS_MAX`
            rows; 400/40002 a topic's name.
    """
    try:
        found = _decode(body)
    except msgspec.ValidationError as error:
        raise _misshapen(body, str(error)) from None
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        text = f"Bad Request: body is not JSON: {error}"
        raise RestError(400, RestCode.BAD_REQUEST, text) from None
    wait_ms, most_bytes = limits.max_fetch_wait_ms, limits.max_fetch_bytes
    for name, low, high in (
        ("wait_ms", 0, wait_ms),
        ("min_bytes", 1, most_bytes),
        ("max_bytes", 1, most_bytes),
        ("max_partition_bytes", 1, most_bytes),
    ):
        value = getattr(found, name)
        if not low <= value <= high:
            raise wrong_kind(name, value, f"an integer from {low} to {high}")
    if found.rack is not None and not 0 < len(found.rack) <= RACK_CHARS_MAX:
        raise wrong_kind("rack", found.rack, f"1 to {RACK_CHARS_MAX} characters")
    if found.isolation not in {None, *ISOLATION.words}:
        raise wrong_kind(ISOLATION.name, found.isolation, " or ".join(ISOLATION.words))
    return PollRequest(
        rows=_rows(found.partitions),
        max_wait_ms=found.wait_ms,
        min_bytes=min(found.min_bytes, found.max_partition_bytes),
        max_bytes=found.max_bytes,
        max_partition_bytes=found.max_partition_bytes,
        news_only=found.news_only,
        rack=found.rack,
        packed=found.zstd,
    )


def _rows(given: list[_Row]) -> list[PollRow]:
    """Return the rows, checked; the names of one topic share one string."""
    if not given:
        raise wrong_kind("partitions", given, "at least one row")
    if len(given) > declared.ROWS_MAX:
        text = f"{len(given)} rows of partitions, expected at most {declared.ROWS_MAX}: poll twice"
        raise RestError(413, RestCode.TOO_LARGE, text)
    names: dict[str, TopicName] = {}
    places: set[tuple[str, int]] = set()
    rows = []
    for number, row in enumerate(given):
        name = names.get(row.topic_name)
        if name is None:
            name = names[row.topic_name] = TopicName(check_name("topic_name", row.topic_name))
        if row.topic_id is not None and not TOPIC_ID.fullmatch(row.topic_id):
            field = f"partitions[{number}].topic_id"
            raise wrong_kind(field, row.topic_id, "22 characters, as in Quorumlog-Topic-Id")
        if (name, row.partition_id) in places:
            text = (
                f"Bad Request: partitions[{number}] names partition {row.partition_id} of topic "
                f"{name} again: expected each partition once"
            )
            raise RestError(400, RestCode.BAD_REQUEST, text)
        places.add((name, row.partition_id))
        rows.append(
            PollRow(
                topic=name,
                partition=PartitionId(row.partition_id),
                offset=row.offset,
                leader_epoch=UNKNOWN_EPOCH if row.leader_epoch is None else row.leader_epoch,
                topic_id=None if row.topic_id is None else TopicId(row.topic_id),
            )
        )
    return rows


def _misshapen(body: bytes, why: str) -> RestError:
    """Return the refusal of a misshapen body: the field, its value, what is expected.

    The value is looked up in the body, since the decoder does not name it.
    """
    match = _PLACE.fullmatch(why)
    assert match is not None, "the pattern matches every text"
    expected, path = match[1], match[2] or ""
    value: Any = None
    is_found = False
    try:
        value = orjson.loads(body)
        for step in _STEP.finditer(path):
            value = value[step[1]] if step[1] is not None else value[int(step[2])]
        is_found = True
    except (ValueError, LookupError, TypeError):
        pass
    where = path.lstrip(".") or "the body"
    expected = expected[:1].lower() + expected[1:].replace("`", "'")
    if is_found and not isinstance(value, dict):
        got = wrong_kind(where, value, "").message.removesuffix(", expected ")
        text = f"{got}: {expected.partition(', got')[0]}"
    else:
        text = f"Bad Request: {where}: {expected}; expected {SHAPE} and its options"
    return RestError(400, RestCode.BAD_REQUEST, text)


def _error_fields(error: KafkaError) -> dict[str, Any]:
    code = REST_STATUS[error.code].code
    if error.code is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION:
        code = RestCode.PARTITION_NOT_FOUND
    fields: dict[str, Any] = {
        "error_code": int(code),
        "message": f"{error.code.name}: {error.message}",
        "retriable": not is_final(error),
    }
    if isinstance(error, PositionTruncatedError):
        fields["diverging_offset"] = error.divergence.offset
        fields["diverging_epoch"] = error.divergence.epoch
    return fields


def _known(epoch: int) -> int | None:
    return None if epoch == UNKNOWN_EPOCH else epoch


def _count(result: FetchResult) -> int:
    return sum(piece.count for piece in result.packed or result.slices)


def _line(head: dict[str, Any]) -> bytes:
    return orjson.dumps({"page": head}) + b"\n"


async def _send(
    request: web.Request, parts: list[bytes | memoryview], content_type: str
) -> web.StreamResponse:
    size = sum(map(len, parts))
    if size < SEPARATE_WRITE_BYTES:
        return reply(b"".join(parts), content_type)
    headers = {hdrs.CONTENT_TYPE: content_type, hdrs.CONTENT_LENGTH: str(size)}
    response = web.StreamResponse(headers=headers)
    await response.prepare(request)
    for part in _pieces_to_write(parts):
        await response.write(part)
    await response.write_eof()
    return response


def _pieces_to_write(parts: list[bytes | memoryview]) -> list[bytes | memoryview]:
    """Return the parts with short neighbours joined, as each write is a system call."""
    pieces: list[bytes | memoryview] = []
    short: list[bytes | memoryview] = []
    length = 0
    for part in parts:
        if len(part) >= SEPARATE_WRITE_BYTES:
            if short:
                pieces.append(b"".join(short))
                short, length = [], 0
            pieces.append(part)
            continue
        short.append(part)
        length += len(part)
        if length >= SEPARATE_WRITE_BYTES:
            pieces.append(b"".join(short))
            short, length = [], 0
    if short:
        pieces.append(b"".join(short))
    return pieces
