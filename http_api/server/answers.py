"""Answers of the public listener: the context of every route, request ids, errors.

This is the one place where a failure becomes an HTTP answer. Handlers raise `KafkaError` (from the
broker) or `RestError` (from the HTTP layer); `error_middleware` turns both into the error envelope,
with the Content-Type that the route's answer would have had. `EnvelopeRequestHandler` does the same
for requests that aiohttp cannot parse.
"""

from __future__ import annotations

import itertools
import logging
import re
import secrets
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import orjson
from aiohttp import hdrs, web
from typing_extensions import override

from broker.log.read_positions import PositionTruncatedError
from http_api.contract.errors import (
    REST_STATUS,
    RETRY_LATER,
    RestCode,
    RestError,
    envelope,
    excerpt,
    failure_envelope,
)
from http_api.contract.foreign_pages import ANY_HOST, TrustedHosts
from http_api.contract.forwarding import NO_PROXIES, TrustedProxies
from http_api.contract.media_types import JSON, V2
from http_api.contract.operations.produce_operations import PARTITIONS_HEADER, TOPIC_ID_HEADER
from raft_metadata.common.errors import KafkaError, Outcome

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Mapping

    from broker.config import BrokerLimits
    from broker.server.requests import BrokerApis
    from http_api.server.live_settings import LiveSettings
    from http_api.server.partition_watches import PartitionWatches
    from http_api.server.streams import StreamRegistry
    from raft_metadata.common.ids import TopicName
    from raft_metadata.common.standstills import Standstills
    from raft_metadata.image.metadata_image import MetadataImage, TopicImage


SERVER: Final = "quorumlog"
"""Value of the ``Server`` header of every answer."""
ERROR_TYPE = web.RequestKey("error_type", str)
"""Content-Type of an error answer to this request; set once the route is known."""
MOVES_POSITIONS = web.RequestKey("moves_positions", bool)
"""True where a GET is no pure read: an error answer then states that the outcome is unknown."""

IN_TRANSACTION = web.RequestKey("in_transaction", bool)
"""True for the requests of transactions: a 409 of theirs says its outcome, and whatever is not
available just now has one code, 503/50003."""


class ProducedTopic(NamedTuple):
    """The topic of a produce, which its answer describes whether or not records are written."""

    name: TopicName
    topic: TopicImage | None = None
    """The topic that the broker appends to; None: not known yet."""

    def headers(self, image: MetadataImage) -> dict[str, str]:
        """Return the topic's id and number of partitions; nothing if there is no such topic.

        A topic that was deleted and created again meanwhile is not the one that was written to.
        """
        topic = self.topic if self.topic is not None else image.topic(self.name)
        if topic is None:
            return {}
        now = image.topics.get(topic.topic_id, topic)
        return {TOPIC_ID_HEADER: now.topic_id, PARTITIONS_HEADER: str(now.routed_count)}


PRODUCED_TOPIC = web.RequestKey("produced_topic", ProducedTopic)
"""Set on each produce; see `ProducedTopic`."""


@dataclass(frozen=True, slots=True)
class ApiContext:
    """The broker that answers, its limits and its address. Immutable; shared by all routes."""

    apis: BrokerApis
    limits: BrokerLimits
    advertised_url: str
    """Address ``http://host:port`` at which clients reach this broker, without a final slash."""
    streams: StreamRegistry
    settings: LiveSettings
    watches: PartitionWatches
    standstills: Standstills
    trusted: TrustedHosts = ANY_HOST
    proxies: TrustedProxies = NO_PROXIES

    def check_connected(self, request: web.BaseRequest) -> None:
        """Check right before a transaction's request is begun that its client still waits for it.

        Raises:
            ConnectionResetError: the client gave up, or this process stood still meanwhile, and has
                cut what was connected before (rule S12).
        """
        if self.standstills.is_cut(request.transport):
            raise ConnectionResetError


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


_REQUEST_ID = re.compile(r"[\x21-\x7e]{1,128}")


class RequestIds:
    """Source of request ids; one per listener, shared by the fast lane and the routes.

    New ids are a random prefix and a counter, so they are unique without a random draw per request.
    """

    def __init__(self) -> None:
        self._prefix = secrets.token_hex(4)
        self._count = itertools.count(1)

    def of(self, given: str | None) -> str:
        """Return the id for the answer: ``given`` if it is well formed, else a new one."""
        if given is None or not _REQUEST_ID.fullmatch(given):
            return f"{self._prefix}-{next(self._count):x}"
        return given


_log = logging.getLogger("http_api.server")

_READS = frozenset({"GET", "HEAD"})
MAX_HEADERS = 128
"""Most header fields of a request; the parser counts them."""


async def error_middleware(
    request: web.Request, handler: Callable[[web.Request], Awaitable[web.StreamResponse]]
) -> web.StreamResponse:
    """Run the handler and turn every exception it raises into an envelope, except cancellation."""
    try:
        return await handler(request)
    except KafkaError as error:
        response = _kafka_error(request, error)
    except RestError as error:
        response = _rest_error(request, error)
    except web.HTTPException as error:
        response = _aiohttp_error(request, error)
    except ConnectionError:
        raise  # the client has disconnected: an answer would not be read
    except Exception as error:
        if request.transport is None or request.transport.is_closing():
            raise ConnectionResetError from error
        _log.exception("handler failed method=%s path=%s", request.method, request.path)
        response = _unexpected(request)
    return response


def error_type(request: web.BaseRequest) -> str:
    """Return the Content-Type of an error answer: the route's, else the default of v2 or v3."""
    known = request.get(ERROR_TYPE)
    if isinstance(known, str):
        return known
    return JSON if request.path.lstrip("/").partition("/")[0] == "v3" else V2


def _is_pure_read(request: web.Request) -> bool:
    """Return True if a failed request leaves no effect.

    Reading as a consumer group does moves positions, though its method is GET (rule F2).
    """
    return request.method in _READS and not request.get(MOVES_POSITIONS, False)


def read_error(error: Exception) -> bytes:
    """Return the envelope of a read that failed, for an answer that has begun already."""
    if isinstance(error, RestError):
        return envelope(error.code, error.message)
    if not isinstance(error, KafkaError):
        return _unexpected_envelope(Outcome.NOT_WRITTEN)
    status, code = REST_STATUS[error.code]
    if status < 500:
        return envelope(code, error.message)
    return failure_envelope(
        code, error.message, retriable=error.code.retriable, outcome=Outcome.NOT_WRITTEN
    )


def _kafka_error(request: web.Request, error: KafkaError) -> web.Response:
    status, code = REST_STATUS[error.code]
    in_transaction = request.get(IN_TRANSACTION, False)
    if status < 500 and status != 429 and not (status == 409 and in_transaction):
        headers = diverging_headers(error) if isinstance(error, PositionTruncatedError) else None
        return reply(envelope(code, error.message), error_type(request), status, headers)
    if status == 503 and in_transaction:
        code = RestCode.KAFKA_RETRIABLE_ERROR
    outcome = Outcome.NOT_WRITTEN if _is_pure_read(request) else error.outcome
    body = failure_envelope(code, error.message, retriable=error.code.retriable, outcome=outcome)
    _log.debug("refused path=%s code=%s outcome=%s", request.path, error.code.name, outcome.value)
    return reply(body, error_type(request), status, RETRY_LATER if status in {429, 503} else None)


def diverging_headers(error: PositionTruncatedError) -> dict[str, str]:
    """Return the headers that say where a reader may go on (KIP-320)."""
    return {
        "Quorumlog-Diverging-Offset": str(error.divergence.offset),
        "Quorumlog-Diverging-Epoch": str(error.divergence.epoch),
    }


def _rest_error(request: web.Request, error: RestError) -> web.Response:
    body = envelope(error.code, error.message)
    response = reply(body, error_type(request), error.status, error.headers)
    if error.status == 413:
        response.force_close()  # the rest of the body is not read
    return response


def _aiohttp_error(request: web.Request, error: web.HTTPException) -> web.Response:
    """Return the answer to aiohttp's own refusals: a body over the limit, a target like ``*``."""
    codes = {404: RestCode.NOT_FOUND, 413: RestCode.TOO_LARGE}
    status = error.status if error.status in codes else 400
    text = error.text or error.reason
    if status == 404:
        path = excerpt(request.path_qs)
        text = f"HTTP 404 Not Found: '{path}' is no path, expected one like /topics"
    return _rest_error(request, RestError(status, codes.get(status, RestCode.BAD_REQUEST), text))


def _unexpected(request: web.Request) -> web.Response:
    outcome = Outcome.NOT_WRITTEN if _is_pure_read(request) else Outcome.UNKNOWN
    return reply(_unexpected_envelope(outcome), error_type(request), 500)


def _unexpected_envelope(outcome: Outcome) -> bytes:
    text = "the server met an unexpected error; its log has the details"
    return failure_envelope(RestCode.KAFKA_ERROR, text, retriable=False, outcome=outcome)


class EnvelopeRequestHandler(web.RequestHandler):
    """A connection whose parse errors are answered in our envelope, too. Owned by its transport."""

    __slots__ = ("when_lost",)

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self.when_lost: Callable[[], object] | None = None
        """Called if the connection is lost; set by the handler of the request under way, and reset
        by it. Must not raise."""

    @override
    def connection_lost(self, exc: BaseException | None) -> None:
        if self.when_lost is not None:
            self.when_lost()
        super().connection_lost(exc)

    @override
    def handle_error(
        self,
        request: web.BaseRequest,
        status: int = 500,
        exc: BaseException | None = None,
        message: str | None = None,
    ) -> web.StreamResponse:
        """Answer a request that aiohttp cannot parse, or that failed outside of the middleware."""
        if request.writer.output_size > 0 or isinstance(exc, ConnectionError):
            # an answer has been started, or the client disconnected within its body: just close
            raise ConnectionResetError
        if status < 500:
            response = _refusal(status, message or "Bad Request")
        else:
            _log.error("request failed outside of its handler", exc_info=exc)
            body = failure_envelope(
                RestCode.KAFKA_ERROR,
                "the server met an unexpected error",
                retriable=False,
                outcome=Outcome.UNKNOWN,
            )
            response = reply(body, V2, status)
        response.headers[hdrs.SERVER] = SERVER  # `sign` of the app does not see this answer
        response.force_close()
        return response

    @override
    def log_exception(self, *args: Any, **kw: Any) -> None:
        """Log a connection's trouble at DEBUG: the client causes it, and handlers log their own."""
        _log.debug(*args, **kw)


def _refusal(status: int, message: str) -> web.Response:
    """Return the answer to a request that the parser refuses.

    Where one of our limits is the reason, the message names that limit.
    """
    text = " ".join(message.split())[:200]
    if "bytes when reading" in text:  # LineTooLong
        limit = text.partition("Got more than ")[2].partition(" ")[0]
        text = f"the request line or a header is over max_header_bytes={limit}"
        return reply(envelope(RestCode.HEADER_TOO_LARGE, text), V2, 431)
    if "Too many headers" in text:
        text = f"the request has more than {MAX_HEADERS} headers"
        return reply(envelope(RestCode.HEADER_TOO_LARGE, text), V2, 431)
    if "Content-Length overflow" in text:
        text = "the Content-Length does not even fit into 64 bits: it is over max_body_bytes"
        return reply(envelope(RestCode.TOO_LARGE, text), V2, 413)
    return reply(envelope(RestCode.BAD_REQUEST, f"malformed HTTP: {text}"), V2, status)
